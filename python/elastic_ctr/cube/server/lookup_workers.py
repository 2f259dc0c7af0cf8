"""The worker processes of cube-server, and the parts that they must load."""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Assignments
from elastic_ctr.runtime import process_pool
from elastic_ctr.runtime.process_pool import Child, ProcessPool, Worker, WorkerFailed, WorkerLost

_log = logging.getLogger(__name__)

# Bounds a load that is stuck: in an hour a slow disk (100 MB/s) reads 360 GB, more than a pod has.
_ORDER_SECONDS = 3600.0
# A load waits this long for a worker that serves. Compiling takes a minute.
_NO_WORKER_SECONDS = 300.0
# Parts are unloaded after a worker has failed this many times in a row to start with them.
_REFUSED_TIMES = 3


class WorkerRefused(WorkerFailed):
    """An order was not carried out; the text has the reason."""


class NoWorker(RuntimeError):
    """No worker serves."""


class LookupWorker(Worker):
    """A worker process, and the assignments that it is known to have loaded."""

    def __init__(self, index: int, child: Child) -> None:
        super().__init__(index, child, _ORDER_SECONDS)
        self._holds = Assignments()

    async def hold(self, assigned: Assignments, *, draining: bool) -> dict[str, Any]:
        """Order the worker to load exactly these. Raises WorkerLost, WorkerRefused."""
        # Its state is unknown until it answers: it may carry out an order whose caller was cancelled.
        before, self._holds = self._holds, Assignments()
        answer = await self.order("hold", **assigned.to_json(before), draining=draining)
        self._holds = assigned
        return answer

    async def order(self, do: str, **what: Any) -> dict[str, Any]:
        """Raises WorkerLost, WorkerRefused."""
        answer = await self.send(do, **what)
        if "error" in answer:
            raise WorkerRefused(answer["error"])
        return answer


