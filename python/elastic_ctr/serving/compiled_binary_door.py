"""The binary door around `frame_batches`; the same in plain asyncio is `binary_door`'s."""

from __future__ import annotations

import numpy as np

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import DRAINING, HEAD_BYTES
from elastic_ctr.machine_code.sockets import HELLO, INPUT, LARGE, OUT_AT, OUT_END, SKIP, STATE, open_descriptors
from elastic_ctr.serving import door_sockets, frame_batches, wire
from elastic_ctr.serving.compiled_door import NO_MODEL, Asked, CompiledDoor, Room, now
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.door_sockets import Batch
from elastic_ctr.serving.frame_batches import LEAST_REPLY, Rules
from elastic_ctr.serving.frame_desk import (
    Desk,
    FrameLimits,
    not_again,
    other_slots,
    too_many_pending,
    wrong_counts,
)
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.rounds import ModelVersion, Rounds
from elastic_ctr.serving.wire import Kind, RequestHead

_LEAST_OUTPUT = 256 << 10
_ID_END = 1 << 64


class CompiledBinaryDoor(CompiledDoor):
    """The binary door in machine code."""

    def __init__(self, rounds: Rounds, counters: Counters, limits: FrameLimits) -> None:
        super().__init__(
            rounds,
            counters,
            Room(
                connections=limits.max_connections,
                input_bytes=max(limits.max_frame_bytes, LARGE),
                output_bytes=HEAD_BYTES + 4 * limits.max_rows + _LEAST_OUTPUT,
                least_reply=LEAST_REPLY,
                in_flight=limits.max_in_flight,
                pending_bytes=limits.max_pending_bytes,
                rows=limits.max_rows,
                feasigns=limits.max_feasigns,
            ),
        )
        self.desk = Desk(rounds, counters, limits)
        self._rules = Rules(
            np.zeros(len(self._buffers.aside) * wire.REQUEST_HEAD, np.uint8),
            limits.max_frame_bytes,
            limits.max_rows,
            limits.max_feasigns,
        )
        self._try_out()

    async def stop(self, grace_seconds: float) -> None:
        self.desk.stopping = True
        self._buffers.door[door_sockets.DRAINING] = DRAINING
        await super().stop(grace_seconds)

    def _gather(self, batch: Batch, model: ModelVersion | None) -> None:
        slots, check = (NO_MODEL, 0) if model is None else (len(model.slots), model.list_check)
        frame_batches.gather(self._buffers, batch, self._rules, slots, check, now())

    def _answer(self, asked: Asked, probabilities: Floats, version: int) -> None:
        frame_batches.answer(
            self._buffers, asked.batch, asked.begin, asked.end, np.uint64(version), probabilities, now()
        )
        self.desk.count(200, asked.count)

    def _refuse(self, asked: Asked, error: Exception) -> None:
        for descriptor, serial, rows, number, _ in asked.requests:
            owed = max(HEAD_BYTES + 4 * rows, LEAST_REPLY)
            self._put(descriptor, serial, self.desk.refusal(number % _ID_END, error), owed)

    def _read_again(self, slots: SlotList, /) -> Instances:
        return not_again(slots)

    def _look_aside(self, count: int) -> None:
        heads = self._rules.heads
        for number, (descriptor, serial, why) in enumerate(self._buffers.aside[:count].tolist()):
            head = bytes(heads[number * wire.REQUEST_HEAD : (number + 1) * wire.REQUEST_HEAD])
            self._put(descriptor, serial, self._aside(why, RequestHead.peek(head)), LEAST_REPLY)

    def _aside(self, why: int, head: RequestHead) -> bytes:
        desk = self.desk
        if why == frame_batches.GREETED:
            return desk.hello()
        if why == frame_batches.PENDING_FULL:
            return desk.refusal(head.id, too_many_pending())
        if why == frame_batches.COUNTS_WRONG:
            return desk.refusal(head.id, wrong_counts(head))
        refusal = desk.judge(head)
        if refusal is None and head.kind == Kind.SLOTS:
            return desk.slots(head)
        # It was set aside for a slot list that has changed since.
        return desk.refusal(head.id, refusal or other_slots(self.rounds.current().slots))

    @property
    def _sweep_seconds(self) -> float:
        return min(1.0, self.desk.limits.hello_seconds / 2)

    def _sweep_one(self, descriptor: int, now: int) -> None:
        limits = self.desk.limits
        row = self._buffers.sockets.connections[descriptor]
        if row[OUT_END] > row[OUT_AT]:
            allowed = limits.frame_seconds
        elif row[door_sockets.FLIGHT]:
            return
        elif row[STATE] == HELLO:
            allowed = limits.hello_seconds
        elif row[INPUT] or row[SKIP]:
            allowed = limits.frame_seconds
        else:
            allowed = limits.idle_seconds
        if now - int(row[door_sockets.SINCE]) > 1000 * allowed:
            door_sockets.hang_up(self._buffers, descriptor)

    def _left(self) -> None:
        """Stopping: who is owed nothing and says nothing may go."""
        if not self.stopping:
            return
        for descriptor in open_descriptors(self._buffers.sockets):
            if self._owed_nothing(descriptor) and self._buffers.sockets.connections[descriptor, INPUT] == 0:
                door_sockets.hang_up(self._buffers, descriptor)
        if not self.opened:
            self._emptied.set()

    def _try_out(self) -> None:
        """Compile now, not under the first request."""
        batch = self._free[0]
        frame_batches.gather(self._buffers, batch, self._rules, NO_MODEL, 0, 0)
        frame_batches.answer(self._buffers, batch, 0, 0, np.uint64(0), np.zeros(0, np.float32), 0)
        door_sockets.put(self._buffers, 0, 1, np.frombuffer(b"none", np.uint8), 0, 0)
        door_sockets.hang_up(self._buffers, 0)
        door_sockets.listen_again(self._buffers)
