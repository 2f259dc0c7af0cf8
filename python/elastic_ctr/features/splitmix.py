"""The mixing of splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): words that look random."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Its step from one word to the next."""


def mixed(words: Words) -> Words:
    """Map u64 by a bijection in which each bit of a result depends on all bits of its word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Words = words ^ (words >> np.uint64(31))
    return found
