"""The HTTP door: HTTP/1.1 on an asyncio protocol, with httptools. Knows nothing of predictions.

A head that httptools has read once is known by its bytes from then on: programs send the same one again and again.

Pipelined requests are answered in their order. No client can hold more than the limits say: heads, bodies and time are
bounded, answers that nobody reads stop the reading of further requests, and what cannot be parsed gets a 400.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import httptools
import orjson

from elastic_ctr.serving.asyncio_door import AsyncioDoor, Peer
from elastic_ctr.serving.http_heads import HEAD_END, LONGEST_HEAD, UNUSUAL
from elastic_ctr.serving.refusal import Refusal

Reply = Callable[[int, bytes], None]
"""Answer a request: status and JSON body. To be called once, whenever it is known."""


class Limits(NamedTuple):
    """What one client may ask of the door. Seconds: of a head, of a whole request, between two requests, and for one more
    request when the door stops: a client that sends it while the connection is closed under it would get no answer.
    """

    max_body_bytes: int = 64 << 20
    max_head_bytes: int = 64 << 10
    max_headers: int = 100
    max_pipelined: int = 64
    head_seconds: float = 10.0
    request_seconds: float = 60.0
    idle_seconds: float = 75.0
    linger_seconds: float = 5.0
    farewell_seconds: float = 5.0
    # Bodies received and not yet answered, of all connections together, in multiples of the largest allowed.
    max_pending_bodies: int = 4


class Request(NamedTuple):
    """One whole request; `path` is decoded as ASCII and without its query."""

    method: str
    path: str
    body: bytes


class _Head(NamedTuple):
    """What httptools has said of a head."""

    method: str
    path: str
    length: int
    last: bool


# Of known heads: together they take less than one body.
_MOST_HEADS = 4096


@dataclass(slots=True)
class _Answer:
    """A place in a connection's order of answers; `payload` is filled when the answer is known."""

    payload: bytes | None = None
    last: bool = False
    held: int = 0


