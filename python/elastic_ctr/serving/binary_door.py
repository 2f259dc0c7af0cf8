"""The binary door in plain Python on asyncio, and which of the two ways of reading its sockets is taken.

`compiled_door` does the same in machine code, several times faster; this one is for where numba is not, and the oracle
of the other. What both are agreed on is in `frame_desk`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol

from elastic_ctr.frames.wire import HELLO_BYTES, WireError
from elastic_ctr.machine_code.compiled import anew_if_stale, numba_wanted
from elastic_ctr.serving import wire
from elastic_ctr.serving.asyncio_door import AsyncioDoor, Peer
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.frame_desk import (
    Desk,
    FrameLimits,
    loses_its_place,
    not_again,
    too_many_pending,
    wrong_counts,
)
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.refusal import Refusal
from elastic_ctr.serving.rounds import Rounds
from elastic_ctr.serving.wire import Hello, Kind, RequestHead

log = logging.getLogger(__name__)


class BinaryDoor(Protocol):
    """Either way of reading sockets."""

    async def listen(self, socket: Any) -> None:
        """Accept on a bound socket."""

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more, answer what has been asked, close. What is not done after the grace is cut."""


class PythonDoor(AsyncioDoor):
    """The door on asyncio."""

    def __init__(self, rounds: Rounds, counters: Counters, limits: FrameLimits) -> None:
        super().__init__(limits.hello_seconds)
        self.desk = Desk(rounds, counters, limits)
        self.pending_bytes = 0

    async def stop(self, grace_seconds: float) -> None:
        self.desk.stopping = True
        await super().stop(grace_seconds)

    def _new_peer(self) -> Peer:
        return _Connection(self)


_SMALL = 64 << 10


