"""The HTTP door around `http_batches`, with the door in Python behind it.

Small everyday predictions are answered here, in whole rounds. A connection that sends anything else, or sends it slowly, goes
to the door in Python with what it has sent, and stays there: that one knows all of HTTP and all refusals.
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
from elastic_ctr.serving import door_sockets, http_batches
from elastic_ctr.serving.compiled_door import Asked, CompiledDoor, Room, now
from elastic_ctr.serving.door_sockets import Batch
from elastic_ctr.serving.http_batches import (
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
from elastic_ctr.serving.http_door import JSON_TYPE, Door, Request, date_line, response
from elastic_ctr.serving.http_heads import (
    LONGEST_HEAD,
    MOST_NUMBERS,
    SOURCE,
    TENSORS,
    Forms,
    Learned,
    form_of,
    tensors_form,
)
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.refusal import Refusal, refusal_of
from elastic_ctr.serving.request_head import HEAD_END, read_head
from elastic_ctr.serving.rounds import ModelVersion
from elastic_ctr.serving.scan import SHORTEST_FEASIGN, slot_names
from elastic_ctr.serving.service import OPEN_INFERENCE, PARSED_INLINE, PREDICTIONS, SOURCE_PATH, Service, error_body
from elastic_ctr.serving.source_protocol import inference_refusal

log = logging.getLogger(__name__)

_LEAST_OUTPUT = 256 << 10
# Bytes of bodies a round: some milliseconds.
_SCANNED = 4 << 20
# Forms of one connection that were not known: who sends a new one each time is for the parser.
_STRANGE_FORMS = 4
_SLOW_SECONDS = 1.0


class HttpLimits(NamedTuple):
    """What the compiled door takes itself."""

    max_rows: int = 8192
    max_connections: int = 4096
    max_pending_bytes: int = 64 << 20


class _ReadAgain(Refusal):
    """The rounds answer with another slot list than the batch was read for."""


class CompiledHttpDoor(CompiledDoor):
    """The HTTP door in machine code. It owns the door in Python."""

    def __init__(self, service: Service, behind: Door, limits: HttpLimits) -> None:
        # Larger ones are read on a thread, which is the business of the door in Python.
        max_body = min(PARSED_INLINE, behind.limits.max_body_bytes)
        super().__init__(
            service.rounds,
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
        self._heads = Forms(partial(form_of, paths=paths, max_headers=behind.limits.max_headers))
        self._tensors = Forms(lambda _: None)
        names, ends = slot_names(None)
        numbers = np.zeros(MOST_NUMBERS, np.int64)
        self._rules = Rules(
            names, ends, self._heads.table, self._tensors.table, numbers, max_body, limits.max_rows, _SCANNED
        )
        self._slots: SlotList | None = None
        self._leaving: dict[int, int] = {}
        self._moving: set[asyncio.Task[None]] = set()
        self._buffers.door[door_sockets.BEHIND] = 1
        self._try_out()

    async def stop(self, grace_seconds: float) -> None:
        """As the door in Python stops, to which all connections go: it answers what is still asked, and says good-bye."""
        ends = time.monotonic() + grace_seconds
        self.stopping = True
        self._behind.say_good_bye(grace_seconds)
        if not self._epoll.closed:
            self._end_listening()
            for descriptor in open_descriptors(self._buffers.sockets):
                self._leave(descriptor)
            self._left()
            if self.opened:
                # One that does not read its answers must not take the time of all.
                await wait_event(self._emptied, grace_seconds / 2)
            self._cut()
        while self._moving:
            await asyncio.wait(self._moving)
        await self._behind.stop(max(ends - time.monotonic(), 0.0))

    # -- rounds

    def _gather(self, batch: Batch, model: ModelVersion | None) -> None:
        slots = None if model is None else model.slots
        if slots is not self._slots:
            self._slots = slots
            names, ends = slot_names(slots)
            self._tensors = Forms(partial(tensors_form, slots=slots) if slots is not None else lambda _: None)
            self._rules = self._rules._replace(names=names, ends=ends, tensors=self._tensors.table)
        http_batches.gather(self._buffers, batch, self._rules, now())

    def _answer(self, asked: Asked, probabilities: Floats, version: int) -> None:
        in_json = asked.batch.requests[asked.begin : asked.end, door_sockets.JSON_BYTES] == 0
        rows = np.repeat(in_json, asked.batch.requests[asked.begin : asked.end, door_sockets.REQUEST_ROWS])
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

    def _refuse(self, asked: Asked, error: Exception) -> None:
        refusal = refusal_of(error)
        for descriptor, serial, rows, _, _, json in asked.requests:
            self._put(descriptor, serial, self._refusal(refusal, tensors=json > 0), owed(rows))

    def _refusal(self, refusal: Refusal, *, tensors: bool) -> bytes:
        self._service.count(OPEN_INFERENCE if tensors else PREDICTIONS, refusal.status)
        return response(refusal.status, error_body(refusal.sentence) if tensors else inference_refusal(refusal))

    def _known(self, asked: Asked, outcome: Floats | Exception, version: int) -> None:
        if isinstance(outcome, _ReadAgain):
            self._ask_each(asked)
        else:
            super()._known(asked, outcome, version)

    def _read_again(self, slots: SlotList, /) -> Instances:
        raise _ReadAgain(503, f"the slot list has changed, to {len(slots)} slots; ask again")

    def _ask_each(self, asked: Asked) -> None:
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

    def _look_aside(self, count: int) -> None:
        for descriptor, serial, why in self._buffers.aside[:count].tolist():
            if why == door_sockets.NO_ROW:
                self._move(socket.socket(fileno=descriptor), b"")
            elif self._buffers.sockets.connections[descriptor, door_sockets.SERIAL] != serial:
                continue
            elif why == UNKNOWN:
                self._judge(descriptor)
            elif why == UNKNOWN_TENSORS:
                self._judge_tensors(descriptor)
            elif why == LEAVES:
                self._leave(descriptor)
            else:
                refusal = Refusal(503, f"no version is live yet: {self.rounds.stage}")
                reply = self._refusal(refusal, tensors=why == NO_VERSION_TENSORS)
                self._put(descriptor, serial, reply, LEAST_REPLY)

    def _judge(self, descriptor: int) -> None:
        row = self._buffers.sockets.connections[descriptor]
        came = self._came(descriptor, LONGEST_HEAD)
        end = came.find(HEAD_END) + len(HEAD_END)
        if end >= len(HEAD_END):
            self._learn(descriptor, self._heads, came[:end])
        elif len(came) < LONGEST_HEAD and not row[door_sockets.SILENT]:
            # The rest is to come.
            door_sockets.left_over(self._buffers, row, 0)
            door_sockets.settle(self._buffers, descriptor, now())
        else:
            self._leave(descriptor)

    def _judge_tensors(self, descriptor: int) -> None:
        came = self._came(descriptor, 2 * LONGEST_HEAD)
        end = came.find(HEAD_END) + len(HEAD_END)
        json = read_head(came[:end], self._behind.limits.max_headers).json_length or 0
        self._learn(descriptor, self._tensors, came[end : end + json])

    def _learn(self, descriptor: int, forms: Forms, text: bytes) -> None:
        row = self._buffers.sockets.connections[descriptor]
        learned = forms.learn(text)
        # One that others have pushed out of the table is no strange one.
        row[door_sockets.STRANGE] += learned == Learned.NEW
        if learned == Learned.NOT or row[door_sockets.STRANGE] > _STRANGE_FORMS:
            self._leave(descriptor)

    def _came(self, descriptor: int, most: int) -> bytes:
        own = self._buffers.sockets
        begin = descriptor * own.input_bytes
        return bytes(own.inputs[begin : begin + min(int(own.connections[descriptor, INPUT]), most)])

    def _leave(self, descriptor: int) -> None:
        """Go to the door in Python as soon as nothing is owed."""
        row = self._buffers.sockets.connections[descriptor]
        row[door_sockets.LEAVING] = 1
        door_sockets.left_over(self._buffers, row, 0)
        door_sockets.settle(self._buffers, descriptor, now())
        self._leaving[descriptor] = int(row[door_sockets.SERIAL])

    def _left(self) -> None:
        for descriptor, serial in list(self._leaving.items()):
            if self._buffers.sockets.connections[descriptor, door_sockets.SERIAL] != serial:
                del self._leaving[descriptor]
            elif self._owed_nothing(descriptor):
                del self._leaving[descriptor]
                came = self._came(descriptor, self._buffers.sockets.input_bytes)
                door_sockets.let_go(self._buffers, descriptor)
                self._move(socket.socket(fileno=descriptor), came)
        if self.stopping and not self.opened:
            self._emptied.set()

    def _move(self, peer: socket.socket, came: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._adopted(peer, came))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def _adopted(self, peer: socket.socket, came: bytes) -> None:
        try:
            await self._behind.adopt(peer, came)
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
        passed = (now - int(row[door_sockets.SINCE])) / 1000
        if row[OUT_END] > row[OUT_AT]:
            if passed > limits.request_seconds:
                door_sockets.hang_up(self._buffers, descriptor)
        elif row[door_sockets.FLIGHT] or row[door_sockets.LEAVING]:
            return
        elif row[INPUT]:
            # Whose requests come slowly, and how slowly they may come, is known over there.
            if passed > _SLOW_SECONDS:
                self._leave(descriptor)
        elif passed > limits.idle_seconds:
            door_sockets.hang_up(self._buffers, descriptor)

    def _try_out(self) -> None:
        """Compile now, not under the first request."""
        http_batches.gather(self._buffers, self._free[0], self._rules, 0)
        none = np.zeros(0, np.float32)
        http_batches.answer(self._buffers, self._free[0], 0, 0, self._replies(none, 0), none, 0)
        door_sockets.put(self._buffers, 0, 1, np.frombuffer(b"none", np.uint8), 0, 0)
        door_sockets.left_over(self._buffers, self._buffers.sockets.connections[0], 0)
        door_sockets.hang_up(self._buffers, 0)
        door_sockets.let_go(self._buffers, 0)
        door_sockets.settle(self._buffers, 0, 0)
        door_sockets.listen_again(self._buffers)


def _pairs(probabilities: Floats) -> NDArray[np.uint8]:
    """`[[prob0,prob1],…]` as `source_protocol.inference_answer` would write the numbers."""
    pairs = np.empty((len(probabilities), 2))
    pairs[:, 1] = probabilities
    pairs[:, 0] = 1.0 - pairs[:, 1]
    return np.frombuffer(orjson.dumps(pairs, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
