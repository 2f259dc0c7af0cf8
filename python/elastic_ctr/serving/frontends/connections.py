"""The connections of the native frontend: `machine_code.sockets`, with the pending replies of each and their times.

Clients pipeline requests while the first ones are computed, so a connection is read as long as the replies that are due
fit into its output buffer. `http_batches` parses the bytes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import load_u32
from elastic_ctr.machine_code.sockets import BROKEN, CLOSED, IN, INPUT, OUT_AT, OUT_END, STATE

# Columns after those of `sockets`. OWED: reply bytes of requests under way. SINCE: milliseconds, the start of its present deadline.
# PENDING_INPUT: the input may contain whole requests, which epoll does not announce again. HALF_CLOSED: the peer sends no more.
# HANDING_OVER: the connection moves to the fallback frontend once no reply is due.
(SERIAL, OWED, IN_FLIGHT, SINCE, MASK, PENDING_INPUT, ACCOUNTED, HALF_CLOSED, HANDING_OVER) = range(
    sockets.WIDTH, sockets.WIDTH + 9
)
# Bytes of the request that has begun, the templates of the connection's last head and body, and how many new templates it has had.
WHOLE, HEAD, BODY_FORM, NEW_TEMPLATES, WIDTH = range(sockets.WIDTH + 9, sockets.WIDTH + 14)

# The frontend's row, i64: the serial number of the last connection, open connections, bytes of large inputs, rows of `aside`,
# connections with pending input, and ACCEPT_PAUSED: the process has no descriptor left for a new connection.
NEXT_SERIAL, OPENED, PENDING_BYTES, ASIDE, PENDING_INPUTS, ACCEPT_PAUSED, SHARED_WIDTH = range(7)

# A connection set aside for Python, and the reason: a constant of `http_batches`, or NO_ROW.
ASIDE_FD, ASIDE_SERIAL, ASIDE_WHY = range(3)
NO_ROW = -1

_CHECKED = bounds_checked()


class Buffers(NamedTuple):
    """The arrays of the frontend."""

    sockets: sockets.Sockets
    shared: NDArray[np.int64]  # [SHARED_WIDTH]
    ready: NDArray[np.int64]  # [descriptors and EVENTS, 2]: a descriptor, and 1 if it is readable
    aside: NDArray[np.int64]  # [some, 3]
    replies: NDArray[np.uint8]  # output_bytes
    least_reply: int  # bytes reserved for any reply, because it may become a refusal
    max_in_flight: int
    max_pending: int


@compiled
def _forget(b: Any, row: Any) -> None:
    """Subtract an open connection from the frontend's counts."""
    b.shared[PENDING_BYTES] -= row[ACCOUNTED]
    b.shared[PENDING_INPUTS] -= row[PENDING_INPUT]
    b.shared[OPENED] -= 1


@compiled
def hang_up(b: Any, fd: Any) -> None:
    row = b.sockets.connections[fd]
    if row[STATE] != CLOSED:
        _forget(b, row)
        sockets.close(b.sockets, fd)


@compiled
def detach(b: Any, fd: Any) -> None:
    """Forget a connection whose descriptor stays open."""
    row = b.sockets.connections[fd]
    if row[STATE] != CLOSED:
        _forget(b, row)
        sockets.detach(b.sockets, fd)


@compiled
def has_output_budget(b: Any, row: Any, reply: Any) -> Any:
    """True if another reply of `reply` bytes fits into the connection's output buffer and number of requests under way."""
    return row[OUT_END] - row[OUT_AT] + row[OWED] + reply <= b.sockets.output_bytes and row[IN_FLIGHT] < b.max_in_flight


@compiled
def update_interest(b: Any, fd: Any, now: Any) -> None:
    """Close the connection if no input or output is left, else watch for the events that can come next."""
    row = b.sockets.connections[fd]
    if row[STATE] == CLOSED:
        return
    waiting = row[OUT_END] > row[OUT_AT]
    over = row[HALF_CLOSED] != 0 and row[PENDING_INPUT] == 0 and row[INPUT] == 0 and row[HANDING_OVER] == 0
    if over and not waiting and row[IN_FLIGHT] == 0:
        hang_up(b, fd)
        return
    mask = 0
    if waiting:
        mask = sockets.OUT
    elif row[HALF_CLOSED] == 0 and row[HANDING_OVER] == 0 and has_output_budget(b, row, b.least_reply):
        mask = IN
    if mask != row[MASK]:
        if waiting:
            row[SINCE] = now
        sockets.watch(b.sockets, fd, sockets.MODIFY, mask)
        row[MASK] = mask


@compiled
def set_pending_input(b: Any, row: Any, value: Any) -> None:
    """Note with 1 that the connection's input may contain whole requests, which epoll does not announce again; else 0."""
    b.shared[PENDING_INPUTS] += value - row[PENDING_INPUT]
    row[PENDING_INPUT] = value


@compiled
def set_aside(b: Any, fd: Any, serial: Any, why: Any) -> Any:
    """Leave the connection to Python. Return False if the list for that is full."""
    number = b.shared[ASIDE]
    if number == b.aside.shape[0]:
        return False
    b.aside[number, ASIDE_FD], b.aside[number, ASIDE_SERIAL], b.aside[number, ASIDE_WHY] = fd, serial, why
    b.shared[ASIDE] = number + 1
    return True


