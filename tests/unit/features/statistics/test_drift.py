"""Drift of columns whose change is known."""

import math

import numpy as np
import pytest
from bench.drift import measured

from elastic_ctr.features.statistics.collector import Collector, merged
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.features.statistics.drift import Drift, by_chance, compared, population_stability
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput

NAN = float("nan")
INPUTS = InputColumns((TextInput("city", ""),), ("price",))


def of(cities: list[str], prices: list[float], top: int = 100) -> Statistics:
    collector = Collector(INPUTS, top)
    collector.add(cells_of([([city.encode()], [price]) for city, price in zip(cities, prices, strict=True)], INPUTS))
    return merged({"all": collector.to_bytes()})


def drawn(mean: float, seed: int, rows: int = 5000) -> Statistics:
    dice = np.random.default_rng(seed)
    return of([str(each) for each in dice.poisson(5 + mean, rows)], dice.normal(mean, 1, rows).tolist())


def by_column(drifts: list[Drift]) -> dict[str, Drift]:
    return {each.column: each for each in drifts}


def test_the_same_data_has_no_drift() -> None:
    for each in compared(drawn(0, 1), drawn(0, 1)):
        assert each.psi == 0
        assert each.missing == each.pinned_missing == 0
        assert not each.unseen


def test_drift_rises_with_the_shift() -> None:
    pinned = drawn(0, 1)
    shifted = [compared(pinned, drawn(mean, 2)) for mean in (0, 0.2, 0.5, 1, 3)]

    for column in (0, 1):
        found = [drifts[column].psi or 0.0 for drifts in shifted]
        assert found == sorted(found)
        assert found[0] < 0.02
        assert found[3] > 0.15
        assert found[4] > 1


def test_the_index_is_that_of_its_formula() -> None:
    n = 10**9

    found = population_stability([0.5 * n, 0.3 * n, 0.2 * n], [0.4 * n, 0.4 * n, 0.2 * n])

    assert found == pytest.approx(0.1 * math.log(0.5 / 0.4) + 0.1 * math.log(0.4 / 0.3), rel=1e-6)


def test_a_column_that_vanishes_is_missing_in_every_row() -> None:
    pinned, rows = of(["a", "b"], [1.0, 2.0]), 5

    for each in compared(pinned, of([""] * rows, [NAN] * rows)):
        assert (each.psi, each.pinned_missing, each.missing, each.unseen) == (None, 0, 1, None)


def test_a_series_that_is_not_collected_any_more_is_not_compared() -> None:
    pinned = drawn(0, 1)

    assert compared(pinned, Statistics(texts={}, numbers={})) == []
    assert [each.column for each in compared(pinned, Statistics(texts=pinned.texts, numbers={}))] == ["city"]


def test_values_that_the_pinned_list_lacks_are_unseen() -> None:
    pinned, later = of(["a", "b", "a", "b"], [0] * 4), of(["a", "c", "c", "d"], [0] * 4)

    found = by_column(compared(pinned, later))["city"]

    assert (found.pinned_unseen, found.unseen) == (0, 0.75)


def test_lists_that_are_too_short_show_no_new_values_where_there_are_none() -> None:
    dice = np.random.default_rng(1)

    def cities(rows: int, new: int = 0) -> list[str]:
        known = [str(each) for each in (dice.random(rows - new) ** 3 * 5000).astype(int)]
        return known + [f"new {each}" for each in dice.integers(0, 3, new)]

    pinned = of(cities(5000), [0.0] * 5000, top=50)
    same, other = (of(cities(3000, new), [0.0] * 3000, top=50) for new in (0, 1000))

    for later, rise in ((same, 0), (other, 0.33)):
        found = by_column(compared(pinned, later))["city"]
        assert found.pinned_unseen is not None
        assert found.unseen is not None
        assert found.pinned_unseen > 0.5
        # The new values take a third of what was seen before.
        assert found.unseen - found.pinned_unseen == pytest.approx(rise * (1 - found.pinned_unseen), abs=0.02)


@pytest.mark.parametrize("other", [-1.0, 8.0])
def test_a_constant_that_changes_is_drift_in_either_direction(other: float) -> None:
    pinned, later = of([""] * 100, [7.0] * 100), of([""] * 100, [other] * 100)

    assert by_column(compared(pinned, pinned))["price"].psi == 0
    assert (by_column(compared(pinned, later))["price"].psi or 0) > 1


def test_an_empty_bin_has_a_finite_index() -> None:
    assert 0 < (population_stability((100, 0), (0, 50)) or 0) < 20


def test_chance_is_no_drift_and_a_tenth_of_the_values_is() -> None:
    """A sample of `bench.drift`, which has every size and column."""
    found = list(measured(5, (500, 5_000)))

    unchanged = [each for each in found if each.change == "none"]
    assert sum(each.found for each in unchanged) <= 2
    assert sum(each.alerts for each in unchanged) == 0
    assert sum(len(each.psi) for each in unchanged) == 240
    for each in found:
        if each.change != "none":
            assert each.psi.min() > 0.02, each


@pytest.mark.parametrize("values", [2, 30, 3000])
@pytest.mark.parametrize("sizes", [(500, 500), (500, 5000), (5000, 500)], ids=str)
def test_without_a_change_the_figure_has_no_bias(values: int, sizes: tuple[int, int]) -> None:
    """Before what is within chance becomes 0: the mean of the sum is what is subtracted from it."""
    dice = np.random.default_rng(1)
    shares = np.full(values, 1 / values)
    differences = []
    for _ in range(40):
        a, b = (dice.multinomial(size, shares) for size in sizes)
        kept = np.argsort(-(a + b), kind="stable")[:100]
        p, q = ([*each[kept].tolist(), each.sum() - each[kept].sum()] for each in (a, b))
        found, mean, _ = by_chance(p, q)
        differences.append(found / mean - 1)

    assert abs(np.mean(differences)) < 4 * np.std(differences) / math.sqrt(len(differences))


def test_a_new_value_of_a_tenth_is_found_beside_a_pinned_list_that_is_too_short() -> None:
    dice = np.random.default_rng(1)
    pinned = of([str(each) for each in dice.integers(0, 300, 3000)], [0.0] * 3000, top=100)
    cities = [str(each) for each in dice.integers(0, 300, 2700)]
    same, other = (of([*cities, *new], [0.0] * 3000, top=100) for new in (cities[:300], ["new"] * 300))

    assert by_column(compared(pinned, same))["city"].psi == 0
    assert (by_column(compared(pinned, other))["city"].psi or 0) > 0.25
