"""One HTTP/1.1 connection of any role: uvicorn's h11 protocol with one reading of every input, bounds and deadlines.

h11 finds where a request begins and ends. It is more lenient than RFC 9110 and 9112 in some places, where a proxy in front of it may see
another end of a request (smuggling); `StrictConnection` refuses those. A refused request gets one JSON sentence, and its connection closes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import h11
import orjson
from h11._receivebuffer import ReceiveBuffer
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

JSON_TYPE = b"content-type: application/json\r\n"

_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~]+ ([!-~]+)")
# A line begun by a client that speaks another protocol.
_NO_LINE = re.compile(rb"[^!-~]|[!-~]+ [^!-~]")
_METHOD_BYTES = 256
# The line feed of a carriage return at the end may still arrive.
_BARE = re.compile(rb"\r[^\n]|(?<!\r)\n")
_BARE_OR_FOLDED = re.compile(rb"\r[^\n]|(?<!\r)\n|\n[\t ]")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+;=]+)(?::[0-9]{0,5})?")
_HUGE_CHUNK = re.compile(rb"[0-9A-Fa-f]{9}")
# A line before a chunk has its size in so many bytes. The rest of all lines may be as long as a head, and a share of the body.
_SIZE_LINE_BYTES = 16
_EXTENSION_SHARE = 32
# Each chunk costs as much CPU as many bytes do: beyond so many chunks their mean size has a minimum.
_SMALL_CHUNKS = 4096
_LEAST_MEAN_CHUNK = 16
_LONGEST_SENTENCE = 200
# Seconds in which a client takes no byte of the last answer before its connection is aborted.
_STALL_SECONDS = 15.0

# A refusal is no fault of the role. uvicorn's warning for each one would let any client fill the log.
_log = logging.getLogger("uvicorn.error.connection")
_log.setLevel(logging.ERROR)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection. The seconds bound a head, a whole request (None: unbounded), the time between two requests, and how long
    input is dropped after the last answer, which might not arrive if the connection closed at once.
    """

    max_head_bytes: int = 64 << 10
    max_headers: int = 100
    head_seconds: float = 75.0
    request_seconds: float | None = None
    idle_seconds: float = 75.0
    linger_seconds: float = 1.0


