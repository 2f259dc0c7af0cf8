"""The lookup: keys in, values copied or summed where they are wanted, in blocks of 64 that hide memory latency.

A dependent cache miss costs hundreds of nanoseconds, one asked for in time about twenty. So a block of keys is taken
through three steps: hash and ask for the pilots; read the pilots and ask for the records; compare and copy.

Each (dim, stride) gets its own machine code, with lengths known when compiling. The kernel follows raw addresses out of
mapped files: `table` builds the rows and answers for them. With NUMBA_BOUNDSCHECK=1 every address is checked here too.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.machine_code.compiled import bounds_checked, compiled, inlined
from elastic_ctr.machine_code.intrinsics import (
    copy_bytes,
    high64,
    load_f32,
    load_u8,
    load_u16,
    load_u64,
    prefetch,
    store_f32,
    zero_bytes,
)

# Columns of a table row, one row per partition, u64. An overlay's columns are those of the full part plus OVERLAY.
PILOTS, RECORDS, SUB_PARTS, SUB_PART_COUNT, SLOTS, BUCKETS, EMPTY_KEY_AT, EMPTY_KEY_DELETED = range(8)
OVERLAY = 8
PRESENCE, PRESENCE_MASK, TOMBSTONES = 16, 17, 18
WIDTH = 24

BLOCK = 64
SCRATCH = 6 * BLOCK  # u64s that a lookup needs

_CHECKED = bounds_checked()
_EMPTY = np.uint64(hashing.EMPTY_KEY)
_PADDING = np.uint64(hashing.PADDING_KEY)
_MIX_1, _MIX_2 = np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_PILOT_STEP, _SEED_STEP = np.uint64(hashing.PILOT_STEP), np.uint64(hashing.SEED_STEP)
_LOW = np.uint64(0xFFFF_FFFF)
_0, _1, _2, _3, _4, _6, _7, _8, _16 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 6, 7, 8, 16))
_PRESENCE_WORDS, _MIXED = np.uint64(4 * BLOCK), np.uint64(5 * BLOCK)
_ROW_BYTES = np.uint64(8 * WIDTH)
_29, _32, _63, _64 = (np.uint64(number) for number in (29, 32, 63, 64))

Lookup = Callable[..., int]


@compiled
def mix(key: Any) -> Any:
    x = key ^ (key >> _32)
    x *= _MIX_1
    x ^= x >> _29
    x *= _MIX_2
    return x ^ (x >> _32)


@compiled
def partition_of(key: Any, partitions: Any, reciprocal: Any) -> Any:
    """Key % partitions by multiplication; reciprocal = (2^64 - 1) // partitions."""
    rest = key - high64(key, reciprocal) * partitions
    # The estimated quotient is exact or one too small.
    return rest - partitions if rest >= partitions else rest


@compiled
def _row_of(table: Any, key: Any, reciprocal: Any) -> Any:
    """Address of the row of a key's partition."""
    return np.uint64(table.ctypes.data) + partition_of(key, np.uint64(table.shape[0]), reciprocal) * _ROW_BYTES


@compiled
def _column(row: Any, column: Any) -> Any:
    return load_u64(row + np.uint64(8 * column))


@compiled
def _second_hash(row: Any, at: Any, mixed: Any) -> Any:
    """(second hash, sub-part) of a mixed key, under the full part (at 0) or the overlay (at OVERLAY)."""
    sub_part = high64(mixed, _column(row, at + SUB_PART_COUNT))
    seed = load_u64(_column(row, at + SUB_PARTS) + sub_part * _16)
    return mix(mixed + seed * _SEED_STEP), sub_part


@compiled
def _pilot_at(row: Any, at: Any, hashed: Any, sub_part: Any) -> Any:
    buckets = _column(row, at + BUCKETS)
    bucket = sub_part * buckets + (((hashed >> _32) * buckets) >> _32)
    if _CHECKED and bucket >= buckets * _column(row, at + SUB_PART_COUNT):
        raise IndexError("a bucket outside its part")
    return _column(row, at + PILOTS) + _2 * bucket


@compiled
def _slot_of(hashed: Any, pilot: Any, slots: Any) -> Any:
    """The slot inside its sub-part."""
    x = (hashed ^ (pilot * _PILOT_STEP)) * _MIX_1
    x ^= x >> _32
    slot = ((x & _LOW) * slots) >> _32
    if _CHECKED and slot >= slots:
        raise IndexError("a slot outside its part")
    return slot


@compiled
def _overlay_record(row: Any, mixed: Any, step: Any) -> Any:
    """Address of the record that an overlay may have of a key, its low bit set for a tombstone."""
    hashed, sub_part = _second_hash(row, OVERLAY, mixed)
    pilot = np.uint64(load_u16(_pilot_at(row, OVERLAY, hashed, sub_part)))
    slots = _column(row, OVERLAY + SLOTS)
    slot = sub_part * slots + _slot_of(hashed, pilot, slots)
    bits = _column(row, TOMBSTONES)
    gone = bits != _0 and (np.uint64(load_u8(bits + (slot >> _3))) >> (slot & _7)) & _1 != _0
    # Records are aligned: the low bit of their address is free.
    return (_column(row, OVERLAY + RECORDS) + slot * step) | (_1 if gone else _0)


