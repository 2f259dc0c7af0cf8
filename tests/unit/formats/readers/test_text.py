"""Rows of CSV and TSV, beside the same in plain Python."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.line import MAX_LINE_BYTES, Reason
from elastic_ctr.formats.readers.batches import ColumnsRefused, Format, RefusedRow, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from formats.readers.oracle import Refused, rows_of, rows_of_lines, wanted_of

COLUMNS = ("user", "price", "click", "seen")
WANTED = wanted_of(["user"], ["price"], "click")
COUNTED = wanted_of(["seen", "user|", "user"], ["price", "seen"], "click", "seen")

numbers = st.sampled_from(
    [
        *["7.0", "1e2", "-7", "9007199254740991", "9007199254740992", "00"],
        *[
            "0",
            "1",
            "1",
            "1",
            "2",
            "-0",
            "-0.0",
            "007",
            "+3",
            "2147483647",
            "2147483648",
            "1e308",
            "-1e308",
            "1e309",
            "1e-400",
        ],
        *[
            "4.9e-324",
            "0.1",
            ".5",
            "5.",
            "0x10",
            "1_0",
            "nan",
            "inf",
            "-Infinity",
            "1e",
            "e5",
            "-",
            "+",
            "1.5",
            "1,5",
            "1E+05",
        ],
        *[
            "9007199254740993",
            "18446744073709551615",
            "123456789012345678901234567890",
            "0.30000000000000004",
            "8.5e22",
        ],
    ]
) | st.floats(allow_nan=False).map(repr)
texts = st.text(st.sampled_from('a1 ",\té√😀'), max_size=5) | st.sampled_from(["", "x" * 300])
cells = st.one_of(numbers, texts)
quoted = cells.map(lambda cell: '"' + cell.replace('"', '""') + '"')


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A line that is right, or nearly so, or nothing like it."""
    kind = draw(st.sampled_from(["right", "right", "nearly", "nothing"]))
    if kind == "nothing":
        return draw(st.binary(max_size=8)).translate(None, b"\n\r") + draw(st.sampled_from([b"", b"\r"]))
    price = draw(numbers | st.just(""))
    click, seen = draw(st.sampled_from(["0", "1", "1", "1.0", "2", ""])), draw(st.sampled_from(["1", "1", "7", "0"]))
    row = [draw(cells), price, click, seen]
    if kind == "nearly":
        row = draw(st.lists(cells, min_size=3, max_size=5))
    separator = draw(st.sampled_from([",", ",", "\t"]))
    row = [draw(quoted) if draw(st.integers(0, 9)) == 0 else cell for cell in row]
    line = bytearray(separator.join(row).encode())
    if kind == "nearly" and draw(st.booleans()):
        at = draw(st.integers(0, len(line)))
        line[at:at] = draw(st.sampled_from([b'"', b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x00"]))
    return bytes(line) + draw(st.sampled_from([b"", b"", b"\r"]))


BOMS = st.sampled_from([b"", b"", b"\xef\xbb\xbf"])
contents = st.tuples(BOMS, st.lists(lines(), max_size=12), st.booleans()).map(
    lambda given: given[0] + b"\n".join(given[1]) + (b"\n" if given[2] and given[1] else b"")
)
kinds: Any = st.sampled_from(["csv", "tsv"])
wishes = st.sampled_from(
    [
        WANTED,
        COUNTED,
        replace(COUNTED, late_clicks=True),
        wanted_of(["user"], ["price"]),
        wanted_of(["user"], [], "click"),
        wanted_of([], ["price"], "click"),
        wanted_of(["user", "price", "price|"], ["price"], "click"),
    ]
)


def read(
    content: bytes,
    form: Format,
    wanted: Wanted = WANTED,
    start: int = 0,
    end: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> list[RowBatch]:
    return list(rows_in_range(io.BytesIO(content), "part-0", form, wanted, start, end, max_line_bytes))


@given(content=contents, kind=kinds, wanted=wishes)
def test_every_line_is_a_row_or_a_refused_row_as_in_plain_python(content: bytes, kind: Any, wanted: Wanted) -> None:
    found = rows_of(read(content, Format(kind, COLUMNS), wanted))

    assert found == rows_of_lines(content, kind, COLUMNS, wanted)


@given(
    content=contents,
    kind=kinds,
    header=st.booleans(),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_over_any_cut_points_every_row_is_in_exactly_one_range(
    content: bytes, kind: Any, header: bool, bom: bool, cuts: list[int]
) -> None:
    if header:
        line = ("," if kind == "csv" else "\t").join(COLUMNS).encode()
        content = b"\xef\xbb\xbf" * bom + line + b"\r\n" + content
    form = Format(kind, None if header else COLUMNS)

    found = [
        row
        for start, end in itertools.pairwise([0, *sorted(cuts), None])
        for row in rows_of(read(content, form, WANTED, start or 0, end))
    ]

    assert found == rows_of_lines(content, kind, form.columns, WANTED)


@given(content=contents, max_line_bytes=st.integers(3, 12))
def test_a_line_that_is_too_long_is_refused_and_the_next_is_fine(content: bytes, max_line_bytes: int) -> None:
    found = rows_of(read(content, Format("csv", COLUMNS), WANTED, max_line_bytes=max_line_bytes))

    expected = rows_of_lines(content, "csv", COLUMNS, WANTED, max_line_bytes)
    if content.startswith(b"\xef\xbb\xbf"):
        # Whether the first line, with its BOM, is too long is known only when it is.
        found, expected = found[1:], expected[1:]
    assert found == expected


def test_a_batch_has_at_most_2048_rows_and_all_are_there() -> None:
    content = b"u,1,0,1\n" * 20_000

    batches = read(content, Format("csv", COLUMNS))

    assert max(len(batch.cells) for batch in batches) == 2048
    assert sum(len(batch.cells) for batch in batches) == 20_000
    assert [int(place) for batch in batches for place in batch.places] == list(range(0, len(content), 8))


def test_columns_that_nobody_reads_may_hold_anything() -> None:
    [batch] = read(b"a,b\n\xff,1\n", Format("csv"), wanted_of(["b"]))

    assert batch.cells.text(0, 0) == b"1"
    assert not batch.refused


def test_a_line_of_one_column_may_be_empty() -> None:
    assert rows_of(read(b"a\n\n\r\n", Format("csv", ("a",)), wanted_of(["a"]))) == rows_of_lines(
        b"a\n\n\r\n", "csv", ("a",), wanted_of(["a"])
    )


def test_a_carriage_return_inside_a_line_belongs_to_its_cell() -> None:
    [batch] = read(b"a\rb,1\n", Format("csv", ("a", "b")), wanted_of(["a"]))

    assert batch.cells.text(0, 0) == b"a\rb"


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"", Reason.EMPTY, "the line holds nothing."),
        (b"u,1,0,1," + b"x" * 80, Reason.TOO_LONG, "the row has more than 80 bytes."),
        (b"u,1,0", Reason.WRONG_COLUMNS, "the row has 3 columns, and the file has 4."),
        (b"u,1,0,1,2", Reason.WRONG_COLUMNS, "the row has 5 columns, and the file has 4."),
        (
            b'"u,1,0,1',
            Reason.BAD_QUOTE,
            "the quote that opens the column 'user' is not closed on its line; a row is one line.",
        ),
        (
            b'u,"1"0,0,1',
            Reason.BAD_QUOTE,
            "the column 'price' goes on behind its closing quote; a quote inside of quotes is written twice: \"\".",
        ),
        (b"\xff\xfe,1,0,1", Reason.NOT_UTF8, r"the column 'user' is b'\xff\xfe', which is not UTF-8."),
        (
            b"u,cheap,0,1",
            Reason.NOT_A_NUMBER,
            "the column 'price' is 'cheap', which is not a decimal number such as -1.5e3.",
        ),
        (
            b"u,-inf,0,1",
            Reason.NOT_FINITE,
            "the column 'price' is '-inf', which is not finite; a number that is missing is left empty.",
        ),
        (
            b"u,1e999,0,1",
            Reason.NOT_FINITE,
            "the column 'price' is '1e999', which is not finite; a number that is missing is left empty.",
        ),
        (b"u,1,2,1", Reason.BAD_LABEL, "the label 'click' is '2'; 0 and 1 are allowed."),
        (b"u,1,yes,1", Reason.BAD_LABEL, "the label 'click' is 'yes'; 0 and 1 are allowed."),
        (b"u,1,,1", Reason.BAD_LABEL, "the label 'click' is ''; 0 and 1 are allowed."),
    ],
)
def test_a_refusal_says_what_is_wrong_and_the_rows_around_are_read(line: bytes, reason: Reason, detail: str) -> None:
    content = b"u,1,0,1\n" + line + b"\nu,1,1,1\n"

    [batch] = read(content, Format("csv", COLUMNS), max_line_bytes=80)

    assert batch.refused == [RefusedRow(8, reason, detail, line)]
    assert batch.clicks.tolist() == [0, 1]
    assert batch.places.tolist() == [0, 8 + len(line) + 1]


@pytest.mark.parametrize(
    ("click", "seen", "reason", "detail"),
    [
        ("", "1", Reason.BAD_LABEL, "'click' is empty; a whole number is needed."),
        ("1", "", Reason.BAD_LABEL, "'seen' is empty; a whole number is needed."),
        ("0.5", "1", Reason.NOT_A_NUMBER, "'click' is '0.5', which is not a whole number."),
        ("one", "1", Reason.NOT_A_NUMBER, "'click' is 'one', which is not a whole number."),
        ("-1", "1", Reason.NEGATIVE, "'click' is '-1'; a count is not below 0."),
        ("1", "2147483648", Reason.COUNT_TOO_LARGE, "'seen' is '2147483648', which is not below 2147483648."),
        ("0", "0", Reason.SHOW_ZERO, "'seen' is 0; a row is at least one impression."),
        ("3", "2", Reason.CLICK_ABOVE_SHOW, "'click' is '3', which is above 'seen', '2'."),
    ],
)
def test_counts_that_can_not_be_are_refused(click: str, seen: str, reason: Reason, detail: str) -> None:
    wanted = wanted_of(["user"], [], "click", "seen")

    [batch] = read(f"u,1,{click},{seen}\n".encode(), Format("csv", COLUMNS), wanted)

    assert batch.refused == [RefusedRow(0, reason, detail, f"u,1,{click},{seen}".encode())]


def test_rows_to_predict_need_no_label() -> None:
    [batch] = read(b"user\nu\nv\n", Format("csv"), wanted_of(["user"]))

    assert (batch.shows.tolist(), batch.clicks.tolist()) == ([1, 1], [0, 0])


def test_an_excerpt_has_200_bytes_of_a_long_row() -> None:
    [batch] = read(b"u" * 1000 + b"\n", Format("csv", COLUMNS))

    assert batch.refused[0].excerpt == b"u" * 200


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"user,price,clicks,seen", "part-0 lacks the column 'click'; it has 'user', 'price', 'clicks', 'seen'."),
        (b"user,price,click,price", "part-0 has 2 columns with the name 'price'; give each a name of its own."),
        (b"", "part-0 lacks the column 'user'; it has ''."),
        (
            b'"user,price,click,seen',
            "the header line of part-0 cannot be read (unexpected end of data); give the columns' names if it has no header.",
        ),
    ],
)
@pytest.mark.parametrize("start", [0, 30])
def test_a_file_with_other_columns_is_refused(header: bytes, sentence: str, start: int) -> None:
    with pytest.raises(ColumnsRefused) as refused:
        read(header + b"\nu,1,0,1\n" * 9, Format("csv"), start=start)

    assert str(refused.value) == sentence


