"""The connections of the native frontend: `machine_code.sockets`, with the replies that each is owed, since when.

A prediction takes a while and many may be asked before the first is answered, so a connection goes on being read while
it is owed no more than its output buffer holds. `http_batches` reads the bytes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import load_u32
from elastic_ctr.machine_code.sockets import BROKEN, CLOSED, IN, INPUT, OUT_AT, OUT_END, STATE

# Columns behind those of every connection. OWED: reply bytes of requests under way. SINCE: milliseconds, when its time began.
# PENDING_INPUT: its input may hold whole requests that epoll does not announce again. HALF_CLOSED: the peer sends no more.
# HANDING_OVER: the asyncio frontend gets it when no reply is owed.
(SERIAL, OWED, IN_FLIGHT, SINCE, MASK, PENDING_INPUT, ACCOUNTED, HALF_CLOSED, HANDING_OVER) = range(
    sockets.WIDTH, sockets.WIDTH + 9
)
# Bytes of the request that has begun, the templates of the head and of the body it had last, and how many of them were new.
WHOLE, HEAD, BODY_FORM, NEW_TEMPLATES, WIDTH = range(sockets.WIDTH + 9, sockets.WIDTH + 14)

# The frontend's row, i64: the serial number of the last connection, how many are open, bytes of large inputs, rows of `aside`,
# connections with pending input, and ACCEPT_PAUSED: the process has no descriptor left for a connection that comes.
NEXT_SERIAL, OPENED, PENDING_BYTES, ASIDE, PENDING_INPUTS, ACCEPT_PAUSED, SHARED_WIDTH = range(7)

# A connection set aside for Python, and the reason: one of `http_batches`, or that there is no row for it.
ASIDE_FD, ASIDE_SERIAL, ASIDE_WHY = range(3)
NO_ROW = -1

_CHECKED = bounds_checked()


class Buffers(NamedTuple):
    """The arrays of the frontend."""

    sockets: sockets.Sockets
    shared: NDArray[np.int64]  # [SHARED_WIDTH]
    ready: NDArray[np.int64]  # [descriptors and EVENTS, 2]: a descriptor, and whether it can be read
    aside: NDArray[np.int64]  # [some, 3]
    replies: NDArray[np.uint8]  # output_bytes
    least_reply: int  # bytes that any reply is owed: it may become a refusal
    max_in_flight: int
    max_pending: int


@compiled
def _forget(b: Any, row: Any) -> None:
    """Take out of the frontend's counts what an open connection has in them."""
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
    """It stays open, and nothing of it is left here."""
    row = b.sockets.connections[fd]
    if row[STATE] != CLOSED:
        _forget(b, row)
        sockets.let_go(b.sockets, fd)


@compiled
def has_output_budget(b: Any, row: Any, reply: Any) -> Any:
    """Whether the connection may be owed another reply of so many bytes."""
    return row[OUT_END] - row[OUT_AT] + row[OWED] + reply <= b.sockets.output_bytes and row[IN_FLIGHT] < b.max_in_flight


@compiled
def update_interest(b: Any, fd: Any, now: Any) -> None:
    """After whatever happened: end it when all is said, else wait for what can come next."""
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
    """Note whether the connection's input may hold whole requests that epoll does not announce again."""
    b.shared[PENDING_INPUTS] += value - row[PENDING_INPUT]
    row[PENDING_INPUT] = value


@compiled
def set_aside(b: Any, fd: Any, serial: Any, why: Any) -> Any:
    """Leave it to Python; False when there is no room for that."""
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
            # epoll would announce it again and again; `resume_accept` follows when there may be room.
            sockets.watch(b.sockets, b.sockets.listener, sockets.REMOVE, 0)
            b.shared[ACCEPT_PAUSED] = 1
        if fd < 0:
            return
        if fd >= b.sockets.connections.shape[0]:
            if not set_aside(b, fd, 0, NO_ROW):
                sockets.turn_away(fd)
            continue
        row = b.sockets.connections[fd]
        b.shared[NEXT_SERIAL] += 1
        b.shared[OPENED] += 1
        row[SERIAL], row[SINCE], row[MASK] = b.shared[NEXT_SERIAL], now, IN


@compiled
def resume_accept(b: Any) -> None:
    """After ACCEPT_PAUSED."""
    sockets.watch(b.sockets, b.sockets.listener, sockets.ADD, IN)
    b.shared[ACCEPT_PAUSED] = 0


@compiled
def account_input(b: Any, fd: Any) -> None:
    """Count what is held for a frame that is not whole yet; give its pages back when it is gone."""
    row = b.sockets.connections[fd]
    charged = row[INPUT] if row[INPUT] > sockets.LARGE else 0
    if charged == 0 and row[sockets.LARGE_INPUT] != 0:
        sockets.give_back(b.sockets, fd)
    b.shared[PENDING_BYTES] += charged - row[ACCOUNTED]
    row[ACCOUNTED] = charged


@compiled
def receive(b: Any, fd: Any, wanted: Any, now: Any) -> Any:
    """Read once, until the input has `wanted` bytes. False when nothing came or the peer is gone."""
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
    """Go on with output that waited."""
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
    """Send bytes that were owed, behind what waits already."""
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
    """Send one reply u8[n] that Python has made to something set aside, or to a request of the batch."""
    if b.sockets.connections[fd, SERIAL] == serial:
        send(b, fd, np.uint64(data.ctypes.data), data.size, owed, 1, now)


@compiled
def ready(b: Any, now: Any) -> Any:
    """(How many connections may have requests, whether there may be more of them); they stand in b.ready then.

    On the way output that waited is sent, and peers are accepted.
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
            # epoll does not announce again input that was read before the output stopped.
            if row[STATE] != CLOSED and row[OUT_END] == row[OUT_AT] and row[INPUT] > 0:
                b.ready[found, 0], b.ready[found, 1] = fd, 0
                found += 1
        else:
            b.ready[found, 0], b.ready[found, 1] = fd, 1
            found += 1
    return found, count == sockets.EVENTS
