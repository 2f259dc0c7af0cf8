"""The native HTTP frontend: `http_batches` does its work in machine code, this module owns its buffers and its lifecycle.

When a batch begins, one native call gathers the requests that have arrived, the frontend submits them as one request, and one native
call sends all answers. Python handles only the connections that were set aside. A connection that sends anything but everyday
predictions, or sends slowly, moves with its input to the fallback frontend for good (`handover`).
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.json_scan import columns_of
from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.compiled import anew_if_stale
from elastic_ctr.runtime.http_connection import JSON_TYPE, response
from elastic_ctr.runtime.http_reader import read_head
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats, warm_pooling
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends import connections, http_batches, native_replies, templates
from elastic_ctr.serving.frontends.batch_instances import instances_of_feasigns, instances_of_rows
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend, Request
from elastic_ctr.serving.frontends.handover import Handover, input_of
from elastic_ctr.serving.frontends.http_batches import Batch, Rules
from elastic_ctr.serving.frontends.reply_parts import reply_parts
from elastic_ctr.serving.frontends.submitted_batch import SubmittedBatch
from elastic_ctr.serving.frontends.templates import HEAD_END, LONGEST_HEAD, LearnResult, Templates
from elastic_ctr.serving.protocols.elasticctr_json import SHORTEST_FEASIGN, inference_refusal, slot_names, warm_scan
from elastic_ctr.serving.protocols.rows_json import warm_rows
from elastic_ctr.serving.request_error import NoProbability, RequestError, request_error_of
from elastic_ctr.serving.routes import OPEN_INFERENCE, PREDICTIONS, ROWS, SOURCE_PATH, Routes, error_body
from elastic_ctr.serving.worker_counters import Counters

log = logging.getLogger(__name__)

# Two batches whose requests are under way, and one that is being filled.
_BATCHES = 3
_REQUESTS = 4096
# A connection that was set aside may have an everyday request when it is read again, once its head is learned.
_PASSES = 2
_ASIDE = 512
_LEAST_OUTPUT = 256 << 10
# Bytes of bodies in a batch, which take some milliseconds to scan.
_SCANNED = 4 << 20
# A larger body goes to the fallback frontend, which parses it on a thread. This one has room for hundreds of instances with all their keys.
_LARGEST_BODY = 1 << 20
# New templates of one connection. A client with a new head for each request moves to the fallback frontend.
_MOST_NEW_TEMPLATES = 4
_SLOW_SECONDS = 1.0
_NO_COLUMNS = InputColumns((), ())
# The endpoint's label in the metrics, by the kind of a request's head.
_ENDPOINTS = {templates.SOURCE: PREDICTIONS, templates.TENSORS: OPEN_INFERENCE, templates.COLUMNS: ROWS}


class NativeLimits(NamedTuple):
    """Limits of the requests that the native frontend answers itself."""

    max_rows: int = 8192
    max_connections: int = 4096
    max_pending_bytes: int = 64 << 20


class _SlotsChanged(RequestError):
    """The batch's version has another slot list than the requests were read for."""


