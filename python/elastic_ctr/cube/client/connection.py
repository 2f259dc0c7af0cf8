"""One pipelined connection to a cube-server: the requests of one event loop turn share a frame.

A reply must answer a waiting request in its version, with its number of keys and exact length. Otherwise the connection
is dropped and its requests fail.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from elastic_ctr.cube import wire
from elastic_ctr.cube.wire import HEAD_BYTES, HELLO_BYTES, Flags, Head, Hello, MessageKind, Status, Values, WireError
from elastic_ctr.formats.keys import Keys
from elastic_ctr.runtime.growing_pause import growing_pause

# Seconds before the next attempt to connect to a lost holder.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SUSPECT_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_HUNG_AFTER = 3  # timeouts without an answer to the same question, or without a greeting
_PATIENT_EVERY = 4  # connections that are not greeted
# Statuses that concern only some keys of a frame: other attempts in the frame may succeed alone.
_OF_KEYS = frozenset({Status.PARTITION_NOT_HELD, Status.BAD_REQUEST})


class VersionNotHeld(LookupError):
    """A holder does not have the version or a partition of it: the caller should look up in the newest document's version."""

    def __init__(self, version: int, reason: str = "") -> None:
        super().__init__(f"version {version} is not held{': ' + reason if reason else ''}")


class CubeUnavailable(RuntimeError):
    """No holder answered; the text has each address and its failure."""


class LookupAttempt:
    """One request to one server. `done` is called once, or never after `give_up`."""

    def __init__(
        self, kind: MessageKind, version: int, keys: Keys, dim: int, done: Callable[["LookupAttempt"], None]
    ) -> None:
        self.kind = kind
        self.version = version
        self.keys = keys
        self.values: Values = np.empty((0, dim), np.float32)
        self.missing: Flags = np.empty(0, np.bool_)
        self.status: Status | None = None
        self.reason = ""
        self.timer: asyncio.TimerHandle | None = None
        self._dim = dim
        self._left = max(1, keys.size)
        self._done: Callable[[LookupAttempt], None] | None = done

    @property
    def open(self) -> bool:
        return self._done is not None

    def answered(self, start: int, values: Values, missing: Flags) -> None:
        """A piece of the answer; the answer to a large request comes in several."""
        if self.open:
            if missing.size == self.keys.size:
                self.values, self.missing = values, missing
            else:
                if self.missing.size == 0:
                    self.values = np.empty((self.keys.size, self._dim), np.float32)
                    self.missing = np.empty(self.keys.size, np.bool_)
                self.values[start : start + missing.size] = values
                self.missing[start : start + missing.size] = missing
        self._left -= max(1, missing.size)
        if self._left == 0:
            self.finish(Status.OK, "")

    def failed(self, reason: str) -> None:
        self.finish(None, reason)

    def give_up(self) -> None:
        """Ignore the answer. The timer keeps running, because a server that lost to a hedge may be hung."""
        self._done = None

    def finish(self, status: Status | None, reason: str) -> None:
        done, self._done = self._done, None
        if self.timer is not None:
            self.timer.cancel()
        if done is not None:
            self.status, self.reason = status, reason
            done(self)


class _ReplyPiece(NamedTuple):
    attempt: LookupAttempt
    start: int
    size: int


class _Frame(NamedTuple):
    version: int
    keys: int
    pieces: list[_ReplyPiece]


