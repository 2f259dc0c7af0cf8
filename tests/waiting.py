"""How tests let time pass: a clock that they move themselves, and waits for what other threads and processes do."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition; the limit is only there to end a test that has failed."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "what was waited for did not happen"
        time.sleep(0.01)
