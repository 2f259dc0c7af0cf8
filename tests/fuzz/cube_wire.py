"""Cube's frames: the server's compiled loop, with an oracle in Python, and the readers' connections."""

import asyncio
import contextlib
import os
import select
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cube_oracles
from cube_oracles import pack_refusal, pack_reply
from elastic_ctr.cube import wire
from elastic_ctr.cube.builder.part import PartIdentity, build_full
from elastic_ctr.cube.client.blocking import _REQUEST as REQUEST
from elastic_ctr.cube.client.blocking import _CubeServer
from elastic_ctr.cube.client.connection import CubeConnection, CubeUnavailable, LookupAttempt
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.event_loop import USED_AT
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import HELLO_BYTES, Head, Hello, MessageKind, Status
from elastic_ctr.machine_code import sockets
from fuzz.mutation import Field, Mutator

DIM, PARTITIONS, MAX_KEYS, PIECE_KEYS, FIRST, SECOND = 9, 4, 64, 20, 7, 8
KEYS = np.array([*range(1, 200), 2**63, 2**64 - 1], np.uint64)
_HEAD_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 4), (12, 8), (20, 8))
_MOST_OUTPUT = 1 << 20
_ORACLE_SHARE = 16


def _table(folder: Path, version: int, partitions: Sequence[int]) -> VersionTable:
    paths = {}
    for number in partitions:
        own = KEYS[KEYS % np.uint64(PARTITIONS) == number]
        values = np.full((own.size, DIM), version, np.float32) + (own % np.uint64(97)).astype(np.float32)[:, None]
        path = folder / f"{version}-{number}.dict"
        build_full([(own, values)], path, PartIdentity(version, number, PARTITIONS, DIM))
        paths[number] = Paths(path)
    return VersionTable.open(version, DIM, PARTITIONS, paths)


class CubeServer:
    """Streams of hellos and requests, each on a connection of its own, whole or in two pieces."""

    name = "cube-server"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._number = 0
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # The second version misses a partition.
            self._held = Holdings.of(
                _table(folder, FIRST, range(PARTITIONS)), _table(folder, SECOND, range(PARTITIONS - 1))
            )
        self._loop = LookupLoop(counters.private(), MAX_KEYS, 1000, piece_bytes=4 * DIM * PIECE_KEYS)
        self._loop.replace(self._held, draining=False)

    def batch(self, count: int) -> int:
        """How many inputs were answered with at least one whole reply after the greeting."""
        streams = [self._stream() for _ in range(count)]
        cut = self._mutator.random.random() if self._mutator.random.random() < 0.5 else 1.0
        answers = _through(self._loop, streams, cut)
        rows = self._loop._buffers.sockets.connections
        assert not rows[:, sockets.STATE].any(), "a connection was not closed"
        assert self._loop.counts[counters.CONNECTIONS] == 0
        for answer in answers:
            _check(answer)
        self._number += 1
        if self._number % _ORACLE_SHARE == 0:
            for stream, answer in zip(streams, answers, strict=True):
                wanted = cube_oracles.answers(self._held, stream, MAX_KEYS)
                assert answer == wanted, f"{stream.hex()} is answered with {answer.hex()}, not {wanted.hex()}"
        return sum(len(answer) > HELLO_BYTES for answer in answers)

    def _stream(self) -> bytes:
        draw = self._mutator.random
        stream = Hello(dim=DIM).pack()
        fields: list[Field] = [(0, 4), (4, 2), (6, 2), (8, 4), (12, 4)] if draw.random() < 0.1 else []
        for number in range(draw.randrange(1, 6)):
            n = draw.choice((0, 1, 2, 7, 8, 9, 16, PIECE_KEYS, PIECE_KEYS + 1, MAX_KEYS, MAX_KEYS + 1))
            keys = np.array(draw.choices(KEYS.tolist(), k=n) + [0, 777][: draw.randrange(3)], np.uint64)
            kind = MessageKind.LOOKUP if draw.random() < 0.9 else MessageKind.KEEP_ALIVE
            version = draw.choice((FIRST, FIRST, SECOND, 9))
            fields += [(len(stream) + at, width) for at, width in _HEAD_FIELDS]
            stream += wire.pack_request(kind, number, version, keys[:0] if kind == MessageKind.KEEP_ALIVE else keys)
        return self._mutator.mutated(stream, fields)


def _through(loop: LookupLoop, streams: Sequence[bytes], cut: float) -> list[bytes]:
    """What the loop answers to each stream, sent in two pieces where cut is below 1; then all hang up."""
    ours = []
    for stream in streams:
        mine, its = socket.socketpair()
        mine.setblocking(False)
        its.setblocking(False)
        loop.epoll.register(its.fileno(), select.EPOLLIN)
        loop.counts[counters.CONNECTIONS] += 1
        descriptor = its.detach()
        row = loop._buffers.sockets.connections[descriptor]
        row[:] = 0
        row[sockets.STATE] = sockets.HELLO
        row[USED_AT] = time.monotonic_ns()
        mine.send(stream[: int(len(stream) * cut)])
        ours.append(mine)
    _rounds(loop)
    if cut < 1:
        for mine, stream in zip(ours, streams, strict=True):
            # The loop may have hung up over the first piece.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                mine.send(stream[int(len(stream) * cut) :])
        _rounds(loop)
    answers = []
    for mine in ours:
        try:
            answers.append(mine.recv(_MOST_OUTPUT))
        except BlockingIOError:
            answers.append(b"")
        mine.close()
    _rounds(loop)
    return answers


def _rounds(loop: LookupLoop) -> None:
    """Let the loop go once over everything that is ready."""
    os.eventfd_write(loop.wake, 1)
    loop.serve()
    os.eventfd_read(loop.wake)


