"""The master's status: the state in the ledger, and the trainers and pservers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from elastic_ctr.runtime.status.master_status import (
    ColumnDrift,
    CurrentPass,
    CurvesOfPass,
    CurveStatus,
    DamagedCheckpoint,
    DriftOfPass,
    LearningOfPass,
    LineCounts,
    PassStatus,
    PserverStatus,
    QualityFigures,
    QualityOfPass,
    RecoveryStatus,
    StreamWindow,
    TablePartStatus,
    TableStatus,
    TrainerStatus,
    TrainingStatus,
    VersionStatus,
)
from elastic_ctr.runtime.status.status_document import PublishingHold, StatusDocument
from elastic_ctr.store.versions.manifest import PassLearning
from elastic_ctr.training.master.calendar.quality_gate import LOOKED_AT, newest_windows
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.figure_table import MOMENTS, Figures, Moment
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import TABLES, DriftRow, HoldRow, PassRow
from elastic_ctr.training.master.work import start_from

_SHOWN_PASSES = 1000
# Passes with deciles and ROC, which take 2 KB each.
_SHOWN_CURVES = 24
_WORST = 3
D = TypeVar("D", bound=StatusDocument)


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
        return status_of_ledger(ledger).model_copy(update=members)


def status_of_ledger(ledger: Ledger) -> TrainingStatus:
    """Return the part of the status that comes from the ledger."""
    moved = ledger.facts.clock_moved
    versions = [VersionStatus.model_validate(each) for each in _by_the_clock(ledger.saves.versions(), moved)]
    by_id = {each.id: each for each in versions}
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
        passes=tuple(
            _pass(
                each,
                counts[each.ordinal],
                None if each.version is None else by_id.get(each.version),
                drifts.get(each.ordinal),
                _quality(figures.get(each.ordinal, (None, None))),
                learned[each.ordinal],
                tables.get(each.ordinal),
                moved,
            )
            for each in shown
        ),
        # Passes before those shown, all of them done.
        earlier_passes=facts.dropped_passes + ledger.passes.count() - len(shown),
        curves=tuple(
            CurvesOfPass(id=names[number], **_by_moment(CurveStatus, curves[number]))
            for number in done
            if number in curves
        ),
        drift=_last_drift(drifts, names),
        versions=tuple(versions),
        ledger=LineCounts.model_validate(ledger.passes.counted(counts)),
        damaged_checkpoints=tuple(
            DamagedCheckpoint(name=each["name"], reason=each["damaged"]) for each in ledger.saves.damaged_checkpoints()
        ),
        recoveries=tuple(RecoveryStatus.model_validate(each) for each in _by_the_clock(ledger.recoveries(), moved)),
    )


def _by_the_clock(rows: list[dict[str, Any]], moved: float) -> list[dict[str, Any]]:
    """Return rows with `at` as wall time, which readers compare with their clocks."""
    return [{**row, "at": row["at"] + moved} for row in rows]


def window_of(ledger: Ledger) -> StreamWindow | None:
    """Return the joint figures of a stream's newest passes, each record predicted before it was learned; None without any."""
    last = ledger.passes.last()
    found = None if last is None else newest_windows(ledger.figures.windows(last.ordinal, 0, LOOKED_AT))
    return None if found is None else StreamWindow(passes=found[0], **found[1]._asdict())


def _hold(row: HoldRow, names: Mapping[int, str]) -> PublishingHold:
    """Return the reason why no version is published, and the pass since when."""
    return PublishingHold.model_validate({**row.hold.model_dump(by_alias=True), "since": names.get(row.since)})


def _last_drift(drifts: Mapping[int, DriftRow], names: Mapping[int, str]) -> DriftOfPass | None:
    """Return the drift of every column in the last pass that was compared with the pinned statistics, or None."""
    if not drifts:
        return None
    ordinal, drift = list(drifts.items())[-1]
    columns = tuple(map(ColumnDrift.model_validate, drift.columns))
    return DriftOfPass(id=names.get(ordinal), rows=drift.rows, columns=columns)


# The status shows a thousand passes, of which one or two have changed.
@lru_cache(maxsize=2048)
def _learning(learned: PassLearning) -> LearningOfPass:
    return LearningOfPass.model_validate(learned)


@lru_cache(maxsize=2048)
def _table(document: str) -> tuple[TablePartStatus, ...]:
    return tuple(map(TablePartStatus.model_validate, TABLES.validate_json(document)))


@lru_cache(maxsize=2048)
def _quality(figures: Figures) -> QualityOfPass:
    return QualityOfPass(**_by_moment(QualityFigures, figures))


def _by_moment(kind: type[D], documents: Figures) -> dict[Moment, D | None]:
    found = (None if each is None else kind.model_validate_json(each) for each in documents)
    return dict(zip(MOMENTS, found, strict=True))


def _pass(
    each: PassRow,
    counts: Mapping[str, int],
    version: VersionStatus | None,
    drift: DriftRow | None,
    quality: QualityOfPass,
    learned: PassLearning,
    table: str | None,
    clock_moved: float,
) -> PassStatus:
    return PassStatus(
        id=each.id,
        ordinal=each.ordinal,
        state=each.state,
        epoch=each.epoch,
        reason=each.reason,
        records=counts["records"],
        refused=counts["refused"],
        ignored=counts["ignored"],
        padding=counts["padding"],
        repeated=counts["repeated"],
        tasks=counts["tasks"],
        parked=counts["parked_tasks"],
        tasks_done=counts["done"],
        auc_before=each.auc_before,
        auc=each.auc,
        quality=quality,
        learning=_learning(learned),
        table=None if table is None else _table(table),
        trained_at=None if each.trained_at is None else each.trained_at + clock_moved,
        done_at=None if each.done_at is None else each.done_at + clock_moved,
        seconds=each.seconds or {},
        drift=None if drift is None else tuple(map(ColumnDrift.model_validate, drift.worst(_WORST))),
        version=each.version,
        kind=None if version is None else version.kind,
        keys=0 if version is None else version.keys,
    )
