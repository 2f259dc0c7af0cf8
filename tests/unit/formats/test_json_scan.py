"""Rows in JSON beside `json_rows`, which is plain Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_ctr.formats.cells import Cells, cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.json_rows import CellRefused, row_of, unknown_column
from elastic_ctr.formats.json_scan import RowScanner

# "both" is text and number; "title" is read with two separators; the last two have names that JSON writes otherwise.
INPUTS = InputColumns(
    (
        *(
            TextInput("user", ""),
            TextInput("tags", "|"),
            TextInput("both", ""),
            TextInput("title", ""),
            TextInput("title", "a"),
        ),
        *(
            TextInput("größe", ""),
            TextInput('a quote "', ""),
            TextInput("eightlet", "1"),
            TextInput("user name of nine", ""),
        ),
    ),
    ("price", "both", "n", ""),
)
COLUMNS = INPUTS.columns
STRICT, LAX = (RowScanner(INPUTS, 5, skips=skips) for skips in (False, True))


def by_json_rows(body: bytes, *, skips: bool) -> Cells | None:
    """None where it is refused, or is no request of 1 to 5 rows."""
    try:
        document = orjson.loads(body)
        rows = document["instances"]
        if not 0 < len(rows) <= 5 or (not skips and any(unknown_column(row, COLUMNS) is not None for row in rows)):
            return None
        return cells_of([row_of(row, INPUTS) for row in rows], INPUTS)
    except (orjson.JSONDecodeError, CellRefused, KeyError, TypeError, AttributeError):
        return None


def values_of(cells: Cells) -> list[Any]:
    texts, numbers = cells.begins.shape[1], cells.numbers.shape[1]
    return [
        (
            [cells.text(row, place) for place in range(texts)],
            [
                "missing" if np.isnan(cells.numbers[row, place]) else cells.numbers[row, place].hex()
                for place in range(numbers)
            ],
        )
        for row in range(len(cells))
    ]


def judge(body: bytes) -> bool:
    """Whether it was read. What is read is what `json_rows` reads."""
    for scanner, skips in ((STRICT, False), (LAX, True)):
        read, due = scanner.read(body), by_json_rows(body, skips=skips)
        if read is not None:
            assert due is not None, body
            assert values_of(read) == values_of(due), body
    return read is not None


integers = st.integers(-(2**53) + 1, 2**53 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x == 0 or 1e-280 < abs(x) < 1e280)
plain = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters='"\\'), max_size=20)
scalars = plain | integers | st.booleans() | st.none()
rows = st.fixed_dictionaries(
    {},
    optional={
        "user": scalars,
        "tags": scalars | st.lists(scalars.filter(lambda value: "|" not in str(value)), max_size=4),
        "both": integers.filter(bool) | st.none(),
        "price": integers | floats | st.none(),
        "n": integers | floats,
        "größe": scalars,
        "eightlet": scalars | st.lists(plain.filter(lambda value: "1" not in value)),
        "user name of nine": scalars,
    },
)
layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"separators": (" ,\t", "\r\n : ")}])


@given(st.lists(rows, min_size=1, max_size=5), layouts, st.randoms())
def test_everyday_rows_are_read_in_any_order_of_their_columns(given: list[Any], layout: Any, random: Any) -> None:
    shuffled = [dict(random.sample(list(row.items()), len(row))) for row in given]

    assert judge(json.dumps({"instances": shuffled}, ensure_ascii=False, **layout).encode())


strange = st.sampled_from(
    [
        *(
            "-0",
            "-0.0",
            "1e308",
            "1e400",
            "-1E-400",
            "5e-324",
            str(2**53),
            str(2**53 - 1),
            str(-(2**53)),
            str(2**53 + 1),
        ),
        *(
            "1" * 30,
            "0." + "3" * 30,
            "01",
            "1.",
            ".5",
            "+1",
            "0x1",
            "1e",
            "NaN",
            "Infinity",
            "nul",
            "tru",
            "{}",
            '{"a": 1}',
        ),
        *(
            "[[1]]",
            "[" * 300,
            '"\\u0041"',
            '"\\ud800"',
            '"a\\"b"',
            '"tab\there"',
            '"\x00"',
            '"a|b"',
            '["a|b"]',
            "[1.5]",
        ),
        *(
            "[]",
            '["", null]',
            '"open',
            "0e5",
            "-0e5",
            "1E+2",
            "123456789012345678",
            "9007199254740993.0",
            "[1,]",
            "",
            "[,1]",
        ),
        *(
            str(2**64 - 1),
            str(2**64),
            str(2**63),
            str(-(2**63) - 1),
            "1.7976931348623157e308",
            "0.1e-1",
            "[-0]",
            "[true, 7]",
        ),
    ]
)
words = strange | scalars.map(lambda value: json.dumps(value, ensure_ascii=False)) | floats.map(repr)
names = st.sampled_from([*COLUMNS, *COLUMNS, "unknown", "use", "users", "\\u0075ser", "priceprice"])
objects = st.lists(st.tuples(names, words), max_size=8).map(
    lambda fields: "{" + ",".join(f'"{name}":{word}' for name, word in fields) + "}"
)
documents = st.lists(objects, max_size=6).map(lambda found: '{"instances":[' + ",".join(found) + "]}")
more = st.sampled_from(["", "", "", " ", "\n\n", "x", "{}", ',"signature_name":"x"', "\x00"])


@given(
    documents,
    more,
    st.integers(0, 300),
    st.binary(max_size=2),
    st.sampled_from(["keep", "keep", "cut", "put", "close"]),
)
@example('{"instances":[{"user":"a","user":"b"}]}', "", 0, b"", "keep")
@example('{"instances":[{"a quote "":"a"}]}', "", 0, b"", "keep")
@example('{"instances":[{"":1}]}', "", 0, b"", "keep")
@example('{"instances":[{"tags":["","a",null,"b"]}],"signature_name":"x"}', "", 0, b"", "keep")
def test_the_scanner_reads_a_document_as_json_rows_does_or_not_at_all(
    document: str, end: str, at: int, put: bytes, change: str
) -> None:
    body = (document + end).encode("utf-8", "surrogatepass")
    if change == "cut":
        body = body[: at % (len(body) + 1)]
    elif change == "put":
        at %= len(body) + 1
        body = body[:at] + put + body[at:]
    elif change == "close":
        body = (document[:-1] + end + "}").encode()

    judge(body)


@given(st.text(max_size=12), st.binary(max_size=4), st.integers(0, 12))
def test_text_that_is_not_utf8_is_never_read(text: str, wrong: bytes, at: int) -> None:
    inside = text.encode("utf-8", "surrogatepass")
    at %= len(inside) + 1

    judge(
        b'{"instances":[{"user":"' + inside[:at] + wrong + inside[at:] + b'","x":"' + wrong + b'","' + wrong + b'":1}]}'
    )


@pytest.mark.parametrize(
    "word",
    ["0", "-7", "1.5", "0.30000000000000004", "1e3", "123456789.125", "-0.0", "1E-7", "9007199254740993", "null"],
)
def test_an_everyday_number_is_read(word: str) -> None:
    assert judge(b'{"instances":[{"price":%b}]}' % word.encode())


@pytest.mark.parametrize("times", range(1, 5))
@pytest.mark.parametrize("point", range(1, 20))
def test_digits_whose_number_overflows_to_0_are_not_read(times: int, point: int) -> None:
    digits = str(times << 64)
    point = min(point, len(digits) - 1)

    assert not judge(b'{"instances":[{"price":%b.%b}]}' % (digits[:point].encode(), digits[point:].encode()))
    assert not judge(b'{"instances":[{"price":0.%b}]}' % digits.encode())


@pytest.mark.parametrize("value", ["a", "äöü", "", "7", "true", "x" * 1000])
def test_text_lies_in_the_body(value: str) -> None:
    body = json.dumps({"instances": [{"user": value}]}, ensure_ascii=False).encode()

    read = STRICT.read(body)

    assert read is not None
    assert read.text(0, 0) == value.encode()
    assert read.ends[0, 0] <= len(body)


def test_more_rows_than_are_allowed_are_not_read() -> None:
    assert judge(b'{"instances":[' + b",".join([b"{}"] * 5) + b"]}")
    assert not judge(b'{"instances":[' + b",".join([b"{}"] * 6) + b"]}")
    assert not judge(b'{"instances":[]}')


def test_a_column_that_no_feature_reads_is_skipped_where_that_is_allowed() -> None:
    body = b'{"instances":[{"user":"a","x":1.5,"y":[1,2.5,"b"],"z":null,"price":2}]}'

    assert STRICT.read(body) is None
    assert LAX.read(body) is not None
    assert judge(body)
    assert LAX.read(b'{"instances":[{"x":{"nested":1}}]}') is None
