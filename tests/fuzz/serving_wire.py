"""The frames of serving's binary door: the codec, and the door in machine code with real rounds behind it."""

import asyncio
import socket

import numpy as np

from elastic_ctr.frames.wire import HELLO_BYTES, LENGTH_BYTES, WireError
from elastic_ctr.serving import wire
from elastic_ctr.serving.compiled_binary_door import CompiledBinaryDoor
from elastic_ctr.serving.frame_desk import FrameLimits
from elastic_ctr.serving.wire import Hello, Status
from fuzz.model import SLOTS, Behind
from fuzz.mutation import Mutator

_REQUEST_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 4), (12, 4), (16, 8), (24, 4), (28, 4), (32, 2), (34, 2), (36, 4))
_REPLY_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 4), (12, 8), (20, 8))


class ServingFrames:
    """Hellos, requests and replies through the codec."""

    name = "serving-frames"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        check = wire.slot_list_check(SLOTS)
        self._requests = [wire.pack_slots_request(3)]
        for rows, most in ((1, 1), (2, 3), (9, 2), (1, 70_000)):
            counts = np.full((rows, len(SLOTS)), 1, np.int64)
            counts[0, 0] = most
            feasigns = np.arange(counts.sum(), dtype=np.uint64)
            self._requests.append(wire.pack_request(5, feasigns, counts, check))
        self._replies = [
            wire.pack_reply(1, 2, np.ones(5, np.float32)),
            wire.pack_slots(1, 2, SLOTS),
            wire.pack_refusal(Status.BAD_REQUEST, 1, "rows is 0"),
        ]

    def batch(self, count: int) -> int:
        """How many frames were understood."""
        understood = 0
        for _ in range(count):
            draw = self._mutator.random
            kind = draw.randrange(10)
            try:
                if kind == 0:
                    Hello.unpack(self._mutator.mutated(Hello(3, 4, 5).pack(), ((4, 2), (6, 2))))
                elif kind < 7:
                    # The large one is slow to copy, and no different.
                    golden = self._requests[4] if draw.random() < 0.001 else draw.choice(self._requests[:4])
                    request = wire.unpack_request(self._mutator.mutated(golden, _REQUEST_FIELDS))
                    assert request.counts.sum() == request.feasigns.size == request.head.n
                else:
                    wire.unpack_reply(self._mutator.mutated(draw.choice(self._replies), _REPLY_FIELDS))
            except WireError:
                continue
            understood += 1
        return understood


class ServingDoor:
    """Streams of hellos and requests, each on a connection of its own, in two pieces; who half reads is among them."""

    name = "serving-door"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._check = wire.slot_list_check(SLOTS)
        # Descriptors are small for the whole run, whatever the batch.
        self._limits = FrameLimits(max_rows=16, max_feasigns=200, max_frame_bytes=4096, max_in_flight=4)

    def batch(self, count: int) -> int:
        """How many inputs were answered beyond the greeting."""
        return asyncio.run(self._batch(count))

    async def _batch(self, count: int) -> int:
        behind = Behind()
        door = CompiledBinaryDoor(behind.rounds, behind.counters, self._limits)
        async with behind.listening(door) as address:
            return await self._talk(door, address, count)

    async def _talk(self, door: CompiledBinaryDoor, address: str, count: int) -> int:
        streams = [self._stream() for _ in range(count)]
        cut = self._mutator.random.random() if self._mutator.random.random() < 0.5 else 1.0
        peers = []
        for stream in streams:
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(address)
            peer.setblocking(False)
            peer.send(stream[: int(len(stream) * cut)])
            peers.append(peer)
        await _quiet(door)
        if cut < 1:
            for peer, stream in zip(peers, streams, strict=True):
                try:
                    peer.send(stream[int(len(stream) * cut) :])
                except (BrokenPipeError, ConnectionResetError):  # noqa: PERF203 (the door hung up over the first piece)
                    continue
            await _quiet(door)
        answered = 0
        for peer, stream in zip(peers, streams, strict=True):
            try:
                answer = peer.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                answer = b""
            peer.close()
            answered += len(answer) > HELLO_BYTES
            _judge(stream, answer)
        await _quiet(door)
        return answered

    def _stream(self) -> bytes:
        draw = self._mutator.random
        stream = Hello().pack()
        fields = [(4, 2), (6, 2), (8, 4)] if draw.random() < 0.1 else []
        for number in range(draw.randrange(1, 7)):
            fields += [(len(stream) + at, width) for at, width in _REQUEST_FIELDS]
            if draw.random() < 0.1:
                stream += wire.pack_slots_request(number)
                continue
            counts = np.array([[draw.randrange(4) for _ in SLOTS] for _ in range(draw.choice((1, 2, 16, 17)))])
            feasigns = np.array([draw.getrandbits(16) for _ in range(int(counts.sum()))], np.uint64)
            stream += wire.pack_request(number, feasigns, counts, self._check)
        return self._mutator.mutated(stream, fields)


async def _quiet(door: CompiledBinaryDoor) -> None:
    """Until nothing is owed; what was sent has been seen after a few turns of the loop."""
    still = 0
    while still < 4:
        busy = door.busy
        # The network answers on a thread of its own.
        await asyncio.sleep(0.0002 if busy else 0)
        still = 0 if busy else still + 1


def _judge(stream: bytes, answer: bytes) -> None:
    """A greeting and whole replies; who says probabilities says those of a request with that id."""
    if not answer:
        return
    Hello.unpack(answer[:HELLO_BYTES])
    sums: dict[int, list[list[float]]] = {}
    at = HELLO_BYTES
    while len(stream) - at >= wire.REQUEST_HEAD:
        head = wire.RequestHead.peek(stream, at)
        try:
            request = wire.unpack_request(stream[at : at + head.frame_bytes])
        except WireError:
            pass
        else:
            if request.head.rows and request.head.slots:
                owners = np.repeat(np.arange(request.counts.size) // request.head.slots, request.counts)
                total = np.bincount(owners, request.feasigns.astype(np.float64), request.head.rows)
                sums.setdefault(head.id, []).append(total.tolist())
        # A frame that is too large, or whose counts do not add up, is skipped by its length.
        at += max(wire.REQUEST_HEAD, head.frame_bytes)
    at = HELLO_BYTES
    while at < len(answer):
        size = LENGTH_BYTES + int.from_bytes(answer[at : at + 4], "little")
        reply, body = wire.unpack_reply(answer[at : at + size])
        if reply.code == Status.OK and body[:1] != b"0":
            values = np.frombuffer(body, "<f4").tolist()
            near = [
                each for each in sums.get(reply.id, []) if len(values) == len(each) and np.allclose(values, each, 1e-5)
            ]
            assert near, f"request {reply.id} of {stream.hex()} is answered with {values}"
        at += size
