"""The compiled loop of the converter: lines in, MultiSlot text out.

It follows the rules of `formats.line` and only separates valid lines from invalid ones; `formats.line` finds the reason.
Every index is bounded by the block, the line's end or the length of the caller's arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.line import FEASIGN_LIMIT

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

# Indices of the loop's sums.
RECORDS, SHOWS, CLICKS, REFUSED, IGNORED, PADDING, TEXT_BYTES = range(7)
SUMS = 7

# Bytes of one line of text: show, click and the LF; then for each slot its count or ` 1 0`. A key takes at most as many
# bytes as its token: neither dropping leading zeros nor the modulus makes a number longer.
LINE_ROOM = 28
SLOT_ROOM = 12

_ZERO, _NINE, _SPACE, _TAB, _CR, _COLON, _LF, _ONE = 48, 57, 32, 9, 13, 58, 10, 49
_COUNT_LIMIT = 1 << 31
_TEN = np.uint64(10)
_HUNDRED = np.uint64(100)
_LARGEST = np.frombuffer(str(FEASIGN_LIMIT - 1).encode(), dtype=np.uint8)
_MOST_DIGITS = 20
_POWERS = np.array([10**digits for digits in range(_MOST_DIGITS)], dtype=np.uint64)
_NO_MODULUS = np.uint64(0)
_PAIRS = np.frombuffer("".join(f"{pair:02d}" for pair in range(100)).encode(), dtype=np.uint8)
_HASH_START = np.uint64(0xCBF29CE484222325)
_HASH_TIMES = np.uint64(0x100000001B3)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


class SlotTable(NamedTuple):
    """A hash table of slot names. Name i is `names[starts[i]:starts[i + 1]]`; `table` has its index, -1 in a free entry."""

    names: Bytes
    starts: Longs
    table: Ints


class Chains(NamedTuple):
    """The keys of one line, chained to their slots: `first[slot]`, then `after[key]`; -1 ends a chain.

    Without a modulus a key is kept as the offsets of its digits, begin and end in 32 bits each. `sums` has show, click,
    ignored, padding.
    """

    keys: Keys
    after: Ints
    first: Ints
    last: Ints
    counts: Ints
    sums: Longs


class Output(NamedTuple):
    """`text` is filled from `sums[TEXT_BYTES]` on, `offsets` with the offset of each accepted line, `bad` with the number of
    each refused line. Both have as many entries as the block has lines. `sums`: see `RECORDS` and its neighbours.
    """

    text: Bytes
    offsets: Longs
    bad: Longs
    sums: Longs


@njit(nogil=True, cache=True, inline="always")
def _bucket(hashed: np.uint64, mask: int) -> np.int64:
    return np.int64((hashed ^ (hashed >> _HALF)) & np.uint64(mask))


@njit(nogil=True, cache=True)
def fill(slots: SlotTable) -> None:
    """Fill the table, whose length is a power of two above the number of names."""
    starts, names, table = slots.starts, slots.names, slots.table
    table[:] = -1
    mask = table.size - 1
    for slot in range(starts.size - 1):
        hashed = _HASH_START
        for i in range(starts[slot], starts[slot + 1]):
            hashed = (hashed ^ np.uint64(names[i])) * _HASH_TIMES
        at = _bucket(hashed, mask)
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = slot


@njit(nogil=True, cache=True, inline="always")
def _write_number(out: Bytes, at: int, value: np.uint64) -> int:
    """Write the decimal digits of a u64 to out[at:]. Return the end."""
    digits = 1
    while digits < _MOST_DIGITS and value >= _POWERS[digits]:
        digits += 1
    end = at + digits
    i = end
    while value >= _HUNDRED:
        pair = np.int64(value % _HUNDRED) * 2
        value //= _HUNDRED
        i -= 2
        out[i] = _PAIRS[pair]
        out[i + 1] = _PAIRS[pair + 1]
    if value >= _TEN:
        pair = np.int64(value) * 2
        out[i - 2] = _PAIRS[pair]
        out[i - 1] = _PAIRS[pair + 1]
    else:
        out[i - 1] = _ZERO + np.int64(value)
    return end


@njit(nogil=True, cache=True, inline="always")
def _find_number(block: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return begin, after leading zeros, and end of the digits at block[at:stop].

    The end is `at` if there are none or the number is not below FEASIGN_LIMIT; a zero has no digits left.
    """
    end = at
    while end < stop and _ZERO <= block[end] <= _NINE:
        end += 1
    first = at
    while first < end and block[first] == _ZERO:
        first += 1
    if end - first >= _MOST_DIGITS:
        if end - first > _MOST_DIGITS:
            return at, at
        for i in range(_MOST_DIGITS):
            if block[first + i] != _LARGEST[i]:
                if block[first + i] > _LARGEST[i]:
                    return at, at
                break
    return first, end


