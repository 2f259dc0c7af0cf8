"""The compiled loops of the readers: lines to cells, texts to numbers, and the check of UTF-8.

A usual CSV reader of whole blocks lets an unclosed quote swallow good rows and takes a bare CR for the end of a row; here
a row is a line. Cells are offsets into the block, without copies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from elastic_ctr.formats.cells import Places
from elastic_ctr.formats.decimals import MOST_DIGITS, is_utf8, nearest_float
from elastic_ctr.formats.readers import row_refusals
from elastic_ctr.formats.readers.row_refusals import Codes
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import equal_bytes, load_u64, trailing_zeros

_FINE, _TOO_LONG, _EMPTY, _OPEN_QUOTE, _AFTER_QUOTE, _WRONG_COLUMNS, _NOT_A_NUMBER, _NOT_UTF8, _NOT_BOTH = (
    row_refusals.FINE,
    row_refusals.TOO_LONG,
    row_refusals.EMPTY,
    row_refusals.OPEN_QUOTE,
    row_refusals.AFTER_QUOTE,
    row_refusals.WRONG_COLUMNS,
    row_refusals.NOT_A_NUMBER,
    row_refusals.NOT_UTF8,
    row_refusals.NOT_BOTH,
)
HARD = 255
"""The code of a number that `read_numbers` leaves to a slower and exact way."""

_LF, _CR, _QUOTE, _PLUS, _MINUS, _POINT, _SMALL_E, _LARGE_E, _ZERO = 10, 13, 34, 43, 45, 46, 101, 69, 48
_TEN = np.uint64(10)
_ENDLESS = 1 << 20
_EXACT = 2.0**53  # from here on programs that read JSON round whole numbers
_0, _1, _8, _16, _32, _64 = (np.uint64(number) for number in (0, 1, 8, 16, 32, 64))
_WINDOW = 64
_ZEROS, _TO_HIGH, _HIGHS = (np.uint64(byte * 0x0101010101010101) for byte in (_ZERO, 0x76, 0x80))
_PAIRS = np.uint64(0x000000FF000000FF)
_MILLION_AND_HUNDRED, _TEN_THOUSAND_AND_ONE = np.uint64((10**6 << 32) + 100), np.uint64((10**4 << 32) + 1)


@compiled_inline
def _stops(block: Any, at: Any, separator: Any) -> Any:
    """Return a u64 with a bit set for each of the 64 bytes from `at` on that ends a cell; no bits beyond the block."""
    if at + _WINDOW <= block.size:
        address = np.uint64(block.ctypes.data) + np.uint64(at)
        return equal_bytes(address, np.uint8(separator)) | equal_bytes(address, np.uint8(_LF))
    found = _0
    for place in range(at, block.size):
        if block[place] == separator or block[place] == _LF:
            found |= _1 << np.uint64(place - at)
    return found


class LineRules(NamedTuple):
    """How lines are split into cells."""

    separator: int  # the byte between cells
    quoted: bool  # a cell may be in quotes
    max_line_bytes: int  # a longer line is refused
    starts: Places  # column c of the file is read as the slots `slots[starts[c]:starts[c + 1]]`
    slots: Places  # indices of cells, first of the texts, then of the others


class SplitLines(NamedTuple):
    """The cells of lines: begin and end of each text, and the span of each other cell."""

    begins: Places  # [rows, texts]
    ends: Places
    spans: Places  # [rows, rest, 2]
    lines: Places  # [rows, 2], begin and end of each line, without its LF
    codes: Codes  # the code of each line
    details: Places  # the column of a bad quote, or the number of columns if it is wrong

    def first(self, rows: int) -> SplitLines:
        return SplitLines(
            self.begins[:rows],
            self.ends[:rows],
            self.spans[:rows],
            self.lines[:rows],
            self.codes[:rows],
            self.details[:rows],
        )


@compiled_inline
def _quoted_cell(block: Any, at: Any, separator: Any) -> Any:
    """Read a cell from its opening quote on. Return (the offset after it, begin and end of its text, the code).

    After a bad quote the offset is that of the line's end. Doubled quotes become one, in place: the rest of the cell moves up.
    """
    size = block.size
    at += 1
    begin = finish = at
    code = _OPEN_QUOTE
    while at < size and block[at] != _LF:
        if block[at] == _QUOTE:
            if at + 1 == size or block[at + 1] != _QUOTE:
                code = _FINE
                at += 1
                break
            at += 1
        if finish != at:
            block[finish] = block[at]
        finish += 1
        at += 1
    if code == _FINE and at < size and block[at] == _CR and (at + 1 == size or block[at + 1] == _LF):
        at += 1
    if code == _FINE and at < size and block[at] != separator and block[at] != _LF:
        code = _AFTER_QUOTE
    if code != _FINE:
        while at < size and block[at] != _LF:
            at += 1
    return at, begin, finish, code


@compiled
def split_lines(block: Any, at: Any, rules: Any, out: Any) -> Any:
    """Find the cells of lines from `at` on until the end or the room. Return the number of rows and the offset after them.

    `block` is u8 of whole lines, in which quoted cells change. `rules` is a LineRules; `out` is a SplitLines, which is filled.
    """
    separator, quoted, max_line_bytes, starts, slots = rules
    begins, ends, spans, lines, codes, details = out
    size, texts, columns = block.size, begins.shape[1], starts.size - 1
    row = 0
    window, stops = at - _WINDOW, _0
    while row < codes.size and at < size:
        line = at
        column = 0
        code = _FINE
        while True:
            begin = at
            if quoted and at < size and block[at] == _QUOTE:
                at, begin, finish, code = _quoted_cell(block, at, separator)
                if code != _FINE:
                    details[row] = column
            else:
                if at - window >= _WINDOW:
                    window, stops = at, _stops(block, at, separator)
                # Drop the stops before `at`, such as separators within quotes.
                stops &= ~_0 << np.uint64(at - window)
                while stops == 0 and window + _WINDOW < size:
                    window += _WINDOW
                    stops = _stops(block, window, separator)
                at = size if stops == 0 else window + np.int64(trailing_zeros(stops))
                finish = at
                if finish > begin and block[finish - 1] == _CR and (at == size or block[at] == _LF):
                    finish -= 1
            if column < columns:
                for place in range(starts[column], starts[column + 1]):
                    slot = slots[place]
                    if slot < texts:
                        begins[row, slot] = begin
                        ends[row, slot] = finish
                    else:
                        spans[row, slot - texts, 0] = begin
                        spans[row, slot - texts, 1] = finish
            column += 1
            if at >= size or block[at] == _LF:
                break
            at += 1
        if at - line > max_line_bytes:
            code = _TOO_LONG
        elif code == _FINE and column != columns:
            # An empty line has one cell, which is empty; a CR does not count.
            code = _EMPTY if column == 1 and begin == line and finish == line else _WRONG_COLUMNS
            details[row] = column
        lines[row, 0] = line
        lines[row, 1] = at
        codes[row] = code
        row += 1
        at += 1
    return row, at


@compiled_inline
def _short_whole(data: Any, at: Any, size: Any) -> Any:
    """Return (the number, True) of one to eight digits, computed at once; (0, False) for other texts and near the end of the data."""
    if size > 8 or at + 8 > data.size:
        return _0, False
    # Shift the last digit to the highest byte, and fill with zeros in front.
    word = load_u64(np.uint64(data.ctypes.data) + np.uint64(at)) << (_64 - _8 * np.uint64(size))
    digits = (word | ((_ZEROS >> _8) >> (_8 * np.uint64(size - 1)))) ^ _ZEROS
    if ((digits + _TO_HIGH) | digits) & _HIGHS != 0:
        return _0, False
    digits = digits * _TEN + (digits >> _8)
    found = (digits & _PAIRS) * _MILLION_AND_HUNDRED + ((digits >> _16) & _PAIRS) * _TEN_THOUSAND_AND_ONE
    return found >> _32, True


@compiled_inline
def _digits(data: Any, at: Any, end: Any, mantissa: Any, digits: Any) -> Any:
    """Return (the offset after decimal digits, the mantissa with them appended, its number of digits without leading zeros)."""
    while at < end:
        digit = np.uint64(data[at]) - np.uint64(_ZERO)  # wraps below the zero
        if digit >= _TEN:
            break
        mantissa = mantissa * _TEN + digit
        if digits > 0 or digit > 0:
            digits += 1
        at += 1
    return at, mantissa, digits


@compiled
def read_numbers(data: Any, spans: Any, codes: Any, numbers: Any, cells: Any) -> Any:
    """Read decimal numbers, `[+-]digits[.digits][e[+-]digits]`. Return how many are not fine.

    Digits may be missing on one side of the point, as R and SAS write numbers.

    Args:
        data: u8
        spans: i64[rows, numbers, 2], begin and end of each number in data. An empty one is NaN.
        codes: codes of the rows; the numbers of rows that are not fine are NaN.
        numbers: f64[rows, numbers], filled with the numbers, correctly rounded.
        cells: filled with the code of each number: FINE, NOT_A_NUMBER or HARD.
    """
    odd = 0
    for row in range(codes.size):
        for place in range(numbers.shape[1]):
            numbers[row, place] = np.nan
            cells[row, place] = _FINE
            if codes[row] != _FINE:
                continue
            at, end = spans[row, place, 0], spans[row, place, 1]
            if at == end:
                continue
            short, known = _short_whole(data, at, end - at)
            if known:
                numbers[row, place] = np.float64(short)
                continue
            negative = data[at] == _MINUS
            if negative or data[at] == _PLUS:
                at += 1
            first = at
            at, mantissa, digits = _digits(data, at, end, np.uint64(0), 0)
            right = at > first
            power = 0
            if at < end and data[at] == _POINT:
                first = at + 1
                at, mantissa, digits = _digits(data, first, end, mantissa, digits)
                right = right or at > first
                power = first - at
            if at < end and (data[at] == _SMALL_E or data[at] == _LARGE_E):
                at += 1
                lower = at < end and data[at] == _MINUS
                if at < end and (lower or data[at] == _PLUS):
                    at += 1
                first = at
                shift = 0
                while at < end:
                    digit = np.uint64(data[at]) - np.uint64(_ZERO)
                    if digit >= _TEN:
                        break
                    shift = min(shift * 10 + int(digit), _ENDLESS)
                    at += 1
                right = right and at > first
                power += -shift if lower else shift
            if not right or at < end:
                cells[row, place] = _NOT_A_NUMBER
                odd += 1
                continue
            value, known = nearest_float(mantissa, power)
            if digits > MOST_DIGITS or not known:
                cells[row, place] = HARD
                odd += 1
            numbers[row, place] = -value if negative else value
    return odd


@compiled
def copy_spans(data: Any, spans: Any, out: Any) -> None:
    """Copy the bytes of each [begin, end) in turn to `out`."""
    to = 0
    for place in range(spans.shape[0]):
        for at in range(spans[place, 0], spans[place, 1]):
            out[to] = data[at]
            to += 1


@compiled
def check_utf8(data: Any, begins: Any, ends: Any, codes: Any, details: Any) -> None:
    """Give rows that were fine NOT_UTF8, and the index of the text that is not UTF-8 as the detail."""
    for row in range(codes.size):
        for place in range(begins.shape[1]):
            if codes[row] == _FINE and not is_utf8(data, begins[row, place], ends[row, place]):
                codes[row] = _NOT_UTF8
                details[row] = place


@compiled_inline
def _is_whole(data: Any, at: Any, end: Any) -> Any:
    """True if a text is a whole number as JSON and Python write it: no `+7`, `007`, `-0`, `7.0` or `1e2`."""
    negative = at < end and data[at] == _MINUS
    at += negative
    if at == end or (data[at] == _ZERO and (negative or at + 1 < end)):
        return False
    while at < end and _ZERO <= data[at] < _ZERO + 10:
        at += 1
    return at == end


@compiled
def check_both(
    data: Any, begins: Any, ends: Any, text: Any, numbers: Any, number: Any, codes: Any, details: Any
) -> None:
    """Give rows that were fine NOT_BOTH if a text that is read as a number, too, is neither missing nor a whole number.

    Args:
        data: u8
        begins: i64[rows, texts], the begin of each text in data
        ends: and the end.
        text: the index of the text.
        numbers: f64[rows, numbers]
        number: the index of the number that is read from the same column.
        codes: codes of the rows.
        details: details of the rows, filled with `number`.
    """
    for row in range(codes.size):
        begin, end = begins[row, text], ends[row, text]
        if (
            codes[row] == _FINE
            and begin < end
            and not np.isnan(numbers[row, number])
            and not (abs(numbers[row, number]) < _EXACT and _is_whole(data, begin, end))
        ):
            codes[row] = _NOT_BOTH
            details[row] = number


@compiled
def join_values(
    data: Any, begins: Any, ends: Any, last_values: Any, separator: Any, out: Any, out_ends: Any, bad: Any
) -> None:
    """Join the values of lists; empty values are left out.

    Args:
        data: u8
        begins: i64, the begin of each value in data
        ends: and the end.
        last_values: i64[lists], the index after the last value of each list.
        separator: the byte between the values of a list.
        out: filled with the texts, concatenated.
        out_ends: i64[lists], filled with the end of each text.
        bad: set to True for a list with a value that contains the separator.
    """
    to = value = 0
    for row in range(last_values.size):
        first = to
        while value < last_values[row]:
            if to > first and ends[value] > begins[value]:
                out[to] = separator
                to += 1
            for at in range(begins[value], ends[value]):
                out[to] = data[at]
                to += 1
                if data[at] == separator:
                    bad[row] = True
            value += 1
        out_ends[row] = to
