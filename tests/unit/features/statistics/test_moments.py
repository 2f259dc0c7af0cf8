"""Sums beside those of fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.statistics.sketches import MOST_NUMBERS, Sums, sums_of

some_numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=30)


def array(numbers: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(numbers, np.float64)


@given(some_numbers)
def test_mean_and_deviation_are_those_of_exact_fractions(numbers: list[float]) -> None:
    exact = [Fraction(each) for each in numbers]
    mean = sum(exact, Fraction()) / len(exact)
    variance = sum(((each - mean) ** 2 for each in exact), Fraction()) / len(exact)

    found = sums_of(array(numbers))

    assert found.mean == float(mean)
    least, most = (Fraction(found.deviation) + side * Fraction(math.ulp(found.deviation)) for side in (-1, 1))
    assert max(least, Fraction()) ** 2 <= variance <= most**2


@given(st.lists(some_numbers, min_size=1, max_size=5), st.randoms())
def test_sums_do_not_depend_on_how_numbers_are_cut_into_parts(parts: list[list[float]], order: object) -> None:
    whole = sums_of(array([each for part in parts for each in part]))

    found = Sums()
    for part in reversed(parts):
        found = found.plus(sums_of(array(part)))

    assert found == whole


def test_a_small_deviation_beside_a_large_mean_is_exact() -> None:
    numbers = array([1e15 + 0.125 * step for step in range(8)])

    found = sums_of(numbers)

    assert found.mean == 1e15 + 0.4375
    assert found.deviation == pytest.approx(0.125 * math.sqrt(63 / 12), rel=1e-15)


def test_the_most_numbers_with_the_longest_mantissas_are_exact() -> None:
    largest = float(np.nextafter(2.0, 1.0))

    found = sums_of(np.full(MOST_NUMBERS, largest))

    assert (found.mean, found.deviation) == (largest, 0.0)
    assert found.squares == MOST_NUMBERS * int(Fraction(largest) ** 2 * 2**2252)
