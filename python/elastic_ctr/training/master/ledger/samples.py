"""The part of the ledger with the sample lines that the tasks of a pass offer: serving is compared with the scores of some of them."""

import zlib
from collections.abc import Iterable

import orjson

from elastic_ctr.training.master.ledger.rows import TaskRow
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile

Sample = tuple[str, int, int]
"""A line without show and click, its show, its click."""

# A micro-pass has as many lines as a pass of an hour, and there are two a second: packed they are a fifth.
_LEVEL = 1


class LedgerSamples(LedgerFile):
    """One row a task, which goes with the last checkpoint that a recovery could return to before its pass."""

    def _set_samples(self, task: TaskRow, samples: Iterable[Sample]) -> None:
        """Those of a task that is checked, in place of others of it."""
        lines = list(samples)
        self._db.execute("delete from sample_lines where task = ?", (task.id,))
        if lines:
            data = zlib.compress(orjson.dumps(lines), _LEVEL)
            self._db.execute("insert into sample_lines values (?, ?, ?)", (task.id, task.ordinal, data))

    def samples(self, ordinal: int) -> list[list[Sample]]:
        """Offered sample lines by task, in the order of its name."""
        rows = self._all("select data from sample_lines where pass = ? order by task", ordinal)
        return [[(line, show, click) for line, show, click in orjson.loads(zlib.decompress(data))] for (data,) in rows]

    def last_sampled(self, last: int) -> int | None:
        """The last pass up to this one that has a sample line."""
        [ordinal] = self._one("select max(pass) from sample_lines where pass <= ?", last)
        return None if ordinal is None else int(ordinal)

    def _forget_samples(self) -> None:
        """Those of all passes that no recovery returns to, but for the last of these that has any: the passes after it may have none.

        A checkpoint in mid pass may be skipped: where there is no other, a recovery may return to the start.
        """
        self._db.execute(
            "delete from sample_lines where pass <"
            " (select max(pass) from sample_lines where pass <= "
            " (select case when sum(mid is null) > 0 then min(pass) end from checkpoints))"
        )
