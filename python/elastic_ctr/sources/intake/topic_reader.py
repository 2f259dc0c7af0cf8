"""Appends each message of a topic to the log once, so that its clicks are joined as posted ones are.

The log has the next offset of each partition and updates it in the transaction of the lines, so a killed intake neither loses a
message nor appends one twice.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.sources.intake.click_log import ClickLog, LogUnwritable
from elastic_ctr.sources.intake.group_commit import GroupCommit
from elastic_ctr.sources.intake.impressions import TooMuchJoined
from elastic_ctr.sources.intake.request_lines import Clicks, Position, TopicTime, lines_in
from elastic_ctr.sources.streams.interface import Kept, MadeAt, Stream
from elastic_ctr.store.backends import StoreError, StoreUnavailable

log = logging.getLogger(__name__)

# Seconds between two polls of the topic without new messages.
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_PARTITION_AGAIN_SECONDS = 10.0
# The most bytes and messages of one transaction.
_BYTES = 4 << 20
_MOST_MESSAGES = 10_000
# Hysteresis: reading resumes when the unread bytes fall below this share of the limit, which bounds the warnings.
_ROOM = 0.9


class TopicTimes:
    """Creation times of the appended messages, by partition. The age of an impression counts from the newest message of its read to the
    median of the last read: none is forgotten while the topic is not read, or because one sender's clock is ahead.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._read_up_to: dict[str, float] = {}

    def appended(self, partition: str, at: MadeAt | None) -> float:
        """Return the time from which the age of impressions made `at` counts. A partition's time goes neither backwards nor beyond now."""
        now = self._wall()
        median, newest = (now, now) if at is None else (min(at.median, now), min(at.newest, now))
        before = self._read_up_to.get(partition, 0.0)
        self._read_up_to[partition] = max(median, before)
        return max(newest, before)

    def whole(self, behind: Mapping[str, int]) -> float | None:
        """Return the time up to which all partitions are read; those in `behind` have more. None if one of these was not read yet."""
        times = [self._read_up_to.get(partition) for partition in behind] or [
            max(self._read_up_to.values(), default=None)
        ]
        known = [each for each in times if each is not None]
        return min(known) if len(known) == len(times) else None


