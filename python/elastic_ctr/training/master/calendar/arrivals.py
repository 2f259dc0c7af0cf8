"""Arrival times of a stream's records, to the precision of the master's polls."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from elastic_ctr.store.versions.manifest import Arrival
from elastic_ctr.training.master.ledger.rows import Came


class Span(NamedTuple):
    """A number of offsets that arrived between two Unix seconds, assumed to be evenly spread."""

    first: float
    last: float
    offsets: int


class Arrivals:
    """The offsets that no pass has yet, by their arrival time.

    `since` is the last arrival of an offset that a pass has. None: no pass has any, and all offsets of the first poll count as arrived
    at that moment.
    """

    def __init__(self, since: float | None = None) -> None:
        self._waiting: deque[Span] = deque()
        self._offsets = 0
        self._looked = since

    def look(self, now: float, lag: int) -> None:
        """Take note that `lag` offsets have no pass at `now` (Unix seconds)."""
        came = lag - self._offsets
        if came > 0:
            # If the clock was set back, the span must not begin after its end.
            self._waiting.append(Span(min(now, self._looked if self._looked is not None else now), now, came))
            self._offsets = lag
        elif came < 0:
            self.take(-came)
        self._looked = now

    def take(self, offsets: int) -> list[Span]:
        """Remove and return the oldest offsets, because a pass has them or they are lost."""
        found: list[Span] = []
        while offsets > 0 and self._waiting:
            span = self._waiting.popleft()
            if span.offsets > offsets:
                between = span.first + (span.last - span.first) * offsets / span.offsets
                self._waiting.appendleft(Span(between, span.last, span.offsets - offsets))
                span = Span(span.first, between, offsets)
            found.append(span)
            offsets -= span.offsets
            self._offsets -= span.offsets
        return found


def joined(spans: Iterable[Span], most: int) -> list[Span]:
    """Return at most `most` spans by merging neighbours."""
    given = list(spans)
    size = -(-len(given) // most) if given else 1
    groups = [given[at : at + size] for at in range(0, len(given), size)]
    return [
        Span(round(group[0].first, 3), round(group[-1].last, 3), sum(each.offsets for each in group))
        for group in groups
    ]


def in_records(came: Iterable[Came], records: Mapping[int, int]) -> tuple[Arrival, ...]:
    """Return arrivals that count records. `records` has each pass's number by ordinal, shared out by offsets, which may be bytes."""
    given = list(came)
    totals, seen, found = Counter[int](), Counter[int](), []
    for each in given:
        totals[each.ordinal] += each.offsets
    for each in given:
        before = seen[each.ordinal]
        seen[each.ordinal] += each.offsets
        share, whole = records.get(each.ordinal, 0), totals[each.ordinal]
        count = share * seen[each.ordinal] // whole - share * before // whole
        if count:
            found.append(Arrival(each.ordinal, each.first, each.last, count))
    return tuple(found)
