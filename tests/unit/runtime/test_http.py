import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from credentials import access, tokens
from elastic_ctr.runtime import http_connection
from elastic_ctr.runtime.auth import Right, bearer
from elastic_ctr.runtime.http import (
    HttpServer,
    HttpThread,
    RequestRefused,
    application,
    read_record,
    serving,
)
from elastic_ctr.runtime.http_connection import HttpConnection
from elastic_ctr.runtime.http_reader import ConnectionLimits
from elastic_ctr.runtime.lifecycle import PortInUse
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.store.versions.manifest import Record

LARGE = 20 << 20


class Order(Record):
    version: int


async def order(request: Request) -> Response:
    access("secret").require(request, Right.OPERATE)
    return JSONResponse({"version": (await read_record(request, Order, limit=100)).version})


async def broken(request: Request) -> Response:
    raise ValueError("/a/secret/path")


async def refused(request: Request) -> Response:
    raise RequestRefused(409, "another one is being built")


@pytest.fixture
def door() -> Iterator[httpx.Client]:
    metrics = Metrics("test-role")
    metrics.gauge("things", "Things.").set(3)
    routes = [Route("/order", order, methods=["POST"]), Route("/broken", broken), Route("/refused", refused)]
    app = application(routes, ready=lambda: (False, "not yet"), status=lambda: {"a": 1}, metrics=metrics)
    thread = HttpThread(app, "127.0.0.1", 0).start()
    with httpx.Client(base_url=f"http://127.0.0.1:{thread.port}", headers=bearer(tokens("secret"))) as client:
        yield client
    thread.stop()


def test_a_client_that_breaks_off_in_its_body_is_no_fault_of_the_role(caplog: pytest.LogCaptureFixture) -> None:
    ended, said = threading.Event(), []

    async def noted(request: Request) -> Response:
        try:
            return await order(request)
        except BaseException as why:
            said.append(why)
            raise
        finally:
            ended.set()

    thread = HttpThread(application([Route("/order", noted, methods=["POST"])]), "127.0.0.1", 0).start()
    try:
        with socket.create_connection(("127.0.0.1", thread.port)) as raw:
            raw.sendall(
                b"POST /order HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\ncontent-length: 20\r\n\r\nabc"
            )
        assert ended.wait(30)
    finally:
        thread.stop()

    [why] = said
    assert isinstance(why, RequestRefused)
    assert (why.status_code, why.detail) == (400, "the connection ended after 3 bytes of the body")
    assert [each for each in caplog.records if each.exc_info] == []


def test_every_role_says_how_it_is(door: httpx.Client) -> None:
    assert door.get("/healthz").text == "ok\n"
    assert (door.get("/readyz").status_code, door.get("/readyz").text) == (503, "not yet\n")
    assert door.get("/status").json() == {"a": 1}
    assert "elastic_ctr_test_role_things 3.0" in door.get("/metrics").text


def test_an_order_with_the_token_is_taken(door: httpx.Client) -> None:
    assert door.post("/order", json={"version": 7}).json() == {"version": 7}


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer secrets", "secret", "Bearer \xe9"])
def test_an_order_without_the_right_token_is_refused(door: httpx.Client, header: str) -> None:
    answer = door.post("/order", json={"version": 7}, headers={b"authorization": header.encode("latin-1")})

    assert answer.status_code == 401
    assert "authorization: Bearer <token>" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"{", "Invalid JSON"), (b'{"version": "x"}', "version"), (b"{}", "version"), (b'{"version":1,"b":2}', "b: ")],
)
def test_a_body_that_is_not_understood_is_refused_by_field(door: httpx.Client, body: bytes, says: str) -> None:
    answer = door.post("/order", content=body)

    assert answer.status_code == 400
    assert says in answer.json()["error"]


