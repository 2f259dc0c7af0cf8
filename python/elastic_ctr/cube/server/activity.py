"""When somebody last asked, seen from counters that only grow: who looks later sees it later, never too early."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from elastic_ctr.cube.server.counters import REQUESTS, VERSIONS_AT, Counts


class Activity:
    """Call `look` often; what changed since the last look is taken as asked now."""

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
            # A version that is new here has its column from one that is gone: what that counted is not its own.
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
