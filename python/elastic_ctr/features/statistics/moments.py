"""Mean and deviation from exact sums, which do not depend on the order of addition.

A float64 is a multiple of 2^-1126, at most 53 bits times a power of two. The sums of numbers and of their squares are kept as
integers in units of 2^-1126 and 2^-2252, for which Python has no size limit, so adding parts in any order is exact. The mean is
S / n and the deviation is that of the population, sqrt(n Q - S^2) / n (Chan, Golub, LeVeque: Algorithms for Computing the Sample
Variance, 1983, formula 1.3). That formula cancels badly in floats; in integers it is exact, and one rounding follows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST_NUMBERS = 1 << 17  # numbers in one call: the sum of 2^17 products of two limbs is below 2^53, so exact in float64
_LIMB_BITS, _LIMBS = 18, 3
_MANTISSA_BITS = 53
_LEAST_EXPONENT = -1073  # the least exponent that frexp returns
_UNIT_BITS = _MANTISSA_BITS - _LEAST_EXPONENT
_GUARD_BITS = 64  # below the point of the square root


class Sums(NamedTuple):
    """The count of numbers, their sum in units of 2^-1126 and the sum of their squares in units of 2^-2252."""

    n: int = 0
    total: int = 0
    squares: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(self.n + other.n, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """The mean, rounded once; n must be above 0."""
        return self.total / (self.n << _UNIT_BITS)

    @property
    def deviation(self) -> float:
        """The deviation of the population; n must be above 0."""
        root = math.isqrt((self.n * self.squares - self.total**2) << (2 * _GUARD_BITS))
        return root / (self.n << (_UNIT_BITS + _GUARD_BITS))


def sums_of(numbers: Numbers) -> Sums:
    """Return the sums of at most `MOST_NUMBERS` finite numbers."""
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
    """Return the sum of the whole numbers, each times 2^(power * place + bits)."""
    places = np.flatnonzero(by_place)
    return sum(
        int(each) << (power * place + bits)
        for each, place in zip(by_place[places].tolist(), places.tolist(), strict=True)
    )
