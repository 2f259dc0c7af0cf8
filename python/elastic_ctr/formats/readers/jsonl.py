"""Rows of JSON lines: a row is an object on a line, `{"user": "u1", "price": 3.2, "tags": ["a", "b"]}`.

A column that a row lacks, or that is null, is missing; an unwanted column is ignored. Everyday lines are read in machine code
(`json_scan`), all others by `json_rows`, which refuses invalid ones. In label and shows, `true` is 1 and `false` is 0. A BOM at the
beginning of a file and a CR at the end of a line are dropped.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import orjson

from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.cells import Bytes, Cells, Places
from elastic_ctr.formats.convert import EXCERPT_BYTES
from elastic_ctr.formats.json_rows import CellRefused, row_of
from elastic_ctr.formats.json_rows import shown as shown_value
from elastic_ctr.formats.json_scan import CellRoom, JsonColumns, columns_of, new_cells, scan_lines
from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers import row_refusals
from elastic_ctr.formats.readers.batches import MOST_BYTES, MOST_ROWS, RefusedRow, RowBatch, Wanted
from elastic_ctr.formats.readers.row_refusals import Codes, judge_counts, refusal, shown
from elastic_ctr.machine_code.json_marks import marks_of, repeated_name

_BLANKS = b" \t\r"


def rows_of_json_lines(
    stream: BinaryIO, path: str, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    """As `rows.rows_in_range`."""
    reader = _Reader(wanted, max_line_bytes)
    for offset, block in lines_in_range(open_lines(stream, path), start, end, max_line_bytes):
        yield from reader.batches(offset, block)


class _Reader:
    def __init__(self, wanted: Wanted, max_line_bytes: int) -> None:
        self._wanted = wanted
        self._max_line_bytes = max_line_bytes
        self._names = {*wanted.inputs.columns, *wanted.counts}
        self._columns: JsonColumns = columns_of(wanted.inputs, counts=wanted.counts, skips=True)
        # A value takes at most as many bytes as text as in its line, once for each way of reading its column.
        self._copies = int(np.diff(self._columns.starts).max(initial=0))
        self._most_rows = min(max(MOST_BYTES // wanted.row_bytes, 1), MOST_ROWS)

    def batches(self, offset: int, block: bytes) -> Iterator[RowBatch]:
        size = len(block)
        data = np.empty((1 + self._copies) * size, np.uint8)
        data[:size] = np.frombuffer(block, np.uint8)
        at = len(codecs.BOM_UTF8) if offset == 0 and block.startswith(codecs.BOM_UTF8) else 0
        rest = new_cells(0, self._wanted.inputs).written
        rest[0] = size
        rows = min(self._most_rows, block.count(b"\n") + 1)
        while at < size:
            cells = new_cells(rows, self._wanted.inputs, len(self._wanted.counts))._replace(written=rest)
            lines, codes = np.empty((rows, 2), np.int64), np.empty(rows, np.uint8)
            found, at = scan_lines(data, at, size, self._columns, cells, self._max_line_bytes, lines, codes)
            yield self._batch(offset, block, data, _first(cells, found), lines[:found], codes[:found])

    def _batch(self, offset: int, block: bytes, data: Bytes, cells: CellRoom, lines: Places, codes: Codes) -> RowBatch:
        counted = len(self._wanted.counts)
        bad, details = np.zeros((len(codes), counted), np.uint8), np.zeros(len(codes), np.int64)
        refused: dict[int, tuple[Reason, str]] = {}
        left = np.flatnonzero(codes).tolist()
        codes[:] = row_refusals.FINE
        for row in left:
            begin, end = lines[row].tolist()
            if end - begin > self._max_line_bytes:
                codes[row] = row_refusals.TOO_LONG
            elif not block[begin:end].strip(_BLANKS):
                codes[row] = row_refusals.EMPTY
            elif wrong := self._take(block[begin:end], data, cells, row, bad[row]):
                refused[row] = wrong
        shows, clicks = judge_counts(self._wanted, cells.numbers[:, :counted], bad, codes, details)
        for row, wrong in list(refused.items()):
            # The first reason counts: label and shows come before the columns, and a line that is no object before both.
            if codes[row] == row_refusals.FINE or wrong[0] == Reason.NOT_JSON:
                codes[row] = row_refusals.NOT_READ
        places = offset + lines[:, 0]
        if offset == 0 and block.startswith(codecs.BOM_UTF8) and places[0] == len(codecs.BOM_UTF8):
            places[0] = 0
        kept = codes == row_refusals.FINE
        numbers = cells.numbers[:, counted:]
        if kept.all():
            rows = Cells(data, cells.begins, cells.ends, np.ascontiguousarray(numbers))
            return RowBatch(rows, shows, clicks, places, [])
        rows = Cells(data, cells.begins[kept], cells.ends[kept], np.ascontiguousarray(numbers[kept]))
        out = []
        for row in np.flatnonzero(~kept).tolist():
            begin, end = lines[row].tolist()
            why = (
                refused[row]
                if codes[row] == row_refusals.NOT_READ
                else self._why(block[begin:end], codes[row], details[row])
            )
            out.append(RefusedRow(int(places[row]), *why, block[begin : min(end, begin + EXCERPT_BYTES)]))
        return RowBatch(rows, shows[kept], clicks[kept], places[kept], out)

    def _take(self, line: bytes, data: Bytes, cells: CellRoom, row: int, bad: Codes) -> tuple[Reason, str] | None:
        """Read a line in Python. Return why it is refused, or None."""
        counted = len(self._wanted.counts)
        # Empty cells, because a row that is refused below has cells, too.
        cells.begins[row] = cells.ends[row] = 0
        cells.numbers[row] = math.nan
        try:
            given = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return Reason.NOT_JSON, f"the line is not JSON: {error}."
        if type(given) is not dict:
            return (
                Reason.NOT_JSON,
                f"the line is {shown_value(given)}; a row is an object with a value for each column.",
            )
        if (twice := repeated_name(line, given, marks_of(line, len(line)).names, self._names)) is not None:
            return (
                Reason.NOT_JSON,
                f"the column {twice!r} is there twice in an object; which of its values counts is not said.",
            )
        for place, column in enumerate(self._wanted.counts):
            cells.numbers[row, place], bad[place] = _count(given.get(column))
        try:
            texts, numbers = row_of(given, self._wanted.inputs)
        except CellRefused as wrong:
            return wrong.reason, f"the column {wrong.column!r} {wrong.detail}."
        cells.numbers[row, counted:] = numbers
        for place, text in enumerate(texts):
            begin = int(cells.written[0])
            cells.begins[row, place], cells.ends[row, place] = begin, begin + len(text)
            data[begin : begin + len(text)] = np.frombuffer(text, np.uint8)
            cells.written[0] += len(text)
        return None

    def _why(self, line: bytes, code: int, detail: int) -> tuple[Reason, str]:
        if code in (row_refusals.TOO_LONG, row_refusals.EMPTY):
            return refusal(code, limit=self._max_line_bytes)
        given: Mapping[str, Any] = orjson.loads(line)
        facts = {"column": self._wanted.counts[detail], "value": _shown(given.get(self._wanted.counts[detail]))}
        if self._wanted.shows is not None:
            facts |= {"shows": self._wanted.shows, "limit": _shown(given.get(self._wanted.shows))}
        return refusal(code, **facts)


def _first(cells: CellRoom, rows: int) -> CellRoom:
    return cells._replace(begins=cells.begins[:rows], ends=cells.ends[:rows], numbers=cells.numbers[:rows])


def _shown(value: Any) -> str:
    return shown(orjson.dumps(value))


def _count(value: Any) -> tuple[float, int]:
    """Return a label or a number of shows, and its code."""
    if value is None:
        return math.nan, row_refusals.FINE
    if not isinstance(value, (bool, int, float)):
        return math.nan, row_refusals.NOT_A_NUMBER
    return float(value), row_refusals.FINE
