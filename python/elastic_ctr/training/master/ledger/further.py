"""The part of the ledger with the further files of tasks; a task's own row has the first file."""

from collections.abc import Mapping, Sequence

from elastic_ctr.training.master.ledger.rows import TaskRow
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile

Parts = Sequence[tuple[str, int, int]]
"""Path, first byte, byte after the last; 0: to the end."""


class LedgerFurther(LedgerFile):
    """One row for each further file of a task, and the refused lines by file."""

    def set_further(self, ordinal: int, tasks: Mapping[str, Parts]) -> None:
        """Set the further parts of the tasks of a pass that was just filled."""
        with self:
            self._db.executemany(
                "insert into further values (?, ?, ?, ?, ?, ?)",
                [(task, place, ordinal, *part) for task, parts in tasks.items() for place, part in enumerate(parts)],
            )

    def further(self, ordinal: int) -> dict[str, list[tuple[str, int, int]]]:
        """Return the further parts of a pass's tasks, by task. Tasks of one file are left out."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for task, *part in self._all(
            "select task, path, start, stop from further where pass = ? order by task, place", ordinal
        ):
            found.setdefault(task, []).append((part[0], part[1], part[2]))
        return found

    def _set_refused_files(self, task: TaskRow, lines: Mapping[str, int]) -> None:
        self._db.execute("delete from refused_files where task = ?", (task.id,))
        self._db.executemany(
            "insert into refused_files values (?, ?, ?, ?)",
            [(task.id, task.ordinal, path, count) for path, count in lines.items()],
        )
