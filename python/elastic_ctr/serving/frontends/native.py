"""A native frontend: its buffers, its place in the batcher, its deadlines and its end; of frames, or of HTTP.

Requests are not brought to the batches one by one: at the beginning of a batch one call gathers what has come into a
batch, which is asked as one request, and one call sends all its answers. In between Python touches no request, only what
was set aside.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from elastic_ctr.features.slots import SlotList
from elastic_ctr.machine_code.sockets import (
    EVENTS,
    OTHER_DESCRIPTORS,
    OUT_AT,
    OUT_END,
    new_sockets,
    open_descriptors,
    reserve,
)
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.serving.batching.batcher import Batcher, ModelVersion
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.frontends import connections
from elastic_ctr.serving.frontends.connections import Batch, Buffers, new_batch
from elastic_ctr.serving.request_error import RequestError
from elastic_ctr.serving.worker_counters import Counters

log = logging.getLogger(__name__)

NO_MODEL = -1
# Two whose requests are under way, and one that is filled.
_BATCHES = 3
_REQUESTS = 4096
# What was set aside may be everyday when it is looked at again.
_LOOKS = 2
_ASIDE = 512


@dataclass(slots=True, eq=False)
class SubmittedBatch:
    """Requests `begin` to `end` of a batch, under way as one request; `send` is there when the answers are."""

    batch: Batch
    begin: int
    end: int
    instances: Instances
    model: ModelVersion
    started: float
    send: Callable[[], None] | None = None

    @property
    def count(self) -> int:
        return self.end - self.begin

    @property
    def requests(self) -> list[list[int]]:
        """Their rows of numbers."""
        requests: list[list[int]] = self.batch.requests[self.begin : self.end].tolist()
        return requests

    def halves(self) -> list[SubmittedBatch]:
        """Two of about as many rows; one, if one request has most of them."""
        rows = np.cumsum(self.batch.requests[self.begin : self.end, connections.REQUEST_ROWS])
        count = int(np.searchsorted(rows, self.instances.rows // 2)) + 1
        if count == self.count:
            return [self]
        first_rows, middle = int(rows[count - 1]), self.begin + count
        return [
            replace(self, end=middle, instances=self.instances.part(0, first_rows)),
            replace(self, begin=middle, instances=self.instances.part(first_rows, self.instances.rows)),
        ]


class Room(NamedTuple):
    """What a frontend keeps for its connections and batches."""

    connections: int
    input_bytes: int
    output_bytes: int
    least_reply: int
    in_flight: int
    pending_bytes: int
    rows: int
    feasigns: int
    bodies: int = 0


class NativeFrontend(ABC):
    """Everything runs on the event loop's thread. Raises what numba raises."""

    def __init__(self, batcher: Batcher, counters: Counters, room: Room) -> None:
        self.batcher = batcher
        self.counters = counters
        self.stopping = False
        self._room = room
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._armed = False
        self._free = [new_batch(_REQUESTS, room.feasigns, room.rows, room.bodies) for _ in range(_BATCHES)]
        # In the order they were asked, which is the one they are answered in.
        self._under_way: deque[SubmittedBatch] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        own = new_sockets(
            room.connections + OTHER_DESCRIPTORS,
            connections.WIDTH,
            room.input_bytes,
            room.output_bytes,
            self._epoll.fileno(),
        )
        self._buffers = Buffers(
            sockets=own,
            shared=np.zeros(connections.SHARED_WIDTH, np.int64),
            ready=np.zeros((own.connections.shape[0] + EVENTS, 2), np.int64),
            aside=np.zeros((_ASIDE, 3), np.int64),
            replies=reserve(own.output_bytes),
            least_reply=room.least_reply,
            max_in_flight=room.in_flight,
            max_pending=room.pending_bytes,
        )

    # -- what the wire says

    @abstractmethod
    def _gather(self, batch: Batch, model: ModelVersion | None) -> None:
        """Fill a batch anew with what has come."""

    @abstractmethod
    def _handle_exceptions(self, count: int) -> None:
        """Answer, or do whatever else is due, for what was set aside."""

    @abstractmethod
    def _answer(self, asked: SubmittedBatch, probabilities: Floats, version: int) -> None:
        """Send the answers."""

    @abstractmethod
    def _refuse(self, asked: SubmittedBatch, error: Exception) -> None:
        """Send as many refusals."""

    @abstractmethod
    def _sweep_one(self, descriptor: int, now: int) -> None:
        """Hang up on who has had its time."""

    @abstractmethod
    def _read_again(self, slots: SlotList, /) -> Instances:
        """What the batches call when they answer with another slot list than the batch was read for. Raises RequestError."""

    # -- life

    @property
    def opened(self) -> int:
        """Connections."""
        return int(self._buffers.shared[connections.OPENED])

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._under_way or self._buffers.sockets.connections[:, connections.FLIGHT].any())

    async def listen(self, socket: socket.socket) -> None:
        self.listen_on(socket)

    def listen_on(self, socket: socket.socket) -> None:
        """Accept on a bound socket."""
        socket.setblocking(False)
        socket.listen(2048)
        self._listener = socket
        self._buffers = self._buffers._replace(sockets=self._buffers.sockets._replace(listener=socket.fileno()))
        self._epoll.register(socket.fileno(), select.EPOLLIN)
        self.batcher.add_source(self)
        self._arm()
        self._sweep()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more, answer what has been asked, close. What is not done after the grace is cut."""
        self.stopping = True
        if self._epoll.closed:
            return
        self._end_listening()
        self._close_idle()
        if self.opened:
            await wait_event(self._emptied, grace_seconds)
        self._split_head()

    def _end_listening(self) -> None:
        if self._listener is not None:
            if not self._buffers.shared[connections.DEAF]:
                self._epoll.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _split_head(self) -> None:
        for descriptor in open_descriptors(self._buffers.sockets):
            connections.hang_up(self._buffers, descriptor)
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._armed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def close(self) -> None:
        """Of a frontend that has never listened."""
        self._epoll.close()

    # -- batches

    def take(self) -> None:
        """Ask everything that has come."""
        # A frontend that waits for something to come tells when it does.
        if self._armed or not self._free or self._epoll.closed:
            return
        pinned = self.batcher.pinned
        model = None if pinned is None else self.batcher.versions[pinned]
        batch = self._batch_for(1 if model is None else len(model.slots))
        try:
            more = self._fill(batch, model)
        except BaseException:
            self._free.append(batch)
            raise
        if batch.taken[connections.REQUESTS]:
            assert model is not None
            self._ask(batch, model)
            return
        self._free.append(batch)
        self._close_idle()
        if more:
            # Not at once: the loop has others to hear, and those who were refused may ask again for ever.
            asyncio.get_running_loop().call_soon(self.batcher.wake)
        elif not self._under_way:
            self._arm()

    def _fill(self, batch: Batch, model: ModelVersion | None) -> bool:
        """Gather, and see to what was set aside; whether there may be more than that."""
        for _ in range(_LOOKS):
            self._gather(batch, model)
            set_aside = int(self._buffers.shared[connections.ASIDE])
            if set_aside:
                self._handle_exceptions(set_aside)
            if batch.taken[connections.REQUESTS] or not set_aside:
                return False
        return True

    def _batch_for(self, slots: int) -> Batch:
        """A free one, with a length for each slot of each row."""
        batch = self._free.pop()
        wanted = self._room.rows * slots
        return batch if batch.lengths.size == wanted else batch._replace(lengths=reserve(8 * wanted).view(np.int64))

    def _ask(self, batch: Batch, model: ModelVersion) -> None:
        """In two requests where there is enough for two batcher."""
        taken = batch.taken.tolist()
        lengths, feasigns = batch.lengths[: taken[connections.LENGTHS]], batch.feasigns[: taken[connections.FEASIGNS]]
        instances = Instances(feasigns, lengths, len(lengths) // len(model.slots))
        whole = SubmittedBatch(batch, 0, taken[connections.REQUESTS], instances, model, time.perf_counter())
        pieces = whole.halves() if instances.rows >= self.batcher.shared_rows else [whole]
        self._under_way.extend(pieces)
        for asked in pieces:
            self._ask_piece(asked)

    def _ask_piece(self, asked: SubmittedBatch) -> None:
        def done(outcome: Floats | Exception, version: int) -> None:
            self._on_result(asked, outcome, version)

        try:
            self.batcher.submit(self._read_again, asked.instances, asked.model.slots, done)
        except RequestError as refusal:
            done(refusal, 0)

    def _on_result(self, asked: SubmittedBatch, outcome: Floats | Exception, version: int) -> None:
        """The batches have answered."""

        def send() -> None:
            if isinstance(outcome, Exception):
                self._refuse(asked, outcome)
            else:
                self._answer(asked, np.ascontiguousarray(outcome, np.float32), version)
                took = time.perf_counter() - asked.started
                self.counters.histograms["request_seconds"].observe_many(took, asked.count)

        self._send_in_order(asked, send)

    def _send_in_order(self, asked: SubmittedBatch, send: Callable[[], None]) -> None:
        """What overtook something that was asked before it waits: who asks several things at once gets them in order."""
        asked.send = send
        while self._under_way and (first := self._under_way[0]).send is not None:
            self._under_way.popleft()
            try:
                if not self._epoll.closed:
                    first.send()
            except Exception:
                log.exception("answers could not be sent; their clients are hung up on")
                for descriptor, serial, *_ in first.requests:
                    if self._buffers.sockets.connections[descriptor, connections.SERIAL] == serial:
                        connections.hang_up(self._buffers, descriptor)
            if first.end == first.batch.taken[connections.REQUESTS]:
                self._free.append(first.batch)
        self._close_idle()
        self.batcher.wake()

    def _put(self, descriptor: int, serial: int, reply: bytes, owed: int) -> None:
        """Send a reply that Python has made."""
        connections.put(self._buffers, descriptor, serial, np.frombuffer(reply, np.uint8), owed, now())

    # -- when nothing has come

    def _arm(self) -> None:
        if not self._armed and not self._epoll.closed:
            self._armed = True
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._readable)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._armed = False
        self.batcher.wake()

    # -- deadlines and the end

    def _sweep(self) -> None:
        if self._buffers.shared[connections.DEAF] and self._listener is not None:
            connections.listen_again(self._buffers)
        time_ = now()
        for descriptor in open_descriptors(self._buffers.sockets):
            self._sweep_one(descriptor, time_)
        self._close_idle()
        self._sweeping = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep)

    @property
    @abstractmethod
    def _sweep_seconds(self) -> float:
        """How often deadlines are looked at."""

    def _owed_nothing(self, descriptor: int) -> bool:
        row = self._buffers.sockets.connections[descriptor]
        return bool(row[connections.FLIGHT] == 0 and row[OUT_END] == row[OUT_AT])

    @abstractmethod
    def _close_idle(self) -> None:
        """After anything has happened: who may go now."""


def now() -> int:
    """Milliseconds, of the clock of deadlines."""
    return int(time.monotonic() * 1000)
