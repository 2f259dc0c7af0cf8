"""The HTTP frontend on asyncio: it serves every HTTP/1.1 request that the native frontend does not, of any kind.

This module finds where a request begins and ends; `http_syntax` reads its head and a chunked body. For any bytes, one
request gets one answer. An offer to switch protocols is ignored, and the body of such a request is read as any other.

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
# Programs send the same heads repeatedly. All cached heads together take less memory than one body.
_MOST_CACHED = 4096
_LONGEST_CACHED = 2048


class Reply(Protocol):
    """Answers a request. It must be called once, at any time; `headers` are whole lines."""

    def __call__(self, status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None: ...


class Limits(NamedTuple):
    """Limits of one client. The seconds bound a head, a whole request, the time between two requests, and the time for
    one more request when the frontend stops, which would get no answer if the connection closed at once.
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
    # Bytes of unanswered bodies of all connections together, in multiples of the largest allowed body.
    max_pending_bodies: int = 4


class Request(NamedTuple):
    """One whole request; `path` is as it was sent, without its query. `encoding` is gzip, deflate or empty."""

    method: str
    path: str
    body: bytes
    json_length: int | None = None
    encoding: str = ""


@dataclass(slots=True)
class _Answer:
    """An entry in a connection's queue of answers; `payload` is set once the answer is known."""

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
        """Take over a connection that another frontend has accepted, with the bytes already read from it. Raises OSError."""
        if self._looking is None:
            self.check_deadlines()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self, came), peer)

    def begin_drain(self, grace_seconds: float) -> None:
        """Make every further answer the last of its connection; `stop` must follow."""
        if not self.stopping:
            self.drain_idle = min(self.limits.drain_idle_seconds, grace_seconds / 2)
            self.stopping = True
            for connection in list(self.connections):
                connection.begin_idle()

    async def stop(self, grace_seconds: float) -> None:
        """Answer the requests under way, and those that idle clients send during the drain; then close.

        Every answer has `connection: close`. After the grace the remaining connections are aborted.
        """
        self.begin_drain(grace_seconds)
        if self.connections:
            # The event may be set from before, because other connections were adopted since.
            self.emptied.clear()
            await wait_event(self.emptied, grace_seconds)
        for connection in list(self.connections):
            connection.abort()
        if self._looking is not None:
            self._looking.cancel()

    def check_deadlines(self) -> None:
        """Enforce deadlines. They are checked twice within the shortest of them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            if connection.deadline is not None and connection.deadline < now:
                connection.on_deadline()
        self._looking = loop.call_later(min(_LONGEST_CHECK, self.limits.head_seconds / 2), self.check_deadlines)


class Connection(asyncio.Protocol):
    """One client; `came` are the bytes that another frontend has read from it."""

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
        # `_held`: more requests have arrived than may be under way. `_half_closed`: the client sends no more.
        self._held = self._half_closed = False
        # Input that is not parsed yet. Its first `_searched` bytes contain no end of a head.
        self._data = bytearray()
        self._searched = 0
        # The state of the request that is being received.
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
            # Parse these bytes now: the caller begins to read after this, and the next event may be the end of the input.
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
        """Keep the connection open while answers are due: a client may close its half after its last request."""
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
        """Take all requests that have arrived, up to the limit of requests under way."""
        if self._discarding:
            return
        try:
            # A request that has begun is read to its end even at the limit, because its deadline runs.
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
        """Take a head from the input. Return True if it was whole."""
        if self._discarding:
            return False
        data = self._data
        if data.startswith((b"\r", b"\n")):
            # Blank lines before a request are skipped (RFC 9112, 2.2).
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
        """Take the body and handle the request. Return True if the body was whole."""
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
        """Count the bytes that the buffered part of a body takes. Raises RequestError (503) above the limit of all bodies."""
        self._frontend.pending_bytes += size - self._body_bytes
        self._body_bytes = size
        if self._frontend.pending_bytes > self._limits.max_pending_bodies * self._limits.max_body_bytes:
            raise RequestError(503, "too many large requests are under way; ask again later")

    def _discard_input(self) -> None:
        """Drop the input of a request that is not received to its end."""
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
                # Without this header a client of HTTP/1.0 waits for the end of the connection.
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
            # Not called directly, because an answer may be given while `_read_requests` runs.
            self._held = False
            self._loop.call_soon(self._read_requests)
        self._update_reading()

    def begin_idle(self) -> None:
        """Start the client's idle time, unless an answer is due or a request is being received."""
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
        """Repeat a pause, because uvloop ignores one within `connection_made`."""
        if not self._reading and not self._transport.is_closing():
            self._transport.pause_reading()

    def _refuse(self, refusal: RequestError) -> None:
        """Answer with a refusal, and read no further request: the beginning of the next one is unknown."""
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
        """Close our half and drop further input: closing at once would reset the connection before the answer arrives."""
        self._discarding = True
        # No answer follows the last one, even if more requests were pipelined before a drain began.
        self._answers.clear()
        self.deadline = self._loop.time() + self._limits.linger_seconds
        self._update_reading()
        self._transport.write_eof()

    def on_deadline(self) -> None:
        """Refuse an unfinished request, linger if idle, else abort."""
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
    """Return a whole answer; with `bodiless` it has the body's length but no body."""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
        _STATUS_LINES[status], headers, date_line(int(time.time())), len(body), b"" if bodiless else body
    )  # fmt: skip


@lru_cache(1)
def date_line(now: int) -> bytes:
    """Return the Date header of RFC 9110, 6.6.1."""
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()
