"""Commits concurrent requests in one transaction, because a sync of the disk takes milliseconds."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.sources.intake.click_log import Appended, ClickLog, LogUnwritable
from elastic_ctr.sources.intake.request_lines import Clicks

log = logging.getLogger(__name__)

# The most bytes, as sent, and requests that one call of `ClickLog.append` gets.
GROUP_BYTES = 4 << 20
GROUP_REQUESTS = 5_000
# Retention runs at this interval even without requests.
_DROP_SECONDS = 10.0


class GroupCommit:
    """The only writer of a log. `error` is the message of the last commit if it failed."""

    def __init__(self, clicks: ClickLog, clock: Callable[[], float], observe: Callable[[float], None]) -> None:
        self.error: str | None = None
        self._log = clicks
        self._observe = observe
        self._clock = clock
        self._waiting: deque[tuple[Clicks, asyncio.Future[Appended]]] = deque()
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "commit")
        self._ended = False

    async def append(self, clicks: Clicks) -> Appended:
        """Append lines. Return when they are on the disk. Raises LogUnwritable, KeyReused, TooMuchJoined."""
        if self._ended:
            raise LogUnwritable("the intake is being ended: send the clicks again, with the same Idempotency-Key")
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append((clicks, done))
        self._came.set()
        return await done

    async def run(self, stop: asyncio.Event) -> None:
        """Commit requests until `stop` is set and all earlier ones are committed."""
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self._end())
        try:
            while not stop.is_set() or self._waiting:
                self._came.clear()
                if not self._waiting and not stop.is_set():
                    await wait_event(self._came, _DROP_SECONDS)
                await self._commit(self._take())
        finally:
            stopping.cancel()
            self._ended = True
            self._thread.shutdown()

    def _end(self) -> None:
        """Refuse further requests: senders that go on would keep the writer from ending."""
        self._ended = True
        self._came.set()

    def _take(self) -> list[tuple[Clicks, asyncio.Future[Appended]]]:
        found: list[tuple[Clicks, asyncio.Future[Appended]]] = []
        size = 0
        while self._waiting and size < GROUP_BYTES and len(found) < GROUP_REQUESTS:
            found.append(self._waiting.popleft())
            size += len(found[-1][0].text)
        return found

    async def _commit(self, group: list[tuple[Clicks, asyncio.Future[Appended]]]) -> None:
        """Commit a group. No error ends the writer: if one request fails unexpectedly, the requests are committed one by one."""
        try:
            await self._append(group)
        except LogUnwritable as failed:
            if self.error is None:
                log.error("%s", failed)  # noqa: TRY400 (the sentence says it all)
            self._refuse(group, str(failed))
        except Exception as failed:
            if len(group) > 1:
                for each in group:
                    await self._commit([each])
                return
            log.exception("clicks could not be appended; the intake goes on with the next ones")
            self._refuse(
                group, f"the clicks could not be appended ({type(failed).__name__}): the intake's log says why"
            )

    def _refuse(self, group: list[tuple[Clicks, asyncio.Future[Appended]]], sentence: str) -> None:
        self.error = sentence
        for _, done in group:
            if not done.done():
                done.set_exception(LogUnwritable(sentence))

    async def _append(self, group: list[tuple[Clicks, asyncio.Future[Appended]]]) -> None:
        began = time.monotonic()
        results = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._log.append, [clicks for clicks, _ in group], self._clock()
        )
        self.error = None
        if group:
            self._observe(time.monotonic() - began)
        self._waiting.extendleft(reversed(group[len(results) :]))
        for (_, done), result in zip(group, results, strict=False):
            # The caller was cancelled; its lines are appended all the same.
            if done.done():
                continue
            if isinstance(result, Appended):
                done.set_result(result)
            else:
                done.set_exception(result)
