"""The hash of a key and its constants. A change here is a new format version: they place the keys of every written file."""

from typing import cast

import numpy as np

from elastic_ctr.features import keys as key_rules

Keys = key_rules.Keys

EMPTY_KEY = 0xFFFF_FFFF_FFFF_FFFF  # marks an empty slot; a real record of that key stands in the header

MIX_1 = 0x9E37_79B9_7F4A_7C15
MIX_2 = 0xBF58_476D_1CE4_E5B9
PILOT_STEP = 0x517C_C1B7_2722_0A95
SEED_STEP = 0xD6E8_FEB8_6659_FD93

_32 = np.uint64(32)


def mix(keys: Keys) -> Keys:
    """A bijection of 64 bits that spreads neighbouring keys apart. Different keys stay different."""
    x = keys ^ (keys >> _32)
    x = x * np.uint64(MIX_1)
    x ^= x >> np.uint64(29)
    x *= np.uint64(MIX_2)
    return cast("Keys", x ^ (x >> _32))