@compiled
def _unusual(row: Any, key: Any, record: Any, above: Any, overlaid: Any) -> Any:
    """(address of the values or 0, whether the key is missing), for keys that the full part does not simply have."""
    if key == _PADDING:
        return _0, False
    if key == _EMPTY:
        # Its slot would look like any empty one, so its record stands in the headers.
        source = _column(row, EMPTY_KEY_AT)
        if overlaid:
            if _column(row, OVERLAY + EMPTY_KEY_DELETED) != _0:
                source = _0
            elif _column(row, OVERLAY + EMPTY_KEY_AT) != _0:
                source = _column(row, OVERLAY + EMPTY_KEY_AT)
        return source, source == _0
    standing = above & ~_1
    if standing != _0 and load_u64(standing) == key:
        return (standing + _8, False) if above == standing else (_0, True)
    return (record + _8, False) if load_u64(record) == key else (_0, True)


@inlined
def _look_up(
    dim: Any, stride: Any, accumulate: Any, table: Any, reciprocal: Any, overlaid: Any, keys: Any, count: Any, out: Any,
    places: Any, missing: Any, scratch: Any,
) -> Any:  # fmt: skip
    value_bytes, step = np.uint64(4 * dim), np.uint64(stride)
    last = np.uint64(8 + 4 * dim - 1)
    out_address = np.uint64(out.ctypes.data)
    total = np.uint64(count)
    lost: Any = 0
    start = _0
    while start < total:
        size = min(_64, total - start)
        # Per key in the first part of scratch: its pilot, then its record; its second hash, then its record in the overlay; the first
        # record and the slots of its sub-part. Unsigned places: numba looks whether signed ones count from the end.
        for i in range(size):
            row = _row_of(table, keys[start + i], reciprocal)
            mixed = mix(keys[start + i])
            hashed, sub_part = _second_hash(row, 0, mixed)
            pilot_at = _pilot_at(row, 0, hashed, sub_part)
            prefetch(pilot_at)
            slots = _column(row, SLOTS)
            own = _4 * i
            scratch[own], scratch[own + _1] = pilot_at, hashed
            scratch[own + _2], scratch[own + _3] = _column(row, RECORDS) + sub_part * slots * step, slots
            if overlaid:
                word = _column(row, PRESENCE) + _8 * ((mixed & _column(row, PRESENCE_MASK)) >> _6)
                prefetch(word)
                scratch[_PRESENCE_WORDS + i], scratch[_MIXED + i] = word, mixed
        for i in range(size):
            own = _4 * i
            slot = _slot_of(scratch[own + _1], np.uint64(load_u16(scratch[own])), scratch[own + _3])
            record = scratch[own + _2] + slot * step
            scratch[own] = record
            for line in range(0, 8 + 4 * dim, 64):
                prefetch(record + np.uint64(line))
            if stride % 64 != 0:
                prefetch(record + last)
            if overlaid:
                # A filter has at least 64 bits, so the place within its word are the lowest bits of the hash.
                mixed = scratch[_MIXED + i]
                above = _0
                if (load_u64(scratch[_PRESENCE_WORDS + i]) >> (mixed & _63)) & _1 != _0:
                    above = _overlay_record(_row_of(table, keys[start + i], reciprocal), mixed, step)
                    prefetch(above)
                    prefetch(above + last)
                scratch[own + _1] = above
        for i in range(size):
            key = keys[start + i]
            record = scratch[_4 * i]
            above = scratch[_4 * i + _1] if overlaid else _0
            source, absent = record + _8, False
            if above != _0 or load_u64(record) != key or key == _EMPTY or key == _PADDING:  # noqa: PLR1714, SIM109 (numba)
                source, absent = _unusual(_row_of(table, key, reciprocal), key, record, above, overlaid)
            place = places[start + i]
            if _CHECKED and (place < 0 or place + 4 * dim > out.size):
                raise IndexError("a place outside the output")
            target = out_address + np.uint64(place)
            if source == _0:
                if not accumulate:
                    zero_bytes(target, value_bytes)
            elif accumulate:
                for d in range(dim):
                    offset = np.uint64(4 * d)
                    store_f32(target + offset, load_f32(target + offset) + load_f32(source + offset))
            else:
                copy_bytes(target, source, value_bytes)
            missing[start + i] = np.uint8(absent)
            lost += 1 if absent else 0
        start += _64
    return lost


@inlined
def look_up(
    dim: Any, stride: Any, accumulate: Any, table: Any, reciprocal: Any, overlaid: Any, keys: Any, count: Any, out: Any,
    places: Any, missing: Any, scratch: Any,
) -> Any:  # fmt: skip
    """The body of `lookup_kernel`, for callers that are compiled themselves and know dim and stride."""
    # Twice, so that the one without overlays does not ask for them at every key.
    if overlaid:
        lost = _look_up(dim, stride, accumulate, table, reciprocal, True, keys, count, out, places, missing, scratch)
    else:
        lost = _look_up(dim, stride, accumulate, table, reciprocal, False, keys, count, out, places, missing, scratch)
    return lost


@cache
def lookup_kernel(dim: int, stride: int, *, accumulate: bool) -> Lookup:
    """The lookup for parts of that dim and stride.

    It is called as lookup(table u64[partitions, WIDTH], reciprocal u64, overlaid bool, keys u64[>= count], count,
    out u8[], places i64[>= count], missing u8[>= count], scratch u64[SCRATCH]) and returns how many were missing.
    The values of keys[i] go to out[places[i]:] (accumulate: are added there as float32); missing[i] becomes 0 or 1.
    A key whose partition is not held counts as missing: whoever must tell the two apart looks before.
    """

    @compiled
    def lookup(
        table: Any,
        reciprocal: Any,
        overlaid: Any,
        keys: Any,
        count: Any,
        out: Any,
        places: Any,
        missing: Any,
        scratch: Any,
    ) -> Any:
        return look_up(dim, stride, accumulate, table, reciprocal, overlaid, keys, count, out, places, missing, scratch)

    return lookup
