"""The HTTP frontend on asyncio: every HTTP/1.1 request that the native frontend does not take. Knows nothing of predictions.

This module finds where a request begins and ends; `http_syntax` reads its head and a chunked body. Whatever the
bytes are, one request gets one answer. An offer to speak another protocol is ignored, and its body is read as any other.

Pipelined requests are answered in their order. Heads, bodies, trailers and time are bounded for every client. A client that
does not read its answers is not read either.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import orjson

from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.serving.frontends.http_syntax import (
    ENCODINGS,
    HEAD_END,
    ChunkedBody,
    RequestHead,
    check_begun,
    read_head,
)
from elastic_ctr.serving.request_error import RequestError

JSON_TYPE = b"content-type: application/json\r\n"
_LONGEST_CHECK = 1.0
# Programs send the same heads again and again. Together these take less than one body.
_MOST_CACHED = 4096
_LONGEST_CACHED = 2048


class Reply(Protocol):
    """Answers a request. To be called once, whenever the answer is known; `headers` are whole lines."""

    def __call__(self, status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None: ...


class Limits(NamedTuple):
    """Limits of one client. Seconds: of a head, of a whole request, between two requests, and for one more
    request when the frontend stops: a client that sends it while the connection is closed would get no answer.
    """

    max_body_bytes: int = 8 << 20
    max_head_bytes: int = 64 << 10
    max_headers: int = 100
    max_pipelined: int = 64
    head_seconds: float = 10.0
    request_seconds: float = 60.0
    idle_seconds: float = 75.0
    linger_seconds: float = 5.0
    drain_idle_seconds: float = 5.0
    # Bodies received and not yet answered, of all connections together, in multiples of the largest allowed.
    max_pending_bodies: int = 4


class Request(NamedTuple):
    """One whole request; `path` is as it was sent, without its query. `encoding` is gzip, deflate or nothing."""

    method: str
    path: str
    body: bytes
    json_length: int | None = None
    encoding: str = ""


@dataclass(slots=True)
class _Answer:
    """A place in a connection's order of answers; `payload` is filled when the answer is known."""

    payload: bytes | None = None
    last: bool = False
    body_bytes: int = 0


