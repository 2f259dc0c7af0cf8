"""Sockets of a native server: system calls, connections, input and waiting output. A connection is a row of numbers and
two buffers, found by its descriptor. Its memory is bounded: an input buffer for the largest frame, an output buffer for
all that it may be owed. The servers interpret frames, count, and decide when to hang up; their columns follow those
here.

The functions take only `Sockets` and numbers, so that both servers share the machine code and its cache.
"""

import mmap
import platform
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_i32, store_u32, zero_bytes

# A connection's row, i64: its state, bytes in the input buffer, bytes to skip before the next frame, start and end of the
# waiting output, 1 if the connection closes once that is sent, and 1 for a buffer that has had more than `LARGE` bytes.
(STATE, INPUT, SKIP, OUT_AT, OUT_END, CLOSING, LARGE_INPUT, LARGE_OUTPUT) = range(8)
WIDTH = 8
CLOSED, HELLO, OPEN = range(3)

# Results of `receive` and the send functions other than a number of bytes.
NOTHING, BROKEN, ENDED = -1, -2, -3
EXHAUSTED = -4  # of `accept`: no descriptor is free

# Events to watch for.
IN, OUT = 1, 4
FAILED = 0x18  # of an event: the socket has failed, or both halves are closed
ADD, REMOVE, MODIFY = 1, 2, 3
NEVER = -1  # of `wait`: however long it takes

EVENTS = 256
LARGE = 64 << 10
# Connections are indexed by descriptor, and some descriptors of the process are no connections.
OTHER_DESCRIPTORS = 64

_PACKED = platform.machine() in {"x86_64", "AMD64"}
EVENT_BYTES = 12 if _PACKED else 16
EVENT_DATA = 4 if _PACKED else 8

_PAGE = 4096


def _external(name: str, result: Any, *parameters: Any) -> Any:
    """A function of the C library."""
    return types.ExternalFunction(name, result(*parameters))


_int, _long, _size, _address = types.int32, types.intp, types.uintp, types.uint64
_recv = _external("recv", _long, _int, _address, _size, _int)
_send = _external("send", _long, _int, _address, _size, _int)
_close = _external("close", _int, _int)
_dup3 = _external("dup3", _int, _int, _int, _int)
_accept4 = _external("accept4", _int, _int, _address, _address, _int)
_setsockopt = _external("setsockopt", _int, _int, _int, _int, _address, _int)
_epoll_ctl = _external("epoll_ctl", _int, _int, _int, _int, _address)
_epoll_wait = _external("epoll_wait", _int, _int, _address, _int, _int)
_madvise = _external("madvise", _int, _address, _size, _int)
_clock_gettime = _external("clock_gettime", _int, _int, _address)
_sched_yield = _external("sched_yield", _int)
_errno = _external("__errno_location", _address)

_EAGAIN, _EINTR = np.int32(11), np.int32(4)
_ENFILE, _EMFILE = np.int32(23), np.int32(24)
_SEND_FLAGS, _RECV_FLAGS = np.int32(0x4040), np.int32(0x40)  # no signal, do not wait
_NON_BLOCKING = np.int32(0o4000 | 0o2000000)  # and close-on-exec
_CLOSE_ON_EXEC = np.int32(0o2000000)
_IPPROTO_TCP, _TCP_NODELAY = np.int32(6), np.int32(1)
_MADV_DONTNEED = np.int32(4)
_CLOCK_MONOTONIC = np.int32(1)

_CHECKED = bounds_checked()
_0 = np.uint64(0)


class Sockets(NamedTuple):
    """All connections of one server. The byte arrays may be larger than memory: pages are allocated when touched."""

    connections: NDArray[np.int64]  # [descriptors, WIDTH + the server's own columns]
    inputs: NDArray[np.uint8]  # descriptors x input_bytes
    outputs: NDArray[np.uint8]  # descriptors x output_bytes
    events: NDArray[np.uint8]
    one_event: NDArray[np.uint8]
    one: NDArray[np.int32]
    clock: NDArray[np.int64]  # seconds and nanoseconds
    input_bytes: int
    output_bytes: int
    epoll: int
    listener: int


def new_sockets(descriptors: int, width: int, input_bytes: int, output_bytes: int, epoll: int) -> Sockets:
    """Return sockets without connections and listener. Rows have `width` columns; buffer sizes are rounded up to pages."""
    input_bytes, output_bytes = pages(input_bytes), pages(output_bytes)
    return Sockets(
        connections=np.zeros((descriptors, width), np.int64),
        # One page more, because a copy may read past the end of a short frame.
        inputs=reserve(descriptors * input_bytes + _PAGE),
        outputs=reserve(descriptors * output_bytes),
        events=np.zeros(EVENTS * EVENT_BYTES, np.uint8),
        one_event=np.zeros(EVENT_BYTES, np.uint8),
        one=np.ones(1, np.int32),
        clock=np.zeros(2, np.int64),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        epoll=epoll,
        listener=-1,
    )


