"""The lookup: keys in, values copied into the caller's output, in blocks of 64 that hide memory latency.

A dependent cache miss costs hundreds of nanoseconds, a prefetched one about twenty. So a block of keys goes through three
steps: hash and prefetch the pilots; read the pilots and prefetch the records; compare and copy. The second step of a block
and the first step of the next one alternate key by key, so the hashing costs no time beyond the wait for memory.

Each (dim, stride, kind of values) gets its own machine code, with lengths known when compiling. Quantised values become float32 as
they are copied: their records are shorter, so fewer bytes are waited for. The kernel follows raw addresses into mapped
files: `table` builds the rows and ensures that they are valid. With NUMBA_BOUNDSCHECK=1 the kernel checks every address too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_ctr.cube.dictionary.format import EMPTY_KEY, MIX_1, MIX_2, PILOT_STEP, SEED_STEP, VALUE_CODES
from elastic_ctr.features.quantiser import VECTOR_AT
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.machine_code.compiled import bounds_checked, compiled, inlined
from elastic_ctr.machine_code.intrinsics import (
    copy_bytes,
    copy_halves,
    copy_scaled,
    high64,
    load_u8,
    load_u16,
    load_u64,
    prefetch,
    store_u64,
    zero_bytes,
)

# Columns of a table row, one row per partition, u64. The columns of the overlay are these plus OVERLAY, the columns of the recent
# overlay these plus RECENT; only overlays have the last three.
PILOTS, RECORDS, SUB_PARTS, SUB_PART_COUNT, SLOTS, BUCKETS, EMPTY_KEY_AT, EMPTY_KEY_DELETED = range(8)
PRESENCE, PRESENCE_MASK, TOMBSTONES = range(8, 11)
OVERLAY, RECENT = 8, 24
WIDTH = 40

# How many overlays lie over the full parts.
PLAIN, OVERLAID, TWICE_OVERLAID = range(3)

# Codes of the kinds of values, the same as in the header of a part.
FLOAT32, FLOAT16, INT8 = (VALUE_CODES[kind] for kind in ("float32", "float16", "int8"))

BLOCK = 64
# Scratch of each key, as u64s: the address of its pilot, then of its record; its second hash; the first record of its
# sub-part; the number of slots there.
_AT, _HASHED, _FIRST, _SLOTS = (np.uint64(8 * number) for number in range(4))
_KEY_BYTES = np.uint64(32)
# With overlays, columns of a u64 per key follow: the address of its word in the overlay's filter, then of its record there or 0; the
# same for the recent overlay; its mixed hash; its partition's row; and a list of the keys that pass an overlay's filter.
_ABOVE, _RECENT, _MIXED, _ROW, _LISTED = (np.uint64(8 * column * BLOCK) for column in range(4, 9))
_BLOCK_BYTES = np.uint64(72 * BLOCK)
SCRATCH = 2 * 9 * BLOCK  # u64s that a lookup needs: a block, and the next one

_CHECKED = bounds_checked()
_EMPTY = np.uint64(EMPTY_KEY)
_PADDING = np.uint64(PADDING_KEY)
_MIX_1, _MIX_2 = np.uint64(MIX_1), np.uint64(MIX_2)
_PILOT_STEP, _SEED_STEP = np.uint64(PILOT_STEP), np.uint64(SEED_STEP)
_LOW = np.uint64(0xFFFF_FFFF)
_0, _1, _2, _3, _6, _7, _8, _16 = (np.uint64(number) for number in (0, 1, 2, 3, 6, 7, 8, 16))
_ROW_BYTES = np.uint64(8 * WIDTH)
_29, _32, _63, _64 = (np.uint64(number) for number in (29, 32, 63, 64))


@compiled
def mix(key: Any) -> Any:
    x = key ^ (key >> _32)
    x *= _MIX_1
    x ^= x >> _29
    x *= _MIX_2
    return x ^ (x >> _32)


@compiled
def partition_of(key: Any, partitions: Any, reciprocal: Any) -> Any:
    """As `formats.keys.partitions_of`, by multiplication instead of division; reciprocal = (2^64 - 1) // partitions."""
    rest = key - high64(key, reciprocal) * partitions
    # The estimated quotient is exact or one too small.
    return rest - partitions if rest >= partitions else rest


