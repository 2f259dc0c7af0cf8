"""The builder's machine code and the definition that trainers score with give the same bytes."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elastic_ctr.cube.builder.quantise import _BLOCK, stored_rows
from elastic_ctr.features.quantiser import Values, encode
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind

LARGEST = float(np.finfo(np.float32).max)
AWKWARD = (
    0.0, -0.0, 2**-149, -(2**-149), 190 * 2**-149, 2**-126, 2**-25, 2**-24, 0.5, 63.5, 127.0, 65504.0, 65519.0, 65520.0, -7e4,
    LARGEST, -LARGEST, math.inf, -math.inf, math.nan,
)  # fmt: skip
floats = st.floats(width=32) | st.sampled_from(AWKWARD)
kinds = pytest.mark.parametrize("kind", VALUE_KINDS)


@kinds
@settings(max_examples=300)
@example(values=np.array([AWKWARD], np.float32))
@example(values=np.array([AWKWARD[:17], AWKWARD[3:]], np.float32)[:, ::-1])
@given(values=arrays.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 20)), elements=floats))
def test_rows_of_a_build_are_those_of_the_definition(kind: ValueKind, values: Values) -> None:
    assert stored_rows(values, kind).tobytes() == encode(values, kind).tobytes()


@kinds
def test_many_rows_are_those_of_the_definition(kind: ValueKind) -> None:
    rng = np.random.default_rng(1)
    # Halfway between two steps often, as the largest of a row is 127 steps; of all magnitudes, denormal ones too.
    values = rng.integers(-253, 254, (2 * _BLOCK + 5, 17)) / 2
    values[:, 5] = 127
    rows = (values * 2.0 ** rng.integers(-149, 100, (len(values), 1))).astype(np.float32)

    assert stored_rows(rows, kind).tobytes() == encode(rows, kind).tobytes()