@compiled
def accept(b: Any, now: Any) -> None:
    while True:
        fd = sockets.accept(b.sockets)
        if fd == sockets.EXHAUSTED:
            # epoll would announce the new connection repeatedly; `resume_accept` watches again once there may be room.
            sockets.watch(b.sockets, b.sockets.listener, sockets.REMOVE, 0)
            b.shared[ACCEPT_PAUSED] = 1
        if fd < 0:
            return
        if fd >= b.sockets.connections.shape[0]:
            if not set_aside(b, fd, 0, NO_ROW):
                sockets.reject(fd)
            continue
        row = b.sockets.connections[fd]
        b.shared[NEXT_SERIAL] += 1
        b.shared[OPENED] += 1
        row[SERIAL], row[SINCE], row[MASK] = b.shared[NEXT_SERIAL], now, IN


@compiled
def resume_accept(b: Any) -> None:
    """Accept again after ACCEPT_PAUSED."""
    sockets.watch(b.sockets, b.sockets.listener, sockets.ADD, IN)
    b.shared[ACCEPT_PAUSED] = 0


@compiled
def account_input(b: Any, fd: Any) -> None:
    """Count the buffered bytes of a large unfinished request, and release the buffer's pages once it is gone."""
    row = b.sockets.connections[fd]
    charged = row[INPUT] if row[INPUT] > sockets.LARGE else 0
    if charged == 0 and row[sockets.LARGE_INPUT] != 0:
        sockets.release_memory(b.sockets, fd)
    b.shared[PENDING_BYTES] += charged - row[ACCOUNTED]
    row[ACCOUNTED] = charged


@compiled
def receive(b: Any, fd: Any, wanted: Any, now: Any) -> Any:
    """Read once, up to `wanted` bytes in the input buffer. Return False if nothing came or the connection ended."""
    row = b.sockets.connections[fd]
    have = row[INPUT]
    wanted = min(wanted, b.sockets.input_bytes)
    if have >= wanted:
        return True
    got = sockets.receive(b.sockets, fd, wanted)
    if got == BROKEN:
        hang_up(b, fd)
    elif got == sockets.ENDED:
        row[HALF_CLOSED] = 1
        update_interest(b, fd, now)
    elif got > 0 and have == 0:
        row[SINCE] = now
    return got > 0


@compiled
def send_waiting(b: Any, fd: Any, now: Any) -> None:
    """Send more of the output that waits."""
    row = b.sockets.connections[fd]
    sent = sockets.send_waiting(b.sockets, fd)
    if sent == BROKEN:
        hang_up(b, fd)
    elif sent > 0:
        if row[OUT_END] == 0:
            row[SINCE] = now
            if row[INPUT] > 0:
                set_pending_input(b, row, 1)
        update_interest(b, fd, now)


@compiled
def send(b: Any, fd: Any, from_: Any, size: Any, owed: Any, flights: Any, now: Any) -> None:
    """Send a reply for which `owed` bytes were reserved, after the output that already waits."""
    row = b.sockets.connections[fd]
    row[OWED] -= owed
    row[IN_FLIGHT] -= flights
    if sockets.send(b.sockets, fd, from_, size) == BROKEN:
        hang_up(b, fd)
        return
    if row[OUT_END] == 0 and row[INPUT] == 0:
        row[SINCE] = now
    update_interest(b, fd, now)


@compiled
def put(b: Any, fd: Any, serial: Any, data: Any, owed: Any, now: Any) -> None:
    """Send one reply u8[n] that Python has made, to a request that was set aside or to one of the batch."""
    if b.sockets.connections[fd, SERIAL] == serial:
        send(b, fd, np.uint64(data.ctypes.data), data.size, owed, 1, now)


@compiled
def ready(b: Any, now: Any) -> Any:
    """Fill b.ready with connections that may have requests. Return their number, and true if there may be more.

    This also sends output that waits, and accepts connections.
    """
    found = np.int64(0)
    if b.shared[PENDING_INPUTS] > 0:
        for descriptor in range(b.sockets.connections.shape[0]):
            if b.sockets.connections[descriptor, PENDING_INPUT] != 0:
                b.ready[found, 0], b.ready[found, 1] = descriptor, 0
                found += 1
    events = np.uint64(b.sockets.events.ctypes.data)
    count = sockets.wait(b.sockets, 0)
    if _CHECKED and found + count > b.ready.shape[0]:
        raise IndexError("more is ready than there is room for")
    for number in range(count):
        at = events + np.uint64(number * sockets.EVENT_BYTES)
        mask = np.int64(load_u32(at))
        fd = np.int64(load_u32(at + np.uint64(sockets.EVENT_DATA)))
        if fd == b.sockets.listener:
            accept(b, now)
            continue
        row = b.sockets.connections[fd]
        if row[STATE] == CLOSED:
            continue
        if mask & sockets.FAILED:
            hang_up(b, fd)
        elif row[OUT_END] > row[OUT_AT]:
            send_waiting(b, fd, now)
            # epoll does not announce input again that was read before the output stopped.
            if row[STATE] != CLOSED and row[OUT_END] == row[OUT_AT] and row[INPUT] > 0:
                b.ready[found, 0], b.ready[found, 1] = fd, 0
                found += 1
        else:
            b.ready[found, 0], b.ready[found, 1] = fd, 1
            found += 1
    return found, count == sockets.EVENTS
