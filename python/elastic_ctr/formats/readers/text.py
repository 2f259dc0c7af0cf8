"""Rows of CSV and TSV: a row is a line.

CSV has commas, and quotes (`"`) around a cell with commas or quotes in it, which are then doubled; TSV has tabs and no quotes. Cells
are read unchanged, blanks included. A BOM at the beginning of a file and a CR at the end of a line are dropped.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.cells import Bytes, Cells, Numbers, Places, accept_numbers, word_table
from elastic_ctr.formats.convert import EXCERPT_BYTES
from elastic_ctr.formats.readers import row_refusals
from elastic_ctr.formats.readers.batches import (
    MOST_BYTES,
    MOST_ROWS,
    ColumnsRefused,
    Format,
    RefusedRow,
    RowBatch,
    Wanted,
    find_columns,
)
from elastic_ctr.formats.readers.loops import (
    HARD,
    LineRules,
    SplitLines,
    check_both,
    check_utf8,
    copy_spans,
    read_numbers,
    split_lines,
)
from elastic_ctr.formats.readers.row_refusals import Codes, judge_counts, refusal, refuse, shown, shown_bytes


def numbers_of_texts(
    data: Bytes, spans: Places, codes: Codes, missing: tuple[str, ...] = ()
) -> tuple[Numbers, Codes | None]:
    """Return f64[n, numbers] of the texts at `spans`, i64[n, numbers, 2]; empty texts and the words `missing` are NaN.

    Also return the code of each number, or None if all are fine: NOT_A_NUMBER, or NOT_FINITE for names of infinity and
    NaN and for numbers that round to infinity. Rows that are not fine are not read.
    """
    numbers = np.empty(spans.shape[:2], np.float64)
    cells = np.empty(spans.shape[:2], np.uint8)
    if not read_numbers(data, spans, codes, numbers, cells):
        return numbers, None
    if missing:
        accept_numbers(data, spans, cells, word_table(missing), row_refusals.NOT_A_NUMBER, row_refusals.FINE)
    hard = cells == HARD
    if hard.any():
        numbers[hard] = _exact(data, spans[hard])
        cells[hard] = np.where(np.isfinite(numbers[hard]), row_refusals.FINE, row_refusals.NOT_FINITE)
    sizes = spans[:, :, 1] - spans[:, :, 0]
    perhaps_named = (cells == row_refusals.NOT_A_NUMBER) & (sizes >= len("nan")) & (sizes <= len("-infinity"))
    for row, place in np.argwhere(perhaps_named).tolist():
        begin, end = spans[row, place]
        if _is_named(data[begin:end].tobytes()):
            cells[row, place] = row_refusals.NOT_FINITE
    return numbers, cells if cells.any() else None


def _is_named(text: bytes) -> bool:
    return text.lower().lstrip(b"+-") in (b"nan", b"inf", b"infinity")


def _exact(data: Bytes, spans: Places) -> Numbers:
    import pyarrow as pa

    sizes = spans[:, 1] - spans[:, 0]
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    texts = np.empty(offsets[-1], np.uint8)
    copy_spans(data, np.ascontiguousarray(spans), texts)
    array = pa.Array.from_buffers(pa.large_string(), len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
    return array.cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]


_SEPARATORS = {"csv": ",", "tsv": "\t"}


def rows_of_text(
    stream: BinaryIO, path: str, form: Format, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    """As `rows.rows_in_range`."""
    lines = open_lines(stream, path)
    columns = form.columns
    if columns is None and start:
        first = next(lines_in_range(lines, 0, 1, max_line_bytes, chunk=_HEADER_CHUNK), (0, b""))[1]
        first = first.removeprefix(codecs.BOM_UTF8)
        columns = header_of(first, path, form, max_line_bytes) if first else None
    splitter = None if columns is None else _Splitter(columns, path, form, wanted, max_line_bytes)
    for offset, block in lines_in_range(lines, start, end, max_line_bytes):
        at = len(codecs.BOM_UTF8) if offset == 0 and block.startswith(codecs.BOM_UTF8) else 0
        if offset == 0 and form.columns is None and at < len(block):
            stop = block.find(b"\n", at) + 1 or len(block)
            splitter = _Splitter(
                header_of(block[at:stop], path, form, max_line_bytes), path, form, wanted, max_line_bytes
            )
            at = stop
        if splitter is not None:  # None: the file has only a BOM
            yield from splitter.batches(offset, block, at)


_HEADER_CHUNK = 64 << 10


def header_of(line: bytes, path: str, form: Format, max_line_bytes: int) -> tuple[str, ...]:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > max_line_bytes:
        raise ColumnsRefused(f"the header line of {path} has more than {max_line_bytes} bytes; is it a header?")
    try:
        text = line.decode()
        return tuple(next(csv.reader([text], strict=True), []) or [""] if form.kind == "csv" else text.split("\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ColumnsRefused(
            f"the header line of {path} cannot be read ({error}); give the columns' names if it has no header."
        ) from error


class _Splitter:
    """Splits the lines of one file."""

    def __init__(self, columns: Sequence[str], path: str, form: Format, wanted: Wanted, max_line_bytes: int) -> None:
        self._columns = columns
        self._wanted = wanted
        self._max_line_bytes = max_line_bytes
        inputs = wanted.inputs
        self._names = (*(text.column for text in inputs.texts), *wanted.counts, *inputs.numbers)
        places = np.array(find_columns(self._names, columns, path), np.int64)
        slots = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[slots], np.arange(len(columns) + 1))
        separator, quoted = ord(_SEPARATORS[form.kind]), form.kind == "csv"
        self._rules = LineRules(separator, quoted, max_line_bytes, starts, slots)
        self._most_rows = min(max(MOST_BYTES // wanted.row_bytes, 1), MOST_ROWS)

    def batches(self, offset: int, block: bytes, at: int) -> Iterator[RowBatch]:
        """Yield batches of the lines of a block from `at` on; `offset` is the block's offset in the file."""
        given = np.frombuffer(block, np.uint8)
        data = given.copy()  # doubled quotes become one in it
        plain = given.max(initial=0) < 0x80
        while at < len(data):
            found, at = self._split(data, at)
            yield self._batch(offset, block, data, plain, found)

    def _split(self, data: Bytes, at: int) -> tuple[SplitLines, int]:
        texts = len(self._wanted.inputs.texts)
        most = min(self._most_rows, len(data) - at)
        found = SplitLines(
            begins=np.empty((most, texts), np.int64),
            ends=np.empty((most, texts), np.int64),
            spans=np.empty((most, len(self._names) - texts, 2), np.int64),
            lines=np.empty((most, 2), np.int64),
            codes=np.empty(most, np.uint8),
            details=np.zeros(most, np.int64),
        )
        rows, at = split_lines(data, at, self._rules, found)
        return found.first(rows), at

    def _batch(self, offset: int, block: bytes, data: Bytes, plain: bool, found: SplitLines) -> RowBatch:
        codes, details = found.codes, found.details
        counted = len(self._wanted.counts)
        numbers, cells = numbers_of_texts(data, found.spans, codes, self._wanted.inputs.missing.numbers)
        none_bad = np.zeros((1, counted), np.uint8) if cells is None else cells[:, :counted]
        shows, clicks = judge_counts(self._wanted, numbers[:, :counted], none_bad, codes, details)
        if cells is not None and cells[:, counted:].any():
            bad = cells[:, counted:]
            first = bad.argmax(axis=1)
            for code in (row_refusals.NOT_A_NUMBER, row_refusals.NOT_FINITE):
                refuse(code, bad[np.arange(len(bad)), first] == code, first + counted, codes, details)
        for text, number in self._wanted.inputs.in_both_ways:
            check_both(data, found.begins, found.ends, text, numbers, counted + number, codes, details)
        if not plain:
            check_utf8(data, found.begins, found.ends, codes, details)
        places = offset + found.lines[:, 0]
        if offset == 0 and block.startswith(codecs.BOM_UTF8) and places[0] == len(codecs.BOM_UTF8):
            places[0] = 0
        kept = codes == row_refusals.FINE
        if kept.all():
            rows = Cells(data, found.begins, found.ends, np.ascontiguousarray(numbers[:, counted:]))
            return RowBatch(rows, shows, clicks, places, [])
        rows = Cells(data, found.begins[kept], found.ends[kept], np.ascontiguousarray(numbers[kept, counted:]))
        refused = [self._refused(int(places[row]), row, block, data, found) for row in np.flatnonzero(~kept).tolist()]
        return RowBatch(rows, shows[kept], clicks[kept], places[kept], refused)

    def _refused(self, place: int, row: int, block: bytes, data: Bytes, found: SplitLines) -> RefusedRow:
        code, detail = int(found.codes[row]), int(found.details[row])
        begin, end = found.lines[row].tolist()
        facts: dict[str, object]
        if code in (row_refusals.OPEN_QUOTE, row_refusals.AFTER_QUOTE):
            # A row may have more columns than the file.
            column = self._columns[detail] if detail < len(self._columns) else f"number {detail + 1}"
            facts = {"column": column}
        elif code in (row_refusals.TOO_LONG, row_refusals.EMPTY):
            facts = {"limit": self._max_line_bytes}
        elif code == row_refusals.WRONG_COLUMNS:
            facts = {"found": detail, "limit": len(self._columns)}
        elif code == row_refusals.NOT_UTF8:
            value = data[found.begins[row, detail] : found.ends[row, detail]].tobytes()
            facts = {"column": self._names[detail], "value": shown_bytes(value)}
        else:
            column = self._names[len(self._wanted.inputs.texts) + detail]
            facts = {"column": column, "value": self._number(data, found, row, detail)}
            if code == row_refusals.ABOVE_SHOWS:
                facts |= {"shows": self._wanted.shows, "limit": self._number(data, found, row, 1)}
        return RefusedRow(place, *refusal(code, **facts), block[begin : min(end, begin + EXCERPT_BYTES)])

    @staticmethod
    def _number(data: Bytes, found: SplitLines, row: int, place: int) -> str:
        begin, end = found.spans[row, place]
        return shown(data[begin:end].tobytes())
