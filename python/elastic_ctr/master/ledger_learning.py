"""The part of the ledger with how much each pass was trained, and which records are held out of it."""

from pydantic import BaseModel, ConfigDict

from elastic_ctr.master.ledger_file import LedgerFile


class Learning(BaseModel):
    """How much a pass was trained.

    Attributes:
        batch_sizes: of each round.
        losses: logloss before training, then of the held-out records after each round; None where none is held out.
        shift: what added to all logits after training makes the predicted clicks those observed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_sizes: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    shift: float = 0.0


class LedgerLearning(LedgerFile):
    """A document a pass, and a count a task."""

    def learning(self, ordinal: int) -> Learning:
        row = self._one("select document from learning where pass = ?", ordinal)
        return Learning() if row is None else Learning.model_validate_json(row[0])

    def set_learning(self, ordinal: int, learning: Learning) -> None:
        self._insert("learning", {"ordinal": ordinal, "document": learning.model_dump_json()})

    def last_shift(self, before: int, first: float = 0.0) -> float:
        """That of the last pass before this one; `first` where this is the first."""
        row = self._one("select document from learning where pass < ? order by pass desc limit 1", before)
        return first if row is None else Learning.model_validate_json(row[0]).shift

    def set_held_out(self, task: str, ordinal: int, records: int) -> None:
        self._insert("held_out", {"task": task, "ordinal": ordinal, "records": records})

    def held_out(self, ordinal: int) -> dict[str, int]:
        """Held-out records by task of a pass."""
        return dict(map(tuple, self._all("select task, records from held_out where pass = ?", ordinal)))
