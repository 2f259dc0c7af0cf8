"""Where a key lives in its partition: sub-part, bucket and slot, as numpy arithmetic over whole arrays.

This is the definition. The compiled kernel repeats it key by key and is tested against it; a change here is a new
format version, because files already written were placed by it.
"""

from typing import cast

import numpy as np

from elastic_ctr.features import keys as key_rules

Keys = key_rules.Keys

EMPTY_KEY = 0xFFFF_FFFF_FFFF_FFFF  # marks an empty slot; a real record of that key stands in the header

MIX_1 = 0x9E37_79B9_7F4A_7C15
MIX_2 = 0xBF58_476D_1CE4_E5B9
PILOT_STEP = 0x517C_C1B7_2722_0A95
SEED_STEP = 0xD6E8_FEB8_6659_FD93

_LOW = np.uint64(0xFFFF_FFFF)
_32 = np.uint64(32)


def mix(keys: Keys) -> Keys:
    """A bijection of 64 bits that spreads neighbouring keys apart. Different keys stay different."""
    x = keys ^ (keys >> _32)
    x = x * np.uint64(MIX_1)
    x ^= x >> np.uint64(29)
    x *= np.uint64(MIX_2)
    return cast("Keys", x ^ (x >> _32))


def high_product(values: Keys, factor: int) -> Keys:
    """The upper 64 bits of value * factor, for a factor below 2^32: spreads 64-bit values over `factor` places."""
    f = np.uint64(factor)
    return cast("Keys", ((values >> _32) * f + (((values & _LOW) * f) >> _32)) >> _32)


def seeded(mixed: Keys, seeds: Keys) -> Keys:
    """The second hash of a mixed key, under the seed of its sub-part."""
    return mix(mixed + seeds * np.uint64(SEED_STEP))


def bucket_of(hashed: Keys, buckets: int) -> Keys:
    """The bucket inside a sub-part, from the upper half of the second hash."""
    return cast("Keys", ((hashed >> _32) * np.uint64(buckets)) >> _32)


def slot_of(hashed: Keys, pilots: Keys, slots: int) -> Keys:
    """The slot inside a sub-part: the second hash, displaced by the pilot of its bucket."""
    x = hashed ^ (pilots * np.uint64(PILOT_STEP))
    x = x * np.uint64(MIX_1)
    x ^= x >> _32
    return cast("Keys", ((x & _LOW) * np.uint64(slots)) >> _32)
