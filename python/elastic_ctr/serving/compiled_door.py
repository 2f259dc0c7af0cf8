"""The binary door around `frame_batches`: its buffers, its place in the rounds, its deadlines and its end.

Requests are not brought to the rounds one by one: at the beginning of a round one call gathers what has come, as one
question, and one call sends all its answers. In between Python touches no request, only what was set aside.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time

import numpy as np

from elastic_ctr.frames.sockets import (
    HELLO,
    INPUT,
    LARGE,
    OTHER_DESCRIPTORS,
    OUT_AT,
    OUT_END,
    SKIP,
    STATE,
    new_sockets,
    open_descriptors,
    reserve,
)
from elastic_ctr.frames.wire import DRAINING, HEAD_BYTES
from elastic_ctr.runtime.waiting import happened
from elastic_ctr.serving import frame_batches, frame_sockets, wire
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.frame_desk import (
    Desk,
    FrameLimits,
    not_again,
    other_slots,
    too_many_pending,
    wrong_counts,
)
from elastic_ctr.serving.frame_sockets import Buffers
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.refusal import Refusal
from elastic_ctr.serving.rounds import ModelVersion, Rounds
from elastic_ctr.serving.wire import Kind, RequestHead

_LEAST_OUTPUT = 256 << 10
_BATCH = 4096
_ASIDE = 512
_NO_MODEL = -1


class CompiledDoor:
    """The door in machine code. Everything runs on the event loop's thread. Raises what numba raises."""

    def __init__(self, rounds: Rounds, counters: Counters, limits: FrameLimits) -> None:
        self.desk = Desk(rounds, counters, limits)
        self._rounds = rounds
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._slots = 0
        self._armed = False
        self._asked = False
        self._started = 0.0
        self._sweeping: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._buffers = self._new_buffers()
        self._try_out()

    @property
    def opened(self) -> int:
        """Connections."""
        return int(self._buffers.door[frame_sockets.OPENED])

    async def listen(self, socket: socket.socket) -> None:
        socket.setblocking(False)
        socket.listen(2048)
        self._listener = socket
        self._buffers = self._buffers._replace(sockets=self._buffers.sockets._replace(listener=socket.fileno()))
        self._epoll.register(socket.fileno(), select.EPOLLIN)
        self._rounds.draw_from(self)
        self._arm()
        self._sweep()

    async def stop(self, grace_seconds: float) -> None:
        self.desk.stopping = True
        self._buffers.door[frame_sockets.DRAINING] = DRAINING
        if self._epoll.closed:
            return
        if self._listener is not None:
            self._epoll.unregister(self._listener.fileno())
            self._listener.close()
        self._left()
        if self.opened:
            await happened(self._emptied, grace_seconds)
        for descriptor in open_descriptors(self._buffers.sockets):
            frame_sockets.hang_up(self._buffers, descriptor)
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._armed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def close(self) -> None:
        """Of a door that has never listened."""
        self._epoll.close()

    # -- rounds

    def take(self) -> None:
        """Ask everything that has come as one question; one is under way at a time."""
        if self._asked or self._epoll.closed:
            return
        model = self.desk.model()
        if model is not None and len(model.slots) != self._slots:
            self._make_room(len(model.slots))
        slots, check = (_NO_MODEL, 0) if model is None else (len(model.slots), model.list_check)
        door = self._buffers.door
        while True:
            frame_batches.gather(self._buffers, slots, check, _now())
            set_aside = int(door[frame_sockets.ASIDE])
            if set_aside:
                self._answer_aside(set_aside)
            if door[frame_sockets.REQUESTS]:
                assert model is not None
                self._ask(model)
                return
            if not set_aside:
                break
        self._left()
        self._arm()

    def _ask(self, model: ModelVersion) -> None:
        buffers, door = self._buffers, self._buffers.door
        size = int(door[frame_sockets.COUNTS])
        instances = Instances(
            buffers.feasigns[: int(door[frame_sockets.FEASIGNS])], buffers.lengths[:size], size // len(model.slots)
        )
        self._asked = True
        self._started = time.perf_counter()
        try:
            self._rounds.ask(not_again, instances, model.slots, self._done)
        except Refusal as refusal:
            self._done(refusal, 0)

    def _done(self, outcome: Floats | Exception, version: int) -> None:
        if not self._asked:
            return
        count = int(self._buffers.door[frame_sockets.REQUESTS])
        desk = self.desk
        try:
            if isinstance(outcome, Exception):
                self._refuse_all(count, outcome)
            else:
                values = np.ascontiguousarray(outcome, np.float32)
                frame_batches.answer(self._buffers, np.uint64(version), values, _now())
                desk.count(200, count)
                desk.counters.histograms["request_seconds"].observe_many(time.perf_counter() - self._started, count)
        finally:
            self._asked = False
            self._left()
            self._rounds.wake()

    def _refuse_all(self, count: int, error: Exception) -> None:
        buffers = self._buffers
        for number in range(count):
            descriptor, serial, rows = (int(each) for each in buffers.requests[number])
            owed = max(HEAD_BYTES + 4 * rows, frame_sockets.LEAST_REPLY)
            self._put(descriptor, serial, self.desk.refusal(int(buffers.ids[number]), error), owed)

    # -- what is set aside

    def _answer_aside(self, count: int) -> None:
        buffers = self._buffers
        for number in range(count):
            descriptor, serial, why = (int(each) for each in buffers.aside[number])
            head = bytes(buffers.heads[number * wire.REQUEST_HEAD : (number + 1) * wire.REQUEST_HEAD])
            self._put(descriptor, serial, self._aside(why, RequestHead.peek(head)), frame_sockets.LEAST_REPLY)

    def _aside(self, why: int, head: RequestHead) -> bytes:
        desk = self.desk
        if why == frame_sockets.GREETED:
            return desk.hello()
        if why == frame_sockets.PENDING_FULL:
            return desk.refusal(head.id, too_many_pending())
        if why == frame_sockets.COUNTS_WRONG:
            return desk.refusal(head.id, wrong_counts(head))
        refusal = desk.judge(head)
        if refusal is None and head.kind == Kind.SLOTS:
            return desk.slots(head)
        # It was set aside for a slot list that has changed since.
        return desk.refusal(head.id, refusal or other_slots(self._rounds.current().slots))

    def _put(self, descriptor: int, serial: int, reply: bytes, owed: int) -> None:
        frame_sockets.put(self._buffers, descriptor, serial, np.frombuffer(reply, np.uint8), owed, _now())

    # -- when nothing has come

    def _arm(self) -> None:
        if not self._armed and not self._epoll.closed:
            self._armed = True
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._readable)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._armed = False
        self._rounds.wake()

    # -- deadlines and the end

    def _sweep(self) -> None:
        limits, now = self.desk.limits, _now()
        rows = self._buffers.sockets.connections
        for descriptor in open_descriptors(self._buffers.sockets):
            row = rows[descriptor]
            if row[OUT_END] > row[OUT_AT]:
                allowed = limits.frame_seconds
            elif row[frame_sockets.FLIGHT]:
                continue
            elif row[STATE] == HELLO:
                allowed = limits.hello_seconds
            elif row[INPUT] or row[SKIP]:
                allowed = limits.frame_seconds
            else:
                allowed = limits.idle_seconds
            if now - int(row[frame_sockets.SINCE]) > 1000 * allowed:
                frame_sockets.hang_up(self._buffers, descriptor)
        self._left()
        self._sweeping = asyncio.get_running_loop().call_later(min(1.0, limits.hello_seconds / 2), self._sweep)

    def _left(self) -> None:
        """Stopping: who is owed nothing and says nothing may go."""
        if not self.desk.stopping:
            return
        rows = self._buffers.sockets.connections
        still = rows[:, frame_sockets.FLIGHT] + rows[:, INPUT] + rows[:, OUT_END]
        for descriptor in open_descriptors(self._buffers.sockets):
            if not still[descriptor]:
                frame_sockets.hang_up(self._buffers, descriptor)
        if not self.opened:
            self._emptied.set()

    # -- buffers

    def _new_buffers(self) -> Buffers:
        limits = self.desk.limits
        own = new_sockets(
            limits.max_connections + OTHER_DESCRIPTORS,
            frame_sockets.WIDTH,
            max(limits.max_frame_bytes, LARGE),
            HEAD_BYTES + 4 * limits.max_rows + _LEAST_OUTPUT,
            self._epoll.fileno(),
        )
        return Buffers(
            sockets=own,
            door=np.zeros(frame_sockets.DOOR_WIDTH, np.int64),
            replies=reserve(own.output_bytes),
            feasigns=reserve(8 * limits.max_feasigns).view(np.uint64),
            lengths=np.zeros(1, np.int64),
            requests=np.zeros((_BATCH, 3), np.int64),
            ids=np.zeros(_BATCH, np.uint64),
            aside=np.zeros((_ASIDE, 3), np.int64),
            heads=np.zeros(_ASIDE * wire.REQUEST_HEAD, np.uint8),
            max_frame=limits.max_frame_bytes,
            max_rows=limits.max_rows,
            max_feasigns=limits.max_feasigns,
            max_in_flight=limits.max_in_flight,
            max_pending=limits.max_pending_bytes,
        )

    def _make_room(self, slots: int) -> None:
        """A batch has a count for each slot of each row."""
        self._slots = slots
        size = self.desk.limits.max_rows * slots
        self._buffers = self._buffers._replace(lengths=reserve(8 * size).view(np.int64))

    def _try_out(self) -> None:
        """Compile now, not under the first request."""
        frame_batches.gather(self._buffers, _NO_MODEL, 0, 0)
        frame_batches.answer(self._buffers, np.uint64(0), np.zeros(0, np.float32), 0)
        frame_sockets.put(self._buffers, 0, 1, np.frombuffer(b"none", np.uint8), 0, 0)
        frame_sockets.hang_up(self._buffers, 0)


def _now() -> int:
    """Milliseconds, of the clock of deadlines."""
    return int(time.monotonic() * 1000)
