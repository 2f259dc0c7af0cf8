"""The master's status: the state in the ledger, and the trainers and pservers."""

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from elastic_ctr.features.statistics.drift import Drift
from elastic_ctr.store.versions.manifest import PassLearning
from elastic_ctr.training.master.calendar.quality_gate import LOOKED_AT, newest_windows
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.figure_table import MOMENTS, Figures
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import DriftRow, HoldRow, PassRow, Tables
from elastic_ctr.training.master.work import start_from

_SHOWN_PASSES = 1000
# Passes with deciles and ROC, which take 2 KB each.
_SHOWN_CURVES = 24
_WORST = 3


def status(coordinator: Coordinator, start_ignored: str = "") -> dict[str, Any]:
    """Return a consistent snapshot of ledger and members. The number of queries does not depend on the number of passes."""
    with coordinator.lock.reading() as ledger:
        generation = coordinator.generation
        return {
            "ready": coordinator.initialised,
            "pservers": [
                {
                    "index": index,
                    "serving": one.serving and one.generation == generation,
                    "error": one.error,
                    # A supervisor of an earlier release does not report it.
                    "memoryBytes": one.memory_bytes or None,
                }
                for index, one in coordinator.pservers.items()
            ],
            "handover": coordinator.handover,
            "startedFrom": start_from.status_of(ledger, start_ignored),
            "trainers": [{"id": number, "name": name} for number, (name, _) in sorted(coordinator.trainers().items())],
            **status_of_ledger(ledger),
            "generation": generation,
            "finished": coordinator.finished,
        }


def status_of_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return the part of the status that comes from the ledger."""
    moved = ledger.facts.clock_moved
    versions = {row["id"]: row for row in _by_the_clock(ledger.saves.versions(), moved)}
    shown = ledger.passes.newest(_SHOWN_PASSES)
    first = shown[0].ordinal if shown else 1
    current = next((each for each in shown if each.state != "done"), None)
    facts, drifts = ledger.facts, ledger.figures.drifts()
    counts, figures, learned = (
        ledger.passes.counts_by_pass(0),
        ledger.figures.since(first),
        ledger.figures.learned(first),
    )
    tables = ledger.saves.tables(first)
    done = [each.ordinal for each in shown if each.state == "done"][-_SHOWN_CURVES:]
    curves = ledger.figures.curves(done[0]) if done else {}
    names = {each.ordinal: each.id for each in shown}
    return {
        "generation": facts.generation,
        "finished": facts.finished,
        "baseDue": facts.base_due,
        "offset": facts.offset,
        "window": None if facts.stream is None else window_of(ledger),
        "hold": None if facts.hold is None else _hold(facts.hold, names),
        "streamGone": 0 if facts.stream is None else facts.stream.gone,
        "current": current
        and {"pass": current.id, "state": current.state, "epoch": current.epoch, "reason": current.reason},
        "passes": [
            _pass(
                each,
                counts[each.ordinal],
                versions,
                drifts.get(each.ordinal),
                figures.get(each.ordinal) or dict.fromkeys(MOMENTS),
                learned[each.ordinal],
                tables.get(each.ordinal),
                moved,
            )
            for each in shown
        ],
        # Passes before those shown, all of them done.
        "earlierPasses": facts.dropped_passes + ledger.passes.count() - len(shown),
        "curves": [{"pass": names[number], **curves[number]} for number in done if number in curves],
        "drift": _last_drift(drifts, names),
        "versions": list(versions.values()),
        "ledger": ledger.passes.counted(counts),
        "damagedCheckpoints": [{"name": c["name"], "reason": c["damaged"]} for c in ledger.saves.damaged_checkpoints()],
        "recoveries": _by_the_clock(ledger.recoveries(), moved),
    }


def _by_the_clock(rows: list[dict[str, Any]], moved: float) -> list[dict[str, Any]]:
    """Return rows with `at` as wall time, which readers compare with their clocks."""
    return [{**row, "at": row["at"] + moved} for row in rows]


def window_of(ledger: Ledger) -> dict[str, Any] | None:
    """Return the joint figures of a stream's newest passes, each record predicted before it was learned; None without any."""
    last = ledger.passes.last()
    found = None if last is None else newest_windows(ledger.figures.windows(last.ordinal, 0, LOOKED_AT))
    return None if found is None else {"passes": found[0], **found[1]._asdict()}


def _hold(row: HoldRow, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the reason why no version is published, and the pass since when."""
    return {**row.hold.model_dump(mode="json", by_alias=True), "since": names.get(row.since)}


def _last_drift(drifts: Mapping[int, DriftRow], names: Mapping[int, str]) -> dict[str, Any] | None:
    """Return the drift of every column in the last pass that was compared with the pinned statistics, or None."""
    if not drifts:
        return None
    ordinal, drift = list(drifts.items())[-1]
    return {"pass": names.get(ordinal), "rows": drift.rows, "columns": [_drift(each) for each in drift.columns]}


def _drift(each: Drift) -> dict[str, Any]:
    return {to_camel(name): value for name, value in each._asdict().items()}


def _pass(
    each: PassRow,
    counts: Mapping[str, int],
    versions: Mapping[int, dict[str, Any]],
    drift: DriftRow | None,
    quality: Figures,
    learned: PassLearning,
    table: Tables | None,
    clock_moved: float,
) -> dict[str, Any]:
    version = versions.get(each.version) if each.version is not None else None
    return {
        "pass": each.id,
        **{name: getattr(each, name) for name in ("ordinal", "state", "epoch", "reason")},
        **{name: counts[name] for name in ("records", "refused", "ignored", "padding", "repeated", "tasks")},
        "parked": counts["parked_tasks"],
        "tasksDone": counts["done"],
        "aucBefore": each.auc_before,
        "auc": each.auc,
        "quality": quality,
        "learning": learned.model_dump(mode="json", by_alias=True),
        # By pserver.
        "table": None if table is None else [part.model_dump() for part in table],
        "trainedAt": None if each.trained_at is None else each.trained_at + clock_moved,
        "doneAt": None if each.done_at is None else each.done_at + clock_moved,
        "seconds": each.seconds or {},
        "drift": None if drift is None else [_drift(column) for column in drift.worst(_WORST)],
        "version": each.version,
        "kind": version["kind"] if version else None,
        "keys": version["keys"] if version else 0,
    }