def _check(answer: bytes) -> None:
    """A greeting and whole replies."""
    if not answer:
        return
    assert Hello.unpack(answer[:HELLO_BYTES]).max_keys == MAX_KEYS
    at = HELLO_BYTES
    while at < len(answer):
        head = Head.unpack(answer, at)
        wire.unpack_reply(answer[at : at + head.frame_bytes], DIM)
        at += head.frame_bytes


class _Nowhere(asyncio.Transport):
    """What the connection says does not matter here; whether it gave up does."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data

    def abort(self) -> None:
        self.aborted = True


class CubeClient:
    """Replies to questions that wait, in up to three pieces."""

    name = "cube-client"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        random = np.random.default_rng(seed)
        self._values = random.standard_normal((MAX_KEYS, DIM), dtype=np.float32)

    def batch(self, count: int) -> int:
        """How many questions were answered."""
        return asyncio.run(self._batch(count))

    async def _batch(self, count: int) -> int:
        answered = 0
        for _ in range(count):
            answered += self._one()
        # Planned flushes go.
        await asyncio.sleep(0)
        return answered

    def _one(self) -> int:
        draw = self._mutator.random
        transport = _Nowhere()
        connection = CubeConnection("127.0.0.1:1", DIM, PARTITIONS, timeout=0.2, deadline=5.0)
        connection.connection_made(transport)
        hello = Hello(DIM, PARTITIONS, MAX_KEYS).pack()
        if draw.random() < 0.05:
            hello = self._mutator.mutated(hello, ((0, 4), (4, 2), (6, 2), (8, 4), (12, 4)))
        connection.data_received(hello)
        attempts = []
        if connection.greeted:
            for _ in range(draw.randrange(1, 4)):
                keys = KEYS[: draw.choice((1, 7, 8, 9, MAX_KEYS))]
                attempts.append(
                    LookupAttempt(MessageKind.LOOKUP, draw.choice((FIRST, FIRST, SECOND)), keys, DIM, lambda _: None)
                )
                connection.ask(attempts[-1])
            connection._flush()
            data, fields = self._replies(connection)
            data = self._mutator.mutated(data, fields)
            cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(3)))
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                if not transport.aborted:
                    connection.data_received(data[start:end])
        connection.close()
        for attempt in attempts:
            assert not attempt.open, "a question waits on a closed connection"
            if attempt.status == Status.OK:
                assert attempt.values.shape == (attempt.keys.size, DIM)
                assert attempt.missing.shape == attempt.keys.shape
        return sum(attempt.status == Status.OK for attempt in attempts)

    def _replies(self, connection: CubeConnection) -> tuple[bytes, list[Field]]:
        draw = self._mutator.random
        data, fields = b"", []
        for number, frame in connection._frames.items():
            fields += [(len(data) + at, width) for at, width in _HEAD_FIELDS]
            if draw.random() < 0.1:
                data += pack_refusal(draw.choice(list(Status)), number, frame.version)
            else:
                missing = np.arange(frame.keys) % 5 == 0
                data += pack_reply(number, frame.version, np.resize(self._values, (frame.keys, DIM)), missing)
        return data, fields


class CubeBlockingClient:
    """Replies to the one question of a blocking client, whose reader in machine code has that in Python as its oracle."""

    name = "cube-blocking-client"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._values = np.random.default_rng(seed).standard_normal((MAX_KEYS, DIM), dtype=np.float32)

    def batch(self, count: int) -> int:
        """How many questions were answered."""
        return sum(self._one() for _ in range(count))

    def _one(self) -> bool:
        draw = self._mutator.random
        keys = KEYS[: draw.choice((0, 1, 7, 8, 9, MAX_KEYS))]
        if draw.random() < 0.1:
            golden = pack_refusal(draw.choice(list(Status)), REQUEST, FIRST)
        else:
            draining = draw.random() < 0.1
            missing = np.arange(keys.size) % 5 == draw.randrange(6)
            golden = pack_reply(REQUEST, FIRST, self._values[: keys.size], missing, draining=draining)
        data = self._mutator.mutated(golden, _HEAD_FIELDS)
        cut = draw.randrange(len(data) + 1) if draw.random() < 0.3 else len(data)
        quick, slow = (_outcome(data, cut, keys, busy_poll=busy_poll) for busy_poll in (True, False))
        # Bytes behind a refusal are seen when they come with it.
        late = cut < len(data) and slow is None and isinstance(quick, Status)
        assert late or quick == slow, f"{data.hex()} is read in two ways as the answer to {keys.size} keys"
        return isinstance(quick, tuple)


def _outcome(data: bytes, cut: int, keys: Keys, *, busy_poll: bool) -> object:
    """The answer's bytes, a refusal's status, or None. What comes after the cut comes when the client may sleep."""
    mine, its = socket.socketpair()
    with mine, its:
        mine.sendall(Hello(DIM, PARTITIONS, MAX_KEYS).pack())
        server = _CubeServer("fuzz:1", lambda: its, busy_poll=busy_poll)
        mine.sendall(data[:cut])
        if server._quick is not None:
            server._quick.answered(0)
            received = server._answer

            def answer(*given: Any) -> Any:
                mine.sendall(data[cut:])
                mine.shutdown(socket.SHUT_WR)
                return received(*given)

            server._answer = answer  # type: ignore[method-assign, assignment]
        else:
            mine.sendall(data[cut:])
            mine.shutdown(socket.SHUT_WR)
        try:
            found = server.ask(FIRST, keys)
        except CubeUnavailable:
            return None
    return found if isinstance(found, Status) else tuple(each.tobytes() for each in found)
