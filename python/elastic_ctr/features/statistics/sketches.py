"""Summaries of a column's numbers that are joined from parts of the data in any order: quantiles in bounded memory, and exact moments.

For quantiles, numbers are kept as *points*: rising values, each with a weight, the count of numbers that it stands for. Joining points
is exact.
Reducing them to `POINTS` cuts their order into as many runs of equal weight, each represented by the value in its middle; a rank
is then wrong by half a run at most, 1 / (2 POINTS) = 0.012 % of the numbers. Chunks are reduced, and `FAN` of them are joined
and reduced to one of the next level (Munro and Paterson: Selection and Sorting with Limited Storage, 1980; Manku, Rajagopalan and
Lindsay: Approximate Medians and other Quantiles in One Pass and with Limited Memory, 1998). n chunks are reduced
2 + log n / log FAN times. Equal numbers share a point: a column with no more than `POINTS` different numbers loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

POINTS = 4096
FAN = 16


class Points(NamedTuple):
    """Rising values, and the count of numbers that each stands for."""

    values: Numbers
    weights: Integers

    @classmethod
    def none(cls) -> Points:
        return cls(np.empty(0, np.float64), np.empty(0, np.int64))

    def reduced(self) -> Points:
        """Return at most `POINTS` points with the same total weight."""
        if len(self.values) <= POINTS:
            return self
        ends = np.cumsum(self.weights)
        cuts = np.arange(POINTS + 1) * ends[-1] // POINTS
        weights = np.diff(cuts)
        return joined([Points(self._at(ends, cuts[:-1] + weights // 2), weights)])

    def at(self, ranks: Integers) -> Numbers:
        """Return the number at each rank, counted from 0, in the order of all numbers."""
        return self._at(np.cumsum(self.weights), ranks)

    def _at(self, ends: Integers, ranks: Integers) -> Numbers:
        return self.values[np.searchsorted(ends, ranks, side="right")]


def joined(parts: Iterable[Points]) -> Points:
    """Merge all points, with one point for equal values."""
    every = [Points.none(), *parts]
    values = np.concatenate([each.values for each in every])
    order = np.argsort(values, kind="stable")
    values, weights = values[order], np.concatenate([each.weights for each in every])[order]
    if not len(values):
        return Points.none()
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return Points(values[first], np.add.reduceat(weights, first))


class QuantileSketch:
    """Collects chunks of numbers as points."""

    def __init__(self) -> None:
        self._levels: list[list[Points]] = []

    def add(self, chunk: Points) -> None:
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(chunk.reduced())
            if len(self._levels[level]) < FAN:
                return
            chunk = joined(self._levels[level])
            self._levels[level] = []
            level += 1

    def points(self) -> Points:
        return self.all_points().reduced()

    def all_points(self) -> Points:
        """Return the points without the last reduction: fewer than `FAN` times `POINTS` of each level."""
        return joined(each for level in self._levels for each in level)


MOST_NUMBERS = 1 << 17  # numbers in one call: the sum of 2^17 products of two limbs is below 2^53, so exact in float64
_LIMB_BITS, _LIMBS = 18, 3
_MANTISSA_BITS = 53
_LEAST_EXPONENT = -1073  # the least exponent that frexp returns
_UNIT_BITS = _MANTISSA_BITS - _LEAST_EXPONENT
_GUARD_BITS = 64  # below the point of the square root


class Sums(NamedTuple):
    """The count of numbers, their sum in units of 2^-1126 and the sum of their squares in units of 2^-2252.

    A float64 is a multiple of 2^-1126, at most 53 bits times a power of two. Python has no size limit for these whole numbers, so adding
    parts in any order is exact. The mean is S / n and the deviation is that of the population, sqrt(n Q - S^2) / n (Chan, Golub, LeVeque:
    Algorithms for Computing the Sample Variance, 1983, formula 1.3). That formula cancels badly in floats; in whole numbers it is exact,
    and one rounding follows.
    """

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