@dataclass
class Door(AsyncioDoor):
    """The server's side of all connections.

    `handle(request, reply)` must not raise and must call `reply` once. `refused(status)` is told of what the door
    answers by itself.
    """

    handle: Callable[[Request, Reply], None]
    limits: Limits = field(default_factory=Limits)
    refused: Callable[[int], None] = lambda _status: None

    def __post_init__(self) -> None:
        super().__init__(self.limits.head_seconds)
        self.heads: dict[bytes, _Head] = {}
        self.pending_bytes = 0
        self.farewell = 0.0

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more, answer what has been asked and what idle clients ask within their farewell, close.

        Every answer says that the connection closes after it. What is not done after the grace is cut.
        """
        self.say_good_bye(grace_seconds)
        await super().stop(grace_seconds)

    def say_good_bye(self, grace_seconds: float) -> None:
        """From now on every answer is the last of its connection; `stop` must follow."""
        if not self.stopping:
            self.farewell = min(self.limits.farewell_seconds, grace_seconds / 2)
            self.begin_to_stop()

    async def adopt(self, peer: socket.socket, came: bytes) -> None:
        """Take a connection that somebody else has accepted, and what was read of it. Raises OSError."""
        self._look_from_now_on()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self, came), peer)

    def _new_peer(self) -> Connection:
        return Connection(self)


class Connection(Peer):
    """One client; `came` is what it has said to somebody else already."""

    deadline: float | None = None

    def __init__(self, door: Door, came: bytes = b"") -> None:
        super().__init__(door)
        self._came = came
        self._door = door
        self._limits = door.limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._answers: deque[_Answer] = deque()
        self._discarding = False
        self._receiving = False
        # Bytes of the head that the parser reads now, while they may become a known one.
        self._raw: bytes | None = None
        # Of the request that is being received.
        self._url = b""
        self._body: list[bytes] = []
        self._headers = 0
        self._head_bytes = 0
        self._head_done = False
        self._length = 0
        self._held = 0
        self._expect = b""
        self._encoding = b""

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._rest()
        if self._came:
            # Now: whoever called begins to read when this is over, and the end of what the client says may be next.
            self.data_received(self._came)
            self._came = b""
            self._loop.call_soon(self._read_as_wanted)

    def connection_lost(self, exc: Exception | None) -> None:
        self._discarding = True
        self._let_go(self._held)
        for answer in self._answers:
            self._let_go(answer.held)
            answer.held = 0
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """A client may close its half after asking; it still gets what it asked for."""
        if not self._answers:
            return False
        self._answers[-1].last = True
        self._discarding = True
        return True

    def pause_writing(self) -> None:
        self._writable = False
        self.deadline = self._loop.time() + self._limits.request_seconds
        self._read_or_not()

    def resume_writing(self) -> None:
        self._writable = True
        self._rest()
        self._read_or_not()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if not self._receiving:
            data = self._take_known(data)
            if not data:
                self._read_or_not()
                return
        try:
            self._feed(data)
        except httptools.HttpParserError as wrong:
            if not self._discarding:
                self._refuse(Refusal(400, f"this is not an HTTP/1.1 request: {wrong}"))
            return
        if self._receiving and not self._head_done:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes:
                self._refuse_head()
        self._read_or_not()

    def _take_known(self, data: bytes) -> bytes:
        """Take whole requests whose heads are known; what is left is for the parser, which stands between requests."""
        door = self._door
        while data and not self._discarding:
            end = data.find(HEAD_END) + len(HEAD_END)
            # A blank line or a line end of its own kind is for the parser to judge.
            if not len(HEAD_END) <= end <= LONGEST_HEAD or not data[0:1].isalpha():
                self._raw = None
                return data
            raw = data[:end]
            head = door.heads.get(raw)
            if head is None:
                self._raw = raw if raw.count(b"\n") == raw.count(b"\r\n") else None
                return data
            whole = end + head.length
            held = door.pending_bytes + head.length
            if len(data) < whole or held > self._limits.max_pending_bodies * self._limits.max_body_bytes:
                self._raw = None
                return data
            door.pending_bytes = held
            self.deadline = None
            body = data[end:whole]
            data = data[whole:]
            self._handle(head.method, head.path, body, _Answer(last=head.last, held=head.length))
        return b"" if self._discarding else data

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # An offer to speak another protocol may be passed over: go on with what follows the request.
                self._parser = httptools.HttpRequestParser(self)
                data = data[upgrade.args[0] :]
                if data and not self._discarding:
                    continue
            return

    # -- httptools

    def on_message_begin(self) -> None:
        if self._discarding:
            return
        self._begin()
        self._receiving = True
        self.deadline = self._loop.time() + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._head_bytes += len(name) + len(value or b"")
        name = name.lower()
        if name in UNUSUAL:
            self._raw = None
        if name == b"content-length":
            # The parser has refused what is no number.
            self._length = int(value)
        elif name == b"expect":
            self._expect = value.lower()
        elif name == b"content-encoding":
            self._encoding = value.lower()

    def on_headers_complete(self) -> None:
        if self._discarding:
            return
        self._head_done = True
        self.deadline = self._loop.time() + self._limits.request_seconds
        if self._headers > self._limits.max_headers or self._head_bytes > self._limits.max_head_bytes:
            self._refuse_head()
        elif self._length > self._limits.max_body_bytes:
            self._refuse_body()
        elif self._encoding not in (b"", b"identity"):
            named = self._encoding[:40].decode("latin-1")
            self._refuse(Refusal(415, f"content-encoding {named!r} is not understood; send the body plain"))
        elif self._expect == b"100-continue":
            self._answers.append(_Answer(b"HTTP/1.1 100 Continue\r\n\r\n"))
            self._flush()
        elif self._expect:
            self._refuse(Refusal(417, "only the expectation 100-continue is understood"))
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        if self._discarding:
            return
        self._held += len(body)
        self._door.pending_bytes += len(body)
        if self._held > self._limits.max_body_bytes:
            self._refuse_body()
        elif self._door.pending_bytes > self._limits.max_pending_bodies * self._limits.max_body_bytes:
            self._refuse(Refusal(503, "too many large requests are under way; ask again later"))
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._discarding:
            return
        self._receiving = False
        self.deadline = None
        last = not self._parser.should_keep_alive()
        answer = _Answer(last=last, held=self._held)
        self._held = 0
        method = self._parser.get_method().decode("ascii")
        body = b"".join(self._body)
        self._body = []
        try:
            path = httptools.parse_url(self._url).path.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            path = None
        raw, self._raw = self._raw, None
        if raw is not None and path is not None:
            heads = self._door.heads
            if len(heads) >= _MOST_HEADS:
                heads.clear()
            heads[raw] = _Head(method, path, len(body), last)
        self._handle(method, path, body, answer)

    def _handle(self, method: str, path: str | None, body: bytes, answer: _Answer) -> None:
        self._answers.append(answer)
        if answer.last:
            self._discarding = True

        def reply(status: int, payload: bytes) -> None:
            self._let_go(answer.held)
            answer.held = 0
            if self._door.stopping:
                answer.last = True
            answer.payload = response(status, payload, last=answer.last, bodiless=method == "HEAD")
            self._flush()

        if path is None:
            self._door.refused(400)
            reply(400, _error(Refusal(400, "the request's target is not a path")))
            return
        self._door.handle(Request(method, path, body), reply)

    # -- ours

    def _begin(self) -> None:
        self._url = b""
        self._body = []
        self._headers = 0
        self._head_bytes = 0
        self._head_done = False
        self._length = 0
        self._held = 0
        self._expect = b""
        self._encoding = b""

    def _flush(self) -> None:
        answers = self._answers
        if self._transport.is_closing():
            return
        ready = []
        while answers and answers[0].payload is not None:
            answer = answers.popleft()
            ready.append(cast("bytes", answer.payload))
            if answer.last:
                self._transport.write(b"".join(ready))
                self._linger()
                return
        if ready:
            self._transport.write(b"".join(ready))
        if not answers:
            self._rest()
        self._read_or_not()

    def _rest(self) -> None:
        """Nothing is owed: the client's idle time begins, unless it is in the middle of asking."""
        if self._answers or self._receiving or self._discarding:
            return
        door = self._door
        self.deadline = self._loop.time() + (door.farewell if door.stopping else self._limits.idle_seconds)

    def _read_or_not(self) -> None:
        wanted = self._discarding or (self._writable and len(self._answers) < self._limits.max_pipelined)
        if wanted != self._reading:
            self._read(wanted)

    def _read_as_wanted(self) -> None:
        """What was said about it within `connection_made` is forgotten by uvloop."""
        if not self._reading and not self._transport.is_closing():
            self._transport.pause_reading()

    def _refuse_head(self) -> None:
        kib = self._limits.max_head_bytes >> 10
        self._refuse(Refusal(431, f"the head is above {kib} KiB or {self._limits.max_headers} headers; send less"))

    def _refuse_body(self) -> None:
        allowed = self._limits.max_body_bytes
        self._refuse(Refusal(413, f"the body has more than {allowed} bytes (maxBodyBytes); send several requests"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, and hear no more from this client: where its next request begins is not known."""
        self._discarding = True
        self._receiving = False
        self.deadline = None
        self._let_go(self._held)
        self._held = 0
        self._body = []
        self._door.refused(refusal.status)
        self._answers.append(_Answer(response(refusal.status, _error(refusal), last=True), last=True))
        self._flush()

    def _let_go(self, held: int) -> None:
        self._door.pending_bytes -= held

    def _linger(self) -> None:
        """Close our half and drop what still comes: closing at once would reset an answer still on its way."""
        self._discarding = True
        self.deadline = self._loop.time() + self._limits.linger_seconds
        self._read_or_not()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def take_leave(self) -> None:
        """The door stops: an idle client has its farewell from now on."""
        self._rest()

    def time_is_up(self) -> None:
        if self._receiving and not self._discarding:
            self._refuse(Refusal(408, "the request took too long to arrive; the connection is closed"))
        elif self._writable and not self._discarding:
            self._linger()
        else:
            self.abort()


def _error(refusal: Refusal) -> bytes:
    return orjson.dumps({"error": refusal.sentence})


_HEADS = {
    int(
        status
    ): f"HTTP/1.1 {int(status)} {status.phrase}\r\ncontent-type: application/json\r\ncontent-length: ".encode()
    for status in HTTPStatus
}


def response(status: int, body: bytes, *, last: bool, bodiless: bool = False) -> bytes:
    """A whole answer, the `last` of its connection or not; `bodiless` says the length alone."""
    close = b"\r\nconnection: close\r\n\r\n" if last else b"\r\n\r\n"
    return b"%b%d%b%b" % (_HEADS[status], len(body), close, b"" if bodiless else body)
