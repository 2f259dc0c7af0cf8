"""Quantiles of many numbers in bounded memory: deterministic, with a guaranteed error bound.

Numbers are kept as *points*: rising values, each with a weight, the count of numbers that it stands for. Joining points is exact.
Reducing them to `POINTS` cuts their order into as many runs of equal weight, each represented by the value in its middle; a rank
is then wrong by half a run at most, 1 / (2 POINTS) = 0.012 % of the numbers. Chunks are reduced, and `FAN` of them are joined
and reduced to one of the next level (Munro and Paterson: Selection and Sorting with Limited Storage, 1980; Manku, Rajagopalan and
Lindsay: Approximate Medians and other Quantiles in One Pass and with Limited Memory, 1998). n chunks are reduced
2 + log n / log FAN times. Equal numbers share a point: a column with no more than `POINTS` different numbers loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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


class Quantiles:
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
