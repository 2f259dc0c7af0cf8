"""The clock by which retention ages lines: it ignores jumps of the machine's clock."""

import time
from collections.abc import Callable

from elastic_ctr.runtime.steady_clock import SteadyClock
from elastic_ctr.sources.intake.click_log import ClickLog

# Smaller differences are a slewed clock, or a pause of the process between two readings.
_CLOCK_JUMP = 60.0


class LogClock:
    """A SteadyClock whose sum of jumps is kept in the log, over restarts."""

    def __init__(
        self, clicks: ClickLog, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = clicks
        self._kept = clicks.clock_moved()
        self._clock = SteadyClock(self._kept, _CLOCK_JUMP, wall, steady)

    def __call__(self) -> float:
        """Return Unix seconds without jumps. Raises LogUnwritable if a jump cannot be written; the next call tries again."""
        now = self._clock()
        if self._clock.moved != self._kept:
            self._log.move_clock(self._clock.moved)
            self._kept = self._clock.moved
        return now
