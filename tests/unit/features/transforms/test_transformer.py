"""Whole features of random rows, beside the same in plain Python."""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.config.feature_program import NeedsStatistics, OtherStatistics, measured_inputs, transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.statistics.collector import Collector, merged
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.features.transforms.row_loop import MOST_KEYS, MOST_OF_COLUMN, MOST_OF_NETWORK
from elastic_ctr.features.transforms.transformer import TooManyKeys
from elastic_ctr.formats.cells import cells_of

GIVEN: dict[str, dict[str, Any]] = {
    "age": {"type": "bucketized", "boundaries": [18, 30, 65]},
    "age_raw": {"type": "numeric", "column": "age", "transform": [], "missing": -1},
    "by_age": {"type": "crossed", "of": ["user", "age"]},
    "colour": {"type": "categorical", "vocabulary": ["red", "grün"]},
    "grid": {"type": "crossed", "of": ["tags", "user", "price_bin"], "hash": 11},
    "price": {"type": "numeric", "transform": ["log1p", {"clip": [0, 5]}, {"round": 3}], "missing": 0},
    "price_bin": {"type": "categorical", "column": "price", "round": 1},
    "tags": {"type": "categorical", "separator": "|", "pooling": "mean"},
    "title": {"type": "text", "ngrams": [1, 2], "hash": 1000},
    "user": {"type": "categorical"},
    "user_bin": {"type": "categorical", "column": "user", "hash": 7},
}
FEATURES = Features.model_validate(GIVEN)
WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
text = st.text(max_size=8) | st.sampled_from(["", "a", "a|b", "red", "grün", "||", "Big red-Dog 7"])
number = st.floats(allow_infinity=False, allow_nan=False, width=64) | st.just(math.nan)
rows = st.lists(
    st.tuples(st.fixed_dictionaries(dict.fromkeys(("colour", "tags", "title", "user"), text)), number, number),
    max_size=8,
)


def key(name: str, value: bytes) -> int:
    return max(xxhash.xxh3_64_intdigest(name.encode() + b"\0" + value), 1)


def bounded(name: str, found: list[int]) -> list[int]:
    buckets = GIVEN[name].get("hash")
    return [key(name, b"%d" % (each % buckets)) for each in found] if buckets else found


