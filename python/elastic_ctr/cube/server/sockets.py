"""The sockets of the compiled lookup loop: system calls from machine code, connections, what waits to be sent.

A connection costs bounded memory: one input buffer that holds the largest request, one output buffer that holds the
largest reply. It is not read while output waits.
"""

import platform
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from elastic_ctr.cube.server.counters import ACCEPTED, BYTES_IN, BYTES_OUT, CONNECTIONS
from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_i32, store_u32, zero_bytes

# A connection's row, i64.
STATE, INPUT, SKIP, OUT_AT, OUT_END, CLOSING, LARGE_INPUT, LARGE_OUTPUT = range(8)
CONNECTION_WIDTH = 8
CLOSED, HELLO, OPEN = range(3)

# The round's row, i64: keys, output bytes, lookups, sends so far.
ROUND_KEYS, ROUND_BYTES, ROUND_LOOKUPS, ROUND_SENDS = range(4)
# A lookup of the round: where its reply starts, its keys, where they start, its version's index.
REPLY_AT, KEY_COUNT, KEY_AT, VERSION_AT = range(4)

EVENTS = 256
MAX_LOOKUPS = 8192

_PACKED = platform.machine() in {"x86_64", "AMD64"}
EVENT_BYTES = 12 if _PACKED else 16
EVENT_DATA = 4 if _PACKED else 8


def _external(name: str, result: Any, *parameters: Any) -> Any:
    return types.ExternalFunction(name, result(*parameters))


_int, _long, _size, _address = types.int32, types.intp, types.uintp, types.uint64
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
_NO_SIGNAL, _DO_NOT_WAIT = np.int32(0x4000), np.int32(0x40)
_NON_BLOCKING = np.int32(0o4000 | 0o2000000)  # and close-on-exec
_IPPROTO_TCP, _TCP_NODELAY = np.int32(6), np.int32(1)
_EPOLLIN, _EPOLLOUT = np.uint32(1), np.uint32(4)
_ADD, _MODIFY = np.int32(1), np.int32(3)
_MADV_DONTNEED = np.int32(4)
_LARGE = 1 << 16

_CHECKED = bounds_checked()
_0 = np.uint64(0)


class Buffers(NamedTuple):
    """What the loop keeps between rounds. The three byte arrays may be larger than memory: pages come when touched."""

    connections: NDArray[np.int64]  # [descriptors, CONNECTION_WIDTH]
    inputs: NDArray[np.uint8]  # descriptors x input_bytes
    outputs: NDArray[np.uint8]  # descriptors x output_bytes
    round: NDArray[np.int64]
    replies: NDArray[np.uint8]  # of the round
    lookups: NDArray[np.int64]  # [MAX_LOOKUPS, 4]
    sends: NDArray[np.int64]  # [MAX_LOOKUPS, 3]: descriptor, start, end in replies
    keys: NDArray[np.uint64]
    places: NDArray[np.int64]
    missing: NDArray[np.uint8]
    scratch: NDArray[np.uint64]
    events: NDArray[np.uint8]
    one_event: NDArray[np.uint8]
    one: NDArray[np.int32]
    input_bytes: int
    output_bytes: int
    max_keys: int
    epoll: int
    listener: int
    wake: int


@compiled
def _interest(b: Any, fd: Any, operation: Any, events: Any) -> Any:
    at = np.uint64(b.one_event.ctypes.data)
    zero_bytes(at, np.uint64(EVENT_BYTES))
    store_u32(at, events)
    store_u32(at + np.uint64(EVENT_DATA), np.uint32(fd))
    return _epoll_ctl(np.int32(b.epoll), operation, np.int32(fd), at)


@compiled
def _hang_up(b: Any, counts: Any, fd: Any) -> None:
    _close(np.int32(fd))
    row = b.connections[fd]
    # The pages of a large request or reply go back; the small ones stay for the next connection.
    if row[LARGE_INPUT] != 0:
        _madvise(input_of(b, fd), np.uint64(b.input_bytes), _MADV_DONTNEED)
    if row[LARGE_OUTPUT] != 0:
        _madvise(_output_of(b, fd), np.uint64(b.output_bytes), _MADV_DONTNEED)
    row[:] = 0
    counts[CONNECTIONS] -= 1


