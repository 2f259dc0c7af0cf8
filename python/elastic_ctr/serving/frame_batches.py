"""The batches of the binary door in machine code: what came is checked and gathered in one call, answers sent in one.

`gather` takes whole requests from every ready connection into one batch, `answer` sends the batch's replies. What is
not an everyday prediction (a hello, a question for the slot list, a refusal) is set aside for Python. Nothing that a
peer sends is used before its length was checked.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.frames.heads import greets, magic_number, put_head
from elastic_ctr.frames.wire import HEAD_BYTES, HELLO_BYTES, LENGTH_BYTES
from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u16, load_u32, load_u64, store_f32
from elastic_ctr.machine_code.sockets import (
    CLOSED,
    CLOSING,
    HELLO,
    INPUT,
    LARGE,
    OPEN,
    SKIP,
    STATE,
    input_of,
    skipped,
    taken,
)
from elastic_ctr.serving import door_sockets, wire
from elastic_ctr.serving.door_sockets import (
    ASIDE,
    ASIDE_FD,
    ASIDE_SERIAL,
    ASIDE_WHY,
    CHARGED,
    DRAINING,
    FEASIGNS,
    FLIGHT,
    LENGTHS,
    OWED,
    PENDING,
    REQUEST_FD,
    REQUEST_ID,
    REQUEST_ROWS,
    REQUEST_SERIAL,
    REQUESTS,
    SERIAL,
    SINCE,
    charge,
    hang_up,
    left_over,
    may_owe,
    ready,
    send,
    settle,
)

# Why something is set aside; the head's 32 bytes stand in `heads`.
GREETED, JUDGED, PENDING_FULL, COUNTS_WRONG = range(4)
LEAST_REPLY = HEAD_BYTES + wire.MAX_SENTENCE

_CHECKED = bounds_checked()
_HEAD = wire.REQUEST_HEAD
_MAGIC = magic_number(wire.MAGIC)
_PROTOCOL = np.uint16(wire.PROTOCOL)
_PREDICT, _WIDE = int(wire.Kind.PREDICT), wire.WIDE_COUNTS
_OK = int(wire.Status.OK)
_MAX_SLOTS = 65_535
_PASSES = 8


class Rules(NamedTuple):
    """What a frame may have, and where the heads of those set aside stand."""

    heads: NDArray[np.uint8]  # some x 32
    max_frame: int
    max_rows: int
    max_feasigns: int


@compiled
def _set_aside(b: Any, rules: Any, fd: Any, why: Any, from_: Any) -> None:
    number = b.door[ASIDE]
    b.aside[number, ASIDE_FD], b.aside[number, ASIDE_SERIAL] = fd, b.sockets.connections[fd, SERIAL]
    b.aside[number, ASIDE_WHY] = why
    if _CHECKED and (number + 1) * _HEAD > rules.heads.size:
        raise IndexError("more is set aside than there is room for")
    copy_bytes(np.uint64(rules.heads.ctypes.data) + np.uint64(number * _HEAD), from_, np.uint64(_HEAD))
    b.door[ASIDE] = number + 1
    b.sockets.connections[fd, OWED] += LEAST_REPLY
    b.sockets.connections[fd, FLIGHT] += 1


@compiled
def _counts(batch: Any, from_: Any, count: Any, wide: Any) -> Any:
    """Copy the counts of a request behind those of the batch; their sum."""
    first = batch.taken[LENGTHS]
    total = np.int64(0)
    for i in range(count):
        at = from_ + np.uint64((4 if wide else 2) * i)
        length = np.int64(load_u32(at)) if wide else np.int64(load_u16(at))
        batch.lengths[first + i] = length
        total += length
    return total


@compiled
def _take(b: Any, batch: Any, rules: Any, slots: Any, check: Any, fd: Any, now: Any) -> Any:
    """Take every whole request that the connection has sent; True when the batch is full before that."""
    row = b.sockets.connections[fd]
    base = input_of(b.sockets, fd)
    have = row[INPUT]
    at = np.int64(0)
    full = False
    stopped = False
    while row[CLOSING] == 0:
        at += skipped(row, have - at)
        if row[SKIP] > 0 or have - at < (HELLO_BYTES if row[STATE] == HELLO else _HEAD):
            break
        if not may_owe(b, row, LEAST_REPLY):
            stopped = True
            break
        if b.door[ASIDE] == b.aside.shape[0] or batch.taken[REQUESTS] == batch.requests.shape[0]:
            full = True
            break
        from_ = base + np.uint64(at)
        row[SINCE] = now
        if row[STATE] == HELLO:
            # Its first 16 bytes are all that Python needs; what follows them in the buffer is copied and not read.
            _set_aside(b, rules, fd, GREETED, from_)
            row[STATE] = OPEN
            if not greets(from_, _MAGIC, _PROTOCOL):
                row[CLOSING] = 1
            at += HELLO_BYTES
            continue
        whole = np.int64(load_u32(from_)) + LENGTH_BYTES
        kind, flags = np.int64(load_u16(from_ + np.uint64(4))), np.int64(load_u16(from_ + np.uint64(6)))
        rows, n = np.int64(load_u32(from_ + np.uint64(8))), np.int64(load_u32(from_ + np.uint64(12)))
        theirs, list_ = np.int64(load_u32(from_ + np.uint64(24))), np.int64(load_u32(from_ + np.uint64(28)))
        wide = (flags & _WIDE) != 0
        # No overflow: rows and n are below 2^32, slots below 2^16.
        if theirs > _MAX_SLOTS or whole != _HEAD + rows * theirs * (4 if wide else 2) + 8 * n:
            # Where this frame ends is not certain: nothing after it can be trusted.
            _set_aside(b, rules, fd, JUDGED, from_)
            row[CLOSING] = 1
            break
        if (
            kind != _PREDICT or rows < 1 or rows > rules.max_rows or n > rules.max_feasigns or whole > rules.max_frame
            or theirs != slots or list_ != check
        ):  # fmt: skip
            _set_aside(b, rules, fd, JUDGED, from_)
            row[SKIP] = whole - _HEAD
            at += _HEAD
            continue
        if have - at < whole:
            break
        reply = max(HEAD_BYTES + 4 * rows, LEAST_REPLY)
        if not may_owe(b, row, reply):
            stopped = True
            break
        if (
            (batch.taken[LENGTHS] + rows * slots > batch.lengths.size or batch.taken[FEASIGNS] + n > batch.feasigns.size)
            and batch.taken[REQUESTS] > 0
        ):  # fmt: skip
            full = True
            break
        if _CHECKED and (
            batch.taken[LENGTHS] + rows * slots > batch.lengths.size or batch.taken[FEASIGNS] + n > batch.feasigns.size
        ):
            raise IndexError("a request larger than a batch")
        counts_at = from_ + np.uint64(_HEAD)
        if _counts(batch, counts_at, rows * slots, wide) != n:
            _set_aside(b, rules, fd, COUNTS_WRONG, from_)
            at += whole
            continue
        keys_at = counts_at + np.uint64(rows * slots * (4 if wide else 2))
        copy_bytes(
            np.uint64(batch.feasigns.ctypes.data) + np.uint64(8 * batch.taken[FEASIGNS]), keys_at, np.uint64(8 * n)
        )
        number = batch.taken[REQUESTS]
        batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL] = fd, row[SERIAL]
        batch.requests[number, REQUEST_ROWS] = rows
        batch.requests[number, REQUEST_ID] = np.int64(load_u64(from_ + np.uint64(16)))
        batch.taken[REQUESTS] = number + 1
        batch.taken[LENGTHS] += rows * slots
        batch.taken[FEASIGNS] += n
        row[OWED] += reply
        row[FLIGHT] += 1
        at += whole
    taken(b.sockets, fd, at)
    charge(b, fd)
    left_over(b, row, 1 if full or stopped else 0)
    if b.door[PENDING] > b.max_pending and row[CHARGED] > 0 and not full and not stopped:
        if b.door[ASIDE] == b.aside.shape[0]:
            hang_up(b, fd)
            return full
        _set_aside(b, rules, fd, PENDING_FULL, base)
        row[CLOSING] = 1
        row[INPUT] = 0
        charge(b, fd)
    settle(b, fd, now)
    return full


@compiled
def _receive(b: Any, rules: Any, fd: Any, now: Any) -> Any:
    """Read once; no further than the frame that has begun, or 64 KiB."""
    row = b.sockets.connections[fd]
    wanted = LARGE
    if row[STATE] == OPEN and row[SKIP] == 0 and row[INPUT] >= LENGTH_BYTES:
        whole = np.int64(load_u32(input_of(b.sockets, fd))) + LENGTH_BYTES
        wanted = min(max(wanted, whole), max(rules.max_frame, LARGE))
    return door_sockets.receive(b, fd, wanted, now)


@compiled
def gather(b: Any, batch: Any, rules: Any, slots: Any, check: Any, now: Any) -> None:
    """Fill an empty batch with what every ready connection has sent; never waits.

    `slots` and `check` are those of the version that is answered with; -1 when there is none: then everything is set
    aside. `now` is in milliseconds.
    """
    batch.taken[:] = 0
    b.door[ASIDE] = 0
    full = False
    more = True
    passes = 0
    while more and not full and passes < _PASSES:
        passes += 1
        found, more = ready(b, now)
        for number in range(found):
            fd = b.ready[number, 0]
            if full or b.sockets.connections[fd, STATE] == CLOSED:
                continue
            if b.ready[number, 1] == 0 or _receive(b, rules, fd, now):
                full = _take(b, batch, rules, slots, check, fd, now)


@compiled
def answer(b: Any, batch: Any, begin: Any, end: Any, version: Any, probabilities: Any, now: Any) -> None:
    """Send the replies to requests `begin` to `end`, f32 [rows] in their order; those of one connection go in one piece."""
    replies = np.uint64(b.replies.ctypes.data)
    flags = b.door[DRAINING]
    value = np.int64(0)
    number = np.int64(begin)
    while number < end:
        fd, serial = batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL]
        size = np.int64(0)
        owed = np.int64(0)
        flights = np.int64(0)
        while (
            number < end and batch.requests[number, REQUEST_FD] == fd and batch.requests[number, REQUEST_SERIAL] == serial
        ):  # fmt: skip
            rows = batch.requests[number, REQUEST_ROWS]
            length = HEAD_BYTES + 4 * rows
            if _CHECKED and (size + length > b.replies.size or value + rows > probabilities.size):
                raise IndexError("a reply outside its buffer")
            to = replies + np.uint64(size)
            put_head(to, length, _OK, flags, rows, np.uint64(batch.requests[number, REQUEST_ID]), version)
            to += np.uint64(HEAD_BYTES)
            for i in range(rows):
                store_f32(to + np.uint64(4 * i), probabilities[value + i])
            value += rows
            size += length
            owed += max(length, LEAST_REPLY)
            flights += 1
            number += 1
        if b.sockets.connections[fd, SERIAL] == serial:
            send(b, fd, replies, size, owed, flights, now)
