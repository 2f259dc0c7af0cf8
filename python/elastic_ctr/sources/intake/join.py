"""Stateless rules of the join: which rows are clicks that carry only the key of their impression, and which row they become.

A late click is the impression's row with the bytes of two cells replaced, so readers see all other cells unchanged.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from elastic_ctr.config.data import Data
from elastic_ctr.config.features import Features
from elastic_ctr.runtime.documents import MOST_VALUES, refuse_many_values

_SEPARATORS = {"csv": ",", "tsv": "\t"}
_SPACE = re.compile(r"[ \t\r]*")
_DECODER = json.JSONDecoder()
# Longer keys would be expensive in SQLite's index.
LONGEST_KEY = 255


class Kind(Enum):
    IMPRESSION = "impression"
    CLICK = "click"
    OTHER = "other"
    """Appended as it is: a row without a key, or no row at all."""


class Row(NamedTuple):
    """The join's view of a line. `key` is empty if no impression can have it. `clicked`: the impression was sent with its click."""

    kind: Kind
    key: str = ""
    clicked: bool = False


_OTHER = Row(Kind.OTHER)


@dataclass(frozen=True)
class LateClicks:
    """The rules of one format: the columns of the key, the label and the shows, and `inputs`, the columns that features read."""

    format: str
    columns: tuple[str, ...]
    key: str
    label: str
    shows: str
    inputs: frozenset[str]

    @classmethod
    def of(cls, data: Data, features: Features | None) -> "LateClicks | None":
        """Return the rules, or None if nothing is joined."""
        join = data.stream.join
        if join is None:
            return None
        assert data.label is not None
        assert data.shows is not None
        assert features is not None
        inputs = frozenset(column for _, column in features.columns()) - {join.key}
        return cls(data.format, data.columns or (), join.key, data.label, data.shows, inputs)

    @property
    def digest(self) -> bytes:
        """Return a digest of the settings with which a remembered row must be read."""
        rules = (self.format, self.columns, self.key, self.label, self.shows)
        return sha256(repr(rules).encode()).digest()[:16]

    def row_of(self, line: bytes) -> Row:
        """Classify a line without its newline."""
        cells = self._cells(line)
        if cells is None:
            return _OTHER
        key = _key_of(cells.get(self.key))
        clicks = _number_of(cells.get(self.label)) or 0.0
        if clicks > 0 and all(_is_empty(cells.get(name)) for name in self.inputs):
            # Whatever its other columns: trained as it is, it would be a click without features.
            return Row(Kind.CLICK, key if clicks == 1 else "")
        if not key or self.label not in cells or self.shows not in cells or _is_zero(cells[self.shows]):
            return _OTHER
        return Row(Kind.IMPRESSION, key, clicks > 0)

    def late_click_of(self, impression: bytes) -> bytes:
        """Return the late click of an impression: the same row with shows 0 and clicks 1."""
        text = impression.decode()
        values = {self.label: "1", self.shows: "0"}
        found: list[str] = []
        at = 0
        spans = _json_spans(text) if self.format == "jsonl" else self._text_spans(text)
        for name, start, stop in spans:
            if name in values:
                found += [text[at:start], values[name]]
                at = stop
        return "".join([*found, text[at:]]).encode()

    def _cells(self, line: bytes) -> dict[str, Any] | None:
        if self.format != "jsonl":
            try:
                text = line.decode()
                if '"' not in text:
                    # A row without quotes can be split at separators, in a third of the time if it has many short cells.
                    plain = text.removesuffix("\r").split(_SEPARATORS[self.format])
                    return dict(zip(self.columns, plain, strict=True)) if len(plain) == len(self.columns) else None
                cells = [(name, text[start:stop]) for name, start, stop in self._text_spans(text)]
            except ValueError:
                return None
            if len(cells) != len(self.columns):
                return None
            quoted = self.format == "csv"
            return {name: _unquoted(cell) if quoted and cell.startswith('"') else cell for name, cell in cells}
        try:
            refuse_many_values(line, MOST_VALUES)
            found = orjson.loads(line)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _text_spans(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield (column, start, stop) of each cell with its quotes. Raises ValueError for a stray quote or too many cells."""
        at, end = 0, len(text.removesuffix("\r"))
        for name in self.columns:
            if at > end:
                return
            start = at
            if self.format == "csv" and text.startswith('"', at):
                at = text.index('"', at + 1) + 1
                while text.startswith('"', at):
                    at = text.index('"', at + 1) + 1
                if at < end and not text.startswith(_SEPARATORS[self.format], at):
                    raise ValueError("text stands behind a cell in quotes")
            stop = text.find(_SEPARATORS[self.format], at, end)
            stop = end if stop < 0 else stop
            yield name, start, stop
            at = stop + 1
        if at <= end:
            raise ValueError("the row has more cells than columns")


def _json_spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, stop) of each value of a valid JSON object."""
    at = _past_space(text, _past_space(text, 0) + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _past_space(text, _past_space(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        yield name, start, at
        at = _past_space(text, at)
        if text[at] == ",":
            at = _past_space(text, at + 1)


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"')


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _key_of(value: object) -> str:
    """Return the key of a text or of a 64-bit integer, which equals its text; else "". JSON rounds larger numbers and fractions."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if len(text) <= LONGEST_KEY else ""


def _number_of(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _is_zero(value: object) -> bool:
    """True for the number 0 and for an empty cell."""
    return _is_empty(value) or _number_of(value) == 0


def _is_empty(value: object) -> bool:
    return value is None or value == "" or value in ([], {})
