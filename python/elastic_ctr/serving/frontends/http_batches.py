"""The batches of the native HTTP frontend: everyday requests are recognized and read in one call, and answered in one.

HTTP is not parsed here: a head is one that `http_syntax` has read before (`templates`), a body is one that `json_scanner` reads, or the
connection goes to the asyncio frontend with all that it has sent. Nothing that a peer sends is used before its length was
checked.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u16, load_u32, load_u64, store_f32
from elastic_ctr.machine_code.sockets import CLOSED, INPUT, LARGE, STATE, taken
from elastic_ctr.serving.frontends import connections
from elastic_ctr.serving.frontends.connections import (
    ACCOUNTED,
    ASIDE,
    ASIDE_FD,
    ASIDE_SERIAL,
    ASIDE_WHY,
    BODIES,
    BODY_AT,
    BODY_BYTES,
    BODY_FORM,
    FEASIGNS,
    HALF_CLOSED,
    HANDING_OVER,
    HEAD,
    IN_FLIGHT,
    JSON_BYTES,
    LENGTHS,
    OWED,
    PENDING_BYTES,
    PENDING_INPUT,
    REQUEST_FD,
    REQUEST_ROWS,
    REQUEST_SERIAL,
    REQUESTS,
    SERIAL,
    SINCE,
    WHOLE,
    account_input,
    hang_up,
    has_output_budget,
    ready,
    send,
    set_pending_input,
    update_interest,
)
from elastic_ctr.serving.frontends.templates import (
    END,
    FEASIGN_BYTES,
    FEASIGN_COUNT,
    FIRST_NUMBER,
    JSON_LENGTH,
    LENGTH,
    LENGTH_BYTES,
    LONGEST_HEAD,
    ROWS,
    TENSORS,
    TemplateTable,
)
from elastic_ctr.serving.protocols.json_scanner import SHORTEST_FEASIGN, SHORTEST_INSTANCE, scan

# Why something is set aside: its head is not known, or the JSON in front of its tensors; it goes to the asyncio frontend; no
# version is live, to a request in JSON or one in tensors.
UNKNOWN, UNKNOWN_TENSORS, HANDS_OVER, NO_VERSION, NO_VERSION_TENSORS = range(5)
# Of a reply: all but its rows, one row, and what may be said instead.
REPLY_BYTES, ROW_BYTES = 200, 70
LEAST_REPLY = 4096

_CHECKED = bounds_checked()
_PASSES = 8
_NONE = -1
_MOST_DIGITS = 9
_TAB, _SPACE, _TILDE = np.uint8(ord("\t")), np.uint8(ord(" ")), np.uint8(ord("~"))
_ZERO, _NINE = np.uint8(ord("0")), np.uint8(ord("9"))
_OPEN, _CLOSE, _COMMA = np.uint8(ord("[")), np.uint8(ord("]")), np.uint8(ord(","))


def _text(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8).copy()


_REPLY_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
_CONTENT_LENGTH = _text(b"content-length: ")
_REPLY_HEAD_END = _text(b"\r\n\r\n")
_TENSORS_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ")
_LINE_END = _text(b"\r\n")
_TENSORS_MIDDLE, _TENSORS_END = _text(b'],"parameters":{"binary_data_size":'), _text(b"}}]}")
_BEGIN, _END = _text(b'{"predictions":['), _text(b'],"err_code":0}')
_PROB0, _PROB1, _ROW_END = _text(b'{"prob0":'), _text(b',"prob1":'), _text(b"}")
# Bytes of a row in the reply beyond those in the list of numbers.
_ROW_MORE = _PROB0.size + _PROB1.size + _ROW_END.size - len("[,]")


class Rules(NamedTuple):
    """The slot list that requests are read for, known heads, and what a request may have."""

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]  # [slots]; none: no version is live
    heads: TemplateTable
    tensors: TemplateTable  # the JSON in front of binary tensors, of this slot list
    numbers: NDArray[np.int64]  # [MOST_NUMBERS] of the text that was read last
    max_body: int
    max_rows: int
    max_scanned: int  # bytes of bodies in one batch


class Replies(NamedTuple):
    """The parts of the replies to a batch."""

    date: NDArray[np.uint8]  # the line of that header
    # The numbers of all rows that are answered in JSON as a list of pairs, `[[0.75,0.25],[0.5,0.5]]`.
    pairs: NDArray[np.uint8]
    tensors: NDArray[np.uint8]  # what stands before the rows in the JSON of binary tensors


@compiled
def owed(rows: Any) -> Any:
    """Bytes that the reply to so many rows may have, or the refusal in its place."""
    return max(REPLY_BYTES + ROW_BYTES * rows, LEAST_REPLY)


@compiled
def _same(data: Any, at: Any, pieces: Any, number: Any, from_: Any, size: Any) -> Any:
    """Whether `size` bytes of the input are those of a piece; there are as many of both, and eight more to read."""
    one = np.uint64(data.ctypes.data) + np.uint64(at)
    other = np.uint64(pieces.ctypes.data) + np.uint64(number * pieces.shape[1] + from_)
    words = size // 8
    for word in range(words):
        step = np.uint64(8 * word)
        if load_u64(one + step) != load_u64(other + step):
            return False
    i = 8 * words
    while i < size and data[at + i] == pieces[number, from_ + i]:
        i += 1
    return i >= size


@compiled
def _known(data: Any, at: Any, have: Any, exact: Any, table: Any, number: Any, numbers: Any) -> Any:
    """Bytes of the text that begins there when it has the numbered form, whose numbers are written then; else -1.

    `exact`: the text has all of the `have` bytes.
    """
    whole = have
    # No text is longer, so no value is looked through beyond that.
    have = min(have, LONGEST_HEAD)
    place, from_ = np.int64(0), np.int64(0)
    for piece in range(table.sizes.shape[1]):
        size = table.sizes[number, piece]
        if size == 0 or have - place < size or not _same(data, at + place, table.pieces, number, from_, size):
            return np.int64(_NONE)
        place += size
        from_ += size
        hole = table.holes[number, piece]
        if hole == END:
            return place if not exact or place == whole else np.int64(_NONE)
        begin = place
        if hole >= FIRST_NUMBER:
            value = np.int64(0)
            while place < have and place - begin < _MOST_DIGITS and _ZERO <= data[at + place] <= _NINE:
                value = value * 10 + np.int64(data[at + place] - _ZERO)
                place += 1
            if place == begin or data[at + begin] == _ZERO:
                return np.int64(_NONE)
            numbers[hole - FIRST_NUMBER] = value
        else:
            while place < have and (_SPACE <= data[at + place] <= _TILDE or data[at + place] == _TAB):
                place += 1
    return np.int64(_NONE)


@compiled
def _find(data: Any, at: Any, have: Any, exact: Any, table: Any, row: Any, last: Any, numbers: Any) -> Any:
    """As `_known`, of whichever form it is; the one that the connection had last, in that column, is looked at first."""
    size = _known(data, at, have, exact, table, row[last], numbers)
    number = np.int64(0)
    while size < 0 and number < table.sizes.shape[0]:
        size = _known(data, at, have, exact, table, number, numbers)
        if size >= 0:
            row[last] = number
        number += 1
    return size


@compiled
def _tensors(data: Any, at: Any, size: Any, rules: Any, row: Any, feasigns: Any, lengths: Any) -> Any:
    """(Rows, feasigns) of the `size` bytes of two tensors whose form was found, read into the arrays; (-1, 0) of any other."""
    nothing = np.int64(_NONE), np.int64(0)
    rows, n = rules.numbers[ROWS - FIRST_NUMBER], rules.numbers[FEASIGN_COUNT - FIRST_NUMBER]
    kind = rules.tensors.kinds[row[BODY_FORM]]
    width = abs(kind)
    cells = rows * rules.ends.size
    if (
        rows > rules.max_rows or n > feasigns.size or cells > lengths.size
        or rules.numbers[FEASIGN_BYTES - FIRST_NUMBER] != 8 * n
        or rules.numbers[LENGTH_BYTES - FIRST_NUMBER] != width * cells
        or size != 8 * n + width * cells
    ):  # fmt: skip
        return nothing
    counts = np.uint64(data.ctypes.data) + np.uint64(at + (8 * n if kind > 0 else 0))
    total = np.int64(0)
    for cell in range(cells):
        place = counts + np.uint64(width * cell)
        value = np.int64(load_u16(place)) if width == 2 else np.int64(load_u32(place))
        lengths[cell] = value
        total += value
    if total != n:
        return nothing
    values = np.uint64(data.ctypes.data) + np.uint64(at + (0 if kind > 0 else width * cells))
    copy_bytes(np.uint64(feasigns.ctypes.data), values, np.uint64(8 * n))
    return rows, n


@compiled
def _set_aside(b: Any, fd: Any, why: Any) -> None:
    number = b.shared[ASIDE]
    b.aside[number, ASIDE_FD], b.aside[number, ASIDE_SERIAL] = fd, b.sockets.connections[fd, SERIAL]
    b.aside[number, ASIDE_WHY] = why
    b.shared[ASIDE] = number + 1


@compiled
def _take(b: Any, batch: Any, rules: Any, fd: Any, now: Any) -> Any:
    """Take every whole request that the connection has sent; True when the batch is full before that."""
    row = b.sockets.connections[fd]
    data = b.sockets.inputs
    base = fd * b.sockets.input_bytes
    slots = rules.ends.size
    have = row[INPUT]
    at = np.int64(0)
    full = False
    stopped = False
    row[WHOLE] = 0
    while row[HANDING_OVER] == 0 and at < have:
        if not has_output_budget(b, row, LEAST_REPLY):
            stopped = True
            break
        if (
            b.shared[ASIDE] == b.aside.shape[0] or batch.taken[REQUESTS] == batch.requests.shape[0]
            or batch.taken[BODIES] > rules.max_scanned
        ):  # fmt: skip
            full = True
            break
        head = _find(data, base + at, have - at, False, rules.heads, row, HEAD, rules.numbers)
        if head < 0:
            _set_aside(b, fd, UNKNOWN)
            stopped = True
            break
        length = rules.numbers[LENGTH - FIRST_NUMBER]
        json = rules.numbers[JSON_LENGTH - FIRST_NUMBER] if rules.heads.kinds[row[HEAD]] == TENSORS else np.int64(0)
        if length > rules.max_body or head + length > b.sockets.input_bytes:
            row[HANDING_OVER] = 1
            break
        if have - at < head + length:
            row[WHOLE] = head + length
            break
        if slots == 0:
            _set_aside(b, fd, NO_VERSION if json == 0 else NO_VERSION_TENSORS)
            row[OWED] += LEAST_REPLY
            row[IN_FLIGHT] += 1
            row[SINCE] = now
            at += head + length
            continue
        if batch.taken[REQUESTS] > 0 and batch.taken[BODIES] + length > batch.bodies.size:
            full = True
            break
        body = data[base + at + head : base + at + head + length]
        feasigns, lengths = batch.feasigns[batch.taken[FEASIGNS] :], batch.lengths[batch.taken[LENGTHS] :]
        if json == 0:
            rows, n = scan(body, rules.names, rules.ends, rules.max_rows, feasigns, lengths)
        elif (
            json > length or _find(data, base + at + head, json, True, rules.tensors, row, BODY_FORM, rules.numbers) < 0
        ):
            _set_aside(b, fd, UNKNOWN_TENSORS)
            stopped = True
            break
        else:
            rows, n = _tensors(data, base + at + head + json, length - json, rules, row, feasigns, lengths)
        if rows < 0 and batch.taken[REQUESTS] > 0:
            # No more than this can be in it: where there is room for that, room was not what it lacked.
            most = min(length // (SHORTEST_INSTANCE if json == 0 else 2 * slots) + 1, rules.max_rows)
            if length // SHORTEST_FEASIGN > feasigns.size or most * slots > lengths.size:
                full = True
                break
        if rows < 0 or length > batch.bodies.size:
            row[HANDING_OVER] = 1
            break
        reply = owed(rows)
        if not has_output_budget(b, row, reply):
            # Alone it fits: so many rows are allowed.
            stopped = True
            break
        number = batch.taken[REQUESTS]
        batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL] = fd, row[SERIAL]
        batch.requests[number, REQUEST_ROWS] = rows
        batch.requests[number, BODY_AT], batch.requests[number, BODY_BYTES] = batch.taken[BODIES], length
        batch.requests[number, JSON_BYTES] = json
        copy_bytes(
            np.uint64(batch.bodies.ctypes.data) + np.uint64(batch.taken[BODIES]),
            np.uint64(body.ctypes.data),
            np.uint64(length),
        )
        batch.taken[REQUESTS] = number + 1
        batch.taken[LENGTHS] += rows * slots
        batch.taken[FEASIGNS] += n
        batch.taken[BODIES] += length
        row[OWED] += reply
        row[IN_FLIGHT] += 1
        row[SINCE] = now
        at += head + length
    taken(b.sockets, fd, at)
    account_input(b, fd)
    if b.shared[PENDING_BYTES] > b.max_pending and row[ACCOUNTED] > 0 and not full and not stopped:
        # The asyncio frontend counts what all bodies together may take.
        row[HANDING_OVER] = 1
    set_pending_input(b, row, 1 if full or stopped else 0)
    _hand_over(b, fd)
    update_interest(b, fd, now)
    return full


@compiled
def _hand_over(b: Any, fd: Any) -> None:
    """Set it aside if it goes, as one does that ends in the middle of a request."""
    row = b.sockets.connections[fd]
    if row[HALF_CLOSED] != 0 and row[PENDING_INPUT] == 0 and row[INPUT] > 0:
        row[HANDING_OVER] = 1
    if row[HANDING_OVER] == 0:
        return
    if b.shared[ASIDE] == b.aside.shape[0]:
        hang_up(b, fd)
    else:
        _set_aside(b, fd, HANDS_OVER)


@compiled
def gather(b: Any, batch: Any, rules: Any, now: Any) -> None:
    """Fill an empty batch with what every ready connection has sent; never waits. `now` is in milliseconds."""
    batch.taken[:] = 0
    b.shared[ASIDE] = 0
    full = False
    more = True
    passes = 0
    while more and not full and passes < _PASSES:
        passes += 1
        found, more = ready(b, now)
        for number in range(found):
            fd = b.ready[number, 0]
            row = b.sockets.connections[fd]
            if full or row[STATE] == CLOSED or row[HANDING_OVER] != 0:
                continue
            if b.ready[number, 1] == 0:
                full = _take(b, batch, rules, fd, now)
                continue
            # The rest of a body that has begun is often there already.
            again = True
            while again and connections.receive(b, fd, max(LARGE, row[WHOLE]), now):
                full = _take(b, batch, rules, fd, now)
                again = row[STATE] != CLOSED and row[WHOLE] > LARGE and row[INPUT] < row[WHOLE]
            if row[STATE] != CLOSED and row[HANDING_OVER] == 0:
                _hand_over(b, fd)


@compiled
def _put(to: Any, at: Any, piece: Any) -> Any:
    for i in range(piece.size):
        to[at + i] = piece[i]
    return at + piece.size


@compiled
def _put_number(to: Any, at: Any, number: Any) -> Any:
    """A whole number above 0, in decimals."""
    digits = 0
    left = number
    while left > 0:
        digits += 1
        left //= 10
    for i in range(digits):
        to[at + digits - 1 - i] = np.uint8(_ZERO + np.uint8(number % 10))
        number //= 10
    return at + digits


@compiled
def _end_of(text: Any, at: Any, sign: Any) -> Any:
    while at < text.size and text[at] != sign:
        at += 1
    return at


@compiled
def _copy(to: Any, at: Any, text: Any, begin: Any, end: Any) -> Any:
    for i in range(begin, end):
        to[at] = text[i]
        at += 1
    return at


@compiled
def _reply(to: Any, at: Any, date: Any, text: Any, value: Any, rows: Any) -> Any:
    """(Where the reply ends, where the next row's numbers begin); (-1, …) when there is no room for it."""
    end = value
    for _ in range(rows):
        end = _end_of(text, end, _CLOSE) + 1
    # With a comma between rows in both.
    length = _BEGIN.size + (end - value) + rows * _ROW_MORE + _END.size
    if at + REPLY_BYTES + length > to.size:
        return np.int64(_NONE), end + 1
    at = _put_number(to, _put(to, _put(to, _put(to, at, _REPLY_HEAD), date), _CONTENT_LENGTH), length)
    at = _put(to, _put(to, at, _REPLY_HEAD_END), _BEGIN)
    for number in range(rows):
        if number > 0:
            to[at] = _COMMA
            at += 1
        middle = _end_of(text, value, _COMMA)
        close = _end_of(text, middle, _CLOSE)
        at = _copy(to, _put(to, at, _PROB0), text, value + 1, middle)
        at = _copy(to, _put(to, at, _PROB1), text, middle + 1, close)
        at = _put(to, at, _ROW_END)
        value = close + 2
    return _put(to, at, _END), value


@compiled
def _digits(number: Any) -> Any:
    found = np.int64(1)
    while number >= 10:
        number //= 10
        found += 1
    return found


@compiled
def _tensor_reply(to: Any, at: Any, replies: Any, probabilities: Any, first: Any, rows: Any) -> Any:
    """Where the reply ends that gives `rows` probabilities from the first on; -1 when there is no room for it."""
    json = replies.tensors.size + _digits(rows) + _TENSORS_MIDDLE.size + _digits(4 * rows) + _TENSORS_END.size
    if at + 2 * REPLY_BYTES + json + 4 * rows > to.size:
        return np.int64(_NONE)
    at = _put(to, _put_number(to, _put(to, at, _TENSORS_HEAD), json), _LINE_END)
    at = _put_number(to, _put(to, _put(to, at, replies.date), _CONTENT_LENGTH), json + 4 * rows)
    at = _put_number(to, _put(to, _put(to, at, _REPLY_HEAD_END), replies.tensors), rows)
    at = _put(to, _put_number(to, _put(to, at, _TENSORS_MIDDLE), 4 * rows), _TENSORS_END)
    base = np.uint64(to.ctypes.data) + np.uint64(at)
    for number in range(rows):
        store_f32(base + np.uint64(4 * number), probabilities[first + number])
    return at + 4 * rows


@compiled
def answer(b: Any, batch: Any, begin: Any, end: Any, replies: Any, probabilities: Any, now: Any) -> None:
    """Send the replies to requests `begin` to `end` in their order; those of one connection go in one piece."""
    out = np.uint64(b.replies.ctypes.data)
    value = np.int64(1)
    first = np.int64(0)
    number = np.int64(begin)
    while number < end:
        fd, serial = batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL]
        size = np.int64(0)
        due = np.int64(0)
        flights = np.int64(0)
        while (
            number < end and batch.requests[number, REQUEST_FD] == fd and batch.requests[number, REQUEST_SERIAL] == serial
        ):  # fmt: skip
            rows = batch.requests[number, REQUEST_ROWS]
            if batch.requests[number, JSON_BYTES] > 0:
                if size >= 0:
                    size = _tensor_reply(b.replies, size, replies, probabilities, first, rows)
            elif size >= 0:
                size, value = _reply(b.replies, size, replies.date, replies.pairs, value, rows)
            else:
                value = _reply(b.replies, b.replies.size, replies.date, replies.pairs, value, rows)[1]
            first += rows
            due += owed(rows)
            flights += 1
            number += 1
        if b.sockets.connections[fd, SERIAL] != serial:
            continue
        if size < 0:
            hang_up(b, fd)
        else:
            send(b, fd, out, size, due, flights, now)
