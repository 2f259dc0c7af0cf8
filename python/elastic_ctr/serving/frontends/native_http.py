"""The HTTP frontend around `http_batches`, with the asyncio frontend behind it.

Small everyday predictions are answered here, in whole batcher. A connection that sends anything else, or sends it slowly, goes
to the asyncio frontend with what it has sent, and stays there: that one knows all of HTTP and all refusals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from elastic_ctr.features.slots import SlotList
from elastic_ctr.machine_code.sockets import INPUT, LARGE, OUT_AT, OUT_END, open_descriptors
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.serving.batching.batcher import ModelVersion
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.frontends import connections, http_batches
from elastic_ctr.serving.frontends.asyncio_http import JSON_TYPE, HttpFrontend, Request, date_line, response
from elastic_ctr.serving.frontends.connections import Batch
from elastic_ctr.serving.frontends.http_batches import (
    LEAST_REPLY,
    LEAVES,
    NO_VERSION_TENSORS,
    REPLY_BYTES,
    ROW_BYTES,
    UNKNOWN,
    UNKNOWN_TENSORS,
    Replies,
    Rules,
    owed,
)
from elastic_ctr.serving.frontends.native import NativeFrontend, Room, SubmittedBatch, now
from elastic_ctr.serving.frontends.request_head import HEAD_END, read_head
from elastic_ctr.serving.frontends.templates import (
    LONGEST_HEAD,
    MOST_NUMBERS,
    SOURCE,
    TENSORS,
    LearnResult,
    Templates,
    head_template,
    tensors_template,
)
from elastic_ctr.serving.protocols.elasticctr_json import inference_refusal
from elastic_ctr.serving.protocols.json_scanner import SHORTEST_FEASIGN, slot_names
from elastic_ctr.serving.request_error import RequestError, request_error_of
from elastic_ctr.serving.routes import OPEN_INFERENCE, PARSED_INLINE, PREDICTIONS, SOURCE_PATH, Routes, error_body

log = logging.getLogger(__name__)

_LEAST_OUTPUT = 256 << 10
# Bytes of bodies a batch: some milliseconds.
_SCANNED = 4 << 20
# Templates of one connection that were not known: who sends a new one each time is for the parser.
_STRANGE_FORMS = 4
_SLOW_SECONDS = 1.0


class NativeLimits(NamedTuple):
    """What the native frontend takes itself."""

    max_rows: int = 8192
    max_connections: int = 4096
    max_pending_bytes: int = 64 << 20


class _ReadAgain(RequestError):
    """The batches answer with another slot list than the batch was read for."""


class NativeHttpFrontend(NativeFrontend):
    """The native HTTP frontend. It owns the asyncio frontend."""

    def __init__(self, service: Routes, behind: HttpFrontend, limits: NativeLimits) -> None:
        # Larger ones are read on a thread, which is the business of the asyncio frontend.
        max_body = min(PARSED_INLINE, behind.limits.max_body_bytes)
        super().__init__(
            service.batcher,
            service.counters,
            Room(
                connections=limits.max_connections,
                input_bytes=max(LONGEST_HEAD + max_body, LARGE),
                output_bytes=REPLY_BYTES + ROW_BYTES * limits.max_rows + _LEAST_OUTPUT,
                least_reply=LEAST_REPLY,
                in_flight=behind.limits.max_pipelined,
                pending_bytes=limits.max_pending_bytes,
                rows=limits.max_rows,
                feasigns=(_SCANNED + max_body) // SHORTEST_FEASIGN,
                bodies=_SCANNED + max_body,
            ),
        )
        self._service = service
        self._behind = behind
        paths = {SOURCE_PATH: SOURCE, service.infer_path: TENSORS}
        self._heads = Templates(partial(head_template, paths=paths, max_headers=behind.limits.max_headers))
        self._tensors = Templates(lambda _: None)
        names, ends = slot_names(None)
        numbers = np.zeros(MOST_NUMBERS, np.int64)
        self._rules = Rules(
            names, ends, self._heads.table, self._tensors.table, numbers, max_body, limits.max_rows, _SCANNED
        )
        self._slots: SlotList | None = None
        self._leaving: dict[int, int] = {}
        self._moving: set[asyncio.Task[None]] = set()
        self._buffers.shared[connections.BEHIND] = 1
        self._try_out()

    async def stop(self, grace_seconds: float) -> None:
        """As the asyncio frontend stops, to which all connections go: it answers what is still asked, and says good-bye."""
        ends = time.monotonic() + grace_seconds
        self.stopping = True
        self._behind.begin_drain(grace_seconds)
        if not self._epoll.closed:
            self._end_listening()
            for descriptor in open_descriptors(self._buffers.sockets):
                self._leave(descriptor)
            self._close_idle()
            if self.opened:
                # One that does not read its answers must not take the time of all.
                await wait_event(self._emptied, grace_seconds / 2)
            self._split_head()
        while self._moving:
            await asyncio.wait(self._moving)
        await self._behind.stop(max(ends - time.monotonic(), 0.0))

    # -- batches

    def _gather(self, batch: Batch, model: ModelVersion | None) -> None:
        slots = None if model is None else model.slots
        if slots is not self._slots:
            self._slots = slots
            names, ends = slot_names(slots)
            self._tensors = Templates(partial(tensors_template, slots=slots) if slots is not None else lambda _: None)
            self._rules = self._rules._replace(names=names, ends=ends, tensors=self._tensors.table)
        http_batches.gather(self._buffers, batch, self._rules, now())

    def _answer(self, asked: SubmittedBatch, probabilities: Floats, version: int) -> None:
        in_json = asked.batch.requests[asked.begin : asked.end, connections.JSON_BYTES] == 0
        rows = np.repeat(in_json, asked.batch.requests[asked.begin : asked.end, connections.REQUEST_ROWS])
        replies = self._replies(probabilities[rows], version)
        http_batches.answer(self._buffers, asked.batch, asked.begin, asked.end, replies, probabilities, now())
        self._count(in_json, 200)

    def _replies(self, in_json: Floats, version: int) -> Replies:
        begin = orjson.dumps(
            {
                "model_name": self._service.model_name,
                "model_version": str(version),
                "outputs": [{"name": "probability", "datatype": "FP32", "shape": []}],
            }
        ).removesuffix(b"]}]}")
        date = date_line(int(time.time()))
        return Replies(np.frombuffer(date, np.uint8), _pairs(in_json), np.frombuffer(begin, np.uint8))

    def _count(self, in_json: NDArray[np.bool_], status: int) -> None:
        sources = int(np.count_nonzero(in_json))
        for name, times in ((PREDICTIONS, sources), (OPEN_INFERENCE, len(in_json) - sources)):
            if times:
                self._service.count(name, status, times)

    def _refuse(self, asked: SubmittedBatch, error: Exception) -> None:
        refusal = request_error_of(error)
        for descriptor, serial, rows, _, _, json in asked.requests:
            self._put(descriptor, serial, self._refusal(refusal, tensors=json > 0), owed(rows))

    def _refusal(self, refusal: RequestError, *, tensors: bool) -> bytes:
        self._service.count(OPEN_INFERENCE if tensors else PREDICTIONS, refusal.status)
        return response(refusal.status, error_body(refusal.sentence) if tensors else inference_refusal(refusal))

    def _on_result(self, asked: SubmittedBatch, outcome: Floats | Exception, version: int) -> None:
        if isinstance(outcome, _ReadAgain):
            self._ask_each(asked)
        else:
            super()._on_result(asked, outcome, version)

    def _read_again(self, slots: SlotList, /) -> Instances:
        raise _ReadAgain(503, f"the slot list has changed, to {len(slots)} slots; ask again")

    def _ask_each(self, asked: SubmittedBatch) -> None:
        """Each body for itself, read for the slot list that is answered with now."""
        requests = asked.requests
        replies: dict[int, bytes] = {}

        def send() -> None:
            for number, (descriptor, serial, rows, *_) in enumerate(requests):
                self._put(descriptor, serial, replies[number], owed(rows))

        def ask(number: int, body: bytes, json: int) -> None:
            def reply(status: int, payload: bytes, headers: bytes = JSON_TYPE, /) -> None:
                replies[number] = response(status, payload, headers)
                if len(replies) == len(requests):
                    self._send_in_order(asked, send)

            path = self._service.infer_path if json else SOURCE_PATH
            self._service.handle(Request("POST", path, body, json or None), reply)

        for number, (*_, begin, size, json) in enumerate(requests):
            ask(number, bytes(asked.batch.bodies[begin : begin + size]), json)

    # -- what is not an everyday request

    def _handle_exceptions(self, count: int) -> None:
        for descriptor, serial, why in self._buffers.aside[:count].tolist():
            if why == connections.NO_ROW:
                self._move(socket.socket(fileno=descriptor), b"")
            elif self._buffers.sockets.connections[descriptor, connections.SERIAL] != serial:
                continue
            elif why == UNKNOWN:
                self._classify_head(descriptor)
            elif why == UNKNOWN_TENSORS:
                self._classify_tensors(descriptor)
            elif why == LEAVES:
                self._leave(descriptor)
            else:
                refusal = RequestError(503, f"no version is live yet: {self.batcher.stage}")
                reply = self._refusal(refusal, tensors=why == NO_VERSION_TENSORS)
                self._put(descriptor, serial, reply, LEAST_REPLY)

    def _classify_head(self, descriptor: int) -> None:
        row = self._buffers.sockets.connections[descriptor]
        came = self._came(descriptor, LONGEST_HEAD)
        end = came.find(HEAD_END) + len(HEAD_END)
        if end >= len(HEAD_END):
            self._learn(descriptor, self._heads, came[:end])
        elif len(came) < LONGEST_HEAD and not row[connections.SILENT]:
            # The rest is to come.
            connections.set_pending_input(self._buffers, row, 0)
            connections.update_interest(self._buffers, descriptor, now())
        else:
            self._leave(descriptor)

    def _classify_tensors(self, descriptor: int) -> None:
        came = self._came(descriptor, 2 * LONGEST_HEAD)
        end = came.find(HEAD_END) + len(HEAD_END)
        json = read_head(came[:end], self._behind.limits.max_headers).json_length or 0
        self._learn(descriptor, self._tensors, came[end : end + json])

    def _learn(self, descriptor: int, forms: Templates, text: bytes) -> None:
        row = self._buffers.sockets.connections[descriptor]
        learned = forms.learn(text)
        # One that others have pushed out of the table is no strange one.
        row[connections.STRANGE] += learned == LearnResult.NEW
        if learned == LearnResult.NOT or row[connections.STRANGE] > _STRANGE_FORMS:
            self._leave(descriptor)

    def _came(self, descriptor: int, most: int) -> bytes:
        own = self._buffers.sockets
        begin = descriptor * own.input_bytes
        return bytes(own.inputs[begin : begin + min(int(own.connections[descriptor, INPUT]), most)])

    def _leave(self, descriptor: int) -> None:
        """Go to the asyncio frontend as soon as nothing is owed."""
        row = self._buffers.sockets.connections[descriptor]
        row[connections.LEAVING] = 1
        connections.set_pending_input(self._buffers, row, 0)
        connections.update_interest(self._buffers, descriptor, now())
        self._leaving[descriptor] = int(row[connections.SERIAL])

    def _close_idle(self) -> None:
        for descriptor, serial in list(self._leaving.items()):
            if self._buffers.sockets.connections[descriptor, connections.SERIAL] != serial:
                del self._leaving[descriptor]
            elif self._owed_nothing(descriptor):
                del self._leaving[descriptor]
                came = self._came(descriptor, self._buffers.sockets.input_bytes)
                connections.let_go(self._buffers, descriptor)
                self._move(socket.socket(fileno=descriptor), came)
        if self.stopping and not self.opened:
            self._emptied.set()

    def _move(self, peer: socket.socket, came: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._adopted(peer, came))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def _adopted(self, peer: socket.socket, came: bytes) -> None:
        try:
            await self._behind.adopt_connection(peer, came)
        except OSError as gone:
            log.debug("a connection ended while it was moved: %s", gone)
            peer.close()

    # -- deadlines

    @property
    def _sweep_seconds(self) -> float:
        return _SLOW_SECONDS

    def _sweep_one(self, descriptor: int, now: int) -> None:
        limits = self._behind.limits
        row = self._buffers.sockets.connections[descriptor]
        passed = (now - int(row[connections.SINCE])) / 1000
        if row[OUT_END] > row[OUT_AT]:
            if passed > limits.request_seconds:
                connections.hang_up(self._buffers, descriptor)
        elif row[connections.FLIGHT] or row[connections.LEAVING]:
            return
        elif row[INPUT]:
            # Whose requests come slowly, and how slowly they may come, is known over there.
            if passed > _SLOW_SECONDS:
                self._leave(descriptor)
        elif passed > limits.idle_seconds:
            connections.hang_up(self._buffers, descriptor)

    def _try_out(self) -> None:
        """Compile now, not under the first request."""
        http_batches.gather(self._buffers, self._free[0], self._rules, 0)
        none = np.zeros(0, np.float32)
        http_batches.answer(self._buffers, self._free[0], 0, 0, self._replies(none, 0), none, 0)
        connections.put(self._buffers, 0, 1, np.frombuffer(b"none", np.uint8), 0, 0)
        connections.set_pending_input(self._buffers, self._buffers.sockets.connections[0], 0)
        connections.hang_up(self._buffers, 0)
        connections.let_go(self._buffers, 0)
        connections.update_interest(self._buffers, 0, 0)
        connections.listen_again(self._buffers)


def _pairs(probabilities: Floats) -> NDArray[np.uint8]:
    """`[[prob0,prob1],…]` as `elasticctr_json.inference_answer` would write the numbers."""
    pairs = np.empty((len(probabilities), 2))
    pairs[:, 1] = probabilities
    pairs[:, 0] = 1.0 - pairs[:, 1]
    return np.frombuffer(orjson.dumps(pairs, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
