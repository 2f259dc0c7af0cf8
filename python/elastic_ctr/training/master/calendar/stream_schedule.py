"""The micro-passes of a stream: a Schedule by offsets instead of hours."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from elastic_ctr.config.data import Data
from elastic_ctr.sources.streams.interface import Places
from elastic_ctr.training.master.calendar.arrivals import Span, joined
from elastic_ctr.training.master.calendar.schedule import Schedule
from elastic_ctr.training.master.calendar.windows import Window, ranges_in, text_of
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import Came, Pass, PassRow, StreamPlaces

log = logging.getLogger(__name__)

_KEPT_PASSES = 1000
_DROP_EACH = 100
_KEPT_ABSENT = 200
# Arrivals that each version's manifest lists: serving pods may skip versions and need those of the skipped ones.
_ARRIVALS = 60
_SPANS_OF_A_PASS = 2


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
            checkpoints = self._ledger.checkpoints()
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
        day, ends_day = day_after(before.day, self._day(at + facts.clock_moved))
        self._ledger.begin_micro_pass(one.ordinal, text_of(window.ranges), at, ends_day=ends_day)
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
        self._ledger.begin_micro_pass(one.ordinal, text_of(left), one.event_time_max, ends_day=one.ends_day)
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
        return {name for each in self._ledger.passes() for name, _, _ in ranges_in(each.splits)}

    def _day(self, moment: float) -> str:
        return datetime.fromtimestamp(moment, ZoneInfo(self._data.time_zone)).strftime("%Y%m%d")


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
    for later in reversed(ledger.passes_after(ordinal)):
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
    """Return the schedule for hours or for a stream."""
    return (StreamSchedule if data.is_stream else Schedule)(ledger, data, clock)
