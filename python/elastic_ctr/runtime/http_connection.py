"""One HTTP/1.1 connection of any role: uvicorn's h11 protocol with the reader of `http_reader`, bounds and deadlines. A refused request
gets one JSON sentence, and its connection closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import struct
import termios
import time
from collections.abc import Callable
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import h11
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from elastic_ctr.runtime.http_reader import ConnectionLimits, StrictConnection

JSON_TYPE = b"content-type: application/json\r\n"

# Seconds in which a client takes no byte of the last answer before its connection is aborted.
_STALL_SECONDS = 15.0

# A refusal is no fault of the role. uvicorn's warning for each one would let any client fill the log.
_log = logging.getLogger("uvicorn.error.connection")
_log.setLevel(logging.ERROR)


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
        # Not at once: asyncio resumes in the middle of a write, and would end a closed transport twice.
        self.loop.call_soon(self._close_if_half_closed)

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
        if self._phase in (_Phase.REQUEST, _Phase.END) and not self.transport.get_write_buffer_size():
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
        self._unsent = self._unsent_bytes()
        seconds = self._seconds_of(phase)
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _unsent_bytes(self) -> int:
        """Return the bytes that the client has not taken, with those in the kernel, which has room for some seconds of a slow one."""
        unsent, peer = self.transport.get_write_buffer_size(), self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            if peer is not None:
                unsent += struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return unsent

    def _seconds_of(self, phase: _Phase) -> float | None:
        if phase is _Phase.ANSWER:
            return None
        if phase is _Phase.REQUEST:
            return self._idle_seconds
        if phase is _Phase.HEAD:
            return self.limits.head_seconds
        if phase is _Phase.END:
            return _STALL_SECONDS if self._unsent else self.limits.linger_seconds
        if phase is _Phase.CLIENT:
            return self.limits.request_seconds or _STALL_SECONDS
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
        elif self._unsent_bytes() < self._unsent:
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