@compiled
def _record_bytes(dim: Any, values: Any) -> Any:
    """Return the bytes of a record without its padding."""
    if values == INT8:
        return 8 + VECTOR_AT + dim - 1
    return 8 + (2 if values == FLOAT16 else 4) * dim


@inlined
def _put_values(dim: Any, values: Any, target: Any, source: Any) -> None:
    """Copy the stored values at source to target as float32."""
    if values == INT8:
        copy_scaled(target, source, dim)
    elif values == FLOAT16:
        copy_halves(target, source, dim)
    else:
        copy_bytes(target, source, np.uint64(4 * dim))


@compiled
def _row_of(rows: Any, partitions: Any, reciprocal: Any, key: Any) -> Any:
    """Address of the row of a key's partition."""
    return rows + partition_of(key, partitions, reciprocal) * _ROW_BYTES


@compiled
def _column(row: Any, column: Any) -> Any:
    return load_u64(row + np.uint64(8 * column))


@compiled
def _placed(row: Any, at: Any, mixed: Any) -> Any:
    """Return (address of the pilot, second hash, first slot of the sub-part) of a mixed key, in the full part (at 0) or an overlay
    (at OVERLAY or RECENT).
    """
    sub_parts, seed_at = _column(row, at + SUB_PART_COUNT), _column(row, at + SUB_PARTS)
    buckets = _column(row, at + BUCKETS)
    bucket, first = _0, _0
    # Most partitions have one sub-part.
    if sub_parts != _1:
        sub_part = high64(mixed, sub_parts)
        seed_at += sub_part * _16
        bucket, first = sub_part * buckets, sub_part * _column(row, at + SLOTS)
    hashed = mix(mixed + load_u64(seed_at) * _SEED_STEP)
    bucket += ((hashed >> _32) * buckets) >> _32
    if _CHECKED and bucket >= buckets * sub_parts:
        raise IndexError("a bucket outside its part")
    return _column(row, at + PILOTS) + _2 * bucket, hashed, first


@compiled
def _slot_of(hashed: Any, pilot: Any, slots: Any) -> Any:
    """Return the slot inside the key's sub-part."""
    x = (hashed ^ (pilot * _PILOT_STEP)) * _MIX_1
    x ^= x >> _32
    slot = ((x & _LOW) * slots) >> _32
    if _CHECKED and slot >= slots:
        raise IndexError("a slot outside its part")
    return slot


@compiled
def _overlay_record(row: Any, at: Any, mixed: Any, step: Any) -> Any:
    """Return the address of the record in the slot of a key in an overlay, with the low bit set for a tombstone."""
    pilot_at, hashed, first = _placed(row, at, mixed)
    slot = first + _slot_of(hashed, np.uint64(load_u16(pilot_at)), _column(row, at + SLOTS))
    bits = _column(row, at + TOMBSTONES)
    gone = bits != _0 and (np.uint64(load_u8(bits + (slot >> _3))) >> (slot & _7)) & _1 != _0
    # Records are aligned: the low bit of their address is free.
    return (_column(row, at + RECORDS) + slot * step) | (_1 if gone else _0)


@compiled
def _empty_key(row: Any, at: Any, below: Any) -> Any:
    """Return the address of EMPTY_KEY's values with this overlay over `below`, the address without it; 0 if missing."""
    if _column(row, at + EMPTY_KEY_DELETED) != _0:
        return _0
    own = _column(row, at + EMPTY_KEY_AT)
    return below if own == _0 else own


@compiled
def _slow_path(row: Any, key: Any, record: Any, above: Any, overlays: Any) -> Any:
    """Return (address of the values or 0, True if the key is missing), for keys that the fast path did not find."""
    if key == _PADDING:
        return _0, False
    if key == _EMPTY:
        # This key marks empty slots, so its record is in the headers of the parts.
        source = _column(row, EMPTY_KEY_AT)
        if overlays != PLAIN:
            source = _empty_key(row, OVERLAY, source)
        if overlays == TWICE_OVERLAID:
            source = _empty_key(row, RECENT, source)
        return source, source == _0
    standing = above & ~_1
    if standing != _0 and load_u64(standing) == key:
        return (standing + _8, False) if above == standing else (_0, True)
    return (record + _8, False) if load_u64(record) == key else (_0, True)


