"""Timers for partitions that another pod has taken over: when to stop advertising them, when to unload them."""

from collections.abc import Collection

Pair = tuple[int, int]


class HandoffTimers:
    """For each (version, partition) pair. `seconds` is the pod's drainSeconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._unneeded_since: dict[Pair, float] = {}
        self._unnamed_since: dict[Pair, float] = {}

    def update(self, unneeded: Collection[Pair], named: Collection[Pair], now: float) -> None:
        """Given are the pairs that are unneeded now, and those for which the release document lists this pod."""
        self._unneeded_since = {pair: self._unneeded_since.get(pair, now) for pair in unneeded}
        self._unnamed_since = {pair: self._unnamed_since.get(pair, now) for pair in unneeded if pair not in named}

    def should_hide(self, pair: Pair, now: float) -> bool:
        """Whether to stop advertising the pair. Not at once: DNS does not know a new pod everywhere yet."""
        return now - self._unneeded_since.get(pair, now) >= self._seconds / 2

    def may_unload(self, pair: Pair, now: float) -> bool:
        """Whether all readers have had time to learn of the other holders."""
        unneeded = now - self._unneeded_since.get(pair, now)
        return unneeded >= self._seconds and now - self._unnamed_since.get(pair, now) >= self._seconds / 2