@compiled
def input_of(b: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < b.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(b.inputs.ctypes.data) + np.uint64(fd) * np.uint64(b.input_bytes)


@compiled
def _output_of(b: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < b.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(b.outputs.ctypes.data) + np.uint64(fd) * np.uint64(b.output_bytes)


@compiled
def _would_block() -> Any:
    number = load_i32(_errno())
    return number in (_EAGAIN, _EINTR)


@compiled
def accept(b: Any, counts: Any) -> None:
    while True:
        fd = np.int64(_accept4(np.int32(b.listener), _0, _0, _NON_BLOCKING))
        if fd < 0:
            return
        if fd >= b.connections.shape[0]:
            _close(np.int32(fd))
            continue
        _setsockopt(np.int32(fd), _IPPROTO_TCP, _TCP_NODELAY, np.uint64(b.one.ctypes.data), np.int32(4))
        b.connections[fd, :] = 0
        b.connections[fd, STATE] = HELLO
        _interest(b, fd, _ADD, _EPOLLIN)
        counts[CONNECTIONS] += 1
        counts[ACCEPTED] += 1


@compiled
def send_round(b: Any, counts: Any) -> None:
    for number in range(b.round[ROUND_SENDS]):
        fd, start, end = b.sends[number]
        row = b.connections[fd]
        from_ = np.uint64(b.replies.ctypes.data) + np.uint64(start)
        sent = np.int64(_send(np.int32(fd), from_, np.uint64(end - start), _NO_SIGNAL | _DO_NOT_WAIT))
        if sent < 0:
            if not _would_block():
                _hang_up(b, counts, fd)
                continue
            sent = np.int64(0)
        counts[BYTES_OUT] += sent
        rest = end - start - sent
        if rest > 0:
            if _CHECKED and rest > b.output_bytes:
                raise IndexError("more output than its buffer holds")
            copy_bytes(_output_of(b, fd), from_ + np.uint64(sent), np.uint64(rest))
            row[OUT_AT], row[OUT_END] = 0, rest
            if rest > _LARGE:
                row[LARGE_OUTPUT] = 1
            _interest(b, fd, _MODIFY, _EPOLLOUT)
        elif row[CLOSING] != 0:
            _hang_up(b, counts, fd)


@compiled
def send_waiting(b: Any, counts: Any, fd: Any) -> None:
    """Go on with output that waited."""
    row = b.connections[fd]
    from_ = _output_of(b, fd) + np.uint64(row[OUT_AT])
    sent = np.int64(_send(np.int32(fd), from_, np.uint64(row[OUT_END] - row[OUT_AT]), _NO_SIGNAL | _DO_NOT_WAIT))
    if sent < 0:
        if not _would_block():
            _hang_up(b, counts, fd)
        return
    counts[BYTES_OUT] += sent
    row[OUT_AT] += sent
    if row[OUT_AT] == row[OUT_END]:
        row[OUT_AT], row[OUT_END] = 0, 0
        if row[CLOSING] != 0:
            _hang_up(b, counts, fd)
        else:
            _interest(b, fd, _MODIFY, _EPOLLIN)


@compiled
def receive(b: Any, counts: Any, fd: Any) -> Any:
    """Read once what there is into the input buffer; False when nothing came or the peer is gone."""
    row = b.connections[fd]
    have = row[INPUT]
    room = np.uint64(b.input_bytes - have)
    got = np.int64(_recv(np.int32(fd), input_of(b, fd) + np.uint64(have), room, _DO_NOT_WAIT))
    if got <= 0:
        if got == 0 or not _would_block():
            _hang_up(b, counts, fd)
        return False
    counts[BYTES_IN] += got
    row[INPUT] = have + got
    if have + got > _LARGE:
        row[LARGE_INPUT] = 1
    return True


@compiled
def wait(b: Any) -> Any:
    """How many of the connections have something; their events stand in b.events."""
    return np.int64(_epoll_wait(np.int32(b.epoll), np.uint64(b.events.ctypes.data), np.int32(EVENTS), np.int32(-1)))
