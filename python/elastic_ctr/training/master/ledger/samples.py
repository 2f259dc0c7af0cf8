"""The part of the ledger with the sample lines that tasks offer; serving validates a version with the scores of some of them."""

import zlib
from collections.abc import Iterable

import orjson

from elastic_ctr.training.master.ledger.rows import TaskRow
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile

Sample = tuple[str, int, int]
"""A line without show and click, its show, its click."""

# Compressed to a fifth, because a micro-pass has as many sample lines as an hour, and there may be two a second.
_LEVEL = 1


class LedgerSamples(LedgerFile):
    """One row for each task, kept while a recovery may return to before its pass."""

    def _set_samples(self, task: TaskRow, samples: Iterable[Sample]) -> None:
        """Replace the sample lines of a checked task."""
        lines = list(samples)
        self._db.execute("delete from sample_lines where task = ?", (task.id,))
        if lines:
            data = zlib.compress(orjson.dumps(lines), _LEVEL)
            self._db.execute("insert into sample_lines values (?, ?, ?)", (task.id, task.ordinal, data))

    def samples(self, ordinal: int) -> list[list[Sample]]:
        """Return the offered sample lines of each task, in the order of task names."""
        rows = self._all("select data from sample_lines where pass = ? order by task", ordinal)
        return [[(line, show, click) for line, show, click in orjson.loads(zlib.decompress(data))] for (data,) in rows]

    def last_sampled(self, last: int) -> int | None:
        """Return the last pass up to this one that has a sample line, or None."""
        [ordinal] = self._one("select max(pass) from sample_lines where pass <= ?", last)
        return None if ordinal is None else int(ordinal)

    def _forget_samples(self) -> None:
        """Delete sample lines of passes that no recovery returns to. The last such pass with lines keeps them: later ones may have none.

        Without a whole-pass checkpoint nothing is deleted, because a recovery may skip a mid-pass one and return to the start.
        """
        self._db.execute(
            "delete from sample_lines where pass <"
            " (select max(pass) from sample_lines where pass <= "
            " (select case when sum(mid is null) > 0 then min(pass) end from checkpoints))"
        )
