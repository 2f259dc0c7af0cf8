"""Worker processes of a role. The parent sends orders over a socket, kills a hung worker, and restarts one that has ended.

Orders and answers are JSON objects, one a line. An order has `id` and `do`, its answer the same `id`. A line with `event`
answers no order. A worker sends a line at least every second; its field `busy` is true during long work. The end of the
socket reveals a dead worker at once. A hung worker keeps its socket open, so only its silence reveals it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from elastic_ctr.runtime.child_process import python_module, start_child
from elastic_ctr.runtime.growing_pause import growing_pause

_log = logging.getLogger(__name__)

# A healthy worker sends a line at least every second, and the parent checks as often.
LOOK_SECONDS = 1.0
# After this silence a worker gets no more work until it sends a line again.
SILENT_SECONDS = 10.0
# Silence after which a worker without long work is killed: even a loaded machine schedules it more often.
HUNG_SECONDS = 30.0
# The same during work that may occupy the disk or the GIL: imports, compilation, loading a network. Such work takes tens of
# seconds on a busy machine of two cores; a worker that takes ten times as long hangs.
LONG_SECONDS = 600.0
# Exit code by which a worker reports that no worker can run on this machine; its log has the reason.
CANNOT_WORK = 78

_LINE_LIMIT = 64 << 10  # asyncio's own
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_STEADY_SECONDS = 60.0
_END_SECONDS = 5.0


class WorkerFailed(RuntimeError):
    """A worker failed to start. The message has the reason; the pool starts another."""


class WorkerLost(WorkerFailed):
    """A worker ended before it answered."""


class WorkerHung(WorkerLost):
    """A worker hung, and was killed before it answered."""


class CannotWork(RuntimeError):
    """No worker can run on this machine."""


class Watchdog:
    """The parent's record of one worker: when its last line came, `busy` during long work, and its open orders.

    Seconds are counted in ticks and not read from a clock: a parent that does not run (stopped, frozen, starved) does
    not tick, so it does not mistake its own pause for a worker's silence.
    """

    def __init__(self, order_seconds: float = LONG_SECONDS) -> None:
        self._order_seconds = order_seconds
        self._now = 0.0
        self._heard_at = 0.0
        self._owed: dict[int, float] = {}
        self._given_up = False
        # A worker begins with imports.
        self.busy = True

    @property
    def silent(self) -> bool:
        """True if an idle worker is unresponsive. A busy worker may still answer lookups without sending lines."""
        return not self.busy and self._now - self._heard_at >= SILENT_SECONDS

    def heard(self) -> None:
        self._heard_at = self._now

    def ordered(self, number: int) -> None:
        self._owed[number] = self._now

    def answered(self, number: int) -> None:
        self._owed.pop(number, None)

    def tick(self) -> str | None:
        """Call this every LOOK_SECONDS. Return, once, the reason why the worker is to be killed now, else None."""
        self._now += LOOK_SECONDS
        silence = self._now - self._heard_at
        waited = self._now - min(self._owed.values(), default=self._now)
        wrong = None
        if not self._given_up and silence >= (LONG_SECONDS if self.busy else HUNG_SECONDS):
            wrong = f"has said nothing for {silence:.0f} s"
        elif not self._given_up and waited >= self._order_seconds:
            wrong = f"has owed an answer for {waited:.0f} s"
        self._given_up = self._given_up or wrong is not None
        return wrong


class Child(NamedTuple):
    """A process, and the reader and writer of the parent's end of its socket."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def start(
    module: str, arguments: Mapping[str, object], *, descriptors: Sequence[int] = (), line_limit: int = _LINE_LIMIT
) -> Child:
    """Run a module with these arguments, --parent (this process's pid) and --control (the descriptor of its end of the socket).

    It also inherits `descriptors`; a line that it writes has at most `line_limit` bytes. Call this from the main thread: the
    kernel kills a worker when the thread that started it ends. Raises OSError if no process or memory is available.
    """
    ours, theirs = socket.socketpair()
    given = {"parent": os.getpid(), "control": theirs.fileno(), **arguments}
    command = python_module(module, *(f"--{name}={value}" for name, value in given.items()))
    with theirs:
        try:
            process = start_child(command, binds_itself=True, descriptors=(theirs.fileno(), *descriptors))
        except OSError:
            ours.close()
            raise
    return Child(process, *await asyncio.open_connection(sock=ours, limit=line_limit))


