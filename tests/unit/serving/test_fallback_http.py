import asyncio
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.runtime.http_connection import HttpConnection
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend, Limits, Reply, Request
from serving.frontends import ListeningHttpFrontend

REQUESTS = (
    b"POST /first?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /second HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwor\r\n2;ext=1\r\nld\r\n0\r\n\r\n"
    b"GET http://host/third HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n"
    b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
)
ASKED = [("POST", "/first", b"hello"), ("POST", "/second", b"world"), ("GET", "/third", b""), ("GET", "/last", b"")]


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self.eof = False
        self.reading = True
        # Bytes of what is written that the client has not read.
        self.unread = 0

    def write(self, data: Any) -> None:
        assert not self.eof
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(door: HttpFrontend) -> tuple[HttpConnection, Wire]:
    wire = Wire()
    connection = door.new_connection()
    connection.connection_made(wire)
    return connection, wire


async def turns() -> None:
    """Let the requests that have come be answered."""
    for _ in range(40):
        await asyncio.sleep(0)


class Echo:
    """Answers with what was asked, at once or when told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.replies: list[Reply] = []
        self.at_once = True

    def __call__(self, request: Request, reply: Reply) -> None:
        self.asked.append((request.method, request.path, request.body))
        self.replies.append(reply)
        if self.at_once:
            reply(200, json.dumps(request.path).encode())


def statuses(written: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", written)]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, len(REQUESTS)), max_size=12))
def test_requests_are_understood_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    async def feed() -> tuple[Echo, Wire]:
        echo = Echo()
        connection, wire = connected(HttpFrontend(echo))
        edges = sorted({0, len(REQUESTS), *cuts})
        for begin, end in itertools.pairwise(edges):
            connection.data_received(REQUESTS[begin:end])
        await turns()
        return echo, wire

    echo, wire = asyncio.run(feed())

    assert echo.asked == ASKED
    assert statuses(wire.written) == [200] * 4
    assert wire.eof


async def test_every_single_byte_may_come_alone() -> None:
    echo = Echo()
    connection, wire = connected(HttpFrontend(echo))

    for place in range(len(REQUESTS)):
        connection.data_received(REQUESTS[place : place + 1])
    await turns()

    assert echo.asked == ASKED
    assert statuses(wire.written) == [200] * 4


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400) | st.binary(max_size=60).map(lambda junk: REQUESTS[:70] + junk))
def test_arbitrary_bytes_raise_nothing_and_get_at_most_one_refusal(junk: bytes) -> None:
    async def feed() -> Wire:
        connection, wire = connected(HttpFrontend(Echo()))
        connection.data_received(junk)
        connection.data_received(b"\r\n\r\n")
        await turns()
        connection.eof_received()
        connection.connection_lost(None)
        return wire

    wire = asyncio.run(feed())

    refused = [status for status in statuses(wire.written) if status >= 400]
    assert len(refused) <= 1


async def test_requests_that_come_at_once_are_answered_one_after_the_other() -> None:
    echo = Echo()
    echo.at_once = False
    connection, wire = connected(HttpFrontend(echo))
    connection.data_received(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(3)))

    asked = []
    for number in range(3):
        await turns()
        asked.append(len(echo.asked))
        echo.replies[number](200, b"answer-%d" % number)
    await turns()

    assert asked == [1, 2, 3]
    assert re.findall(rb"answer-(\d)", wire.written) == [b"0", b"1", b"2"]


async def test_a_client_with_a_request_under_way_is_not_read_further() -> None:
    echo = Echo()
    echo.at_once = False
    connection, wire = connected(HttpFrontend(echo))

    for _ in range(2):
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await turns()
    read_when_full = wire.reading
    for number in range(2):
        echo.replies[number](200, b"{}")
        await turns()

    assert (read_when_full, wire.reading) == (False, True)


async def test_a_client_that_closes_its_half_behind_several_requests_gets_all_answers() -> None:
    connection, wire = connected(HttpFrontend(Echo()))

    connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10)
    assert connection.eof_received()
    await turns()
    await turns()

    assert statuses(wire.written) == [200] * 10
    assert wire.closing


async def test_a_blank_line_behind_a_request_does_not_end_the_idle_time() -> None:
    connection, _ = connected(HttpFrontend(Echo()))

    connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n")
    await turns()

    assert connection._deadline is not None


async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    echo = Echo()
    connection, wire = connected(HttpFrontend(echo))

    connection.pause_writing()
    for _ in range(3):
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await turns()
    paused = wire.reading, len(echo.asked)
    connection.resume_writing()
    await turns()

    assert (paused, wire.reading, len(echo.asked)) == ((False, 1), True, 3)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"not http at all\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000, 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 70_000, 431),
        (b"GET /" + b"y" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", 415),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\nContent-Length: 3\r\n\r\n", 417),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: a\nb\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000 + b"\r\n", 431),
    ],
)
async def test_a_request_that_cannot_be_served_gets_one_sentence_and_its_connection_is_closed(
    sent: bytes, status: int
) -> None:
    refused: list[int] = []
    door = HttpFrontend(Echo(), Limits(max_body_bytes=1000), refused.append)
    connection, wire = connected(door)

    connection.data_received(sent)
    await turns()
    connection.data_received(b"and more of it")
    await turns()

    assert statuses(wire.written) == [status] == refused
    assert 0 < len(json.loads(wire.written.split(b"\r\n\r\n", 1)[1])["error"]) <= 200
    assert wire.eof
    assert door.pending_bytes == 0


async def test_a_body_of_tiny_chunks_costs_no_more_than_its_bytes_allow() -> None:
    connection, wire = connected(HttpFrontend(Echo()))
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")

    sent = 0
    while not wire.eof and sent < 20_000:
        connection.data_received(b"1\r\nx\r\n" * 100)
        sent += 100

    assert statuses(wire.written) == [413]
    assert sent < 5_000


async def test_an_answer_that_its_client_reads_slowly_is_not_cut_off() -> None:
    connection, wire = connected(HttpFrontend(Echo()))
    wire.unread = 100
    connection.data_received(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await turns()

    wire.unread = 50
    connection._on_deadline()
    read_on = wire.closing
    connection._on_deadline()

    assert (read_on, wire.closing) == (False, True)


async def test_a_client_that_closed_its_half_and_reads_slowly_is_let_go_when_it_has_read_all() -> None:
    connection, wire = connected(HttpFrontend(Echo()))
    connection.data_received(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.pause_writing()
    connection.eof_received()
    await turns()
    unread = wire.closing

    connection.resume_writing()
    await turns()

    assert (unread, wire.closing) == (False, True)


async def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    echo = Echo()
    connection, wire = connected(HttpFrontend(echo))
    connection.data_received(b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    await turns()
    leave = wire.written

    connection.data_received(b"ab")
    await turns()

    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert statuses(wire.written) == [100, 200]
    assert echo.asked == [("POST", "/a", b"ab")]


async def test_bodies_of_all_connections_together_are_bounded() -> None:
    echo = Echo()
    echo.at_once = False
    door = HttpFrontend(echo, Limits(max_body_bytes=100, max_pending_bodies=2))
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n" + b"x" * 90
    wires = []
    for _ in range(3):
        connection, wire = connected(door)
        connection.data_received(request)
        await turns()
        wires.append(wire)

    for reply in echo.replies:
        reply(200, b"{}")
    await turns()

    assert [statuses(wire.written) for wire in wires] == [[200], [200], [503]]
    assert door.pending_bytes == 0


async def test_an_answer_to_a_client_that_is_gone_is_dropped() -> None:
    echo = Echo()
    echo.at_once = False
    door = HttpFrontend(echo)
    connection, wire = connected(door)
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
    await turns()

    wire.closing = True
    connection.connection_lost(None)
    echo.replies[0](200, b"{}")
    await turns()

    assert wire.written == b""
    assert door.pending_bytes == 0
    assert not door.connections


async def test_a_half_closed_client_still_gets_its_answer() -> None:
    echo = Echo()
    echo.at_once = False
    connection, wire = connected(HttpFrontend(echo))
    connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await turns()

    kept = connection.eof_received()
    echo.replies[0](200, b"{}")
    await turns()

    assert kept
    assert statuses(wire.written) == [200]
    assert wire.closing


async def test_http_1_0_is_answered_and_closed() -> None:
    connection, wire = connected(HttpFrontend(Echo()))

    connection.data_received(b"GET /a HTTP/1.0\r\n\r\n")
    await turns()

    assert b"Connection: close" in wire.written
    assert wire.eof


async def test_head_has_the_length_and_no_body() -> None:
    connection, wire = connected(HttpFrontend(Echo()))

    connection.data_received(b"HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n")
    await turns()

    assert wire.written.endswith(b"content-length: 6\r\n\r\n")


async def test_a_request_that_stops_in_its_middle_is_answered_with_408() -> None:
    connection, wire = connected(HttpFrontend(Echo()))
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Le")

    connection._on_deadline()

    assert statuses(wire.written) == [408]
    assert wire.eof


# -- over real sockets


@pytest.fixture
async def listening() -> AsyncIterator[Callable[..., Any]]:
    doors = []

    async def listen(handle: Callable[[Request, Reply], None], limits: Limits = Limits()) -> tuple[HttpFrontend, int]:  # noqa: B008
        door = ListeningHttpFrontend(handle, limits)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        await door.listen(bound)
        doors.append(door)
        return door, bound.getsockname()[1]

    yield listen
    for door in doors:
        await door.stop(1)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 20)


async def test_the_refusal_of_a_large_body_arrives_though_the_client_goes_on_sending(
    listening: Callable[..., Any],
) -> None:
    _, port = await listening(Echo(), Limits(max_body_bytes=1000))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(50):
        writer.write(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
    await writer.drain()

    answer = await read_all(reader)
    writer.close()

    assert statuses(answer) == [413]


async def test_a_slow_head_is_ended_while_others_are_answered(listening: Callable[..., Any]) -> None:
    _, port = await listening(Echo(), Limits(head_seconds=0.1))
    slow_reader, slow = await asyncio.open_connection("127.0.0.1", port)
    slow.write(b"GET / HTTP/1.1\r\nHost: a\r\nx-slow: ")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /quick HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

    quick, ended = await read_all(reader), await read_all(slow_reader)
    slow.close()
    writer.close()

    assert statuses(quick) == [200]
    assert statuses(ended) == [408]


async def test_an_idle_client_is_let_go(listening: Callable[..., Any]) -> None:
    _, port = await listening(Echo(), Limits(idle_seconds=0.05, head_seconds=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    rest = await read_all(reader)
    writer.close()

    assert rest == b""


async def test_a_stopping_frontend_answers_requests_under_way_and_takes_no_connection(
    listening: Callable[..., Any],
) -> None:
    echo = Echo()
    echo.at_once = False
    door, port = await listening(echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
    while not echo.replies:
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(door.stop(20))
    await asyncio.sleep(0)

    refused = not await connects(port)
    echo.replies[0](200, b"{}")
    answer = await read_all(reader)
    writer.close()
    await stopping

    assert refused
    assert statuses(answer) == [200]
    assert b"connection: close" in answer


async def test_a_request_to_a_stopping_frontend_is_answered_with_connection_close(
    listening: Callable[..., Any],
) -> None:
    door, port = await listening(Echo())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
    first = await reader.readuntil(b'/first"')
    stopping = asyncio.create_task(door.stop(20))
    await asyncio.sleep(0)

    writer.write(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
    second = await read_all(reader)
    writer.close()
    await stopping

    assert b"connection: close" not in first
    assert statuses(second) == [200]
    assert b"connection: close" in second


async def test_an_idle_client_does_not_delay_a_stopping_frontend(listening: Callable[..., Any]) -> None:
    door, port = await listening(Echo(), Limits(drain_idle_seconds=0.05, head_seconds=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not door.connections:
        await asyncio.sleep(0.001)

    stopping = asyncio.create_task(door.stop(20))
    rest = await read_all(reader)
    writer.close()
    await stopping

    assert rest == b""


async def test_an_idle_client_that_is_handed_over_in_the_drain_does_not_delay_it(listening: Callable[..., Any]) -> None:
    door, _ = await listening(Echo(), Limits(drain_idle_seconds=0.05))
    door.begin_drain(20)
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    await door.adopt_connection(near, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
    reader, writer = await asyncio.open_connection(sock=far)

    answer = await read_all(reader)
    writer.close()

    assert statuses(answer) == [200]
    assert b"connection: close" in answer


async def connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_input_behind_the_last_request_of_a_connection_does_not_cost_its_answer() -> None:
    echo = Echo()
    echo.at_once = False
    connection, wire = connected(HttpFrontend(echo))
    connection.data_received(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await turns()

    connection.data_received(b"GET /more HTTP/1.1\r\nHost: a\r\n\r\n")
    echo.replies[0](200, b"{}")
    await turns()

    assert [path for _, path, _ in echo.asked] == ["/last"]
    assert statuses(wire.written) == [200]
