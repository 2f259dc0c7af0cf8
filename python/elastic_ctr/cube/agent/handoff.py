"""When an agent stops advertising partitions, and when it unloads them."""

from collections.abc import Collection, Mapping

Times = dict[int, dict[int, float]]
"""By version and partition, since when."""


class HandoffTimers:
    """Timers of partitions that another pod has taken over or that are not needed. `seconds` is the pod's drainSeconds.

    Timers are kept by version: a stream leaves dozens of versions in that time, mostly with one time for all partitions.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._unneeded_since: Times = {}
        self._unnamed_since: Times = {}

    def update(self, unneeded: Mapping[int, Collection[int]], named: Mapping[int, Collection[int]], now: float) -> None:
        """Take the partitions that are unneeded now, and those for which the release document lists this pod, by version."""
        _since(self._unneeded_since, unneeded, now)
        unnamed = {
            version: frozenset(parts).difference(named[version]) if version in named else parts
            for version, parts in unneeded.items()
        }
        _since(self._unnamed_since, unnamed, now)

    def hidden(self, version: int, now: float) -> set[int]:
        """Return the partitions to advertise no longer. A new holder's DNS name first has to resolve everywhere."""
        return {p for p, since in self._unneeded_since.get(version, {}).items() if now - since >= self._seconds / 2}

    def due(self, version: int, now: float) -> list[int]:
        """Return the partitions to unload: all readers have had time to receive a document with the other holders."""
        unneeded, unnamed = self._unneeded_since.get(version, {}), self._unnamed_since.get(version, {})
        if not unneeded or now - min(unneeded.values()) < self._seconds:
            return []
        return sorted(
            p
            for p, since in unneeded.items()
            if now - since >= self._seconds and now - unnamed.get(p, now) >= self._seconds / 2
        )


def _since(times: Times, parts: Mapping[int, Collection[int]], now: float) -> None:
    """Keep the start times of these partitions and drop all others; a new partition starts now."""
    for gone in times.keys() - parts.keys():
        del times[gone]
    for version, numbers in parts.items():
        before = times.get(version)
        if before is None:
            times[version] = dict.fromkeys(numbers, now)
        elif before.keys() != frozenset(numbers):
            times[version] = {number: before.get(number, now) for number in numbers}
