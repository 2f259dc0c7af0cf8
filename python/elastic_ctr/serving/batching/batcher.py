"""The batcher: requests that arrive while a batch runs become the next batch, one lookup and one call of the network.

Under load two batches are under way: one computes on Paddle's thread while the next is gathered and looked up. A batch that waits
long for cube is detached: it no longer counts as under way, and others start beside it. The asyncio and gRPC frontends send their
answers at once; the native frontend sends in the order of submission. A batch, and so every answer, has one version of network and
embeddings, even if the pinned version changes meanwhile. During a canary, the requests that its rule chooses get the candidate. If
the candidate fails or is slow, they get the pinned version, and the candidate gets no requests for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from elastic_ctr.cube.client.reader import CubeUnavailable, VersionNotHeld
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.canary import NO_CANARY, CanaryRule, CanarySwitch
from elastic_ctr.serving.batching.instances import Instances, joined
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import MOST_INLINE, Floats, UniqueKeys, known_feasigns, pooled, unique_keys
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.request_error import NoProbability, RequestError, answer_or_refusal
from elastic_ctr.serving.worker_counters import Counters

log = logging.getLogger(__name__)

_BATCHES_AT_ONCE = 2
# A lookup that takes longer waits for silent holders only: a slow holder was hedged after `hedge_ms`.
_DETACH_SECONDS = 0.1
# Each detached batch has its keys and values in memory.
_DETACHED_BATCHES = 16
# The event loop computes shorter batches itself while Paddle's thread is idle, because a handover would cost more
# (docs/decisions/0007-serving-frontends.md). The loop reads no socket meanwhile.
_OWN_SECONDS = 0.008
# Rows that may wait, also in detached batches, in multiples of one batch's rows. More are refused at once, before they are late.
_WAITING_BATCHES = 64
# After this time the pinned version answers instead of the candidate: the native frontend keeps all its answers in order.
_CANARY_SECONDS = 0.25
# Bound of one batch: each feasign is a row of floats in memory.
_MAX_FEASIGNS = 1 << 20


Parse = Callable[[Schema], Instances]
Done = Callable[["Floats | Exception", int], None]
T = TypeVar("T")


@dataclass(slots=True)
class PendingRequest:
    """One request, or a part of a large one. `done` is called once, with probabilities and their version.

    `parse` is called again if the batch's version has another schema than `schema`. The request gets the pinned version if `version` is
    None or cube has unloaded it. `only`: no other version than `version` may answer.
    """

    parse: Parse
    schema: Schema
    instances: Instances
    version: int | None
    done: Done
    only: bool = False
    finished: bool = False


class Batcher:
    """The versions of a worker and its queue. It is used on the event loop only.

    A batch has at most `max_rows`; from `shared_rows` on, waiting rows are split into two batches. If cube has unloaded the pinned
    version, the batcher awaits `newest_live`: the live version of the newest release document, or None.
    """

    def __init__(
        self,
        paddle: InlineExecutor,
        newest_live: Callable[[], Awaitable[int | None]],
        counters: Counters,
        *,
        max_rows: int = 8192,
        shared_rows: int = 1024,
        canary_rule: CanaryRule = NO_CANARY,
    ) -> None:
        self.versions: dict[int, ModelVersion] = {}
        self.pinned: int | None = None
        self.canary = CanarySwitch(canary_rule)
        self.stage = "the process has just started"
        self.max_rows = max_rows
        self.shared_rows = shared_rows
        self._paddle = paddle
        self._newest_live = newest_live
        self._counters = counters
        self._waiting: deque[PendingRequest] = deque()
        self.waiting_rows = 0
        self._arrived = asyncio.Event()
        # Batches and their rows. `_progressed` is set when a batch ends, and when it hands its network call to Paddle's thread.
        self._under_way: dict[asyncio.Task[None], int] = {}
        self._progressed = asyncio.Event()
        self._detached: dict[asyncio.Task[None], int] = {}
        # The time since which each batch waits for cube or the parent.
        self._waiting_since: dict[asyncio.Task[None], float] = {}
        self._watching = False
        self._using: Counter[int] = Counter()
        self._unloading: set[int] = set()
        # Requests larger than a batch, and their rows without the submitted part: each request is in memory to its end.
        self._large: dict[asyncio.Task[None], int] = {}
        self._sources: list[Callable[[], None]] = []

    # -- versions

    def add(self, model: ModelVersion) -> None:
        self._unloading.discard(model.version)
        self.versions[model.version] = model

    def pin(self, version: int) -> None:
        """Answer with this version from the next batch on."""
        assert version in self.versions
        if version != self.pinned:
            self._counters.totals["switches"] += 1
        if version == self.canary.version:
            self.canary.version = None
        self.pinned = version

    def keep(self, versions: set[int]) -> None:
        """Unload all versions but these and the pinned one, each as soon as no request needs it."""
        if self.canary.version not in versions:
            self.canary.version = None
        self._unloading = self.versions.keys() - versions - {self.pinned}
        for version in list(self._unloading):
            self._unload(version)

    def in_use(self) -> set[int]:
        """Return the versions that cube must keep for this worker."""
        return {*self._using, *(() if self.pinned is None else (self.pinned,))}

    def _unload(self, version: int) -> None:
        if version in self._unloading and not self._using[version] and version != self.pinned:
            self._unloading.discard(version)
            # The network is released on the thread that has made it.
            model = self.versions.pop(version)
            self._paddle.submit(model.release or model.network.close)

    def _use(self, version: int, change: int) -> None:
        self._using[version] += change
        if not self._using[version]:
            del self._using[version]
            self._unload(version)

    # -- requests

    def current(self) -> ModelVersion:
        """Return the pinned version. Raises RequestError (503) before the first version is live."""
        if self.pinned is None:
            raise RequestError(503, f"no version is live yet: {self.stage}")
        return self.versions[self.pinned]

    def submit(
        self, parse: Parse, instances: Instances, schema: Schema, done: Done, version: int | None = None
    ) -> None:
        """Answer later through `done`, with `version` if that is still loaded, else with the pinned one.

        Raises RequestError (503) if too many rows wait already.
        """
        large = instances.rows > self.max_rows or instances.given > _MAX_FEASIGNS
        waiting = self.waiting_rows + sum(self._detached.values())
        if large:
            # Large requests do not count for a small one, which is answered between their parts.
            waiting += sum(self._large.values())
        if waiting + instances.rows > max(_WAITING_BATCHES * self.max_rows, instances.rows):
            raise RequestError(503, f"{waiting} instances are waiting already; ask again later")
        self._counters.totals["ignored_features"] += instances.ignored
        if not large:
            self._enqueue(PendingRequest(parse, schema, instances, version, done))
            return

        def answered(outcome: Floats | Exception, version: int) -> None:
            # Free its rows before the answer, because the client may send the next request at once.
            self._large.pop(task, None)
            done(outcome, version)

        task = asyncio.create_task(self._predict_in_parts(parse, instances, schema, answered, version))
        self._large[task] = instances.rows
        task.add_done_callback(lambda task: self._large.pop(task, None))

    async def predict_at(self, version: int, instances: Instances) -> Floats:
        """Return probabilities f32 [rows] of a version by lookup and network. Raises VersionNotHeld, CubeUnavailable.

        The check of a version uses this beside the batches: holders may be slow with a candidate, and neither the check nor the
        requests wait for each other.
        """
        return await self._in_parts(instances, self.versions[version], self._probabilities)

    async def _in_parts(
        self, instances: Instances, model: ModelVersion, answer: Callable[[Instances, ModelVersion], Awaitable[Floats]]
    ) -> Floats:
        """Answer part after part, so that small requests are answered in between."""
        self._use(model.version, 1)
        try:
            parts = instances.parts(self.max_rows, _MAX_FEASIGNS)
            return np.concatenate([await answer(part, model) for part in parts])
        finally:
            self._use(model.version, -1)

    async def _submit_part(self, part: Instances, model: ModelVersion) -> Floats:
        answered: asyncio.Future[Floats] = asyncio.get_running_loop().create_future()

        def done(outcome: Floats | Exception, _version: int) -> None:
            if answered.done():
                return
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)

        request = asyncio.current_task()
        assert request is not None
        self._large[request] -= part.rows
        self._enqueue(PendingRequest(lambda _schema: part, model.schema, part, model.version, done, only=True))
        try:
            return await answered
        finally:
            self._large[request] += part.rows

    async def _predict_in_parts(
        self, parse: Parse, instances: Instances, schema: Schema, done: Done, version: int | None
    ) -> None:
        """Answer a request larger than a batch, all parts by one version."""

        async def answer(model: ModelVersion) -> None:
            read = self._read_for(instances, schema, model, parse)
            outcome = answer_or_refusal(await self._in_parts(read, model, self._submit_part), model.version)
            if isinstance(outcome, NoProbability):
                raise outcome
            done(outcome, model.version)

        try:
            model = self.versions.get(version or 0) or self.current()
            try:
                await answer(model)
            except Exception as failed:
                if isinstance(failed, RequestError) and not isinstance(failed, NoProbability):
                    raise
                if instances.known is not None:
                    instances.known.clear()
                if model.version != self.pinned:
                    if not isinstance(failed, NoProbability):
                        self.canary.rest(model.version, failed)
                    await answer(self.current())
                elif isinstance(failed, VersionNotHeld):
                    await answer(await self._live_instead(model.version, failed))
                else:
                    raise
        except Exception as failed:  # noqa: BLE001 (the client gets an answer to any error)
            done(failed, 0)

    @staticmethod
    def _read_for(instances: Instances, schema: Schema, model: ModelVersion, parse: Parse) -> Instances:
        return instances if schema.reads_as(model.schema) else parse(model.schema)

    def _enqueue(self, request: PendingRequest) -> None:
        self._waiting.append(request)
        self.waiting_rows += request.instances.rows
        self._arrived.set()

    def add_source(self, poll: Callable[[], None]) -> None:
        """Add a frontend's `poll`. The batcher calls it before a batch; it submits the requests that have arrived, and must not raise.

        The frontend calls `wake` when requests arrive after a pause.
        """
        self._sources.append(poll)

    def wake(self) -> None:
        self._arrived.set()

    # -- batches

    async def run(self) -> None:
        """Start batches until cancelled."""
        try:
            while True:
                await (self._progressed if self._under_way else self._arrived).wait()
                self._arrived.clear()
                self._progressed.clear()
                if self._has_room():
                    for poll in self._sources:
                        poll()
                while self._waiting and self._may_begin():
                    self._start_batch()
        finally:
            batches = [*self._under_way, *self._detached]
            for batch in batches:
                batch.cancel()
            await asyncio.gather(*batches, return_exceptions=True)

    def _has_room(self) -> bool:
        return len(self._under_way) < _BATCHES_AT_ONCE and len(self._detached) < _DETACHED_BATCHES

    def _may_begin(self) -> bool:
        """True if a batch may begin: alone at once, beside another only with enough rows, as small batches cost more per row."""
        if not self._has_room():
            return False
        return not self._under_way or 2 * self.waiting_rows >= min(sum(self._under_way.values()), self.max_rows)

    def _start_batch(self) -> None:
        requests, version = self._next_requests()
        self._use(version, 1)
        batch = asyncio.create_task(self._run_batch(requests, version))
        self._under_way[batch] = sum(request.instances.rows for request in requests)

        def over(_: asyncio.Task[None]) -> None:
            (self._under_way if batch in self._under_way else self._detached).pop(batch)
            self._use(version, -1)
            self._signal_progress()

        batch.add_done_callback(over)

    def _signal_progress(self) -> None:
        self._progressed.set()
        # `run` waits for `_arrived` while nothing is under way.
        self._arrived.set()

    async def _await_dependency(self, answer: Awaitable[T]) -> T:
        """Wait for cube or the parent. A batch that waits long is detached, so that another may begin."""
        loop, batch = asyncio.get_running_loop(), asyncio.current_task()
        assert batch is not None
        self._waiting_since[batch] = loop.time()
        if not self._watching:
            # One timer for all batches: a timer for each would take much of the millisecond that most lookups take.
            self._watching = True
            loop.call_later(_DETACH_SECONDS / 2, self._detach_slow_batches, loop)
        try:
            return await answer
        finally:
            del self._waiting_since[batch]

    def _detach_slow_batches(self, loop: asyncio.AbstractEventLoop) -> None:
        long_ago = loop.time() - _DETACH_SECONDS
        for batch, since in self._waiting_since.items():
            # The check of a version also waits here, but is not among the batches under way.
            if since <= long_ago and batch in self._under_way:
                self._detached[batch] = self._under_way.pop(batch)
        if self._detached:
            # Signal even if no batch was detached just now: a frontend with requests under way does not wake the batcher.
            self._signal_progress()
        self._watching = bool(self._waiting_since)
        if self._watching:
            loop.call_later(_DETACH_SECONDS / 2, self._detach_slow_batches, loop)

    async def _run_batch(self, requests: list[PendingRequest], version: int) -> None:
        """Answer the requests of a batch. If cube has unloaded its version, the whole batch is retried with the live version."""
        try:
            if version != self.pinned:
                await self._answer_as_canary(requests, self.versions[version])
                return
            try:
                await self._answer(requests, self.versions[version])
            except VersionNotHeld as not_held:
                # A part of a large request may have no other version; its large request handles the failure.
                for request in requests:
                    if request.only:
                        _resolve(request, not_held, version)
                if free := [request for request in requests if not request.finished]:
                    live = await self._await_dependency(self._live_instead(version, not_held))
                    self._use(live.version, 1)
                    try:
                        await self._answer(free, live)
                    finally:
                        self._use(live.version, -1)
        except Exception as failed:
            if not isinstance(failed, RequestError | VersionNotHeld | CubeUnavailable):
                log.exception("a batch of version %d failed", version)
            for request in requests:
                _resolve(request, failed, version)

    async def _answer_as_canary(self, requests: list[PendingRequest], candidate: ModelVersion) -> None:
        """Answer with the candidate, or soon with the pinned version. A part of a large request waits; its request retries."""
        answering = asyncio.create_task(self._answer(requests, candidate, as_canary=True))
        try:
            done, _ = await asyncio.wait([answering], timeout=_CANARY_SECONDS)
            failed = answering.exception() if done else TimeoutError(f"no answer within {_CANARY_SECONDS:g} s")
            if failed is not None:
                self.canary.rest(candidate.version, failed)
            # Requests to which the candidate answered NaN are still open here, too.
            if free := [request for request in requests if not (request.only or request.finished)]:
                await self._answer(free, self.current())
            # The candidate may take long, so this batch may be detached meanwhile.
            await self._await_dependency(answering)
        except Exception:
            if not all(request.finished for request in requests):
                raise
        finally:
            answering.cancel()

    def _next_requests(self) -> tuple[list[PendingRequest], int]:
        """Return the requests of the next batch, all of the version of the request that waited longest, and the version.

        If nothing is under way and many rows wait, the batch gets half of them; the rest becomes the batch beside it.
        """
        alone = not self._under_way and self.waiting_rows >= self.shared_rows
        most = min(self.max_rows, -(-self.waiting_rows // 2) if alone else self.waiting_rows)
        version = self._wanted(self._waiting[0])
        taken: list[PendingRequest] = []
        left: list[PendingRequest] = []
        rows = feasigns = 0
        while self._waiting and rows < most and feasigns < _MAX_FEASIGNS:
            request = self._waiting.popleft()
            if self._wanted(request) != version:
                left.append(request)
            elif taken and rows + request.instances.rows > self.max_rows:
                left.append(request)
                break
            else:
                taken.append(request)
                rows += request.instances.rows
                feasigns += request.instances.given
        self._waiting.extendleft(reversed(left))
        self.waiting_rows -= rows
        return taken, version

    def _wanted(self, request: PendingRequest) -> int:
        """Return the request's version, or the pinned one if that was unloaded since the request arrived."""
        version = request.version if request.version in self.versions else self.pinned
        assert version is not None
        return version

    async def _live_instead(self, version: int, not_held: VersionNotHeld) -> ModelVersion:
        live = await self._newest_live()
        self._counters.totals["retried_batches"] += 1
        model = None if live is None else self.versions.get(live)
        if model is None:
            raise RequestError(
                503,
                f"version {version} is no longer held by cube, and the live version {live} is not checked here yet; ask "
                f"again ({not_held})",
            )
        return model

    async def _answer(self, requests: list[PendingRequest], model: ModelVersion, *, as_canary: bool = False) -> None:
        """Answer requests with a model. `as_canary`: leave requests open to which the model answers NaN."""
        accepted: list[PendingRequest] = []
        parts: list[Instances] = []
        for request in requests:
            try:
                parts.append(self._read_for(request.instances, request.schema, model, request.parse))
                accepted.append(request)
            except RequestError as refusal:  # noqa: PERF203 (the others are answered)
                _resolve(request, refusal, model.version)
        if not accepted:
            return
        whole = joined(parts)
        probabilities = await self._probabilities(whole, model)
        begin = 0
        for request, part in zip(accepted, parts, strict=True):
            if part.known is not None and whole.known is not None and part is not whole:
                part.known.append(whole.known[0][begin : begin + part.rows])
            found = probabilities[begin : begin + part.rows]
            begin += part.rows
            # A part's answer may contain NaN here: its large request checks all parts together.
            outcome = found if request.only else answer_or_refusal(found, model.version)
            if not (as_canary and isinstance(outcome, NoProbability)):
                _resolve(request, outcome, model.version)

    async def _probabilities(self, instances: Instances, model: ModelVersion) -> Floats:
        """Return probabilities f32 [rows] by one lookup and one call of the network."""
        loop = asyncio.get_running_loop()
        many_keys = instances.given > MOST_INLINE
        if many_keys:
            unique = await loop.run_in_executor(self._paddle, unique_keys, instances, model.sparse_dim)
        else:
            unique = unique_keys(instances, model.sparse_dim)
        started = time.perf_counter()
        values, missing = await self._await_dependency(model.cube.lookup(model.version, unique.keys))
        looked_up = time.perf_counter()
        seconds = instances.rows * model.network.row_seconds
        if many_keys or seconds > _OWN_SECONDS or not self._paddle.idle:
            predicting = loop.run_in_executor(self._paddle, _predicted, model, unique, values, instances)
            self._progressed.set()
            probabilities = await predicting
        else:
            probabilities = _predicted(model, unique, values, instances)
        if instances.known is not None:
            instances.known.append(known_feasigns(instances, unique, missing))
        counters = self._counters
        counters.histograms["lookup_seconds"].observe(looked_up - started)
        counters.histograms["predict_seconds"].observe(time.perf_counter() - looked_up)
        counters.histograms["batch_rows"].observe(instances.rows)
        counters.totals["batches"] += 1
        scored = probabilities[~np.isnan(probabilities)]
        counters.totals["rows"] += len(scored)
        # The counter is a whole number, because a sum of floats may decrease when it is added in another order.
        millionths = round(1e6 * float(scored.sum()))
        counters.totals["predicted_millionths"] += millionths
        if model.version == self.canary.version:
            counters.totals["canary_rows"] += len(scored)
            counters.totals["canary_predicted_millionths"] += millionths
        counters.totals["keys"] += len(missing)
        counters.totals["missing_keys"] += int(np.count_nonzero(missing))
        return probabilities


def _predicted(model: ModelVersion, unique: UniqueKeys, values: Floats, instances: Instances) -> Floats:
    return model.network.predict(pooled(unique, values, instances, model.dim, model.averaged), instances.numbers)


def _resolve(request: PendingRequest, outcome: Floats | Exception, version: int) -> None:
    """Answer a request once. An error of one client does not affect the others."""
    if request.finished:
        return
    request.finished = True
    try:
        request.done(outcome, version)
    except Exception:
        log.exception("an answer could not be given")
