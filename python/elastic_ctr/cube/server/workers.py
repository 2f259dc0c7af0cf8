"""The worker processes of cube-server: started, told what to hold, started again when they die or hang."""

import asyncio
import itertools
import json
import logging
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart
from elastic_ctr.cube.server import counters
from elastic_ctr.cube.server.holdings import Assignments
from elastic_ctr.runtime import child, patience
from elastic_ctr.runtime.patience import Patience

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_END_SECONDS = 5.0
# A worker says that it lives also while it loads, so this is for one whose load alone is stuck: in an hour a slow disk
# (100 MB/s) reads 360 GB, more than a pod holds.
_ORDER_SECONDS = 3600.0
# A load waits so long for a worker that serves. Machine code that is not cached takes a minute; an agent asks for ten.
_NO_WORKER_SECONDS = 300.0
CANNOT_COMPILE = 78  # exit code of a worker: none of this server will ever answer a lookup
# What a worker cannot hold so many times in a row, nobody will.
_REFUSED_TIMES = 3


class WorkerLost(RuntimeError):
    """A worker ended before it answered."""


class WorkerRefused(RuntimeError):
    """An order that could not be carried out: what a worker said, or that none is left to say it."""


class CannotHold(WorkerRefused):
    """A worker that was started anew cannot hold what all others held."""


class CannotCompile(RuntimeError):
    """Lookups cannot be answered on this machine."""


class NoWorker(RuntimeError):
    """There is none to give an order to."""


