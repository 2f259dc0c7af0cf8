"""Both HTTP doors when clients are hostile, or the process is short of something."""

import asyncio
import os
import resource
import socket
from typing import Any

import pytest

from elastic_ctr.serving.frontends.fallback_http import Limits
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend
from serving.frontends import HTTP_KINDS, http_standing
from serving.http_peer import EVERYDAY, head, mine, moved, peer, probabilities, request, until


@pytest.fixture(params=HTTP_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_the_input_of_a_connection_is_its_own_though_bodies_are_small(kind: str) -> None:
    limits = Limits(max_body_bytes=1000)
    async with http_standing(kind, limits=limits) as it, peer(it) as (_, first), peer(it) as (reader, second):
        # Half a request of another, with buffers on both sides of those who say more than fits.
        second.write(EVERYDAY[:-5])
        others = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(4)]
        await until(
            lambda: it.door.opened == 6 if isinstance(it.door, NativeHttpFrontend) else len(it.door.connections) == 6
        )
        for writer in (first, *(writer for _, writer in others)):
            writer.write(EVERYDAY * 300 + head(900) + b"Z" * 60_000)
        await asyncio.sleep(0.05)
        second.write(EVERYDAY[-5:])

        assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]
        for _, writer in others:
            writer.close()


async def test_requests_without_end_before_the_first_version_do_not_keep_it_from_coming(kind: str) -> None:
    async with http_standing(kind, live=None) as it:

        async def ask() -> None:
            async with peer(it) as (reader, writer):
                answer = b""
                while b'"err_code":0}' not in answer:
                    writer.write(EVERYDAY * 8)
                    answer = b"".join([await reader.readuntil(b"}") for _ in range(8)])

        asking = [asyncio.create_task(ask()) for _ in range(20)]
        turns = 0
        while turns < 200:
            # Each turn of the loop is one in which orders are heard.
            await asyncio.sleep(0)
            turns += 1
        it.release(3)
        await asyncio.gather(*asking)

        assert it.counters.requests["elastic_ctr", 200] >= 20


async def test_a_client_that_does_not_read_does_not_spoil_the_end_of_others(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (_, deaf), peer(it) as (reader, writer):
        # At most 64 requests of one client are under way: at 32 rows each, the queue of the batcher (64 * 64 rows) has room for others.
        for _ in range(100):
            deaf.write(request(*[{"a": [1]}] * 32) * 50)
        writer.write(EVERYDAY)
        await reader.readuntil(b'"err_code":0}')

        async def ask_until_told() -> int:
            asked = 1
            while True:
                writer.write(EVERYDAY)
                answer = await reader.readuntil(b'"err_code":0}')
                asked += 1
                if b"connection: close" in answer:
                    return asked

        asking = asyncio.create_task(ask_until_told())
        await asyncio.sleep(0.05)
        await it.door.stop(3)

        assert await asking > 1
        assert await reader.read() == b""


async def test_out_of_descriptors_it_waits_instead_of_turning_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with http_standing("numba") as it:
        assert isinstance(it.door, NativeHttpFrontend)
        takes = 0
        take = it.door.poll

        def counted() -> None:
            nonlocal takes
            takes += 1
            take()

        monkeypatch.setattr(it.door, "poll", counted)
        clients = [socket.socket() for _ in range(30)]
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 5, hard))
        try:
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", it.port))
            await asyncio.sleep(0.3)
            assert takes < 100
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: mine(it) == 30)
        async with peer(it) as (reader, writer):
            writer.write(EVERYDAY)
            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]
        for client in clients:
            client.close()


async def test_many_strange_heads_of_others_do_not_send_an_everyday_client_away() -> None:
    async with http_standing("numba") as it, peer(it) as (reader, writer):
        for flood in range(8):
            writer.write(EVERYDAY)
            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]
            for number in range(20):
                async with peer(it) as (other, strange):
                    for again in range(4):
                        strange.write(request({"a": [1]}, more=(f"x-{flood}-{number}-{again}: a",)))
                        await other.readuntil(b'"err_code":0}')

        await until(lambda: mine(it) == 1)
        assert moved(it) == 0


async def test_answers_that_cannot_be_sent_cost_their_clients_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_standing("numba") as it, peer(it) as (reader, writer):

        def broken(*_: Any) -> None:
            raise RuntimeError("the test wants it")

        with monkeypatch.context() as once:
            once.setattr(it.door, "_answer", broken)
            writer.write(EVERYDAY)
            assert await reader.read() == b""
        async with peer(it) as (other, again):
            again.write(EVERYDAY)
            assert probabilities(await other.readuntil(b'"err_code":0}')) == [6]


async def test_a_frontend_can_be_stopped_twice() -> None:
    async with http_standing("numba") as it:
        await it.door.stop(0)
        await it.door.stop(0)
