"""A request and its answer over a blocking socket, in machine code and without sleeping. After a refusal, a late answer or
wrong bytes, the caller continues from the bytes sent and received so far.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube import wire
from elastic_ctr.cube.wire import DRAINING, HEAD_BYTES, LENGTH_BYTES, Flags, Values
from elastic_ctr.cube.wire_native import put_head
from elastic_ctr.formats.keys import Keys
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u8, load_u16, load_u32, load_u64
from elastic_ctr.machine_code.sockets import NOTHING, now, receive_at_once, sched_yield, send_at_once

# Nanoseconds. After an answer within this time, the client polls this long for the next one: a sleeping core wakes slowly.
BUSY_POLL_NS = 100_000

# Indices of the state, i64: nanoseconds to poll, bytes sent, bytes received, and the first of two numbers of a clock.
_POLLING, _SENT, _GOT, _CLOCK = range(4)

_NO_SOCKET = -1
_LOOKUP, _OK = np.uint16(wire.MessageKind.LOOKUP), np.uint16(wire.Status.OK)
_HEAD = np.uint64(HEAD_BYTES)
_4, _6, _8, _12, _20 = (np.uint64(offset) for offset in (4, 6, 8, 12, 20))
_OTHER_FLAGS = np.uint16(0xFFFF & ~DRAINING)


class Exchange:
    """The requests of one client to one server, one at a time and all with the same id. Raises numba's errors if it cannot
    compile.
    """

    def __init__(self, dim: int, question: int) -> None:
        self._dim = dim
        self._question = question
        self._request: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._size = 0
        self._state = np.zeros(_CLOCK + 2, np.int64)
        self.ask(_NO_SOCKET, 1, np.zeros(0, np.uint64), np.empty(wire.reply_bytes(0, dim), np.uint8))

    def ask(self, fd: int, version: int, keys: Keys, frame: NDArray[np.uint8]) -> tuple[Values, Flags] | None:
        """Keys u64[n] to (values f32[n, dim], missing bool[n]); values is a view of frame, which has a reply's size.

        After None the caller sends the `unsent` bytes, receives the rest of the frame after the `received` ones, and
        calls `answered`.
        """
        n = keys.size
        self._size = wire.request_bytes(n)
        if self._request.size < self._size:
            self._request = np.empty(self._size, np.uint8)
        missing = np.empty(n, np.bool_)
        if not _exchange(fd, self._question, version, keys, self._dim, self._request, frame, missing, self._state):
            return None
        return np.ndarray((n, self._dim), np.float32, frame, HEAD_BYTES), missing

    @property
    def unsent(self) -> memoryview:
        return self._request.data[int(self._state[_SENT]) : self._size]

    @property
    def received(self) -> int:
        return int(self._state[_GOT])

    def answered(self, seconds: float) -> None:
        """Note how long the caller took to receive the answer, which decides whether the next one is polled for."""
        self._state[_POLLING] = BUSY_POLL_NS if seconds * 1e9 <= BUSY_POLL_NS else 0


@compiled
def _send(fd: Any, question: Any, version: Any, keys: Any, request: Any) -> Any:
    """Return how many bytes of the request the socket accepted."""
    size = HEAD_BYTES + 8 * keys.size
    if size > request.size:
        raise IndexError("more keys than the request has room for")
    at = np.uint64(request.ctypes.data)
    put_head(at, size, _LOOKUP, 0, keys.size, question, version)
    copy_bytes(at + _HEAD, np.uint64(keys.ctypes.data), np.uint64(8 * keys.size))
    return max(np.int64(0), send_at_once(fd, at, size))


@compiled
def _has_values(question: Any, version: Any, n: Any, dim: Any, frame: Any, missing: Any) -> Any:
    """True if this whole frame answers n keys with values; missing bool[n] is filled then."""
    at = np.uint64(frame.ctypes.data)
    if frame.size != HEAD_BYTES + 4 * dim * n + (n + 7) // 8 or missing.size != n:
        raise IndexError("buffers of another size than the answer's")
    usual = load_u16(at + _4) == _OK and load_u16(at + _6) & _OTHER_FLAGS == 0 and load_u32(at + _8) == np.uint32(n)
    if not usual or load_u64(at + _12) != np.uint64(question) or load_u64(at + _20) != np.uint64(version):
        return False
    bits = at + np.uint64(HEAD_BYTES + 4 * dim * n)
    for i in range(n):
        missing[i] = load_u8(bits + np.uint64(i >> 3)) >> np.uint8(i & 7) & np.uint8(1) != 0
    return n % 8 == 0 or load_u8(bits + np.uint64(n >> 3)) >> np.uint8(n & 7) == 0


@compiled
def _exchange(
    fd: Any, question: Any, version: Any, keys: Any, dim: Any, request: Any, frame: Any, missing: Any, state: Any
) -> Any:
    """True if frame and missing contain the answer. The wait for each piece of it is bounded by state[_POLLING]."""
    state[_GOT] = 0
    state[_SENT] = _send(fd, question, version, keys, request)
    if state[_SENT] < HEAD_BYTES + 8 * keys.size:
        return False
    at = np.uint64(frame.ctypes.data)
    due = frame.size
    clock = state[_CLOCK:]
    began = now(clock)
    while state[_POLLING] > 0:
        got = receive_at_once(fd, at + np.uint64(state[_GOT]), due - state[_GOT])
        if got > 0:
            state[_GOT] += got
            if state[_GOT] >= HEAD_BYTES and load_u32(at) != np.uint32(due - LENGTH_BYTES):
                return False
            if state[_GOT] == due:
                return _has_values(question, version, keys.size, dim, frame, missing)
            began = now(clock)
        elif got == NOTHING and now(clock) - began < state[_POLLING]:
            sched_yield()
        else:
            return False
    return False
