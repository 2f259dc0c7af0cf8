"""When a trainer or a pserver ends because its master serves another training."""

import time
from collections.abc import Callable


class ForeignMasterGrace:
    """A master of another training sends a caller away, and the caller goes on asking for a while before it ends.

    That master may be the one about to be replaced, and the caller a pod of the training that comes: if it ended, its
    job would have completed before it began, and nobody starts a completed job again.
    """

    SECONDS = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._foreign_since: float | None = None

    def may_end(self, *, wrong_training: bool) -> bool:
        """To be told of every answer: whether one that says to leave is to be followed."""
        if not wrong_training:
            self._foreign_since = None
            return True
        if self._foreign_since is None:
            self._foreign_since = self._clock()
        return self._clock() - self._foreign_since >= self.SECONDS
