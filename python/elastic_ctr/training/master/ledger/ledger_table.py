"""The part of the ledger with the row counts of the sparse table at each pserver, after the save of each pass."""

from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict, TypeAdapter

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.checkpoint_files import merged_rows
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile


class TablePart(BaseModel):
    """One pserver's part of the sparse table after a save.

    Attributes:
        rows: rows in the table after the save.
        new: rows created since the previous save or the load of a checkpoint; None if there was no count then.
        expired: rows deleted by the shrink of this save; None if there was no count before it.
        bytes: bytes in the store of its partitions in this save's checkpoint; None if the save has none.
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
    """Return the parts from counts by pserver, () without counts. Only training creates rows, and only shrinks delete them.

    Args:
        steps: the steps of the save; a shrink is the first, and the checkpoint is then the last.
        before: rows after the previous save or a load; empty if not counted.
        counted: rows before the first step; empty if not counted.
        results: results of the save's jobs, by pserver.
    """
    saved = [_saved(each) for each in results] if "checkpoint" in steps else []
    # Without a shrink the checkpoint has as many rows as the table before the save.
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
    """Return the rows and the bytes of one pserver's partitions in a checkpoint."""
    files = [file for result in results if result.rows for file in result.files if "/000/" in file.path]
    return sum(merged_rows(results).values()), sum(file.bytes for file in files)


class LedgerTable(LedgerFile):
    """A document for each saved pass."""

    def set_table(self, ordinal: int, parts: Tables) -> None:
        """Set the parts of a pass. If it is saved again because only its version was lost, the first counts stay."""
        if parts:
            document = _READER.dump_json(parts).decode()
            self._insert("table_rows", {"ordinal": ordinal, "document": document}, "insert or ignore")

    def last_table(self) -> Tables:
        """Return the parts after the last counted save, or ()."""
        row = self._one("select document from table_rows order by pass desc limit 1")
        return () if row is None else _READER.validate_json(row[0])

    def tables(self, first: int) -> dict[int, Tables]:
        """Return the parts of the passes from `first` on, in one query. Passes that an earlier release saved have none."""
        found = self._all("select pass, document from table_rows where pass >= ? order by pass", first)
        return {ordinal: _READER.validate_json(document) for ordinal, document in found}
