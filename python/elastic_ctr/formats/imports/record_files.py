"""Import of records with named and typed values, from JSON lines and Parquet, into hours of JSON lines.

The rows of Parquet become JSON lines with decimals, dates, times and vectors in the form of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import orjson

from elastic_ctr.formats.imports.cell_texts import utc
from elastic_ctr.formats.imports.delimited_files import RecordFormat
from elastic_ctr.formats.imports.importers import ImportedRow, ImportRefused, RowRefused, Rows
from elastic_ctr.formats.imports.proposal import Proposal, Proposed
from elastic_ctr.formats.imports.text_files import lines_of_file, without_last_empty
from elastic_ctr.formats.imports.written_values import WrittenValues, require_same

_LOOKED_AT = 1_000
_LONGEST_VECTOR = 1_000
_SEPARATORS = "|,;\x1f"
_SHOWN_COLUMNS = 100

Given: TypeAlias = "dict[str, object]"


@dataclass(frozen=True, slots=True)
class ImportedRecord:
    """A row of a file: its values, and its line if it comes from JSON lines."""

    number: int
    values: Given
    line: bytes = b""


class RecordImport:
    """One import: `added_to` is the values file of the hours to which the rows are added.

    With `whole_vectors` a list of numbers is a column that no feature can have; else each of its numbers becomes a column.
    """

    slots = None
    header = b""

    def __init__(
        self, form: RecordFormat, added_to: Mapping[str, object] | None = None, *, whole_vectors: bool = False
    ) -> None:
        self._whole_vectors = whole_vectors
        self._form = form
        self._added_to = added_to
        self._proposal = Proposal([], form.fields or (), typed=True)
        self._lists: dict[str, set[str]] = {}
        self._vectors: dict[str, int] = {}
        self.rewritten = 0
        """Rows that were not written as they were read."""

    @property
    def features(self) -> int:
        return len(self.proposal.features())

    @property
    def is_guessed(self) -> bool:
        return self._proposal.full

    @property
    def columns(self) -> list[Proposed]:
        """As CsvImport.columns."""
        return [] if self._added_to is not None else self.proposal.columns()

    @property
    def notes(self) -> list[str]:
        """As CsvImport.notes."""
        found = [] if self._added_to is not None else self.proposal.notes()
        found += [
            f"the column {name!r} holds vectors: its {size} numbers are the columns {name}_0 to {name}_{size - 1}, in requests, too."
            for name, size in self._vectors.items()
        ]
        return found

    def values(self, start: str, end: str, interval: int = 60, splits: int = 1) -> str:
        """As Importer.values."""
        if self._added_to is not None:
            require_same(self._added_to, "jsonl", self._form, None, list(self._proposal.samples))
            return ""
        given = WrittenValues("jsonl", self._form, None, interval, splits)
        return given.text(start, end, self.proposal, guessed=True)

    def rows(self, records: Iterable[ImportedRecord | RowRefused], name: str) -> Rows:
        """Yield rows of a file, or reasons to refuse them. Raises ImportRefused for a file that lacks a column."""
        coming = iter(records)
        first = list(islice(coming, _LOOKED_AT))
        self._look_at([each for each in first if isinstance(each, ImportedRecord)], name)
        for each in chain(first, coming):
            if isinstance(each, RowRefused):
                yield each
                continue
            try:
                yield self._row(each)
            except RowRefused as refused:
                yield RowRefused(refused.reason, f"row {each.number}: {refused}")

    @property
    def proposal(self) -> Proposal:
        """The proposal, with the settings of lists."""
        for name, marks in self._lists.items():
            mark = next((each for each in _SEPARATORS if each not in marks), _SEPARATORS[-1])
            self._proposal.separate(name, mark)
        return self._proposal

    def _look_at(self, records: Sequence[ImportedRecord], name: str) -> None:
        known = dict.fromkeys(column for each in records for column in each.values)
        if not records:
            return
        for each in (*self._form.names, *self._form.without, *(self._form.fields or ())):
            if each not in known:
                shown = ", ".join(islice(known, _SHOWN_COLUMNS))
                raise ImportRefused(f"{name} has no column {each!r}; its columns are: {shown}.")
        for column in known:
            lists = [each.values[column] for each in records if isinstance(each.values.get(column), list)]
            # Lists of whole numbers may be lists of ids; a number with a point shows that they are vectors.
            if not any(isinstance(number, (float, Decimal)) for one in lists for number in _items(one)):
                continue
            sizes = {len(_items(one)) for one in lists}
            numbers = all(isinstance(number, (int, float, Decimal)) for one in lists for number in _items(one))
            if len(sizes) == 1 and numbers and 0 < min(sizes) <= _LONGEST_VECTOR and not self._whole_vectors:
                self._vectors.setdefault(column, min(sizes))
            elif column not in self._form.names:
                kind = "lists of numbers" if len(sizes) == 1 and numbers else "lists of numbers of different lengths"
                self._proposal.sample(column).add_unreadable(f"{kind}; write each number into a column of its own")

    def _row(self, record: ImportedRecord) -> ImportedRow:
        """Raises RowRefused."""
        form = self._form
        given = record.values
        show = 1
        answers: Given
        if form.label is not None:
            click = form.clicked(_text(given.get(form.label)))
            answers = {form.label: click}
        else:
            show, click = form.counts(_text(given.get(str(form.show))), _text(given.get(str(form.click))))
            answers = {str(form.show): show, str(form.click): click}
        time = None
        if form.time is not None:
            found = given.get(form.time)
            time = utc(found) if isinstance(found, date) else form.time_of(_text(found))
        row: Given = {}
        for column, value in given.items():
            row |= answers if column in answers else self._read(column, value)
        looked_at = not self._proposal.full
        if looked_at:
            self._proposal.rows += 1
            for column, value in row.items():
                if self._is_feature(column):
                    self._sample(column, value)
        kept = bool(record.line) and all(given[name] == row[name] for name in answers) and not self._vectors
        self.rewritten += not kept
        return ImportedRow(show, click, time, record.line if kept else orjson.dumps(row))

    def _is_feature(self, column: str) -> bool:
        form = self._form
        if column in form.names or column in form.without:
            return False
        of = column.rpartition("_")[0]
        return form.fields is None or column in form.fields or (of in self._vectors and of in form.fields)

    def _read(self, column: str, value: object) -> Given:
        """Return a value's fields in the written JSON, several for a vector. Raises RowRefused."""
        size = self._vectors.get(column)
        if size is None or value is None:
            return {column: _plain(value, column)}
        numbers = _items(value)
        if len(numbers) != size or not all(isinstance(each, (int, float, Decimal)) for each in numbers):
            raise RowRefused("vector", f"the column {column!r} is no vector of {size} numbers")
        return {f"{column}_{place}": _plain(number, column) for place, number in enumerate(numbers)}

    def _sample(self, column: str, value: object) -> None:
        sample = self._proposal.sample(column)
        if isinstance(value, dict):
            sample.add_unreadable("objects; write their values into columns of their own")
        elif isinstance(value, list):
            marks = self._lists.setdefault(column, set())
            for each in value:
                if isinstance(each, (list, dict, float)):
                    sample.add_unreadable("lists of lists, of objects or of numbers with a point")
                else:
                    text = _text(each)
                    marks |= set(text) & set(_SEPARATORS)
                    sample.add(text, quoted=isinstance(each, (str, bool)))
        else:
            sample.add(_text(value), quoted=isinstance(value, (str, bool)))


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a value as the text of a CSV cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _plain(value: object, column: str) -> object:
    """Convert a value of Parquet for JSON. Raises RowRefused."""
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else _plain(float(value), column)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise RowRefused("not_finite", f"the column {column!r} is {value}, which is not finite")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise RowRefused("not_utf8", f"the column {column!r} is {value[:40]!r}, which is not UTF-8") from None
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(each, column) for each in value]
    return value if value is None or isinstance(value, (str, bool, int, float, dict)) else str(value)


