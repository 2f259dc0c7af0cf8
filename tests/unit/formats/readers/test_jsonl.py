"""Rows of JSON lines, beside the same in plain Python."""

from __future__ import annotations

import gzip
import io
import json
import math
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.json_rows import CellRefused, row_of
from elastic_ctr.formats.line import MAX_LINE_BYTES, Reason
from elastic_ctr.formats.readers.batches import Format, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from formats.readers.oracle import Refused, Row, lines_of, rows_of, wanted_of

JSONL = Format("jsonl")
WANTED = wanted_of(["user", "tags|"], ["price"], "click")
COUNTED = Wanted(
    InputColumns((TextInput("user", ""), TextInput("tags", "|"), TextInput("tags", "-")), ("price",)), "click", "seen"
)
LATE = replace(COUNTED, late_clicks=True)
LONGEST = 300


def by_line(content: bytes, wanted: Wanted, max_line_bytes: int = MAX_LINE_BYTES) -> list[Row | Refused]:
    """What a reader should give for a whole file."""
    at, found = 0, []
    for line in lines_of(content):
        text = line.removeprefix(b"\xef\xbb\xbf") if at == 0 else line
        if text:
            found.append(_row(at, text.removesuffix(b"\n"), wanted, max_line_bytes))
        at += len(line)
    return found


def _has_twice(line: bytes, columns: set[str]) -> bool:
    found = False

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        names = [name for name, _ in pairs if name in columns]
        found |= len(names) > len(set(names))
        return dict(pairs)

    json.loads(line, object_pairs_hook=note)
    return found


def _row(at: int, line: bytes, wanted: Wanted, max_line_bytes: int) -> Row | Refused:
    if len(line) > max_line_bytes:
        return Refused(at, Reason.TOO_LONG)
    if not line.strip(b" \t\r"):
        return Refused(at, Reason.EMPTY)
    try:
        given_ = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Refused(at, Reason.NOT_JSON)
    if not isinstance(given_, dict) or _has_twice(line, {*wanted.inputs.columns, *wanted.counts}):
        return Refused(at, Reason.NOT_JSON)
    show, click = 1, 0
    if wanted.label is not None and wanted.shows is None:
        label = given_.get(wanted.label)
        if not isinstance(label, (bool, int, float)) or label not in (0, 1):
            return Refused(at, Reason.BAD_LABEL)
        click = int(label)
    elif wanted.label is not None and wanted.shows is not None:
        counts = [_count(given_.get(column)) for column in (wanted.label, wanted.shows)]
        if reason := next((count for count in counts if isinstance(count, Reason)), None):
            return Refused(at, reason)
        click, show = (int(count) for count in counts)
        if show == 0 and not (wanted.late_clicks and click):
            return Refused(at, Reason.SHOW_ZERO)
        if click > show > 0:
            return Refused(at, Reason.CLICK_ABOVE_SHOW)
    try:
        texts, numbers = row_of(given_, wanted.inputs)
    except CellRefused as refused:
        return Refused(at, refused.reason)
    return Row(at, tuple(texts), tuple(number.hex() for number in numbers), show, click)


def _count(value: Any) -> float | Reason:
    if value is None:
        return Reason.BAD_LABEL
    if not isinstance(value, (bool, int, float)) or value != math.floor(value):
        return Reason.NOT_A_NUMBER
    if value < 0:
        return Reason.NEGATIVE
    return float(value) if value < 2**31 else Reason.COUNT_TOO_LARGE


texts = st.text(st.sampled_from('a1 "\\,|-\té√😀'), max_size=5) | st.sampled_from(["", "x" * 320])
values: Any = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**64, 1.5, 1e300, -0.0, {"a": 1}, [[1]]]),
    st.lists(texts),
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "user": values,
        "tags": st.lists(texts | st.integers(0, 9) | st.none(), max_size=3),
        "price": st.none() | st.integers(-9, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | values,
        "click": st.sampled_from([0, 1, 1, True, False, 1.0, 2, -1, None, "1", 2**31, 1.5]),
        "seen": st.sampled_from([1, 1, 2, 7, True, 0, None, [], 1e400]),
        "other": values,
    },
)
everyday = st.builds(
    lambda user, tags, price, click: {"user": user, "tags": tags, "price": price, "click": click, "seen": 1},
    st.sampled_from(["a", "b"]), st.lists(st.sampled_from(["x", "y"])), st.integers(0, 9), st.booleans(),
)  # fmt: skip
lines = st.builds(
    lambda row, plain, end: json.dumps(row, ensure_ascii=plain).encode() + end,
    everyday | rows, st.booleans(), st.sampled_from([b"", b"", b"", b"\r", b" ", b"x", b"{}", b"\xff"]),
) | st.sampled_from([b"", b" ", b"[]", b"7", b"{", b"\xff", b'{"user":"\xff"}', b'{"user":"\\ud800"}', b"\x00", b'{"click":1,"click":0}', b'{"other":1,"other":2,"click":0,"seen":1}'])  # fmt: skip
contents = st.tuples(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]), st.lists(lines, max_size=12), st.booleans()).map(
    lambda given: given[0] + b"\n".join(given[1]) + (b"\n" if given[2] and given[1] else b"")
)
wishes = st.sampled_from([WANTED, COUNTED, LATE, wanted_of(["user"], ["price"]), wanted_of([], [], "click")])


