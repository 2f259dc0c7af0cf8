"""The compiled loop from cells to the keys of slots and the numbers of the network, and the features as its arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms import formulas
from elastic_ctr.features.transforms.xxh3 import hash_of, hash_of_two
from elastic_ctr.formats.keys import Keys
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u8, load_u32, load_u64, store_u8, store_u32, store_u64

MOST_KEYS = 65_536
"""Of one row; more, as a cross of long lists has, are refused."""

MOST_OF_COLUMN = 1e20
"""The largest size of a number in a column of a numeric feature. Every whole number of 64 bits is below it. What is above it is a
damaged or made-up value, and one alone would rule the mean and the deviation of the column."""

MOST_OF_NETWORK = 1e6
"""The largest size of a number that the network gets. Networks multiply numbers with one another several times: six factors of this size
are within float32, and so their gradients are finite. Standardised numbers, which are clipped at ten, are never near it."""

# Codes of a row: fine; too many keys; from OF_NUMBERS on, the numeric feature at (code - OF_NUMBERS) // 2 has a number that is too
# large, in the column (remainder 0) or for the network (remainder 1).
FINE, TOO_MANY_KEYS, OF_NUMBERS = range(3)

# Texts up to so many bytes are copied after their slot's prepared prefix; for a longer text the prefix is copied, too.
SHORT_TEXT = 64
_1, _4, _8, _16 = (np.uint64(number) for number in (1, 4, 8, 16))

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

# Kinds of slots, by the source of their keys.
OF_TEXT, OF_NUMBER, OF_BUCKET, OF_WORDS, OF_SLOTS = range(5)
# A slot, i64: its kind; its index among the text or the number cells; its separator or -1; decimal digits; buckets of `hash` or 0;
# begin and end of its vocabulary or 0, 0; of its boundaries; fewest and most words of a run; begin and end of its parts.
(
    KIND, INPUT, SEPARATOR, DIGITS, HASH, VOCABULARY, VOCABULARY_END, BOUNDARIES, BOUNDARIES_END, LEAST, MOST, PARTS, PARTS_END,
    SLOT_WIDTH,
) = range(14)  # fmt: skip
# Kinds of steps of a number. A step, f64: its kind and its two numbers.
LOG1P, STANDARDIZE, MIN_MAX, CLIP, ROUND = range(5)
STEP_WIDTH = 3


class Program(NamedTuple):
    """The features as arrays."""

    prefixes: npt.NDArray[np.uint8]  # the prefix of each slot's texts: its name and a byte 0
    prefix_ends: Integers  # [slots + 1], from 0
    slots: Integers  # [slots, SLOT_WIDTH]
    order: Integers  # [slots]: slots in an order in which parts come before their cross
    others: Keys  # [slots]: the key of values outside a vocabulary
    vocabularies: Keys
    boundaries: npt.NDArray[np.float64]
    parts: Integers  # slots that are crossed
    numbers: Integers  # [numbers]: the index of each among the number cells
    step_ends: Integers  # [numbers + 1], from 0
    steps: npt.NDArray[np.float64]  # [steps, STEP_WIDTH]
    missing: Floats  # [numbers]: the network's number for an empty cell


class Series(NamedTuple):
    """Numbers after some steps, as statistics are collected of them."""

    numbers: Integers  # [series]: the index of each among the number cells
    step_ends: Integers  # [series + 1], from 0
    steps: npt.NDArray[np.float64]  # [steps, STEP_WIDTH]
    limits: npt.NDArray[np.float64]  # [series]: the size above which `transform` refuses the row

    def of(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Map f64 [n, numbers] to f64 [n, series]; a missing number stays NaN."""
        found = np.ascontiguousarray(numbers[:, self.numbers])
        _apply_all(self, found)
        return found


class CellArrays(NamedTuple):
    """The arrays of `Cells`, for compiled code."""

    data: npt.NDArray[np.uint8]
    begins: Integers
    ends: Integers
    numbers: npt.NDArray[np.float64]


# Ways in which a row gets a slot: it is computed and returned; its keys are those of the group, which only crosses need; it is left out.
OWN, OF_GROUP, LEFT_OUT = range(3)


class GroupArrays(NamedTuple):
    """The slots and numbers that rows have in common, by group."""

    groups: Integers  # [rows]: the group of each row, or -1; empty if no row has one
    ways: npt.NDArray[np.uint8]  # [groups, slots]
    ends: Integers  # [groups * slots + 1], from 0
    keys: Keys
    has: npt.NDArray[np.bool_]  # [groups, numbers]: the number is that of the group
    numbers: Floats  # [groups, numbers]


