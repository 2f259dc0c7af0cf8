"""The batches of the native HTTP frontend: one call recognizes and reads everyday requests, another one answers them.

HTTP is not parsed here. A head must match one that `runtime.http_reader` has read before (`templates`), and `elasticctr_json.scan` or
`json_scan` must be able to read the body; otherwise the connection moves to the fallback frontend with all unread input. Input is used
only after its length was checked.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.json_scan import SHORTEST_ROW, CellRoom, JsonColumns, new_cells, scan_instances
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u16, load_u32, store_f32
from elastic_ctr.machine_code.sockets import CLOSED, INPUT, LARGE, STATE, consume, reserve
from elastic_ctr.serving.frontends import connections, templates
from elastic_ctr.serving.protocols.elasticctr_json import SHORTEST_FEASIGN, SHORTEST_INSTANCE, scan

# Reasons to set a connection aside: its head is unknown; the JSON in front of its tensors is unknown; it moves to the asyncio
# frontend; no version is live, to which the kind of the request is added.
UNKNOWN, UNKNOWN_TENSORS, HANDS_OVER, NO_VERSION = range(4)
# A batch's totals, i64: rows, feasigns, requests, bytes of bodies and of the texts written after them.
ROWS, FEASIGNS, REQUESTS, BODIES, TAKEN_WIDTH = range(5)
# A request of the batch, i64: its connection, its rows, its body, the bytes of JSON in front of binary tensors, 0 if it has none, and
# the kind of its head.
REQUEST_FD, REQUEST_SERIAL, REQUEST_ROWS, BODY_AT, BODY_BYTES, JSON_BYTES, REQUEST_KIND, REQUEST_WIDTH = range(8)
# Most bytes of a reply without its rows, of a row, and of a refusal in place of the reply.
REPLY_BYTES, ROW_BYTES = 200, 70
LEAST_REPLY = 4096

_PASSES = 8
_NONE = -1
_ZERO, _CLOSE, _COMMA = (np.uint8(ord(sign)) for sign in "0],")


_text = partial(np.frombuffer, dtype=np.uint8)
_REPLY_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
_CONTENT_LENGTH = _text(b"content-length: ")
_REPLY_HEAD_END = _text(b"\r\n\r\n")
_TENSORS_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ")
_LINE_END = _text(b"\r\n")
_TENSORS_MIDDLE, _TENSORS_END = _text(b'],"parameters":{"binary_data_size":'), _text(b"}}]}")
_BEGIN, _END = _text(b'{"predictions":['), _text(b'],"err_code":0}')
_PROB0, _PROB1, _ROW_END = _text(b'{"prob0":'), _text(b',"prob1":'), _text(b"}")
# Bytes that a row takes in the reply beyond its bytes in the list of numbers.
_ROW_MORE = _PROB0.size + _PROB1.size + _ROW_END.size - len("[,]")


class Batch(NamedTuple):
    """Requests that are submitted to the batcher as one request."""

    taken: NDArray[np.int64]  # [TAKEN_WIDTH]
    feasigns: NDArray[np.uint64]
    lengths: NDArray[np.int64]  # rows x slots
    requests: NDArray[np.int64]  # [most, REQUEST_WIDTH]
    bodies: NDArray[np.uint8]  # HTTP bodies; after a body of rows of columns also the texts made of its lists
    cells: CellRoom  # the cells of rows of columns, whose texts are in `bodies`


def new_batch(requests: int, feasigns: int, lengths: int, bodies: int) -> Batch:
    """Return a batch with room for this many, at least one of each; pages take memory once they are written."""
    return Batch(
        np.zeros(TAKEN_WIDTH, np.int64),
        reserve(8 * max(feasigns, 1)).view(np.uint64),
        reserve(8 * max(lengths, 1)).view(np.int64),
        np.zeros((requests, REQUEST_WIDTH), np.int64),
        reserve(max(bodies, 1)),
        new_cells(0, InputColumns((), ())),
    )


def reserved_cells(rows: int, inputs: InputColumns) -> CellRoom:
    """Return room for this many rows; pages take memory once they are written."""
    texts, numbers = len(inputs.texts), len(inputs.numbers)
    return CellRoom(
        reserve(8 * max(rows * texts, 1)).view(np.int64)[: rows * texts].reshape(rows, texts),
        reserve(8 * max(rows * texts, 1)).view(np.int64)[: rows * texts].reshape(rows, texts),
        reserve(8 * max(rows * numbers, 1)).view(np.float64)[: rows * numbers].reshape(rows, numbers),
        np.zeros(1, np.int64),
    )


class Rules(NamedTuple):
    """The schema that requests are read for, known heads, and limits of requests."""

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]  # [slots]; empty: no version is live
    heads: templates.TemplateTable
    tensors: templates.TemplateTable  # the JSON in front of binary tensors, of this slot list
    max_body: int
    max_rows: int
    max_scanned: int  # bytes of bodies in one batch
    of_columns: bool  # the model takes rows of these columns
    columns: JsonColumns


class Replies(NamedTuple):
    """The parts of the replies to a batch."""

    date: NDArray[np.uint8]  # the line of that header
    # The numbers of all rows with answers in the source's JSON, as a list of pairs, `[[0.75,0.25],[0.5,0.5]]`.
    pairs: NDArray[np.uint8]
    tensors: NDArray[np.uint8]  # the JSON of binary tensors up to the number of rows
    # The numbers of all rows of columns as a list, `[0.25,0.5]`, and the JSON after the numbers of a request.
    flat: NDArray[np.uint8]
    version: NDArray[np.uint8]


@compiled
def owed(rows: Any) -> Any:
    """Return the most bytes of the reply to this many rows, or of the refusal in its place."""
    return max(REPLY_BYTES + ROW_BYTES * rows, LEAST_REPLY)


@compiled
def _tensors(data: Any, at: Any, size: Any, rules: Any, row: Any, feasigns: Any, lengths: Any) -> Any:
    """Read the `size` bytes of two tensors whose form was found into the arrays. Return (rows, feasigns); (-1, 0) if invalid."""
    nothing = np.int64(_NONE), np.int64(0)
    numbers = rules.tensors.numbers
    rows, n = numbers[templates.ROWS], numbers[templates.FEASIGN_COUNT]
    kind = rules.tensors.kinds[row[connections.BODY_FORM]]
    width = abs(kind)
    cells = rows * rules.ends.size
    if (
        rows > rules.max_rows or n > feasigns.size or cells > lengths.size
        or numbers[templates.FEASIGN_BYTES] != 8 * n or numbers[templates.LENGTH_BYTES] != width * cells
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
def _take(b: Any, batch: Any, rules: Any, fd: Any, now: Any) -> Any:
    """Take every whole request that the connection has sent. Return True if the batch is full before."""
    row = b.sockets.connections[fd]
    data = b.sockets.inputs
    base = fd * b.sockets.input_bytes
    slots = rules.ends.size
    have = row[INPUT]
    at = np.int64(0)
    full = False
    stopped = False
    row[connections.WHOLE] = 0
    while row[connections.HANDING_OVER] == 0 and at < have:
        if not connections.has_output_budget(b, row, LEAST_REPLY):
            stopped = True
            break
        if (
            b.shared[connections.ASIDE] == b.aside.shape[0] or batch.taken[REQUESTS] == batch.requests.shape[0]
            or batch.taken[BODIES] > rules.max_scanned
        ):  # fmt: skip
            full = True
            break
        head = templates.find_form(data, base + at, have - at, False, rules.heads, row, connections.HEAD)
        if head < 0:
            connections.set_aside(b, fd, row[connections.SERIAL], UNKNOWN)
            stopped = True
            break
        length = rules.heads.numbers[templates.LENGTH]
        kind = rules.heads.kinds[row[connections.HEAD]]
        json = rules.heads.numbers[templates.JSON_LENGTH] if kind == templates.TENSORS else np.int64(0)
        if length > rules.max_body or head + length > b.sockets.input_bytes:
            row[connections.HANDING_OVER] = 1
            break
        if have - at < head + length:
            row[connections.WHOLE] = head + length
            break
        if slots == 0:
            connections.set_aside(b, fd, row[connections.SERIAL], NO_VERSION + kind)
            row[connections.OWED] += LEAST_REPLY
            row[connections.IN_FLIGHT] += 1
            row[connections.SINCE] = now
            at += head + length
            continue
        if rules.of_columns != (kind == templates.COLUMNS):
            row[connections.HANDING_OVER] = 1
            break
        # The texts made of lists take at most as many bytes as the body.
        room = 2 * length if rules.of_columns else length
        if batch.taken[REQUESTS] > 0 and batch.taken[BODIES] + room > batch.bodies.size:
            full = True
            break
        if batch.taken[BODIES] + room > batch.bodies.size:
            row[connections.HANDING_OVER] = 1
            break
        begin = base + at + head
        taken_before = batch.taken[ROWS]
        place = batch.taken[BODIES]
        to = np.uint64(batch.bodies.ctypes.data) + np.uint64(place)
        copy_bytes(to, np.uint64(data.ctypes.data) + np.uint64(begin), np.uint64(length))
        feasigns, lengths = batch.feasigns[batch.taken[FEASIGNS] :], batch.lengths[taken_before * slots :]
        n = np.int64(0)
        most_rows = rules.max_rows
        if rules.of_columns:
            most_rows = min(most_rows, batch.cells.begins.shape[0] - taken_before)
            batch.cells.written[0] = place + length
            rows = scan_instances(
                batch.bodies, place, place + length, rules.columns, batch.cells, taken_before, most_rows
            )
        elif json == 0:
            rows, n = scan(
                batch.bodies[place : place + length], rules.names, rules.ends, rules.max_rows, feasigns, lengths
            )
        elif (
            json > length or templates.find_form(data, begin, json, True, rules.tensors, row, connections.BODY_FORM) < 0
        ):
            connections.set_aside(b, fd, row[connections.SERIAL], UNKNOWN_TENSORS)
            stopped = True
            break
        else:
            rows, n = _tensors(data, begin + json, length - json, rules, row, feasigns, lengths)
        if rows < 0 and batch.taken[REQUESTS] > 0:
            # If the room exceeds the most that this body can contain, lack of room is not why it was not read.
            if rules.of_columns:
                lacking = min(length // SHORTEST_ROW + 1, rules.max_rows) > most_rows
            else:
                most = min(length // (SHORTEST_INSTANCE if json == 0 else 2 * slots) + 1, rules.max_rows)
                lacking = length // SHORTEST_FEASIGN > feasigns.size or most * slots > lengths.size
            if lacking:
                full = True
                break
        if rows < 0:
            row[connections.HANDING_OVER] = 1
            break
        reply = owed(rows)
        if not connections.has_output_budget(b, row, reply):
            # The reply fits once the others are sent, because `owed(max_rows)` fits into an empty output buffer.
            stopped = True
            break
        number = batch.taken[REQUESTS]
        batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL] = fd, row[connections.SERIAL]
        batch.requests[number, REQUEST_ROWS] = rows
        batch.requests[number, BODY_AT], batch.requests[number, BODY_BYTES] = place, length
        batch.requests[number, JSON_BYTES] = json
        batch.requests[number, REQUEST_KIND] = kind
        batch.taken[REQUESTS] = number + 1
        batch.taken[ROWS] += rows
        batch.taken[FEASIGNS] += n
        batch.taken[BODIES] = batch.cells.written[0] if rules.of_columns else place + length
        row[connections.OWED] += reply
        row[connections.IN_FLIGHT] += 1
        row[connections.SINCE] = now
        at += head + length
    consume(b.sockets, fd, at)
    connections.account_input(b, fd)
    more = full or stopped
    if b.shared[connections.PENDING_BYTES] > b.max_pending and row[connections.ACCOUNTED] > 0 and not more:
        # The fallback frontend enforces the limit of all bodies together.
        row[connections.HANDING_OVER] = 1
    connections.set_pending_input(b, row, 1 if more else 0)
    _hand_over(b, fd)
    connections.update_interest(b, fd, now)
    return full


@compiled
def _hand_over(b: Any, fd: Any) -> None:
    """Set the connection aside if it moves to the fallback frontend, as one that is half closed within a request does."""
    row = b.sockets.connections[fd]
    if row[connections.HALF_CLOSED] != 0 and row[connections.PENDING_INPUT] == 0 and row[INPUT] > 0:
        row[connections.HANDING_OVER] = 1
    if row[connections.HANDING_OVER] != 0 and not connections.set_aside(b, fd, row[connections.SERIAL], HANDS_OVER):
        connections.hang_up(b, fd)


@compiled
def gather(b: Any, batch: Any, rules: Any, now: Any) -> None:
    """Fill an empty batch with the requests of all ready connections, without waiting. `now` is in milliseconds."""
    batch.taken[:] = 0
    b.shared[connections.ASIDE] = 0
    full = False
    for _ in range(_PASSES):
        found, more = connections.ready(b, now)
        for number in range(found):
            fd = b.ready[number, 0]
            row = b.sockets.connections[fd]
            if full or row[STATE] == CLOSED or row[connections.HANDING_OVER] != 0:
                continue
            if b.ready[number, 1] == 0:
                full = _take(b, batch, rules, fd, now)
                continue
            # The rest of a large body has often arrived already.
            again = True
            while again and connections.receive(b, fd, max(LARGE, row[connections.WHOLE]), now):
                full = _take(b, batch, rules, fd, now)
                again = row[STATE] != CLOSED and row[connections.WHOLE] > LARGE and row[INPUT] < row[connections.WHOLE]
            if row[STATE] != CLOSED and row[connections.HANDING_OVER] == 0:
                _hand_over(b, fd)
        if full or not more:
            break


@compiled
def _copy(to: Any, at: Any, text: Any, begin: Any, end: Any) -> Any:
    for i in range(begin, end):
        to[at] = text[i]
        at += 1
    return at


@compiled
def _put(to: Any, at: Any, piece: Any) -> Any:
    return _copy(to, at, piece, 0, piece.size)


@compiled
def _digits(number: Any) -> Any:
    """Return the number of decimal digits of a whole number."""
    found = np.int64(1)
    while number >= 10:
        number //= 10
        found += 1
    return found


@compiled
def _put_number(to: Any, at: Any, number: Any) -> Any:
    """Write a whole number above 0 in decimal. Return the offset after it."""
    end = at + _digits(number)
    for i in range(1, end - at + 1):
        to[end - i] = np.uint8(_ZERO + np.uint8(number % 10))
        number //= 10
    return end


@compiled
def _end_of(text: Any, at: Any, sign: Any) -> Any:
    while at < text.size and text[at] != sign:
        at += 1
    return at


@compiled
def _reply(to: Any, at: Any, date: Any, text: Any, value: Any, rows: Any) -> Any:
    """Write a reply. Return (its end, the offset of the next row's numbers in `text`); (-1, …) if there is no room."""
    end = value
    for _ in range(rows):
        end = _end_of(text, end, _CLOSE) + 1
    # The commas between rows are in both lengths.
    length = _BEGIN.size + (end - value) + rows * _ROW_MORE + _END.size
    if at < 0 or at + REPLY_BYTES + length > to.size:
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
def _flat_reply(to: Any, at: Any, replies: Any, value: Any, rows: Any) -> Any:
    """As `_reply`, for rows of columns, whose numbers are copied as one piece."""
    end = value
    for _ in range(rows):
        end += 1
        while end < replies.flat.size and replies.flat[end] != _COMMA and replies.flat[end] != _CLOSE:
            end += 1
    length = _BEGIN.size + (end - value) + replies.version.size
    if at < 0 or at + REPLY_BYTES + length > to.size:
        return np.int64(_NONE), end + 1
    at = _put_number(to, _put(to, _put(to, _put(to, at, _REPLY_HEAD), replies.date), _CONTENT_LENGTH), length)
    at = _copy(to, _put(to, _put(to, at, _REPLY_HEAD_END), _BEGIN), replies.flat, value, end)
    return _put(to, at, replies.version), end + 1


@compiled
def _tensor_reply(to: Any, at: Any, replies: Any, probabilities: Any, first: Any, rows: Any) -> Any:
    """Write a reply with `rows` probabilities from `first` on. Return its end; -1 if there is no room."""
    json = replies.tensors.size + _digits(rows) + _TENSORS_MIDDLE.size + _digits(4 * rows) + _TENSORS_END.size
    if at < 0 or at + 2 * REPLY_BYTES + json + 4 * rows > to.size:
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
    """Send the replies to requests `begin` to `end` in order; consecutive replies to one connection are sent together."""
    out = np.uint64(b.replies.ctypes.data)
    value = flat = np.int64(1)
    first = np.int64(0)
    number = np.int64(begin)
    while number < end:
        fd, serial = batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL]
        size = np.int64(0)
        due = np.int64(0)
        begun = number
        while (
            number < end and batch.requests[number, REQUEST_FD] == fd and batch.requests[number, REQUEST_SERIAL] == serial
        ):  # fmt: skip
            rows = batch.requests[number, REQUEST_ROWS]
            if batch.requests[number, REQUEST_KIND] == templates.COLUMNS:
                size, flat = _flat_reply(b.replies, size, replies, flat, rows)
            elif batch.requests[number, REQUEST_KIND] == templates.TENSORS:
                size = _tensor_reply(b.replies, size, replies, probabilities, first, rows)
            else:
                size, value = _reply(b.replies, size, replies.date, replies.pairs, value, rows)
            first += rows
            due += owed(rows)
            number += 1
        if b.sockets.connections[fd, connections.SERIAL] != serial:
            continue
        if size < 0:
            connections.hang_up(b, fd)
        else:
            connections.send(b, fd, out, size, due, number - begun, now)
