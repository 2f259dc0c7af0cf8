"""The transforms of features, beside the same in plain Python."""

import math
import re
from itertools import pairwise, product

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features import transforms
from elastic_ctr.features.transforms import KeysOfRows, Texts
from elastic_ctr.features.xxh3 import Offsets

number = st.floats(allow_nan=False, allow_infinity=False, width=64)
some_numbers = st.lists(number, max_size=30)
i64 = st.integers(-(2**63), 2**63 - 1)
some_keys = st.lists(st.lists(st.integers(1, 2**64 - 1), max_size=4), max_size=8)


def key(name: str, text: bytes) -> int:
    return max(xxhash.xxh3_64_intdigest(name.encode() + b"\0" + text), 1)


def rows_of(keys: list[list[int]]) -> KeysOfRows:
    flat = np.array([each for row in keys for each in row], np.uint64)
    return KeysOfRows(flat, np.cumsum([0, *map(len, keys)], dtype=np.int64))


def lists(found: KeysOfRows) -> list[list[int]]:
    return [part.tolist() for part in np.split(found.keys, found.offsets[1:-1])] if len(found.offsets) > 1 else []


def texts_of(found: Texts, rows: Offsets) -> list[list[bytes]]:
    each = [found.data[a:b].tobytes() for a, b in pairwise(found.offsets)]
    return [each[a:b] for a, b in pairwise(rows)]


@given(some_numbers)
def test_log1p_is_defined_for_every_number_and_keeps_its_sign(given_: list[float]) -> None:
    found = transforms.log1p(np.array(given_, np.float64))

    for x, y in zip(given_, found.tolist(), strict=True):
        assert y == pytest.approx(math.copysign(math.log1p(abs(x)), x))


@given(some_numbers, number, st.floats(0, 1e6))
def test_standardized_and_scaled_numbers_follow_their_formulas(x: list[float], low: float, width: float) -> None:
    array = np.array(x, np.float64)
    with np.errstate(over="ignore"):
        standardized = transforms.standardize(array, low, width).tolist()
        scaled = transforms.min_max(array, low, low + width).tolist()

    assert standardized == [(each - low) / width if width > 0 else 0.0 for each in x]
    assert scaled == [(each - low) / (low + width - low) if low + width > low else 0.0 for each in x]


@given(some_numbers, st.integers(0, 6))
def test_rounded_numbers_are_clean_and_without_a_negative_zero(x: list[float], digits: int) -> None:
    found = transforms.rounded(np.array(x, np.float64), digits)

    assert not np.signbit(found[found == 0]).any()
    assert found.tolist() == pytest.approx([round(each, digits) for each in x], rel=1e-12, abs=10.0**-digits / 1000)


def test_a_number_without_digits_to_round_stays_as_it_is() -> None:
    largest = np.array([1.7e308, -1.7e308, 2.0**53])

    assert transforms.rounded(largest, 15).tolist() == largest.tolist()


@given(st.lists(i64, max_size=50))
def test_whole_numbers_are_written_as_python_writes_them(numbers: list[int]) -> None:
    found = transforms.decimals(np.array(numbers, np.int64))

    assert found.data.tobytes() == b"".join(b"%d" % each for each in numbers)
    assert np.diff(found.offsets).tolist() == [len(str(each)) for each in numbers]


@given(st.lists(st.text()), st.text(min_size=1))
def test_a_value_has_the_key_of_its_feature_and_text(values: list[str], name: str) -> None:
    found = transforms.keys_of_texts(name, Texts.of([each.encode() for each in values]))

    assert found.tolist() == [key(name, each.encode()) for each in values]


@given(st.lists(i64))
def test_a_whole_number_and_its_text_are_one_value(numbers: list[int]) -> None:
    texts = Texts.of([b"%d" % each for each in numbers])

    found = transforms.keys_of_numbers("age", np.array(numbers, np.int64))

    assert found.tolist() == transforms.keys_of_texts("age", texts).tolist()


@given(st.lists(st.text(min_size=1, max_size=2)), st.sets(st.text(min_size=1, max_size=2)))
def test_values_outside_a_vocabulary_share_one_key(values: list[str], known: set[str]) -> None:
    keys = transforms.keys_of_texts("city", Texts.of([each.encode() for each in values]))
    vocabulary = np.sort(transforms.keys_of_texts("city", Texts.of([each.encode() for each in known])))

    found = transforms.in_vocabulary(keys, vocabulary, transforms.key_of_others("city"))

    assert found.tolist() == [key("city", each.encode() if each in known else b"") for each in values]


@given(st.lists(st.integers(1, 2**64 - 1)), st.integers(1, 1000))
def test_hashed_values_have_no_more_keys_than_buckets(keys: list[int], buckets: int) -> None:
    found = transforms.hashed("user", np.array(keys, np.uint64), buckets)

    assert found.tolist() == [key("user", b"%d" % (each % buckets)) for each in keys]


@given(some_numbers, st.lists(number, unique=True, max_size=10).map(sorted))
def test_a_bucket_begins_with_its_boundary(x: list[float], boundaries: list[float]) -> None:
    found = transforms.buckets_of(np.array(x, np.float64), np.array(boundaries, np.float64))

    assert found.tolist() == [sum(boundary <= each for boundary in boundaries) for each in x]


@given(st.integers(1, 3).flatmap(lambda parts: st.lists(st.tuples(*[st.lists(i64, max_size=3)] * parts), max_size=6)))
def test_a_cross_has_a_key_for_each_combination_of_a_row(rows: list[tuple[list[int], ...]]) -> None:
    parts = len(rows[0]) if rows else 2
    given_ = [[[each % 2**64 for each in row[part]] for row in rows] for part in range(parts)]

    found = transforms.crossed("user_item", [rows_of(part) for part in given_])

    assert lists(found) == [
        [
            key("user_item", b"".join(each.to_bytes(8, "little") for each in combination))
            for combination in product(*row)
        ]
        for row in zip(*given_, strict=True)
    ]


words_in_python = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


@given(st.lists(st.text(max_size=30) | st.from_regex(r"[aB9 ,.\u00e4-]{0,20}")), st.integers(1, 3), st.integers(0, 2))
def test_words_and_their_runs_are_those_of_each_text(texts: list[str], least: int, more: int) -> None:
    wanted = [[word.lower() for word in words_in_python.findall(each.encode())] for each in texts]

    tokens, words_of = transforms.words(Texts.of([each.encode() for each in texts]))
    grams, grams_of = transforms.ngrams(tokens, words_of, least, least + more)

    assert texts_of(tokens, words_of) == wanted
    assert texts_of(grams, grams_of) == [
        [
            b" ".join(row[first : first + n])
            for first in range(len(row))
            for n in range(least, least + more + 1)
            if first + n <= len(row)
        ]
        for row in wanted
    ]