def read(
    content: bytes,
    wanted: Wanted = WANTED,
    start: int = 0,
    end: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> list[RowBatch]:
    return list(rows_in_range(io.BytesIO(content), "part-0", JSONL, wanted, start, end, max_line_bytes))


@given(content=contents, wanted=wishes)
def test_every_line_is_a_row_or_a_refused_row_as_in_plain_python(content: bytes, wanted: Wanted) -> None:
    found, expected = rows_of(read(content, wanted, max_line_bytes=LONGEST)), by_line(content, wanted, LONGEST)
    assert found == expected


@pytest.mark.parametrize("end", [b"", b"\n", b"\n{}"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_the_bom_is_no_part_of_how_long_the_first_line_is(bom: bytes, end: bytes) -> None:
    before, behind = b'{"user": "a", "click": 0, "more": "', b'"}'
    for length in range(LONGEST - 3, LONGEST + 6):
        line = before + b"x" * (length - len(before) - len(behind)) + behind
        [first, *_] = rows_of(read(bom + line + end, wanted_of(["user"], [], "click"), max_line_bytes=LONGEST))

        if length <= LONGEST:
            assert isinstance(first, Row)
        else:
            assert first == Refused(0, Reason.TOO_LONG)


@given(content=contents, cuts=st.lists(st.integers(0, 600), max_size=4))
def test_over_any_cut_points_every_row_is_in_exactly_one_range(content: bytes, cuts: list[int]) -> None:
    edges = sorted({0, *(cut for cut in cuts if cut < len(content))})

    found = [
        row
        for start, end in zip(edges, [*edges[1:], None], strict=True)
        for row in rows_of(read(content, WANTED, start, end))
    ]

    assert found == rows_of(read(content))


def refusal_of(line: bytes, wanted: Wanted = COUNTED) -> tuple[str, str]:
    [batch] = read(line + b"\n", wanted)
    [refused] = batch.refused
    assert len(batch.cells) == 0
    assert refused.excerpt == line[:200]
    return refused.reason.value, refused.detail


@pytest.mark.parametrize(
    ("line", "reason", "sentence"),
    [
        (b'{"user":', "not_json", "the line is not JSON: unexpected end of data: line 1 column 9 (char 8)."),
        (b'{"click":0,"seen":1,"x":1,"x":2,"seen":1}', "not_json", "the column 'seen' is there twice in an object;"),
        (b"[1]", "not_json", "the line is [1]; a row is an object with a value for each column."),
        (
            b'{"click":0,"seen":1,"user":{}}',
            "not_a_value",
            "the column 'user' is an object; a value is text, a whole number",
        ),
        (
            b'{"click":0,"seen":1,"price":"3"}',
            "not_a_number",
            "the column 'price' is '3'; it must be a number or null.",
        ),
        (b'{"click":"1","seen":1}', "not_a_number", """'click' is '"1"', which is not a whole number."""),
        (b'{"click":3,"seen":2}', "click_above_show", "'click' is '3', which is above 'seen', '2'."),
        (b'{"click":3}', "bad_label", "'seen' is empty; a whole number is needed."),
        (
            b'{"click":1,"seen":1,"tags":["a|b"]}',
            "not_a_value",
            "the column 'tags' has the value 'a|b', which holds the",
        ),
    ],
)
def test_a_refused_line_says_why(line: bytes, reason: str, sentence: str) -> None:
    found, detail = refusal_of(line)

    assert found == reason
    assert detail.startswith(sentence)


def test_a_label_may_be_true_or_false() -> None:
    [batch] = read(b'{"click":true}\n{"click":false}\n')

    assert batch.clicks.tolist() == [1, 0]


def test_a_column_may_be_absent_from_every_row() -> None:
    [batch] = read(b'{"click":1,"something":{"else":2}}\n' * 3)

    assert rows_of([batch])[0] == Row(0, (b"", b""), ("nan",), 1, 1)
    assert len(batch.cells) == 3


def test_a_compressed_file_is_read_whole() -> None:
    line = b'{"click":1,"user":"u","tags":["a","b"],"price":3.25}\n'

    [batch] = rows_in_range(io.BytesIO(gzip.compress(line * 2)), "part-0.gz", JSONL, WANTED)

    assert [row[1:3] for row in rows_of([batch]) if isinstance(row, Row)] == [((b"u", b"a|b"), ((3.25).hex(),))] * 2
