"""Appends the messages of a topic to the log, each once, so that its clicks are joined like those that are posted.

The log has the offset behind what was appended, and moves it in the transaction of the lines: a killed intake neither loses a message nor
appends one twice.
"""

import asyncio
import logging

from elastic_ctr.intake.click_log import ClickLog
from elastic_ctr.intake.group_commit import GroupCommit
from elastic_ctr.intake.impressions import TooMuchJoined
from elastic_ctr.intake.request_lines import Clicks, Position, lines_in
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.store import StoreError
from elastic_ctr.streams.interface import Kept, Stream

log = logging.getLogger(__name__)

# From one look at the topic to the next where nothing came.
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
# Of one transaction, by the length of the last messages.
_BYTES = 4 << 20
_FIRST_MESSAGES, _MOST_MESSAGES = 100, 10_000


class TopicReader:
    """The one reader of a topic.

    Attributes:
        records: lines that were appended.
        lag: offsets that are not appended yet.
        gone: offsets that the topic kept no more when they were due.
        dropped: messages whose impressions are too long together.
        waits: whether it appends nothing until training has read more: what is not in the log is kept by the topic.
        error: the sentence of the last failure until the topic is read again.
    """

    def __init__(
        self, topic: Stream, clicks: ClickLog, commits: GroupCommit, *, latest: bool, most_unread: int
    ) -> None:
        """`latest`: a topic that was never read begins with what comes from now on. `most_unread`: bytes in the log."""
        self.url = topic.url
        self.records = self.lag = self.gone = self.dropped = 0
        self.waits = False
        self.error: str | None = None
        self._most_unread = most_unread
        self._topic = topic
        self._log = clicks
        self._commits = commits
        self._latest = latest
        self._messages = _FIRST_MESSAGES

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. A topic or a log that fails is asked again."""
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
        except OSError as failed:
            if self.error is None and not stop.is_set():
                log.warning("%s", failed)
            self.error = str(failed)
            return _AGAIN_SECONDS
        if self.error is not None:
            log.info("%s is read again", self.url)
            self.error = None
        return 0 if came else _LOOK_SECONDS

    async def _round(self, stop: asyncio.Event) -> bool:
        """A transaction's worth of each partition; whether there was any."""
        kept = await asyncio.to_thread(self._topic.partitions)
        places = await self._places(kept)
        self.lag = sum(kept[partition].end - place for partition, place in places.items())
        behind = [partition for partition, place in places.items() if place < kept[partition].end]
        waits = self._log.unread_bytes() > self._most_unread
        if waits and not self.waits:
            log.warning("training is behind: messages stay in %s until it has read more of the log", self.url)
        self.waits = waits
        if waits:
            return False
        for partition in behind:
            if stop.is_set():
                break
            place = places[partition]
            await self._take(partition, place, min(kept[partition].end, place + self._messages))
        return bool(behind)

    async def _places(self, kept: dict[str, Kept]) -> dict[str, int]:
        """The next offset of each partition. Raises StoreError for a topic that was created anew."""
        known = await asyncio.to_thread(self._log.positions)
        if self._latest and not known.keys() & kept.keys():
            for partition, each in kept.items():
                await self._commits.append(Clicks(b"", 0, position=Position(partition, each.end)))
            known = {partition: each.end for partition, each in kept.items()}
        places = {partition: known.get(partition, each.first) for partition, each in kept.items()}
        for partition, place in places.items():
            if place > kept[partition].end:
                raise StoreError(
                    f"{partition} of {self.url} ends at offset {kept[partition].end}, and {place} was seen: it was created anew; give the "
                    "new topic another name, or begin another log"
                )
        return places

    async def _take(self, partition: str, start: int, stop: int) -> None:
        """Append the messages between two offsets. Raises StoreError, LogUnwritable."""
        lines = await asyncio.to_thread(self._topic.read, partition, start, stop)
        text = lines_in(lines.raw.read())
        position = Position(partition, stop)
        try:
            found = await self._commits.append(Clicks(text, text.count(b"\n"), position=position))
            self.records += found.end - found.first
        except TooMuchJoined as refused:
            if stop - start > 1:
                middle = (start + stop) // 2
                await self._take(partition, start, middle)
                await self._take(partition, middle, stop)
                return
            log.error("offset %d of %s is dropped: %s", start, partition, refused)  # noqa: TRY400 (the sentence says it all)
            self.dropped += 1
            await self._commits.append(Clicks(b"", 0, position=position))
        self.gone += lines.gone
        if text:
            self._messages = max(1, min(_MOST_MESSAGES, _BYTES * (stop - start) // len(text)))
