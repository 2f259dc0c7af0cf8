"""The syntax of HTTP/1.1 requests: a head, parsed by httptools and checked by RFC 9110 and 9112, and a chunked body (9112, 7.1).

httptools gets exactly one head and never a body: this module alone decides where a request ends. httptools ends a request with
`Connection: Upgrade`, and every CONNECT, at its head, so a body behind such a head would become the next request.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import httptools

from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

HEAD_END = b"\r\n\r\n"
ENCODINGS = ("gzip", "deflate")

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%b) ([!-~]+) ([!-~]+)" % _TOKEN)
# The beginning of a request line: a client that speaks another protocol is refused before its line ends.
_LINE_BEGUN = re.compile(rb"%b(?: [!-~]*(?: [!-~]*)?)?\r?" % _TOKEN)
# The line feed of a carriage return at the end may still arrive.
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r[^\n]")
_AUTHORITY = rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+;=]+)(?::[0-9]{0,5})?"
_HOST = re.compile(_AUTHORITY)
_ABSOLUTE = re.compile(rb"(?i:https?)://(%b)(?=[/?]|\Z)" % _AUTHORITY)
_LONGEST_SHOWN = 40
_NOT_HTTP = "this is not an HTTP/1.1 request: the first line must have a method, a target and a version"

_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;%b)?\r\n" % _TEXT)
_TRAILER = re.compile(rb"%b:%b\r\n" % (_TOKEN, _TEXT))
_CRLF = b"\r\n"
_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)
# A chunk may have this much framing and twice its data. The excess of all chunks has the limit of a head.
_USUAL_FRAMING = 16


class RequestHead(NamedTuple):
    """A head that was read. `path` is not decoded and has no query."""

    method: str
    path: str
    length: int
    chunked: bool
    # `last`: the connection ends after the answer. `kept_alive`: it stays open although the client speaks HTTP/1.0.
    last: bool
    kept_alive: bool
    expects_continue: bool
    encoding: str
    json_length: int | None
    names: tuple[bytes, ...]


def read_head(head: bytes, max_headers: int) -> RequestHead:
    """Read a whole head, from its first line to its blank one. Raises RequestError, after which the next request's start is unknown."""
    _check_line_ends(head)
    method, target, minor = _request_line(head[: head.find(b"\r\n")])
    headers = _headers(head)
    if len(headers) > max_headers:
        raise RequestError(431, f"the head has more than {max_headers} headers; send less")
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    hosts = values.get(b"host", [])
    if len(hosts) > 1 or (minor == 1 and not hosts):
        raise BadRequest(f"the head has {len(hosts)} Host headers; HTTP/1.1 needs one")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise BadRequest(f"the Host header {_quoted(hosts[0])} is not host or host:port")
    length, chunked = _framing(values, minor)
    tokens = {token.strip().lower() for each in values.get(b"connection", ()) for token in each.split(b",")}
    kept_alive = minor == 0 and b"keep-alive" in tokens and b"close" not in tokens
    path = _path(method, target)
    # RFC 9110 10.1.1: the expectation of an HTTP/1.0 client is ignored.
    expected = values.get(b"expect", []) if minor == 1 else []
    if any(each.lower() != b"100-continue" for each in expected):
        raise RequestError(417, "only the expectation 100-continue is understood")
    return RequestHead(
        method,
        path,
        length,
        chunked,
        last=b"close" in tokens or (minor == 0 and not kept_alive),
        kept_alive=kept_alive,
        expects_continue=bool(expected),
        encoding=_encoding(values.get(b"content-encoding", [])),
        json_length=_number("Inference-Header-Content-Length", values.get(b"inference-header-content-length", [])),
        names=tuple(name for name, _ in headers),
    )


def check_begun(data: bytes | bytearray) -> None:
    """Refuse an unfinished head that cannot become one. Raises RequestError."""
    _check_line_ends(data)
    line, end, _ = bytes(data).partition(b"\r\n")
    if end:
        _request_line(line)
    elif _LINE_BEGUN.fullmatch(line) is None:
        raise BadRequest(_NOT_HTTP)


def _check_line_ends(data: bytes | bytearray) -> None:
    if _BARE_LINE_END.search(data) is not None:
        raise BadRequest("a line of the head does not end with CR LF")


