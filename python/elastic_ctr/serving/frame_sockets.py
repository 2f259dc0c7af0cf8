"""The sockets of the binary door in machine code: system calls, connections, and what waits to be sent on them.

A connection costs bounded memory: an input buffer that holds the largest frame, an output buffer that holds all it may
be owed; it is not read while it is owed more. What comes and goes is `frame_batches`' business.
"""

import platform
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import (
    copy_bytes,
    load_i32,
    load_u32,
    store_u32,
    zero_bytes,
)
from elastic_ctr.serving import wire

# A connection's row, i64. OWED: reply bytes of what is under way; SINCE: milliseconds, when its time began.
(STATE, INPUT, SKIP, OUT_AT, OUT_END, CLOSING, SERIAL, OWED, FLIGHT, SINCE, MASK, UNFINISHED, CHARGED, ENDED, LARGE_OUTPUT) = range(15)  # fmt: skip
WIDTH = 15
CLOSED, HELLO, OPEN = range(3)

# The door's row, i64.
NEXT_SERIAL, OPENED, PENDING, COUNTS, FEASIGNS, REQUESTS, ASIDE, LEFT_OVER, DRAINING = range(9)
DOOR_WIDTH = 9

# A request of the batch, i64: whose, and how many rows. Its id stands in `ids`.
REQUEST_FD, REQUEST_SERIAL, REQUEST_ROWS = range(3)
# Something set aside for Python: whose, why, the head's 32 bytes in `heads`.
ASIDE_FD, ASIDE_SERIAL, ASIDE_WHY = range(3)
GREETED, JUDGED, PENDING_FULL, COUNTS_WRONG = range(4)

EVENTS = 256
SMALL_INPUT = 64 << 10
# A reply is owed no less than this: it may become a refusal.
LEAST_REPLY = wire.REPLY_HEAD + wire.MAX_SENTENCE

_PACKED = platform.machine() in {"x86_64", "AMD64"}
EVENT_BYTES = 12 if _PACKED else 16
EVENT_DATA = 4 if _PACKED else 8

_int, _long, _size, _address = types.int32, types.intp, types.uintp, types.uint64


def _external(name: str, result: Any, *parameters: Any) -> Any:
    return types.ExternalFunction(name, result(*parameters))


_recv = _external("recv", _long, _int, _address, _size, _int)
_send = _external("send", _long, _int, _address, _size, _int)
_close = _external("close", _int, _int)
_accept4 = _external("accept4", _int, _int, _address, _address, _int)
_setsockopt = _external("setsockopt", _int, _int, _int, _int, _address, _int)
_epoll_ctl = _external("epoll_ctl", _int, _int, _int, _int, _address)
_epoll_wait = _external("epoll_wait", _int, _int, _address, _int, _int)
_madvise = _external("madvise", _int, _address, _size, _int)
_errno = _external("__errno_location", _address)

_EAGAIN, _EINTR = np.int32(11), np.int32(4)
_SEND_FLAGS, _RECV_FLAGS = np.int32(0x4040), np.int32(0x40)  # no signal, do not wait
_NON_BLOCKING = np.int32(0o4000 | 0o2000000)  # and close-on-exec
_IPPROTO_TCP, _TCP_NODELAY = np.int32(6), np.int32(1)
_IN, _OUT, BROKEN = 1, 4, 0x18
_ADD, _MODIFY = np.int32(1), np.int32(3)
_DONTNEED = np.int32(4)

_CHECKED = bounds_checked()
_0 = np.uint64(0)


class Buffers(NamedTuple):
    """What the door keeps. The byte arrays of connections may be larger than memory: pages come when touched."""

    connections: NDArray[np.int64]  # [descriptors, WIDTH]
    inputs: NDArray[np.uint8]  # descriptors x input_bytes
    outputs: NDArray[np.uint8]  # descriptors x output_bytes
    door: NDArray[np.int64]  # [DOOR_WIDTH]
    replies: NDArray[np.uint8]  # output_bytes
    feasigns: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    requests: NDArray[np.int64]  # [batch, 3]
    ids: NDArray[np.uint64]  # [batch]
    aside: NDArray[np.int64]  # [some, 3]
    heads: NDArray[np.uint8]  # some x 32
    events: NDArray[np.uint8]
    one_event: NDArray[np.uint8]
    one: NDArray[np.int32]
    input_bytes: int
    output_bytes: int
    max_frame: int
    max_rows: int
    max_feasigns: int
    max_in_flight: int
    max_pending: int
    epoll: int
    listener: int


