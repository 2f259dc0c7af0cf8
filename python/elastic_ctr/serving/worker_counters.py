"""The counters of a worker, which sends snapshots to the parent. The parent adds them up over workers and their restarts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 131072.0)
HISTOGRAMS = {
    "request_seconds": ("From a parsed prediction request to its answer.", SECONDS),
    "lookup_seconds": ("Lookups of a batch.", SECONDS),
    "predict_seconds": ("Pooling and network of a batch.", SECONDS),
    "batch_rows": ("Instances in a batch.", ROWS),
}


class Histogram:
    """Counts by upper bound; the last count is of all values above the last bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket with this quantile; None without values, and above the last bound."""
        total = sum(self.counts)
        seen = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            seen += count
            if total and seen >= share * total:
                return bound
        return None


class Counters:
    """Everything counted by one worker since it started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.totals: Counter[str] = Counter()
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as JSON for `add`."""
        return {
            "requests": [[endpoint, code, count] for (endpoint, code), count in self.requests.items()],
            "totals": dict(self.totals),
            "histograms": {name: [each.counts, each.sum] for name, each in self.histograms.items()},
        }

    def add(self, snapshot: dict[str, Any]) -> None:
        """Add the counts of a snapshot."""
        for endpoint, code, count in snapshot["requests"]:
            self.requests[endpoint, code] += count
        self.totals.update(snapshot["totals"])
        for name, (counts, total) in snapshot["histograms"].items():
            histogram = self.histograms[name]
            histogram.counts = [a + b for a, b in zip(histogram.counts, counts, strict=True)]
            histogram.sum += total
