"""The master's status: the state in the ledger, and the trainers and pservers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from elastic_ctr.runtime.status.master_status import (
    ColumnDrift,
    CurrentPass,
    CurvesOfPass,
    CurveStatus,
    DamagedCheckpoint,
    DriftOfPass,
    LineCounts,
    PserverStatus,
    RecoveryStatus,
    StreamWindow,
    TableStatus,
    TrainerStatus,
    TrainingStatus,
    VersionStatus,
)
from elastic_ctr.runtime.status.status_document import PublishingHold
from elastic_ctr.training.master.calendar.quality_gate import LOOKED_AT, newest_windows
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import DriftRow, HoldRow
from elastic_ctr.training.master.shown_passes import ShownPasses, by_moment
from elastic_ctr.training.master.work import start_from

_SHOWN_PASSES = 1000
# Passes with deciles and ROC, which take 2 KB each.
_SHOWN_CURVES = 24
_WORST = 3


def status(coordinator: Coordinator, start_ignored: str = "") -> TrainingStatus:
    """Return a consistent snapshot of ledger and members. The number of queries does not depend on the number of passes."""
    with coordinator.lock.reading() as ledger:
        generation = coordinator.generation
        members = {
            "ready": coordinator.initialised,
            "pservers": tuple(
                PserverStatus(
                    index=index,
                    serving=one.serving and one.generation == generation,
                    error=one.error,
                    # A supervisor of an earlier release does not report it.
                    memory_bytes=one.memory_bytes or None,
                )
                for index, one in coordinator.pservers.items()
            ),
            "handover": coordinator.handover,
            "started_from": start_from.status_of(ledger, start_ignored),
            "trainers": tuple(
                TrainerStatus(id=number, name=name) for number, (name, _) in sorted(coordinator.trainers().items())
            ),
            "generation": generation,
            "finished": coordinator.finished,
        }
        return status_of_ledger(ledger, coordinator.shown).model_copy(update=members)


def status_of_ledger(ledger: Ledger, known: ShownPasses | None = None) -> TrainingStatus:
    """Return the part of the status that comes from the ledger. `known` has passes that an earlier status has shown."""
    passes, moved = ledger.passes, ledger.facts.clock_moved
    first = passes.first_of_newest(_SHOWN_PASSES)
    versions = [_version(moved, *each.items()) for each in ledger.saves.versions(first)]
    shown = (known or ShownPasses()).since(first, ledger, versions)
    current, facts, drift = passes.current(), ledger.facts, ledger.figures.last_drift()
    done = [each.ordinal for each in shown if each.state == "done"][-_SHOWN_CURVES:]
    curves = ledger.figures.curves(done[0]) if done else {}
    names = {each.ordinal: each.id for each in shown}
    return TrainingStatus(
        generation=facts.generation,
        finished=facts.finished,
        base_due=facts.base_due,
        offset=facts.offset,
        window=None if facts.stream is None else window_of(ledger),
        hold=None if facts.hold is None else _hold(facts.hold, names),
        table=None
        if facts.table is None
        else TableStatus(commit=facts.table.commit, left_out=facts.table.left_out, notices=facts.table.notices),
        stream_gone=0 if facts.stream is None else facts.stream.gone,
        current=None if current is None else CurrentPass.model_validate(current),
        passes=tuple(shown),
        # Passes before those shown, all of them done.
        earlier_passes=facts.dropped_passes + passes.count() - len(shown),
        curves=tuple(
            CurvesOfPass(id=names[number], **by_moment(_curve, curves[number])) for number in done if number in curves
        ),
        drift=None if drift is None else _drift(*drift, names),
        versions=tuple(versions),
        ledger=LineCounts.model_validate(passes.counted()),
        damaged_checkpoints=tuple(
            DamagedCheckpoint(name=each["name"], reason=each["damaged"]) for each in ledger.saves.damaged_checkpoints()
        ),
        recoveries=tuple(RecoveryStatus.model_validate(_by_the_clock(each, moved)) for each in ledger.recoveries()),
    )


# A status shows a thousand versions and forty-eight curves, of which one or two are new.
@lru_cache(maxsize=2048)
def _version(moved: float, *row: tuple[str, object]) -> VersionStatus:
    return VersionStatus.model_validate(_by_the_clock(dict(row), moved))


@lru_cache(maxsize=128)
def _curve(document: str) -> CurveStatus:
    return CurveStatus.model_validate_json(document)


def _by_the_clock(row: dict[str, Any], moved: float) -> dict[str, Any]:
    """Return a row with `at` as wall time, which readers compare with their clocks."""
    return {**row, "at": row["at"] + moved}


def window_of(ledger: Ledger) -> StreamWindow | None:
    """Return the joint figures of a stream's newest passes, each record predicted before it was learned; None without any."""
    last = ledger.passes.last()
    found = None if last is None else newest_windows(ledger.figures.windows(last.ordinal, 0, LOOKED_AT))
    return None if found is None else StreamWindow(passes=found[0], **found[1]._asdict())


def _hold(row: HoldRow, names: Mapping[int, str]) -> PublishingHold:
    """Return the reason why no version is published, and the pass since when."""
    return PublishingHold.model_validate({**row.hold.model_dump(by_alias=True), "since": names.get(row.since)})


def _drift(ordinal: int, drift: DriftRow, names: Mapping[int, str]) -> DriftOfPass:
    """Return the drift of every column in the last pass that was compared with the pinned statistics."""
    columns = tuple(map(ColumnDrift.model_validate, drift.columns))
    return DriftOfPass(id=names.get(ordinal), rows=drift.rows, columns=columns)
