"""The worker processes of serving as their parent sees them: started, given orders, started again when they end.

One that hangs is killed, which ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_ctr.runtime import process_pool
from elastic_ctr.runtime.process_pool import Watchdog
from elastic_ctr.serving.worker_counters import Counters
from elastic_ctr.serving.worker_process import Settings

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LINE_LIMIT = 16 << 20


class WorkerLost(RuntimeError):
    """A worker ended before it answered."""


class WorkerHung(WorkerLost):
    """A worker hung, and was killed by us before it answered."""


@dataclass
class Worker:
    """One process, the socket to it, and what it has been brought to: loaded versions, the pinned one, listening.

    `kept` is all that it may have loaded; `bringing` the task that gives it orders.
    """

    index: int
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    on_event: Callable[[Worker, dict[str, Any]], None]
    loaded: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    bringing: asyncio.Task[None] | None = None
    pinned: int | None = None
    listening: bool = False
    counts: dict[str, Any] | None = None
    hung: bool = False

    def __post_init__(self) -> None:
        self.patience = Watchdog()
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.ended = asyncio.create_task(self._hear())

    @property
    def answering(self) -> bool:
        """Whether who connects to it is answered, by all that is known."""
        return self.listening and not self.patience.silent

    @property
    def is_brought(self) -> bool:
        """Whether nobody is giving it orders."""
        return self.bringing is None or self.bringing.done()

    def kill(self) -> None:
        """Its keeper starts another."""
        self.hung = True
        self.process.kill()

    async def order(self, do: str, **what: Any) -> dict[str, Any]:
        """Send an order, wait for its answer. Raises WorkerLost."""
        return await self.send(do, **what)

    def send(self, do: str, **what: Any) -> asyncio.Future[dict[str, Any]]:
        """Send an order now; its answer may be waited for. The future raises WorkerLost."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # Not everyone waits for the answer.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.ended.done():
            answer.set_exception(self._lost())
            return answer
        number = next(self._ids)
        self._answers[number] = answer
        self.patience.ordered(number)
        self.writer.write(json.dumps({"id": number, "do": do, **what}).encode() + b"\n")
        return answer

    def _lost(self) -> WorkerLost:
        if self.hung:
            return WorkerHung(f"worker {self.index} (pid {self.process.pid}) hung, and was killed")
        return WorkerLost(f"worker {self.index} (pid {self.process.pid}) ended")

    async def _hear(self) -> None:
        try:
            while line := await self.reader.readline():
                said = json.loads(line)
                self.patience.heard()
                if "event" in said:
                    self.on_event(self, said)
                else:
                    number = said.pop("id")
                    self.patience.answered(number)
                    answer = self._answers.pop(number)
                    if not answer.done():
                        answer.set_result(said)
        except (ConnectionError, ValueError):
            pass  # the same as the end of the stream: the process is gone, or of no use
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost())

    async def end(self, seconds: float) -> int:
        """Wait for its end; a hung one is killed. Returns its exit code."""
        for _ in range(max(1, int(seconds / 0.05))):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        else:
            self.process.kill()
        self.writer.close()
        return await asyncio.to_thread(self.process.wait)


class Workers:
    """All workers, and `checker`: one more process, which listens to nobody and checks versions.

    `on_start(worker)` is told of each new one, `on_event` of what they say by themselves.
    """

    def __init__(
        self,
        count: int,
        settings: Settings,
        scratch: Path,
        on_start: Callable[[Worker], None],
        on_event: Callable[[Worker, dict[str, Any]], None],
    ) -> None:
        self.running: dict[int, Worker] = {}
        self.checker: Worker | None = None
        self.restarts = 0
        self.count = count
        self._settings = settings
        self._scratch = scratch
        self._on_start = on_start
        self._on_event = on_event
        # What workers that have ended had counted: sums over workers never fall.
        self._ended_counts = Counters()
        self._keepers: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(index)) for index in range(self.count + 1)]
        self._looking = asyncio.create_task(self._look())

    async def kept(self) -> None:
        """Until workers are kept no longer, which only `stop` should bring about; raises what else did."""
        assert self._looking is not None
        done, _ = await asyncio.wait([*self._keepers, self._looking], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, grace_seconds: float) -> None:
        """Let every worker finish what it has begun, and end."""
        self._stopping = True
        for worker in self.all():
            worker.send("stop", graceSeconds=grace_seconds)
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=grace_seconds + 5)
        for worker in self.all():
            await worker.end(0)
        tasks = [*self._keepers] if self._looking is None else [*self._keepers, self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def in_order(self) -> list[Worker]:
        return [self.running[index] for index in sorted(self.running)]

    def all(self) -> list[Worker]:
        """With the one that checks. A list: their keepers take them out meanwhile."""
        return [*self.in_order(), *([] if self.checker is None else [self.checker])]

    def counted(self) -> Counters:
        """Sums over all workers that have ever run."""
        sums = Counters()
        sums.add(self._ended_counts.snapshot())
        for worker in self.running.values():
            if worker.counts is not None:
                sums.add(worker.counts)
        return sums

    async def _keep(self, index: int) -> None:
        pause = _FIRST_PAUSE
        while not self._is_stopping():
            try:
                worker = await self._spawn(index)
            except OSError as failed:
                # No process, memory or disk to be had: perhaps there will be.
                log.warning("worker %d cannot be started: %s; trying again in %.1f s", index, failed, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if checks := index == self.count:
                self.checker = worker
            else:
                self.running[index] = worker
            self._on_start(worker)
            started = asyncio.get_running_loop().time()
            await worker.ended
            code = await worker.end(5)
            if checks:
                self.checker = None
            else:
                if worker.counts is not None:
                    self._ended_counts.add(worker.counts)
                del self.running[index]
            pause = _FIRST_PAUSE if asyncio.get_running_loop().time() - started > 60 else pause
            if self._is_stopping():
                return
            log.warning(
                "worker %d (pid %d) ended with code %d; another is started in %.1f s",
                index, worker.process.pid, code, pause,
            )  # fmt: skip
            self.restarts += not checks
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look(self) -> None:
        """Kill what hangs; its keeper then starts another."""
        while True:
            await asyncio.sleep(process_pool.LOOK_SECONDS)
            for worker in self.all():
                if wrong := worker.patience.tick():
                    log.error("worker %d (pid %d) %s: it hangs, and is killed", worker.index, worker.process.pid, wrong)
                    worker.kill()

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _spawn(self, index: int) -> Worker:
        folder = self._scratch / f"worker-{index}"
        folder.mkdir(parents=True, exist_ok=True)
        arguments = {"index": index, "folder": folder, "settings": json.dumps(self._settings._asdict())}
        started = await process_pool.start("elastic_ctr.serving.worker_process", arguments, line_limit=_LINE_LIMIT)
        worker = Worker(index, *started, self._heard)
        log.info("worker %d (pid %d) started", index, worker.process.pid)
        return worker

    def _heard(self, worker: Worker, event: dict[str, Any]) -> None:
        if event["event"] == "counted":
            worker.counts = event["counts"]
            worker.patience.busy = event["busy"]
        else:
            self._on_event(worker, event)
