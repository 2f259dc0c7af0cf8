"""Numbers of any size: each is trained near 1 or refused by name, the same by trainers, statistics and serving."""

import json
import math
from typing import Any

import numpy as np
import pytest

from elastic_ctr.config.feature_program import measured_inputs, transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.statistics import numbers_out_of_scale
from elastic_ctr.features.statistics.collector import Collector, merged
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.features.transforms.row_loop import MOST_OF_NETWORK
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.line import Reason
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.rows_json import parse_rows
from elastic_ctr.serving.request_error import BadRequest
from elastic_ctr.training.trainer.measurement import Measurement

SIZES = [
    0.0,
    5e-324,
    2.2e-308,
    1e-30,
    1e-7,
    0.1,
    1.0,
    9.99,
    1e3,
    1e6,
    1000001.0,
    1e9,
    1.7e12,
    9007199254740993.0,
    1.8e19,
]
SIZES += [1e20, 1.1e20, 1e30, 3.4e38, 3.5e38, 1e100, 1e200, 1.7976931348623157e308]
AWKWARD = [sign * size for size in SIZES for sign in (1.0, -1.0)]
TRANSFORMS: dict[str, Any] = {
    "nothing": None,
    "raw": [],
    "log1p": ["log1p"],
    "standardize": ["standardize"],
    "clipped": [{"clip": [-5, 5]}],
    "scaled": ["log1p", "minMax"],
}
USUAL = [float(number % 10 + 1) for number in range(2000)]


def features_of(transform: Any) -> Features:
    number = {"type": "numeric", "missing": 0} | ({} if transform is None else {"transform": transform})
    return Features.model_validate({"x": number, "u": {"type": "categorical"}})


def statistics_of(features: Features, numbers: list[float]) -> Statistics:
    """Of the rows that a first pass would accept."""
    measurement = Measurement(*measured_inputs(features))
    cells = cells_of([([b"u"], [x]) for x in numbers], transformer_of(features.without_statistics(), None).inputs)
    beyond = measurement.beyond(cells)
    return merged({"all": measurement.collected([cells.only(np.delete(np.arange(len(cells)), [*beyond]))])})


def made(transform: Any, numbers: list[float]) -> Transformer:
    return transformer_of(features_of(transform), statistics_of(features_of(transform), numbers))


def transformed(transformer: Transformer, numbers: list[float]) -> tuple[list[float], dict[int, str]]:
    """What the network gets of each number, and why rows are refused."""
    cells = cells_of([([b"u"], [x]) for x in numbers], transformer.inputs)
    found = transformer.transform(cells)
    refused = {row: detail for row, reason, detail in transformer.refusals(cells, found)}
    assert [found.lengths[row] for row in refused] == [0] * len(refused)
    assert len(found.keys) == len(numbers) - len(refused)
    return found.numbers[:, 0].tolist(), refused


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_every_number_is_near_1_or_refused_by_the_name_of_its_column(transform: Any) -> None:
    transformer = made(transform, [*USUAL, *AWKWARD])

    numbers, refused = transformed(transformer, AWKWARD)

    for row, (x, number) in enumerate(zip(AWKWARD, numbers, strict=True)):
        if row in refused:
            assert abs(x) > MOST_OF_NETWORK
            assert refused[row].startswith(f"the column 'x' is {x:g}")
        else:
            assert abs(number) <= MOST_OF_NETWORK
    assert all((row in refused) == (abs(x) > 1e20) for row, x in enumerate(AWKWARD) if transform != [])


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_statistics_of_the_first_pass_leave_out_the_rows_that_are_refused(transform: Any) -> None:
    features = features_of(transform)
    cells = cells_of(
        [([b"u"], [x]) for x in [*AWKWARD, math.nan]], transformer_of(features.without_statistics(), None).inputs
    )

    beyond = Measurement(*measured_inputs(features)).beyond(cells)

    assert set(beyond) == set(transformed(made(transform, [*USUAL, *AWKWARD]), AWKWARD)[1])


def test_a_request_is_refused_by_the_row_and_column_that_training_refuses() -> None:
    transformer = made(None, USUAL)
    schema = Schema(transformer.slots, transformer, "d" * 64)

    def asked(x: float) -> Any:
        return parse_rows(json.dumps({"instances": [{"x": 5}, {"x": x, "u": "u"}]}).encode(), schema, 10).numbers

    assert asked(1e12).tolist() == [[pytest.approx(-0.1740777)], [10]]
    with pytest.raises(
        BadRequest, match=r"^instances\[1\]: the column 'x' is 1e\+30; a number has a size of at most 1e\+20$"
    ):
        asked(1e30)


