"""A machine's time without the jumps that its clock makes while a process runs."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class SteadyClock:
    """The machine's time, less `moved`: the sum of the jumps so far, which its owner keeps over restarts.

    A clock that is set while the process does not run cannot be told from time that has passed. A difference below `smallest` seconds is
    none: a clock is slewed by it, and a process may stand still between two readings. Any thread may call it.
    """

    def __init__(
        self,
        moved: float,
        smallest: float,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.moved = moved
        self._smallest = smallest
        self._wall = wall
        self._steady = steady
        self._seen = wall(), steady()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Seconds that go on evenly."""
        with self._lock:
            (wall, steady), seen = (self._wall(), self._steady()), self._seen
            jump = (wall - seen[0]) - (steady - seen[1])
            if abs(jump) > self._smallest:
                log.warning("this machine's clock was set by %+.1f s; nothing waits shorter or longer by it", jump)
                self.moved += jump
            self._seen = wall, steady
            return wall - self.moved
