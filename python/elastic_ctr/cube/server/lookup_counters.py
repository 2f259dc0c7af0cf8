"""Counters that workers write and their parent reads: a row of shared memory per worker, i64, no locks.

Each row has one writer. A restarted worker goes on with its row, so sums never fall; it only clears its gauges.
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
# Lookups and keep-alives that named the version in that place. Of a stream, a version a second or two stays for the drain.
MAX_VERSIONS = 240
WIDTH = VERSIONS_AT + MAX_VERSIONS

Counts = NDArray[np.int64]


def create(workers: int) -> tuple[int, Counts]:
    """(descriptor to hand to the workers, counts i64[workers, WIDTH])."""
    descriptor = os.memfd_create("elastic-ctr-counters", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * WIDTH * 8)
    return descriptor, attach(descriptor, workers)


def attach(descriptor: int, workers: int) -> Counts:
    mapped = mmap.mmap(descriptor, workers * WIDTH * 8)
    return np.frombuffer(mapped, np.int64).reshape(workers, WIDTH)


def private() -> Counts:
    """A row outside shared memory."""
    return np.zeros(WIDTH, np.int64)


class Activity:
    """Call `look` often: a counter that has grown since the last look counts as asked now."""

    def __init__(self, counts: Counts, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._seen = counts.sum(axis=0)
        self._asked: dict[int, float | None] = {}
        self._places: dict[int, int] = {}
        self._lookup: float | None = None

    def look(self, places: Mapping[int, int]) -> None:
        """places: version to its column among the counters."""
        now = self._clock()
        sums = self._counts.sum(axis=0)
        changed = np.flatnonzero(sums != self._seen)
        self._seen = sums
        if REQUESTS in changed:
            self._lookup = now
        asked: dict[int, float | None] = {}
        for version, place in places.items():
            # A new version may have the column of an unloaded one, whose counts are not its own.
            known = self._places.get(version) == place
            asked[version] = self._asked.get(version) if known else None
            if known and VERSIONS_AT + place in changed:
                asked[version] = now
        self._asked, self._places = asked, dict(places)

    def last_asked_seconds(self) -> dict[int, float | None]:
        """Seconds since a lookup or keep-alive named the version, None if never."""
        now = self._clock()
        return {version: None if at is None else round(now - at, 3) for version, at in self._asked.items()}

    def last_lookup_seconds(self) -> float | None:
        """Seconds since any lookup, None if never."""
        return None if self._lookup is None else round(self._clock() - self._lookup, 3)
