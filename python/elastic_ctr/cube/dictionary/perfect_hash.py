"""Placing keys without collisions: one 16-bit pilot per about four keys, found by trying.

Keys of a sub-part fall into buckets; buckets are placed from the fullest to the emptiest, each with the first pilot
that sends its keys to free slots. A sub-part that cannot be placed is tried again under the next seed. Nothing is
random: the same keys give the same pilots.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.cube.dictionary.compiled import compiled
from elastic_ctr.cube.dictionary.hashing import Keys

SUB_PART_KEYS = 500_000  # more, and the pilots of the last buckets become hard to find
LOAD = 0.97
BUCKET_KEYS = 4
MAX_SEED = 1000

_MIX_1 = np.uint64(hashing.MIX_1)
_PILOT_STEP = np.uint64(hashing.PILOT_STEP)
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


class PlacementFailed(RuntimeError):
    """No seed places these keys."""


def slots_for(keys: int) -> int:
    """Slots of a sub-part of that many keys; at least one, so that an empty part can be asked too."""
    return max(1, int(np.ceil(keys / LOAD)))


def buckets_for(keys: int) -> int:
    return max(1, keys // BUCKET_KEYS)


def sub_parts_for(keys: int) -> int:
    return max(1, -(-keys // SUB_PART_KEYS))


@compiled
def _place(hashed: Any, slots: Any, buckets: Any, pilots: Any, places: Any) -> Any:
    """Fill pilots u16[buckets] and places i64[n]; False when some bucket finds no free slots."""
    n = hashed.size
    count = np.zeros(buckets + 1, np.int64)
    bucket_of = np.empty(n, np.int64)
    for i in range(n):
        bucket_of[i] = np.int64(((hashed[i] >> _32) * np.uint64(buckets)) >> _32)
        count[bucket_of[i]] += 1
    fullest = count.max()
    start = np.zeros(buckets + 1, np.int64)
    for bucket in range(buckets):
        start[bucket + 1] = start[bucket] + count[bucket]
    fill = start.copy()
    members = np.empty(n, np.int64)
    for i in range(n):
        members[fill[bucket_of[i]]] = i
        fill[bucket_of[i]] += 1
    # Counting sort of the buckets, the fullest first: they are the hardest to place.
    rank = np.zeros(fullest + 2, np.int64)
    for bucket in range(buckets):
        rank[fullest - count[bucket] + 1] += 1
    for size in range(fullest + 1):
        rank[size + 1] += rank[size]
    order = np.empty(buckets, np.int64)
    for bucket in range(buckets):
        order[rank[fullest - count[bucket]]] = bucket
        rank[fullest - count[bucket]] += 1
    taken = np.zeros(slots, np.uint8)
    tried = np.empty(fullest + 1, np.int64)
    for bucket in order:
        size = count[bucket]
        pilots[bucket] = 0
        if size == 0:
            continue
        placed = False
        for pilot in range(65536):
            displacement = np.uint64(pilot) * _PILOT_STEP
            free = True
            for j in range(size):
                x = (hashed[members[start[bucket] + j]] ^ displacement) * _MIX_1
                x ^= x >> _32
                slot = np.int64(((x & _LOW) * np.uint64(slots)) >> _32)
                if taken[slot] != 0:
                    free = False
                    break
                for earlier in range(j):
                    if tried[earlier] == slot:
                        free = False
                        break
                if not free:
                    break
                tried[j] = slot
            if free:
                for j in range(size):
                    taken[tried[j]] = 1
                    places[members[start[bucket] + j]] = tried[j]
                pilots[bucket] = pilot
                placed = True
                break
        if not placed:
            return False
    return True


def place(mixed: Keys, slots: int, buckets: int) -> tuple[int, NDArray[np.uint16], NDArray[np.int64]]:
    """Place the mixed keys u64[n] of one sub-part: (seed, pilots u16[buckets], slot of each key i64[n]).

    The keys must differ and n must not exceed slots. Raises PlacementFailed when no seed does it, which for distinct
    keys means that they were made to collide.
    """
    pilots = np.zeros(buckets, np.uint16)
    places = np.zeros(mixed.size, np.int64)
    for seed in range(MAX_SEED):
        hashed = hashing.seeded(mixed, np.full(1, seed, np.uint64))
        if _place(hashed, slots, buckets, pilots, places):
            return seed, pilots, places
    raise PlacementFailed(f"{mixed.size} keys find no place in {slots} slots under {MAX_SEED} seeds: they may repeat")
