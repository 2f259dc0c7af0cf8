"""The worker processes of cube-server: started, told what to hold, started again when they die."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from elastic_ctr.cube.server import counters
from elastic_ctr.cube.server.holdings import Assignments

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_END_SECONDS = 5.0


class WorkerLost(RuntimeError):
    """A worker ended before it answered."""


class WorkerRefused(RuntimeError):
    """What a worker said to an order it could not carry out."""


class Worker:
    """One process and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.process = process
        self._writer = writer
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._answers.put_nowait(line)
        except ConnectionError:
            pass  # the same as the end of the stream: the process is gone
        self._answers.put_nowait(b"")

    async def ended(self) -> None:
        await asyncio.wait([self._listening])

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order, wait for its answer. Raises WorkerLost, WorkerRefused."""
        try:
            self._writer.write(json.dumps(order).encode() + b"\n")
            await self._writer.drain()
        except ConnectionError as lost:
            raise WorkerLost(f"worker {self.process.pid} ended") from lost
        line = await self._answers.get()
        if not line:
            raise WorkerLost(f"worker {self.process.pid} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerRefused(answer["error"])
        return answer

    async def end(self) -> None:
        """Let it go: it ends when the socket does; a hung one is killed."""
        self._writer.close()
        try:
            await asyncio.wait_for(asyncio.to_thread(self.process.wait, _END_SECONDS), _END_SECONDS + 1)
        except (subprocess.TimeoutExpired, asyncio.TimeoutError):
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self._listening.cancel()


class Workers:
    """All workers. They hold what `assigned` says; a new one accepts connections only after it holds all of it."""

    def __init__(self, host: str, port: int, count: int, max_keys: int, max_connections: int, awake_us: int) -> None:
        self.assigned = Assignments()
        self.draining = False
        self.restarts = 0
        self.path: str | None = None
        self._address = (host, port)
        self._limits = {"max-keys": max_keys, "max-connections": max_connections, "awake-us": awake_us}
        self._descriptor, self.counts = counters.create(count)
        self._serving: dict[int, Worker] = {}
        # A change and a start exclude each other, so that no worker misses the one or half of the other.
        self._changing = asyncio.Lock()
        self._keepers: list[asyncio.Task[None]] = []
        self._count = count
        self._on_change: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        return len(self._serving) == self._count

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._serving.values()]

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(index)) for index in range(self._count)]

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        os.close(self._descriptor)

    async def change(self, rule: Callable[[Assignments], Assignments], *, draining: bool | None = None) -> None:
        """Have every worker hold what the rule makes of the assignments; all of them or, refused, none.

        Raises what the rule raises, and WorkerRefused. A worker lost meanwhile gets the new state when it starts.
        """
        async with self._changing:
            wanted = rule(self.assigned)
            drain = self.draining if draining is None else draining
            outcomes = await asyncio.gather(
                *(worker.order(_hold(wanted, drain)) for worker in self._serving.values()), return_exceptions=True
            )
            refusals = [outcome for outcome in outcomes if isinstance(outcome, WorkerRefused)]
            if refusals:
                back = _hold(self.assigned, self.draining)
                await asyncio.gather(*(worker.order(back) for worker in self._serving.values()), return_exceptions=True)
                raise refusals[0]
            if strange := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
                for error in strange:
                    if not isinstance(error, WorkerLost):
                        raise error
            self.assigned, self.draining = wanted, drain

    async def _keep(self, index: int) -> None:
        """Start worker number index, and again whenever it ends."""
        pause = _FIRST_PAUSE
        while True:
            worker = await self._spawn(index)
            try:
                async with self._changing:
                    await worker.order(_hold(self.assigned, self.draining))
                    host, port = self._address
                    self.path = (await worker.order({"do": "listen", "host": host, "port": port}))["path"]
                    self._serving[index] = worker
                pause = _FIRST_PAUSE
                _log.info("worker %d (pid %d) answers lookups", index, worker.process.pid)
                await worker.ended()
                _log.warning("worker %d (pid %d) ended; another is started", index, worker.process.pid)
            except (WorkerLost, WorkerRefused) as failed:
                _log.error("worker %d did not start: %s; trying again in %.1f s", index, failed, pause)
            finally:
                self._serving.pop(index, None)
                await worker.end()
            self.restarts += 1
            self.counts[index, [counters.CONNECTIONS, counters.IN_FLIGHT]] = 0
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _spawn(self, index: int) -> Worker:
        ours, theirs = socket.socketpair()
        arguments = {
            "parent": os.getpid(), "control": theirs.fileno(), "counters": self._descriptor, "workers": self._count,
            "index": index, **self._limits,
        }  # fmt: skip
        # From the main thread: a child asks to die with the thread that started it.
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "elastic_ctr.cube.server.worker",
                *(f"--{name}={value}" for name, value in arguments.items()),
            ],
            pass_fds=(theirs.fileno(), self._descriptor),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        return Worker(process, *await asyncio.open_connection(sock=ours))


def _hold(assigned: Assignments, draining: bool) -> dict[str, Any]:
    return {"do": "hold", "versions": assigned.to_json(), "draining": draining}
