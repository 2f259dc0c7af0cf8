"""The newest passes as the status shows them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from elastic_ctr.runtime.status.master_status import (
    ColumnDrift,
    LearningOfPass,
    PassStatus,
    QualityFigures,
    QualityOfPass,
    TablePartStatus,
    VersionStatus,
)
from elastic_ctr.runtime.status.status_document import StatusDocument
from elastic_ctr.training.master.ledger.figure_table import MOMENTS, Figures, Moment
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import TABLES, DriftRow, PassRow

_WORST = 3
D = TypeVar("D", bound=StatusDocument)


class ShownPasses:
    """A pass that is done is read and built once, because trainers wait for the lock while a status reads the ledger.

    Each status builds the passes that are not done. It builds all of them after passes that are done have changed, or the clock.
    """

    def __init__(self) -> None:
        self._done: list[PassStatus] = []
        self._valid_for: tuple[int, float] | None = None

    def since(self, first: int, ledger: Ledger, versions: Iterable[VersionStatus]) -> list[PassStatus]:
        """Return the passes from `first` on. `versions` has theirs."""
        settled = ledger.passes.settled()
        valid_for = ledger.passes.taken_back, ledger.facts.clock_moved
        if valid_for != self._valid_for or (self._done and self._done[0].ordinal > first):
            self._done, self._valid_for = [], valid_for
        # The ledger drops the drift of old passes.
        compared = ledger.figures.first_drift()
        done = [
            each if each.drift is None or each.ordinal >= compared else each.model_copy(update={"drift": None})
            for each in self._done
            if each.ordinal >= first
        ]
        shown = done + _built(max(first, done[-1].ordinal + 1 if done else 0), ledger, versions)
        self._done = [each for each in shown if each.ordinal <= settled]
        return shown


def _built(first: int, ledger: Ledger, versions: Iterable[VersionStatus]) -> list[PassStatus]:
    counts, figures = ledger.passes.counts_by_pass(first), ledger.figures.since(first)
    learned, tables, drifts = ledger.figures.learned(first), ledger.saves.tables(first), ledger.figures.drifts(first)
    by_id, moved = {each.id: each for each in versions}, ledger.facts.clock_moved
    return [
        _pass(
            each,
            counts[each.ordinal],
            None if each.version is None else by_id.get(each.version),
            drifts.get(each.ordinal),
            QualityOfPass(**by_moment(QualityFigures.model_validate_json, figures.get(each.ordinal, (None, None)))),
            LearningOfPass.model_validate(learned[each.ordinal]),
            tables.get(each.ordinal),
            moved,
        )
        for each in ledger.passes.after(first - 1)
    ]


def by_moment(read: Callable[[str], D], documents: Figures) -> dict[Moment, D | None]:
    return {moment: None if each is None else read(each) for moment, each in zip(MOMENTS, documents, strict=True)}


def _pass(
    each: PassRow,
    counts: Mapping[str, int],
    version: VersionStatus | None,
    drift: DriftRow | None,
    quality: QualityOfPass,
    learned: LearningOfPass,
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
        learning=learned,
        table=None if table is None else tuple(map(TablePartStatus.model_validate, TABLES.validate_json(table))),
        trained_at=None if each.trained_at is None else each.trained_at + clock_moved,
        done_at=None if each.done_at is None else each.done_at + clock_moved,
        seconds=each.seconds or {},
        drift=None if drift is None else tuple(map(ColumnDrift.model_validate, drift.worst(_WORST))),
        version=each.version,
        kind=None if version is None else version.kind,
        keys=0 if version is None else version.keys,
    )