def test_a_body_that_is_too_long_is_refused_declared_or_not(door: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 50

    for answer in (door.post("/order", content=b" " * 200), door.post("/order", content=chunks())):
        assert answer.status_code == 413
        assert "100" in answer.json()["error"]


def test_errors_are_sentences_and_tell_no_secrets(door: httpx.Client) -> None:
    assert door.get("/refused").json() == {"error": "another one is being built"}
    assert door.get("/nowhere").json() == {"error": "GET /nowhere: Not Found"}
    answer = door.get("/broken")
    assert answer.status_code == 500
    assert "ValueError" in answer.json()["error"]
    assert "path" not in answer.json()["error"]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nhost:", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nGET /"]
)
async def test_a_connection_whose_next_request_does_not_come_is_ended(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(HttpConnection, "limits", ConnectionLimits(head_seconds=0.3, idle_seconds=0.3))
    async with serving(application([]), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        with suppress(ConnectionResetError):
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer.count(b"200 OK") == sent.count(b"\r\n\r\n")
        writer.close()


def test_a_door_on_a_used_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(PortInUse):
            HttpThread(application([]), "127.0.0.1", port)


async def test_a_door_inside_the_callers_loop_starts_and_stops() -> None:
    async with serving(application([]), "127.0.0.1", 0) as server, httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{server.port}/readyz")

    assert answer.text == "ready\n"
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{server.port}/readyz")


async def test_a_request_under_way_is_answered_before_the_door_closes() -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        came.set()
        await go_on.wait()
        return JSONResponse({})

    server = HttpServer(application([Route("/slow", slow)]), "127.0.0.1", 0)
    await server.start()
    async with httpx.AsyncClient() as client:
        asking: asyncio.Task[Any] = asyncio.create_task(client.get(f"http://127.0.0.1:{server.port}/slow"))
        await came.wait()
        stopping = asyncio.create_task(server.stop())
        with suppress(ConnectionError):
            while True:
                _, peer = await asyncio.open_connection("127.0.0.1", server.port)
                peer.close()
        go_on.set()

        answer = await asking
        await stopping

    assert (answer.status_code, answer.headers.get("connection")) == (200, "close")


def exchange(door: httpx.Client, request: bytes) -> bytes:
    """The answer to the bytes of a request that ends its connection."""
    with socket.create_connection((door.base_url.host, door.base_url.port or 0), timeout=20) as peer:
        peer.sendall(request)
        answer = b""
        while piece := peer.recv(65536):
            answer += piece
        return answer


CHUNKED = b"POST /order HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'e;a="b"\r\n{"version": 7}\r\n0\r\nX-Sum: 1\r\n\r\n', b"200"),
        (b'e;a=\rb\r\n{"version": 7}\r\n0\r\n\r\n', b"400"),
        (b'e;a="\r0\r\n{"version": 7}\r\n0\r\n\r\n', b"400"),
        (b'e\r\n{"version": 7}\r\n0\r\nX-Sum: 1\n\r\n', b"400"),
        (b'e\r\n{"version": 7}\r\n0\r\nX-Sum: 1\n\n', b"400"),
        (b'e\r\n{"version": 7}\r\n0\r\nX-Sum: 1\rX: 2\r\n\r\n', b"400"),
    ],
)
def test_a_line_between_or_behind_chunks_ends_with_both_its_signs_and_has_neither_inside(
    door: httpx.Client, body: bytes, status: bytes
) -> None:
    assert exchange(door, CHUNKED + body).split(b" ", 2)[1] == status


def test_a_trailer_may_come_byte_by_byte(door: httpx.Client) -> None:
    with socket.create_connection((door.base_url.host, door.base_url.port or 0), timeout=20) as peer:
        for place in range(len(rest := b'e\r\n{"version": 7}\r\n0\r\nX-Sum: 1\r\n\r\n')):
            peer.sendall((CHUNKED if place == 0 else b"") + rest[place : place + 1])
        assert peer.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_request_that_is_refused_before_its_end_gets_one_answer_whatever_follows(door: httpx.Client) -> None:
    head = b"POST /order HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((door.base_url.host, door.base_url.port or 0), timeout=20) as peer:
        peer.sendall(head + b"1\r\nx\r\n")
        answer = peer.recv(65536)
        peer.sendall(b"no size of a chunk\r\n")
        while piece := peer.recv(65536):
            answer += piece

    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"401"]


@pytest.fixture
async def large() -> AsyncIterator[HttpServer]:
    """A role whose answer is more than a kernel keeps for a client."""

    async def answer(_: Request) -> Response:
        return Response(bytes(LARGE))

    async with serving(application([Route("/large", answer)]), "127.0.0.1", 0) as server:
        yield server


async def test_a_client_that_takes_a_last_answer_slowly_gets_all_of_it(
    large: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_STALL_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", large.port)) as peer:
        peer.setblocking(False)
        peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        loop, came = asyncio.get_running_loop(), 0
        while piece := await loop.sock_recv(peer, 65536):
            came += len(piece)
            # Slow enough that the kernel lets the role write no more within the limit, for its first megabytes.
            await asyncio.sleep(0.02 if came < LARGE // 4 else 0)

    assert came > LARGE


async def test_a_client_that_takes_nothing_of_an_answer_is_let_go(
    large: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_STALL_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", large.port)) as peer:
        peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        while not large.server_state.connections:
            await asyncio.sleep(0.01)
        while large.server_state.connections:
            await asyncio.sleep(0.01)


async def test_clients_that_closed_their_half_leave_no_error_behind(large: HttpServer) -> None:
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    with socket.create_connection(("127.0.0.1", large.port)) as peer:
        peer.setblocking(False)
        peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        peer.shutdown(socket.SHUT_WR)
        came = 0
        while piece := await loop.sock_recv(peer, 1 << 20):
            came += len(piece)

    assert came > LARGE
    assert errors == []


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_to_speak_another_protocol_is_ignored_and_no_warning(
    door: httpx.Client, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": protocol, "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    answer = door.post("/order", json={"version": 7}, headers=offer)

    assert (answer.status_code, answer.json()) == (200, {"version": 7})
    assert not caplog.records
