"""The connections of the Python client: requests and responses of HTTP/1.1, blocking and with asyncio."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

_MAX_HEAD_BYTES = 64 << 10
_CHUNK = 256 << 10
_BODILESS = (204, 304)


class AnswerBroken(ValueError):
    """The bytes are no response of HTTP/1.1."""


class Response(NamedTuple):
    """`headers` have lower-case names. `keep`: the connection may be used again."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keep: bool


class Address(NamedTuple):
    host: str
    port: int
    text: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse host:port. Raises ValueError."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16 or "/" in host:
            raise ValueError(f"{text!r} is no address: write host:port")
        return cls(host.strip("[]"), int(port), text)


def request_bytes(method: str, address: Address, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {address.text}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class ResponseReader:
    """Reads one response from the bytes of a connection, in pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: tuple[int, dict[str, str], bool] | None = None
        self._body = bytearray()
        self._last_chunk = False

    def feed(self, data: bytes) -> Response | None:
        """Return the response once it is whole, else None; empty data is the end of the connection. Raises AnswerBroken."""
        self._data += data
        while self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if not data or len(self._data) > _MAX_HEAD_BYTES:
                    raise AnswerBroken("the connection ended before the answer" if not data else "its head has no end")
                return None
            head = _head(bytes(self._data[:end]))
            del self._data[: end + 4]
            # An interim response (status 1xx) comes before the final one.
            self._head = head if head[0] >= 200 else None
        status, headers, keep = self._head
        if status in _BODILESS:
            return Response(status, headers, b"", keep)
        if "chunked" in headers.get("transfer-encoding", "").lower():
            done = self._unchunk()
        elif (length := headers.get("content-length")) is not None:
            if not length.isdecimal():
                raise AnswerBroken(f"its Content-Length is {length!r}")
            done = len(self._data) >= int(length)
            if done:
                self._body = self._data[: int(length)]
        else:
            # The end of the connection ends the body.
            done, keep = not data, False
            if done:
                self._body = self._data
        if done:
            return Response(status, headers, bytes(self._body), keep)
        if not data:
            raise AnswerBroken("the connection ended in the middle of the answer")
        return None

    def _unchunk(self) -> bool:
        """Take the chunks that are whole. Return True after the last one and its trailers. Raises AnswerBroken."""
        while (end := self._data.find(b"\r\n")) >= 0:
            if self._last_chunk:
                del self._data[: end + 2]
                if end == 0:
                    return True
                continue
            size = _chunk_size(bytes(self._data[:end]))
            if size and len(self._data) < end + 4 + size:
                return False
            self._last_chunk = size == 0
            self._body += self._data[end + 2 : end + 2 + size]
            del self._data[: end + 2 + (size + 2 if size else 0)]
        return False


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0].strip(), 16)
    except ValueError:
        raise AnswerBroken(f"a chunk begins with {line[:40]!r}") from None


def _head(data: bytes) -> tuple[int, dict[str, str], bool]:
    first, *lines = data.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if protocol not in {"HTTP/1.1", "HTTP/1.0"} or not rest[:3].isdecimal():
        raise AnswerBroken(f"it begins with {first[:60]!r}, which is not HTTP/1.1")
    headers = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    connection = headers.get("connection", "").lower()
    return int(rest[:3]), headers, "close" not in connection and (protocol == "HTTP/1.1" or "keep-alive" in connection)


class ClientConnection:
    """A blocking connection, which is opened at the first request and again after a loss."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def exchange(self, request: bytes, until: float) -> Response:
        """Send a request and return the response. Raises OSError, AnswerBroken; TimeoutError at `until` of the monotonic clock."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address[:2], _left(until))
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(_left(until))
            self._socket.sendall(request)
            reader, response = ResponseReader(), None
            while response is None:
                self._socket.settimeout(_left(until))
                response = reader.feed(self._socket.recv(_CHUNK))
        except BaseException:
            self.close()
            raise
        if not response.keep:
            self.close()
        return response


class AsyncConnection:
    """The same connection with asyncio, for one exchange at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_open(self) -> bool:
        return self._streams is not None and not self._streams[1].is_closing()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def exchange(self, request: bytes, until: float) -> Response:
        """As `ClientConnection.exchange`."""
        try:
            response = await asyncio.wait_for(self._exchange(request), _left(until))
        except asyncio.TimeoutError:
            self.close()
            # Before Python 3.11, asyncio.TimeoutError is another class.
            raise TimeoutError("timed out") from None
        except BaseException:
            self.close()
            raise
        if not response.keep:
            self.close()
        return response

    async def _exchange(self, request: bytes) -> Response:
        if not self.is_open or self._streams is None:
            self._streams = await asyncio.open_connection(self._address.host, self._address.port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        response_reader, response = ResponseReader(), None
        while response is None:
            response = response_reader.feed(await reader.read(_CHUNK))
        return response


def _left(until: float) -> float:
    """Return the seconds left. Raises TimeoutError."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
