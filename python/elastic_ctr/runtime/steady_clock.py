"""The wall clock without the jumps that it makes while the process runs."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class SteadyClock:
    """The wall clock minus `moved`, the sum of its jumps so far; the owner keeps `moved` over restarts.

    A jump while the process does not run looks like elapsed time. A difference of at most `smallest` seconds is no jump: NTP slews
    the clock, and the process may be paused between the two readings. Thread-safe.
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
        """Return Unix seconds without the jumps."""
        with self._lock:
            (wall, steady), seen = (self._wall(), self._steady()), self._seen
            jump = (wall - seen[0]) - (steady - seen[1])
            if abs(jump) > self._smallest:
                log.warning("this machine's clock was set by %+.1f s; nothing waits shorter or longer by it", jump)
                self.moved += jump
            self._seen = wall, steady
            return wall - self.moved
