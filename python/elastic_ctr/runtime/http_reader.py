"""Reading of HTTP/1.1: h11 with one reading of every input, and bounds.

h11 finds where a request begins and ends. It is more lenient than RFC 9110 and 9112 in some places, where a proxy in front of it may see
another end of a request (smuggling); `StrictConnection` refuses those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11
from h11._receivebuffer import ReceiveBuffer

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

    def maybe_extract_at_most(self, count: int) -> bytearray | None:
        """Return what has arrived of a body. h11 copies it twice; here it leaves as it is, unless another request follows."""
        if not 0 < len(self._data) <= count:
            return super().maybe_extract_at_most(count)
        arrived = self._data
        self._data = bytearray()
        self._extract(0)
        return arrived

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