def json_records(lines: Iterator[bytes], name: str) -> Iterator[ImportedRecord | RowRefused]:
    """Yield the records of JSON lines. Raises ImportRefused for a file that is one document."""
    for number, line in enumerate(lines, 1):
        if number == 1 and line.lstrip().startswith(b"["):
            raise ImportRefused(
                f"{name} is one list, and JSON lines have an object a line; `jq -c '.[]' {name}` writes them."
            )
        try:
            values = orjson.loads(line)
        except orjson.JSONDecodeError as wrong:
            empty = not line.strip()
            yield RowRefused("empty" if empty else "not_json", f"line {number}: it is not JSON ({wrong})")
            continue
        if isinstance(values, dict):
            yield ImportedRecord(number, values, line)
        else:
            yield RowRefused("not_json", f"line {number}: it is no object, with a value for each column")


class JsonImport(RecordImport):
    """One import; a line is kept as it is if its label is 0, 1, true or false."""

    def file_rows(self, path: Path, stored: BinaryIO | None = None) -> Rows:
        """As CsvImport.file_rows."""
        lines = without_last_empty(lines_of_file(path, self._form.encoding, stored))
        return self.rows(json_records(lines, str(path)), str(path))


_MOST_ROWS = 4_096


class ParquetImport(RecordImport):
    """One import."""

    def file_rows(self, path: Path, stored: BinaryIO | None = None) -> Rows:
        """As CsvImport.file_rows."""
        return self.rows(_records(path, stored), str(path))


def _records(path: Path, stored: BinaryIO | None) -> Iterator[ImportedRecord]:
    """Raises ImportRefused."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(stored or path) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ImportRefused(f"{path} has several columns {twice!r}; give each its own name.")
            number = 0
            for batch in file.iter_batches(_MOST_ROWS):
                for values in _in_microseconds(batch).to_pylist():
                    number += 1
                    yield ImportedRecord(number, values)
    except (pa.ArrowException, ValueError) as wrong:
        if isinstance(wrong, ImportRefused):
            raise
        raise ImportRefused(f"{path} cannot be read as Parquet: {wrong}") from wrong


def _in_microseconds(batch: Any) -> Any:
    """Times as Python has them, which cuts nanoseconds off."""
    import pyarrow as pa
    from pyarrow import types

    for place, field in enumerate(batch.schema):
        if types.is_timestamp(field.type) and field.type.unit == "ns":
            times = batch.column(place).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, times)
    return batch
