"""The worker processes of serving in their parent: their state, their counters, and the orders to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_ctr.config.serving_settings import ServingWorkerConfig
from elastic_ctr.runtime import process_pool
from elastic_ctr.runtime.process_pool import ProcessPool
from elastic_ctr.serving.worker_counters import Counters

log = logging.getLogger(__name__)

# The checker is nicer, so that requests come before the check of a version.
_CHECKER_NICE = 5


class ServingWorker(process_pool.Worker):
    """One process and its state: its `loaded` versions, those it may keep, the pinned one, the flag `listening`, and the candidate that
    answers its share.

    `updating` is the task that orders it. `on_not_held` is called when cube has unloaded the pinned version.
    """

    def __init__(self, index: int, child: process_pool.Child, on_not_held: Callable[[ServingWorker], None]) -> None:
        super().__init__(index, child)
        self.loaded: set[int] = set()
        self.kept: set[int] = set()
        self.updating: asyncio.Task[None] | None = None
        self.pinned: int | None = None
        self.canary: int | None = None
        self.listening = False
        self.counts = Counters().snapshot()
        self._on_not_held = on_not_held

    @property
    def answering(self) -> bool:
        """True if the worker answers a client that connects to it, as far as the parent knows."""
        return self.listening and not self.watchdog.silent

    @property
    def is_updated(self) -> bool:
        """True if no task is ordering the worker."""
        return self.updating is None or self.updating.done()

    def on_event(self, said: dict[str, Any]) -> None:
        if said["event"] == "counted":
            self.counts = said["counts"]
        else:
            self._on_not_held(self)


class WorkerPool(ProcessPool[ServingWorker]):
    """All workers, and `checker`: one more process, which has no port and checks versions; its index comes after theirs.

    The owner sets `on_start`, which is called for each new worker. `on_not_held` is called when cube has unloaded a worker's version.
    """

    def __init__(self, config: ServingWorkerConfig, on_not_held: Callable[[ServingWorker], None]) -> None:
        super().__init__(config.serving.workers + 1, self._start_worker, self._use_worker)
        self._checker_index = config.serving.workers
        self._config = config
        self.on_start: Callable[[ServingWorker], None] = lambda _: None
        self._on_not_held = on_not_held
        # The counts of workers that have ended, so that sums over workers never fall.
        self._ended_counts = Counters()
        self._stopping = False

    @property
    def restarts(self) -> int:
        """Return the restarts of workers, without those of the checker."""
        return self._restarts.total() - self._restarts[self._checker_index]

    @property
    def checker(self) -> ServingWorker | None:
        return self.running.get(self._checker_index)

    async def finish(self, grace_seconds: float) -> None:
        """Let every worker finish the requests that have arrived, and end."""
        self._stopping = True
        for worker in self.all():
            worker.send("stop", graceSeconds=grace_seconds)
        if self.running:
            await asyncio.wait([worker.ended for worker in self.all()], timeout=grace_seconds + 5)
        await self.stop()

    def in_order(self) -> list[ServingWorker]:
        return [worker for worker in self.all() if worker.index != self._checker_index]

    def all(self) -> list[ServingWorker]:
        """Return all workers, and the checker as the last."""
        return [self.running[index] for index in sorted(self.running)]

    def counted(self) -> Counters:
        """Return sums over all workers that have ever run."""
        sums = Counters()
        sums.add(self._ended_counts.snapshot())
        for worker in self.in_order():
            sums.add(worker.counts)
        return sums

    async def _use_worker(self, worker: ServingWorker) -> None:
        self.on_start(worker)
        await asyncio.wait([worker.ended])
        if self._stopping:
            # No replacement is started; `stop` cancels this wait.
            await asyncio.get_running_loop().create_future()
        if worker is not self.checker:
            self._ended_counts.add(worker.counts)

    async def _start_worker(self, index: int) -> ServingWorker:
        folder = Path(self._config.serving.scratch_dir) / f"worker-{index}"
        folder.mkdir(parents=True, exist_ok=True)
        nice = _CHECKER_NICE if index == self._checker_index else 0
        arguments = {
            "index": index,
            "nice": nice,
            "folder": folder,
            "config": self._config.model_dump_json(by_alias=True),
        }
        child = await process_pool.start("elastic_ctr.serving.worker_process", arguments, line_limit=16 << 20)
        worker = ServingWorker(index, child, self._on_not_held)
        log.info("%s started", worker)
        return worker
