"""The part of the ledger with the learning of each pass: epochs, batch sizes, losses, and the number of held-out records."""

from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from elastic_ctr.store.versions.manifest import PassLearning
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile

# States of a pass whose predictions after training are counted.
_CALIBRATED = ("saving", "done")


class Learning(BaseModel):
    """How much a pass was trained.

    Attributes:
        batch_sizes: records a step, by epoch.
        losses: logloss before training, then after each epoch. With `data.holdout` all are over the held-out records; without, those
            after an epoch are None.
        holdout: the share of held-out records; None before the first task.
        shift: added to all logits after training, so that the predicted clicks are those observed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_sizes: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    holdout: float | None = None
    shift: float = 0.0


class LedgerLearning(LedgerFile):
    """A document for each pass, and the number of held-out records for each task."""

    def learning(self, ordinal: int) -> Learning:
        row = self._one("select document from learning where pass = ?", ordinal)
        return Learning() if row is None else Learning.model_validate_json(row[0])

    def set_learning(self, ordinal: int, learning: Learning) -> None:
        self._insert("learning", {"ordinal": ordinal, "document": learning.model_dump_json()})

    def last_shift(self, before: int, first: float = 0.0) -> float:
        """Return the shift of the last pass before this one, or `first` if there is none."""
        row = self._one("select document from learning where pass < ? order by pass desc limit 1", before)
        return first if row is None else Learning.model_validate_json(row[0]).shift

    def set_held_out(self, task: str, ordinal: int, records: int) -> None:
        self._insert("held_out", {"task": task, "ordinal": ordinal, "records": records})

    def held_out(self, ordinal: int) -> dict[str, int]:
        """Return the number of held-out records of each task of a pass."""
        return dict(map(tuple, self._all("select task, records from held_out where pass = ?", ordinal)))

    def learned(self, first: int, last: int | None = None) -> dict[int, PassLearning]:
        """Return the learning of the passes from `first` on, in one query, without epochs that a recovery has undone."""
        found = self._all(
            "select ordinal, state, epoch, document,"
            " (select coalesce(sum(records), 0) from held_out where held_out.pass = ordinal) from passes"
            " left join learning on learning.pass = ordinal where ordinal >= ? and (? or ordinal <= ?) order by ordinal",
            first,
            last is None,
            last,
        )
        return {ordinal: _learned(*row) for ordinal, *row in found}


# The status reads a thousand passes, of which one or two have changed.
@lru_cache(maxsize=2048)
def _learned(state: str, epoch: int, document: str | None, held_out: int) -> PassLearning:
    known = Learning() if document is None else Learning.model_validate_json(document)
    return PassLearning(
        epochs=epoch,
        batch_sizes=known.batch_sizes[:epoch],
        held_out=held_out,
        losses=known.losses[: epoch + 1],
        shift=known.shift if state in _CALIBRATED and document is not None else None,
    )