class _Connection(Peer):
    def __init__(self, door: PythonDoor) -> None:
        super().__init__(door)
        self._door = door
        self._desk = door.desk
        self._input = bytearray()
        self._skip = 0
        self._charged = 0
        self._in_flight = 0
        self._rows = 0
        self._taking = False
        self._greeted = False
        self._closing = False
        self._ended = False
        self._since = self._loop.time()

    @property
    def deadline(self) -> float | None:
        limits = self._desk.limits
        if not self._writable:
            return self._since + limits.frame_seconds
        if self._in_flight:
            return None
        if not self._greeted:
            return self._since + limits.hello_seconds
        return self._since + (limits.frame_seconds if self._input or self._skip else limits.idle_seconds)

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._door.connections) > self._desk.limits.max_connections:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._input.clear()
        self._charge()
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """A client may close its half after asking; it still gets what it asked for."""
        self._ended = True
        return self._in_flight > 0

    def pause_writing(self) -> None:
        self._writable = False
        self._since = self._loop.time()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._writable = True
        self._since = self._loop.time()
        self._take()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._input and not self._skip:
            self._since = self._loop.time()
        self._input += data
        self._take()

    # -- frames

    def _take(self) -> None:
        """Ask every whole request that has come, as far as this connection may owe answers."""
        if self._taking:
            # A request that is refused at once is answered in the middle of this: the loop below goes on by itself.
            return
        self._taking = True
        try:
            self._take_all()
        finally:
            self._taking = False
        if self._ended:
            self._end_if_over()

    def _take_all(self) -> None:
        at = 0
        while not self._closing and self._writable and not self._owes_enough():
            skipped = min(self._skip, len(self._input) - at)
            self._skip -= skipped
            at += skipped
            if self._skip or len(self._input) - at < (wire.REQUEST_HEAD if self._greeted else HELLO_BYTES):
                break
            taken = self._take_one(at) if self._greeted else self._greet(at)
            if not taken:
                break
            at += taken
            self._since = self._loop.time()
        del self._input[: len(self._input) if self._closing else at]
        self._charge()
        if self._door.pending_bytes > self._desk.limits.max_pending_bytes and self._charged:
            self._send(self._desk.refusal(RequestHead.peek(self._input).id, too_many_pending()))
            self._close()
        self._read_or_not()

    def _greet(self, at: int) -> int:
        self._send(self._desk.hello())
        self._greeted = True
        try:
            hello = Hello.unpack(self._input[at : at + HELLO_BYTES])
        except WireError:
            self._close()
        else:
            if hello.protocol != wire.PROTOCOL:
                self._close()
        return HELLO_BYTES

    def _take_one(self, at: int) -> int:
        """Bytes taken; 0 when the request is not whole yet."""
        head = RequestHead.peek(self._input, at)
        refusal = self._desk.judge(head)
        if refusal is not None:
            self._send(self._desk.refusal(head.id, refusal))
            if loses_its_place(head):
                self._close()
            self._skip = head.frame_bytes - wire.REQUEST_HEAD
            return wire.REQUEST_HEAD
        if head.kind == Kind.SLOTS:
            self._send(self._desk.slots(head))
            return wire.REQUEST_HEAD
        if len(self._input) - at < head.frame_bytes:
            return 0
        self._ask(head, bytes(self._input[at : at + head.frame_bytes]))
        return head.frame_bytes

    def _ask(self, head: RequestHead, frame: bytes) -> None:
        started = time.perf_counter()
        desk = self._desk
        self._in_flight += 1
        self._rows += head.rows

        def done(outcome: Floats | Exception, version: int) -> None:
            if isinstance(outcome, Exception):
                reply = desk.refusal(head.id, outcome)
            else:
                desk.count(200)
                desk.counters.histograms["request_seconds"].observe(time.perf_counter() - started)
                reply = wire.pack_reply(head.id, version, outcome, draining=desk.stopping)
            was_full = self._owes_enough()
            self._in_flight -= 1
            self._rows -= head.rows
            self._since = self._loop.time()
            self._write(reply)
            if was_full:
                self._take()
            self._end_if_over()

        try:
            model = desk.rounds.current()
            request = wire.unpack_request(frame)
            instances = Instances(request.feasigns, request.counts, head.rows)
            desk.rounds.ask(not_again, instances, model.slots, done)
        except WireError:
            # The head has been judged: nothing else is left.
            done(wrong_counts(head), 0)
        except Refusal as refusal:
            done(refusal, 0)

    # -- the connection

    def _send(self, reply: bytes) -> None:
        self._write(reply)
        self._end_if_over()

    def _write(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)

    def _end_if_over(self) -> None:
        """A client that has ended its half still gets answers to all that came before that."""
        over = self._closing or self._desk.stopping or (self._ended and not self._taking)
        if self._in_flight == 0 and over:
            self._close()

    def _close(self) -> None:
        """When all that was asked is answered."""
        self._closing = True
        if self._in_flight == 0:
            self._transport.close()

    def _charge(self) -> None:
        charged = len(self._input) if len(self._input) > _SMALL else 0
        self._door.pending_bytes += charged - self._charged
        self._charged = charged

    def _owes_enough(self) -> bool:
        """Rows count too: one connection must not fill the queue of all."""
        limits = self._desk.limits
        return self._in_flight >= limits.max_in_flight or self._rows >= limits.max_rows

    def _read_or_not(self) -> None:
        self._read(not self._closing and self._writable and not self._owes_enough())

    def take_leave(self) -> None:
        if self._in_flight == 0 and not self._input:
            self._close()


def make_binary_door(rounds: Rounds, counters: Counters, limits: FrameLimits) -> BinaryDoor:
    """In machine code where it can be compiled, else in Python (`ELASTIC_CTR_LOOKUP=numpy` asks for it)."""
    if numba_wanted():
        try:
            from elastic_ctr.serving.compiled_binary_door import CompiledBinaryDoor

            return anew_if_stale(lambda: CompiledBinaryDoor(rounds, counters, limits))
        except Exception:
            # Whatever the compiler says, there is another way.
            log.exception("the compiled binary door cannot be used here; its requests are read by the slower one")
    return PythonDoor(rounds, counters, limits)
