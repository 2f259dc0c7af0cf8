"""The log's time: what the retention counts, whatever becomes of the machine's clock."""

import logging
import time
from collections.abc import Callable

from elastic_ctr.intake.click_log import ClickLog

log = logging.getLogger(__name__)

# Less than that a clock is slewed, and a process stands still between two readings.
_CLOCK_JUMP = 60.0


class LogClock:
    """The machine's time, less the jumps that it made while an intake ran: the log keeps their sum.

    A clock that is set while no intake runs cannot be told from time that has passed.
    """

    def __init__(
        self,
        clicks: ClickLog,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = clicks
        self._wall = wall
        self._steady = steady
        self._moved = clicks.clock_moved()
        self._seen = wall(), steady()

    def __call__(self) -> float:
        """Seconds that go on evenly. Raises LogUnwritable after a jump that could not be kept; the next call tries again."""
        (wall, steady), seen = (self._wall(), self._steady()), self._seen
        jump = (wall - seen[0]) - (steady - seen[1])
        if abs(jump) > _CLOCK_JUMP:
            self._log.move_clock(self._moved + jump)
            log.warning("this machine's clock was set by %+.1f s; no click is kept shorter or longer by it", jump)
            self._moved += jump
        self._seen = wall, steady
        return wall - self._moved