def in_python(texts: dict[str, str], age: float, price: float) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Keys by slot, and numbers."""
    words = [word.lower() for word in WORD.findall(texts["title"].encode())]
    grams = [b" ".join(words[at : at + n]) for at in range(len(words)) for n in (1, 2) if at + n <= len(words)]
    colour = texts["colour"].encode()
    found = {
        "age": [] if math.isnan(age) else [key("age", b"%d" % sum(each <= age for each in (18, 30, 65)))],
        "colour": [key("colour", colour if colour.decode() in ("red", "grün") else b"")] if colour else [],
        "price_bin": [] if math.isnan(price) else [key("price_bin", b"%d" % whole(price * 10))],
        "tags": [key("tags", each) for each in texts["tags"].encode().split(b"|") if each],
        "title": [key("title", each) for each in grams],
        "user": [key("user", texts["user"].encode())] if texts["user"] else [],
        "user_bin": [key("user_bin", texts["user"].encode())] if texts["user"] else [],
    }
    for name in ("by_age", "grid"):
        parts = itertools.product(*(found[part] for part in GIVEN[name]["of"]))
        found[name] = [key(name, b"".join(each.to_bytes(8, "little") for each in combined)) for combined in parts]
    logged = math.copysign(math.log1p(abs(price)), price)
    numbers = {
        "age_raw": -1.0 if math.isnan(age) else age,
        "price": 0.0 if math.isnan(price) else float(np.round(min(max(logged, 0.0), 5.0), 3)),
    }
    return {name: bounded(name, keys) for name, keys in found.items()}, numbers


def whole(x: float) -> int:
    return round(min(max(x, -(2.0**63) + 1024), 2.0**63 - 1024))


@given(rows)
@settings(max_examples=300)
def test_keys_and_numbers_of_rows_are_those_of_plain_python(given_: list[tuple[dict[str, str], float, float]]) -> None:
    transformer = transformer_of(FEATURES, None)
    read = transformer.inputs
    cells = cells_of(
        [
            (
                [texts[each.column].encode() for each in read.texts],
                [{"age": age, "price": price}[name] for name in read.numbers],
            )
            for texts, age, price in given_
        ],
        read,
    )

    found = transformer.transform(cells)

    slots = list(transformer.slots)
    assert (str(found.numbers.dtype), str(found.keys.dtype)) == ("float32", "uint64")
    too_large = [
        abs(np.float32(min(max(age, -1e9), 1e9))) > MOST_OF_NETWORK or abs(price) > MOST_OF_COLUMN
        for _, age, price in given_
    ]
    assert found.refused.tolist() == [row for row, is_large in enumerate(too_large) if is_large]
    lists = np.split(found.keys, np.cumsum(found.lengths)[:-1]) if len(found.lengths) else []
    for row, (texts, age, price) in enumerate(given_):
        if too_large[row]:
            assert not found.lengths[row * len(slots) : (row + 1) * len(slots)].any()
            continue
        keys, numbers = in_python(texts, age, price)
        of_row = [each.tolist() for each in lists[row * len(slots) : (row + 1) * len(slots)]]
        assert dict(zip(slots, of_row, strict=True)) == keys
        wanted = [np.float32(numbers[name]) for name in transformer.numbers]
        assert found.numbers[row].tolist() == pytest.approx(wanted, rel=1e-6)


def test_the_order_of_features_is_that_of_their_names_whatever_the_file_says() -> None:
    other = Features.model_validate(dict(reversed(GIVEN.items())))

    assert list(other.root) == sorted(GIVEN)
    assert other.model_dump_json() == FEATURES.model_dump_json()


def test_a_row_with_too_many_keys_is_named_and_the_others_are_whole() -> None:
    transformer = transformer_of(Features.model_validate({"w": {"type": "categorical", "separator": " "}}), None)
    many = " ".join(["x"] * (MOST_KEYS + 1)).encode()

    found = transformer.transform(cells_of([([b"a"], []), ([many], []), ([b"b c"], [])], transformer.inputs))

    assert found.refused.tolist() == [1]
    assert found.lengths.tolist() == [1, 0, 2]
    assert found.keys.tolist() == [key("w", each) for each in (b"a", b"b", b"c")]


def test_many_rows_have_room_whatever_their_number_of_keys() -> None:
    transformer = transformer_of(Features.model_validate({"w": {"type": "categorical", "separator": " "}}), None)
    cell = " ".join(map(str, range(3000))).encode()

    found = transformer.transform(cells_of([([cell], [])] * 200, transformer.inputs))

    assert found.lengths.tolist() == [3000] * 200
    assert found.keys.reshape(200, -1)[[0, 199]].tolist() == [[key("w", b"%d" % each) for each in range(3000)]] * 2


def statistics_of(features: Features, given_: list[tuple[list[bytes], list[float]]]) -> Statistics:
    read = transformer_of(features.without_statistics(), None).inputs
    inputs, series = measured_inputs(features)
    collector = Collector(inputs)
    cells = cells_of(given_, read)
    collector.add(type(cells)(cells.data, cells.begins, cells.ends, series.of(cells.numbers)))
    return merged({"a": collector.to_bytes()})


NEEDING: dict[str, Any] = {
    "price": {"type": "numeric", "transform": ["log1p", "standardize"]},
    "price_bin": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 4}},
    "scaled": {"type": "numeric", "column": "price", "transform": ["minMax"], "missing": 0.5},
    "user": {"type": "categorical", "vocabulary": {"top": 1}},
}


def test_features_take_what_they_need_of_the_statistics() -> None:
    features = Features.model_validate(NEEDING)
    prices = [0.0, 1.0, 3.0, 7.0, 15.0]
    users = [b"u1", b"u2", b"u1", b"u3", b"u1"]
    rows_ = [([user], [price]) for user, price in zip(users, prices, strict=True)]
    statistics = statistics_of(features, rows_)
    transformer = transformer_of(features, statistics)

    found = transformer.transform(cells_of([*rows_, ([b""], [math.nan])], transformer.inputs))

    logs = np.log1p(prices)
    standardized, scaled = found.numbers.T
    assert standardized[:5].tolist() == pytest.approx(((logs - logs.mean()) / logs.std()).tolist(), rel=1e-6)
    assert standardized[5] == 0  # the mean, standardized
    assert scaled.tolist() == pytest.approx([0, 1 / 15, 3 / 15, 7 / 15, 1, 0.5])
    keys = found.keys[: 2 * 5].reshape(5, 2)
    assert [each.tolist() for each in keys[:, 1]] == [key("user", u if u == b"u1" else b"") for u in users]
    assert keys[:, 0].tolist() == [key("price_bin", b"%d" % np.searchsorted([1, 3, 7], x, "right")) for x in prices]
    assert found.lengths.reshape(6, 2)[5].tolist() == [0, 0]


def test_numbers_whose_range_no_float_holds_are_scaled_as_all_others() -> None:
    features = Features.model_validate(
        {
            "least": {"type": "numeric", "column": "x", "transform": ["minMax"]},
            "mean": {"type": "numeric", "column": "x", "transform": ["standardize"]},
            "u": {"type": "categorical"},
        }
    )
    rows_ = [([b"u"], [x]) for x in (1e308, -1e308, 0.0, math.nan)]
    transformer = transformer_of(features, statistics_of(features, rows_))

    found = transformer.transform(cells_of(rows_, transformer.inputs))

    assert found.numbers[:, 0].tolist() == [1, 0, 0.5, 0.5]
    assert found.numbers[:, 1].tolist() == pytest.approx([1.5**0.5, -(1.5**0.5), 0, 0])


@pytest.mark.parametrize("name", sorted(NEEDING))
def test_a_feature_that_needs_statistics_says_so(name: str) -> None:
    features = Features.model_validate({name: NEEDING[name], "other": {"type": "categorical"}})

    assert features.needs_statistics == (name,)
    with pytest.raises(NeedsStatistics, match=rf"features\.{name} needs the statistics of the data"):
        transformer_of(features, None)


@pytest.mark.parametrize("name", sorted(NEEDING))
def test_statistics_of_other_data_are_refused(name: str) -> None:
    features = Features.model_validate({name: NEEDING[name], "other": {"type": "categorical"}})
    others = Features.model_validate({"else": {"type": "categorical"}, "cost": {"type": "numeric", "transform": []}})
    statistics = statistics_of(others, [([b"x"], [1.0])])

    with pytest.raises(OtherStatistics, match=r"needs the statistics of (price|user).*these are of (cost|else)"):
        transformer_of(features, statistics)


def test_rows_that_make_too_many_keys_together_are_refused_before_they_fill_the_memory() -> None:
    lists = {name: {"type": "categorical", "separator": " "} for name in ("a", "b")}
    transformer = transformer_of(Features.model_validate({**lists, "ab": {"type": "crossed", "of": ["a", "b"]}}), None)
    cell = " ".join(map(str, range(250))).encode()

    with pytest.raises(TooManyKeys, match="more than 8388608 keys together; send fewer at a time"):
        transformer.transform(cells_of([([cell, cell], [])] * 200, transformer.inputs))
    assert (
        len(transformer.transform(cells_of([([cell, cell], [])] * 100, transformer.inputs).part(0, 100)).keys)
        == 6_300_000
    )


def test_clips_that_differ_in_their_seventh_digit_have_statistics_of_their_own() -> None:
    clips = {
        f"to_{high}": {"type": "numeric", "column": "x", "transform": [{"clip": [0, high]}, "minMax"]}
        for high in (1234567, 1234568)
    }
    features = Features.model_validate({**clips, "u": {"type": "categorical"}})

    statistics = statistics_of(features, [([b"u"], [float(x)]) for x in (0, 1234567, 9999999)])

    assert {name: each.max for name, each in statistics.numbers.items()} == {
        "x": 9999999, "x:clip(0.0,1234567.0)": 1234567, "x:clip(0.0,1234568.0)": 1234568,
    }  # fmt: skip
