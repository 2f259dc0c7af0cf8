"""A batcher with a network that can be computed by hand, and an HTTP frontend of either kind before them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend, Limits
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend, NativeLimits
from elastic_ctr.serving.routes import Routes
from elastic_ctr.serving.worker_counters import Counters
from fuzz.model import Sum

SLOTS = SlotList(("a", "b"))


class Table:
    """A key's value is the key, and what is `added` for a version. Waits at its gate; raises what it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.wrong: Exception | None = None
        self.lookups = 0
        self.added: dict[int, float] = {}
        self.stands_still: set[int] = set()

    async def lookup(self, version: int, keys: npt.NDArray[np.uint64], /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        self.lookups += 1
        await self.gate.wait()
        if version in self.stands_still:
            await asyncio.Event().wait()
        if self.wrong is not None:
            raise self.wrong
        return keys.astype(np.float32)[:, None] + np.float32(self.added.get(version, 0)), np.zeros(len(keys), np.bool_)


DoorKind = TypeVar("DoorKind")


class Standing(Generic[DoorKind]):
    """A door that listens, and what is behind it."""

    def __init__(self, door: DoorKind, batcher: Batcher, table: Table, counters: Counters, port: int) -> None:
        self.door = door
        self.batcher = batcher
        self.table = table
        self.counters = counters
        self.port = port
        self.address = f"127.0.0.1:{port}"

    def add(self, version: int, slots: SlotList = SLOTS) -> None:
        self.batcher.add(ModelVersion(version, Schema(slots), None, 1, Sum(), self.table))

    def release(self, version: int, slots: SlotList = SLOTS) -> None:
        self.add(version, slots)
        self.batcher.pin(version)


def bound() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


class _Behind:
    """What any door stands before."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.table = Table()
        self.paddle = InlineExecutor("paddle")
        self.parser = ThreadPoolExecutor(1)
        self.batcher = Batcher(self.paddle, self._newest, self.counters, max_rows=64, shared_rows=4)

    async def _newest(self) -> int | None:
        return None

    @asynccontextmanager
    async def standing(self, door: Any, live: int | None) -> AsyncIterator[Standing[Any]]:
        """The door, from listening to the end of all that was behind it."""
        listener = bound()
        await door.listen(listener)
        it = Standing(door, self.batcher, self.table, self.counters, listener.getsockname()[1])
        if live is not None:
            it.release(live)
        running = asyncio.create_task(self.batcher.run())
        try:
            yield it
        finally:
            await door.stop(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.paddle.shutdown()
            self.parser.shutdown()


class ListeningHttpFrontend(HttpFrontend):
    """The fallback frontend on a socket of its own; in a worker it adopts the connections of the native one."""

    async def listen(self, socket: socket.socket) -> None:
        self.server = await asyncio.get_running_loop().create_server(self.new_connection, sock=socket, backlog=2048)

    def begin_drain(self, grace_seconds: float) -> None:
        self.server.close()
        super().begin_drain(grace_seconds)


HTTP_KINDS = ("numba", "python")


@asynccontextmanager
async def http_standing(
    kind: str,
    *,
    live: int | None = 7,
    limits: Limits = Limits(),  # noqa: B008
    own: NativeLimits | None = None,
) -> AsyncIterator[Standing[NativeHttpFrontend | HttpFrontend]]:
    behind = _Behind()
    service = Routes(behind.batcher, behind.counters, behind.parser, model_name="ctr", version="0", max_instances=64)
    door: HttpFrontend | NativeHttpFrontend
    if kind == "python":
        door = ListeningHttpFrontend(service.handle, limits)
    else:
        door = NativeHttpFrontend(service, HttpFrontend(service.handle, limits), own or NativeLimits(max_rows=64))
    async with behind.standing(door, live) as it:
        yield it
