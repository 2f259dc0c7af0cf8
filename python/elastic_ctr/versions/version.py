"""A version's id is a name that happens to look like a clock."""

from collections.abc import Iterable


def next_version(now: float, known: Iterable[int]) -> int:
    """Greater than every id known to ledger and store, whatever the clock says: an id is never used twice."""
    return max(int(now), max(known, default=0) + 1)