@compiled
def _filter_word(row: Any, at: Any, mixed: Any) -> Any:
    """Return the address of the word with a key's bit in an overlay's presence filter."""
    return _column(row, at + PRESENCE) + _8 * ((mixed & _column(row, at + PRESENCE_MASK)) >> _6)


@compiled
def _hash(row: Any, overlays: Any, step: Any, key: Any, block: Any, i: Any) -> None:
    """The first step of a block's key i: hash it and prefetch its pilot."""
    own = block + i * _KEY_BYTES
    mixed = mix(key)
    pilot_at, hashed, first = _placed(row, 0, mixed)
    prefetch(pilot_at)
    store_u64(own + _AT, pilot_at)
    store_u64(own + _HASHED, hashed)
    store_u64(own + _FIRST, _column(row, RECORDS) + first * step)
    store_u64(own + _SLOTS, _column(row, SLOTS))
    if overlays != PLAIN:
        word = _filter_word(row, OVERLAY, mixed)
        prefetch(word)
        store_u64(block + _ABOVE + i * _8, word)
        store_u64(block + _MIXED + i * _8, mixed)
        store_u64(block + _ROW + i * _8, row)
    if overlays == TWICE_OVERLAID:
        word = _filter_word(row, RECENT, mixed)
        prefetch(word)
        store_u64(block + _RECENT + i * _8, word)


@inlined
def _ask(size: Any, stride: Any, block: Any, i: Any) -> None:
    """The second step of a block's key i: read the pilot and prefetch the record."""
    own = block + i * _KEY_BYTES
    slot = _slot_of(load_u64(own + _HASHED), np.uint64(load_u16(load_u64(own + _AT))), load_u64(own + _SLOTS))
    record = load_u64(own + _FIRST) + slot * np.uint64(stride)
    store_u64(own + _AT, record)
    for line in range(0, size, 64):
        prefetch(record + np.uint64(line))
    if stride % 64 != 0:
        prefetch(record + np.uint64(size - 1))


@compiled
def _ask_above(block: Any, size: Any, step: Any, at: Any, found: Any) -> None:
    """Prefetch the block's records in the overlay at OVERLAY or RECENT; `found` is the scratch column for their addresses."""
    listed = _0
    # There is no branch here, because the processor cannot predict which keys an overlay has.
    for i in range(size):
        # A filter has at least 64 bits, so the lowest bits of the hash are the position within the word.
        bit = (load_u64(load_u64(block + found + i * _8)) >> (load_u64(block + _MIXED + i * _8) & _63)) & _1
        store_u64(block + found + i * _8, _0)
        store_u64(block + _LISTED + listed * _8, i)
        listed += bit
    for number in range(listed):
        own = load_u64(block + _LISTED + number * _8) * _8
        above = _overlay_record(load_u64(block + _ROW + own), at, load_u64(block + _MIXED + own), step)
        prefetch(above)
        prefetch(above + step - _1)
        store_u64(block + found + own, above)


