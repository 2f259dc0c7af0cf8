"""Perfect hashing by pilots: one 16-bit pilot per about four keys, found by trial.

Keys of a sub-part fall into buckets; buckets are placed from the fullest to the emptiest, each with the first pilot
that maps its keys to free slots. A sub-part that cannot be placed is tried again with the next seed. Nothing is
random: the same keys give the same pilots.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary.format import MIX_1, PILOT_STEP, SEED_STEP, Keys
from elastic_ctr.cube.dictionary.kernel import mix
from elastic_ctr.machine_code.compiled import compiled, compiled_making_arrays
from elastic_ctr.machine_code.intrinsics import trailing_zeros

SUB_PART_KEYS = 500_000  # more, and the pilots of the last buckets become hard to find
LOAD = 0.97
BUCKET_KEYS = 4
MAX_SEED = 1000
PILOTS = 65536
LANES = 32

_MIX_1 = np.uint64(MIX_1)
_PILOT_STEP = np.uint64(PILOT_STEP)
_0, _1, _6, _32, _63 = (np.uint64(number) for number in (0, 1, 6, 32, 63))
_LOW = np.uint64(0xFFFF_FFFF)


class PlacementFailed(RuntimeError):
    """No seed places these keys."""


def slots_for(keys: int) -> int:
    """Return the slots of a sub-part of that many keys; at least one, so that lookups in an empty part work."""
    return max(1, int(np.ceil(keys / LOAD)))


def buckets_for(keys: int) -> int:
    return max(1, keys // BUCKET_KEYS)


def sub_parts_for(keys: int) -> int:
    return max(1, -(-keys // SUB_PART_KEYS))


@compiled_making_arrays
def _grouped(mixed: Any, salt: Any, buckets: Any, hashes: Any, members: Any, ends: Any, sizes: Any) -> Any:
    """Group keys by bucket: hashes u64[n] and members u32[n] (the key's index) of a bucket end at ends[bucket].

    Return the size of the fullest bucket.
    """
    own = np.empty(mixed.size, np.uint64)
    bucket_of = np.empty(mixed.size, np.uint32)
    for i in range(mixed.size):
        hashed = mix(mixed[i] + salt)
        bucket = ((hashed >> _32) * np.uint64(buckets)) >> _32
        own[i], bucket_of[i] = hashed, bucket
        sizes[bucket] += np.uint32(1)
    at = np.uint32(0)
    fullest = np.uint32(0)
    for bucket in range(buckets):
        ends[bucket] = at
        at += sizes[bucket]
        fullest = max(fullest, sizes[bucket])
    for i in range(mixed.size):
        place = ends[bucket_of[i]]
        ends[bucket_of[i]] = place + np.uint32(1)
        hashes[place], members[place] = own[i], i
    return np.int64(fullest)


@compiled_making_arrays
def _fullest_first(sizes: Any, fullest: Any) -> Any:
    """Return the buckets by falling size, stably: the fullest are the hardest to place."""
    rank = np.zeros(fullest + 2, np.int64)
    for size in sizes:
        rank[fullest - np.int64(size) + 1] += 1
    for below in range(fullest + 1):
        rank[below + 1] += rank[below]
    order = np.empty(sizes.size, np.uint32)
    for bucket in range(sizes.size):
        below = fullest - np.int64(sizes[bucket])
        order[rank[below]] = bucket
        rank[below] += 1
    return order


@compiled
def _slot(hashed: Any, displacement: Any, slots: Any) -> Any:
    x = (hashed ^ displacement) * _MIX_1
    x ^= x >> _32
    return ((x & _LOW) * slots) >> _32


@compiled
def _taken(taken: Any, slot: Any) -> Any:
    return (taken[slot >> _6] >> (slot & _63)) & _1


@compiled
def _fits(hashes: Any, displacement: Any, slots: Any, taken: Any, tried: Any) -> Any:
    """True if the keys of a bucket fall on free slots, each on another one; tried is filled with these slots."""
    for j in range(hashes.size):
        slot = _slot(hashes[j], displacement, slots)
        if _taken(taken, slot) != _0:
            return False
        for earlier in range(j):
            if tried[earlier] == slot:
                return False
        tried[j] = slot
    return True


@compiled
def _first_pilot(hashes: Any, slots: Any, taken: Any, tried: Any, lanes: Any) -> Any:
    """Return the smallest pilot that maps the keys of a bucket to free slots, or -1.

    At high load nearly every pilot fails at the bucket's first key. So that key is tried under LANES pilots at once,
    in vector registers where the machine has them, and only the remaining pilots are tried in full.
    """
    for base in range(0, PILOTS, LANES):
        for lane in range(LANES):
            lanes[lane] = _slot(hashes[0], np.uint64(base + lane) * _PILOT_STEP, slots)
        free = _0
        for lane in range(LANES):
            free |= (_taken(taken, lanes[lane]) ^ _1) << np.uint64(lane)
        while free != _0:
            pilot = np.uint64(base) + trailing_zeros(free)
            if _fits(hashes, pilot * _PILOT_STEP, slots, taken, tried):
                return np.int64(pilot)
            free &= free - _1
    return -1


@compiled_making_arrays
def _place(mixed: Any, salt: Any, slots: Any, pilots: Any, places: Any) -> Any:
    """Fill pilots u16[buckets] and places u32[n]. Return False if no pilot places some bucket."""
    buckets = pilots.size
    hashes, members = np.empty(mixed.size, np.uint64), np.empty(mixed.size, np.uint32)
    ends, sizes = np.empty(buckets, np.uint32), np.zeros(buckets, np.uint32)
    fullest = _grouped(mixed, salt, buckets, hashes, members, ends, sizes)
    # One bit per slot: at most 64 KiB, which stay in the core's own cache.
    taken = np.zeros((slots >> 6) + 1, np.uint64)
    tried = np.empty(fullest + 1, np.uint64)
    lanes = np.empty(LANES, np.uint64)
    for bucket in _fullest_first(sizes, fullest):
        end = np.int64(ends[bucket])
        start = end - np.int64(sizes[bucket])
        pilots[bucket] = 0
        if start == end:
            continue
        pilot = _first_pilot(hashes[start:end], np.uint64(slots), taken, tried, lanes)
        if pilot < 0:
            return False
        pilots[bucket] = pilot
        for j in range(end - start):
            slot = tried[j]
            taken[slot >> _6] |= _1 << (slot & _63)
            places[members[start + j]] = slot
    return True


def place(mixed: Keys, slots: int, buckets: int) -> tuple[int, NDArray[np.uint16], NDArray[np.uint32]]:
    """Place the mixed keys u64[n] of one sub-part. Return (seed, pilots u16[buckets], slot of each key u32[n]).

    The keys must differ and n must not exceed slots. Raises PlacementFailed if no seed works, which for distinct keys
    means that they were chosen to collide.
    """
    pilots = np.zeros(buckets, np.uint16)
    places = np.zeros(mixed.size, np.uint32)
    for seed in range(MAX_SEED):
        salt = np.uint64(seed * SEED_STEP & 0xFFFF_FFFF_FFFF_FFFF)
        if _place(mixed, salt, slots, pilots, places):
            return seed, pilots, places
    raise PlacementFailed(f"{mixed.size} keys find no place in {slots} slots under {MAX_SEED} seeds: they may repeat")
