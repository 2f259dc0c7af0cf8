"""A version's id is a name that happens to look like a clock."""

from collections.abc import Iterable


def next_version(now: float, known: Iterable[int]) -> int:
    """Greater than every id known to ledger and store, whatever the clock says: an id is never used twice."""
    return max(int(now), max(known, default=0) + 1)


def freshness_seconds(event_time_max: float, now: float) -> float:
    """Seconds since the newest event that a version has learned; 0 where this machine's clock is behind the event's."""
    return max(0.0, now - event_time_max)
