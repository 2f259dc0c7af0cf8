"""The connections of the binary door: `frames.sockets`, with what each is owed, since when, and of which connection.

A prediction takes a while and many may be asked before the first is answered, so a connection goes on being read while
it is owed no more than its output buffer holds. What comes and goes is `frame_batches`' business.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.frames import sockets
from elastic_ctr.frames.sockets import (
    BROKEN,
    CLOSED,
    CLOSING,
    ENDED,
    IN,
    INPUT,
    LARGE,
    LARGE_INPUT,
    MODIFY,
    OPEN,
    OUT,
    OUT_AT,
    OUT_END,
    SKIP,
    STATE,
    Sockets,
    input_of,
)
from elastic_ctr.frames.wire import HEAD_BYTES, LENGTH_BYTES
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import load_u32
from elastic_ctr.serving import wire

# Behind the columns of every connection. OWED: reply bytes of what is under way; SINCE: milliseconds, when its time
# began; SILENT: it says no more.
(SERIAL, OWED, FLIGHT, SINCE, MASK, UNFINISHED, CHARGED, SILENT) = range(sockets.WIDTH, sockets.WIDTH + 8)
WIDTH = sockets.WIDTH + 8

# The door's row, i64.
NEXT_SERIAL, OPENED, PENDING, COUNTS, FEASIGNS, REQUESTS, ASIDE, LEFT_OVER, DRAINING = range(9)
DOOR_WIDTH = 9

# A request of the batch, i64: whose, and how many rows. Its id stands in `ids`.
REQUEST_FD, REQUEST_SERIAL, REQUEST_ROWS = range(3)
# Something set aside for Python: whose, why, the head's 32 bytes in `heads`.
ASIDE_FD, ASIDE_SERIAL, ASIDE_WHY = range(3)
GREETED, JUDGED, PENDING_FULL, COUNTS_WRONG = range(4)

# A reply is owed no less than this: it may become a refusal.
LEAST_REPLY = HEAD_BYTES + wire.MAX_SENTENCE


class Buffers(NamedTuple):
    """What the door keeps."""

    sockets: Sockets
    door: NDArray[np.int64]  # [DOOR_WIDTH]
    replies: NDArray[np.uint8]  # output_bytes
    feasigns: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    requests: NDArray[np.int64]  # [batch, 3]
    ids: NDArray[np.uint64]  # [batch]
    aside: NDArray[np.int64]  # [some, 3]
    heads: NDArray[np.uint8]  # some x 32
    max_frame: int
    max_rows: int
    max_feasigns: int
    max_in_flight: int
    max_pending: int


@compiled
def hang_up(b: Any, fd: Any) -> None:
    row = b.sockets.connections[fd]
    if row[STATE] == CLOSED:
        return
    b.door[PENDING] -= row[CHARGED]
    b.door[LEFT_OVER] -= row[UNFINISHED]
    b.door[OPENED] -= 1
    sockets.close(b.sockets, fd)


@compiled
def may_owe(b: Any, row: Any, reply: Any) -> Any:
    """Whether the connection may be owed another reply of so many bytes."""
    return row[OUT_END] - row[OUT_AT] + row[OWED] + reply <= b.sockets.output_bytes and row[FLIGHT] < b.max_in_flight


@compiled
def settle(b: Any, fd: Any, now: Any) -> None:
    """After whatever happened: end it when all is said, else wait for what can come next."""
    row = b.sockets.connections[fd]
    waiting = row[OUT_END] > row[OUT_AT]
    over = row[CLOSING] != 0 or (row[SILENT] != 0 and row[UNFINISHED] == 0)
    if over and not waiting and row[FLIGHT] == 0:
        hang_up(b, fd)
        return
    mask = 0
    if waiting:
        mask = OUT
    elif row[CLOSING] == 0 and row[SILENT] == 0 and may_owe(b, row, LEAST_REPLY):
        mask = IN
    if mask != row[MASK]:
        if waiting:
            row[SINCE] = now
        sockets.watch(b.sockets, fd, MODIFY, mask)
        row[MASK] = mask


@compiled
def left_over(b: Any, row: Any, value: Any) -> None:
    """Whether the connection's input may hold whole requests that nobody will announce again."""
    b.door[LEFT_OVER] += value - row[UNFINISHED]
    row[UNFINISHED] = value


@compiled
def accept(b: Any, now: Any) -> None:
    while True:
        fd = sockets.accept(b.sockets)
        if fd < 0:
            return
        row = b.sockets.connections[fd]
        b.door[NEXT_SERIAL] += 1
        b.door[OPENED] += 1
        row[SERIAL], row[SINCE], row[MASK] = b.door[NEXT_SERIAL], now, IN


@compiled
def charge(b: Any, fd: Any) -> None:
    """Count what is held for a frame that is not whole yet; give its pages back when it is gone."""
    row = b.sockets.connections[fd]
    charged = row[INPUT] if row[INPUT] > LARGE else 0
    if charged == 0 and row[LARGE_INPUT] != 0:
        sockets.give_back(b.sockets, fd)
    b.door[PENDING] += charged - row[CHARGED]
    row[CHARGED] = charged


@compiled
def receive(b: Any, fd: Any, now: Any) -> Any:
    """Read once; no further than the frame that has begun, or 64 KiB. False when nothing came or the peer is gone."""
    row = b.sockets.connections[fd]
    have = row[INPUT]
    wanted = LARGE
    if row[STATE] == OPEN and row[SKIP] == 0 and have >= LENGTH_BYTES:
        wanted = min(max(wanted, np.int64(load_u32(input_of(b.sockets, fd))) + LENGTH_BYTES), max(b.max_frame, LARGE))
    if have >= wanted:
        return True
    got = sockets.receive(b.sockets, fd, wanted)
    if got == BROKEN:
        hang_up(b, fd)
    elif got == ENDED:
        row[SILENT] = 1
        settle(b, fd, now)
    elif got > 0 and have == 0 and row[SKIP] == 0:
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
                left_over(b, row, 1)
        settle(b, fd, now)


@compiled
def send(b: Any, fd: Any, from_: Any, size: Any, owed: Any, flights: Any, now: Any) -> None:
    """Send bytes that were owed, behind what waits already."""
    row = b.sockets.connections[fd]
    row[OWED] -= owed
    row[FLIGHT] -= flights
    if sockets.send(b.sockets, fd, from_, size) == BROKEN:
        hang_up(b, fd)
        return
    if row[OUT_END] == 0 and row[INPUT] == 0:
        row[SINCE] = now
    settle(b, fd, now)


@compiled
def put(b: Any, fd: Any, serial: Any, data: Any, owed: Any, now: Any) -> None:
    """Send one reply u8[n] that Python has made to something set aside, or to a request of the batch."""
    if b.sockets.connections[fd, SERIAL] == serial:
        send(b, fd, np.uint64(data.ctypes.data), data.size, owed, 1, now)
