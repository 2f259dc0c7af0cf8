"""What `statistics.json` promises to readers."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.statistics.document import BUCKETS, NumberStatistics, Statistics, TextStatistics, series_of
from elastic_ctr.formats.inputs import TextInput

number = st.floats(allow_nan=False, allow_infinity=False, width=64)


def numbers(values: list[float]) -> NumberStatistics:
    grid = np.quantile(values, np.arange(BUCKETS + 1) / BUCKETS, method="inverted_cdf").tolist()
    return NumberStatistics(
        rows=len(values), missing=0, distinct=len(set(values)), min=grid[0], max=grid[-1], mean=0.0, deviation=0.0,
        quantiles=tuple(grid),
    )  # fmt: skip


def some() -> Statistics:
    city = TextStatistics(
        rows=4, missing=1, values=3, distinct=2, mean_bytes=5.5, top=(("Malmö", 2), ('"\n', 1)), count_error=0
    )
    return Statistics(texts={"city": city}, numbers={"price": numbers([1.0, 2.0, 4.0, 0.1]), "age": numbers([3.0])})


def test_the_text_is_the_same_after_reading_and_in_any_order_of_columns() -> None:
    statistics = some()

    text = statistics.to_json()

    assert Statistics.from_json(text) == statistics
    assert Statistics.from_json(text).digest == statistics.digest
    turned = statistics.model_copy(update={"numbers": dict(reversed(statistics.numbers.items()))})
    assert turned.to_json() == text
    assert '"countError":0' in text
    assert "Malmö" in text


def test_other_statistics_have_another_digest() -> None:
    other = some().model_copy(update={"texts": {}})

    assert len(other.digest) == 64
    assert other.digest != some().digest


@given(st.lists(number, min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_lies_between_the_kept_ones_around_it(values: list[float], q: float) -> None:
    column = numbers(values)

    found = column.quantile(q)

    place = int(q * BUCKETS)
    assert column.quantiles[place] <= found <= column.quantiles[min(place + 1, BUCKETS)]


@pytest.mark.parametrize("n", [2, 64, 1024, 4096])
def test_boundaries_of_a_power_of_two_are_kept_quantiles(n: int) -> None:
    values = np.random.default_rng(1).normal(size=10_000)
    column = numbers(values.tolist())

    found = [column.quantile(i / n) for i in range(1, n)]

    assert found == np.quantile(values, np.arange(1, n) / n, method="inverted_cdf").tolist()


def test_a_quantile_that_does_not_exist_is_refused() -> None:
    nothing = NumberStatistics(
        rows=1, missing=1, distinct=0, min=None, max=None, mean=None, deviation=None, quantiles=()
    )

    with pytest.raises(ValueError, match="has no number in any row"):
        nothing.quantile(0.5)
    with pytest.raises(ValueError, match=r"the quantile 1\.5 does not exist"):
        numbers([1.0]).quantile(1.5)


def without_a_quantile(document: Any) -> None:
    document["numbers"]["age"]["quantiles"].pop()


def falling(document: Any) -> None:
    document["numbers"]["age"]["quantiles"][7] = 99.0


def of(column: str, **figures: object) -> Any:
    def damage(document: Any) -> None:
        document["texts" if column == "city" else "numbers"][column].update(figures)

    return damage


def with_a_quantile_beyond(document: Any) -> None:
    document["numbers"]["price"]["quantiles"][-1] = 5.0


def with_a_stranger(document: Any) -> None:
    document["texts"]["city"]["mode"] = "x"


def of_another_format(document: Any) -> None:
    document["format"] = 2


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (without_a_quantile, r"numbers\.age: .*1 numbers have 4096 quantiles, not 4097"),
        (falling, r"numbers\.age: .*the quantiles fall somewhere"),
        (of("age", missing=2), r"numbers\.age: .*2 of 1 rows are missing; analyze the data again"),
        (of("city", missing=5), r"texts\.city: .*5 of 4 rows are missing"),
        (of("price", min=9.0), r"numbers\.price: .*the least number 9 is above the greatest 4; analyze"),
        (of("price", min=1.0), r"numbers\.price: .*quantiles are outside of 1 to 4; analyze"),
        (with_a_quantile_beyond, r"numbers\.price: .*quantiles are outside of 0\.1 to 4; analyze"),
        (of("city", top=[["a", 1], ["a", 1]]), r"texts\.city: .*top has a value more than once"),
        (
            of("city", top=[["a", 1], ["b", -1]]),
            r"texts\.city: .*top has an empty value, or one that occurs less than once",
        ),
        (of("city", top=[["", 1]]), r"texts\.city: .*top has an empty value"),
        (of("city", top=[["a", 1], ["b", 2]]), r"texts\.city: .*the counts of top rise somewhere"),
        (of("city", top=[["a", 10**30]]), r"texts\.city: .*top counts 10{30} of 3 values"),
        (with_a_stranger, r"texts\.city\.mode: "),
        (of_another_format, "format: "),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(damage: Any, sentence: str) -> None:
    document = json.loads(some().to_json())
    damage(document)

    with pytest.raises(ValueError, match=rf"statistics\.json is damaged: {sentence}"):
        Statistics.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"texts": {}, "numbers": {"a": NaN}}'])
def test_a_text_that_is_no_statistics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"statistics\.json is damaged"):
        Statistics.from_json(text)


def test_a_column_that_is_read_in_two_ways_has_two_names() -> None:
    assert [series_of(TextInput("tags", each)) for each in ("", "|")] == ["tags", "tags[|]"]
