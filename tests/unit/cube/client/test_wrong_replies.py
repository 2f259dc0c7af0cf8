"""The reader's client against servers that misbehave."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cube.client.readers import (
    ALL,
    DIM,
    KEYS,
    PARTITIONS,
    address,
    client_of,
    client_of_two,
    drops_of,
    greet,
    impostor,
    prefer,
    request,
    right_reply,
    table_of,
    until,
)
from cube.parts import values_for
from cube.running import Running
from cube_oracles import pack_refusal, pack_reply
from elastic_ctr.cube.client.reader import CubeUnavailable
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.wire import HELLO_BYTES, Head, Hello, Status


def _of_another_version(head: Head, keys: Keys) -> bytes:
    return pack_reply(head.id, head.version + 1, values_for(keys, DIM), np.zeros(keys.size, np.bool_))


def _of_another_request(head: Head, keys: Keys) -> bytes:
    return pack_reply(head.id + 7, head.version, values_for(keys, DIM), np.zeros(keys.size, np.bool_))


def _of_fewer_keys(head: Head, keys: Keys) -> bytes:
    return pack_reply(head.id, head.version, values_for(keys[1:], DIM), np.zeros(keys.size - 1, np.bool_))


def _of_another_dim(head: Head, keys: Keys) -> bytes:
    return pack_reply(head.id, head.version, values_for(keys, DIM + 1), np.zeros(keys.size, np.bool_))


def _of_a_huge_length(head: Head, keys: Keys) -> bytes:
    return b"\xff" * 4 + pack_refusal(Status.OK, head.id, head.version)[4:]


def _of_an_unknown_status(head: Head, keys: Keys) -> bytes:
    refusal = bytearray(pack_refusal(Status.BUSY, head.id, head.version))
    refusal[4] = 99
    return bytes(refusal)


@pytest.mark.parametrize(
    "lie",
    [
        _of_another_version, _of_another_request, _of_fewer_keys, _of_another_dim, _of_a_huge_length,
        _of_an_unknown_status,
    ],
)  # fmt: skip
async def test_a_wrong_reply_drops_the_connection_and_never_becomes_an_answer(
    lie: Callable[[Head, Keys], bytes], start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    hung_up = asyncio.Event()

    async def lying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        writer.write(lie(head, keys))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        hung_up.set()

    async with impostor(lying) as liar, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {liar: ALL, address(server): ALL}})
        prefer(client, [liar, address(server)])
        values, _ = await client.lookup(1, KEYS)
        await hung_up.wait()
        assert drops_of(client) == 1

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_server_that_passes_questions_over_is_dropped(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async def forgetful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            await request(reader)
            head, keys = await request(reader)
            writer.write(right_reply(head, keys))

    async with client_of_two(forgetful, server, timeout_ms=200, retries=20) as (client, passing):
        prefer(client, [passing, address(server)])
        for _ in range(10):
            await client.lookup(1, KEYS)

        await until(lambda: client._connection(passing).drops > 0)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(DIM, PARTITIONS, 100, protocol=2).pack(), "speaks protocol 2"),
        (Hello(DIM + 1, PARTITIONS, 100).pack(), "values of dim 5, this client needs 4"),
        (Hello(DIM, PARTITIONS + 1, 100).pack(), "over 7 partitions, this client over 6"),
        (b"HTTP/1.1 400 Bad", "is this the cube's port"),
    ],
)
async def test_a_server_that_greets_wrongly_is_not_spoken_to(hello: bytes, reason: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_BYTES)
        writer.write(hello)
        await reader.read()

    async with impostor(greet) as stranger, client_of(partitions=PARTITIONS, retries=0) as client:
        client.set_holders({1: {stranger: ALL}})

        with pytest.raises(CubeUnavailable, match=reason):
            await client.lookup(1, KEYS)