def test_a_number_that_its_steps_make_too_large_is_refused_with_its_feature() -> None:
    cells = cells_of([([b"u"], [1e12])], made([], USUAL).inputs)
    transformer = made([], USUAL)

    [(row, reason, detail)] = transformer.refusals(cells, transformer.transform(cells))

    assert (row, reason) == (0, Reason.NUMBER_TOO_LARGE)
    assert detail == (
        "the column 'x' is 1e+12, of which the feature 'x' makes 1e+12; the network takes sizes up to 1e+06, so clip or standardize it."
    )


def test_a_number_without_transform_is_standardized_and_clipped_to_ten_deviations() -> None:
    transformer = made(None, USUAL)
    mean, deviation = np.mean(USUAL), np.std(USUAL)

    numbers, refused = transformed(transformer, [1.0, 5.5, 10.0, 1e3, -1e15, math.nan])

    assert numbers == pytest.approx([(1 - mean) / deviation, 0, (10 - mean) / deviation, 10, -10, 0])
    assert not refused


@pytest.mark.parametrize("outliers", [[1e30], [1e12], [1e12, 1e6, -1e18, 1e19], [1e20] * 15], ids=str)
def test_damaged_numbers_of_the_first_pass_leave_the_others_apart(outliers: list[float]) -> None:
    numbers, _ = transformed(made(None, [*USUAL, *outliers]), [1.0, 5.5, 10.0])

    assert numbers == pytest.approx(transformed(made(None, USUAL), [1.0, 5.5, 10.0])[0], abs=0.01)


@pytest.mark.parametrize("rare", [1, 10, 20, 1000], ids=lambda count: f"{count} of 2,000")
def test_a_value_that_few_rows_have_is_no_outlier_where_all_others_are_the_same(rare: int) -> None:
    numbers, _ = transformed(made(None, [1.0] * rare + [0.0] * (2000 - rare)), [0.0, 1.0])

    assert numbers[1] - numbers[0] > 1


@pytest.mark.parametrize("constant", [0.0, 7.5, -1e19])
def test_a_constant_column_is_0_and_later_numbers_are_finite(constant: float) -> None:
    numbers, refused = transformed(made(None, [constant] * 100), [constant, 3.0, math.nan])

    assert numbers == [0, 0, 0]
    assert not refused


def test_a_column_without_any_number_is_0() -> None:
    assert transformed(made(None, [math.nan] * 5), [3.0, math.nan])[0] == [0, 0]


def test_statistics_of_an_earlier_release_with_numbers_beyond_the_bound_are_taken() -> None:
    features = features_of(None)
    inputs, series = measured_inputs(features)
    collector = Collector(inputs)
    rows = cells_of([([b"u"], [x]) for x in [*USUAL, 1e308, -1e308]], inputs)
    collector.add(type(rows)(rows.data, rows.begins, rows.ends, series.of(rows.numbers)))

    numbers, _ = transformed(transformer_of(features, merged({"all": collector.to_bytes()})), [1.0, 10.0])

    assert numbers == pytest.approx([-1.5667, 1.5667], abs=0.01)


@pytest.mark.parametrize(
    ("transform", "others", "told"),
    [
        ([], [11.0], "features.x: the network gets numbers up to 11, and learns from numbers near 1: leave `transform` out"),
        (["log1p"], [-1e12], "features.x: the network gets numbers up to -27.631, and learns"),
        (["standardize"], [1e12], "features.x: a few numbers such as 1e+12 make the deviation 2.23495e+10, and it is 2.87228 without them"),
        ([], [], ""),
        (None, [1e12], ""),
        (["standardize"], [], ""),
        ([{"clip": [0, 10]}], [1e12], ""),
        (["log1p", "standardize"], [1e12], ""),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_far_from_1_are_told(transform: Any, others: list[float], told: str) -> None:
    features = features_of(transform)
    found = numbers_out_of_scale(features, statistics_of(features, [*USUAL, *others]))

    assert [each.startswith(told) for each in found] == ([True] if told else [])
