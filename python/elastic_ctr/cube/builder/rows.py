"""Moving records: into the rows of a part, into the rows of group files. Compiled, one pass each.

Rows are copied by address: whoever calls passes C-contiguous arrays of the shapes said, and values whose rows are.
"""

from typing import Any

import numpy as np

from elastic_ctr.cube.builder.hash_sort import key_of
from elastic_ctr.cube.dictionary.hashing import EMPTY_KEY
from elastic_ctr.cube.dictionary.kernel import mix
from elastic_ctr.machine_code.compiled import compiled, compiled_making_arrays
from elastic_ctr.machine_code.intrinsics import copy_bytes, prefetch, store_u32, store_u64, zero_bytes

_BLOCK = 64
_EMPTY = np.uint64(EMPTY_KEY)
_NOBODY = np.uint32(0xFFFF_FFFF)
_0, _1, _4, _6, _8, _56, _63 = (np.uint64(number) for number in (0, 1, 4, 6, 8, 56, 63))


@compiled_making_arrays
def fill(rows: Any, mixed: Any, origin: Any, values: Any, deleted: Any, places: Any) -> None:
    """Write the records section of one sub-part: rows u64[slots, stride / 8], whatever was in it before.

    mixed u64[n], origin u32[n], values f32[m, dim] and deleted bool[m] are those of a `Sorted`, places u32[n] their
    slots. A deleted key's values mean nothing: zeros, so that equal content is equal bytes.
    """
    value_bytes, stride = np.uint64(4 * values.shape[1]), np.uint64(8 * rows.shape[1])
    given, given_step = np.uint64(values.ctypes.data), np.uint64(values.strides[0])
    row = np.uint64(rows.ctypes.data)
    # Written in order, each row once: reads from all over can be asked for early, writes to all over can not.
    taker = np.full(rows.shape[0], _NOBODY, np.uint32)
    for i in range(places.size):
        taker[places[i]] = i
    keys, sources = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, rows.shape[0], _BLOCK):
        size = min(_BLOCK, rows.shape[0] - start)
        for i in range(size):
            keys[i], sources[i] = _EMPTY, _0
            record = taker[start + i]
            if record != _NOBODY:
                keys[i] = key_of(mixed[record])
                if not deleted[origin[record]]:
                    sources[i] = given + np.uint64(origin[record]) * given_step
                    prefetch(sources[i])
                    prefetch(sources[i] + value_bytes - _1)
        for i in range(size):
            store_u64(row, keys[i])
            if sources[i] == _0:
                zero_bytes(row + _8, stride - _8)
            else:
                # Zeros for the padding, if there is any; what of them is no padding is written over.
                store_u64(row + stride - _8, _0)
                copy_bytes(row + _8, sources[i], value_bytes)
            row += stride


@compiled
def scatter(keys: Any, values: Any, deleted: Any, rows: Any, ends: Any) -> None:
    """Rows u32[n, dim + 3] of key, values and deleted, by the first byte of the hash; ends i64[256] of each group.

    values are f32[n, dim]. Rows of a group keep their order.
    """
    value_bytes, step = np.uint64(4 * values.shape[1]), np.uint64(4 * rows.shape[1])
    source, source_step = np.uint64(values.ctypes.data), np.uint64(values.strides[0])
    first = np.uint64(rows.ctypes.data)
    for key in keys:
        ends[mix(key) >> _56] += 1
    at = 0
    for group in range(ends.size):
        count = ends[group]
        ends[group] = at
        at += count
    for i in range(keys.size):
        group = mix(keys[i]) >> _56
        row = first + np.uint64(ends[group]) * step
        ends[group] += 1
        store_u64(row, keys[i])
        copy_bytes(row + _8, source, value_bytes)
        store_u32(row + step - _4, np.uint32(deleted[i]))
        source += source_step


@compiled
def mark(presence: Any, mixed: Any) -> None:
    """Set the bits of these hashes in a presence filter u64[bits / 64]."""
    mask = np.uint64(presence.size * 64 - 1)
    for hashed in mixed:
        bit = hashed & mask
        presence[bit >> _6] |= _1 << (bit & _63)
