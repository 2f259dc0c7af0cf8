"""The choice of the next micro-pass's offsets."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from elastic_ctr.sources.streams.interface import Kept

Ranges = list[tuple[str, int, int]]
"""(partition, first offset, offset after the last)."""


@dataclass(frozen=True)
class Window:
    """The offsets of a micro-pass. `gone` counts offsets that the stream has deleted before any pass had them."""

    ranges: Ranges
    gone: int = 0

    @property
    def size(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)


def first_offsets(kept: Mapping[str, Kept], following: Mapping[str, int] | None, start: str) -> dict[str, int]:
    """Return the next offset of each partition. A new partition begins at its first offset. At the start of training, when `following`
    is None, `start: latest` begins at the ends. An unavailable partition that was never read has no entry.
    """
    at_start, following = following is None, following or {}
    return {
        name: following.get(name, each.end if at_start and start == "latest" else each.first)
        for name, each in kept.items()
        if not each.away or name in following
    }


def cut_window(kept: Mapping[str, Kept], following: Mapping[str, int], limit: int) -> Window:
    """Return all offsets from `following` on, or the same share of each readable partition that makes about `limit` of them.

    Raises ValueError if a partition ends before its next offset, because it was created anew.
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
        # Rounded up, or a partition with one record would never get its turn.
        ends = {name: starts[name] + -(-(ends[name] - starts[name]) * limit // total) for name in starts}
    return Window([(name, starts[name], ends[name]) for name in starts if ends[name] > starts[name]], gone)


def vanished(before: Mapping[str, Kept], now: Mapping[str, Kept], following: Mapping[str, int]) -> dict[str, int]:
    """Return, for each partition that has disappeared since the last poll, the number of offsets that no pass has."""
    return {
        name: max(0, each.end - following.get(name, each.first)) for name, each in before.items() if name not in now
    }


def lag_of(kept: Mapping[str, Kept], following: Mapping[str, int]) -> int:
    """Return the number of offsets that no pass has yet."""
    return sum(max(0, each.end - following.get(name, each.first)) for name, each in kept.items())


def pieces(ranges: Ranges, tasks: int, least: int) -> Ranges:
    """Return the ranges cut into about `tasks` pieces. No piece has fewer than `least` offsets unless it is a whole range."""
    total = sum(stop - start for _, start, stop in ranges)
    found: Ranges = []
    for name, start, stop in ranges:
        size = stop - start
        count = max(1, min(-(-size * tasks // max(total, 1)), size // least))
        edges = [start + size * number // count for number in range(count + 1)]
        found.extend((name, first, last) for first, last in pairwise(edges))
    return found


def text_of(ranges: Ranges) -> list[str]:
    """Return the ranges as the ledger stores them: `partition:start-stop`."""
    return [f"{name}:{start}-{stop}" for name, start, stop in ranges]


def ranges_in(texts: tuple[str, ...]) -> Ranges:
    """Return the ranges of texts by `text_of`."""
    found = []
    for text in texts:
        name, _, places = text.rpartition(":")
        start, _, stop = places.partition("-")
        found.append((name, int(start), int(stop)))
    return found