def open_descriptors(s: Sockets) -> list[int]:
    return [int(each) for each in np.flatnonzero(s.connections[:, STATE] != CLOSED)]


def pages(size: int) -> int:
    """Return `size` rounded up to whole pages, in bytes."""
    return -(-size // _PAGE) * _PAGE


def reserve(size: int) -> NDArray[np.uint8]:
    """Return u8[size] of zeros that take memory only where they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


@compiled
def input_of(s: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < s.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(s.inputs.ctypes.data) + np.uint64(fd) * np.uint64(s.input_bytes)


@compiled
def output_of(s: Any, fd: Any) -> Any:
    if _CHECKED and not 0 <= fd < s.connections.shape[0]:
        raise IndexError("a descriptor without buffers")
    return np.uint64(s.outputs.ctypes.data) + np.uint64(fd) * np.uint64(s.output_bytes)


@compiled
def _would_block() -> Any:
    return load_i32(_errno()) in (_EAGAIN, _EINTR)


@compiled
def watch(s: Any, fd: Any, operation: Any, mask: Any) -> None:
    """Add, modify or remove the connection in epoll, so that `wait` reports events of the mask."""
    at = np.uint64(s.one_event.ctypes.data)
    zero_bytes(at, np.uint64(EVENT_BYTES))
    store_u32(at, np.uint32(mask))
    store_u32(at + np.uint64(EVENT_DATA), np.uint32(fd))
    _epoll_ctl(np.int32(s.epoll), np.int32(operation), np.int32(fd), at)


@compiled
def wait(s: Any, milliseconds: Any) -> Any:
    """Return the number of ready descriptors; their events are in s.events."""
    events = np.uint64(s.events.ctypes.data)
    return np.int64(_epoll_wait(np.int32(s.epoll), events, np.int32(EVENTS), np.int32(milliseconds)))


@compiled
def now(clock: Any) -> Any:
    """Return the nanoseconds of the monotonic clock, which is read into the i64[2]."""
    _clock_gettime(_CLOCK_MONOTONIC, np.uint64(clock.ctypes.data))
    return clock[0] * 1_000_000_000 + clock[1]


@compiled
def sched_yield() -> None:
    """Let other threads that are ready to run on this core go first."""
    _sched_yield()


@compiled
def busy_poll(s: Any, milliseconds: Any, polling: Any, longest: Any) -> Any:
    """As `wait`, but poll without sleeping for the first `polling` nanoseconds.

    A sleeping core wakes slowly, the more so a virtual one: a request waits 20 microseconds. So a wait that ended within
    `longest` nanoseconds is followed by a poll of that length, any other wait by none. Between two polls the thread yields
    to others that are ready on this core. KVM does the same for virtual processors (halt polling).

    Return the number of ready descriptors, and the nanoseconds to poll next time.
    """
    began = now(s.clock)
    while polling > 0 and now(s.clock) - began < polling:
        ready = wait(s, 0)
        if ready != 0:
            return ready, polling
        sched_yield()
    ready = wait(s, milliseconds)
    return ready, np.int64(longest if now(s.clock) - began <= longest else 0)


@compiled
def accept(s: Any) -> Any:
    """Accept a connection, watch it and let it wait for a hello. Return its descriptor, NOTHING or EXHAUSTED. If the
    descriptor is above the last row, the caller must `replace` another connection by it or `reject` it.
    """
    fd = np.int64(_accept4(np.int32(s.listener), _0, _0, _NON_BLOCKING))
    if fd < 0:
        return np.int64(EXHAUSTED if load_i32(_errno()) in (_EMFILE, _ENFILE) else NOTHING)
    _setsockopt(np.int32(fd), _IPPROTO_TCP, _TCP_NODELAY, np.uint64(s.one.ctypes.data), np.int32(4))
    if fd < s.connections.shape[0]:
        s.connections[fd, :] = 0
        s.connections[fd, STATE] = HELLO
        watch(s, fd, ADD, IN)
    return fd


@compiled
def reject(fd: Any) -> None:
    _close(np.int32(fd))


@compiled
def replace(s: Any, old: Any, fd: Any) -> None:
    """Close the connection `old` and move the accepted `fd`, which has no row, to its descriptor, to wait for a hello."""
    _forget(s, old)
    _dup3(np.int32(fd), np.int32(old), _CLOSE_ON_EXEC)
    _close(np.int32(fd))
    s.connections[old, STATE] = HELLO
    watch(s, old, ADD, IN)


@compiled
def close(s: Any, fd: Any) -> None:
    """Close the connection and clear its row."""
    _close(np.int32(fd))
    _forget(s, fd)


@compiled
def detach(s: Any, fd: Any) -> None:
    """Stop watching the connection and clear its row; its descriptor stays open for another owner."""
    watch(s, fd, REMOVE, 0)
    _forget(s, fd)


@compiled
def _forget(s: Any, fd: Any) -> None:
    row = s.connections[fd]
    # Release the pages of a large frame; a small buffer stays mapped for the next connection.
    if row[LARGE_INPUT] != 0:
        _madvise(input_of(s, fd), np.uint64(s.input_bytes), _MADV_DONTNEED)
    if row[LARGE_OUTPUT] != 0:
        _madvise(output_of(s, fd), np.uint64(s.output_bytes), _MADV_DONTNEED)
    row[:] = 0


@compiled
def release_memory(s: Any, fd: Any) -> None:
    """Release the pages that a large frame took, once the input buffer no longer has it."""
    small = np.uint64(LARGE)
    _madvise(input_of(s, fd) + small, np.uint64(s.input_bytes) - small, _MADV_DONTNEED)
    s.connections[fd, LARGE_INPUT] = 0


@compiled
def receive_at_once(fd: Any, to: Any, most: Any) -> Any:
    """Read once, without waiting. Return the bytes read; NOTHING if none are there, ENDED at end of file, BROKEN on an error."""
    got = np.int64(_recv(np.int32(fd), to, np.uint64(most), _RECV_FLAGS))
    if got < 0:
        return np.int64(NOTHING if _would_block() else BROKEN)
    return got if got > 0 else np.int64(ENDED)


@compiled
def send_at_once(fd: Any, from_: Any, size: Any) -> Any:
    """Send what the socket accepts, without waiting. Return the bytes sent; NOTHING if it accepts none, BROKEN on an error."""
    sent = np.int64(_send(np.int32(fd), from_, np.uint64(size), _SEND_FLAGS))
    if sent < 0:
        return np.int64(NOTHING if _would_block() else BROKEN)
    return sent


@compiled
def receive(s: Any, fd: Any, most: Any) -> Any:
    """Read once into the input buffer, up to `most` bytes in all.

    Return the bytes read; NOTHING, ENDED or BROKEN as `receive_at_once`.
    """
    row = s.connections[fd]
    have = row[INPUT]
    if _CHECKED and most > s.input_bytes:
        raise IndexError("more input than its buffer holds")
    got = receive_at_once(fd, input_of(s, fd) + np.uint64(have), most - have)
    if got < 0:
        return got
    row[INPUT] = have + got
    if have + got > LARGE:
        row[LARGE_INPUT] = 1
    return got


@compiled
def skipped(row: Any, left: Any) -> Any:
    """Return how many of the `left` bytes received are to be skipped; the row's SKIP keeps the number still to come."""
    size = min(row[SKIP], left)
    row[SKIP] -= size
    return size


@compiled
def consume(s: Any, fd: Any, size: Any) -> None:
    """Drop the first `size` bytes of the input; all of it if the connection is closing."""
    row = s.connections[fd]
    have = row[INPUT]
    if row[CLOSING] != 0:
        size = have
    if size > 0 and have > size:
        base = input_of(s, fd)
        copy_bytes(base, base + np.uint64(size), np.uint64(have - size))
    row[INPUT] = have - size


@compiled
def send(s: Any, fd: Any, from_: Any, size: Any) -> Any:
    """Send after the output that already waits; what the socket does not accept waits in the output buffer.

    Return the bytes sent; BROKEN on an error, or if the output buffer has no room for the rest.
    """
    row = s.connections[fd]
    sent = np.int64(0)
    if row[OUT_END] == row[OUT_AT]:
        row[OUT_AT], row[OUT_END] = 0, 0
        sent = send_at_once(fd, from_, size)
        if sent == BROKEN:
            return sent
        sent = max(sent, np.int64(0))
    if sent < size:
        if row[OUT_END] - row[OUT_AT] + size - sent > s.output_bytes:
            return np.int64(BROKEN)
        _keep(s, fd, from_ + np.uint64(sent), size - sent)
    return sent


@compiled
def _keep(s: Any, fd: Any, from_: Any, size: Any) -> None:
    row = s.connections[fd]
    output = output_of(s, fd)
    if row[OUT_AT] > 0:
        copy_bytes(output, output + np.uint64(row[OUT_AT]), np.uint64(row[OUT_END] - row[OUT_AT]))
        row[OUT_END] -= row[OUT_AT]
        row[OUT_AT] = 0
    if _CHECKED and row[OUT_END] + size > s.output_bytes:
        raise IndexError("more output than its buffer holds")
    copy_bytes(output + np.uint64(row[OUT_END]), from_, np.uint64(size))
    row[OUT_END] += size
    if row[OUT_END] > LARGE:
        row[LARGE_OUTPUT] = 1


@compiled
def send_waiting(s: Any, fd: Any) -> Any:
    """Send waiting output; once all is sent, OUT_END is 0. Return the bytes sent; NOTHING, BROKEN as `send_at_once`."""
    row = s.connections[fd]
    from_ = output_of(s, fd) + np.uint64(row[OUT_AT])
    sent = send_at_once(fd, from_, row[OUT_END] - row[OUT_AT])
    if sent < 0:
        return sent
    row[OUT_AT] += sent
    if row[OUT_AT] == row[OUT_END]:
        row[OUT_AT], row[OUT_END] = 0, 0
    return sent