@njit(nogil=True, cache=True, inline="always")
def _number(block: Bytes, first: int, end: int) -> np.uint64:
    value = np.uint64(0)
    for i in range(first, end):
        value = value * _TEN + np.uint64(block[i] - _ZERO)
    return value


@njit(nogil=True, cache=True, inline="always")
def _skip_blanks(block: Bytes, at: int, stop: int) -> int:
    while at < stop and (block[at] == _SPACE or block[at] == _TAB):
        at += 1
    return at


@njit(nogil=True, cache=True)
def _read_line(
    block: Bytes, start: int, stop: int, sparse_dim: np.uint64, slots: SlotTable, late_clicks: bool, line: Chains
) -> bool:
    """Chain the keys of a line to their slots. Return False if the line is invalid."""
    names, starts, table = slots.names, slots.starts, slots.table
    keys, after, first, last, count = line.keys, line.after, line.first, line.last, line.counts
    at = _skip_blanks(block, start, stop)
    digits, end = _find_number(block, at, stop)
    show = _number(block, digits, end)
    if end in (at, stop) or show >= _COUNT_LIMIT or not (block[end] == _SPACE or block[end] == _TAB):
        return False
    at = _skip_blanks(block, end, stop)
    digits, end = _find_number(block, at, stop)
    click = _number(block, digits, end)
    if end == at or (end < stop and not (block[end] == _SPACE or block[end] == _TAB)):
        return False
    if show == 0:
        if not late_clicks or click == 0 or click >= _COUNT_LIMIT:
            return False
    elif click > show:
        return False
    at = _skip_blanks(block, end, stop)

    count[:] = 0
    mask = table.size - 1
    used = 0
    ignored = 0
    padding = 0
    while at < stop:
        digits, end = _find_number(block, at, stop)
        if end in (at, stop) or block[end] != _COLON:
            return False
        name = end + 1
        at = name
        hashed = _HASH_START
        while at < stop:
            byte = block[at]
            if byte <= _SPACE or byte > 126 or byte == _COLON:
                break
            hashed = (hashed ^ np.uint64(byte)) * _HASH_TIMES
            at += 1
        if at == name or (at < stop and block[at] != _SPACE and block[at] != _TAB):
            return False

        bucket = _bucket(hashed, mask)
        slot = table[bucket]
        while slot >= 0:
            if starts[slot + 1] - starts[slot] == at - name:
                i = starts[slot]
                j = name
                while j < at and names[i] == block[j]:
                    i += 1
                    j += 1
                if j == at:
                    break
            bucket = (bucket + 1) & mask
            slot = table[bucket]
        at = _skip_blanks(block, at, stop)

        if slot < 0:
            ignored += 1
            continue
        if sparse_dim != _NO_MODULUS:
            keys[used] = _number(block, digits, end) % sparse_dim
            if keys[used] == 0:
                padding += 1
                continue
        elif digits == end:
            padding += 1
            continue
        else:
            keys[used] = np.uint64(digits) << _HALF | np.uint64(end)
        after[used] = -1
        if count[slot] == 0:
            first[slot] = used
        else:
            after[last[slot]] = used
        last[slot] = used
        count[slot] += 1
        used += 1
    line.sums[0] = np.int64(show)
    line.sums[1] = np.int64(click)
    line.sums[2] = ignored
    line.sums[3] = padding
    return True


