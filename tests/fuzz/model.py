"""A batcher with a model that is easily computed, and a frontend before it that listens in a folder of its own."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend
from elastic_ctr.serving.worker_counters import Counters

SLOTS = SlotList(("0", "1", "7"))


class Sum:
    """The probability of a row is the sum of its keys."""

    row_seconds = 0.0

    def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
        total: Floats = pooled.sum(axis=1).astype(np.float32)
        return total

    def close(self) -> None: ...


class Table:
    """A key's value is the key."""

    async def lookup(self, _version: int, keys: npt.NDArray[np.uint64], /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        return keys.astype(np.float32)[:, None], np.zeros(len(keys), np.bool_)


class Door(Protocol):
    """A frontend that listens."""

    @property
    def opened(self) -> int: ...

    async def listen(self, socket: socket.socket, /) -> None: ...

    async def stop(self, grace_seconds: float, /) -> None: ...


class InPython:
    """The fallback frontend on a socket of its own; in a worker it adopts the connections of the native one."""

    def __init__(self, frontend: HttpFrontend) -> None:
        self._frontend = frontend

    @property
    def opened(self) -> int:
        return len(self._frontend.connections)

    async def listen(self, socket: socket.socket, /) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._frontend.new_connection, sock=socket, backlog=2048)

    async def stop(self, grace_seconds: float, /) -> None:
        self._server.close()
        self._frontend.begin_drain(grace_seconds)
        await self._frontend.stop(grace_seconds)


class Behind:
    """What a door stands before, and its end."""

    def __init__(self, schema: Schema | None = None) -> None:
        self.counters = Counters()
        self.paddle = InlineExecutor("paddle")
        self.parser = ThreadPoolExecutor(1)
        self.batcher = Batcher(self.paddle, self._newest, self.counters, max_rows=64, shared_rows=4)
        self.batcher.add(ModelVersion(7, schema or Schema(SLOTS), None, 1, Sum(), Table()))
        self.batcher.pin(7)

    async def _newest(self) -> int | None:
        return None

    @asynccontextmanager
    async def listening(self, door: Door) -> AsyncIterator[str]:
        """The address of the door, until it is stopped; then nobody is connected to it."""
        with tempfile.TemporaryDirectory() as folder:
            address = str(Path(folder) / "door")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            await door.listen(listener)
            running = asyncio.create_task(self.batcher.run())
            yield address
            await door.stop(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        self.paddle.shutdown()
        self.parser.shutdown()
        assert door.opened == 0, "a connection was not closed"
