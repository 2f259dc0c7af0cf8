"""Rows as JSON objects, in machine code: everyday rows, straight from their bytes to cells.

An object's columns come in any order, with blanks anywhere. A value is text without a backslash, a number, true, false, null, or a
list of these for an input with a separator. Any other row, an invalid one above all, is *not read* here; `json_rows` reads or refuses
it. `json_rows` returns the same cells for every row that is read here, so it is the oracle of the tests.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.cells import Bytes, Cells, Numbers, Places, SharedCells
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.json_tokens import (
    BEGIN,
    BIG,
    CLOSE,
    COLON,
    COMMA,
    DECIMAL,
    END,
    LF,
    NO,
    NOT_READ,
    NOTHING,
    OPEN,
    QUOTE,
    SPACE,
    TEXT,
    WHOLE,
    YES,
    end_of_text,
    next_element,
    read_number,
    read_scalar,
    read_sign,
    read_word,
    skip_blanks,
)
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import load_u64

SHORTEST_ROW = len("{},")
_KEPT = 256 << 10
_INSTANCES, _SHARED, _CANDIDATES, _TOP = (
    np.frombuffer(name, np.uint8) for name in (b'"instances"', b'"shared"', b'"candidates"', b'"top"')
)
# Objects of a body that are no candidates: the body itself and the shared part.
_NO_CANDIDATES = 2
_LEAST = -(2.0**63)
_8, _64 = np.uint64(8), np.uint64(64)


class JsonColumns(NamedTuple):
    """The inputs of a row, as arrays; and the order of columns in the last rows, so that each thread needs its own."""

    names: Bytes  # of the columns, each with the quote after it, and eight bytes more
    ends: Places  # [columns + 1], from 0
    plain: int  # the number of first columns whose names JSON writes without escapes
    uses: Places  # the cells that a column fills: first the indices of texts, then those of numbers
    starts: Places  # [columns + 1]: the start of each column's uses
    separators: Places  # [texts]: the byte, or -1
    counts: int  # the number of first numbers that may be true or false
    skips: bool  # an unknown column is skipped, not an error
    guesses: Places  # [columns + 1]: the column that came after each in the last rows; in the last entry the first one
    seen: Places  # [columns + 1]: the last row that had the column; in the last entry the present row's number


class CellRoom(NamedTuple):
    """Cells that rows are read into, and the offset in the data after the texts that lists have written there."""

    begins: Places  # [rows, texts]
    ends: Places
    numbers: Numbers  # [rows, numbers]
    written: Places  # [1]


class GroupRoom(NamedTuple):
    """Cells that requests with shared parts are read into: of candidates, and a row for each shared part; both have one `written`."""

    candidates: CellRoom
    cells: CellRoom
    given: NDArray[np.bool_]  # [groups, texts + numbers], as in `SharedCells`


class Candidates(NamedTuple):
    """The rows of a request with a shared part; `top` is 0 if all of them are wanted."""

    cells: Cells
    shared: SharedCells
    top: int


def columns_of(inputs: InputColumns, *, counts: tuple[str, ...] = (), skips: bool = False) -> JsonColumns:
    """Return the columns of these inputs; the numbers are `counts`, then those of `inputs`."""
    numbers = (*counts, *inputs.numbers)
    of_texts = [each.column for each in inputs.texts]
    given = dict.fromkeys([*inputs.columns, *counts])
    escaped = [name for name in given if json.dumps(name, ensure_ascii=False) != f'"{name}"']
    names = [*(name for name in given if name not in escaped), *escaped]
    uses = [[place for place, column in enumerate((*of_texts, *numbers)) if column == name] for name in names]
    encoded = [name.encode() + b'"' for name in names]
    return JsonColumns(
        np.frombuffer(bytearray(b"".join(encoded) + bytes(8)), np.uint8),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        len(names) - len(escaped),
        np.array([place for places in uses for place in places], np.int64),
        np.cumsum([0, *map(len, uses)], dtype=np.int64),
        np.array([ord(each.separator) if each.separator else -1 for each in inputs.texts], np.int64),
        len(counts),
        skips,
        np.roll(np.arange(len(names) + 1, dtype=np.int64), -1) if names else np.zeros(1, np.int64),
        np.zeros(len(names) + 1, np.int64),
    )


def new_cells(rows: int, inputs: InputColumns, counts: int = 0) -> CellRoom:
    texts = len(inputs.texts)
    return CellRoom(
        np.empty((rows, texts), np.int64),
        np.empty((rows, texts), np.int64),
        np.empty((rows, counts + len(inputs.numbers)), np.float64),
        np.zeros(1, np.int64),
    )


def new_group(inputs: InputColumns, candidates: CellRoom) -> GroupRoom:
    """Return room for one shared part beside that for candidates."""
    given = np.zeros((1, len(inputs.texts) + len(inputs.numbers)), np.bool_)
    return GroupRoom(candidates, new_cells(1, inputs)._replace(written=candidates.written), given)


class RowScanner:
    """Reads requests for one model in one thread; the arrays for small bodies are reused."""

    def __init__(self, inputs: InputColumns, max_rows: int, *, skips: bool) -> None:
        self._inputs = inputs
        self._max_rows = max_rows
        self._columns = columns_of(inputs, skips=skips)
        self._data: Bytes = np.empty(0, np.uint8)
        self._cells = new_cells(0, inputs)

    def read(self, body: bytes) -> Cells | None:
        """Return the rows of `{"instances": […]}`, valid until the next call; None if the body is not an everyday one."""
        rows = min(body.count(b"{") - 1, self._max_rows)
        if rows < 1:
            return None
        data, cells = self._room(body, rows)
        found = scan_instances(data, 0, len(body), self._columns, cells, 0, rows)
        return None if found < 0 else first_rows(data, cells, found)

    def read_candidates(self, body: bytes) -> Candidates | None:
        """Return the rows of `{"shared": {…}, "candidates": […], "top": n}`, as above."""
        rows = min(body.count(b"{") - _NO_CANDIDATES, self._max_rows)
        if rows < 1:
            return None
        data, cells = self._room(body, rows)
        group = new_group(self._inputs, cells)
        found, top = scan_candidates(data, 0, len(body), self._columns, group, 0, 0, rows)
        if found < 0:
            return None
        shared = SharedCells(first_rows(data, group.cells, 1), group.given, np.zeros(found, np.int64))
        return Candidates(first_rows(data, cells, found), shared, top)

    def _room(self, body: bytes, rows: int) -> tuple[Bytes, CellRoom]:
        """Return the body with room for the texts of its lists, and cells for `rows` rows."""
        size = len(body)
        data, cells = self._data, self._cells
        if data.size < 2 * size:
            data = np.empty(2 * max(size, 1024), np.uint8)
        if len(cells.begins) < rows:
            cells = new_cells(max(rows, 16), self._inputs)
        if size <= _KEPT:
            self._data, self._cells = data, cells
        data[:size] = np.frombuffer(body, np.uint8)
        cells.written[0] = size
        return data, cells


def first_rows(data: Bytes, cells: CellRoom, rows: int) -> Cells:
    """Return the first rows of the room as views."""
    return Cells(data, cells.begins[:rows], cells.ends[:rows], cells.numbers[:rows])


# -- in machine code


@compiled_inline
def _list(data: Any, at: Any, end: Any, line_end: Any, separator: Any, cells: Any) -> Any:
    """Return (the offset after a list, begin and end of its text); -1 as above. Without a separator no text is written."""
    begin = to = cells.written[0]
    at = skip_blanks(data, at + 1, end, line_end)
    if at < end and data[at] == CLOSE:
        return at + 1, begin, to
    closed = False
    while not closed:
        at, kind, first, last, _ = read_scalar(data, skip_blanks(data, at, end, line_end), end)
        if at < 0:
            return at, begin, to
        if separator >= 0 and kind != NOTHING:
            if kind in (BIG, DECIMAL) or to + 1 + last - first > data.size:
                return np.int64(NOT_READ), begin, to
            if last > first and to > begin:
                data[to] = separator
                to += 1
            for place in range(first, last):
                byte = data[place]
                if byte == separator:
                    return np.int64(NOT_READ), begin, to
                data[to] = byte
                to += 1
        at, closed = next_element(data, at, end, line_end, CLOSE)
    if at >= 0:
        cells.written[0] = to
    return at, begin, to


@compiled_inline
def _is_name(data: Any, at: Any, end: Any, columns: Any, column: Any) -> Any:
    """True if the column's name and a quote are at `at`."""
    begin = columns.ends[column]
    size = columns.ends[column + 1] - begin
    if at + size > end:
        return False
    one = np.uint64(data.ctypes.data) + np.uint64(at)
    other = np.uint64(columns.names.ctypes.data) + np.uint64(begin)
    if size < 8 and at + 8 <= end:
        return (load_u64(one) ^ load_u64(other)) << (_64 - _8 * np.uint64(size)) == 0
    if size >= 8:
        for word in range(size // 8):
            step = np.uint64(8 * word)
            if load_u64(one + step) != load_u64(other + step):
                return False
        step = np.uint64(size - 8)
        return load_u64(one + step) == load_u64(other + step)
    same = True
    for i in range(size):
        same = same and data[at + i] == columns.names[begin + i]
    return same


@compiled_inline
def _name(data: Any, at: Any, end: Any, columns: Any, last: Any) -> Any:
    """Return (the offset after a name and its quote, its column or -1 if unknown), after the column `last`; (-1, 0) as above."""
    column = columns.guesses[last]
    if column < columns.plain and _is_name(data, at, end, columns, column):
        return at + columns.ends[column + 1] - columns.ends[column], column
    for column in range(columns.plain):
        if _is_name(data, at, end, columns, column):
            columns.guesses[last] = column
            return at + columns.ends[column + 1] - columns.ends[column], np.int64(column)
    # A name with escapes is not read, because it may be the name of a column.
    stop = end_of_text(data, at, end)
    if stop < 0 or not columns.skips:
        return np.int64(NOT_READ), np.int64(0)
    return stop + 1, np.int64(-1)


@compiled_inline
def _fill(data: Any, at: Any, end: Any, line_end: Any, columns: Any, column: Any, cells: Any, row: Any) -> Any:
    """Read a column's value into its cells. Return the offset after it; -1 as above."""
    texts = columns.separators.size
    first, last = columns.starts[column], columns.starts[column + 1]
    if at < end and data[at] == OPEN:
        # A list of a column with two separators would have to be written twice, so it is not read.
        place = columns.uses[first]
        if last - first != 1 or place >= texts or columns.separators[place] < 0:
            return np.int64(NOT_READ)
        at, begin, stop = _list(data, at, end, line_end, columns.separators[place], cells)
        cells.begins[row, place] = begin
        cells.ends[row, place] = stop
        return at
    at, kind, begin, stop, number = read_scalar(data, at, end)
    if at < 0:
        return at
    for use in range(first, last):
        place = columns.uses[use]
        if place < texts:
            # Below -2^63 parsers return float64; and a column that is read as a number, too, must have whole numbers below 2^53.
            if kind == DECIMAL or (kind == BIG and (number <= _LEAST or columns.uses[last - 1] >= texts)):
                return np.int64(NOT_READ)
            cells.begins[row, place] = begin
            cells.ends[row, place] = stop
            continue
        place -= texts
        if kind in (YES, NO):
            if place >= columns.counts:
                return np.int64(NOT_READ)
            number = 1.0 if kind == YES else 0.0
        elif kind == TEXT:
            return np.int64(NOT_READ)
        cells.numbers[row, place] = number
    return at


@compiled_inline
def _skip(data: Any, at: Any, end: Any, line_end: Any, cells: Any) -> Any:
    """Return the offset after the value of an unknown column; -1 as above."""
    if at < end and data[at] == OPEN:
        at, _, _ = _list(data, at, end, line_end, np.int64(-1), cells)
        return at
    at, _, _, _, _ = read_scalar(data, at, end)
    return at


@compiled
def scan_row(data: Any, at: Any, end: Any, line_end: Any, columns: Any, cells: Any, row: Any) -> Any:
    """Read an object into the row's cells. Return the offset after it; -1 as above. `line_end` counts as a blank."""
    at = read_sign(data, at, end, line_end, BEGIN)
    if at < 0:
        return at
    most = columns.seen.size - 1
    number = columns.seen[most] + 1
    columns.seen[most] = number
    found = np.int64(0)
    last = most
    empty = skip_blanks(data, at, end, line_end)
    closed = empty < end and data[empty] == END
    if closed:
        at = empty + 1
    while not closed:
        at = read_sign(data, at, end, line_end, QUOTE)
        if at < 0:
            return at
        at, column = _name(data, at, end, columns, last)
        at = read_sign(data, at, end, line_end, COLON)
        if at < 0:
            return at
        at = skip_blanks(data, at, end, line_end)
        if column < 0:
            at = _skip(data, at, end, line_end, cells)
        else:
            if columns.seen[column] == number:
                # A column that comes twice is ambiguous, and `json_rows` refuses it.
                return np.int64(NOT_READ)
            columns.seen[column] = number
            found += 1
            last = column
            at = _fill(data, at, end, line_end, columns, column, cells, row)
        at, closed = next_element(data, at, end, line_end, END)
    if at >= 0 and found < most:
        texts = columns.separators.size
        for column in range(most):
            if columns.seen[column] != number:
                for use in range(columns.starts[column], columns.starts[column + 1]):
                    place = columns.uses[use]
                    if place < texts:
                        cells.begins[row, place] = 0
                        cells.ends[row, place] = 0
                    else:
                        cells.numbers[row, place - texts] = np.nan
    return at


@compiled
def scan_instances(data: Any, begin: Any, end: Any, columns: Any, cells: Any, first: Any, max_rows: Any) -> Any:
    """Read the rows of `data[begin:end]` into the cells from `first` on. Return their number; -1 if not read, or without room.

    Lists are written to the data from `cells.written[0]` on, and take at most as many bytes as the body.
    """
    at = read_sign(data, begin, end, LF, BEGIN)
    if at < 0:
        return at
    at = read_word(data, skip_blanks(data, at, end, LF), end, _INSTANCES)
    at = read_sign(data, read_sign(data, at, end, LF, COLON), end, LF, OPEN)
    rows = np.int64(0)
    closed = False
    while not closed:
        if at < 0 or rows == max_rows:
            return np.int64(NOT_READ)
        at = scan_row(data, at, end, LF, columns, cells, first + rows)
        rows += 1
        at, closed = next_element(data, at, end, LF, CLOSE)
    at = read_sign(data, at, end, LF, END)
    if at < 0 or skip_blanks(data, at, end, LF) != end:
        return np.int64(NOT_READ)
    return rows


@compiled_inline
def _has_shared_column(columns: Any, given: Any, group: Any) -> Any:
    """True if the last row that was read has a column of the group."""
    most = columns.seen.size - 1
    number = columns.seen[most]
    for column in range(most):
        if columns.seen[column] == number and given[group, columns.uses[columns.starts[column]]]:
            return True
    return False


@compiled
def scan_candidates(
    data: Any, begin: Any, end: Any, columns: Any, room: Any, group: Any, first: Any, max_rows: Any
) -> Any:
    """Read `{"shared": {…}, "candidates": […], "top": n}`, in this order, of which `top` may be absent.

    As `scan_instances`, into a GroupRoom, the shared part into its row `group`. Return (rows, top); (-1, 0) if it is not read. A body
    in which a candidate has a shared column is not read.
    """
    nothing = np.int64(NOT_READ), np.int64(0)
    at = read_sign(data, begin, end, LF, BEGIN)
    if at < 0:
        return nothing
    at = read_sign(data, read_word(data, skip_blanks(data, at, end, LF), end, _SHARED), end, LF, COLON)
    if at < 0:
        return nothing
    at = read_sign(data, scan_row(data, at, end, LF, columns, room.cells, group), end, LF, COMMA)
    if at < 0:
        return nothing
    most = columns.seen.size - 1
    for column in range(most):
        for use in range(columns.starts[column], columns.starts[column + 1]):
            room.given[group, columns.uses[use]] = columns.seen[column] == columns.seen[most]
    at = read_word(data, skip_blanks(data, at, end, LF), end, _CANDIDATES)
    at = read_sign(data, read_sign(data, at, end, LF, COLON), end, LF, OPEN)
    rows = np.int64(0)
    closed = False
    while not closed:
        if at < 0 or rows == max_rows:
            return nothing
        at = scan_row(data, at, end, LF, columns, room.candidates, first + rows)
        if at < 0 or _has_shared_column(columns, room.given, group):
            return nothing
        rows += 1
        at, closed = next_element(data, at, end, LF, CLOSE)
    at, closed = next_element(data, at, end, LF, END)
    top = np.int64(0)
    if at >= 0 and not closed:
        at = read_sign(data, read_word(data, skip_blanks(data, at, end, LF), end, _TOP), end, LF, COLON)
        if at < 0:
            return nothing
        at, kind, number = read_number(data, skip_blanks(data, at, end, LF), end)
        if at < 0 or kind != WHOLE or number < 1:
            return nothing
        top = np.int64(number)
        at = read_sign(data, at, end, LF, END)
    if at < 0 or skip_blanks(data, at, end, LF) != end:
        return nothing
    return rows, top


@compiled
def scan_lines(
    data: Any, begin: Any, end: Any, columns: Any, cells: Any, max_line_bytes: Any, lines: Any, codes: Any
) -> Any:
    """Read the lines of `data[begin:end]` until the end or the room. Return (their number, the offset of the next line).

    Args:
        data: u8; lists are written to it as by `scan_instances`.
        begin: the offset of the first line.
        end: the end of the last line.
        columns: the columns to read.
        cells: filled with the rows.
        max_line_bytes: a longer line is not read.
        lines: i64[rows, 2], filled with begin and end of each line, without its LF.
        codes: filled with 1 for a line that is not read, else 0.
    """
    at = begin
    row = 0
    while row < codes.size and at < end:
        lines[row, 0] = at
        written = cells.written[0]
        # A line end is no blank here, and no text contains one.
        stop = scan_row(data, at, end, SPACE, columns, cells, row)
        if stop >= 0:
            stop = skip_blanks(data, stop, end, SPACE)
        codes[row] = 0
        if stop < 0 or (stop < end and data[stop] != LF) or stop - at > max_line_bytes:
            codes[row] = 1
            cells.written[0] = written
            stop = at
            while stop < end and data[stop] != LF:
                stop += 1
        lines[row, 1] = stop
        at = stop + 1
        row += 1
    return row, at