@dataclass
class HttpFrontend:
    """The server's side of all connections.

    `handle(request, reply)` must not raise and must call `reply` once. `refused(status)` is called for each answer of the
    frontend itself.
    """

    handle: Callable[[Request, Reply], None]
    limits: Limits = field(default_factory=Limits)
    refused: Callable[[int], None] = lambda _status: None

    def __post_init__(self) -> None:
        self.connections: set[Connection] = set()
        self.stopping = False
        self.pending_bytes = 0
        self.drain_idle = 0.0
        self.read_cached = lru_cache(_MOST_CACHED)(partial(read_head, max_headers=self.limits.max_headers))
        self._looking: asyncio.TimerHandle | None = None
        self.emptied = asyncio.Event()

    async def adopt_connection(self, peer: socket.socket, came: bytes) -> None:
        """Take a connection that another frontend has accepted, and what was read of it. Raises OSError."""
        if self._looking is None:
            self.check_deadlines()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self, came), peer)

    def begin_drain(self, grace_seconds: float) -> None:
        """From now on every answer is the last of its connection; `stop` must follow."""
        if not self.stopping:
            self.drain_idle = min(self.limits.drain_idle_seconds, grace_seconds / 2)
            self.stopping = True
            for connection in list(self.connections):
                connection.begin_idle()

    async def stop(self, grace_seconds: float) -> None:
        """Answer what has been asked and what idle clients ask while it drains, close.

        Every answer says that the connection closes after it. The rest is cut after the grace.
        """
        self.begin_drain(grace_seconds)
        if self.connections:
            # It may have been empty before: others have been adopted since.
            self.emptied.clear()
            await wait_event(self.emptied, grace_seconds)
        for connection in list(self.connections):
            connection.abort()
        if self._looking is not None:
            self._looking.cancel()

    def check_deadlines(self) -> None:
        """Deadlines are looked at twice as often as the shortest of them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            if connection.deadline is not None and connection.deadline < now:
                connection.on_deadline()
        self._looking = loop.call_later(min(_LONGEST_CHECK, self.limits.head_seconds / 2), self.check_deadlines)


class Connection(asyncio.Protocol):
    """One client; `came` is what another frontend has read of it."""

    def __init__(self, frontend: HttpFrontend, came: bytes = b"") -> None:
        self.deadline: float | None = None
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)
        self._adopted = came
        self._frontend = frontend
        self._limits = frontend.limits
        self._answers: deque[_Answer] = deque()
        self._writable = self._reading = True
        self._discarding = False
        # More requests have come than may be under way, and whether the client has closed its half after them.
        self._held = self._half_closed = False
        # Input that is not read yet. The first `_searched` bytes of a head have no end in them.
        self._data = bytearray()
        self._searched = 0
        # The request that is being received.
        self._receiving = False
        self._head: RequestHead | None = None
        self._chunks: ChunkedBody | None = None
        self._body_bytes = 0

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._frontend.connections.add(self)
        self.begin_idle()
        if self._adopted:
            # Now: the caller begins to read after this, and the end of what the client says may be next.
            self.data_received(self._adopted)
            self._adopted = b""
            self._loop.call_soon(self._apply_pause)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._discarding = True
        self._discard_input()
        for answer in self._answers:
            self._frontend.pending_bytes -= answer.body_bytes
            answer.body_bytes = 0
        self._frontend.connections.discard(self)
        if self._frontend.stopping and not self._frontend.connections:
            self._frontend.emptied.set()

    def eof_received(self) -> bool:
        """A client may close its half after asking; it still gets what it asked for."""
        self._half_closed = True
        self._read_requests()
        return bool(self._answers) or self._held

    def pause_writing(self) -> None:
        self._writable = False
        self.deadline = self._loop.time() + self._limits.request_seconds
        self._update_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self.begin_idle()
        self._update_reading()

    def data_received(self, data: bytes) -> None:
        if not self._discarding:
            self._data += data
            self._read_requests()

    def _read_requests(self) -> None:
        """Take all requests that have come, as far as so many may be under way."""
        if self._discarding:
            return
        try:
            # A request that has begun is read to its end: its time runs.
            while self._read_body(self._head) if self._head is not None else not self._is_full() and self._read_head():
                pass
        except RequestError as refusal:
            self._refuse(refusal)
        self._held = bool(self._data) and self._is_full() and not self._discarding
        if self._half_closed and not self._held and not self._discarding:
            self._discarding = True
            if self._answers:
                self._answers[-1].last = True
            else:
                self._transport.close()
        self._update_reading()

    def _is_full(self) -> bool:
        return len(self._answers) >= self._limits.max_pipelined

    # -- requests

    def _read_head(self) -> bool:
        """Take a head from what has come; whether it was there."""
        if self._discarding:
            return False
        data = self._data
        if data.startswith((b"\r", b"\n")):
            # Blank lines before a request are passed over (RFC 9112, 2.2).
            data = self._data = data.lstrip(b"\r\n")
        if not data:
            return False
        if not self._receiving:
            self._receiving = True
            self.deadline = self._loop.time() + self._limits.head_seconds
        end = data.find(HEAD_END, self._searched)
        size = end + len(HEAD_END) if end >= 0 else len(data)
        if size > self._limits.max_head_bytes:
            raise RequestError(431, f"the head is above {self._limits.max_head_bytes >> 10} KiB; send less")
        if end < 0:
            check_begun(data)
            self._searched = max(0, size - len(HEAD_END) + 1)
            return False
        self._searched = 0
        raw = bytes(data[:size])
        del data[:size]
        head = self._frontend.read_cached(raw) if size <= _LONGEST_CACHED else read_head(raw, self._limits.max_headers)
        if head.length > self._limits.max_body_bytes:
            raise self._too_large()
        self._head = head
        self._chunks = ChunkedBody(self._limits.max_head_bytes, self._limits.max_headers) if head.chunked else None
        self.deadline = self._loop.time() + self._limits.request_seconds
        if head.expects_continue:
            self._answers.append(_Answer(b"HTTP/1.1 100 Continue\r\n\r\n"))
            self._flush()
        return True

    def _read_body(self, head: RequestHead) -> bool:
        """Take the body and answer the request; whether the body is whole."""
        data, chunks = self._data, self._chunks
        if chunks is not None:
            whole = chunks.take(data)
            if chunks.size > self._limits.max_body_bytes:
                raise self._too_large()
            self._account(len(chunks.body))
            if not whole:
                return False
            body = bytes(chunks.body)
        else:
            self._account(min(len(data), head.length))
            if len(data) < head.length:
                return False
            body = bytes(memoryview(data)[: head.length])
            del data[: head.length]
        answer = _Answer(last=head.last, body_bytes=self._body_bytes)
        self._head = self._chunks = self.deadline = None
        self._receiving = False
        self._body_bytes = 0
        self._handle(head, body, answer)
        return True

    def _account(self, size: int) -> None:
        """Count what is held of a body."""
        self._frontend.pending_bytes += size - self._body_bytes
        self._body_bytes = size
        if self._frontend.pending_bytes > self._limits.max_pending_bodies * self._limits.max_body_bytes:
            raise RequestError(503, "too many large requests are under way; ask again later")

    def _discard_input(self) -> None:
        """Of a request that is not received to its end."""
        self._frontend.pending_bytes -= self._body_bytes
        self._body_bytes = 0
        self._data.clear()
        self._chunks = None

    def _too_large(self) -> RequestError:
        allowed = self._limits.max_body_bytes
        return RequestError(413, f"the body has more than {allowed} bytes (maxBodyBytes); send several requests")

    def _handle(self, head: RequestHead, body: bytes, answer: _Answer) -> None:
        self._answers.append(answer)
        if answer.last:
            self._discarding = True

        def reply(status: int, payload: bytes, headers: bytes = JSON_TYPE, /) -> None:
            self._frontend.pending_bytes -= answer.body_bytes
            answer.body_bytes = 0
            if self._frontend.stopping:
                answer.last = True
            if answer.last:
                headers += b"connection: close\r\n"
            elif head.kept_alive:
                # A client of HTTP/1.0 waits for the end of the connection otherwise.
                headers += b"connection: keep-alive\r\n"
            answer.payload = response(status, payload, headers, bodiless=head.method == "HEAD")
            self._flush()

        self._frontend.handle(Request(head.method, head.path, body, head.json_length, head.encoding), reply)

    # -- answers

    def _flush(self) -> None:
        answers = self._answers
        if self._transport.is_closing():
            return
        ready: list[bytes] = []
        last = False
        while not last and answers and (payload := answers[0].payload) is not None:
            ready.append(payload)
            last = answers.popleft().last
        if ready:
            self._transport.write(b"".join(ready))
        if last:
            self._linger()
            return
        if not answers:
            self.begin_idle()
        if self._held and not self._is_full():
            # Not at once: an answer may be given while requests are read.
            self._held = False
            self._loop.call_soon(self._read_requests)
        self._update_reading()

    def begin_idle(self) -> None:
        """When no answer is due the client's idle time begins, unless it is in the middle of a request."""
        if self._answers or self._receiving or self._discarding:
            return
        frontend = self._frontend
        self.deadline = self._loop.time() + (frontend.drain_idle if frontend.stopping else self._limits.idle_seconds)

    def _update_reading(self) -> None:
        wanted = self._discarding or (self._writable and not self._is_full())
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _apply_pause(self) -> None:
        """A pause within `connection_made` is forgotten by uvloop."""
        if not self._reading and not self._transport.is_closing():
            self._transport.pause_reading()

    def _refuse(self, refusal: RequestError) -> None:
        """Answer, and read nothing more of this client: where its next request begins is not known."""
        self._discarding = True
        self._receiving = False
        self.deadline = None
        self._discard_input()
        self._frontend.refused(refusal.status)
        headers = JSON_TYPE + b"connection: close\r\n"
        if refusal.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            headers += b"accept-encoding: " + ", ".join(ENCODINGS).encode() + b"\r\n"
        payload = response(refusal.status, orjson.dumps({"error": refusal.sentence}), headers)
        self._answers.append(_Answer(payload, last=True))
        self._flush()

    def _linger(self) -> None:
        """Close our half and drop what still comes: closing at once would reset an answer still on its way."""
        self._discarding = True
        # No answer follows the last one, also when requests were pipelined before a drain began.
        self._answers.clear()
        self.deadline = self._loop.time() + self._limits.linger_seconds
        self._update_reading()
        self._transport.write_eof()

    def on_deadline(self) -> None:
        """The deadline is over."""
        if self._receiving and not self._discarding:
            self._refuse(RequestError(408, "the request took too long to arrive; the connection is closed"))
        elif self._writable and not self._discarding:
            self._linger()
        else:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()


_STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


def response(status: int, body: bytes, headers: bytes = JSON_TYPE, *, bodiless: bool = False) -> bytes:
    """A whole answer; `bodiless` gives the length alone."""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
        _STATUS_LINES[status], headers, date_line(int(time.time())), len(body), b"" if bodiless else body
    )  # fmt: skip


@lru_cache(1)
def date_line(now: int) -> bytes:
    """The Date header of RFC 9110, 6.6.1."""
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()