class Workers:
    """All workers. A new one accepts connections only after it has loaded all of `assigned`."""

    def __init__(self, host: str, port: int, cube: CubePodConfig) -> None:
        self.assigned = Assignments()
        self.draining = False
        # Partitions with a damaged file, which are not answered until they are loaded again.
        self.damaged: dict[tuple[int, int], str] = {}
        self.damaged_parts = 0
        self.pool = ProcessPool(cube.workers, self._spawn, self._run)
        self._address = {"host": host, "port": port}
        self._descriptor, self.counts = counters.create(cube.workers)
        self._arguments = {
            "counters": self._descriptor,
            "workers": cube.workers,
            "max-keys": cube.max_keys,
            "busy-poll-us": cube.busy_poll_us,
        }
        self._serving: dict[int, LookupWorker] = {}
        # Failed starts of each worker since any worker last began to serve.
        self._refused = Counter[int]()
        # A change and a worker's start of serving exclude each other, so that no worker misses a change. Notified when a
        # worker starts to serve.
        self._changing = asyncio.Condition()
        self._ending = threading.Event()

    @property
    def ready(self) -> bool:
        return len(self.pids()) == self.pool.count

    def pids(self) -> list[int]:
        """Return the pids of the workers that answer lookups."""
        return [worker.process.pid for worker in self._serving.values() if not worker.watchdog.silent]

    async def stop(self) -> None:
        self._ending.set()
        await self.pool.stop()
        os.close(self._descriptor)

    async def change(self, rule: Callable[[Assignments], Assignments]) -> None:
        """Apply a rule to the assignments in every worker; after a refusal, in none. A change that adds parts waits for
        a worker that serves. A worker lost meanwhile gets the new state when it starts. Raises the rule's errors,
        WorkerRefused, NoWorker.
        """
        async with self._changing:
            if rule(self.assigned).adds_to(self.assigned):
                await self._until_one_serves()
            # Apply the rule again, because other changes may have come during the wait.
            wanted = rule(self.assigned)
            outcomes = await self._order_all(wanted)
            wrong = _refusals(outcomes)
            lost = sum(isinstance(each, WorkerLost) for each in outcomes)
            if lost == len(outcomes) and wanted.adds_to(self.assigned):
                # Replacements would crash over the same parts, and the pod would answer nothing.
                wrong.append(WorkerRefused("every worker that was to hold it ended over it; the log says how"))
            if wrong:
                await self._order_all(self.assigned)
                raise wrong[0]
            self.assigned = wanted

    async def drop(self, damaged: Mapping[Path, str]) -> None:
        """Unload the partitions of these files, each with its damage as a sentence. Raises WorkerRefused."""
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
        """Set the draining flag of every worker's replies. Raises WorkerRefused. The flag is set here before the
        workers answer, because one of them may hang or be loading.
        """
        before, self.draining = self.draining, draining
        async with self._changing:
            wrong = _refusals(await self._order_all(self.assigned))
            if wrong:
                self.draining = before
                await self._order_all(self.assigned)
                raise wrong[0]

    async def _until_one_serves(self) -> None:
        """Wait for a worker that serves, without the lock, which a starting worker needs."""
        try:
            await asyncio.wait_for(self._changing.wait_for(lambda: bool(self._serving)), _NO_WORKER_SECONDS)
        except asyncio.TimeoutError:
            raise NoWorker(
                f"no worker has come to answer lookups within {_NO_WORKER_SECONDS:.0f} s; the log says why; ask again"
            ) from None

    async def _order_all(self, assigned: Assignments) -> list[dict[str, Any] | BaseException]:
        """Order each serving worker to load these. Return the answer or the error of each."""
        held = (worker.hold(assigned, draining=self.draining) for worker in self._serving.values())
        return await asyncio.gather(*held, return_exceptions=True)

    async def _spawn(self, index: int) -> LookupWorker:
        if self._refused[index] >= _REFUSED_TIMES:
            await self._give_up()
        arguments = {"index": index, **self._arguments}
        child = await process_pool.start(
            "elastic_ctr.cube.server.lookup_worker", arguments, descriptors=[self._descriptor]
        )
        return LookupWorker(index, child)

    async def _run(self, worker: LookupWorker) -> None:
        index = worker.index
        self.counts[index, [counters.CONNECTIONS, counters.IN_FLIGHT]] = 0
        try:
            await worker.started()
            await self._let_serve(worker)
            _log.info("%s answers lookups", worker)
            await asyncio.wait([worker.ended])
        finally:
            self._serving.pop(index, None)
            self.counts[index, [counters.CONNECTIONS, counters.IN_FLIGHT]] = 0

    async def _let_serve(self, worker: LookupWorker) -> None:
        """Order the worker to load all assigned parts, then to listen."""
        while True:
            # The load runs without the lock, because a hung worker must not delay changes.
            told = self.assigned, self.draining
            try:
                await worker.hold(self.assigned, draining=self.draining)
            except WorkerRefused:
                if not self._serving:
                    self._refused[worker.index] += 1
                raise
            async with self._changing:
                if told != (self.assigned, self.draining):
                    continue
                await worker.order("listen", **self._address)
                self._serving[worker.index] = worker
                self._refused.clear()
                self._changing.notify_all()
                return

    async def _give_up(self) -> None:
        """Unload the parts that prevent every worker from serving; the agent loads them again. These are the partitions
        with unreadable files or, if all files are readable, all partitions.
        """
        before = self.assigned
        damaged = await asyncio.to_thread(_unreadable, before, self._ending)
        async with self._changing:
            if self._serving or self.assigned is not before or not before.versions:
                return  # a worker serves after all, or the assignments have changed, or there are none
            self._refused.clear()
            self.assigned = before.without(damaged) if damaged else Assignments()
            self._note(before, damaged)
            _log.error(
                "no worker can load %s: unloaded here; other replicas serve it until it is loaded again",
                ", ".join(map(str, damaged)) or "what is assigned, though every file is whole",
            )


def _refusals(outcomes: list[dict[str, Any] | BaseException]) -> list[BaseException]:
    """Return the errors other than a lost worker, whose replacement gets the new state."""
    return [each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, WorkerLost)]


def _unreadable(assigned: Assignments, ending: threading.Event) -> dict[Path, str]:
    """Return unreadable or damaged files with the reason. The check stops when the server ends."""
    found: dict[Path, str] = {}
    for path in assigned.files:
        if ending.is_set():
            break
        try:
            DictionaryPart.open(path, verify=True)
        except (DictionaryDamaged, OSError) as wrong:
            _log.error("%s cannot be held any more: %s", path, wrong)
            found[path] = str(wrong)
    return found
