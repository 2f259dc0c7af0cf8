"""The part of the ledger with the rows of the sparse table at each pserver, after the save of each pass."""

from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict, TypeAdapter

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.checkpoint_files import merged_rows
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile


class TablePart(BaseModel):
    """One pserver's part of the sparse table after a save.

    Attributes:
        rows: in the table once the save is done.
        new: created since the save before, or since a recovery loaded a checkpoint; None where that had not been counted.
        expired: deleted by the shrink of this save; None where the rows before it were not counted.
        bytes: of its partitions in the checkpoint of this save, as the store has them; None where the save has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    new: int | None
    expired: int | None
    bytes: int | None


Tables = tuple[TablePart, ...]
"""By pserver."""
_READER: TypeAdapter[Tables] = TypeAdapter(Tables)


def parts_after(
    steps: Collection[str],
    before: Sequence[int],
    counted: Sequence[int],
    results: Sequence[Sequence[control.JobResult]],
) -> Tables:
    """From counts by pserver: training alone creates rows, and shrinks alone delete them. Empty where no rows were counted.

    Args:
        steps: of the save; a shrink comes first, and with it the checkpoint is the last one.
        before: rows after the save before, or after a load; empty where they were not counted.
        counted: rows before the first step; empty where they were not counted.
        results: of the jobs of the save, by pserver.
    """
    saved = [_saved(each) for each in results] if "checkpoint" in steps else []
    # Without a shrink the checkpoint has what was counted.
    trained = list(counted) if counted or "shrink" in steps else [rows for rows, _ in saved]
    found = []
    for index in range(len(saved or trained)):
        rows, size = saved[index] if saved else (trained[index], None)
        most = trained[index] if index < len(trained) else None
        known = before[index] if index < len(before) else None
        found.append(
            TablePart(
                rows=rows,
                new=None if most is None or known is None else most - known,
                expired=None if most is None else most - rows,
                bytes=size,
            )
        )
    return tuple(found)


def _saved(results: Sequence[control.JobResult]) -> tuple[int, int]:
    """Rows and bytes of the partitions of one pserver in a checkpoint."""
    files = [file for result in results if result.rows for file in result.files if "/000/" in file.path]
    return sum(merged_rows(results).values()), sum(file.bytes for file in files)


class LedgerTable(LedgerFile):
    """A document a pass that was saved."""

    def set_table(self, ordinal: int, parts: Tables) -> None:
        """A pass that is saved once more, since only its version was lost, keeps what was counted first."""
        if parts:
            document = _READER.dump_json(parts).decode()
            self._insert("table_rows", {"ordinal": ordinal, "document": document}, "insert or ignore")

    def last_table(self) -> Tables:
        """After the last save that was counted; empty before."""
        row = self._one("select document from table_rows order by pass desc limit 1")
        return () if row is None else _READER.validate_json(row[0])

    def tables(self, first: int) -> dict[int, Tables]:
        """Of the passes from `first` on, in one query. Passes that an earlier release saved have none."""
        found = self._all("select pass, document from table_rows where pass >= ? order by pass", first)
        return {ordinal: _READER.validate_json(document) for ordinal, document in found}
