"""The fallback HTTP frontend: it serves every HTTP/1.1 request that the native frontend does not, of any kind.

`runtime.http_connection` reads requests and enforces the deadlines, as on the ports of all roles. Pipelined requests of one connection are
answered one after the other. A client that does not read its answers is not read either.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson
from uvicorn.config import Config
from uvicorn.server import ServerState

from elastic_ctr.runtime.http_connection import JSON_TYPE, HttpConnection, date_line
from elastic_ctr.runtime.http_reader import ConnectionLimits
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ENCODINGS = ("gzip", "deflate")
_ABSOLUTE = re.compile(rb"(?i:https?)://[^/?#]+")
# How often `stop` looks for connections that are still open.
_LOOK_SECONDS = 0.01
_CLOSE = b"connection: close\r\n"


class Reply(Protocol):
    """Answers a request. It must be called once, at any time; `headers` are whole lines."""

    def __call__(self, status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None: ...


@dataclass(frozen=True)
class Limits(ConnectionLimits):
    """Limits of one client. `drain_idle_seconds` is the time for one more request when the frontend stops, which would get no answer if the
    connection closed at once. `max_pipelined` is for the native frontend: requests of a connection that are under way.
    """

    head_seconds: float = 10.0
    request_seconds: float = 60.0
    linger_seconds: float = 5.0
    drain_idle_seconds: float = 5.0
    max_pipelined: int = 64
    max_body_bytes: int = 8 << 20
    # Bytes of unanswered bodies of all connections together, in multiples of the largest allowed body.
    max_pending_bodies: int = 4


class RequestHead(NamedTuple):
    """The parts of a head that predictions need. `path` is not decoded and has no query; `encoding` is gzip, deflate or empty."""

    method: str
    path: str
    length: int
    json_length: int | None
    encoding: str


class Request(NamedTuple):
    """One whole request; `path` is as it was sent, without its query. `encoding` is gzip, deflate or empty."""

    method: str
    path: str
    body: bytes
    json_length: int | None = None
    encoding: str = ""


def request_head(method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> RequestHead:
    """Read what is particular to predictions in a head that `runtime.http_reader` has read. Raises RequestError."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return RequestHead(
        method,
        _path(method, target),
        _number("Content-Length", values.get(b"content-length", [])) or 0,
        _number("Inference-Header-Content-Length", values.get(b"inference-header-content-length", [])),
        _encoding(values.get(b"content-encoding", [])),
    )


def _path(method: str, target: bytes) -> str:
    if target == b"*" and method == "OPTIONS":
        return "*"
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    if not target.startswith(b"/") or method == "CONNECT":
        raise BadRequest("the request's target is not a path")
    return re.split(rb"[?#]", target, maxsplit=1)[0].decode("ascii")


def _encoding(values: list[bytes]) -> str:
    """Return one of ENCODINGS, or an empty text."""
    named = b", ".join(values).lower().decode("latin-1")
    named = {"identity": "", "x-gzip": "gzip"}.get(named, named)
    if named and named not in ENCODINGS:
        given, known = short_repr(named), " and ".join(ENCODINGS)
        raise RequestError(415, f"content-encoding {given} is not understood; {known} are, or send the body plain")
    return named


@lru_cache(64)
def _pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Return names and values of whole header lines."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.splitlines())]


def _number(name: str, values: list[bytes]) -> int | None:
    if not values:
        return None
    if len(values) > 1 or not values[0].isdigit() or len(values[0]) > 18:
        raise BadRequest(f"{name} must be there once, and a number")
    return int(values[0])


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
        self.stopping = False
        self._drain_seconds = self.limits.idle_seconds
        self.pending_bytes = 0
        self._config = Config(
            self._application,
            http=HttpConnection,
            interface="asgi3",
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(self.limits.idle_seconds) + 1,
        )
        self._config.load()
        self._state = ServerState()
        self.connections = self._state.connections

    def new_connection(self, received: bytes = b"") -> HttpConnection:
        limits = self.limits
        if self.stopping:
            limits = replace(limits, idle_seconds=self._drain_seconds)
        return HttpConnection(self._config, self._state, {}, limits=limits, received=received, refused=self.refused)

    async def adopt_connection(self, peer: socket.socket, came: bytes) -> None:
        """Take over a connection that another frontend has accepted, with the bytes already read from it. Raises OSError."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.new_connection(came), peer)

    def begin_drain(self, grace_seconds: float) -> None:
        """Make every further answer the last of its connection; `stop` must follow."""
        if not self.stopping:
            self.stopping = True
            self._drain_seconds = min(self.limits.drain_idle_seconds, grace_seconds / 2)
            for connection in self._open():
                connection.begin_drain(self._drain_seconds)

    async def stop(self, grace_seconds: float) -> None:
        """Answer the requests under way, and those that idle clients send during the drain; then close.

        Every answer has `connection: close`. After the grace the remaining connections are aborted.
        """
        ends = time.monotonic() + grace_seconds
        self.begin_drain(grace_seconds)
        while self.connections and time.monotonic() < ends:
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in self._open():
            connection.transport.abort()

    def _open(self) -> list[HttpConnection]:
        return [each for each in self.connections if isinstance(each, HttpConnection)]

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (an ASGI application)."""
        held = 0
        try:
            head = request_head(scope["method"], scope["raw_path"], scope["headers"])
            body = await self._receive(head.length, receive)
            if body is None:
                return
            held = len(body)
            status, payload, headers = await self._handled(
                Request(head.method, head.path, body, head.json_length, head.encoding)
            )
        except RequestError as refusal:
            self.refused(refusal.status)
            status, payload = refusal.status, orjson.dumps({"error": refusal.sentence})
            headers = JSON_TYPE + _CLOSE
            if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
                headers += b"accept-encoding: " + ", ".join(ENCODINGS).encode() + b"\r\n"
        finally:
            self.pending_bytes -= held
        if self.stopping and _CLOSE not in headers:
            headers += _CLOSE
        length = (b"content-length", b"%d" % len(payload))
        pairs = [*_pairs(headers), *_pairs(date_line(int(time.time()))), length]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": payload})

    def _handled(self, request: Request) -> asyncio.Future[tuple[int, bytes, bytes]]:
        answered: asyncio.Future[tuple[int, bytes, bytes]] = asyncio.get_running_loop().create_future()

        def reply(status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None:
            if not answered.done():
                answered.set_result((status, body, headers))

        self.handle(request, reply)
        return answered

    async def _receive(self, length: int, receive: Receive) -> bytes | None:
        """Return the body, counted in `pending_bytes`, or None if the client is gone. Raises RequestError."""
        body = bytearray()
        try:
            self._check_size(length)
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self.pending_bytes -= len(body)
                    return None
                body += message["body"]
                self.pending_bytes += len(message["body"])
                self._check_size(len(body))
                more = message["more_body"]
        except BaseException:
            self.pending_bytes -= len(body)
            raise
        return bytes(body)

    def _check_size(self, size: int) -> None:
        allowed = self.limits.max_body_bytes
        if size > allowed:
            raise RequestError(413, f"the body has more than {allowed} bytes (maxBodyBytes); send several requests")
        if self.pending_bytes > self.limits.max_pending_bodies * allowed:
            raise RequestError(503, "too many large requests are under way; ask again later")