def _request_line(line: bytes) -> tuple[str, bytes, int]:
    """Return method, target and minor version."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise BadRequest(_NOT_HTTP)
    if found[3] not in (b"HTTP/1.1", b"HTTP/1.0"):
        http = found[3].startswith(b"HTTP/")
        raise RequestError(505 if http else 400, f"{_quoted(found[3])} is not spoken here; HTTP/1.1 is")
    return found[1].decode("ascii"), found[2], found[3][-1] - ord("0")


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    """Return names in lower case, and values."""
    headers: list[tuple[bytes, bytes]] = []
    heads: list[None] = []
    bodies: list[bytes] = []
    callbacks = SimpleNamespace(
        on_header=lambda name, value: headers.append((name.lower(), value.strip(b" \t"))),
        on_headers_complete=lambda: heads.append(None),
        on_body=bodies.append,
    )
    parser: Any = httptools.HttpRequestParser(callbacks)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as upgrade:
        if upgrade.args[0] != len(head):
            raise BadRequest("this is not an HTTP/1.1 request") from None
    except httptools.HttpParserError as wrong:
        raise BadRequest(f"this is not an HTTP/1.1 request: {wrong}") from None
    if len(heads) != 1 or bodies:
        raise BadRequest("this is not an HTTP/1.1 request")
    return headers


def _framing(values: dict[bytes, list[bytes]], minor: int) -> tuple[int, bool]:
    """Return the length of the body, and True if it is chunked instead."""
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if codings:
        if minor == 0 or lengths:
            raise BadRequest("Transfer-Encoding stands in an HTTP/1.0 request or beside Content-Length")
        if [each.lower() for each in codings] != [b"chunked"]:
            raise RequestError(501, "the only transfer encoding understood is chunked")
        return 0, True
    return _number("Content-Length", lengths) or 0, False


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


def _number(name: str, values: list[bytes]) -> int | None:
    if not values:
        return None
    if len(values) > 1 or not values[0].isdigit() or len(values[0]) > 18:
        raise BadRequest(f"{name} must be there once, and a number")
    return int(values[0])


def _quoted(given: bytes) -> str:
    return repr(given[:_LONGEST_SHOWN].decode("latin-1"))


class ChunkedBody:
    """Takes a chunked body out of the input as it arrives, and drops chunk extensions and trailers.

    `size` is the bytes of `body` and of the chunk that has begun.
    """

    def __init__(self, max_framing_bytes: int, max_trailers: int) -> None:
        self.body = bytearray()
        self._max_framing_bytes = max_framing_bytes
        self._max_trailers = max_trailers
        self._state = _SIZE
        self.size = self._left = self._framing = self._trailers = 0

    def take(self, data: bytearray) -> bool:
        """Take the body's bytes from the front of `data`. Return True if the body is complete. Raises RequestError."""
        at = 0
        while True:
            if self._state == _DATA:
                part = min(self._left, len(data) - at)
                self.body += data[at : at + part]
                at += part
                self._left -= part
                if self._left:
                    break
                self._state = _DATA_END
            elif self._state == _DATA_END:
                if len(data) - at < len(_CRLF):
                    break
                if not data.startswith(_CRLF, at):
                    raise BadRequest("a chunk of the body is longer than it says")
                at += len(_CRLF)
                self._state = _SIZE
            else:
                end = data.find(b"\n", at) + 1
                if not end:
                    self._count(len(data) - at, 0)
                    break
                if self._state == _SIZE:
                    self._begin_chunk(data, at, end)
                elif end - at == len(_CRLF) and data.startswith(_CRLF, at):
                    del data[:end]
                    return True
                else:
                    self._framing += self._count(end - at, 0)
                    self._trailers += 1
                    if self._trailers > self._max_trailers or _TRAILER.fullmatch(data, at, end) is None:
                        raise BadRequest("the body has too many trailers, or one that is none")
                at = end
        del data[:at]
        return False

    def _begin_chunk(self, data: bytearray, at: int, end: int) -> None:
        line = _CHUNK_LINE.fullmatch(data, at, end)
        if line is None:
            raise BadRequest("a chunk of the body does not begin with its size")
        self._left = int(line[1], 16)
        self.size += self._left
        self._framing += self._count(end - at, _USUAL_FRAMING + 2 * self._left)
        self._state = _DATA if self._left else _TRAILERS

    def _count(self, size: int, usual: int) -> int:
        """Return the bytes of framing beyond `usual`."""
        more = max(size - usual, 0)
        if self._framing + more > self._max_framing_bytes:
            raise RequestError(431, "chunk extensions and trailers of the body are too long; send less")
        return more
