"""The micro-passes of a stream: what `data.start` and hours are to a Schedule, offsets are here."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from elastic_ctr.config.data import Data
from elastic_ctr.master.arrivals import Span, joined
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.ledger_rows import Came, Pass, PassRow, StreamPlaces
from elastic_ctr.master.schedule import Schedule
from elastic_ctr.master.windows import Window, ranges_in, text_of

log = logging.getLogger(__name__)

_KEPT_PASSES = 1000
_DROP_EACH = 100
# Serving pods may skip versions: each says when the records of so many arrivals came.
_ARRIVALS = 60
_SPANS_OF_A_PASS = 2


class StreamSchedule(Schedule):
    """One micro-pass after the other, without an end. Its state is in the ledger."""

    _also_retries = ""

    def _behind(self, done: list[PassRow]) -> Pass | None:
        ordinal = done[-1].ordinal + 1 if done else 1
        return Pass(ordinal, f"stream/{ordinal:08d}", (), int(self._clock()), ends_day=False)

    def finish(self, current: PassRow) -> None:
        super().finish(current)
        # Many micro-passes make a day: the ledger keeps the last ones.
        if current.ordinal % _DROP_EACH == 0:
            checkpoints = self._ledger.checkpoints()
            returns_to = checkpoints[0]["pass"] if checkpoints else 0
            self._ledger.drop_passes(min(current.ordinal - _KEPT_PASSES, returns_to))

    def is_last(self, current: PassRow) -> bool:  # noqa: ARG002 (of hours)
        return False

    def cut_again(self) -> bool:
        return False

    def give(
        self, one: PassRow, window: Window, following: dict[str, int], came: Sequence[Span]
    ) -> list[tuple[str, int, int]]:
        """The offsets of a pass, which it keeps for good: one that is begun again reads the same. Called within a transaction."""
        if one.splits:
            return ranges_in(one.splits)
        now, facts = int(self._clock()), self._ledger.facts
        before = facts.stream or StreamPlaces(following={})
        # The first pass after midnight ends the day, by the clock as it is now.
        day, ends_day = day_after(before.day, self._day(now + facts.clock_moved))
        self._ledger.begin_micro_pass(one.ordinal, text_of(window.ranges), now, ends_day=ends_day)
        stops = {name: stop for name, _, stop in window.ranges}
        gone = window.gone + before.gone
        arrivals = before.arrivals + tuple(Came(one.ordinal, *each) for each in joined(came, _SPANS_OF_A_PASS))
        # An intake's log that comes back goes on where it was: no other has its name. A file may be made anew under an old one.
        away = before.following if self._data.source.is_intake else {}
        self._ledger.set_facts(
            stream=StreamPlaces(
                following={**away, **following, **stops}, gone=gone, arrivals=arrivals[-_ARRIVALS:], day=day
            )
        )
        if window.gone:
            log.error(
                "%d offsets of the stream were never read: it keeps them no more; let it keep them for longer",
                window.gone,
            )
        return window.ranges

    def _day(self, moment: float) -> str:
        return datetime.fromtimestamp(moment, ZoneInfo(self._data.time_zone)).strftime("%Y%m%d")


def following_after(ledger: Ledger, ordinal: int) -> dict[str, int]:
    """By partition of the stream, the offset after the last one that this pass or an earlier one has; empty for hours."""
    if (places := ledger.facts.stream) is None:
        return {}
    following = dict(places.following)
    for later in reversed(ledger.passes_after(ordinal)):
        following.update({name: start for name, start, _ in ranges_in(later.splits)})
    return following


def day_after(known: str, today: str) -> tuple[str, bool]:
    """The newest day of the passes, YYYYMMDD, and whether it has just ended. A clock that is set back shows a midnight twice, which ends
    one day; days that it showed by mistake are forgotten.
    """
    if not known or today > known:
        return today, bool(known)
    return (today if _days(today, known) > 1 else known), False


def _days(first: str, last: str) -> int:
    one, other = (datetime.strptime(each, "%Y%m%d") for each in (first, last))  # noqa: DTZ007 (days alone)
    return (other - one).days


def is_same_stream(one: str, other: str) -> bool:
    """Whether two addresses are the same. Of other brokers or another host, a topic or an intake may be another one of that name."""
    here, there = urlsplit(one), urlsplit(other)
    return (here.scheme, here.netloc, here.path.rstrip("/")) == (there.scheme, there.netloc, there.path.rstrip("/"))


def schedule_of(ledger: Ledger, data: Data, clock: Callable[[], float]) -> Schedule:
    """Of hours, or of a stream."""
    return (StreamSchedule if data.is_stream else Schedule)(ledger, data, clock)
