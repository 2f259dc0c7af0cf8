"""A batcher over a table and a network that answer as a test says."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.cube.client.reader import CubeUnavailable, VersionNotHeld
from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.instances import Instances, instances_of
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.request_error import RequestError
from elastic_ctr.serving.worker_counters import Counters

SLOTS = SlotList(("0", "1"))
SAMPLES = instances_of([[[5], []]], 2)


class Table:
    """A cube in memory: a key's value is the key plus a hundred times the version.

    `gate` holds back lookups, those `behind` it.
    """

    def __init__(self) -> None:
        self.held = {1, 2}
        self.unknown: set[int] = set()
        self.asked: list[tuple[int, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.behind: Callable[[int, list[int]], bool] = lambda _version, _keys: True
        self.down = False
        self.fails: set[int] = set()

    async def lookup(self, version: int, keys: Keys, /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        self.asked.append((version, keys.tolist()))
        if self.behind(version, keys.tolist()):
            await self.gate.wait()
        if self.down or version in self.fails:
            raise CubeUnavailable("nobody answers")
        if version not in self.held:
            raise VersionNotHeld(version, "the test has taken it")
        missing = np.isin(keys, np.array(sorted(self.unknown), np.uint64))
        return (keys.astype(np.float32) + 100 * version).reshape(-1, 1), missing


class Sum:
    """A network whose answer is the sum of its inputs."""

    row_seconds = 0.0
    closed = False

    def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
        assert not self.closed
        answer: Floats = pooled.sum(axis=1)
        return answer

    def close(self) -> None:
        self.closed = True


class Witness(Sum):
    """A network that knows which threads computed it, and that never two did at once."""

    def __init__(self, row_seconds: float = 0.0) -> None:
        self.row_seconds = row_seconds
        self.threads: list[int] = []
        self._computing = threading.Lock()

    def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
        assert self._computing.acquire(blocking=False)
        self.threads.append(threading.get_ident())
        time.sleep(0.002)
        answer = super().predict(pooled)
        self._computing.release()
        return answer


class Running:
    def __init__(self, batcher: Batcher, table: Table, counters: Counters, paddle: InlineExecutor) -> None:
        self.batcher = batcher
        self.paddle = paddle
        self.table = table
        self.counters = counters

    def add(self, version: int, slots: SlotList = SLOTS, network: Sum | None = None) -> Sum:
        network = network or Sum()
        self.batcher.add(ModelVersion(version, Schema(slots), None, 1, network, self.table))
        return network

    def ask(self, *rows: list[list[int]], version: int | None = None) -> "asyncio.Future[tuple[list[float], int]]":
        """Answers and their version, later; of `version` if it is held."""
        answered: asyncio.Future[tuple[list[float], int]] = asyncio.get_running_loop().create_future()

        def done(outcome: Floats | Exception, version: int) -> None:
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result((outcome.tolist(), version))

        def parse(schema: Schema) -> Instances:
            slots = schema.slots
            return instances_of([row[: len(slots)] for row in rows], len(slots))

        self.batcher.submit(parse, parse(Schema(SLOTS)), Schema(SLOTS), done, version)
        return answered

    def ask_until_refused(self) -> "list[asyncio.Future[tuple[list[float], int]]]":
        """One row at a time."""
        asked = []
        with suppress(RequestError):
            while True:
                asked.append(self.ask([[5], []]))
        return asked


@asynccontextmanager
async def running(
    live: int | None = None, newest_live: Callable[[], Awaitable[int | None]] | None = None, **what: Any
) -> AsyncIterator[Running]:
    async def known_live() -> int | None:
        return live

    table, counters = Table(), Counters()
    with InlineExecutor("paddle") as paddle:
        batcher = Batcher(paddle, newest_live or known_live, counters, **what)
        task = asyncio.create_task(batcher.run())
        try:
            yield Running(batcher, table, counters, paddle)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
