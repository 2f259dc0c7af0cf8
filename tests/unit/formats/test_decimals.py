"""Decimal numbers beside Python's own reading of them."""

import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_ctr.formats.decimals import nearest_float

mantissas = st.integers(0, 10**19 - 1) | st.integers(2**53 - 2, 2**53 + 2) | st.integers(0, 2**20)
halves = st.builds(lambda odd, shift: (2 * odd + 1) << shift, st.integers(2**52, 2**53 - 1), st.integers(0, 9))


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


@given(mantissas | halves, st.integers(-300, 288) | st.integers(-30, 30))
@example(9007199254740993, 0)
@example(1103521695340550300, -2)
def test_a_decimal_number_is_the_float_nearest_to_it(mantissa: int, power: int) -> None:
    found, known = nearest_float(np.uint64(mantissa), power)

    assert known
    assert bits(found) == bits(float(f"{mantissa}e{power}"))


@given(st.floats(min_value=1e-280, max_value=1e280))
def test_the_shortest_text_of_a_float_is_that_float_again(number: float) -> None:
    _, digits, exponent = Decimal(repr(number)).as_tuple()

    found, known = nearest_float(np.uint64(int("".join(map(str, digits)))), int(exponent))

    assert known
    assert bits(found) == bits(number)


@pytest.mark.parametrize("power", [-301, 289, 400, -400, 1 << 20])
def test_a_number_that_may_be_too_large_or_too_small_is_not_known(power: int) -> None:
    _, known = nearest_float(np.uint64(7), power)

    assert not known
