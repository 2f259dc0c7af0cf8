"""Records as the text of Paddle's MultiSlot reader: `1 show 1 click [n number …] n key … n key …`, slots in order.

A number is written in hexadecimal, as by C's `%a`: Paddle reads it with `strtof`, which is exact then, so nothing is rounded in
between. A slot without keys has the padding key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms.formulas import MOST_DIGITS, write_digits
from elastic_ctr.features.transforms.transformer import Transformed
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, store_u64

Counts = npt.NDArray[np.int64]

_SPACE, _NEWLINE, _ZERO, _ONE, _MINUS, _X, _P = (ord(sign) for sign in " \n01-xp")
_SIXES, _ONES, _ZEROS = (np.uint64(byte * 0x0101010101010101) for byte in (6, 1, _ZERO))
_HALF, _BYTES, _NIBBLES = (np.uint64(bits) for bits in (0xFFFF, 0x000000FF000000FF, 0x000F000F000F000F))
_4, _8, _16, _32 = (np.uint64(bits) for bits in (4, 8, 16, 32))
_TO_LETTER = np.uint64(ord("a") - ord("9") - 1)
_PIECE = 4 << 20
# Bytes of text that are shuffled at once: a line of 100 bytes takes 40 bytes more of memory.
_GROUP = 256 << 20
# The most bytes of a record without its numbers and keys, of a number, of a slot without its keys, and of a key.
_RECORD_BYTES, _NUMBER_BYTES, _SLOT_BYTES, _KEY_BYTES = 64, 17, 10, 21


def record_text(rows: Transformed, shows: Counts, clicks: Counts) -> tuple[bytes, Counts]:
    """Return the text of all rows, one line each, and i64[n + 1] of the lines' offsets."""
    count, numbers = rows.numbers.shape
    room = (
        count * (_RECORD_BYTES + _NUMBER_BYTES * numbers)
        + _SLOT_BYTES * len(rows.lengths)
        + _KEY_BYTES * len(rows.keys)
    )
    room += MOST_DIGITS  # the last number is written in whole words
    text, ends = np.empty(room, np.uint8), np.zeros(count + 1, np.int64)
    _write(rows.keys, rows.lengths, rows.numbers.view(np.uint32), shows, clicks, text, ends)
    return text[: ends[-1]].tobytes(), ends


def shuffled_lines(text: npt.NDArray[np.uint8], seed: int, group: int = _GROUP, piece: int = _PIECE) -> Iterator[bytes]:
    """Yield the lines of a text in an order that the seed determines, in pieces of a few MB.

    Memory is taken by the line offsets of one group of pieces, not by the text. A text longer than a group is shuffled by pieces first:
    each group has pieces from anywhere in the text, so that neighbouring lines end up far from one another.
    """
    dice = np.random.default_rng(seed)
    pieces = dice.permutation(-(-len(text) // piece))
    for first in range(0, len(pieces), max(group // piece, 1)):
        places = [_lines_in(text, at * piece, piece) for at in pieces[first : first + max(group // piece, 1)]]
        begins, lengths = (np.concatenate(each) for each in zip(*places, strict=True))
        order = dice.permutation(len(begins))
        # Cut the output into pieces of about `piece` bytes.
        cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // piece, prepend=0)) + 1
        for some in np.split(order, cuts):
            copied = np.empty(int(lengths[some].sum()), np.uint8)
            _copy_lines(text, begins, lengths, some, copied)
            yield copied.tobytes()


def _lines_in(text: npt.NDArray[np.uint8], start: int, size: int) -> tuple[Counts, Counts]:
    """Return begins and lengths of the lines that end in these bytes. The text ends with a line end."""
    ends = np.flatnonzero(text[start : start + size] == _NEWLINE).astype(np.int64) + start + 1
    before = start
    # The first line may begin in an earlier piece.
    while before > 0 and text[before - 1] != _NEWLINE:
        low = max(0, before - size)
        found = np.flatnonzero(text[low:before] == _NEWLINE)
        before = low + int(found[-1]) + 1 if len(found) else low
    begins = np.concatenate([np.array([before], np.int64), ends[:-1]])[: len(ends)]
    return begins, ends - begins


@compiled
def _copy_lines(text: Any, begins: Any, lengths: Any, order: Any, piece: Any) -> None:
    at = np.int64(0)
    for line in order:
        length = lengths[line]
        to, source = np.uint64(piece.ctypes.data) + np.uint64(at), np.uint64(text.ctypes.data) + np.uint64(begins[line])
        copy_bytes(to, source, np.uint64(length))
        at += length


@compiled
def _write_number(bits: Any, text: Any, at: Any) -> Any:
    """Write a float32, given by its bits, as sign, mantissa as a hexadecimal whole number, and power of two."""
    if bits >> np.uint32(31):
        text[at] = _MINUS
        at += 1
    exponent = np.int64((bits >> np.uint32(23)) & np.uint32(255))
    mantissa = np.int64(bits & np.uint32(0x7FFFFF))
    if exponent > 0:
        mantissa |= 1 << 23
    else:
        exponent = np.int64(1)
    text[at], text[at + 1] = _ZERO, _X
    at += 2
    # Spread nibbles to bytes by halves, the highest one lowest, and convert them together; the two bytes after them are overwritten.
    digits = np.uint64(mantissa) << _8
    digits = (digits >> _16) | ((digits & _HALF) << _32)
    digits = ((digits >> _8) & _BYTES) | ((digits & _BYTES) << _16)
    digits = ((digits >> _4) & _NIBBLES) | ((digits & _NIBBLES) << _8)
    above_nine = ((digits + _SIXES) >> np.uint64(4)) & _ONES
    store_u64(np.uint64(text.ctypes.data) + np.uint64(at), digits + _ZEROS + above_nine * _TO_LETTER)
    text[at + 6] = _P
    at += 7
    power = exponent - 150
    if power < 0:
        text[at] = _MINUS
        at += 1
    power = abs(power)
    if 10 <= power < 100:
        # This is the power of numbers of common size.
        text[at], text[at + 1] = _ZERO + power // 10, _ZERO + power % 10
        return at + 2
    return write_digits(np.uint64(power), text, at)


@compiled
def _write(keys: Any, lengths: Any, numbers: Any, shows: Any, clicks: Any, text: Any, ends: Any) -> None:
    rows = shows.size
    slots = lengths.size // rows if rows > 0 else 0
    at = key = np.int64(0)
    for row in range(rows):
        for count in (shows[row], clicks[row]):
            text[at], text[at + 1] = _ONE, _SPACE
            at = write_digits(np.uint64(count), text, at + 2)
            text[at] = _SPACE
            at += 1
        if numbers.shape[1] > 0:
            at = write_digits(np.uint64(numbers.shape[1]), text, at)
            for place in range(numbers.shape[1]):
                text[at] = _SPACE
                at = _write_number(numbers[row, place], text, at + 1)
            text[at] = _SPACE
            at += 1
        for slot in range(slots):
            length = lengths[row * slots + slot]
            if length == 1:
                # Most slots have one key.
                text[at], text[at + 1] = _ONE, _SPACE
                at = write_digits(keys[key], text, at + 2)
                key += 1
                text[at] = _SPACE
                at += 1
                continue
            at = write_digits(np.uint64(max(length, 1)), text, at)
            if length == 0:
                text[at], text[at + 1] = _SPACE, _ZERO
                at += 2
            for _ in range(length):
                text[at] = _SPACE
                at = write_digits(keys[key], text, at + 1)
                key += 1
            text[at] = _SPACE
            at += 1
        text[at - 1] = _NEWLINE
        ends[row + 1] = at