class Worker:
    """One process and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.process = process
        self.patience = Patience(_ORDER_SECONDS)
        self._writer = writer
        # None: there are no more.
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._numbers = itertools.count(1)
        self._begun = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said = json.loads(line)
                self.patience.heard()
                self.patience.busy = said.get("busy", False)
                self._begun.set()
                if "event" not in said:
                    self._answers.put_nowait(said)
        except (ConnectionError, ValueError):
            pass  # the same as the end of the stream: the process is gone, or of no use
        self._answers.put_nowait(None)
        self._begun.set()

    async def begun(self) -> None:
        """Until it takes orders, or has ended before."""
        await self._begun.wait()

    async def ended(self) -> None:
        await asyncio.wait([self._listening])

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order, wait for its answer: as long as the worker lives and its patience lasts.

        Raises WorkerLost, WorkerRefused.
        """
        number = next(self._numbers)
        self.patience.ordered(number)
        try:
            self._writer.write(json.dumps(order).encode() + b"\n")
            await self._writer.drain()
        except ConnectionError as lost:
            raise WorkerLost(f"worker {self.process.pid} ended") from lost
        answer = await self._answers.get()
        if answer is None:
            # The next one, too, is to learn of it.
            self._answers.put_nowait(None)
            raise WorkerLost(f"worker {self.process.pid} ended")
        self.patience.answered(number)
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
        # Partitions that are answered no longer because a file of theirs is damaged, until they are loaded again.
        self.damaged: dict[tuple[int, int], str] = {}
        self.damaged_parts = 0
        self._address = (host, port)
        self._limits = {"max-keys": max_keys, "max-connections": max_connections, "awake-us": awake_us}
        self._descriptor, self.counts = counters.create(count)
        self._running: dict[int, Worker] = {}
        self._serving: dict[int, Worker] = {}
        # How often each that was started could not hold what is assigned, since one last did.
        self._refused = Counter[int]()
        # A change and a worker's coming to serve exclude each other, so that none misses a change; who waits for one to
        # serve is told.
        self._changing = asyncio.Condition()
        self._ending = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._count = count

    @property
    def ready(self) -> bool:
        return len(self.pids()) == self._count

    def pids(self) -> list[int]:
        """Of those that answer lookups."""
        return [worker.process.pid for worker in self._serving.values() if not worker.patience.silent]

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(index)) for index in range(self._count)]
        self._tasks.append(asyncio.create_task(self._look()))

    async def kept(self) -> None:
        """Until workers are kept no longer, which only `stop` should bring about; raises what else did."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        self._ending.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        os.close(self._descriptor)

    async def change(self, rule: Callable[[Assignments], Assignments]) -> None:
        """Have every worker hold what the rule makes of the assignments; all of them or, refused, none.

        What adds something needs a worker that has done it; while none serves, one is waited for. A worker lost meanwhile
        gets the new state when it starts. Raises what the rule raises, WorkerRefused, NoWorker.
        """
        async with self._changing:
            if rule(self.assigned).adds_to(self.assigned):
                await self._until_one_serves()
            # Anew: others may have changed something meanwhile.
            wanted = rule(self.assigned)
            outcomes = await self._order_all(_hold(wanted, self.draining))
            wrong = _refusals(outcomes)
            lost = sum(isinstance(each, WorkerLost) for each in outcomes)
            if lost == len(outcomes) and wanted.adds_to(self.assigned):
                # Whoever is started in their place would end over it, too, and the pod would answer nothing any more.
                wrong.append(WorkerRefused("every worker that was to hold it ended over it; the log says how"))
            if wrong:
                await self._order_all(_hold(self.assigned, self.draining))
                raise wrong[0]
            self.assigned = wanted

    async def drop(self, damaged: Mapping[Path, str]) -> None:
        """Answer no partition any more that one of these files answers for; path to what is wrong with it.

        Raises WorkerRefused.
        """
        before = self.assigned
        await self.change(lambda assigned: assigned.without(damaged))
        self._note(before, damaged)

    def _note(self, before: Assignments, damaged: Mapping[Path, str]) -> None:
        for version, numbers in before.partitions_of(damaged).items():
            for number in numbers:
                files = before.versions[version].parts[number].files()
                self.damaged[version, number] = next(damaged[path] for path in files if path in damaged)
                self.damaged_parts += 1

    async def drain(self, *, draining: bool) -> None:
        """Have every worker tell readers to ask another holder, or no longer. Raises WorkerRefused.

        Noted before the workers are waited for, one of which may hang or load: whoever asks this server is told, and so
        is a worker that comes to serve.
        """
        before, self.draining = self.draining, draining
        async with self._changing:
            wrong = _refusals(await self._order_all(_hold(self.assigned, self.draining)))
            if wrong:
                self.draining = before
                await self._order_all(_hold(self.assigned, self.draining))
                raise wrong[0]

    async def _until_one_serves(self) -> None:
        """Gives the lock away meanwhile: a worker needs it to come to serve."""
        try:
            await asyncio.wait_for(self._changing.wait_for(lambda: bool(self._serving)), _NO_WORKER_SECONDS)
        except asyncio.TimeoutError:
            raise NoWorker(
                f"no worker has come to answer lookups within {_NO_WORKER_SECONDS:.0f} s; the log says why; ask again"
            ) from None

    async def _order_all(self, order: dict[str, Any]) -> list[dict[str, Any] | BaseException]:
        """What each worker that serves has answered, or what became of it."""
        return await asyncio.gather(*(worker.order(order) for worker in self._serving.values()), return_exceptions=True)

    async def _keep(self, index: int) -> None:
        """Start worker number index, and again whenever it ends."""
        pause = _FIRST_PAUSE
        while True:
            try:
                worker = await self._spawn(index)
            except OSError as failed:
                # No process or no memory to be had: perhaps there will be.
                _log.warning("worker %d cannot be started: %s; trying again in %.1f s", index, failed, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._running[index] = worker
            try:
                await worker.begun()
                await self._let_serve(index, worker)
                pause = _FIRST_PAUSE
                _log.info("worker %d (pid %d) answers lookups", index, worker.process.pid)
                await worker.ended()
                _log.warning("worker %d (pid %d) ended; another is started", index, worker.process.pid)
            except (WorkerLost, WorkerRefused) as failed:
                _log.error("worker %d did not start: %s; trying again in %.1f s", index, failed, pause)
                if isinstance(failed, CannotHold) and not self._serving:
                    self._refused[index] += 1
            finally:
                self._serving.pop(index, None)
                del self._running[index]
                await worker.end()
            if worker.process.returncode == CANNOT_COMPILE:
                raise CannotCompile("no worker can compile the lookups; the log says why")
            self.restarts += 1
            self.counts[index, [counters.CONNECTIONS, counters.IN_FLIGHT]] = 0
            if self._refused[index] >= _REFUSED_TIMES:
                await self._give_up()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _let_serve(self, index: int, worker: Worker) -> None:
        """Have it hold everything, then listen."""
        while True:
            # Not under the lock: a worker that hangs in its imports or over a file holds up no change.
            told = self.assigned, self.draining
            try:
                await worker.order(_hold(*told))
            except WorkerRefused as refused:
                raise CannotHold(str(refused)) from refused
            async with self._changing:
                if told != (self.assigned, self.draining):
                    continue
                host, port = self._address
                await worker.order({"do": "listen", "host": host, "port": port})
                self._serving[index] = worker
                self._refused.clear()
                self._changing.notify_all()
                return

    async def _give_up(self) -> None:
        """Hold no longer what keeps every worker from coming to serve: the agent sees that it is not held, and brings it anew.

        Those are the partitions whose files cannot be read; where all can, it is something else, and everything goes.
        """
        before = self.assigned
        damaged = await asyncio.to_thread(_unreadable, before, self._ending)
        async with self._changing:
            if self._serving or self.assigned is not before or not before.versions:
                return  # one can hold it after all, or something else is to be held now, or it is not what they hold
            self._refused.clear()
            self.assigned = before.without(damaged) if damaged else Assignments()
            self._note(before, damaged)
            _log.error(
                "no worker can load %s: unloaded here; other replicas serve it until it is loaded again",
                ", ".join(map(str, damaged)) or "what is assigned, though every file is whole",
            )

    async def _look(self) -> None:
        """Kill what hangs; its keeper then starts another."""
        while True:
            await asyncio.sleep(patience.LOOK_SECONDS)
            for index, worker in self._running.items():
                if wrong := worker.patience.look():
                    _log.error("worker %d (pid %d) %s: it hangs, and is killed", index, worker.process.pid, wrong)
                    worker.process.kill()

    async def _spawn(self, index: int) -> Worker:
        arguments = {"counters": self._descriptor, "workers": self._count, "index": index, **self._limits}
        return Worker(*await child.start("elastic_ctr.cube.server.worker", arguments, descriptors=[self._descriptor]))


def _hold(assigned: Assignments, draining: bool) -> dict[str, Any]:
    return {"do": "hold", "versions": assigned.to_json(), "draining": draining}


def _refusals(outcomes: list[dict[str, Any] | BaseException]) -> list[BaseException]:
    """A worker that is lost refuses nothing: whoever is started in its place is told."""
    return [each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, WorkerLost)]


def _unreadable(assigned: Assignments, ending: threading.Event) -> dict[Path, str]:
    """Files that cannot be read or are damaged, and what is wrong; none that was not looked at when the server ends."""
    found: dict[Path, str] = {}
    for path in assigned.files():
        if ending.is_set():
            break
        try:
            DictionaryPart.open(path, verify=True)
        except (DictionaryDamaged, OSError) as wrong:
            _log.error("%s cannot be held any more: %s", path, wrong)
            found[path] = str(wrong)
    return found
