"""The order of a build: distinct keys by their hash. Hashes are spread evenly, so one counting pass nearly sorts them."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.dictionary.kernel import mix
from elastic_ctr.machine_code.compiled import compiled

Origins = NDArray[np.uint32]

_CROWD = 64  # in one place of the counting pass: hashes of chosen keys, or a key that repeats


def by_hash(keys: Keys) -> tuple[Keys, Origins]:
    """(mixed u64[m] rising, origin u32[m]): each distinct key once, where it was given last. n must be below 2^32."""
    mixed, origin = np.empty(keys.size, np.uint64), np.empty(keys.size, np.uint32)
    bits = max(1, int(keys.size).bit_length() - 1)
    if not _nearly_sort(keys, np.uint64(64 - bits), np.zeros(1 << bits, np.uint32), mixed, origin):
        hashed = hashing.mix(keys)
        order = np.argsort(hashed, kind="stable")
        mixed[:], origin[:] = hashed[order], order
    distinct = _settle(mixed, origin)
    return mixed[:distinct], origin[:distinct]


def unmix(mixed: Keys) -> Keys:
    """The key of a hash: mix is a bijection, so that a build need not keep both."""
    keys = np.empty(mixed.size, np.uint64)
    _unmix_all(mixed, keys)
    return keys


@compiled
def _nearly_sort(keys: Any, shift: Any, ends: Any, mixed: Any, origin: Any) -> Any:
    """Scatter the hashes by their upper bits, keeping the order of equal ones. False where too many fall together."""
    for i in range(keys.size):
        ends[mix(keys[i]) >> shift] += np.uint32(1)
    at = np.uint32(0)
    for place in range(ends.size):
        count = ends[place]
        if count > _CROWD:
            return False
        ends[place] = at
        at += count
    for i in range(keys.size):
        hashed = mix(keys[i])
        place = hashed >> shift
        mixed[ends[place]], origin[ends[place]] = hashed, i
        ends[place] += np.uint32(1)
    return True


@compiled
def _settle(mixed: Any, origin: Any) -> Any:
    """Sort by insertion what is sorted but for neighbours, and keep the last of equal hashes. Returns how many stay."""
    for i in range(1, mixed.size):
        hashed, given = mixed[i], origin[i]
        place = i
        while place > 0 and mixed[place - 1] > hashed:
            mixed[place], origin[place] = mixed[place - 1], origin[place - 1]
            place -= 1
        mixed[place], origin[place] = hashed, given
    kept = 0
    for i in range(mixed.size):
        if i + 1 < mixed.size and mixed[i + 1] == mixed[i]:
            continue
        mixed[kept], origin[kept] = mixed[i], origin[i]
        kept += 1
    return kept


_UNMIX_1 = np.uint64(pow(hashing.MIX_1, -1, 1 << 64))
_UNMIX_2 = np.uint64(pow(hashing.MIX_2, -1, 1 << 64))
_29, _32, _58 = (np.uint64(number) for number in (29, 32, 58))


@compiled
def key_of(mixed: Any) -> Any:
    """The inverse of `mix`."""
    x = mixed ^ (mixed >> _32)
    x *= _UNMIX_2
    x ^= (x >> _29) ^ (x >> _58)
    x *= _UNMIX_1
    return x ^ (x >> _32)


@compiled
def _unmix_all(mixed: Any, keys: Any) -> Any:
    for i in range(mixed.size):
        keys[i] = key_of(mixed[i])


def sub_part_bounds(mixed: Keys, sub_parts: int) -> NDArray[np.int64]:
    """Where each sub-part begins among rising hashes, and where the last ends: i64[sub_parts + 1]."""
    # The smallest hash whose high product with sub_parts is `number`.
    first = [-(-(number << 64) // sub_parts) for number in range(sub_parts)]
    begins = np.searchsorted(mixed, np.array(first, np.uint64))
    return cast("NDArray[np.int64]", np.append(begins, mixed.size))
