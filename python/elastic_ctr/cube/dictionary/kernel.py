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
from elastic_ctr.cube.dictionary.compiled import bounds_checked, compiled, inlined
from elastic_ctr.cube.dictionary.intrinsics import (
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
SCRATCH = 4 * BLOCK  # u64s that a lookup needs: per key its partition, second hash, record, overlay record

_CHECKED = bounds_checked()
_EMPTY = np.uint64(hashing.EMPTY_KEY)
_PADDING = np.uint64(hashing.PADDING_KEY)
_MIX_1, _MIX_2 = np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_PILOT_STEP, _SEED_STEP = np.uint64(hashing.PILOT_STEP), np.uint64(hashing.SEED_STEP)
_LOW = np.uint64(0xFFFF_FFFF)
_0, _1, _2, _3, _4, _6, _7, _8, _16 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 6, 7, 8, 16))
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
def _second_hash(table: Any, row: Any, at: Any, mixed: Any) -> Any:
    """(second hash, sub-part) of a mixed key, under the full part (at 0) or the overlay (at OVERLAY)."""
    sub_part = high64(mixed, table[row, at + np.uint64(SUB_PART_COUNT)])
    seed = load_u64(table[row, at + np.uint64(SUB_PARTS)] + sub_part * _16)
    return mix(mixed + seed * _SEED_STEP), sub_part


@compiled
def _pilot_at(table: Any, row: Any, at: Any, hashed: Any, sub_part: Any) -> Any:
    buckets = table[row, at + np.uint64(BUCKETS)]
    bucket = sub_part * buckets + (((hashed >> _32) * buckets) >> _32)
    if _CHECKED and bucket >= buckets * table[row, at + np.uint64(SUB_PART_COUNT)]:
        raise IndexError("a bucket outside its part")
    return table[row, at + np.uint64(PILOTS)] + _2 * bucket


@compiled
def _slot_of(table: Any, row: Any, at: Any, hashed: Any, sub_part: Any, pilot: Any) -> Any:
    slots = table[row, at + np.uint64(SLOTS)]
    x = (hashed ^ (pilot * _PILOT_STEP)) * _MIX_1
    x ^= x >> _32
    slot = sub_part * slots + (((x & _LOW) * slots) >> _32)
    if _CHECKED and slot >= slots * table[row, at + np.uint64(SUB_PART_COUNT)]:
        raise IndexError("a slot outside its part")
    return slot


@compiled
def _perhaps_overlaid(table: Any, row: Any, mixed: Any) -> Any:
    bit = mixed & table[row, np.uint64(PRESENCE_MASK)]
    word = load_u64(table[row, np.uint64(PRESENCE)] + _8 * (bit >> _6))
    return (word >> (bit & _63)) & _1 != _0


@compiled
def _tombstone(table: Any, row: Any, slot: Any) -> Any:
    bits = table[row, np.uint64(TOMBSTONES)]
    return bits != _0 and (np.uint64(load_u8(bits + (slot >> _3))) >> (slot & _7)) & _1 != _0


@inlined
def look_up(
    dim: Any, stride: Any, accumulate: Any, table: Any, reciprocal: Any, overlaid: Any, keys: Any, count: Any, out: Any,
    places: Any, missing: Any, scratch: Any,
) -> Any:  # fmt: skip
    """The body of `lookup_kernel`, for callers that are compiled themselves and know dim and stride."""
    span = np.uint64(8 + 4 * dim)
    value_bytes = 4 * dim
    step = np.uint64(stride)
    partitions = np.uint64(table.shape[0])
    out_address = np.uint64(out.ctypes.data)
    rows, hashes, records, overlays = scratch[0:64], scratch[64:128], scratch[128:192], scratch[192:256]
    lost = 0
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        for i in range(size):
            key = keys[start + i]
            row = partition_of(key, partitions, reciprocal)
            mixed = mix(key)
            hashed, sub_part = _second_hash(table, row, _0, mixed)
            pilot_at = _pilot_at(table, row, _0, hashed, sub_part)
            prefetch(pilot_at)
            rows[i], hashes[i] = row, hashed
            records[i], overlays[i] = pilot_at, sub_part
            if overlaid:
                prefetch(table[row, np.uint64(PRESENCE)] + _8 * ((mixed & table[row, np.uint64(PRESENCE_MASK)]) >> _6))
        for i in range(size):
            row = rows[i]
            slot = _slot_of(table, row, _0, hashes[i], overlays[i], np.uint64(load_u16(records[i])))
            record = table[row, np.uint64(RECORDS)] + slot * step
            records[i] = record
            for line in range(0, 8 + value_bytes, 64):
                prefetch(record + np.uint64(line))
            if stride % 64 != 0:
                prefetch(record + span - _1)
            overlays[i] = _0
            if overlaid:
                mixed = mix(keys[start + i])
                if _perhaps_overlaid(table, row, mixed):
                    at = np.uint64(OVERLAY)
                    hashed, sub_part = _second_hash(table, row, at, mixed)
                    pilot = np.uint64(load_u16(_pilot_at(table, row, at, hashed, sub_part)))
                    slot = _slot_of(table, row, at, hashed, sub_part, pilot)
                    # Low bit of an aligned address: this slot carries a tombstone.
                    above = table[row, at + np.uint64(RECORDS)] + slot * step
                    prefetch(above)
                    prefetch(above + span - _1)
                    overlays[i] = above | (_1 if _tombstone(table, row, slot) else _0)
        for i in range(size):
            key = keys[start + i]
            source = _0
            absent = False
            if key == _PADDING:
                source = _0
            elif key == _EMPTY:
                # Its slot would look like any empty one, so its record stands in the headers.
                row = rows[i]
                source = table[row, np.uint64(EMPTY_KEY_AT)]
                if overlaid:
                    if table[row, np.uint64(OVERLAY + EMPTY_KEY_DELETED)] != _0:
                        source = _0
                    elif table[row, np.uint64(OVERLAY + EMPTY_KEY_AT)] != _0:
                        source = table[row, np.uint64(OVERLAY + EMPTY_KEY_AT)]
                absent = source == _0
            else:
                above = overlays[i] & ~_1
                if above != _0 and load_u64(above) == key:
                    absent = overlays[i] != above
                    source = _0 if absent else above + _8
                elif load_u64(records[i]) == key:
                    source = records[i] + _8
                else:
                    absent = True
            place = places[start + i]
            if _CHECKED and (place < 0 or place + value_bytes > out.size):
                raise IndexError("a place outside the output")
            target = out_address + np.uint64(place)
            if source != _0:
                if accumulate:
                    for d in range(dim):
                        offset = _4 * np.uint64(d)
                        store_f32(target + offset, load_f32(target + offset) + load_f32(source + offset))
                else:
                    copy_bytes(target, source, np.uint64(value_bytes))
            elif not accumulate:
                zero_bytes(target, np.uint64(value_bytes))
            missing[start + i] = np.uint8(1) if absent else np.uint8(0)
            if absent:
                lost += 1
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
