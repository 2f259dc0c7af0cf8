"""Rows as JSON objects, `{"user": "u1", "price": 3.2, "tags": ["a", "b"]}`: the lines of a jsonl file, and the rows of a request.

Files and requests are read alike, by the rules of `cells` for JSON values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from elastic_ctr.formats.cells import Cells, cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.line import Reason

# A column that is read as a number, too, becomes a float64, which is exact below this.
_EXACT = 2.0**53
_LEAST, _LIMIT = -(2**63), 2**64
_SHOWN = 60

Row = tuple[list[bytes], list[float]]


class CellRefused(ValueError):
    """A value does not fit its column; the text is a sentence that begins with the column."""

    def __init__(self, column: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{column} {detail}")
        self.column = column
        self.reason = reason
        self.detail = detail


def row_of(given: Mapping[str, Any], inputs: InputColumns) -> Row:
    """Return the text and the number cells of one object; an absent column is missing. Raises CellRefused."""
    texts = [text_cell(given.get(each.column), each) for each in inputs.texts]
    numbers = [number_cell(given.get(column), column, inputs.missing.numbers) for column in inputs.numbers]
    for _, place in inputs.in_both_ways if inputs.numbers else ():
        if abs(numbers[place]) >= _EXACT:
            detail = f"is {given[inputs.numbers[place]]}; read as a number and as text it must be below 2^53"
            raise CellRefused(inputs.numbers[place], Reason.NOT_A_VALUE, detail)
    return texts, numbers


def unknown_column(given: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Return a column that no feature reads, or None."""
    return None if given.keys() <= set(known) else next(column for column in given if column not in known)


def json_of_row(cells: Cells, row: int, inputs: InputColumns) -> bytes:
    """Return the object that `row_of` reads as these cells of a reader."""
    given: dict[str, Any] = {}
    for place, each in enumerate(inputs.texts):
        if text := cells.text(row, place):
            given[each.column] = text.decode()
    for place, column in enumerate(inputs.numbers):
        number = float(cells.numbers[row, place])
        if not math.isnan(number):
            # See `InputColumns.in_both_ways`.
            given[column] = int(number) if column in given else number
    return orjson.dumps(given)


def cells_of_json(lines: Collection[bytes], inputs: InputColumns) -> Cells:
    """Return the cells of lines that `json_of_row` wrote. Raises ValueError for any other line."""
    return cells_of([row_of(orjson.loads(line), inputs) for line in lines], inputs)


def text_cell(value: Any, of: TextInput) -> bytes:
    """Return a value as a text cell. Raises CellRefused."""
    if not isinstance(value, list):
        return _scalar(value, of.column)
    if not of.separator:
        raise CellRefused(
            of.column, Reason.NOT_A_VALUE, "is a list; its feature takes one value (it has no `separator`)"
        )
    values = [_scalar(each, of.column) for each in value]
    separator = of.separator.encode()
    if held := next((each for each in values if separator in each), None):
        raise CellRefused(
            of.column,
            Reason.NOT_A_VALUE,
            f"has the value {shown(held.decode())}, which holds the separator {of.separator!r} of its feature",
        )
    return separator.join(each for each in values if each)


def _scalar(value: Any, column: str) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        if _LEAST <= value < _LIMIT:
            return b"%d" % value
        raise CellRefused(
            column, Reason.NOT_A_VALUE, f"is {shown(value)}, which has more than 64 bits; write it as text"
        )
    if isinstance(value, float) and abs(value) >= _EXACT:
        # JSON parsers return whole numbers from 2^64 on as float64.
        raise CellRefused(column, Reason.NOT_A_VALUE, f"is {value!r}, too large for a whole number; write it as text")
    if isinstance(value, float):
        raise CellRefused(
            column, Reason.NOT_A_VALUE, f"is {value!r}; a number with a point is no category, give its feature `round`"
        )
    kind = "a list in a list" if isinstance(value, list) else "an object"
    raise CellRefused(column, Reason.NOT_A_VALUE, f"is {kind}; a value is text, a whole number, true or false")


def number_cell(value: Any, column: str, missing: Collection[str] = ()) -> float:
    """Return a value as a number cell; null and the words `missing` are missing. Raises CellRefused."""
    if value is None or (isinstance(value, str) and (not value or value in missing)):
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise CellRefused(column, Reason.NOT_FINITE, f"is {shown(value)}, which is too large for a number")
    raise CellRefused(column, Reason.NOT_A_NUMBER, f"is {shown(value)}; it must be a number or null")


def shown(value: Any) -> str:
    """Return a value for a sentence, truncated."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
