"""Counters that workers write and their parent reads: a row of shared memory per worker, i64, no locks.

Each row has one writer. A restarted worker continues its row and only clears the gauges, so sums never fall.
"""

import mmap
import os
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

REQUESTS, KEYS, MISSING, NOT_HELD, BAD_REQUESTS, KEEP_ALIVES, BYTES_IN, BYTES_OUT, ACCEPTED = range(9)
CONNECTIONS, IN_FLIGHT = 9, 10
VERSIONS_AT = 16
# From here on, lookups and keep-alives by version. A stream has a new version every second or two, which stays for drainSeconds.
MAX_VERSIONS = 240
WIDTH = VERSIONS_AT + MAX_VERSIONS

Counts = NDArray[np.int64]


def create(workers: int) -> tuple[int, Counts]:
    """Return (the descriptor for the workers to inherit, counts i64[workers, WIDTH])."""
    descriptor = os.memfd_create("elastic-ctr-counters", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * WIDTH * 8)
    return descriptor, attach(descriptor, workers)


def attach(descriptor: int, workers: int) -> Counts:
    mapped = mmap.mmap(descriptor, workers * WIDTH * 8)
    return np.frombuffer(mapped, np.int64).reshape(workers, WIDTH)


def private() -> Counts:
    """Return a row outside shared memory."""
    return np.zeros(WIDTH, np.int64)


class Activity:
    """The times of the last lookups, from counters without times. Call `look` often: a counter that has grown counts as used now."""

    def __init__(self, counts: Counts, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._seen = counts.sum(axis=0)
        self._asked: dict[int, float | None] = {}
        self._places: dict[int, int] = {}
        self._lookup: float | None = None

    def look(self, places: Mapping[int, int]) -> None:
        """Compare the counters with the last call's; places: version to its column among the counters."""
        now = self._clock()
        sums = self._counts.sum(axis=0)
        changed = np.flatnonzero(sums != self._seen)
        self._seen = sums
        if REQUESTS in changed:
            self._lookup = now
        asked: dict[int, float | None] = {}
        for version, place in places.items():
            # A new version may reuse the column of an unloaded one, whose counts must be ignored.
            known = self._places.get(version) == place
            asked[version] = self._asked.get(version) if known else None
            if known and VERSIONS_AT + place in changed:
                asked[version] = now
        self._asked, self._places = asked, dict(places)

    def last_asked_seconds(self) -> dict[int, float | None]:
        """Return by version the seconds since its last lookup or keep-alive, None if there was none."""
        now = self._clock()
        return {version: None if at is None else round(now - at, 3) for version, at in self._asked.items()}

    def last_lookup_seconds(self) -> float | None:
        """Return the seconds since the last lookup of any version, None if there was none."""
        return None if self._lookup is None else round(self._clock() - self._lookup, 3)
