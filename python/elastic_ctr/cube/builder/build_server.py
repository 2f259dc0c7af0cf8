"""`cube-builder`: builds one version at a time, in worker processes, on the orders of cube-transfer in the same pod.

POST /build {"version": V}   start the build, or join the one under way or done; 409 while another one runs. With "mend": true damaged
                             parts of a built version are built again
GET  /build                  a BuildProgress; with `?wait=SECONDS`, after the build or that many seconds
"""

import asyncio
import logging
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.cube.builder.folding import Folding
from elastic_ctr.cube.builder.job import (
    PUTS_AT_ONCE,
    READS_AT_ONCE,
    BuildFailed,
    BuildOutcome,
    Plan,
    Step,
    Task,
    dictionary_of,
    fresh_scratch,
    past_share,
    publish_dictionary,
    run_task,
    run_tasks,
)
from elastic_ctr.cube.builder.mending import mend
from elastic_ctr.cube.builder.part import MEMORY_BYTES
from elastic_ctr.cube.release import BuildOrder, BuildProgress
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right, Tokens
from elastic_ctr.runtime.child_process import background_pool, children_without_interrupts, die_with_parent
from elastic_ctr.runtime.http import HttpThread, RequestRefused, application, read_record
from elastic_ctr.runtime.lifecycle import stop_on_signal
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.store.backends import NotInStore, StoreError, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import FileEntry, ManifestDamaged
from elastic_ctr.store.versions.published_files import read_dictionary

log = logging.getLogger(__name__)

LONGEST_WAIT = 1.0
_OVER = frozenset({"idle", "done", "failed"})


