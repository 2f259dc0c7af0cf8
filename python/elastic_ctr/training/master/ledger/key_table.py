"""The touched keys of each task of a stream, whose values the next delta publishes."""

import logging
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.master.ledger.ledger_file import LedgerFile
from elastic_ctr.training.master.ledger.save_table import SaveTable

log = logging.getLogger(__name__)
Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.float32]
# Bounded, because the save gets all keys in one message.
_MOST_BYTES = 256 << 20
# The pass of the version that a delta would change, by the version's id.
_ORDINAL_OF = "(select coalesce(max(pass), 0) from versions where id = ?)"


class Touched(NamedTuple):
    """`keys`: uint64 [n], sorted and unique. `counts`: float32 [n, 2], their shows and clicks."""

    keys: Keys
    counts: Counts


class KeyTable:
    """Keys stay until both a checkpoint and a version include them. After a recovery to an older checkpoint the keys of that
    checkpoint's own pass are not known, so the next version is a base.
    """

    def __init__(self, file: LedgerFile, saves: SaveTable) -> None:
        self._file = file
        self._saves = saves

    def add(self, task: str, ordinal: int, touched: Touched) -> None:
        """Set the touched keys of a trained task over all its epochs. If the total exceeds the limit, a compaction, which needs more keys
        than the next delta, is given up. If it still does, all keys are dropped, and the next version is a base.
        """
        compaction = self._file.facts.compaction
        if self._touched_bytes() > _MOST_BYTES and compaction is not None:
            log.warning(
                "the compaction of %s is given up: the keys trained since have more than %d MB",
                compaction.log_of,
                _MOST_BYTES >> 20,
            )
            self._file.set_facts(compaction=None)
            self.forget()
        if self._touched_bytes() > _MOST_BYTES:
            self._file.do("delete from touched")
        data, counts = touched.keys.astype("<u8").tobytes(), touched.counts.astype("<f4").tobytes()
        self._file.insert("touched", {"task": task, "ordinal": ordinal, "data": data, "counts": counts})

    def knows(self, follows: int | None) -> bool:
        """True if the keys of every task trained since version `follows` are known."""
        [unknown] = self._file.one(
            f"select count(*) from tasks left join touched on task = id where tasks.pass > {_ORDINAL_OF}"
            " and trained > 0 and records > 0 and data is null",
            follows,
        )
        return not unknown

    def since(self, follows: int | None) -> Touched:
        """Return the keys touched since version `follows`, with the sums of their counts."""
        rows = self._file.all(f"select data, counts from touched where pass > {_ORDINAL_OF}", follows)
        keys = [np.frombuffer(row[0], "<u8") for row in rows]
        counts = [np.frombuffer(row[1], "<f4").reshape(-1, 2) for row in rows]
        unique, places = np.unique(np.concatenate([np.empty(0, np.uint64), *keys]), return_inverse=True)
        sums = np.zeros((len(unique), 2))
        np.add.at(sums, places, np.concatenate([np.empty((0, 2), np.float32), *counts]))
        return Touched(unique, sums.astype(np.float32))

    def forget(self) -> None:
        """Delete keys of passes that no recovery and no next delta needs, and of tasks whose training was undone. The next delta may be the
        first one on a compacted base.
        """
        checkpoints, facts = self._saves.checkpoints(), self._file.facts
        compacted = [] if facts.compaction is None else [facts.compaction.follows]
        behind = [checkpoints[-1]["follows"] if checkpoints else None, facts.follows, *compacted]
        with self._file:
            last = min(self._file.one(f"select {_ORDINAL_OF}", each)[0] for each in behind)
            self._file.db.execute("delete from touched where pass <= ?", (last,))
            self._file.db.execute("delete from touched where task in (select id from tasks where trained = 0)")

    def _touched_bytes(self) -> int:
        [size] = self._file.one("select coalesce(sum(length(data) + length(counts)), 0) from touched")
        return int(size)