class StrictConnection(h11.Connection):
    """A server's connection in h11 that refuses input with more than one reading; `refusal` has the status and the sentence."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, limits.max_head_bytes)
        self.refusal = (400, "")
        self.body_bytes = 0
        # True if the next answer is the connection's last.
        self.ends = False
        # True if the client speaks HTTP/1.0 and requests that the connection stays open.
        self._kept_alive = False
        self._limits = limits
        self._receive_buffer = _Input(self, limits.max_head_bytes)

    @property
    def input_bytes(self) -> int:
        """Bytes that have arrived and are not read yet."""
        return len(self._receive_buffer)

    def drop_input(self) -> None:
        """Free the bytes that nothing reads any more."""
        self._receive_buffer._extract(self.input_bytes)  # noqa: SLF001 (h11 has no public word for it)

    @property
    def reads_trailers(self) -> bool:
        # h11 has no public word for it.
        return bool(getattr(self._reader, "_reading_trailer", False))

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self.body_bytes = 0
                _check_head(event, self._limits.max_headers)
                self._kept_alive = _keeps_alive(event)
                if self._kept_alive:
                    # h11 closes every connection of HTTP/1.0.
                    self._cstate.keep_alive = True
        except h11.RemoteProtocolError as wrong:
            # The error itself would keep this frame, and with it all input, until the garbage collector runs.
            # Some sentences of h11 end with the input.
            self.refusal = (wrong.error_status_hint, str(wrong).partition(": bytearray(")[0][:_LONGEST_SENTENCE])
            raise
        if isinstance(event, h11.Data):
            self.body_bytes += len(event.data)
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if (
            isinstance(event, h11.Response)
            and (self.ends or self._kept_alive)
            and b"connection" not in dict(event.headers)
        ):
            # Without this header a client of HTTP/1.0 waits for the end of the connection.
            headers = [*event.headers, (b"connection", b"close" if self.ends else b"keep-alive")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        return super().send_with_data_passthrough(event)


class _Input(ReceiveBuffer):
    """A connection's input, whose lines are checked before h11 reads them."""

    def __init__(self, connection: StrictConnection, max_bytes: int) -> None:
        super().__init__()
        self._connection = connection
        self._max_bytes = max_bytes
        self._chunks = self._excess = 0
        # Bytes of a head or of trailers whose lines are checked: they may arrive a byte at a time.
        self._checked = 0
        # True once the first line of the head is checked.
        self._begun = False

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line before a chunk, or None."""
        line = super().maybe_extract_next_line()
        if line is None:
            return None
        if _BARE.search(line):
            raise h11.LocalProtocolError("a chunk of the body begins with a line that has a CR or LF by itself")
        if _HUGE_CHUNK.match(line):
            raise h11.LocalProtocolError("a chunk of the body is larger than a body may be", 413)
        body = self._connection.body_bytes
        self._excess += max(len(line) - _SIZE_LINE_BYTES, 0)
        if self._excess > self._max_bytes + body // _EXTENSION_SHARE:
            raise h11.LocalProtocolError("chunk extensions of the body are too long; send less", 431)
        self._chunks += 1
        if self._chunks > _SMALL_CHUNKS + body // _LEAST_MEAN_CHUNK:
            raise h11.LocalProtocolError("the body has too many chunks for its size; send larger ones", 413)
        return line

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head or of trailers, or None if they are incomplete."""
        if self._connection.reads_trailers:
            if not self._data.startswith(b"\r\n") and self._has_bare_end(_BARE):
                raise h11.LocalProtocolError("a trailer of the body has a CR or LF by itself")
            return super().maybe_extract_lines()
        self._chunks = self._excess = 0
        while self._data.startswith(b"\r\n"):
            # Blank lines before a request are skipped (RFC 9112, 2.2).
            self._extract(2)
        if not self._data or self._data == b"\r":
            return None
        self._check_begun()
        return super().maybe_extract_lines()

    def _has_bare_end(self, pattern: re.Pattern[bytes]) -> bool:
        """True if `pattern` stands among the lines that are not checked yet. Raises LocalProtocolError for too many bytes."""
        start = max(self._checked - 3, 0)
        end = self._data.find(b"\r\n\r\n", start)
        if max(end, 0) > self._max_bytes:
            raise h11.LocalProtocolError("the head is too long", 431)
        self._checked = len(self._data) if end < 0 else 0
        return pattern.search(self._data, start, self._checked or end + 2) is not None

    def _check_begun(self) -> None:
        """Refuse a head as soon as it cannot become one."""
        data, begun = self._data, self._begun
        if self._has_bare_end(_BARE_OR_FOLDED):
            raise h11.LocalProtocolError("a line of the head does not end with CR LF, or is folded over two")
        first = -1 if begun else data.find(b"\r\n")
        self._begun = self._checked > 0 and (begun or first >= 0)
        if begun:
            return
        found = _REQUEST_LINE.fullmatch(data, 0, first) if first >= 0 else None
        if (first >= 0 and found is None) or (first < 0 and _NO_LINE.match(data, 0, _METHOD_BYTES)):
            raise h11.LocalProtocolError(
                "this is not an HTTP/1.1 request: the first line must have a method, a target and a version"
            )
        if found is not None and found[1] not in (b"HTTP/1.1", b"HTTP/1.0"):
            status = 505 if found[1].startswith(b"HTTP/") else 400
            raise h11.LocalProtocolError(f"{found[1][:40].decode()!r} is not spoken here; HTTP/1.1 is", status)


