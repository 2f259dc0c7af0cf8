"""Clients, and the servers that they are tried against."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from cube.parts import values_for, write_parts
from cube.running import Running
from cube_oracles import pack_refusal, pack_reply, unpack_request
from elastic_ctr.cube.client.reader import CubeClient, CubeUnavailable
from elastic_ctr.cube.dictionary.format import Keys, Values
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.wire import AFTER_LENGTH, HEAD_BYTES, HELLO_BYTES, Head, Hello, Status

DIM, PARTITIONS = 4, 6
KEYS = np.arange(1, 601, dtype=np.uint64)
ALL = list(range(PARTITIONS))
# Far beyond what any answer takes: a test that needs a timeout says a shorter one.
PATIENT = 30_000

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def client_of(dim: int = DIM, **settings: object) -> AsyncIterator[CubeClient]:
    usual = {"partitions": PARTITIONS, "timeout_ms": PATIENT, "hedge_ms": None, "deadline_ms": 0}
    client = CubeClient(dim, **{**usual, **settings})  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def impostor(talk: Talk) -> AsyncIterator[str]:
    """A server that says what the test wants; its address."""

    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(over := asyncio.Event())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        # Clients connect when they like: whoever was accepted last is served only in the turns after.
        for _ in range(5):
            await asyncio.sleep(0)
        for over in ended:
            await over.wait()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dim: int = DIM) -> None:
    await reader.readexactly(HELLO_BYTES)
    writer.write(Hello(dim, PARTITIONS, 1000).pack())


async def request(reader: asyncio.StreamReader) -> tuple[Head, Keys]:
    head = await reader.readexactly(HEAD_BYTES)
    return unpack_request(head + await reader.readexactly(Head.unpack(head).length - AFTER_LENGTH))


def right_reply(head: Head, keys: Keys) -> bytes:
    return pack_reply(head.id, head.version, values_for(keys, DIM), np.zeros(keys.size, np.bool_))


def refused(head: Head, status: Status) -> bytes:
    return pack_refusal(status, head.id, head.version)


def answering(answer: Callable[[int, Head, Keys], bytes]) -> Talk:
    """Answers each question at once; which of all it was asked, from 1 on, is the first argument."""
    numbers = itertools.count(1)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            writer.write(answer(next(numbers), *await request(reader)))

    return talk


refuse = answering(lambda _, head, __: refused(head, Status.VERSION_NOT_HELD))


def answering_once(release: asyncio.Event, asked: asyncio.Event | None = None) -> Talk:
    """Answers a single question, and that late; says that it was asked."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        if asked is not None:
            asked.set()
        await release.wait()
        writer.write(right_reply(head, keys))
        await reader.read()

    return talk


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes every question and answers none."""
    await greet(reader, writer)
    while await reader.read(1 << 16):
        pass


def planned() -> list[asyncio.TimerHandle]:
    loop = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def client_of_two(talk: Talk, server: Running, **settings: Any) -> AsyncIterator[tuple[CubeClient, str]]:
    """A client with two holders of version 1, both connected, that hedges after 1 ms; and the impostor's address."""
    async with impostor(talk) as other, client_of(hedge_ms=1, partitions=PARTITIONS, **settings) as client:
        client.set_holders({1: {other: ALL, address(server): ALL}})
        await until(lambda: client._connection(other).greeted and client._connection(address(server)).greeted)
        yield client, other


def prefer(client: CubeClient, order: list[str]) -> None:
    """Whom this client asks first is drawn; these tests need it said."""

    def ordered(addresses: tuple[str, ...]) -> list[str]:
        return [address for address in order if address in addresses]

    client._ordered = ordered  # type: ignore[method-assign]


def favour(client: CubeClient, best: str, other: str) -> None:
    """This is whom the client likes best, as long as nothing speaks against either."""
    ours, theirs = client._connection(best), client._connection(other)
    ours.rank, theirs.rank = sorted((ours.rank, theirs.rank))


def frames_of(client: CubeClient) -> int:
    """Frames that it sent to the holders it knows."""
    return sum(connection.frames for connection in client._connections.values())


def drops_of(client: CubeClient) -> int:
    """Connections to the holders it knows that it gave up."""
    return sum(connection.drops for connection in client._connections.values())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run; the limit is only there to end a test that has failed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 60
    while not condition():
        assert loop.time() < end, "what was waited for did not happen"
        await asyncio.sleep(0.001)


async def once_available(client: CubeClient) -> Values:
    """The client may still pause from failures before; the limit is only there to end a test that has failed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 60
    while True:
        try:
            return (await client.lookup(1, KEYS))[0]
        except CubeUnavailable:  # noqa: PERF203
            assert loop.time() < end


def address(server: Running) -> str:
    return f"127.0.0.1:{server.port}"


def table_of(folder: Path, version: int = 1, only: list[int] | None = None) -> VersionTable:
    paths = write_parts(folder, KEYS, dim=DIM, version=version, partitions=PARTITIONS, only=only)
    return VersionTable.open(version, DIM, PARTITIONS, paths)
