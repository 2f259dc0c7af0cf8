"""Freshness of clicks: the seconds from a record's arrival in the stream to the first answer of this pod that has learned from it."""

from __future__ import annotations

from collections import deque

import numpy as np

from elastic_ctr.runtime.status.serving_status import FreshnessQuantiles
from elastic_ctr.serving.worker_counters import Histogram
from elastic_ctr.store.versions.manifest import VersionManifest

BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)  # fmt: skip
RECENT_SECONDS = 300.0
# The records of an arrival are counted in this many parts, because they came evenly between its first and its last second.
_PARTS = 4


class ClickFreshness:
    """Counts each record of a stream once, when all workers of this pod answer with a version that has learned from it.

    Records that the first version of this pod has learned are not counted, because other pods answered with them before.
    """

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS)
        self._known: int | None = None
        self._recent: deque[tuple[float, float, int]] = deque()

    def answers(self, version: VersionManifest, now: float) -> None:
        """Count the records that are new in a version with which this pod answers from `now`, unix seconds, on."""
        newest = max((each.ordinal for each in version.arrivals), default=None)
        if newest is None:
            return
        if self._known is not None:
            for each in version.arrivals:
                if each.ordinal > self._known:
                    self._count(now, now - each.last, now - each.first, each.records)
        self._forget(now)
        # After a rollback, the records of the older version have been counted already.
        self._known = max(newest, self._known or 0)

    def _count(self, now: float, least: float, most: float, records: int) -> None:
        for part in range(_PARTS):
            times = records * (part + 1) // _PARTS - records * part // _PARTS
            age = max(0.0, least + (most - least) * (part + 0.5) / _PARTS)
            if times:
                self.histogram.observe(age, times)
                self._recent.append((now, age, times))

    def recent(self, now: float) -> FreshnessQuantiles | None:
        """Return quantiles in seconds over the records of the last five minutes; None without records."""
        self._forget(now)
        if not self._recent:
            return None
        _, ages, times = (np.array(column) for column in zip(*self._recent, strict=True))
        order = np.argsort(ages)
        seen = np.cumsum(times[order])

        def quantile(share: float) -> float:
            return round(float(ages[order][np.searchsorted(seen, share * seen[-1])]), 3)

        return FreshnessQuantiles(
            p50=quantile(0.5), p90=quantile(0.9), p99=quantile(0.99), max=quantile(1.0), records=int(seen[-1])
        )

    def _forget(self, now: float) -> None:
        """Drop records older than five minutes. Each version calls this, because `recent` may never be called."""
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()