class TopicReader:
    """The only reader of a topic.

    Attributes:
        records: lines that were appended.
        lag: offsets that are not appended yet; None while the topic cannot be read.
        gone: offsets that the topic had deleted before they were read.
        dropped: messages whose late clicks are together too long.
        waits: True while the reader appends nothing because training is behind; the topic keeps the messages.
        error: the message of the last failure, until the topic is read again.
    """

    def __init__(
        self,
        topic: Stream,
        clicks: ClickLog,
        commits: GroupCommit,
        *,
        latest: bool,
        most_unread: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`latest`: a topic that was never read begins at its end. `most_unread`: bytes in the log beyond which the reader waits."""
        self.url = topic.url
        self.records = self.gone = self.dropped = 0
        self.lag: int | None = None
        self.waits = False
        self.error: str | None = None
        self._most_unread = most_unread
        self._topic = topic
        self._log = clicks
        self._commits = commits
        self._latest = latest
        self._times = TopicTimes(wall)
        # The message about partitions without a leader, while others are read.
        self._absent: str | None = None
        # Partitions whose read failed: when to try again, and the error. A failing read takes long.
        self._failing: dict[str, tuple[float, StoreError]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop` is set. Failures of the topic or the log are retried."""
        try:
            while not stop.is_set():
                pause = await self._pause_after_round(stop)
                if pause:
                    await wait_event(stop, pause)
        finally:
            self._topic.close()

    async def _pause_after_round(self, stop: asyncio.Event) -> float:
        try:
            came = await self._round(stop)
        except LogUnwritable:
            # GroupCommit has logged it.
            return _AGAIN_SECONDS
        except OSError as failed:
            if self.error != str(failed) and not stop.is_set():
                log.warning("%s", failed)
            self.error, self.lag = str(failed), None
            return _AGAIN_SECONDS
        if self.error is not None and self._absent is None:
            log.info("%s is read again", self.url)
        self.error = self._absent
        return 0 if came else _LOOK_SECONDS

    async def _round(self, stop: asyncio.Event) -> bool:
        """Append up to one transaction of each partition. Return True if there was any. A failed read does not stop other partitions."""
        kept = await asyncio.to_thread(self._topic.partitions)
        absent = ", ".join(sorted(partition for partition, each in kept.items() if each.away))
        self._absent = f"{absent} of {self.url} cannot be read: no broker leads it" if absent else None
        places = await self._places(kept)
        self.lag = sum(max(0, kept[partition].end - place) for partition, place in places.items())
        # An absent partition may have more messages.
        behind = {name: place for name, place in places.items() if place < kept[name].end or kept[name].away}
        readable = [name for name in behind if not kept[name].away]
        self.waits = self.waits and bool(readable)
        came, failures = False, list[OSError]()
        for partition in readable:
            if stop.is_set() or self._has_to_wait():
                break
            place, end = places[partition], kept[partition].end
            until, why = self._failing.get(partition, (0.0, None))
            if why is not None and time.monotonic() < until:
                failures.append(why)
                continue
            try:
                if await self._take(partition, place, min(end, place + _MOST_MESSAGES), behind) >= end:
                    del behind[partition]
                came = True
                self._failing.pop(partition, None)
            except StoreError as failed:
                self._failing[partition] = time.monotonic() + _PARTITION_AGAIN_SECONDS, failed
                failures.append(failed)
        if failures:
            raise failures[0]
        return came

    def _has_to_wait(self) -> bool:
        """True if training has so much to read that further messages stay in the topic. Checked before each transaction."""
        waits = self._log.unread_bytes() > self._most_unread * (_ROOM if self.waits else 1)
        if waits and not self.waits:
            log.warning("training is behind: messages stay in %s until it has read more of the log", self.url)
        self.waits = waits
        return waits

    async def _places(self, kept: dict[str, Kept]) -> dict[str, int]:
        """Return the next offset of each partition. Raises StoreError for a topic that was created anew."""
        known = await asyncio.to_thread(self._log.positions)
        if self._latest and not known.keys() & kept.keys():
            if self._absent is not None:
                raise StoreUnavailable(f"{self._absent}; reading begins once every partition says where it ends")
            known = {partition: each.end for partition, each in kept.items()}
            # In one transaction, because a partition without a position counts as added later and is read from its first offset.
            begins = tuple(Position(partition, end) for partition, end in known.items())
            await self._commits.append(Clicks(b"", 0, positions=begins))
        places = {
            partition: known.get(partition, each.first)
            for partition, each in kept.items()
            if not each.away or partition in known
        }
        for partition, place in places.items():
            if not kept[partition].away and place > kept[partition].end:
                raise StoreError(
                    f"{partition} of {self.url} ends at offset {kept[partition].end}, and {place} was seen: it was created anew; give the "
                    "new topic another name, or begin another log"
                )
        return places

    async def _take(self, partition: str, start: int, stop: int, behind: Mapping[str, int]) -> int:
        """Append messages from `start` up to `stop`. Return the next offset. Raises StoreError, LogUnwritable."""
        lines = await asyncio.to_thread(self._topic.read, partition, start, stop, _BYTES)
        text = lines_in(lines.raw.read())
        following = stop if lines.following is None else lines.following
        position = Position(partition, following)
        made = None
        if text or lines.at is not None:
            # Taken before these lines count: a click among them may be of an impression that is as old as the window.
            whole = self._times.whole(behind)
            made = TopicTime(self._times.appended(partition, lines.at), whole)
        clicks = Clicks(text, text.count(b"\n"), positions=(position,), time=made)
        try:
            found = await self._commits.append(clicks)
            self.records += found.end - found.first
        except TooMuchJoined as refused:
            if following - start > 1:
                middle = (start + following) // 2
                following = await self._take(partition, start, middle, behind)
                return (
                    following if following < middle else await self._take(partition, middle, position.following, behind)
                )
            log.error("offset %d of %s is dropped: %s", start, partition, refused)  # noqa: TRY400 (the sentence says it all)
            self.dropped += 1
            await self._commits.append(Clicks(b"", 0, positions=(position,)))
        self.gone += lines.gone
        return following
