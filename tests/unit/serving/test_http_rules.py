"""RFC 9110 and 9112 as raw bytes, against every HTTP frontend of the product: one request in, one answer out, whatever the bytes.

Behind each request stands a marker request, and inside every body that could be mistaken for one stands a hidden request.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.runtime.http import application, read_body
from elastic_ctr.runtime.http import serving as admin
from elastic_ctr.serving.routes import SOURCE_PATH
from serving.frontends import HTTP_KINDS, http_standing
from serving.http_peer import EVERYDAY, body

HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nHost: hidden\r\n\r\n"
HIDDEN_ANSWER = b'{"live":true}'
MARKER = b"GET /v2/models/ctr HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
MARKER_ANSWER = b'"platform"'
PREDICTION = body({"a": [1, 2], "b": [3]})
POST = f"POST {SOURCE_PATH} HTTP/1.1".encode()
H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")
CHUNKED = (b"Transfer-Encoding: chunked",)


def post(data: bytes, *headers: bytes, line: bytes = POST, host: bytes = b"Host: a") -> bytes:
    return head(line, host, *headers, b"Content-Length: %d" % len(data)) + data


def chunked(
    data: bytes, *headers: bytes, line: bytes = POST, end: bytes = b"0\r\n\r\n", extension: bytes = b""
) -> bytes:
    chunk = b"%x%b\r\n%b\r\n" % (len(data), extension, data)
    return head(line, b"Host: a", *headers, *CHUNKED) + chunk + end


def head(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([line, *(each for each in headers if each), b"", b""])


class Vector(NamedTuple):
    """A request, the status of its answer, and whether the marker behind it is answered on the same connection."""

    name: str
    request: bytes
    status: int
    stays: bool


STAYS = [
    Vector("websocket-offer-with-body", post(PREDICTION, *WEBSOCKET), 200, True),
    Vector("websocket-offer-hidden-request", post(HIDDEN, *WEBSOCKET), 400, True),
    Vector("websocket-offer-chunked", chunked(PREDICTION, *WEBSOCKET), 200, True),
    Vector("websocket-offer-hidden-in-chunks", chunked(HIDDEN, *WEBSOCKET), 400, True),
    Vector("h2c-offer-with-body", post(PREDICTION, *H2C), 200, True),
    Vector("h2c-offer-hidden-request", post(HIDDEN, *H2C), 400, True),
    Vector("h2c-offer-without-body", head(b"GET /v2 HTTP/1.1", b"Host: a", *H2C), 200, True),
    Vector("offer-on-get-with-body", post(HIDDEN, *WEBSOCKET, line=b"GET /v2 HTTP/1.1"), 200, True),
    Vector("get-with-body", post(HIDDEN, line=b"GET /v2 HTTP/1.1"), 200, True),
    Vector("get-with-chunks", chunked(HIDDEN, line=b"GET /v2 HTTP/1.1"), 200, True),
    Vector("chunk-extension", chunked(PREDICTION, extension=b';a="b"'), 200, True),
    Vector("trailers", chunked(PREDICTION, end=b"0\r\nX-T: 1\r\nContent-Length: 3\r\n\r\n"), 200, True),
    Vector("trailer-host", chunked(PREDICTION, end=b"0\r\nHost: b\r\n\r\n"), 200, True),
    Vector("http10-keep-alive", post(PREDICTION, b"Connection: keep-alive", line=POST.replace(b"1.1", b"1.0")), 200, True),
    Vector("absolute-form", post(PREDICTION, line=f"POST http://a{SOURCE_PATH} HTTP/1.1".encode()), 200, True),
    Vector("host-with-port", post(PREDICTION, host=b"Host: a:8400"), 200, True),
    Vector("host-ipv6", post(PREDICTION, host=b"Host: [::1]:8400"), 200, True),
    Vector("encoded-slash", post(PREDICTION, line=b"POST /ElasticCTRPredictionService%2Finference HTTP/1.1"), 404, True),
    Vector("encoded-letter", post(PREDICTION, line=b"POST /ElasticCTRPredictionService/%69nference HTTP/1.1"), 200, True),
    Vector("other-method", post(PREDICTION, line=b"PUT" + POST[4:]), 405, True),
    Vector("blank-line-before", b"\r\n" + post(PREDICTION), 200, True),
    Vector("options-asterisk", head(b"OPTIONS * HTTP/1.1", b"Host: a"), 404, True),
]  # fmt: skip
CLOSES = [
    Vector("connect-with-body", post(HIDDEN, line=b"CONNECT a:80 HTTP/1.1"), 400, False),
    Vector("connect-path-with-body", post(HIDDEN, line=b"CONNECT /v2 HTTP/1.1"), 400, False),
    Vector("connect-without-body", head(b"CONNECT a:80 HTTP/1.1", b"Host: a"), 400, False),
    Vector("no-host", post(PREDICTION, host=b""), 400, False),
    Vector("two-hosts", post(PREDICTION, b"Host: a"), 400, False),
    Vector("empty-host", post(PREDICTION, host=b"Host:"), 400, False),
    Vector("host-with-user", post(PREDICTION, host=b"Host: user@a"), 400, False),
    Vector("host-with-path", post(PREDICTION, host=b"Host: a/b"), 400, False),
    Vector("host-list", post(PREDICTION, host=b"Host: a, b"), 400, False),
    Vector("http10", post(PREDICTION, line=POST.replace(b"1.1", b"1.0")), 200, False),
    Vector("http10-chunked", chunked(PREDICTION, b"Connection: keep-alive", line=POST.replace(b"1.1", b"1.0")), 400, False),
    Vector("get-asterisk", head(b"GET * HTTP/1.1", b"Host: a"), 400, False),
    Vector("http2-version", head(b"GET /v2 HTTP/2.0", b"Host: a"), 505, False),
    Vector("http2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, False),
    Vector("http09", head(b"GET /v2", b"Host: a"), 400, False),
    Vector("rtsp", head(b"GET /v2 RTSP/1.0", b"Host: a"), 400, False),
    Vector("ice", head(b"SOURCE /v2 ICE/1.0", b"Host: a"), 400, False),
    Vector("length-and-chunks", post(b"0\r\n\r\n" + HIDDEN, *CHUNKED), 400, False),
    Vector("two-lengths", post(HIDDEN, b"Content-Length: 0"), 400, False),
    Vector("length-with-sign", head(POST, b"Host: a", b"Content-Length: +%d" % len(HIDDEN)) + HIDDEN, 400, False),
    Vector("length-list", head(POST, b"Host: a", b"Content-Length: 0, %d" % len(HIDDEN)) + HIDDEN, 400, False),
    Vector("coding-not-chunked", head(POST, b"Host: a", b"Transfer-Encoding: identity") + HIDDEN, 501, False),
    Vector("coding-list", head(POST, b"Host: a", b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n" + HIDDEN, 501, False),
    Vector("coding-twice", chunked(HIDDEN, *CHUNKED), 501, False),
    Vector("obs-fold", post(HIDDEN, b"X: 1\r\n Y: 2"), 400, False),
    Vector("blank-before-colon", head(POST, b"Host: a", b"Content-Length : %d" % len(HIDDEN)) + HIDDEN, 400, False),
    Vector("bare-line-feed", post(HIDDEN, b"X: 1\nY: 2"), 400, False),
    Vector("bare-carriage-return", post(HIDDEN, b"X: 1\rY: 2"), 400, False),
    Vector("line-feeds-only", head(b"GET /v2 HTTP/1.1", b"Host: a").replace(b"\r\n", b"\n"), 400, False),
    Vector("nul-in-value", post(HIDDEN, b"X: \0"), 400, False),
    Vector("chunk-size-hex-prefix", head(POST, b"Host: a", *CHUNKED) + b"0x3\r\nabc\r\n0\r\n\r\n", 400, False),
    Vector("chunk-size-negative", head(POST, b"Host: a", *CHUNKED) + b"-1\r\n\r\n0\r\n\r\n", 400, False),
    Vector("chunk-longer-than-said", head(POST, b"Host: a", *CHUNKED) + b"1\r\nabc\r\n0\r\n\r\n", 400, False),
    Vector("chunk-bare-line-feed", head(POST, b"Host: a", *CHUNKED) + b"1\na\n0\r\n\r\n", 400, False),
    Vector("trailer-without-colon", chunked(PREDICTION, end=b"0\r\nGET /v2 HTTP/1.1\r\n\r\n"), 400, False),
    Vector("other-expectation", post(PREDICTION, b"Expect: miracles"), 417, False),
    Vector("other-encoding", post(PREDICTION, b"Content-Encoding: br"), 415, False),
    Vector("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, False),
    Vector("ssh", b"SSH-2.0-OpenSSH_9.2\r\n", 400, False),
    Vector("socks", b"\x05\x01\x00", 400, False),
]  # fmt: skip
VECTORS = STAYS + CLOSES
_REPLY = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def answers(said: bytes) -> list[Answer]:
    """Whole answers; fails on anything between or behind them."""
    found = []
    at = 0
    while at < len(said):
        match = _REPLY.match(said, at)
        assert match is not None, said[at:]
        headers = dict(line.lower().split(b": ", 1) for line in match[2].splitlines())
        end = match.end() + int(headers.get(b"content-length", 0))
        found.append(Answer(int(match[1]), headers, said[match.end() : end]))
        at = end
    return found


async def said(port: int, data: bytes) -> bytes:
    """All that is answered until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_every_request_has_one_answer_of_its_own(kind: str) -> None:
    async with http_standing(kind) as it:
        for vector in VECTORS:
            for before in (b"", EVERYDAY):
                found = answers(await said(it.port, before + vector.request + MARKER))
                if before:
                    assert found.pop(0).status == 200, vector.name
                assert [each.status for each in found] == [vector.status] + [200] * vector.stays, vector.name
                assert not any(HIDDEN_ANSWER in each.body for each in found), vector.name
                assert all(b"date" in each.headers for each in found), vector.name
                if vector.stays:
                    assert MARKER_ANSWER in found[1].body, vector.name
                else:
                    assert found[0].headers[b"connection"] == b"close", vector.name


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_answers_have_the_headers_that_their_status_demands(kind: str) -> None:
    async with http_standing(kind) as it:
        wrong_method, marker = answers(await said(it.port, post(b"", line=b"DELETE /v2 HTTP/1.1") + MARKER))
        [encoding] = answers(await said(it.port, post(PREDICTION, b"Content-Encoding: br")))
        kept, closed = answers(
            await said(
                it.port,
                b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\nGET /v2 HTTP/1.0\r\n\r\n",
            )
        )

        assert wrong_method.headers[b"allow"] == b"get, head"
        assert marker.status == 200
        assert encoding.headers[b"accept-encoding"] == b"gzip, deflate"
        assert (kept.status, kept.headers[b"connection"]) == (200, b"keep-alive")
        assert (closed.status, closed.headers[b"connection"]) == (200, b"close")