def _check_head(head: h11.Request, max_headers: int) -> None:
    """Raise RemoteProtocolError if the head is not to be answered."""
    headers = list(head.headers)
    if len(headers) > max_headers:
        raise h11.RemoteProtocolError(f"the head has more than {max_headers} headers; send less", 431)
    values = dict(headers)
    host = values.get(b"host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise h11.RemoteProtocolError(f"the Host header {host[:40].decode('latin-1')!r} is not host or host:port")
    if b"transfer-encoding" in values and (b"content-length" in values or head.http_version == b"1.0"):
        raise h11.RemoteProtocolError("Transfer-Encoding stands in an HTTP/1.0 request or beside Content-Length")
    # RFC 9110 10.1.1: the expectation of an HTTP/1.0 client is ignored.
    if head.http_version == b"1.1" and values.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise h11.RemoteProtocolError("only the expectation 100-continue is understood", 417)


def _keeps_alive(head: h11.Request) -> bool:
    """Return True for a client of HTTP/1.0 that requests it."""
    if head.http_version != b"1.0":
        return False
    values = b",".join(value for name, value in head.headers if name == b"connection")
    tokens = {token.strip().lower() for token in values.split(b",")}
    return b"keep-alive" in tokens and b"close" not in tokens


def read_head(head: bytes, limits: ConnectionLimits) -> h11.Request | None:
    """Return the request whose head this is, or None if it is none to answer."""
    connection = StrictConnection(limits)
    connection.receive_data(head)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


class _Phase(Enum):
    """The event that a connection waits for."""

    REQUEST, HEAD, BODY, ANSWER, CLIENT, END = range(6)


class HttpConnection(H11Protocol):
    """One client. `received` are bytes that another frontend has read from it; `refused(status)` is called for each refusal."""

    limits = ConnectionLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits | None = None,
        received: bytes = b"",
        refused: Callable[[int], None] = lambda _status: None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits or self.limits
        self.conn: StrictConnection = StrictConnection(self.limits)
        self.logger = _log
        self._received = received
        self._refused = refused
        self._idle_seconds = self.limits.idle_seconds
        self._phase: _Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._half_closed = False
        # Bytes that waited to be sent when the deadline began.
        self._unsent = 0

    # -- asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = _LingeringTransport(transport, self)
        super().connection_made(cast("asyncio.Transport", lingering))
        self.flow = _BoundedFlow(self.transport, self.conn, self.limits.max_head_bytes)
        self.watch()
        if self._received:
            # Read these bytes now: the caller begins to read after this, and the next event may be the end of the input.
            self.data_received(self._received)
            self._received = b""
            # uvloop ignores a pause within `connection_made`.
            self.loop.call_soon(self._repeat_pause)

    def _repeat_pause(self) -> None:
        if self.flow.read_paused:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Read input, but drop what follows the last request of a connection. h11 would take empty data for the end of the input."""
        if data and not self.transport.is_closing() and self.conn.their_state is not h11.MUST_CLOSE:
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open while answers are due: a client may close its half after its last request."""
        self._half_closed = True
        return self._phase in (_Phase.ANSWER, _Phase.CLIENT)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.watch()
        self._close_if_half_closed()

    # -- uvicorn

    def handle_events(self) -> None:
        super().handle_events()
        self.watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._close_if_half_closed()

    def _close_if_half_closed(self) -> None:
        if self._half_closed and self._phase not in (_Phase.ANSWER, _Phase.CLIENT):
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (the signature of uvicorn)
        """Answer with the refusal of `conn`."""
        status, sentence = self.conn.refusal
        if sentence == "Receive buffer too long":
            sentence = f"the head is above {self.limits.max_head_bytes >> 10} KiB; send less"
        self._refuse(status, sentence)

    def shutdown(self) -> None:
        """Close a connection without a request at once: its client would not notice the end while input is dropped."""
        if self._phase is _Phase.REQUEST or (self._phase is _Phase.END and not self.transport.get_write_buffer_size()):
            self.transport.abort()
        else:
            self.conn.ends = True
            super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore an Upgrade header without a warning (RFC 9110, 7.8); Java's HttpClient sends one with each request."""

    # -- refusals and deadlines

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer with a refusal, and read no further request: the beginning of the next one is unknown."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            # The request was answered before its end: a second answer would be taken for that of the next one.
            self.transport.close()
            return
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                self.transport.abort()
                return
            # End the application's part of the request.
            cycle.disconnected = True
            cycle.message_event.set()
        self._refused(status)
        body = orjson.dumps({"error": sentence})
        self.transport.write(response(status, body, JSON_TYPE + b"connection: close\r\n"))
        self.transport.close()

    def begin_drain(self, idle_seconds: float) -> None:
        """Close the connection if no request arrives within so many seconds."""
        self._idle_seconds = idle_seconds
        self._phase = None
        self.watch()

    def watch(self) -> None:
        """Start the deadline of the connection's phase when it begins."""
        phase = self._current_phase()
        if phase is self._phase:
            return
        self._phase = phase
        self._start_deadline(phase)

    def _start_deadline(self, phase: _Phase) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        seconds = self._seconds_of(phase)
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _seconds_of(self, phase: _Phase) -> float | None:
        if phase is _Phase.ANSWER:
            return None
        if phase is _Phase.REQUEST:
            return self._idle_seconds
        if phase is _Phase.HEAD:
            return self.limits.head_seconds
        if phase is _Phase.END:
            return _STALL_SECONDS if self._unsent else self.limits.linger_seconds
        return self.limits.request_seconds

    def _current_phase(self) -> _Phase:
        if self.transport.is_closing():
            return _Phase.END
        if self.flow.write_paused:
            return _Phase.CLIENT
        if self.conn.their_state is h11.IDLE:
            return _Phase.HEAD if self.conn.input_bytes else _Phase.REQUEST
        return _Phase.BODY if self.conn.their_state is h11.SEND_BODY else _Phase.ANSWER

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._phase in (_Phase.HEAD, _Phase.BODY):
            self._refuse(408, "the request took too long to arrive; the connection is closed")
        elif self._phase is _Phase.REQUEST:
            self.transport.close()
        elif self.transport.get_write_buffer_size() < self._unsent:
            # The client reads, however slowly.
            self._start_deadline(self._phase or _Phase.END)
        else:
            self.transport.abort()

    def drop_input(self) -> None:
        """Free what is read of a refused request, and what follows the last one."""
        self.conn.drop_input()
        if self.cycle is not None:
            self.cycle.body = bytearray()

    @property
    def half_closed(self) -> bool:
        return self._half_closed


class _BoundedFlow(FlowControl):
    """Reads no further while pipelined requests wait: uvicorn alone would read on with each answer, without a bound."""

    def __init__(self, transport: asyncio.Transport, conn: StrictConnection, most: int) -> None:
        super().__init__(transport)
        self._conn = conn
        self._most = most

    def resume_reading(self) -> None:
        if self._conn.input_bytes <= self._most:
            super().resume_reading()


class _LingeringTransport:
    """A transport whose `close` ends our half and drops further input: closing at once would reset the connection before the answer arrives."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection = connection
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._transport.pause_reading()

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        self._connection.drop_input()
        if self._connection.half_closed:
            self._transport.close()
        else:
            try:
                self._transport.write_eof()
                self._transport.resume_reading()
            except OSError:
                # The client is gone.
                self._transport.abort()
        self._connection.watch()


_STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


def response(status: int, body: bytes, headers: bytes = JSON_TYPE) -> bytes:
    """Return a whole answer; `headers` are whole lines."""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
        _STATUS_LINES[status], headers, date_line(int(time.time())), len(body), body
    )  # fmt: skip


@lru_cache(1)
def date_line(now: int) -> bytes:
    """Return the Date header of RFC 9110, 6.6.1."""
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()
