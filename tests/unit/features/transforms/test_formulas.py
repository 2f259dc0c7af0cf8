"""The transforms of a cell, beside the same in plain Python."""

import math
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_ctr.features.transforms import formulas
from elastic_ctr.features.transforms.formulas import Texts

number = st.floats(allow_nan=False, allow_infinity=False, width=64)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(number)
def test_log1p_is_defined_for_every_number_and_keeps_its_sign(x: float) -> None:
    assert formulas.log1p(x) == pytest.approx(math.copysign(math.log1p(abs(x)), x))


def test_log1p_of_small_counts_is_what_is_computed_to_the_bit() -> None:
    for count in (*range(1030), *(count + 0.5 for count in range(1030))):
        assert formulas.log1p(float(count)) == math.log1p(count)
        assert formulas.log1p(-float(count)) == -math.log1p(count)


small = st.floats(-1e6, 1e6)


@given(small, small, st.floats(1e-6, 1e6))
def test_standardized_and_scaled_numbers_follow_their_formulas(x: float, low: float, width: float) -> None:
    assert formulas.standardize(x, low, width) == (x - low) / width
    assert formulas.min_max(x, low, low + width) == ((x - low) / (low + width - low) if low + width > low else 0.0)
    assert formulas.standardize(x, low, 0.0) == formulas.min_max(x, low, low) == 0.0


@given(number, number, number)
@example(1e308, -1e308, 1e308)
@example(-1.7e308, -1.7e308, 1.7e308)
@example(1.7e308, -1.7e308, 5e-324)
def test_every_number_is_scaled_to_a_finite_one_whatever_the_statistics_are(x: float, low: float, high: float) -> None:
    # Differences of such numbers are infinite as floats.
    difference, largest = Fraction(x) - Fraction(low), Fraction(sys.float_info.max)

    for found, unit in (
        (formulas.standardize(x, low, high), Fraction(high)),
        (formulas.min_max(x, low, high), Fraction(high) - Fraction(low)),
    ):
        assert math.isfinite(found)
        exact = difference / unit if unit > 0 else Fraction(0)
        assert found == pytest.approx(float(min(max(exact, -largest), largest)), rel=1e-15, abs=1e-300)


@given(number, st.integers(0, 6))
def test_rounded_numbers_are_clean_and_without_a_negative_zero(x: float, digits: int) -> None:
    found = formulas.rounded(x, digits)

    assert found != 0 or math.copysign(1, found) == 1
    assert found == (x if abs(x) >= 2**53 else np.round(x, digits))


@pytest.mark.parametrize("x", [1.7e308, -1.7e308, 2.0**53])
def test_a_number_without_digits_to_round_stays_as_it_is(x: float) -> None:
    assert formulas.rounded(x, 15) == x


@given(number, st.integers(0, 15))
def test_a_rounded_category_is_a_whole_number_that_an_i64_can_hold(x: float, digits: int) -> None:
    found = formulas.whole(x, digits)

    bounded = min(max(x * 10.0**digits, -(2.0**63) + 1024), 2.0**63 - 1024)
    assert found == round(bounded)


@given(st.floats(allow_nan=False))
def test_a_number_too_large_for_the_network_becomes_its_largest(x: float) -> None:
    found = formulas.to_float32(x)

    assert math.isfinite(found)
    with np.errstate(over="ignore"):
        assert found == np.float32(x) or abs(x) > np.finfo(np.float32).max


@given(st.lists(number, unique=True, max_size=10).map(sorted), number, st.integers(0, 3), st.integers(0, 3))
def test_a_bucket_begins_with_its_boundary(boundaries: list[float], x: float, before: int, after: int) -> None:
    array = np.array([0.0] * before + boundaries + [0.0] * after)

    found = formulas.bucket_of(x, array, before, before + len(boundaries))

    assert found == sum(boundary <= x for boundary in boundaries)


@given(st.lists(st.text()), st.text(min_size=1))
def test_a_value_has_the_key_of_its_feature_and_text(values: list[str], name: str) -> None:
    found = formulas.keys_of_texts(name, Texts.of([each.encode() for each in values]))

    assert found.tolist() == [max(xxhash.xxh3_64_intdigest(f"{name}\0{each}".encode()), 1) for each in values]


@pytest.mark.parametrize(("found", "key"), [(0, 1), (1, 1), (2**64 - 1, 2**64 - 2), (7, 7)])
def test_a_hash_that_is_no_key_becomes_its_neighbour(found: int, key: int) -> None:
    assert int(formulas.key_of_hash(np.uint64(found))) == key


@given(st.sets(st.integers(1, 2**64 - 2), max_size=20), st.integers(1, 2**64 - 2))
def test_a_key_outside_a_vocabulary_becomes_that_of_all_others(known: set[int], key: int) -> None:
    vocabulary = np.array([0, *sorted(known)], np.uint64)

    for each in (key, *known):
        found = int(formulas.in_vocabulary(np.uint64(each), vocabulary, 1, len(vocabulary), np.uint64(5)))
        assert found == (each if each in known else 5)


@given(i64)
def test_a_whole_number_is_written_as_python_writes_it(x: int) -> None:
    room = np.zeros(3 + formulas.MOST_DIGITS, np.uint8)

    end = formulas.write_decimals(np.int64(x), room, 3)

    assert room[3:end].tobytes() == b"%d" % x


words_in_python = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


@given(st.text(max_size=30) | st.from_regex(r"[aB9 ,.\u00e4-]{0,20}"))
def test_the_words_of_a_text_are_its_runs_of_letters_and_digits(text: str) -> None:
    data = np.frombuffer(b"x" + text.encode() + b"y", np.uint8).copy()
    words, ends = np.zeros(len(data), np.uint8), np.zeros(len(data), np.int64)

    count = formulas.write_words(data, 1, len(data) - 1, words, ends)

    wanted = [word.lower() for word in words_in_python.findall(text.encode())]
    starts = [0, *(int(end) + 1 for end in ends)]
    assert [words[start:end].tobytes() for start, end in zip(starts, ends[:count].tolist(), strict=False)] == wanted