@pytest.mark.parametrize("kind", HTTP_KINDS)
@pytest.mark.parametrize(
    "flood",
    [
        b"0\r\nX-T: " + b"y" * (2 << 20),
        b"0\r\n" + b"X-T: y\r\n" * (300_000),
        b"1;" + b"y" * (2 << 20),
        b"1;yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n \r\n" * 20_000,
        b"ffffffffffffff\r\n",
    ],
    ids=["one-trailer", "many-trailers", "one-extension", "many-extensions", "huge-chunk"],
)
async def test_the_trailers_and_extensions_of_a_chunked_body_are_bounded(kind: str, flood: bytes) -> None:
    async with http_standing(kind) as it:
        [refused] = answers(await said(it.port, head(POST, b"Host: a", *CHUNKED) + flood))

        assert refused.status in {400, 413, 431}


async def test_chunks_of_one_byte_are_a_body() -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in PREDICTION)
    async with http_standing("python") as it:
        found = answers(await said(it.port, head(POST, b"Host: a", *CHUNKED) + chunks + b"0\r\n\r\n" + MARKER))

        assert [each.status for each in found] == [200, 200]


# -- the admin ports of all roles


@asynccontextmanager
async def admin_port(executed: list[str]) -> AsyncIterator[int]:
    async def noted(request: Request) -> Response:
        executed.append(f"{request.method} {request.url.path} {len(await read_body(request))}")
        return JSONResponse({})

    everything = Route("/{path:path}", noted, methods=["GET", "POST", "PUT", "OPTIONS", "CONNECT"])
    async with admin(application([everything]), "127.0.0.1", 0) as server:
        yield server.port


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
async def test_an_admin_port_executes_no_hidden_request(vector: Vector) -> None:
    executed: list[str] = []
    async with admin_port(executed) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(vector.request + MARKER)
        # It waits for the rest of what it takes for the beginning of a request.
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()

    assert not any("/v2/health/live" in each for each in executed)
    assert len(executed) <= 2