class RowOutput(NamedTuple):
    """The results of n rows beside their keys."""

    lengths: Integers  # [n * slots], the number of keys of each
    numbers: Floats  # [n, numbers]
    codes: Integers  # [n]


class KeyScratch(NamedTuple):
    """Arrays in which the keys of a row are computed."""

    secret: npt.NDArray[np.uint8]
    sums: Keys
    texts: npt.NDArray[np.uint8]  # for each slot its prefix, and room for a short text after it
    stride: int  # bytes from one slot's prefix to the next
    long: npt.NDArray[np.uint8]  # room for a prefix and any longer text
    words: npt.NDArray[np.uint8]
    word_ends: Integers
    keys: Keys
    places: Integers  # [slots, 2]: begin and end of each slot's keys


@compiled
def longest_text(begins: Any, ends: Any) -> Any:
    """Return the bytes of the longest text."""
    found = np.int64(0)
    for row in range(begins.shape[0]):
        for place in range(begins.shape[1]):
            found = max(found, ends[row, place] - begins[row, place])
    return found


@compiled
def _is_nan(x: Any) -> Any:
    return x != x  # noqa: PLR0124 (NaN alone differs from itself)


@compiled
def apply_step(steps: Any, step: Any, x: Any) -> Any:
    """Apply one step, given by its row in `steps`, to a number."""
    which, first, second = steps[step, 0], steps[step, 1], steps[step, 2]
    if which == LOG1P:
        return formulas.log1p(x)
    if which == STANDARDIZE:
        return formulas.standardize(x, first, second)
    if which == MIN_MAX:
        return formulas.min_max(x, first, second)
    if which == CLIP:
        return formulas.clip(x, first, second)
    return formulas.rounded(x, first)


@compiled
def _apply_all(series: Any, numbers: Any) -> None:
    for row in range(numbers.shape[0]):
        for place in range(numbers.shape[1]):
            for step in range(series.step_ends[place], series.step_ends[place + 1]):
                numbers[row, place] = apply_step(series.steps, step, numbers[row, place])


@compiled_inline
def _number(program: Any, place: Any, x: Any) -> Any:
    if _is_nan(x):
        return program.missing[place]
    for step in range(program.step_ends[place], program.step_ends[place + 1]):
        x = apply_step(program.steps, step, x)
    return formulas.to_float32(x)


@compiled_inline
def _copy(target: Any, source: Any, size: Any) -> Any:
    """Copy a u64 number of bytes between ranges that do not overlap, without a call if they are few."""
    if size > np.uint64(16):
        copy_bytes(target, source, size)
    elif size >= np.uint64(8):
        last = size - np.uint64(8)
        store_u64(target, load_u64(source))
        store_u64(target + last, load_u64(source + last))
    elif size >= np.uint64(4):
        last = size - np.uint64(4)
        store_u32(target, load_u32(source))
        store_u32(target + last, load_u32(source + last))
    else:
        for place in range(np.int64(size)):
            store_u8(target + np.uint64(place), load_u8(source + np.uint64(place)))


@compiled
def _key_of_text(scratch: Any, at: Any, size: Any) -> Any:
    """Return the key of a prefix and a text, given as the `size` bytes at an address."""
    return formulas.key_of_hash(hash_of(at, size, np.uint64(scratch.secret.ctypes.data), scratch.sums))


@compiled_inline
def _key_of_bytes(program: Any, scratch: Any, slot: Any, source: Any, size: Any, readable: Any) -> Any:
    """Return the key of a slot's value, the `size` bytes at an address from which `readable` bytes may be read."""
    begin = program.prefix_ends[slot]
    before = np.uint64(program.prefix_ends[slot + 1] - begin)
    together = before + np.uint64(size)
    if before < _8 and _4 <= together <= _16 and readable >= 8:
        # Hash without a copy, because reading a copy right after writing it takes as long as the hash.
        start = np.uint64(scratch.texts.ctypes.data) + np.uint64(slot * scratch.stride)
        prefix = load_u64(start) & ((_1 << (_8 * before)) - _1)
        found = hash_of_two(prefix, before, source, np.uint64(size), np.uint64(scratch.secret.ctypes.data))
        return formulas.key_of_hash(found)
    if size <= SHORT_TEXT:
        target = np.uint64(scratch.texts.ctypes.data) + np.uint64(slot * scratch.stride)
    else:
        target = np.uint64(scratch.long.ctypes.data)
        copy_bytes(target, np.uint64(program.prefixes.ctypes.data) + np.uint64(begin), before)
    _copy(target + before, source, np.uint64(size))
    return _key_of_text(scratch, target, before + np.uint64(size))