class Worker:
    """One worker process and the parent's end of its socket."""

    def __init__(self, index: int, child: Child, order_seconds: float = LONG_SECONDS) -> None:
        self.index = index
        self.process = child.process
        self.watchdog = Watchdog(order_seconds)
        self.hung = False
        self._writer = child.writer
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._started = asyncio.Event()
        self.ended = asyncio.create_task(self._listen(child.reader))

    async def started(self) -> None:
        """Wait until the worker takes orders, or has ended before."""
        await self._started.wait()

    def send(self, do: str, **what: Any) -> asyncio.Future[dict[str, Any]]:
        """Send an order now. Return a future of its answer, which raises WorkerLost."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # Some callers do not wait for the answer.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.ended.done():
            answer.set_exception(self._lost())
            return answer
        number = next(self._numbers)
        self._answers[number] = answer
        self.watchdog.ordered(number)
        self._writer.write(json.dumps({"id": number, "do": do, **what}).encode() + b"\n")
        return answer

    def on_event(self, said: dict[str, Any]) -> None:
        """Handle a line that answers no order."""

    def kill(self) -> None:
        """Kill the worker because it hangs; the pool starts another."""
        self.hung = True
        self.process.kill()

    async def end(self, seconds: float = _END_SECONDS) -> int:
        """Wait `seconds` for the process to end, then kill it. Return its exit code."""
        self._writer.close()
        for _ in range(max(1, int(seconds / 0.05))):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        else:
            self.process.kill()
        code = await asyncio.to_thread(self.process.wait)
        self.ended.cancel()
        return code

    def __str__(self) -> str:
        return f"worker {self.index} (pid {self.process.pid})"

    def _lost(self) -> WorkerLost:
        return WorkerHung(f"{self} hung, and was killed") if self.hung else WorkerLost(f"{self} ended")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said = json.loads(line)
                self.watchdog.heard()
                self.watchdog.busy = said.pop("busy", self.watchdog.busy)
                self._started.set()
                if "event" in said:
                    self.on_event(said)
                    continue
                number = said.pop("id")
                self.watchdog.answered(number)
                answer = self._answers.pop(number)
                if not answer.done():
                    answer.set_result(said)
        except (ConnectionError, ValueError):
            pass  # as at the end of the stream: the process is gone, or its lines are garbage
        self._started.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost())


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class ProcessPool(Generic[AnyWorker]):
    """Keeps `count` workers running: `spawn(index)` starts one, `run(worker)` uses it until it has ended.

    `run` may raise WorkerFailed; `spawn` may raise OSError.
    """

    def __init__(
        self, count: int, spawn: Callable[[int], Awaitable[AnyWorker]], run: Callable[[AnyWorker], Awaitable[None]]
    ) -> None:
        self.count = count
        self.running: dict[int, AnyWorker] = {}
        # Restarts by worker index.
        self._restarts = Counter[int]()
        self._spawn = spawn
        self._run = run
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def restarts(self) -> int:
        return self._restarts.total()

    def start(self) -> None:
        keepers = [self._keep(index) for index in range(self.count)]
        self._tasks = [asyncio.create_task(each) for each in (*keepers, self._watch())]

    async def kept(self) -> None:
        """Wait until `stop`. Raises the error that ended a keeper."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """End all workers; each has a few seconds before it is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, index: int) -> None:
        failures = 0
        while True:
            try:
                worker = await self._spawn(index)
            except OSError as failed:
                # No process, memory or disk is available now; a later try may succeed.
                failures += 1
                pause = growing_pause(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
                _log.warning("worker %d cannot be started: %s; trying again in %.1f s", index, failed, pause)
                await asyncio.sleep(pause)
                continue
            self.running[index] = worker
            began = asyncio.get_running_loop().time()
            try:
                await self._run(worker)
            except WorkerFailed as failed:
                _log.error("%s did not start: %s", worker, failed)
            finally:
                del self.running[index]
                code = await worker.end()
            if code == CANNOT_WORK:
                raise CannotWork(f"{worker} cannot work on this machine, and none will: the log says why")
            steady = asyncio.get_running_loop().time() - began > _STEADY_SECONDS
            failures = 1 if steady else failures + 1
            pause = growing_pause(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
            _log.warning("%s ended with code %d; another is started in %.1f s", worker, code, pause)
            self._restarts[index] += 1
            await asyncio.sleep(pause)

    async def _watch(self) -> None:
        """Kill hung workers; their keepers then start others."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for worker in list(self.running.values()):
                if wrong := worker.watchdog.tick():
                    _log.error("%s %s: it hangs, and is killed", worker, wrong)
                    worker.kill()
