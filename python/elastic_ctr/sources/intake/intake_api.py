"""The HTTP API of the intake: senders post clicks, readers fetch offset ranges of the log."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from elastic_ctr.config.role_files import IntakeFile
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.runtime.http import RequestRefused, application, read_body, read_record, serving
from elastic_ctr.runtime.lifecycle import raise_fd_limit, stop_on_signal_async
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.sources.intake.click_log import JOINED_LINES, ClickLog, KeyReused, LogUnwritable, Retention
from elastic_ctr.sources.intake.group_commit import GroupCommit
from elastic_ctr.sources.intake.impressions import TooMuchJoined
from elastic_ctr.sources.intake.intake_metrics import Counts, IntakeMetrics, status_of
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.log_clock import LogClock
from elastic_ctr.sources.intake.request_lines import Clicks, ClicksRefused, clicks_of, key_of
from elastic_ctr.sources.intake.topic_reader import TopicReader
from elastic_ctr.sources.streams.open import open_topic

log = logging.getLogger(__name__)

# The most bytes of all request bodies in memory; a request beyond it gets a 503.
UNDER_WAY_BYTES = 128 << 20
# Bytes of one answer; the reader requests the following lines separately.
PIECE_BYTES = 4 << 20
# The most answers with their lines in memory, and the seconds that each may take.
ANSWERS_UNDER_WAY = 32
ANSWER_SECONDS = 30.0
OPEN_FILES = 1 << 16
_BLOCK_BYTES = 256 << 10
BODY_SECONDS = 30.0
_OFFSETS = 2**63
_NEEDED_BYTES = 64 << 10


class Intake:
    """One log with its writer, counters and metrics."""

    def __init__(
        self, config: IntakeFile, clock: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """`steady` is a monotonic clock. Raises LogUnwritable, NewerSchema, and StoreError, ValueError for the settings of a topic."""
        self.config = config
        settings = config.intake
        retention = Retention(settings.retention_hours * 3600, settings.max_bytes)
        rules, join = LateClicks.of(config.data, config.features), config.data.stream.join
        joined = None if rules is None or join is None else (rules, join.window_seconds)
        self.log = ClickLog(
            Path(settings.dir),
            retention,
            join=joined,
            most_impressions=settings.max_impression_bytes,
            of_topic=config.data.source.is_topic,
            skip_damaged=settings.skip_damaged,
        )
        self.counts = Counts()
        self.metrics = IntakeMetrics(self.log, self.counts, lambda: self.commits.error)
        self.commits = GroupCommit(self.log, LogClock(self.log, clock, steady), self.metrics.observe_commit)
        self.topic = self.metrics.topic = self._topic()
        self._under_way = 0
        # Answers whose lines are being read or sent.
        self.answers = 0

    def _topic(self) -> TopicReader | None:
        """Return the reader of the topic, or None. Raises StoreError, ValueError for credentials that cannot be used."""
        source = self.config.data.source
        if not source.is_topic:
            return None
        topic = open_topic(source.url, source.kafka.properties)
        latest, most_unread = self.config.data.start == "latest", self.config.intake.max_bytes // 2
        return TopicReader(topic, self.log, self.commits, latest=latest, most_unread=most_unread)

    async def run(self, stop: asyncio.Event) -> None:
        """Append clicks until `stop` is set."""
        if self.topic is None:
            await self.commits.run(stop)
            return
        reading = asyncio.create_task(self.topic.run(stop))
        # The reader ends before `stop` only by a bug. The process then ends too and is restarted.
        reading.add_done_callback(lambda _: stop.set())
        await self.commits.run(stop)
        await reading

    @contextmanager
    def reserved(self, request: Request) -> Iterator[None]:
        """Reserve memory for the body of a request. Raises RequestRefused (503) while other requests use it all."""
        limit = self.config.intake.max_body_bytes
        declared = request.headers.get("content-length", "")
        size = min(int(declared), limit) if declared.isdigit() else limit
        if self._under_way + size > UNDER_WAY_BYTES:
            raise _later("too many clicks are under way; send them again in a second")
        self._under_way += size
        try:
            yield
        finally:
            self._under_way -= size


def _later(sentence: str) -> RequestRefused:
    return RequestRefused(503, sentence, {"retry-after": "1"})


def intake_app(intake: Intake, access: Access) -> Starlette:
    settings, counts = intake.config.intake, intake.counts

    async def clicks(request: Request) -> Response:
        try:
            sender = access.require(request, Right.CLICKS)
            with intake.reserved(request):
                sent = await _clicks_in(request)
                found = await intake.commits.append(sent)
        except KeyReused as reused:
            counts.refused += 1
            raise RequestRefused(422, str(reused)) from reused
        except TooMuchJoined as refused:
            counts.refused += 1
            raise RequestRefused(413, str(refused)) from refused
        except LogUnwritable as failed:
            counts.refused += 1
            raise _later(str(failed)) from failed
        except RequestRefused:
            counts.refused += 1
            raise
        answer: dict[str, object] = {"partition": intake.log.partition, "first": found.first, "end": found.end}
        if found.repeated:
            counts.repeated += 1
            return JSONResponse({**answer, "repeated": True})
        counts.requests += 1
        access.audit.posted(sender, sent.count)
        counts.records += sent.count
        counts.bytes += len(sent.text)
        return JSONResponse(answer)

    async def _clicks_in(request: Request) -> Clicks:
        coding = request.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise RequestRefused(415, f"Content-Encoding {coding[:40]} is not read here; send the lines as they are")
        try:
            key = key_of(request.headers.getlist("idempotency-key"))
            body = await asyncio.wait_for(read_body(request, settings.max_body_bytes), BODY_SECONDS)
            sent = clicks_of(body, intake.config.data.max_line_bytes, key)
        except ClicksRefused as wrong:
            raise RequestRefused(400, str(wrong)) from wrong
        except asyncio.TimeoutError as slow:
            raise RequestRefused(408, f"the body did not come within {BODY_SECONDS:g} s; send smaller ones") from slow
        if intake.log.joins_lines and sent.count > JOINED_LINES:
            raise RequestRefused(
                413,
                f"the body has {sent.count} lines, and {JOINED_LINES} are the most where clicks are joined; send fewer at once",
            )
        return sent

    async def places(request: Request) -> Response:
        access.require(request, Right.INTERNAL)
        first, end, _ = intake.log.kept
        found: dict[str, object] = {"partition": intake.log.partition, "first": first, "end": end}
        if (topic := intake.topic) is not None:
            found["topic"] = {"url": topic.url, "lag": topic.lag, "error": topic.error}
        return JSONResponse(found)

    async def needed(request: Request) -> Response:
        access.require(request, Right.INTERNAL)
        told = await read_record(request, _Needed, _NEEDED_BYTES)
        # Offsets of an earlier log, which was lost, are not those of this one.
        offset = told.needed.get(intake.log.partition)
        is_known = offset is not None and offset <= intake.log.kept.end
        if offset is not None and is_known:
            intake.log.needed_from(offset, told.following.get(intake.log.partition))
        return JSONResponse({"partition": intake.log.partition, "taken": is_known})

    async def lines(request: Request) -> Response:
        # Checked first, so that a caller without the right does not count in `answers`.
        access.require(request, Right.INTERNAL)
        try:
            wanted = read_document(_Range, json.dumps(dict(request.query_params)))
        except DocumentDamaged as wrong:
            raise RequestRefused(400, f"{wrong}; ask for /v1/log/lines?start=OFFSET&stop=OFFSET") from wrong
        if wanted.start > wanted.stop:
            raise RequestRefused(400, f"start {wanted.start} is behind stop {wanted.stop}; swap them")
        first, end, _ = intake.log.kept
        if wanted.stop > end:
            known = {"log-partition": intake.log.partition, "log-end": str(end)}
            raise RequestRefused(416, f"the log ends at offset {end}, before {wanted.stop}", known)
        if intake.answers >= ANSWERS_UNDER_WAY:
            raise _later("too many ranges are being read; ask again in a second")
        # Counted before the lines are in memory; _Piece decrements it.
        intake.answers += 1
        try:
            piece = await asyncio.to_thread(intake.log.read, wanted.start, wanted.stop, PIECE_BYTES)
        except BaseException as failed:
            intake.answers -= 1
            if isinstance(failed, LogUnwritable):
                raise _later(str(failed)) from failed
            raise
        headers = {
            "log-partition": intake.log.partition, "log-first": str(first),
            "first-offset": str(piece.first), "next-offset": str(piece.next),
        }  # fmt: skip
        return _Piece(piece.text, headers, intake)

    routes = [
        Route("/v1/clicks", clicks, methods=["POST"]),
        Route("/v1/log", places),
        Route("/v1/log/needed", needed, methods=["POST"]),
        Route("/v1/log/lines", lines),
    ]
    return application(
        routes,
        # Always ready, even if the log cannot be written: readers reach it through the same Service.
        status=lambda: status_of(intake.log, counts, intake.commits.error, intake.topic),
        metrics=intake.metrics,
    )


class _Piece(StreamingResponse):
    """Sends lines as fast as the reader takes them, and closes the connection of one that is too slow."""

    def __init__(self, text: bytes, headers: dict[str, str], intake: Intake) -> None:
        length = {"content-length": str(len(text))}
        super().__init__(_blocks(text), media_type="application/octet-stream", headers=headers | length)
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.wait_for(super().__call__(scope, receive, send), ANSWER_SECONDS)
        except asyncio.TimeoutError:
            log.warning("an answer was not taken within %g s; its connection is ended", ANSWER_SECONDS)
        finally:
            self._intake.answers -= 1


async def _blocks(text: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(text), _BLOCK_BYTES):
        yield text[start : start + _BLOCK_BYTES]


class _Needed(BaseModel):
    """For each partition, the first offset that a recovery may train again, and the first offset that no pass has yet."""

    needed: dict[str, Annotated[int, Field(ge=0, lt=_OFFSETS)]]
    following: dict[str, Annotated[int, Field(ge=0, lt=_OFFSETS)]] = Field(default_factory=dict)


class _Range(BaseModel):
    start: int = Field(ge=0, lt=_OFFSETS)
    stop: int = Field(ge=0, lt=_OFFSETS)


def run_intake(config: IntakeFile) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUse, StateInUse, LogUnwritable, NewerSchema, and StoreError, ValueError for a topic."""
    access = Access(config.auth.rights(), AuditLog("intake", Path(config.intake.dir)))

    async def main(intake: Intake) -> None:
        with stop_on_signal_async() as stop:
            async with serving(intake_app(intake, access), config.host, config.intake.port) as server:
                log.info("clicks are taken at http://%s:%s/v1/clicks", config.host, server.port)
                await intake.run(stop)

    raise_fd_limit(OPEN_FILES)
    with ExitStack() as ends:
        ends.enter_context(StateLock(Path(config.intake.dir)))
        intake = Intake(config)
        ends.callback(intake.log.close)
        ends.callback(access.audit.close)
        asyncio.run(main(intake))
