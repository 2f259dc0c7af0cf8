import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from elastic_ctr.features.quantiser import LARGEST_HALF, Values, _scales, decode, encode, quantised, value_bytes
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind

QUANTISED: tuple[ValueKind, ...] = ("float16", "int8")
LARGEST = (2**24 - 1) * 2**104  # of float32
AWKWARD = (0.0, -0.0, 2**-149, -(2**-149), 2**-126, 65504.0, 65519.0, 65520.0, -7e4, float(LARGEST), 2**-24, 0.5, 127.0)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(AWKWARD)
shapes = st.tuples(st.integers(0, 6), st.integers(1, 20))
rows = arrays.arrays(np.float32, shapes, elements=floats)


def row(*values: float) -> Values:
    return np.array([values], np.float32)


def error_bound(values: Values, kind: ValueKind) -> NDArray[np.float64]:
    """Return the bound of |quantised - value| by row and column, for finite values f32[n, dim]."""
    if kind == "float32":
        return np.zeros(values.shape)
    size = np.abs(values.astype(np.float64))
    bound = np.maximum(np.maximum(size * 2.0**-11, 2.0**-25), size - LARGEST_HALF)
    if kind == "int8":
        bound[:, 1:] = _scales(size[:, 1:].max(axis=1, initial=0.0))[:, None] / 2
    return np.asarray(bound, np.float64)


@pytest.mark.parametrize("kind", VALUE_KINDS)
@given(values=rows)
def test_a_quantised_value_differs_by_no_more_than_the_bound(kind: ValueKind, values: Values) -> None:
    error = np.abs(quantised(values, kind).astype(np.float64) - values)

    assert (error <= error_bound(values, kind)).all()


@given(values=rows.filter(lambda values: values.shape[1] > 1))
def test_a_byte_times_its_scale_is_exact_and_the_scale_as_small_as_can_be(values: Values) -> None:
    stored = encode(values, "int8")
    scales, steps = stored[:, :4].copy().view(np.float32)[:, 0].tolist(), stored[:, 6:].view(np.int8)

    for scale, own, answered, given_ in zip(scales, steps, quantised(values, "int8"), values, strict=True):
        assert [Fraction(scale) * int(step) for step in own] == [Fraction(value) for value in answered[1:].tolist()]
        least = max(Fraction(abs(value)) for value in given_[1:].tolist()) / 127
        # At the end of float32's range it is the largest that has 127 steps.
        least = min(least, Fraction(LARGEST // 127 // 2**105 * 2**105))
        assert least <= Fraction(scale) <= max(least * (1 + Fraction(2) ** -16), least + Fraction(2) ** -149)
        assert -127 <= own.min() <= own.max() <= 127


@given(values=rows.filter(lambda values: values.shape[1] > 1))
def test_a_step_is_the_nearest_one_and_of_two_the_even_one(values: Values) -> None:
    stored = encode(values, "int8")

    for scale, steps, own in zip(
        stored[:, :4].copy().view(np.float32)[:, 0], stored[:, 6:].view(np.int8), values, strict=True
    ):
        if scale > 0:
            assert steps.tolist() == [round(Fraction(float(value)) / Fraction(float(scale))) for value in own[1:]]


@pytest.mark.parametrize("kind", VALUE_KINDS)
@given(values=arrays.arrays(np.float32, shapes, elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)))
def test_quantising_again_changes_nothing(kind: ValueKind, values: Values) -> None:
    # Scales below float32's normal range have too few bits for it.
    assume((np.abs(values[values != 0]) > 1e-30).all())
    once = quantised(values, kind)

    assert quantised(once, kind).tobytes() == once.tobytes()


@pytest.mark.parametrize("kind", VALUE_KINDS)
@given(values=rows)
def test_stored_rows_have_the_bytes_of_their_kind_and_the_given_rows_are_unchanged(
    kind: ValueKind, values: Values
) -> None:
    before = values.copy()

    stored = encode(values, kind)

    assert stored.shape == (len(values), value_bytes(values.shape[1], kind))
    assert decode(stored, values.shape[1], kind).shape == values.shape
    assert values.tobytes() == before.tobytes()


@given(values=rows)
def test_float32_is_kept_bit_by_bit(values: Values) -> None:
    assert quantised(values, "float32").tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", QUANTISED)
def test_zeros_stay_zeros(kind: ValueKind) -> None:
    assert quantised(np.zeros((3, 5), np.float32), kind).tobytes() == bytes(60)
    assert quantised(row(0, 0, 9, 0), kind)[0, [0, 1, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [65504.0, 65519.0, 65520.0, 1e30, math.inf])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_half_is_clamped_to_the_largest_one(value: float, sign: int) -> None:
    assert quantised(row(sign * value), "float16").tolist() == [[sign * 65504.0]]
    assert quantised(row(sign * value, 1), "int8")[0, 0] == sign * 65504.0


def test_a_half_lies_at_the_nearest_and_of_two_at_the_even_one() -> None:
    assert quantised(row(1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11)), "float16").tolist() == [[1, 1 + 2**-9, -1]]
    assert quantised(row(2**-24, 2**-25, 2**-25 * 1.5), "float16").tolist() == [[2**-24, 0, 2**-24]]
    assert np.signbit(quantised(row(-0.0), "float16")).all()


@example(weight=60000.0)
@given(weight=floats)
def test_the_first_order_weight_does_not_coarsen_the_vector(weight: float) -> None:
    with_weight, without = quantised(row(weight, 0.01, -0.02), "int8"), quantised(row(0, 0.01, -0.02), "int8")

    assert with_weight[0, 1:].tolist() == without[0, 1:].tolist()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_vector_is_answered_with_nan_and_no_other_row_is(broken: float) -> None:
    values = np.array([[1, 2, 3], [1, broken, 3], [4, 5, 6]], np.float32)

    answered = quantised(values, "int8")

    assert np.isnan(answered[1, 1:]).all()
    assert np.isfinite(answered[[0, 2]]).all()


def test_at_dim_17_a_row_of_bytes_is_22_long() -> None:
    assert [value_bytes(17, kind) for kind in VALUE_KINDS] == [68, 34, 22]
