"""Rows of text in plain Python, line by line."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.line import MAX_LINE_BYTES, Reason
from elastic_ctr.formats.readers.batches import RowBatch, Wanted

SEPARATORS = {"csv": ",", "tsv": "\t"}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WHOLE = re.compile(r"0|-?[1-9][0-9]*")


class Row(NamedTuple):
    """Numbers are in hexadecimal, so that NaN is itself and -0.0 is not 0.0."""

    place: int
    texts: tuple[bytes, ...]
    numbers: tuple[str, ...]
    show: int
    click: int


class Refused(NamedTuple):
    place: int
    reason: Reason


def wanted_of(
    texts: Sequence[str] = (), numbers: Sequence[str] = (), label: str | None = None, shows: str | None = None
) -> Wanted:
    """Texts are columns; `column|` is one with a separator."""
    inputs = [TextInput(text.removesuffix("|"), "|" if text.endswith("|") else "") for text in texts]
    return Wanted(InputColumns(tuple(inputs), tuple(numbers)), label, shows)


def rows_of(batches: Iterable[RowBatch]) -> list[Row | Refused]:
    """What a reader gave, in the order of the file."""
    found: list[Row | Refused] = []
    for batch in batches:
        cells = batch.cells
        assert cells.begins.flags.c_contiguous
        assert cells.ends.flags.c_contiguous
        assert cells.numbers.flags.c_contiguous
        assert len(cells) == len(batch.shows) == len(batch.clicks) == len(batch.places) == len(cells.numbers)
        assert len(cells) + len(batch.refused) > 0
        of_batch: list[Row | Refused] = [
            Row(
                int(batch.places[row]),
                tuple(cells.text(row, place) for place in range(cells.begins.shape[1])),
                tuple(number.hex() for number in cells.numbers[row].tolist()),
                int(batch.shows[row]),
                int(batch.clicks[row]),
            )
            for row in range(len(cells))
        ]
        of_batch += [Refused(row.place, row.reason) for row in batch.refused]
        found += sorted(of_batch, key=lambda row: row.place)
    return found


def rows_of_lines(
    content: bytes, kind: str, columns: Sequence[str] | None, wanted: Wanted, max_line_bytes: int = MAX_LINE_BYTES
) -> list[Row | Refused]:
    """What a reader should give for a whole file."""
    at, found = 0, []
    for line in lines_of(content):
        place, text = at, line.removeprefix(b"\xef\xbb\xbf") if at == 0 else line
        at += len(line)
        if not text:
            continue
        if columns is None:
            columns = _cells(text.removesuffix(b"\n"), kind)
            continue
        found.append(_row(place, text.removesuffix(b"\n"), kind, columns, wanted, max_line_bytes))
    return found


def lines_of(content: bytes) -> list[bytes]:
    """Each with its LF."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def _cells(line: bytes, kind: str) -> list[str]:
    text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    return text.split("\t") if kind == "tsv" else next(csv.reader([text], strict=True), []) or [""]


def _row(
    place: int, line: bytes, kind: str, columns: Sequence[str], wanted: Wanted, max_line_bytes: int
) -> Row | Refused:
    if len(line) > max_line_bytes:
        return Refused(place, Reason.TOO_LONG)
    if not line.removesuffix(b"\r") and len(columns) > 1:
        return Refused(place, Reason.EMPTY)
    try:
        cells = _cells(line, kind)
    except csv.Error:
        return Refused(place, Reason.BAD_QUOTE)
    if len(cells) != len(columns):
        return Refused(place, Reason.WRONG_COLUMNS)
    row = dict(zip(columns, cells, strict=True))
    show, click = 1, 0
    if wanted.shows is None and wanted.label is not None:
        label = number_of(row[wanted.label])
        if isinstance(label, Reason) or label not in (0, 1):
            return Refused(place, Reason.BAD_LABEL)
        click = int(label)
    elif wanted.shows is not None and wanted.label is not None:
        counts = [_count(row[column]) for column in (wanted.label, wanted.shows)]
        if reason := next((count for count in counts if isinstance(count, Reason)), None):
            return Refused(place, reason)
        click, show = (int(count) for count in counts)
        if show == 0 and not (wanted.late_clicks and click):
            return Refused(place, Reason.SHOW_ZERO)
        if click > show > 0:
            return Refused(place, Reason.CLICK_ABOVE_SHOW)
    numbers = []
    for column in wanted.inputs.numbers:
        number = number_of(row[column])
        if isinstance(number, Reason):
            return Refused(place, number)
        numbers.append(number.hex())
    for column in {text.column for text in wanted.inputs.texts} & set(wanted.inputs.numbers):
        if row[column] and not (WHOLE.fullmatch(row[column]) and abs(int(row[column])) < 2**53):
            return Refused(place, Reason.NOT_A_VALUE)
    texts = [row[text.column].encode("utf-8", "surrogateescape") for text in wanted.inputs.texts]
    try:
        b" ".join(texts).decode()
    except UnicodeDecodeError:
        return Refused(place, Reason.NOT_UTF8)
    return Row(place, tuple(texts), tuple(numbers), show, click)


def number_of(text: str) -> float | Reason:
    if not text:
        return math.nan
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return Reason.NOT_FINITE
    if not NUMBER.fullmatch(text):
        return Reason.NOT_A_NUMBER
    return float(text) if math.isfinite(float(text)) else Reason.NOT_FINITE


def _count(text: str) -> float | Reason:
    number = number_of(text)
    if isinstance(number, Reason):
        return Reason.NOT_A_NUMBER
    if math.isnan(number):
        return Reason.BAD_LABEL
    if number != math.floor(number):
        return Reason.NOT_A_NUMBER
    if number < 0:
        return Reason.NEGATIVE
    return number if number < 2**31 else Reason.COUNT_TOO_LARGE
