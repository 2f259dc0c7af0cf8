"""Decimal texts as float64, beside Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers import row_refusals
from elastic_ctr.formats.readers.text import numbers_of_texts
from formats.readers.oracle import number_of

digits = st.text("0123456789", max_size=25)
signs = st.sampled_from(["", "", "-", "+"])
exponents = st.just("") | st.tuples(st.sampled_from("eE"), signs, st.text("0123456789", max_size=4)).map("".join)
decimals = st.tuples(signs, digits, st.sampled_from(["", ".", "."]), digits, exponents).map("".join)
texts = st.one_of(
    decimals,
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(0, 1e17).map(lambda x: f"{x:.3f}"),
    st.text("0123456789+-.eEinfaty _x", max_size=9),
)


@given(st.lists(texts, max_size=20))
@example(["1e22", "1e23", "9007199254740992e22", "9007199254740993e22", "0.1", "123456789012345678.5", "1" * 400])
@example(["0e999999999", "-0e-999999999", "1e99999999999", "1e-99999999999", "0" * 30 + "1", "0." + "0" * 40 + "1"])
@example(["18446744073709551615", "18446744073709551616", "36893488147419103232", "9999999999999999999.5"])
@example(
    [".5", "1.", "-.5e3", "+1.e-3", "." + "1" * 25, "1" * 25 + ".", ".", "+.", "-", ".e5", "1.e", "1..", ".5.", "1.."]
)
def test_a_decimal_text_is_the_nearest_float64_and_anything_else_is_not(given_: list[str]) -> None:
    data = np.frombuffer("".join(given_).encode(), np.uint8)
    ends = np.cumsum([len(text) for text in given_], dtype=np.int64)
    spans = np.stack([ends - [len(text) for text in given_], ends], axis=-1).astype(np.int64).reshape(-1, 1, 2)

    numbers, cells = numbers_of_texts(data.copy(), spans, np.zeros(len(given_), np.uint8))

    codes = np.zeros((len(given_), 1), np.uint8) if cells is None else cells
    names = {row_refusals.NOT_A_NUMBER: Reason.NOT_A_NUMBER, row_refusals.NOT_FINITE: Reason.NOT_FINITE}
    for text, number, code in zip(given_, numbers[:, 0].tolist(), codes[:, 0].tolist(), strict=True):
        expected = number_of(text)
        if isinstance(expected, Reason):
            assert names[code] == expected, text
        else:
            assert (code, number.hex()) == (row_refusals.FINE, expected.hex()), text