class CubeConnection(asyncio.Protocol):
    """Connects at `prepare` or the first request, and again after a growing pause; without a request only while its
    address is listed (`named`).
    """

    def __init__(self, address: str, dim: int, partitions: int, timeout: float, deadline: float) -> None:
        """The timeout and deadline are a lookup's, in seconds."""
        self.address = address
        # Random, so that readers spread over the replicas and each reader stays with one.
        self.rank = random.random()  # noqa: S311 - only spreads
        self.named = False
        self.draining = False
        # True once the server has sent its hello: a request is then sent at once.
        self.greeted = False
        # Time of the last reply, on the loop's clock. A hello does not count: a hung server may still send one.
        self.answered_at = float("-inf")
        self.frames = 0
        self.drops = 0
        self._dim = dim
        self._partitions = partitions
        self._timeout = timeout
        # A slow server has this long to answer; half of the deadline is left for a new connection.
        self._longest_silence = max(_HUNG_AFTER * timeout, deadline / 2)
        self._ungreeted = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._max_keys = 0
        self._data = bytearray()
        self._queue: list[LookupAttempt] = []
        self._frames: dict[int, _Frame] = {}
        self._next_id = 0
        # Failures in a row, since a greeting.
        self._failures = 0
        self._down_until = 0.0
        self._suspect_until = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._error = "not connected yet"

    @property
    def trusted(self) -> bool:
        """True if the server was neither down nor slow a moment ago."""
        now = self._loop.time()
        return now >= self._down_until and now >= self._suspect_until

    @property
    def awaited(self) -> bool:
        """True if a lookup still waits for an answer on this connection."""
        return any(attempt.open for attempt in self._attempts())

    def prepare(self) -> None:
        """Connect, before there is any request."""
        if self._transport is None and self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    def ask(self, attempt: LookupAttempt) -> None:
        self._queue.append(attempt)
        if not self.greeted:
            self.prepare()
        elif len(self._queue) == 1:
            # One flush for all requests of this turn.
            self._loop.call_soon(self._flush)

    def timed_out(self) -> None:
        """An attempt timed out: prefer other servers for a while, and drop this connection if it stays silent."""
        self._suspect_until = self._loop.time() + _SUSPECT_SECONDS
        # One timer for all attempts: the oldest one has waited for a timeout already.
        if self._transport is not None and self._look is None:
            self._look_after(self._longest_silence - self._timeout)

    def close(self, reason: str = "the client was closed") -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._fail_all(reason)

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._down_until - self._loop.time()))
            host, _, port = self.address.rpartition(":")
            connecting = self._loop.create_connection(lambda: self, host.strip("[]"), int(port))
            await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        except asyncio.TimeoutError:
            self._down(f"cannot connect within {_CONNECT_SECONDS:.0f} s")
        except (OSError, ValueError) as failed:
            self._down(f"cannot connect: {failed}")
        finally:
            self._connecting = None
        # New requests came while this attempt was failing; or the holder is listed and is connected in advance.
        if self._queue or self.named:
            self.prepare()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(Hello(dim=self._dim).pack())
        # The kernel accepts connections for a hung worker too, and the next connection may reach a healthy one. Every few
        # connections, wait long enough for a worker that is only slow.
        patient = self._ungreeted % _PATIENT_EVERY == _PATIENT_EVERY - 1
        seconds = self._longest_silence if patient else _HUNG_AFTER * self._timeout
        self._look = self._loop.call_later(seconds, self._drop_ungreeted, seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.greeted = False
        self._data.clear()
        self._stop_looking()
        if not self._closed:
            self._down(self._error if exc is None else f"connection lost: {exc}")
        if self.named:
            self.prepare()

    def _drop_ungreeted(self, seconds: float) -> None:
        self._look = None
        self._ungreeted += 1
        # The server accepted the connection and the wait has spread attempts already, so the pause starts small again.
        self._failures = 0
        self._drop(f"no greeting within {seconds * 1000:.0f} ms")

    def _look_after(self, seconds: float) -> None:
        """Check for silence by a timer of its own, because a suspected server may get no further request that times out."""
        longest_waiting = next(iter(self._frames), None)
        self._look = self._loop.call_later(seconds, self._drop_if_silent, longest_waiting)

    def _drop_if_silent(self, longest_waiting: int | None) -> None:
        self._look = None
        # The oldest frame decides: replies to other frames do not excuse it.
        if longest_waiting in self._frames:
            self._drop(f"no reply within {self._longest_silence * 1000:.0f} ms")
        elif self._frames:
            self._look_after(self._longest_silence)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _drop(self, reason: str) -> None:
        self.drops += 1
        # The next connection may fail in the same way.
        self._suspect_until = self._loop.time() + _SUSPECT_SECONDS
        self._error = reason
        self.greeted = False
        if self._transport is not None:
            self._transport.abort()
        self._fail_all(reason)

    def _down(self, reason: str) -> None:
        self._failures += 1
        pause = growing_pause(self._failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._down_until = self._loop.time() + pause * random.uniform(0.5, 1.5)  # noqa: S311 - only spreads
        self._fail_all(reason)

    def _attempts(self) -> list[LookupAttempt]:
        return [*(piece.attempt for frame in self._frames.values() for piece in frame.pieces), *self._queue]

    def _fail_all(self, reason: str) -> None:
        self._stop_looking()
        attempts = self._attempts()
        self._frames, self._queue = {}, []
        for attempt in attempts:
            attempt.failed(reason)

    def _flush(self) -> None:
        """Send the requests of this turn: one frame per version, or several where the server's limit of keys requires it."""
        if not self.greeted or self._transport is None:
            return
        queue, self._queue = self._queue, []
        gathered: dict[int, list[_ReplyPiece]] = {}
        rooms: dict[int, int] = {}
        for attempt in queue:
            version, keys = attempt.version, attempt.keys.size
            if not attempt.open:
                attempt.failed("given up before it was sent")
                continue
            if attempt.kind == MessageKind.KEEP_ALIVE:
                self._send(attempt.kind, version, [_ReplyPiece(attempt, 0, 0)])
                continue
            for start in range(0, keys or 1, self._max_keys):
                size = min(self._max_keys, keys - start)
                if rooms.get(version, -1) < size:
                    self._send(MessageKind.LOOKUP, version, gathered.pop(version, []))
                    rooms[version] = self._max_keys
                gathered.setdefault(version, []).append(_ReplyPiece(attempt, start, size))
                rooms[version] -= size
        for version, pieces in gathered.items():
            self._send(MessageKind.LOOKUP, version, pieces)

    def _send(self, kind: MessageKind, version: int, pieces: list[_ReplyPiece]) -> None:
        if not pieces or self._transport is None:
            return
        parts = [attempt.keys[start : start + size] for attempt, start, size in pieces]
        keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._next_id += 1
        self._frames[self._next_id] = _Frame(version, keys.size, pieces)
        self.frames += 1
        self._transport.write(wire.pack_request(kind, self._next_id, version, keys))

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            if not self.greeted:
                self._take_hello()
            if self.greeted:
                self._take_replies()
        except WireError as wrong:
            self._drop(f"wrong reply: {wrong}")

    def _take_hello(self) -> None:
        if len(self._data) < HELLO_BYTES:
            return
        hello = Hello.unpack(bytes(self._data[:HELLO_BYTES]))
        hello.check_protocol()
        if hello.dim not in {0, self._dim}:
            raise WireError(f"it holds values of dim {hello.dim}, this client needs {self._dim}")
        if hello.max_keys < 1:
            raise WireError("it takes no keys")
        if hello.partitions not in {0, self._partitions}:
            raise WireError(f"it spreads keys over {hello.partitions} partitions, this client over {self._partitions}")
        del self._data[:HELLO_BYTES]
        self._max_keys = hello.max_keys
        self.greeted = True
        self._stop_looking()
        self._ungreeted = 0
        self._failures, self._down_until, self._error = 0, 0.0, "the server hung up"
        if self._queue:
            self._loop.call_soon(self._flush)

    def _take_replies(self) -> None:
        data = self._data
        at = 0
        while len(data) - at >= HEAD_BYTES:
            head = Head.unpack(data, at)
            frame = self._frames.get(head.id)
            if frame is None or head.version != frame.version:
                raise WireError(f"it answers request {head.id} in version {head.version}, which nobody asked")
            n = frame.keys if head.code == Status.OK else 0
            # The length is checked before the rest is awaited: a wrong one must not buffer gigabytes.
            if head.n != n or head.frame_bytes != wire.reply_bytes(n, self._dim):
                raise WireError(f"{head.n} values in {head.frame_bytes} bytes answer {frame.keys} keys")
            if len(data) - at < head.frame_bytes:
                break
            # The slice of a bytearray is the only copy: the caller gets views of it.
            reply = wire.unpack_reply(memoryview(data[at : at + head.frame_bytes]), self._dim)
            at += head.frame_bytes
            del self._frames[head.id]
            self.draining = reply.draining
            self.answered_at = self._loop.time()
            self._deliver(frame, reply)
        del data[:at]

    def _deliver(self, frame: _Frame, reply: wire.LookupReply) -> None:
        # If several attempts shared the frame, each is sent again alone, because the fault may be of one of them.
        shared = len(frame.pieces) > 1 and reply.status in _OF_KEYS
        at = 0
        for piece in frame.pieces:
            attempt, start, size = piece
            if reply.status == Status.OK:
                attempt.answered(start, reply.values[at : at + size], reply.missing[at : at + size])
                at += size
            elif shared and attempt.open:
                self._send(MessageKind.LOOKUP, frame.version, [piece])
            else:
                attempt.finish(reply.status, f"answered {reply.status.name.lower().replace('_', ' ')}")


def as_keys(keys: Any) -> Keys:
    """Raises ValueError unless keys is uint64[n]."""
    array = np.ascontiguousarray(keys)
    if array.dtype != np.uint64 or array.ndim != 1:
        raise ValueError(f"keys are {array.dtype}{array.shape}; uint64[n] is needed")
    return cast("Keys", array)
