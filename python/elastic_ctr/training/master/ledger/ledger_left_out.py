"""The part of the ledger with the records that tasks leave out, by file or partition and offset."""

from collections.abc import Collection, Iterable

from elastic_ctr.formats.line import Reason
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.rows import PassRow, TaskRow
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile

_NAMED = 5


class LedgerLeftOut(LedgerFile):
    """One row for each record. Records that an operator skips have no task, and stay when their pass is listed anew."""

    def skip(self, one: PassRow, rows: Iterable[tuple[str, int]]) -> str:
        """Skip the records at (path, offset) from the next listing of the pass on. Return the reason for a refusal, else ""."""
        known = [path for (path,) in self._all("select path from files where pass = ? order by path", one.ordinal)]
        given = [(path, offset, Reason.SKIPPED.value) for path, offset in rows]
        if unknown := [path for path, *_ in given if path not in known]:
            return f"pass {one.id} has no {unknown[0]}; it has {', '.join(known[:_NAMED])}{' …' if len(known) > _NAMED else ''}"
        self._leave_out("", one.ordinal, given)
        return ""

    def set_unpredictable(self, task: TaskRow, rows: Iterable[control.LeftOut]) -> None:
        """Leave out the records that the task's check could not predict."""
        self._leave_out(
            task.id, task.ordinal, [(each.path, offset, each.reason) for each in rows for offset in each.offsets]
        )

    def _leave_out(self, task: str, ordinal: int, rows: list[tuple[str, int, str]]) -> None:
        with self:
            self._db.executemany(
                "insert or ignore into left_out values (?, ?, ?, ?, ?)", [(ordinal, *row, task) for row in rows]
            )

    def left_out(self, task: TaskRow, paths: Collection[str]) -> list[control.LeftOut]:
        """Return the records that a task over these paths leaves out: those that its check found, and those that an operator skips."""
        found: dict[tuple[str, str], list[int]] = {}
        for path, offset, reason in self._all(
            "select path, offset, reason from left_out where pass = ? and task in ('', ?) order by path, offset",
            task.ordinal,
            task.id,
        ):
            if path in paths:
                found.setdefault((path, reason), []).append(offset)
        return [control.LeftOut(path=path, reason=reason, offsets=places) for (path, reason), places in found.items()]

    def skipped(self, ordinal: int) -> int:
        """Return the number of records of a pass that an operator skips."""
        [rows] = self._one("select count(*) from left_out where pass = ? and task = ''", ordinal)
        return int(rows)
