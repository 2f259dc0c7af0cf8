"""Clients of the HTTP doors made of bytes, and what they look at."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np

from elastic_ctr.serving.client import JSON_LENGTH, tensor_request
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend
from elastic_ctr.serving.routes import SOURCE_PATH
from serving.frontends import SLOTS, Standing

Frontends = Standing[NativeHttpFrontend | HttpFrontend]


def body(*rows: dict[str, list[int]]) -> bytes:
    slots = [{"slots": [{"slot_name": name, "feasigns": keys} for name, keys in row.items()]} for row in rows]
    return json.dumps({"instances": slots}, separators=(",", ":")).encode()


def head(length: Any, *more: str, path: str = SOURCE_PATH, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: a", *more, f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def request(*rows: dict[str, list[int]], more: tuple[str, ...] = ()) -> bytes:
    data = body(*rows)
    return head(len(data), *more) + data


def tensors(*rows: list[list[int]]) -> bytes:
    """A request in binary tensors: the feasigns of slots a and b of each row."""
    feasigns = np.array([feasign for row in rows for slot in row for feasign in slot], np.uint64)
    lengths = np.array([[len(slot) for slot in row] for row in rows])
    data, json_length = tensor_request(feasigns, lengths, SLOTS)
    return head(len(data), f"{JSON_LENGTH}: {json_length}", path="/v2/models/ctr/infer") + data


def probabilities(answer: bytes) -> list[float]:
    """Of all replies, in their order."""
    found = re.findall(rb'"prob1":([-0-9.e]+)', answer)
    return [float(each) for each in found]


async def next_reply(reader: asyncio.StreamReader) -> bytes:
    """Up to the end of a prediction; fails with what came instead."""
    try:
        return await reader.readuntil(b'"err_code":0}')
    except asyncio.IncompleteReadError as ended:
        raise AssertionError(f"instead of a prediction came {ended.partial!r}") from None


EVERYDAY = request({"a": [1, 2], "b": [3]})


@asynccontextmanager
async def peer(it: Frontends) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(it: Frontends, pieces: list[bytes]) -> bytes:
    """All that is answered to these bytes, sent piece by piece by one who says no more then."""
    async with peer(it) as (reader, writer):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                # What has come so far is read for itself now and then, and with what follows at other times.
                await asyncio.sleep(0)
            writer.write_eof()
            answers = await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:
            return b"?"
    # To who says no more in any case it need not be said.
    return re.sub(rb"(?i:date: [^\r]*|connection: close)\r\n", b"", answers)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def moved(it: Frontends) -> int:
    """Connections that the door in Python has."""
    assert isinstance(it.door, NativeHttpFrontend)
    return len(it.door._behind.connections)


def mine(it: Frontends) -> int:
    assert isinstance(it.door, NativeHttpFrontend)
    return it.door.opened


def same_at_both(
    standing: Callable[[str], AbstractAsyncContextManager[Frontends]],
    pieces: list[bytes],
    cuts: list[int],
    change: tuple[int, bytes] | None,
) -> None:
    """Assert that both doors answer the same to these requests, in which one byte is another, sent in parts that end at the cuts."""
    data = b"".join(pieces)
    if change is not None:
        place = change[0] % len(data)
        data = data[:place] + change[1] + data[place + 1 :]
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    async def answers(kind: str) -> bytes:
        async with standing(kind) as it:
            return await said(it, [data[begin:end] for begin, end in itertools.pairwise(edges)])

    ours, theirs = asyncio.run(answers("numba")), asyncio.run(answers("python"))

    # Who is hung up on while still sending may lose what was said to it.
    if b"?" not in (ours, theirs):
        assert ours == theirs