class NativeHttpFrontend:
    """The frontend, used on the event loop's thread only. It owns the fallback frontend `behind` it. Raises numba's errors."""

    def __init__(self, routes: Routes, behind: HttpFrontend, limits: NativeLimits) -> None:
        self.batcher = routes.batcher
        self._routes = routes
        self._behind = behind
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        # True while the event loop watches epoll, because no request was there.
        self._armed = False
        max_body = min(_LARGEST_BODY, behind.limits.max_body_bytes)
        feasigns, bodies = (_SCANNED + max_body) // SHORTEST_FEASIGN, _SCANNED + 2 * max_body
        self._free = [http_batches.new_batch(_REQUESTS, feasigns, limits.max_rows, bodies) for _ in range(_BATCHES)]
        # In the order of submission, in which answers are sent.
        self._under_way: deque[SubmittedBatch] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        own = sockets.new_sockets(
            limits.max_connections + sockets.OTHER_DESCRIPTORS,
            connections.WIDTH,
            max(LONGEST_HEAD + max_body, sockets.LARGE),
            http_batches.REPLY_BYTES + http_batches.ROW_BYTES * limits.max_rows + _LEAST_OUTPUT,
            self._epoll.fileno(),
        )
        self._buffers = connections.Buffers(
            sockets=own,
            shared=np.zeros(connections.SHARED_WIDTH, np.int64),
            ready=np.zeros((own.connections.shape[0] + sockets.EVENTS, 2), np.int64),
            aside=np.zeros((_ASIDE, 3), np.int64),
            replies=sockets.reserve(own.output_bytes),
            least_reply=http_batches.LEAST_REPLY,
            max_in_flight=behind.limits.max_pipelined,
            max_pending=limits.max_pending_bytes,
        )
        self._paths = {
            templates.SOURCE: SOURCE_PATH, templates.TENSORS: routes.infer_path, templates.COLUMNS: routes.rows_path
        }  # fmt: skip
        paths = {path: kind for kind, path in self._paths.items()}
        self._heads = Templates(partial(templates.head_template, paths=paths, limits=behind.limits))
        self._tensors = Templates(lambda _: None)
        self._rules = Rules(
            *slot_names(None),
            self._heads.table,
            self._tensors.table,
            max_body,
            limits.max_rows,
            _SCANNED,
            of_columns=False,
            columns=columns_of(_NO_COLUMNS),
        )
        self._schema: Schema | None = None
        self._inputs = _NO_COLUMNS
        self._handover = Handover(behind)
        self._compile()

    # -- lifecycle

    @property
    def opened(self) -> int:
        """The number of open connections."""
        return int(self._buffers.shared[connections.OPENED])

    async def listen(self, socket: socket.socket) -> None:
        """Accept connections on a bound socket."""
        socket.setblocking(False)
        socket.listen(2048)
        self._listener = socket
        self._buffers = self._buffers._replace(sockets=self._buffers.sockets._replace(listener=socket.fileno()))
        self._epoll.register(socket.fileno(), select.EPOLLIN)
        self.batcher.add_source(self.poll)
        self._arm()
        self._sweep()

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, and move all connections to the fallback frontend, which answers their last requests and stops."""
        ends = time.monotonic() + grace_seconds
        self._behind.begin_drain(grace_seconds)
        if not self._epoll.closed:
            if self._listener is not None:
                if not self._buffers.shared[connections.ACCEPT_PAUSED]:
                    self._epoll.unregister(self._listener.fileno())
                self._listener.close()
                self._listener = None
            for descriptor in sockets.open_descriptors(self._buffers.sockets):
                self._handover.begin(self._buffers, descriptor)
            self._move_idle()
            if self.opened:
                # A client that does not read its answers must not use up the whole grace.
                await wait_event(self._emptied, grace_seconds / 2)
            for descriptor in sockets.open_descriptors(self._buffers.sockets):
                connections.hang_up(self._buffers, descriptor)
            if self._sweeping is not None:
                self._sweeping.cancel()
            if self._armed:
                asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
        await self._handover.wait()
        await self._behind.stop(max(ends - time.monotonic(), 0.0))

    def _compile(self) -> None:
        """Compile before the first request."""
        warm_scan()
        warm_rows()
        warm_pooling()
        buffers, batch = self._buffers, self._free[0]
        http_batches.gather(buffers, batch, self._rules, 0)
        none = np.zeros(0, np.float32)
        replies, _ = reply_parts(self._routes.model_name, batch.requests[:0], none, 0)
        native_replies.answer(buffers, batch, 0, 0, replies, none, 0)
        connections.put(buffers, 0, 1, np.frombuffer(b"none", np.uint8), 0, 0)
        connections.set_pending_input(buffers, buffers.sockets.connections[0], 0)
        connections.hang_up(buffers, 0)
        connections.detach(buffers, 0)
        connections.update_interest(buffers, 0, 0)
        connections.resume_accept(buffers)

    # -- requests

    def poll(self) -> None:
        """Submit all requests that have arrived. The batcher calls this when a batch begins."""
        # An armed frontend has no request; epoll wakes it when one arrives.
        if self._armed or not self._free or self._epoll.closed:
            return
        pinned = self.batcher.pinned
        model = None if pinned is None else self.batcher.versions[pinned]
        schema = None if model is None else model.schema
        if schema is not self._schema:
            self._read_for(schema)
        batch = self._fitted(self._free.pop())
        try:
            more = self._fill(batch)
        except BaseException:
            self._free.append(batch)
            raise
        if batch.taken[http_batches.REQUESTS]:
            assert model is not None
            self._submit(batch, model)
            return
        self._free.append(batch)
        self._move_idle()
        if more:
            # Wake later, because the event loop has other work, and refused clients may retry without end.
            asyncio.get_running_loop().call_soon(self.batcher.wake)
        elif not self._under_way:
            self._arm()

    def _fitted(self, batch: Batch) -> Batch:
        """Return the batch with room for the most rows of the schema."""
        inputs = self._inputs if self._rules.of_columns else None
        return http_batches.fitted(batch, self._rules.max_rows, max(len(self._rules.ends), 1), inputs)

    def _read_for(self, schema: Schema | None) -> None:
        self._schema = schema
        slots = None if schema is None else schema.slots
        transformer = None if schema is None else schema.transformer
        inputs = _NO_COLUMNS if transformer is None else transformer.inputs
        names, ends = slot_names(slots)
        self._tensors = Templates(lambda text: None if slots is None else templates.tensors_template(text, slots))
        self._rules = self._rules._replace(
            names=names,
            ends=ends,
            tensors=self._tensors.table,
            of_columns=transformer is not None,
            columns=columns_of(inputs, skips=schema is not None and schema.ignores_unknown),
        )
        self._inputs = inputs

    def _fill(self, batch: Batch) -> bool:
        """Gather requests, and handle the connections set aside. Return True if more may be set aside."""
        for _ in range(_PASSES):
            http_batches.gather(self._buffers, batch, self._rules, _now())
            set_aside = int(self._buffers.shared[connections.ASIDE])
            if set_aside:
                self._handle_exceptions(set_aside)
            if batch.taken[http_batches.REQUESTS] or not set_aside:
                return False
        return True

    def _submit(self, batch: Batch, model: ModelVersion) -> None:
        """Submit the requests of a batch, in two pieces if they are enough for two batches of the batcher."""
        taken = batch.taken.tolist()
        instances: Instances | None
        if model.schema.transformer is None:
            instances = instances_of_feasigns(batch, len(model.schema.slots))
        else:
            instances = instances_of_rows(batch, model.schema.transformer)
        nothing = Instances(np.zeros(0, np.uint64), np.zeros(0, np.int64), taken[http_batches.ROWS])
        whole = SubmittedBatch(batch, 0, taken[http_batches.REQUESTS], instances or nothing, time.perf_counter())
        if instances is None:
            # Handle each request alone, so that only the clients with such a row are refused.
            self._under_way.append(whole)
            self._resubmit_each(whole)
            return
        pieces = self._pieces(whole, model.schema)
        self._under_way.extend(piece for piece, _ in pieces)
        for piece, version in pieces:
            done = partial(self._on_result, piece)
            try:
                self.batcher.submit(_read_again, piece.instances, model.schema, done, version)
            except RequestError as refusal:
                done(refusal, 0)

    def _pieces(self, whole: SubmittedBatch, schema: Schema) -> list[tuple[SubmittedBatch, int | None]]:
        """Return pieces to submit as one request each, with the candidate if the canary's rule chooses the piece, else None."""
        candidate = self.batcher.canary.asked
        if candidate is not None:
            rows = whole.requests[:, http_batches.REQUEST_ROWS]
            flags = self.batcher.canary.rule.chosen(whole.instances, schema.slots.names, np.cumsum(rows) - rows)
            if flags.any():
                return [(piece, candidate if flags[piece.begin] else None) for piece in whole.runs(flags)]
        halves = whole.halves() if whole.instances.rows >= self.batcher.shared_rows else [whole]
        return [(piece, None) for piece in halves]

    def _on_result(self, piece: SubmittedBatch, outcome: Floats | Exception, version: int) -> None:
        if isinstance(outcome, _SlotsChanged | NoProbability):
            self._resubmit_each(piece)
        elif isinstance(outcome, Exception):
            self._send_in_order(piece, partial(self._refuse, piece, outcome))
        else:
            self._send_in_order(piece, partial(self._answer, piece, np.ascontiguousarray(outcome, np.float32), version))

    def _resubmit_each(self, piece: SubmittedBatch) -> None:
        """Handle each body alone, read for the current slot list."""
        requests = piece.requests.tolist()
        replies: dict[int, bytes] = {}

        def send() -> None:
            for number, (descriptor, serial, rows, *_) in enumerate(requests):
                self._put(descriptor, serial, replies[number], http_batches.owed(rows))

        def reply(number: int, status: int, payload: bytes, headers: bytes = JSON_TYPE, /) -> None:
            replies[number] = response(status, payload, headers)
            if len(replies) == len(requests):
                self._send_in_order(piece, send)

        for number, (*_, begin, size, json, kind) in enumerate(requests):
            body = bytes(piece.batch.bodies[begin : begin + size])
            self._routes.handle(Request("POST", self._paths[kind], body, json or None), partial(reply, number))

    # -- answers

    def _send_in_order(self, piece: SubmittedBatch, send: Callable[[], None]) -> None:
        """Send replies in request order: a piece that finishes early waits for those before it."""
        piece.send = send
        while self._under_way and (give := self._under_way[0].send) is not None:
            first = self._under_way.popleft()
            # `send` refers to its piece: in a reference cycle the arrays of every piece would wait for the garbage collector.
            first.send = None
            try:
                if not self._epoll.closed:
                    give()
            except Exception:
                log.exception("answers could not be sent; the connections of their clients are closed")
                for descriptor, serial, *_ in first.requests.tolist():
                    if self._buffers.sockets.connections[descriptor, connections.SERIAL] == serial:
                        connections.hang_up(self._buffers, descriptor)
            if first.end == first.batch.taken[http_batches.REQUESTS]:
                self._free.append(first.batch)
        self._move_idle()
        self.batcher.wake()

    def _answer(self, piece: SubmittedBatch, probabilities: Floats, version: int) -> None:
        replies, probabilities = reply_parts(self._routes.model_name, piece.requests, probabilities, version)
        native_replies.answer(self._buffers, piece.batch, piece.begin, piece.end, replies, probabilities, _now())
        kinds = piece.requests[:, http_batches.REQUEST_KIND]
        for kind, endpoint in _ENDPOINTS.items():
            if times := int(np.count_nonzero(kinds == kind)):
                self._routes.count(endpoint, 200, times)
        seconds = time.perf_counter() - piece.started
        self._routes.counters.histograms["request_seconds"].observe(seconds, len(kinds))

    def _refuse(self, piece: SubmittedBatch, error: Exception) -> None:
        refusal = request_error_of(error)
        for descriptor, serial, rows, *_, kind in piece.requests.tolist():
            self._put(descriptor, serial, self._refusal(refusal, kind), http_batches.owed(rows))

    def _refusal(self, refusal: RequestError, kind: int) -> bytes:
        self._routes.count(_ENDPOINTS[kind], refusal.status)
        return response(
            refusal.status, inference_refusal(refusal) if kind == templates.SOURCE else error_body(refusal.sentence)
        )

    def _put(self, descriptor: int, serial: int, reply: bytes, owed: int) -> None:
        """Send a reply that Python has made."""
        connections.put(self._buffers, descriptor, serial, np.frombuffer(reply, np.uint8), owed, _now())

    # -- connections set aside

    def _handle_exceptions(self, count: int) -> None:
        for descriptor, serial, why in self._buffers.aside[:count].tolist():
            if why == connections.NO_ROW:
                self._handover.move(socket.socket(fileno=descriptor), b"")
            elif self._buffers.sockets.connections[descriptor, connections.SERIAL] != serial:
                continue
            elif why == http_batches.UNKNOWN:
                self._classify_head(descriptor)
            elif why == http_batches.UNKNOWN_TENSORS:
                self._classify_tensors(descriptor)
            elif why == http_batches.HANDS_OVER:
                self._handover.begin(self._buffers, descriptor)
            else:
                refusal = RequestError(503, f"no version is live yet: {self.batcher.stage}")
                reply = self._refusal(refusal, why - http_batches.NO_VERSION)
                self._put(descriptor, serial, reply, http_batches.LEAST_REPLY)

    def _classify_head(self, descriptor: int) -> None:
        row = self._buffers.sockets.connections[descriptor]
        data = input_of(self._buffers, descriptor, LONGEST_HEAD)
        end = data.find(HEAD_END) + len(HEAD_END)
        if end >= len(HEAD_END):
            self._learn(descriptor, self._heads, data[:end])
        elif len(data) < LONGEST_HEAD and not row[connections.HALF_CLOSED]:
            # The head is incomplete, so wait for the rest.
            connections.set_pending_input(self._buffers, row, 0)
            connections.update_interest(self._buffers, descriptor, _now())
        else:
            self._handover.begin(self._buffers, descriptor)

    def _classify_tensors(self, descriptor: int) -> None:
        data = input_of(self._buffers, descriptor, 2 * LONGEST_HEAD)
        end = data.find(HEAD_END) + len(HEAD_END)
        head = read_head(data[:end], self._behind.limits)
        # The head matched a template, so it has one length of the JSON.
        json = int(dict(head.headers)[b"inference-header-content-length"]) if head is not None else 0
        self._learn(descriptor, self._tensors, data[end : end + json])

    def _learn(self, descriptor: int, known: Templates, text: bytes) -> None:
        row = self._buffers.sockets.connections[descriptor]
        # A template that was evicted from the table before does not count as new.
        row[connections.NEW_TEMPLATES] += (learned := known.learn(text)) == LearnResult.NEW
        if learned == LearnResult.NOT or row[connections.NEW_TEMPLATES] > _MOST_NEW_TEMPLATES:
            self._handover.begin(self._buffers, descriptor)

    def _move_idle(self) -> None:
        self._handover.move_idle(self._buffers)
        if self._listener is None and not self.opened:
            self._emptied.set()

    # -- waiting and deadlines

    def _arm(self) -> None:
        if not self._armed and not self._epoll.closed:
            self._armed = True
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._readable)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._armed = False
        self.batcher.wake()

    def _sweep(self) -> None:
        if self._buffers.shared[connections.ACCEPT_PAUSED] and self._listener is not None:
            connections.resume_accept(self._buffers)
        limits, now = self._behind.limits, _now()
        for descriptor in sockets.open_descriptors(self._buffers.sockets):
            row = self._buffers.sockets.connections[descriptor]
            passed = (now - int(row[connections.SINCE])) / 1000
            if row[sockets.OUT_END] > row[sockets.OUT_AT]:
                if passed > limits.request_seconds:
                    connections.hang_up(self._buffers, descriptor)
            elif row[connections.IN_FLIGHT] or row[connections.HANDING_OVER]:
                continue
            elif row[sockets.INPUT]:
                # The fallback frontend enforces the deadlines of slow requests.
                if passed > _SLOW_SECONDS:
                    self._handover.begin(self._buffers, descriptor)
            elif passed > limits.idle_seconds:
                connections.hang_up(self._buffers, descriptor)
        self._move_idle()
        self._sweeping = asyncio.get_running_loop().call_later(_SLOW_SECONDS, self._sweep)


def precompile() -> None:
    """Fill numba's cache (`NUMBA_CACHE_DIR`) with the code of serving when an image is built."""
    routes = Routes(
        Batcher(InlineExecutor("paddle"), _no_version, Counters()), Counters(), ThreadPoolExecutor(1),
        model_name="none", version="0", max_instances=1,
    )  # fmt: skip
    anew_if_stale(partial(NativeHttpFrontend, routes, HttpFrontend(routes.handle), NativeLimits()))


async def _no_version() -> None:
    return None


def _read_again(schema: Schema) -> Instances:
    raise _SlotsChanged(503, f"the slot list has changed, to {len(schema.slots)} slots; ask again")


def _now() -> int:
    """Return milliseconds of the monotonic clock, by which deadlines are measured."""
    return int(time.monotonic() * 1000)
