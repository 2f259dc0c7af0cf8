"""Points beside sorted arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.statistics.sketches import FAN, POINTS, Numbers, Points, QuantileSketch, joined


def points_of(numbers: Numbers) -> Points:
    return Points(*np.unique(numbers, return_counts=True))


def rank_error(found: Numbers, ranks: Numbers, numbers: Numbers) -> float:
    """The most by which a number misses its rank, in shares of all; equal numbers have all ranks of theirs."""
    ordered = np.sort(numbers)
    low, high = (np.searchsorted(ordered, found, side=side) / len(ordered) for side in ("left", "right"))
    return float(np.maximum(low - ranks, ranks - high).max(initial=0.0))


@given(st.lists(st.lists(st.integers(-9, 9), max_size=20), max_size=40))
def test_few_different_numbers_keep_every_rank(chunks: list[list[int]]) -> None:
    quantiles = QuantileSketch()
    for chunk in chunks:
        quantiles.add(points_of(np.array(chunk, np.float64)))

    found = quantiles.points()

    every = sorted(each for chunk in chunks for each in chunk)
    assert found.at(np.arange(len(every))).tolist() == every


def test_joined_points_of_nothing_are_nothing() -> None:
    assert [len(each) for each in joined([])] == [0, 0]


@pytest.mark.parametrize("shape", ["uniform", "rising", "lognormal", "half zeros", "two heaps"])
def test_ranks_are_within_the_bound_of_two_levels(shape: str) -> None:
    dice = np.random.default_rng(1)
    chunk, chunks = 2 * POINTS, 3 * FAN + 1
    n = chunk * chunks
    numbers = {
        "uniform": dice.random(n),
        "rising": np.arange(n, dtype=np.float64),
        "lognormal": dice.lognormal(0, 3, n),
        "half zeros": np.where(dice.random(n) < 0.5, 0.0, dice.random(n)),
        "two heaps": np.where(dice.random(n) < 0.5, 1e12, 0.0) + dice.normal(0, 1e-3, n),
    }[shape]
    quantiles = QuantileSketch()
    for part in np.split(numbers, chunks):
        quantiles.add(points_of(part))

    found = quantiles.points()

    ranks = np.linspace(0, 1, 1000)
    assert len(found.values) <= POINTS
    assert int(found.weights.sum()) == len(numbers)
    places = np.minimum((ranks * len(numbers)).astype(np.int64), len(numbers) - 1)
    assert rank_error(found.at(places), ranks, numbers) <= 3.1 / (2 * POINTS)
