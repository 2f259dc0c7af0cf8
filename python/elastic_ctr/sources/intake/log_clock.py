"""The log's time: what the retention counts, whatever becomes of the machine's clock."""

import time
from collections.abc import Callable

from elastic_ctr.runtime.steady_clock import SteadyClock
from elastic_ctr.sources.intake.click_log import ClickLog

# Less than that a clock is slewed, and a process stands still between two readings.
_CLOCK_JUMP = 60.0


class LogClock:
    """The steady time of the machine; the log keeps the jumps of its clock."""

    def __init__(
        self, clicks: ClickLog, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = clicks
        self._kept = clicks.clock_moved()
        self._clock = SteadyClock(self._kept, _CLOCK_JUMP, wall, steady)

    def __call__(self) -> float:
        """Seconds that go on evenly. Raises LogUnwritable after a jump that could not be kept; the next call tries again."""
        now = self._clock()
        if self._clock.moved != self._kept:
            self._log.move_clock(self._clock.moved)
            self._kept = self._clock.moved
        return now