@compiled_inline
def _key_of_number(program: Any, scratch: Any, slot: Any, number: Any) -> Any:
    """As `_key_of_bytes`, for the decimal digits of a whole number."""
    begin = slot * scratch.stride
    end = formulas.write_decimals(
        number, scratch.texts, begin + program.prefix_ends[slot + 1] - program.prefix_ends[slot]
    )
    return _key_of_text(scratch, np.uint64(scratch.texts.ctypes.data) + np.uint64(begin), np.uint64(end - begin))


@compiled_inline
def _bounded(program: Any, scratch: Any, slot: Any, key: Any) -> Any:
    """Return a value's key after the slot's `hash` or `vocabulary`, if it has one.

    hash: the key of the number (key mod buckets), as in Keras' Hashing.
    """
    row = program.slots[slot]
    if row[HASH] > 0:
        return _key_of_number(program, scratch, slot, np.int64(key % np.uint64(row[HASH])))
    if row[VOCABULARY_END] > 0:
        first, last = row[VOCABULARY], row[VOCABULARY_END]
        return formulas.in_vocabulary(key, program.vocabularies, first, last, program.others[slot])
    return key


@compiled
def _add_words(program: Any, scratch: Any, slot: Any, data: Any, begin: Any, end: Any, count: Any) -> Any:
    least, most = program.slots[slot, LEAST], program.slots[slot, MOST]
    words = formulas.write_words(data, begin, end, scratch.words, scratch.word_ends)
    base = np.uint64(scratch.words.ctypes.data)
    for word in range(words):
        first = scratch.word_ends[word - 1] + 1 if word > 0 else np.int64(0)
        for last in range(word + least - 1, min(word + most, words)):
            if count == scratch.keys.size:
                return np.int64(-1)
            key = _key_of_bytes(
                program,
                scratch,
                slot,
                base + np.uint64(first),
                scratch.word_ends[last] - first,
                scratch.words.size - first,
            )
            scratch.keys[count] = _bounded(program, scratch, slot, key)
            count += 1
    return count


@compiled_inline
def _add_values(program: Any, scratch: Any, slot: Any, data: Any, begin: Any, end: Any, count: Any) -> Any:
    separator = program.slots[slot, SEPARATOR]
    base = np.uint64(data.ctypes.data)
    at = begin
    while at < end:
        stop = end
        if separator >= 0:
            stop = at
            while stop < end and data[stop] != separator:
                stop += 1
        if stop > at:
            if count == scratch.keys.size:
                return np.int64(-1)
            key = _key_of_bytes(program, scratch, slot, base + np.uint64(at), stop - at, data.size - at)
            scratch.keys[count] = _bounded(program, scratch, slot, key)
            count += 1
        at = stop + 1
    return count


@compiled
def _add_crosses(program: Any, scratch: Any, slot: Any, count: Any) -> Any:
    """Add a key for every combination of the parts' keys, the last part varying fastest. Its text is the keys, u64 little-endian."""
    first, last = program.slots[slot, PARTS], program.slots[slot, PARTS_END]
    combinations = np.int64(1)
    for part in range(first, last):
        places = scratch.places[program.parts[part]]
        combinations *= places[1] - places[0]
        if combinations > scratch.keys.size:
            return np.int64(-1)
    if count + combinations > scratch.keys.size:
        return np.int64(-1)
    begin = program.prefix_ends[slot]
    prefix = program.prefix_ends[slot + 1] - begin
    target = np.uint64(scratch.long.ctypes.data)
    copy_bytes(target, np.uint64(program.prefixes.ctypes.data) + np.uint64(begin), np.uint64(prefix))
    for number in range(combinations):
        rest = number
        for back in range(last - first):
            places = scratch.places[program.parts[last - 1 - back]]
            key = scratch.keys[places[0] + rest % (places[1] - places[0])]
            rest //= places[1] - places[0]
            store_u64(target + np.uint64(prefix + 8 * (last - first - 1 - back)), key)
        key = _key_of_text(scratch, target, np.uint64(prefix + 8 * (last - first)))
        scratch.keys[count] = _bounded(program, scratch, slot, key)
        count += 1
    return count


