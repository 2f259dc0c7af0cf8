"""Mean and deviation from exact sums: the order in which numbers are added cannot change them.

A float64 is a whole number of 2^-1126, of at most 53 bits times a power of two. The sums of numbers and of their squares are kept as
whole numbers of 2^-1126 and 2^-2252, which Python holds at any size, so that adding parts is exact, in any order. The mean is
S / n and the deviation is that of the population, sqrt(n Q - S^2) / n (Chan, Golub, LeVeque: Algorithms for Computing the Sample
Variance, 1983, formula 1.3). That formula cancels badly in floats; in whole numbers it is exact, and one rounding follows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST_NUMBERS = 1 << 17  # at once: 2^17 products of two limbs have a sum below 2^53, which a float64 holds exactly
_LIMB_BITS, _LIMBS = 18, 3
_MANTISSA_BITS = 53
_LEAST_EXPONENT = -1073  # that frexp gives
_UNIT_BITS = _MANTISSA_BITS - _LEAST_EXPONENT
_GUARD_BITS = 64  # below the point of the square root


class Sums(NamedTuple):
    """Of numbers: how many, their sum in 2^-1126 and that of their squares in 2^-2252."""

    n: int = 0
    total: int = 0
    squares: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(self.n + other.n, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """Rounded once; there must be a number."""
        return self.total / (self.n << _UNIT_BITS)

    @property
    def deviation(self) -> float:
        """Of the population; there must be a number."""
        root = math.isqrt((self.n * self.squares - self.total**2) << (2 * _GUARD_BITS))
        return root / (self.n << (_UNIT_BITS + _GUARD_BITS))


def sums_of(numbers: Numbers) -> Sums:
    """The sums of at most `MOST_NUMBERS` finite numbers."""
    if not len(numbers):
        return Sums()
    fractions, exponents = np.frexp(numbers)
    places = exponents - _LEAST_EXPONENT
    mantissas = np.ldexp(np.abs(fractions), _MANTISSA_BITS).astype(np.int64)
    mask = (1 << _LIMB_BITS) - 1
    limbs = [((mantissas >> (_LIMB_BITS * limb)) & mask).astype(np.float64) for limb in range(_LIMBS)]
    total = squares = 0
    for i, limb in enumerate(limbs):
        total += _shifted(np.bincount(places, np.copysign(limb, numbers)), 1, _LIMB_BITS * i)
        for j in range(i + 1):
            times = 1 if i == j else 2
            squares += times * _shifted(np.bincount(places, limb * limbs[j]), 2, _LIMB_BITS * (i + j))
    return Sums(len(numbers), total, squares)


def _shifted(by_place: npt.NDArray[Any], power: int, bits: int) -> int:
    """The sum of the whole numbers, each times 2^(power * place + bits)."""
    places = np.flatnonzero(by_place)
    return sum(
        int(each) << (power * place + bits)
        for each, place in zip(by_place[places].tolist(), places.tolist(), strict=True)
    )