class CubeBuilder:
    """Owns the worker processes and the progress; `build` runs in one thread that lives as long as they do.

    Workers open the store themselves.
    """

    def __init__(self, config: CubeBuilderFile, tokens: Tokens | None = None) -> None:
        self._config = config
        self._tokens = tokens
        self._settings = config.cube_transfer
        self._store = open_store(config.store, tokens=tokens)
        self._scratch = Path(self._settings.scratch_dir)
        self._progress = BuildProgress()
        # Notified when a build is over.
        self._lock = threading.Condition()
        self._orders: queue.SimpleQueue[BuildOrder | None] = queue.SimpleQueue()
        self._pool: ProcessPoolExecutor | None = None
        self._folding = Folding(config, self._store, tokens)
        self._thread = threading.Thread(target=self._work, name="build", daemon=True)

    @property
    def progress(self) -> BuildProgress:
        with self._lock:
            return self._progress

    def progress_within(self, seconds: float) -> BuildProgress:
        """Return the progress once no build runs, or after this many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._progress.stage in _OVER, seconds)
            return self._progress

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the partition under way; the next start builds the rest."""
        self._orders.put(None)
        pool = self._pool
        if pool is not None:
            for process in list((pool._processes or {}).values()):  # noqa: SLF001 (nothing public ends them at once)
                process.terminate()
        self._thread.join(timeout=10)
        self._folding.stop()

    def order(self, version: int, *, mend: bool = False) -> BuildProgress:
        """Raises RequestRefused (409) while another version is being built."""
        with self._lock:
            now = self._progress
            busy, same = now.stage not in _OVER, (now.version, now.mend) == (version, mend)
            if busy and not same:
                raise RequestRefused(409, f"version {now.version} is being built; order {version} when it is done")
            # An order to mend runs again even after it was done: parts may be damaged again.
            if not busy and (not same or mend or now.stage == "failed"):
                self._progress = BuildProgress(version=version, mend=mend, stage="planning")
                self._orders.put(BuildOrder(version=version, mend=mend))
            return self._progress

    def build(self, version: int) -> None:
        """Build and publish one dictionary, unless it is published already. Raises BuildFailed."""
        try:
            self._build(version)
        except ManifestDamaged as damaged:
            raise BuildFailed(str(damaged), final=True) from damaged

    def mend(self, version: int) -> None:
        """Build damaged or lost parts of a built version again. Raises BuildFailed, NotInStore, StoreError, OSError."""
        scratch = fresh_scratch(self._scratch, version)
        self._tell(stage="mending")
        with background_pool() as pool, children_without_interrupts():

            def build(plan: Plan, step: Step, partition: int) -> BuildOutcome:
                return pool.submit(
                    run_task, Task(self._config.store, plan, step, partition, scratch, self._tokens)
                ).result()

            try:
                mend(self._store, version, scratch, build)
            except (ManifestDamaged, BrokenProcessPool) as damaged:
                raise BuildFailed(str(damaged), final=False) from damaged
        fresh_scratch(self._scratch, version).rmdir()

    def _build(self, version: int) -> None:
        with suppress(NotInStore):
            read_dictionary(self._store, version)
            return
        plan = self._folding.plan(version)
        scratch = fresh_scratch(self._scratch, version)
        full = plan.ancestor is None
        parts = self._all(plan.first_step, plan, scratch, "building")
        large = past_share(plan, sum(entry.records for entry in parts), self._store, self._settings.overlay_share)
        if large and not plan.in_one_file:
            parts = self._all("merge", plan, scratch, "merging")
            full = True
        entries = self._all("publish", plan, scratch, "publishing", parts)
        dictionary = dictionary_of(plan, "full" if full else "overlay", entries)
        if dictionary.in_one_file and (ahead := self._folding.ahead) is not None:
            dictionary = dictionary.model_copy(update={"fold_ahead": ahead.version})
        publish_dictionary(self._store, dictionary, layout.dictionary_manifest(version))
        if large and plan.in_one_file:
            self._folding.begin(plan, scratch)
        fresh_scratch(self._scratch, version).rmdir()

    def _all(
        self, step: Step, plan: Plan, scratch: Path, stage: str, parts: Sequence[FileEntry] = ()
    ) -> list[FileEntry]:
        """Run a step for all partitions; `parts` are their built files, in order. Return the resulting files."""
        count = len(parts) or len(plan.files(step))
        self._tell(stage=stage, partitions=count, partitions_done=0)
        if plan.is_small:
            if self._pool is not None:
                # More small builds follow a small one, and idle processes of a large build would keep their memory.
                self._pool.shutdown(wait=False)
                self._pool = None
            part = parts[0] if parts else None
            outcome = run_task(Task(self._config.store, plan, step, 0, scratch, self._tokens, MEMORY_BYTES, part))
            self._note_outcome(outcome)
            assert outcome.entry is not None
            return [outcome.entry]
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._settings.builder_jobs, spawn, die_with_parent, (os.getpid(),))
        # The workers share one memory bound.
        memory = MEMORY_BYTES // self._settings.builder_jobs
        tasks = [
            Task(self._config.store, plan, step, p, scratch, self._tokens, memory, parts[p] if parts else None)
            for p in range(count)
        ]
        # Each worker has its share, however few partitions there are.
        at_once = min(-(-count // self._settings.builder_jobs), PUTS_AT_ONCE if step == "publish" else READS_AT_ONCE)
        with children_without_interrupts():
            futures = [
                self._pool.submit(run_tasks, tasks[first : first + at_once]) for first in range(0, count, at_once)
            ]
        try:
            for future in as_completed(futures):
                for outcome in future.result():
                    self._note_outcome(outcome)
            outcomes = [outcome for future in futures for outcome in future.result()]
            return [outcome.entry for outcome in outcomes if outcome.entry is not None]
        except BrokenProcessPool as broken:
            self._pool = None
            raise BuildFailed(
                "a worker process of the build was killed; was there too little memory? It is tried again", final=False
            ) from broken
        finally:
            for future in futures:
                future.cancel()

    def _note_outcome(self, outcome: BuildOutcome) -> None:
        if outcome.failed is not None:
            raise BuildFailed(outcome.failed, final=outcome.final)
        seconds = dict(self.progress.seconds_by_stage)
        for stage, spent in outcome.seconds.items():
            seconds[stage] = round(seconds.get(stage, 0.0) + spent, 6)
        self._tell(partitions_done=self.progress.partitions_done + 1, seconds_by_stage=seconds)

    def _tell(self, **changes: object) -> None:
        with self._lock:
            self._progress = self._progress.model_copy(update=changes)
            if self._progress.stage in _OVER:
                self._lock.notify_all()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            began, version = time.monotonic(), order.version
            try:
                (self.mend if order.mend else self.build)(version)
            except BuildFailed as failed:
                self._tell(stage="failed", error=str(failed), final=failed.final)
                log.warning("version %s is not built: %s", version, failed)
            except (StoreError, OSError) as failed:
                self._tell(stage="failed", error=str(failed), final=False)
                log.warning("version %s is not built yet: %s", version, failed)
            except Exception as failed:
                self._tell(stage="failed", error=f"{type(failed).__name__}: {failed}", final=False)
                log.exception("version %s is not built", version)
            else:
                spent = round(time.monotonic() - began, 3)
                self._tell(stage="done", seconds=spent)
                log.info("version %s is built in %.3f s", version, spent)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def builder_routes(builder: CubeBuilder, access: Access) -> list[Route]:
    async def order(request: Request) -> Response:
        access.require(request, Right.INTERNAL)
        wanted = await read_record(request, BuildOrder, limit=1 << 10)
        return JSONResponse(_status(builder.order(wanted.version, mend=wanted.mend)))

    async def progress(request: Request) -> Response:
        try:
            wait = float(request.query_params.get("wait", 0))
        except ValueError:
            raise RequestRefused(400, "wait: it is no number of seconds") from None
        if not wait > 0:
            return JSONResponse(_status(builder.progress))
        return JSONResponse(_status(await asyncio.to_thread(builder.progress_within, min(wait, LONGEST_WAIT))))

    return [Route("/build", order, methods=["POST"]), Route("/build", progress, methods=["GET"])]


def _status(progress: BuildProgress) -> dict[str, Any]:
    return progress.model_dump(mode="json", by_alias=True)


def builder_metrics(builder: CubeBuilder) -> Metrics:
    metrics = Metrics("cube-builder")
    done = metrics.gauge("partitions_done", "Partitions done of the stage under way.")
    done.set_function(lambda: builder.progress.partitions_done)
    failed = metrics.gauge("failed", "1 when the last build failed.")
    failed.set_function(lambda: float(builder.progress.stage == "failed"))
    return metrics


def run_cube_builder(config: CubeBuilderFile) -> None:
    """Serve orders until SIGTERM or SIGINT. Raises PortInUse, StateInUse, StoreError."""
    settings = config.cube_transfer
    with stop_on_signal() as stop, StateLock(Path(settings.scratch_dir)):
        builder = CubeBuilder(config, config.auth.internal())
        access = Access(config.auth.rights(), AuditLog("cube-builder", Path(settings.scratch_dir)))
        app = application(
            builder_routes(builder, access), status=lambda: _status(builder.progress), metrics=builder_metrics(builder)
        )
        server = HttpThread(app, config.host, settings.builder_port).start()
        builder.start()
        log.info(
            "building on orders at %s:%s, %s partitions at a time", config.host, server.port, settings.builder_jobs
        )
        stop.wait()
        server.stop()
        builder.stop()