@compiled
def input_of(b: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < b.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(b.inputs.ctypes.data) + np.uint64(fd) * np.uint64(b.input_bytes)


@compiled
def output_of(b: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < b.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(b.outputs.ctypes.data) + np.uint64(fd) * np.uint64(b.output_bytes)


@compiled
def _would_block() -> Any:
    return load_i32(_errno()) in (_EAGAIN, _EINTR)


@compiled
def _interest(b: Any, fd: Any, operation: Any, mask: Any) -> None:
    at = np.uint64(b.one_event.ctypes.data)
    zero_bytes(at, np.uint64(EVENT_BYTES))
    store_u32(at, np.uint32(mask))
    store_u32(at + np.uint64(EVENT_DATA), np.uint32(fd))
    _epoll_ctl(np.int32(b.epoll), operation, np.int32(fd), at)
    b.connections[fd, MASK] = mask


@compiled
def hang_up(b: Any, fd: Any) -> None:
    row = b.connections[fd]
    if row[STATE] == CLOSED:
        return
    _close(np.int32(fd))
    # The pages of a large frame go back; the small ones stay for the next connection.
    if row[CHARGED] > 0:
        _madvise(input_of(b, fd), np.uint64(b.input_bytes), _DONTNEED)
    if row[LARGE_OUTPUT] > 0:
        _madvise(output_of(b, fd), np.uint64(b.output_bytes), _DONTNEED)
    b.door[PENDING] -= row[CHARGED]
    b.door[LEFT_OVER] -= row[UNFINISHED]
    b.door[OPENED] -= 1
    row[:] = 0


@compiled
def may_owe(b: Any, row: Any, reply: Any) -> Any:
    """Whether the connection may be owed another reply of so many bytes."""
    return row[OUT_END] - row[OUT_AT] + row[OWED] + reply <= b.output_bytes and row[FLIGHT] < b.max_in_flight


@compiled
def settle(b: Any, fd: Any, now: Any) -> None:
    """After whatever happened: end it when all is said, else wait for what can come next."""
    row = b.connections[fd]
    waiting = row[OUT_END] > row[OUT_AT]
    over = row[CLOSING] != 0 or (row[ENDED] != 0 and row[UNFINISHED] == 0)
    if over and not waiting and row[FLIGHT] == 0:
        hang_up(b, fd)
        return
    mask = 0
    if waiting:
        mask = _OUT
    elif row[CLOSING] == 0 and row[ENDED] == 0 and may_owe(b, row, LEAST_REPLY):
        mask = _IN
    if mask != row[MASK]:
        if waiting:
            row[SINCE] = now
        _interest(b, fd, _MODIFY, mask)


@compiled
def left_over(b: Any, row: Any, value: Any) -> None:
    """Whether the connection's input may hold whole requests that nobody will announce again."""
    b.door[LEFT_OVER] += value - row[UNFINISHED]
    row[UNFINISHED] = value


@compiled
def accept(b: Any, now: Any) -> None:
    while True:
        fd = np.int64(_accept4(np.int32(b.listener), _0, _0, _NON_BLOCKING))
        if fd < 0:
            return
        if fd >= b.connections.shape[0]:
            _close(np.int32(fd))
            continue
        _setsockopt(np.int32(fd), _IPPROTO_TCP, _TCP_NODELAY, np.uint64(b.one.ctypes.data), np.int32(4))
        row = b.connections[fd]
        row[:] = 0
        row[STATE], row[SINCE] = HELLO, now
        b.door[NEXT_SERIAL] += 1
        row[SERIAL] = b.door[NEXT_SERIAL]
        b.door[OPENED] += 1
        _interest(b, fd, _ADD, _IN)


@compiled
def charge(b: Any, fd: Any) -> None:
    """Count what is held for a frame that is not whole yet; give its pages back when it is gone."""
    row = b.connections[fd]
    charged = row[INPUT] if row[INPUT] > SMALL_INPUT else 0
    if charged == 0 and row[CHARGED] > 0:
        small = np.uint64(SMALL_INPUT)
        _madvise(input_of(b, fd) + small, np.uint64(b.input_bytes) - small, _DONTNEED)
    b.door[PENDING] += charged - row[CHARGED]
    row[CHARGED] = charged


@compiled
def receive(b: Any, fd: Any, now: Any) -> Any:
    """Read once; no further than the frame that has begun, or 64 KiB. False when nothing came or the peer is gone."""
    row = b.connections[fd]
    have = row[INPUT]
    wanted = SMALL_INPUT
    if row[STATE] == OPEN and row[SKIP] == 0 and have >= 4:
        wanted = min(max(wanted, np.int64(load_u32(input_of(b, fd))) + 4), max(b.max_frame, SMALL_INPUT))
    if have >= wanted:
        return True
    got = np.int64(_recv(np.int32(fd), input_of(b, fd) + np.uint64(have), np.uint64(wanted - have), _RECV_FLAGS))
    if got < 0:
        if not _would_block():
            hang_up(b, fd)
        return False
    if got == 0:
        row[ENDED] = 1
        settle(b, fd, now)
        return False
    if have == 0 and row[SKIP] == 0:
        row[SINCE] = now
    row[INPUT] = have + got
    return True


@compiled
def send_waiting(b: Any, fd: Any, now: Any) -> None:
    """Go on with output that waited."""
    row = b.connections[fd]
    from_ = output_of(b, fd) + np.uint64(row[OUT_AT])
    sent = np.int64(_send(np.int32(fd), from_, np.uint64(row[OUT_END] - row[OUT_AT]), _SEND_FLAGS))
    if sent < 0:
        if not _would_block():
            hang_up(b, fd)
        return
    row[OUT_AT] += sent
    if row[OUT_AT] == row[OUT_END]:
        row[OUT_AT], row[OUT_END] = 0, 0
        row[SINCE] = now
        if row[INPUT] > 0:
            left_over(b, row, 1)
    settle(b, fd, now)


@compiled
def send(b: Any, fd: Any, from_: Any, size: Any, owed: Any, flights: Any, now: Any) -> None:
    """Send bytes that were owed, behind what waits already."""
    row = b.connections[fd]
    row[OWED] -= owed
    row[FLIGHT] -= flights
    sent = np.int64(0)
    if row[OUT_END] == row[OUT_AT]:
        row[OUT_AT], row[OUT_END] = 0, 0
        sent = np.int64(_send(np.int32(fd), from_, np.uint64(size), _SEND_FLAGS))
        if sent < 0:
            if not _would_block():
                hang_up(b, fd)
                return
            sent = np.int64(0)
    if sent < size:
        output = output_of(b, fd)
        if row[OUT_AT] > 0:
            copy_bytes(output, output + np.uint64(row[OUT_AT]), np.uint64(row[OUT_END] - row[OUT_AT]))
            row[OUT_END] -= row[OUT_AT]
            row[OUT_AT] = 0
        if _CHECKED and row[OUT_END] + size - sent > b.output_bytes:
            raise IndexError("more output than its buffer holds")
        copy_bytes(output + np.uint64(row[OUT_END]), from_ + np.uint64(sent), np.uint64(size - sent))
        row[OUT_END] += size - sent
        if row[OUT_END] > SMALL_INPUT:
            row[LARGE_OUTPUT] = 1
    elif row[INPUT] == 0:
        row[SINCE] = now
    settle(b, fd, now)


@compiled
def put(b: Any, fd: Any, serial: Any, data: Any, owed: Any, now: Any) -> None:
    """Send one reply u8[n] that Python has made to something set aside, or to a request of the batch."""
    if b.connections[fd, SERIAL] == serial:
        send(b, fd, np.uint64(data.ctypes.data), data.size, owed, 1, now)


@compiled
def wait(b: Any) -> Any:
    """How many connections have something now; their events stand in b.events. Never waits."""
    return np.int64(_epoll_wait(np.int32(b.epoll), np.uint64(b.events.ctypes.data), np.int32(EVENTS), np.int32(0)))
