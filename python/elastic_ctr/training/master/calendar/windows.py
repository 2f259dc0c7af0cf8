"""Which offsets of a stream are the next micro-pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from elastic_ctr.sources.streams.interface import Kept

Ranges = list[tuple[str, int, int]]
"""(partition, first offset, offset after the last)."""


@dataclass(frozen=True)
class Window:
    """`gone` are offsets that no pass has had and the stream keeps no more."""

    ranges: Ranges
    gone: int = 0

    @property
    def size(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)


def first_offsets(kept: Mapping[str, Kept], following: Mapping[str, int] | None, start: str) -> dict[str, int]:
    """Where each partition goes on. One that is new begins at its first offset; those that were there at the start, where `following`
    is None, with `start` latest at their ends. One that is away and was never read has no offset yet.
    """
    at_start, following = following is None, following or {}
    return {
        name: following.get(name, each.end if at_start and start == "latest" else each.first)
        for name, each in kept.items()
        if not each.away or name in following
    }


def cut_window(kept: Mapping[str, Kept], following: Mapping[str, int], limit: int) -> Window:
    """All offsets from `following` on, or `limit` of them, of each partition that can be read the same share.

    Raises ValueError where a partition ends before the offset that it goes on with: it is another one.
    """
    starts, ends, gone = {}, {}, 0
    for name, each in sorted(kept.items()):
        if each.away:
            continue
        if each.end < following[name]:
            raise ValueError(
                f"{name} of the stream ends at offset {each.end}, and passes have read it up to {following[name]}: it was created anew; "
                "begin another model, or put it back"
            )
        starts[name], ends[name] = max(following[name], each.first), each.end
        gone += starts[name] - following[name]
    total = sum(ends[name] - starts[name] for name in starts)
    if total > limit:
        # Rounded up: a partition with one record is not passed over for ever.
        ends = {name: starts[name] + -(-(ends[name] - starts[name]) * limit // total) for name in starts}
    return Window([(name, starts[name], ends[name]) for name in starts if ends[name] > starts[name]], gone)


def vanished(before: Mapping[str, Kept], now: Mapping[str, Kept], following: Mapping[str, int]) -> dict[str, int]:
    """Offsets that no pass has, of each partition that was there at the last look and is not any more."""
    return {
        name: max(0, each.end - following.get(name, each.first)) for name, each in before.items() if name not in now
    }


def lag_of(kept: Mapping[str, Kept], following: Mapping[str, int]) -> int:
    """Offsets that no pass has yet."""
    return sum(max(0, each.end - following.get(name, each.first)) for name, each in kept.items())


def pieces(ranges: Ranges, tasks: int, least: int) -> Ranges:
    """The same offsets in about so many tasks, none of fewer than `least` offsets but the whole of a range."""
    total = sum(stop - start for _, start, stop in ranges)
    found: Ranges = []
    for name, start, stop in ranges:
        size = stop - start
        count = max(1, min(-(-size * tasks // max(total, 1)), size // least))
        edges = [start + size * number // count for number in range(count + 1)]
        found.extend((name, first, last) for first, last in pairwise(edges))
    return found


def text_of(ranges: Ranges) -> list[str]:
    """As the ledger keeps them: `partition:start-stop`."""
    return [f"{name}:{start}-{stop}" for name, start, stop in ranges]


def ranges_in(texts: tuple[str, ...]) -> Ranges:
    """The reverse of `text_of`."""
    found = []
    for text in texts:
        name, _, places = text.rpartition(":")
        start, _, stop = places.partition("-")
        found.append((name, int(start), int(stop)))
    return found
