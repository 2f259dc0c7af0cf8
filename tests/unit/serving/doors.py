"""Rounds with a network that can be computed by hand, and a binary door of either kind before them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.binary_door import BinaryDoor, PythonDoor
from elastic_ctr.serving.compiled_door import CompiledDoor
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.frame_desk import FrameLimits
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.rounds import ModelVersion, Rounds

SLOTS = SlotList(("a", "b"))
KINDS: dict[str, Callable[[Rounds, Counters, FrameLimits], BinaryDoor]] = {"numba": CompiledDoor, "python": PythonDoor}


class Sum:
    """The probability of a row is the sum of its keys: anybody can check it."""

    def predict(self, pooled: Floats, /) -> Floats:
        total: Floats = pooled.sum(axis=1).astype(np.float32)
        return total

    def close(self) -> None: ...


class Table:
    """A key's value is the key. Waits at its gate; raises what it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.wrong: Exception | None = None
        self.lookups = 0

    async def lookup(self, _version: int, keys: npt.NDArray[np.uint64], /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        self.lookups += 1
        await self.gate.wait()
        if self.wrong is not None:
            raise self.wrong
        return keys.astype(np.float32)[:, None], np.zeros(len(keys), np.bool_)


class Standing:
    """A door that listens, and what is behind it."""

    def __init__(self, door: BinaryDoor, rounds: Rounds, table: Table, counters: Counters, port: int) -> None:
        self.door = door
        self.rounds = rounds
        self.table = table
        self.counters = counters
        self.port = port
        self.address = f"127.0.0.1:{port}"

    def release(self, version: int, slots: SlotList = SLOTS) -> None:
        self.rounds.add(ModelVersion(version, slots, None, 1, 0, Sum(), self.table))
        self.rounds.pin(version)


def bound() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


@asynccontextmanager
async def standing(kind: str, *, live: int | None = 7, **limits: Any) -> AsyncIterator[Standing]:
    async def newest() -> int | None:
        return None

    counters, table = Counters(), Table()
    rounds = Rounds(ThreadPoolExecutor(1), newest, counters, max_rows=64)
    door = KINDS[kind](rounds, counters, FrameLimits(**{"max_rows": 64, **limits}))
    listener = bound()
    await door.listen(listener)
    it = Standing(door, rounds, table, counters, listener.getsockname()[1])
    if live is not None:
        it.release(live)
    running = asyncio.create_task(rounds.run())
    try:
        yield it
    finally:
        await door.stop(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