def test_a_header_that_is_too_long_is_refused() -> None:
    for start in (0, 200):
        with pytest.raises(ColumnsRefused, match="has more than 100 bytes"):
            read(b"a," * 100 + b"a\n" * 100, Format("csv"), start=start, max_line_bytes=100)


def test_names_in_the_header_may_stand_in_quotes() -> None:
    [batch] = read(b'\xef\xbb\xbf"a ""b""","c,d"\r\n1,2\r\n', Format("csv"), wanted_of(['a "b"', "c,d"]))

    assert (batch.cells.text(0, 0), batch.cells.text(0, 1)) == (b"1", b"2")


def test_columns_that_nobody_reads_may_have_one_name() -> None:
    assert len(read(b"a,b,b\n1,2,3\n", Format("csv"), wanted_of(["a"]))) == 1


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"user,price,click,seen\n", b"user,price,click,seen"])
def test_a_file_without_rows_has_none(content: bytes) -> None:
    assert read(content, Format("csv")) == []
    assert read(content, Format("csv"), start=30) == []


def test_shows_without_a_label_are_refused() -> None:
    with pytest.raises(ValueError, match="shows 'seen' stands without a label"):
        wanted_of(["user"], shows="seen")


def test_a_refused_row_between_batches_is_in_one_of_them() -> None:
    content = (b"u,1,0,1\n" * 999 + b"u\n") * 100

    found = rows_of(read(content, Format("csv", COLUMNS)))

    assert len(found) == 100_000
    assert sum(isinstance(row, Refused) for row in found) == 100


@pytest.mark.parametrize("cell", ["12.50", "7.0", "+7", "007", "-0", "1e2", "9007199254740992"])
def test_a_column_that_is_read_as_a_number_and_as_text_is_a_whole_number_as_in_json(cell: str) -> None:
    content = f"u,7,0,1\nu,{cell},0,1\nu,,0,1\nu,-7,0,1\n".encode()

    [batch] = read(content, Format("csv", COLUMNS), wanted_of(["user", "price"], ["price"], "click"))

    assert [batch.cells.text(row, 1) for row in range(len(batch.cells))] == [b"7", b"", b"-7"]
    detail = f"the column 'price' is {cell!r}; read as a number and as text it must be whole and below 2^53: give the category `round`."
    assert batch.refused == [RefusedRow(8, Reason.NOT_A_VALUE, detail, f"u,{cell},0,1".encode())]