@inlined
def _look_up(
    dim: Any, stride: Any, values: Any, table: Any, reciprocal: Any, overlays: Any, keys: Any, count: Any,
    out: Any, places: Any, missing: Any, scratch: Any,
) -> Any:  # fmt: skip
    if _CHECKED and scratch.size < SCRATCH:
        raise IndexError("too little scratch")
    rows, partitions = np.uint64(table.ctypes.data), np.uint64(table.shape[0])
    step, size_of_record = np.uint64(stride), _record_bytes(dim, values)
    out_address, missing_address = np.uint64(out.ctypes.data), np.uint64(missing.ctypes.data)
    this = np.uint64(scratch.ctypes.data)
    other = this + _BLOCK_BYTES
    total = np.uint64(count)
    if _CHECKED and total > np.uint64(missing.size):
        raise IndexError("more keys than marks for the missing ones")
    lost: Any = 0
    # Unsigned indices, because numba checks whether signed ones count from the end.
    for i in range(min(_64, total)):
        _hash(_row_of(rows, partitions, reciprocal, keys[i]), overlays, step, keys[i], this, i)
    start = _0
    while start < total:
        size = min(_64, total - start)
        after = start + size
        next_size = min(_64, total - after)
        for i in range(next_size):
            _ask(size_of_record, stride, this, i)
            key = keys[after + i]
            _hash(_row_of(rows, partitions, reciprocal, key), overlays, step, key, other, i)
        for i in range(next_size, size):
            _ask(size_of_record, stride, this, i)
        if overlays == TWICE_OVERLAID:
            _ask_above(this, size, step, RECENT, _RECENT)
        if overlays != PLAIN:
            _ask_above(this, size, step, OVERLAY, _ABOVE)
        zero_bytes(missing_address + start, size)
        for i in range(size):
            key = keys[start + i]
            record = load_u64(this + i * _KEY_BYTES + _AT)
            above = load_u64(this + _ABOVE + i * _8) if overlays != PLAIN else _0
            if overlays == TWICE_OVERLAID:
                # The recent overlay's filter may be a false positive; then the overlay below decides.
                recent = load_u64(this + _RECENT + i * _8)
                if recent != _0 and load_u64(recent & ~_1) == key:
                    above = recent
            place = places[start + i]
            if _CHECKED and (place < 0 or place + 4 * dim > out.size):
                raise IndexError("a place outside the output")
            found = above if above != _0 else record
            source, target = found + _8, out_address + np.uint64(place)
            if above & _1 != _0 or load_u64(found) != key or key == _EMPTY or key == _PADDING:  # noqa: PLR1714, SIM109 (numba)
                row = _row_of(rows, partitions, reciprocal, key)
                source, absent = _slow_path(row, key, record, above, overlays)
                if absent:
                    missing[start + i] = 1
                    lost += 1
                if source == _0:
                    zero_bytes(target, np.uint64(4 * dim))
                    continue
            _put_values(dim, values, target, source)
        this, other = other, this
        start = after
    return lost


@inlined
def look_up(
    dim: Any, stride: Any, values: Any, table: Any, reciprocal: Any, overlays: Any, keys: Any, count: Any,
    out: Any, places: Any, missing: Any, scratch: Any,
) -> Any:  # fmt: skip
    """The body of `lookup_kernel`, for compiled callers to which dim, stride and the code of the kind of values are constants."""
    # Two copies, so that the copy without overlays has no branch per key for them. One or two overlays are a branch per key: it is
    # always predicted, and a third copy would take time to compile.
    if overlays == PLAIN:
        lost = _look_up(
            dim, stride, values, table, reciprocal, PLAIN, keys, count, out, places, missing, scratch
        )  # fmt: skip
    else:
        lost = _look_up(
            dim, stride, values, table, reciprocal, overlays, keys, count, out, places, missing, scratch
        )  # fmt: skip
    return lost


def lookup_kernel(dim: int, stride: int, *, values: ValueKind = "float32") -> Callable[..., int]:
    """Return the lookup for parts of that dim, stride and kind of values.

    It is called as lookup(table u64[partitions, WIDTH], reciprocal u64, overlays int, keys u64[>= count], count, out
    u8[], places i64[>= count], missing u8[>= count], scratch u64[SCRATCH]) and returns how many were missing. The
    values of keys[i] go to out[places[i]:]; missing[i] becomes 0 or 1. A key
    of a partition without a part counts as missing; a caller that must distinguish the two checks before.
    """
    code = VALUE_CODES[values]

    @compiled
    def lookup(
        table: Any,
        reciprocal: Any,
        overlays: Any,
        keys: Any,
        count: Any,
        out: Any,
        places: Any,
        missing: Any,
        scratch: Any,
    ) -> Any:
        return look_up(
            dim, stride, code, table, reciprocal, overlays, keys, count, out, places, missing, scratch
        )  # fmt: skip

    return lookup