@compiled_inline
def _add_slot(program: Any, scratch: Any, slot: Any, cells: Any, row: Any, count: Any) -> Any:
    """Add a slot's keys of a row to the scratch. Return the number of keys there, or -1 if they are too many."""
    kind, place = program.slots[slot, KIND], program.slots[slot, INPUT]
    if kind == OF_TEXT:
        return _add_values(program, scratch, slot, cells.data, cells.begins[row, place], cells.ends[row, place], count)
    if kind == OF_WORDS:
        return _add_words(program, scratch, slot, cells.data, cells.begins[row, place], cells.ends[row, place], count)
    if kind == OF_SLOTS:
        return _add_crosses(program, scratch, slot, count)
    x = cells.numbers[row, place]
    if _is_nan(x):
        return count
    if count == scratch.keys.size:
        return np.int64(-1)
    if kind == OF_BUCKET:
        number = formulas.bucket_of(
            x, program.boundaries, program.slots[slot, BOUNDARIES], program.slots[slot, BOUNDARIES_END]
        )
    else:
        number = formulas.whole(x, program.slots[slot, DIGITS])
    scratch.keys[count] = _bounded(program, scratch, slot, _key_of_number(program, scratch, slot, number))
    return count + 1


@compiled_inline
def _add_of_group(scratch: Any, shared: Any, group: Any, slot: Any, count: Any) -> Any:
    """Add a slot's keys of a group to the scratch. Return as `_add_slot`."""
    segment = group * shared.ways.shape[1] + slot
    begin, end = shared.ends[segment], shared.ends[segment + 1]
    if count + end - begin > scratch.keys.size:
        return np.int64(-1)
    for each in range(begin, end):
        scratch.keys[count] = shared.keys[each]
        count += 1
    return count


@compiled
def _code_of_numbers(program: Any, given: Any, row: Any, numbers: Any, shared: Any, group: Any) -> Any:
    """Compute the numbers of a row. Return its code, which shows if one of them is too large."""
    code = np.int64(FINE)
    for place in range(program.numbers.size):
        if group >= 0 and shared.has[group, place]:
            numbers[row, place] = shared.numbers[group, place]
            continue
        x = given[row, program.numbers[place]]
        number = _number(program, place, x)
        numbers[row, place] = number
        if code == FINE and not _is_nan(x):
            if abs(x) > MOST_OF_COLUMN:
                code = np.int64(OF_NUMBERS + 2 * place)
            elif abs(number) > MOST_OF_NETWORK:
                code = np.int64(OF_NUMBERS + 2 * place + 1)
    return code


@compiled
def transform_rows(
    program: Any, cells: Any, shared: Any, row: Any, total: Any, scratch: Any, keys: Any, out: Any
) -> Any:
    """Transform rows from `row` on until the end, or until `keys` is full. Return the next row and the number of keys.

    `shared` is a GroupArrays; `out` is a RowOutput, which is filled.
    """
    lengths, numbers, codes = out
    slots = program.order.size
    in_order = True
    for place in range(slots):
        in_order = in_order and program.order[place] == place
    for at in range(row, cells.begins.shape[0]):
        group = shared.groups[at] if shared.groups.size > 0 else np.int64(-1)
        codes[at] = _code_of_numbers(program, cells.numbers, at, numbers, shared, group)
        count = np.int64(0)
        # The row's own keys are the first `count` ones of the scratch.
        in_front = in_order
        of_group = np.int64(0)
        for place in range(slots):
            slot = program.order[place]
            scratch.places[slot, 0] = count
            way = np.int64(shared.ways[group, slot]) if group >= 0 else np.int64(OWN)
            if count >= 0 and way == OWN:
                count = _add_slot(program, scratch, slot, cells, at, count)
            elif count >= 0 and way == OF_GROUP:
                count = _add_of_group(scratch, shared, group, slot, count)
                in_front = False
                of_group += count - scratch.places[slot, 0]
            scratch.places[slot, 1] = count
        if group >= 0 and count >= 0:
            # A row has no more keys, with those of its group, than a row that has all of them itself.
            common = shared.ends[(group + 1) * slots] - shared.ends[group * slots]
            if count - of_group + common > scratch.keys.size:
                count = np.int64(-1)
        if codes[at] != FINE:
            count = np.int64(-1)
        elif count < 0:
            codes[at] = TOO_MANY_KEYS
        if total + count > keys.size:
            return at, total
        for slot in range(slots):
            own = count >= 0 and (group < 0 or shared.ways[group, slot] == OWN)
            lengths[at * slots + slot] = scratch.places[slot, 1] - scratch.places[slot, 0] if own else 0
        if in_front and count > 0:
            copy_bytes(
                np.uint64(keys.ctypes.data) + np.uint64(8 * total),
                np.uint64(scratch.keys.ctypes.data),
                np.uint64(8 * count),
            )
            total += count
        elif count > 0:
            for slot in range(slots):
                first = scratch.places[slot, 0]
                for each in range(first, first + lengths[at * slots + slot]):
                    keys[total] = scratch.keys[each]
                    total += 1
    return cells.begins.shape[0], total