@njit(nogil=True, cache=True, inline="always")
def _write_record(out: Bytes, to: int, block: Bytes, sparse_dim: np.uint64, chains: Chains) -> int:
    """Write the record of a line at `to`. Return the offset after it."""
    out[to] = _ONE
    out[to + 1] = _SPACE
    to = _write_number(out, to + 2, np.uint64(chains.sums[0]))
    out[to] = _SPACE
    out[to + 1] = _ONE
    out[to + 2] = _SPACE
    to = _write_number(out, to + 3, np.uint64(chains.sums[1]))
    for slot in range(chains.counts.size):
        out[to] = _SPACE
        if chains.counts[slot] == 0:
            out[to + 1] = _ONE
            out[to + 2] = _SPACE
            out[to + 3] = _ZERO
            to += 4
            continue
        to = _write_number(out, to + 1, np.uint64(chains.counts[slot]))
        key = chains.first[slot]
        while key >= 0:
            out[to] = _SPACE
            to += 1
            if sparse_dim == _NO_MODULUS:
                for i in range(np.int64(chains.keys[key] >> _HALF), np.int64(chains.keys[key] & _LOW_HALF)):
                    out[to] = block[i]
                    to += 1
            else:
                to = _write_number(out, to, chains.keys[key])
            key = chains.after[key]
    out[to] = _LF
    return to + 1


class ClickLineRules(NamedTuple):
    """How lines are read: `sparse_dim` is 0 for none, `late_clicks` as in `line.parse_line`."""

    sparse_dim: np.uint64
    max_line_bytes: int
    late_clicks: bool


@njit(nogil=True, cache=True)
def convert_lines(
    block: Bytes, ends: Longs, line: int, rules: ClickLineRules, slot_table: SlotTable, max_keys: int, output: Output
) -> int:
    """Convert lines until the end or until the next may not fit into the output. Return the number of the next line.

    Args:
        block: the lines.
        ends: the offset of each line's LF, or the block's end.
        line: the line to begin with.
        rules: how lines are read.
        slot_table: a filled table.
        max_keys: more than the features of any line.
        output: the output for all lines of the block.
    """
    out, offsets, bad, sums = output.text, output.offsets, output.bad, output.sums
    slots = slot_table.starts.size - 1
    line_sums = np.empty(4, np.int64)
    chains = Chains(
        np.empty(max_keys, np.uint64),
        np.empty(max_keys, np.int32),
        np.empty(slots, np.int32),
        np.empty(slots, np.int32),
        np.empty(slots, np.int32),
        line_sums,
    )
    to = sums[TEXT_BYTES]
    while line < ends.size:
        start = ends[line - 1] + 1 if line > 0 else 0
        end = ends[line]
        stop = end - 1 if end > start and block[end - 1] == _CR else end
        if end - start > rules.max_line_bytes or not _read_line(
            block, start, stop, rules.sparse_dim, slot_table, rules.late_clicks, chains
        ):
            bad[sums[REFUSED]] = line
            sums[REFUSED] += 1
            line += 1
            continue
        if out.size - to < stop - start + LINE_ROOM + SLOT_ROOM * slots:
            break

        to = _write_record(out, to, block, rules.sparse_dim, chains)
        offsets[sums[RECORDS]] = start
        sums[RECORDS] += 1
        sums[SHOWS] += line_sums[0]
        sums[CLICKS] += line_sums[1]
        sums[IGNORED] += line_sums[2]
        sums[PADDING] += line_sums[3]
        line += 1
    sums[TEXT_BYTES] = to
    return line
