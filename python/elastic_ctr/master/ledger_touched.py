"""The part of the ledger with the keys that each task of a stream has trained: the next delta publishes their values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.master.ledger_file import LedgerFile

Keys = npt.NDArray[np.uint64]

# The pass of the version that a delta would change, given by its id.
_ORDINAL_OF = "(select coalesce(max(pass), 0) from versions where id = ?)"


class LedgerTouched(LedgerFile):
    """Keys stay until every checkpoint is of a later version than the one that has them: a recovery abandons versions."""

    checkpoints: Callable[[], list[dict[str, Any]]]

    def set_touched(self, task: str, ordinal: int, keys: bytes) -> None:
        """Sorted u64 keys of a trained task."""
        self._insert("touched", {"task": task, "ordinal": ordinal, "data": keys})

    def touched(self, follows: int | None) -> Keys | None:
        """Sorted unique keys trained since version `follows`; None where those of a trained task are not known."""
        [unknown] = self._one(
            f"select count(*) from tasks left join touched on task = id where tasks.pass > {_ORDINAL_OF}"
            " and trained > 0 and records > 0 and data is null",
            follows,
        )
        if unknown:
            return None
        rows = self._all(f"select data from touched where pass > {_ORDINAL_OF}", follows)
        parts = [np.frombuffer(row[0], "<u8") for row in rows]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)

    def forget_touched(self) -> None:
        """Of passes that no recovery returns to before, and of tasks whose training was lost."""
        checkpoints = self.checkpoints()
        oldest = checkpoints[0]["follows"] if checkpoints else None
        with self:
            self._db.execute(f"delete from touched where pass <= {_ORDINAL_OF}", (oldest,))
            self._db.execute("delete from touched where task in (select id from tasks where trained = 0)")
