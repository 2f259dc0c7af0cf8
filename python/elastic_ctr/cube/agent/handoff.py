"""Since when a pod need not hold what it holds: how long readers are still told to ask it, and when it may be unloaded."""

from collections.abc import Collection

Pair = tuple[int, int]


class HandoffTimers:
    """(version, partition) pairs that others have taken over, with the times since when. `seconds` are the pod's drainSeconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._unneeded_since: dict[Pair, float] = {}
        self._unnamed_since: dict[Pair, float] = {}

    def update(self, unneeded: Collection[Pair], named: Collection[Pair], now: float) -> None:
        """What is not needed now, and for what readers are told to ask this pod."""
        self._unneeded_since = {pair: self._unneeded_since.get(pair, now) for pair in unneeded}
        self._unnamed_since = {pair: self._unnamed_since.get(pair, now) for pair in unneeded if pair not in named}

    def should_hide(self, pair: Pair, now: float) -> bool:
        """Whether readers are to ask others now. Not as soon as those report: the name of a pod that has just come is not
        known everywhere yet, and readers who cannot find it need somebody to ask.
        """
        return now - self._unneeded_since.get(pair, now) >= self._seconds / 2

    def may_unload(self, pair: Pair, now: float) -> bool:
        """Whether all readers have had the time to ask others, and to be told so."""
        unneeded = now - self._unneeded_since.get(pair, now)
        return unneeded >= self._seconds and now - self._unnamed_since.get(pair, now) >= self._seconds / 2
