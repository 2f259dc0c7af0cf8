"""Values of JSON in machine code: blanks, signs, words, texts and numbers, from their bytes.

A value that these functions cannot decide, an invalid one above all, is *not read*; each function then returns -1 for the offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastic_ctr.formats.decimals import MOST_DIGITS, is_utf8, nearest_float
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import load_u64, trailing_zeros

NOT_READ = -1
LF = 10

QUOTE, COMMA, COLON, OPEN, CLOSE, BEGIN, END, _MINUS, _PLUS, _POINT, _ZERO, _NINE = (
    ord(sign) for sign in '",:[]{}-+.09'
)
_SMALL_E, _LARGE_E, _BACKSLASH, SPACE, _TAB, _CR = 101, 69, 92, 32, 9, 13
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))
# Kinds of values. BIG: a whole number from 2^53 on, or -0.
TEXT, WHOLE, BIG, DECIMAL, YES, NO, NOTHING = range(7)
_EXACT = np.uint64(1 << 53)
_TEN, _8 = np.uint64(10), np.uint64(8)
_ENDLESS = 1 << 20
_LOWS, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES, _SPACES = (_LOWS * np.uint64(byte) for byte in (QUOTE, _BACKSLASH, SPACE))


@compiled_inline
def skip_blanks(data: Any, at: Any, end: Any, line_end: Any) -> Any:
    while at < end and (data[at] == SPACE or data[at] == line_end or data[at] == _CR or data[at] == _TAB):
        at += 1
    return at


@compiled_inline
def read_sign(data: Any, at: Any, end: Any, line_end: Any, sign: Any) -> Any:
    """Return the offset after blanks and this sign; -1 if another sign is there, or if `at` is -1 already."""
    if at < 0:
        return at
    at = skip_blanks(data, at, end, line_end)
    return at + 1 if at < end and data[at] == sign else np.int64(NOT_READ)


@compiled_inline
def read_word(data: Any, at: Any, end: Any, word: Any) -> Any:
    """Return the offset after the word; -1 if another is there."""
    if at + word.size > end:
        return np.int64(NOT_READ)
    for i in range(word.size):
        if data[at + i] != word[i]:
            return np.int64(NOT_READ)
    return at + word.size


@compiled
def end_of_text(data: Any, at: Any, end: Any) -> Any:
    """Return the offset of the quote that ends the text at `at`; -1 if the text has a backslash, or is invalid."""
    begin = at
    base = np.uint64(data.ctypes.data)
    above = np.uint64(0)
    while at + 8 <= end:
        word = load_u64(base + np.uint64(at))
        quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
        # Only the lowest mark is exact, and no other is used.
        found = ((quotes - _LOWS) & ~quotes | (backslashes - _LOWS) & ~backslashes | (word - _SPACES) & ~word) & _HIGHS
        if found != 0:
            place = trailing_zeros(found) >> np.uint64(3)
            above |= word & _HIGHS & ((np.uint64(1) << (place * _8)) - np.uint64(1))
            at += np.int64(place)
            break
        above |= word & _HIGHS
        at += 8
    while at < end and data[at] != QUOTE and data[at] != _BACKSLASH and data[at] >= SPACE:
        above |= np.uint64(data[at] & 0x80)
        at += 1
    if at >= end or data[at] != QUOTE or (above != 0 and not is_utf8(data, begin, at)):
        return np.int64(NOT_READ)
    return at


@compiled_inline
def read_number(data: Any, at: Any, end: Any) -> Any:
    """Return (the offset after a number, its kind, its value); (-1, …) if it is none, or cannot be decided here."""
    nothing = np.int64(NOT_READ), np.int64(BIG), 0.0
    negative = at < end and data[at] == _MINUS
    if negative:
        at += 1
    begin = at
    mantissa = np.uint64(0)
    while at < end and _ZERO <= data[at] <= _NINE:
        mantissa = mantissa * _TEN + np.uint64(data[at] - np.uint8(_ZERO))
        at += 1
    digits = at - begin
    if digits == 0 or digits > MOST_DIGITS or (digits > 1 and data[begin] == _ZERO):
        return nothing
    if mantissa == 0:
        digits = 0
    power = np.int64(0)
    kind = np.int64(WHOLE)
    if at < end and data[at] == _POINT:
        at += 1
        begin = at
        kind = np.int64(DECIMAL)
        while at < end and _ZERO <= data[at] <= _NINE:
            mantissa = mantissa * _TEN + np.uint64(data[at] - np.uint8(_ZERO))
            if mantissa > 0 or digits > 0:
                # Leading zeros do not count. The 20th digit may overflow the mantissa to 0.
                digits += 1
            at += 1
        power = begin - at
        if power == 0 or digits > MOST_DIGITS:
            return nothing
    if at < end and (data[at] == _SMALL_E or data[at] == _LARGE_E):
        at += 1
        kind = np.int64(DECIMAL)
        lower = at < end and data[at] == _MINUS
        if at < end and (lower or data[at] == _PLUS):
            at += 1
        begin = at
        shift = 0
        while at < end and _ZERO <= data[at] <= _NINE:
            shift = min(shift * 10 + int(data[at] - np.uint8(_ZERO)), _ENDLESS)
            at += 1
        if at == begin:
            return nothing
        power += -shift if lower else shift
    value, known = nearest_float(mantissa, power)
    if not known:
        return nothing
    if kind == WHOLE and (mantissa >= _EXACT or (negative and mantissa == 0)):
        kind = np.int64(BIG)
    return at, kind, -value if negative else value


@compiled_inline
def read_scalar(data: Any, at: Any, end: Any) -> Any:
    """Return (the offset after a value, its kind, begin and end of its text, its number); (-1, …) if it is not read."""
    number = np.nan
    if at >= end:
        return np.int64(NOT_READ), np.int64(NOTHING), at, at, number
    byte = data[at]
    if byte == QUOTE:
        stop = end_of_text(data, at + 1, end)
        return (stop + 1 if stop >= 0 else stop), np.int64(TEXT), at + 1, stop, number
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        stop, kind, number = read_number(data, at, end)
        # -0 is -0.0 as a float and 0 as a whole number, so `json_rows` reads it.
        if kind == BIG and number == 0:
            stop = np.int64(NOT_READ)
        return stop, kind, at, stop, number
    if byte == _TRUE[0]:
        stop = read_word(data, at, end, _TRUE)
        return stop, np.int64(YES), at, stop, number
    if byte == _FALSE[0]:
        stop = read_word(data, at, end, _FALSE)
        return stop, np.int64(NO), at, stop, number
    stop = read_word(data, at, end, _NULL)
    return stop, np.int64(NOTHING), at, at, number


@compiled_inline
def next_element(data: Any, at: Any, end: Any, line_end: Any, close: Any) -> Any:
    """After an element, return (the offset after the comma or closing sign, True if it closes); -1 as above."""
    if at < 0:
        return at, True
    at = skip_blanks(data, at, end, line_end)
    if at < end and data[at] == COMMA:
        return at + 1, False
    if at < end and data[at] == close:
        return at + 1, True
    return np.int64(NOT_READ), True
