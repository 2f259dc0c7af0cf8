"""The micro-passes of a stream: a Schedule by offsets instead of hours, the windows of offsets, and the arrival times of records."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

from elastic_ctr.config.data import Data
from elastic_ctr.sources.streams.interface import Kept, Places
from elastic_ctr.store.versions.manifest import Arrival
from elastic_ctr.training.master.calendar.schedule import Schedule, day_of
from elastic_ctr.training.master.calendar.table_schedule import TableSchedule
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import Came, Pass, PassRow, StreamPlaces

log = logging.getLogger(__name__)

_KEPT_PASSES = 1000
_DROP_EACH = 100
_KEPT_ABSENT = 200
# Arrivals that each version's manifest lists: serving pods may skip versions and need those of the skipped ones.
_ARRIVALS = 60
_SPANS_OF_A_PASS = 2


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


class StreamSchedule(Schedule):
    """An endless sequence of micro-passes. All its state is in the ledger."""

    _also_retries = ""

    def _behind(self, done: list[PassRow]) -> Pass | None:
        ordinal = done[-1].ordinal + 1 if done else 1
        return Pass(ordinal, f"stream/{ordinal:08d}", (), int(self._clock()), ends_day=False)

    def finish(self, current: PassRow) -> None:
        super().finish(current)
        # A day has very many micro-passes; the ledger keeps only the last ones.
        if current.ordinal % _DROP_EACH == 0:
            checkpoints = self._ledger.saves.checkpoints()
            returns_to = checkpoints[0]["pass"] if checkpoints else 0
            self._ledger.drop_passes(min(current.ordinal - _KEPT_PASSES, returns_to))

    def is_last(self, current: PassRow) -> bool:  # noqa: ARG002 (of hours)
        return False

    def cut_again(self) -> bool:
        return False

    def give(self, one: PassRow, window: Window, now: Places, came: Sequence[Span]) -> list[tuple[str, int, int]]:
        """Assign a pass its offsets for good, so that a retry reads the same, and return its ranges. Called within a transaction."""
        if one.splits:
            return ranges_in(one.splits)
        at, facts = int(self._clock()), self._ledger.facts
        before = facts.stream or StreamPlaces(following={})
        # The first pass after midnight, by the machine's present clock, ends the day.
        day, ends_day = day_after(before.day, day_of(at + facts.clock_moved, self._data))
        self._ledger.passes.begin_micro_pass(one.ordinal, text_of(window.ranges), at, ends_day=ends_day)
        gone = window.gone + before.gone
        arrivals = before.arrivals + tuple(Came(one.ordinal, *each) for each in joined(came, _SPANS_OF_A_PASS))
        # Keep the positions of absent logs of an intake: if one comes back, it has the same name and is read on.
        away = before.following if self._data.source.is_intake else {}
        following, files = places_after(before, window, now, self._named)
        self._ledger.set_facts(
            stream=StreamPlaces(
                following={**away, **following}, files=files, gone=gone, arrivals=arrivals[-_ARRIVALS:], day=day
            )
        )
        if window.gone:
            log.error(
                "%d offsets of the stream were never read: it keeps them no more; let it keep them for longer",
                window.gone,
            )
        return window.ranges

    def drop(self, one: PassRow, absent: set[str]) -> None:
        """Leave absent partitions out of a pass that begins again. If none is left, it gets new offsets. Called within a transaction."""
        ranges = ranges_in(one.splits)
        left = [each for each in ranges if each[0] not in absent]
        self._ledger.passes.begin_micro_pass(one.ordinal, text_of(left), one.event_time_max, ends_day=one.ends_day)
        gone = sum(stop - start for name, start, stop in ranges if name in absent)
        self._ledger.lost_offsets(gone)
        log.error(
            "%s: deleted before pass %s has read them; %d bytes of it are dropped",
            ", ".join(sorted(absent)),
            one.id,
            gone,
        )

    def _named(self) -> set[str]:
        """Return the partitions of all passes in the ledger, which a recovery may read again."""
        return {name for each in self._ledger.passes.all() for name, _, _ in ranges_in(each.splits)}


def places_after(before: Places | StreamPlaces, window: Window, now: Places, named: Callable[[], set[str]]) -> Places:
    """Return the positions after a window. Deleted files of a followed folder stay known for a while, because a compressed copy may
    appear. `named` returns partitions that are kept in any case.
    """
    stops = {name: stop for name, _, stop in window.ranges}
    absent = {
        name: place for name, place in before.following.items() if name in now.files and name not in now.following
    }
    if len(absent) > _KEPT_ABSENT:
        newest, referenced = set(list(absent)[-_KEPT_ABSENT // 2 :]), named()
        absent = {name: place for name, place in absent.items() if name in newest or name in referenced}
    following = {**absent, **now.following, **stops}
    return Places(following, {name: each for name, each in now.files.items() if name in following})


def following_after(ledger: Ledger, ordinal: int) -> dict[str, int]:
    """Return, for each partition of the stream, the next offset after this pass; {} for hours."""
    if (places := ledger.facts.stream) is None:
        return {}
    following = dict(places.following)
    for later in reversed(ledger.passes.after(ordinal)):
        following.update({name: start for name, start, _ in ranges_in(later.splits)})
    return following


def day_after(known: str, today: str) -> tuple[str, bool]:
    """Return the newest day of the passes, YYYYMMDD, and True if a day has just ended. If the clock is set back over midnight, the day
    ends only once. If it is set back by more than a day, the later days were a mistake and are forgotten.
    """
    if not known or today > known:
        return today, bool(known)
    return (today if _days(today, known) > 1 else known), False


def _days(first: str, last: str) -> int:
    one, other = (datetime.strptime(each, "%Y%m%d") for each in (first, last))  # noqa: DTZ007 (days alone)
    return (other - one).days


def is_same_stream(one: str, other: str) -> bool:
    """True if two addresses are the same. At other brokers or another host, the same name may be another topic or intake."""
    here, there = urlsplit(one), urlsplit(other)
    return (here.scheme, here.netloc, here.path.rstrip("/")) == (there.scheme, there.netloc, there.path.rstrip("/"))


def schedule_of(ledger: Ledger, data: Data, clock: Callable[[], float]) -> Schedule:
    """Return the schedule for hours, for a stream or for a table."""
    kind = StreamSchedule if data.is_stream else TableSchedule if data.is_table else Schedule
    return kind(ledger, data, clock)
