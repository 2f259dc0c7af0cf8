"""Columns of pyarrow as cells."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers.batches import ColumnsRefused, RefusedRow, Wanted
from elastic_ctr.formats.readers.record_batches import batches_of, cells_of_record_batch
from formats.readers.oracle import Row, rows_of, wanted_of

TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
LISTS = (pa.list_, pa.large_list)
OF_LIST = st.sampled_from(
    [pa.string(), pa.large_string(), pa.int32(), pa.bool_(), pa.dictionary(pa.int8(), pa.string())]
)
short = st.text(st.sampled_from("ab é√😀"), max_size=3)


def texts_of(array: Any, separator: str = "") -> list[bytes]:
    """The text cells of one column."""
    wanted = wanted_of(["x" + separator])
    [batch] = batches_of(pa.RecordBatch.from_pydict({"x": array}), wanted, "part", 0)
    assert not batch.refused
    return [batch.cells.text(row, 0) for row in range(len(batch.cells))]


def numbers_of(array: Any) -> list[str]:
    batch = cells_of_record_batch(pa.RecordBatch.from_pydict({"x": array}), wanted_of(numbers=["x"]), "part")
    assert not batch.refused
    return [number.hex() for number in batch.cells.numbers[:, 0].tolist()]


def as_text(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"" if value is None else str(value).encode()


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_a_text_is_its_bytes_and_null_is_empty(kind: Any) -> None:
    values = ["dropped", "", None, " é√😀 ", 'a"b,', "x" * 1000, "dropped"]

    assert texts_of(pa.array(values, kind)[1:-1]) == [as_text(value) for value in values[1:-1]]


def test_a_decimal_is_a_number_and_a_date_is_its_text() -> None:
    decimals = [Decimal("12.50"), None, Decimal("-0.01")]
    dates = [date(2020, 4, 1), None]

    assert numbers_of(pa.array(decimals, pa.decimal128(9, 2))) == [(12.5).hex(), "nan", (-0.01).hex()]
    assert texts_of(pa.array([Decimal(2**63), None], pa.decimal128(38, 0))) == [b"9223372036854775808", b""]
    for kind in (pa.date32(), pa.date64()):
        assert texts_of(pa.array(dates, kind)) == [b"2020-04-01", b""]


@pytest.mark.parametrize("kind", WHOLE, ids=str)
def test_a_whole_number_is_its_decimals_and_a_float64(kind: Any) -> None:
    bits = kind.bit_width
    signed = str(kind).startswith("int")
    values = [0, 7, None, 2 ** (bits - signed) - 1, -(2 ** (bits - 1)) if signed else 1]

    assert texts_of(pa.array(values, kind)[1:]) == [as_text(value) for value in values[1:]]
    expected = [math.nan if value is None else float(value) for value in values]
    assert numbers_of(pa.array(values, kind)) == [number.hex() for number in expected]


def test_a_truth_value_is_true_or_false() -> None:
    assert texts_of(pa.array([True, None, False])) == [b"true", b"", b"false"]


def test_a_dictionary_is_decoded() -> None:
    assert texts_of(pa.array(["a", None, "b", "a"]).dictionary_encode()) == [b"a", b"", b"b", b"a"]
    assert texts_of(pa.array([7, None, 8, 7]).dictionary_encode()[1:]) == [b"", b"8", b"7"]
    assert numbers_of(pa.array([1.5, None]).dictionary_encode()) == [(1.5).hex(), "nan"]


def test_a_column_of_nulls_is_missing() -> None:
    assert texts_of(pa.nulls(2)) == [b"", b""]
    assert numbers_of(pa.nulls(2)) == ["nan", "nan"]


def test_bytes_that_stand_behind_a_null_are_not_read() -> None:
    nothing = pa.py_buffer(bytes([0b10]))
    offsets, data = pa.array([0, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"oldx")

    assert texts_of(pa.Array.from_buffers(pa.string(), 2, [nothing, offsets, data])) == [b"", b"x"]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_float_is_itself_and_null_is_missing(kind: Any) -> None:
    values = [1.5, -0.0, None]

    assert numbers_of(pa.array(values, kind)) == [(1.5).hex(), (-0.0).hex(), "nan"]


def test_a_whole_number_above_2_to_the_53_is_rounded_to_the_nearest() -> None:
    values = [2**53 + 1, 2**53 + 3, 2**63 - 1, 2**64 - 1025, 2**64 - 1024]

    assert numbers_of(pa.array(values, pa.uint64())) == [float(value).hex() for value in values]


@given(
    st.lists(st.none() | st.lists(st.none() | short, max_size=4), max_size=6), st.sampled_from(LISTS), st.integers(0, 2)
)
def test_a_list_is_its_values_with_the_separator_between(lists: Any, kind: Any, skipped: int) -> None:
    array = pa.array(lists, kind(pa.string()))[skipped:]

    expected = ["|".join(filter(None, values or [])).encode() for values in lists[skipped:]]
    assert (texts_of(array, "|") if expected else []) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.bool_(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_list_may_hold_what_a_column_may(kind: Any) -> None:
    flat = pa.array(["1", None, "0"]).cast(kind)
    array = pa.ListArray.from_arrays(pa.array([0, 0, 3], pa.int32()), flat)

    assert texts_of(array, "|") == [b"", b"|".join(as_text(value) for value in flat.to_pylist() if value is not None)]


def test_a_list_of_fixed_size_is_a_list() -> None:
    assert texts_of(pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2))[1:], "|") == [b"", b"3|4"]


@pytest.mark.parametrize(
    ("wanted", "column", "sentence"),
    [
        (wanted_of(["y"]), pa.array(["a"]), "part lacks the column 'y'; it has 'x', 'clicks'."),
        (
            wanted_of(["x"]),
            pa.array([1.5]),
            (
                "part: the column 'x' is used as a category and holds floating-point numbers (double); give `round`, or make "
                "the feature numeric."
            ),
        ),
        (
            wanted_of(["x"]),
            pa.array([["a"]]),
            "part: the column 'x' holds lists (list<item: string>); give the feature a `separator`.",
        ),
        (
            wanted_of(["x|"]),
            pa.array([[1.5]]),
            (
                "part: the column 'x' holds vectors (list<item: double>), which are no categories; `elastic-ctr import parquet` "
                "makes a column of each number."
            ),
        ),
        (
            wanted_of(["x|"]),
            pa.array([[["a"]]]),
            (
                "part: the column 'x' has the type list<item: list<item: string>>, which cannot be read; a list holds texts "
                "or whole numbers."
            ),
        ),
        (
            wanted_of(["x"]),
            pa.array([0], pa.timestamp("us")),
            (
                "part: the column 'x' holds times (timestamp[us]), which are no categories; leave the column out, or name it with "
                "`elastic-ctr import parquet --time`."
            ),
        ),
        (
            wanted_of(["x"]),
            pa.array([{"a": 1}]),
            "part: the column 'x' has the type struct<a: int64>, which cannot be read; write it as text or as a number.",
        ),
        (
            wanted_of(["x"]),
            pa.array([None], pa.decimal128(5, 2)),
            (
                "part: the column 'x' is used as a category and holds numbers with a point (decimal128(5, 2)); give `round`, or make "
                "the feature numeric."
            ),
        ),
        (
            wanted_of(numbers=["x"]),
            pa.array(["1"]),
            (
                "part: the column 'x' has turned into text (string), and a number is wanted; write it as a number, or make the "
                "feature categorical."
            ),
        ),
        (
            wanted_of(numbers=["x"]),
            pa.array([True]),
            (
                "part: the column 'x' holds true and false (bool), and a number is wanted; write 0 and 1, or make the feature "
                "categorical."
            ),
        ),
        (
            wanted_of(numbers=["x"]),
            pa.array([[1]]),
            (
                "part: the column 'x' holds lists (list<item: int64>), and a number is wanted; make the feature categorical, "
                "with a `separator`."
            ),
        ),
        (
            wanted_of(label="x"),
            pa.array(["1"]),
            "part: the label 'x' has the type string; write it as 0 and 1, or as true and false.",
        ),
        (
            wanted_of(label="clicks", shows="x"),
            pa.array(["1"]),
            "part: the number of shows 'x' has the type string; write it as whole numbers.",
        ),
    ],
)
def test_a_column_that_can_not_be_read_so_refuses_the_file(wanted: Wanted, column: Any, sentence: str) -> None:
    with pytest.raises(ColumnsRefused) as refused:
        cells_of_record_batch(
            pa.RecordBatch.from_pydict({"x": column, "clicks": pa.nulls(len(column))}), wanted, "part"
        )

    assert str(refused.value) == sentence


def test_two_columns_of_one_name_are_refused_only_if_it_is_wanted() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["x", "x", "y"])

    assert next(batches_of(batch, wanted_of(["y"]), "part", 0)).cells.text(0, 0) == b"c"
    with pytest.raises(ColumnsRefused, match="part has 2 columns with the name 'x'; give each a name of its own"):
        next(batches_of(batch, wanted_of(["x"]), "part", 0))


TABLE: dict[str, Any] = {
    "user": pa.array([b"u", b"\xff", b"v", b"w", b"long" * 20, b"x", b"y"], pa.binary()),
    "tags": pa.array([["a", "b"], ["c"], ["d|e"], [], None, ["f"], []]),
    "price": pa.array([1.5, 0.0, None, math.inf, -0.0, math.nan, 2.0]),
    "click": pa.array([1, 0, 1, 0, 1, 1, 2]),
}


def test_a_row_that_can_not_be_used_is_refused_with_its_number_and_the_rest_is_read() -> None:
    batch = pa.RecordBatch.from_pydict(TABLE)

    found = cells_of_record_batch(batch, wanted_of(["user", "tags|"], ["price"], "click"), "part", 100, 50)

    not_finite = "which is not finite; a number that is missing is left empty."
    assert rows_of([found])[0] == Row(100, (b"u", b"a|b"), ((1.5).hex(),), 1, 1)
    assert len(found.cells) == 1
    assert found.refused == [
        RefusedRow(
            101,
            Reason.NOT_UTF8,
            r"the column 'user' is b'\xff', which is not UTF-8.",
            b"click=0, user=\xff, tags=c, price=0",
        ),
        RefusedRow(
            102,
            Reason.BAD_SEPARATOR,
            "a value of the list 'tags' holds '|', which separates its values.",
            b"click=1, user=v, tags=d|e, price=nan",
        ),
        RefusedRow(
            103, Reason.NOT_FINITE, f"the column 'price' is inf, {not_finite}", b"click=0, user=w, tags=, price=inf"
        ),
        RefusedRow(
            104,
            Reason.TOO_LONG,
            "the row has more than 50 bytes.",
            b"click=1, user=" + b"long" * 20 + b", tags=, price=-0",
        ),
        RefusedRow(
            105, Reason.NOT_FINITE, f"the column 'price' is nan, {not_finite}", b"click=1, user=x, tags=f, price=nan"
        ),
        RefusedRow(
            106, Reason.BAD_LABEL, "the label 'click' is 2; 0 and 1 are allowed.", b"click=2, user=y, tags=, price=2"
        ),
    ]


@pytest.mark.parametrize(
    ("click", "seen", "sentence"),
    [
        (None, 1.0, "'click' is empty; a whole number is needed."),
        (math.nan, 1.0, "'click' is nan, which is not a whole number."),
        (0.5, 1.0, "'click' is 0.5, which is not a whole number."),
        (3.0, 2.0, "'click' is 3.0, which is above 'seen', 2.0."),
    ],
)
def test_counts_that_can_not_be_are_refused(click: float | None, seen: float, sentence: str) -> None:
    batch = pa.RecordBatch.from_pydict({"click": pa.array([click], pa.float64()), "seen": pa.array([seen])})

    [refused] = cells_of_record_batch(batch, wanted_of(label="click", shows="seen"), "part").refused

    assert refused.detail == sentence


def test_a_label_may_be_a_truth_value() -> None:
    batch = pa.RecordBatch.from_pydict({"click": pa.array([True, False, None])})

    found = cells_of_record_batch(batch, wanted_of(label="click"), "part")

    assert found.clicks.tolist() == [1, 0]
    assert [row.detail for row in found.refused] == ["the label 'click' is null; 0 and 1 are allowed."]


def test_a_large_batch_becomes_several() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(["x" * 1000] * 20_000)})

    found = list(batches_of(batch, wanted_of(["x"]), "part", 5))

    assert max(found_.cells.data.size for found_ in found) <= 8 << 20
    assert [int(place) for batch_ in found for place in batch_.places] == list(range(5, 20_005))
