"""The replies of the native HTTP frontend, written in machine code: one call answers all requests of a batch."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import store_f32
from elastic_ctr.serving.frontends import connections, templates
from elastic_ctr.serving.frontends.http_batches import (
    REPLY_BYTES,
    REQUEST_FD,
    REQUEST_KIND,
    REQUEST_ROWS,
    REQUEST_SERIAL,
    REQUEST_TOP,
    owed,
)

_NONE = -1
_ZERO, _CLOSE, _COMMA = (np.uint8(ord(sign)) for sign in "0],")
_text = partial(np.frombuffer, dtype=np.uint8)
_REPLY_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
_CONTENT_LENGTH = _text(b"content-length: ")
_REPLY_HEAD_END = _text(b"\r\n\r\n")
_TENSORS_HEAD = _text(b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ")
_LINE_END = _text(b"\r\n")
_TENSORS_MIDDLE, _TENSORS_END = _text(b'],"parameters":{"binary_data_size":'), _text(b"}}]}")
_BEGIN, _END, _PLACES = _text(b'{"predictions":['), _text(b'],"err_code":0}'), _text(b'],"places":[')
_PROB0, _PROB1, _ROW_END = _text(b'{"prob0":'), _text(b',"prob1":'), _text(b"}")
# Bytes that a row takes in the reply beyond its bytes in the list of numbers.
_ROW_MORE = _PROB0.size + _PROB1.size + _ROW_END.size - len("[,]")


class Replies(NamedTuple):
    """The parts of the replies to a batch."""

    date: NDArray[np.uint8]  # the line of that header
    # The numbers of all rows with answers in the source's JSON, as a list of pairs, `[[0.75,0.25],[0.5,0.5]]`.
    pairs: NDArray[np.uint8]
    tensors: NDArray[np.uint8]  # the JSON of binary tensors up to the number of rows
    # The numbers of all rows of columns as a list, `[0.25,0.5]`, and the JSON after the numbers of a request.
    flat: NDArray[np.uint8]
    version: NDArray[np.uint8]
    places: NDArray[
        np.int64
    ]  # [rows of the replies]: the place of each row in its request; empty if no request wants the best


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
def _places_bytes(places: Any, first: Any, count: Any) -> Any:
    """Return the bytes of `_put_places`."""
    if count == 0:
        return np.int64(0)
    found = _PLACES.size + count - 1
    for number in range(first, first + count):
        found += _digits(places[number])
    return found


@compiled
def _put_places(to: Any, at: Any, places: Any, first: Any, count: Any) -> Any:
    """Write `count` places from `first` on, as the JSON between predictions and what follows; nothing for 0. Return the end."""
    if count == 0:
        return at
    at = _put(to, at, _PLACES)
    for number in range(first, first + count):
        if number > first:
            to[at] = _COMMA
            at += 1
        at = _put_number(to, at, places[number])
    return at


@compiled
def _reply(to: Any, at: Any, replies: Any, value: Any, rows: Any, first: Any, best: Any) -> Any:
    """Write a reply, with the places of `best` rows from `first` on.

    Return (its end, the offset of the next row's numbers in the text); (-1, …) if there is no room.
    """
    date, text = replies.date, replies.pairs
    end = value
    for _ in range(rows):
        end = _end_of(text, end, _CLOSE) + 1
    # The commas between rows are in both lengths.
    length = _BEGIN.size + (end - value) + rows * _ROW_MORE + _places_bytes(replies.places, first, best) + _END.size
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
    return _put(to, _put_places(to, at, replies.places, first, best), _END), value


@compiled
def _flat_reply(to: Any, at: Any, replies: Any, value: Any, rows: Any, first: Any, best: Any) -> Any:
    """As `_reply`, for rows of columns, whose numbers are copied as one piece."""
    end = value
    for _ in range(rows):
        end += 1
        while end < replies.flat.size and replies.flat[end] != _COMMA and replies.flat[end] != _CLOSE:
            end += 1
    length = _BEGIN.size + (end - value) + _places_bytes(replies.places, first, best) + replies.version.size
    if at < 0 or at + REPLY_BYTES + length > to.size:
        return np.int64(_NONE), end + 1
    at = _put_number(to, _put(to, _put(to, _put(to, at, _REPLY_HEAD), replies.date), _CONTENT_LENGTH), length)
    at = _copy(to, _put(to, _put(to, at, _REPLY_HEAD_END), _BEGIN), replies.flat, value, end)
    return _put(to, _put_places(to, at, replies.places, first, best), replies.version), end + 1


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
            best = batch.requests[number, REQUEST_TOP]
            rows = best if best > 0 else batch.requests[number, REQUEST_ROWS]
            if batch.requests[number, REQUEST_KIND] == templates.COLUMNS:
                size, flat = _flat_reply(b.replies, size, replies, flat, rows, first, best)
            elif batch.requests[number, REQUEST_KIND] == templates.TENSORS:
                size = _tensor_reply(b.replies, size, replies, probabilities, first, rows)
            else:
                size, value = _reply(b.replies, size, replies, value, rows, first, best)
            first += rows
            due += owed(batch.requests[number, REQUEST_ROWS])
            number += 1
        if b.sockets.connections[fd, connections.SERIAL] != serial:
            continue
        if size < 0:
            connections.hang_up(b, fd)
        else:
            connections.send(b, fd, out, size, due, number - begun, now)
