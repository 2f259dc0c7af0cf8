"""Rows of CSV and TSV files for hours of the same: as they are, but for labels that are not written as 0 and 1.

A row is a line, as it is for trainers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from elastic_ctr.features.hours import VALUES
from elastic_ctr.features.imports.guessed_columns import ColumnGuess, yaml_text
from elastic_ctr.features.imports.importers import ImportRefused, Row, RowRefused, Rows, clicked
from elastic_ctr.features.line import COUNT_LIMIT

ISO = "iso"
EPOCH = "epoch"

_ISO_TIME = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?\s*(?:[Zz]|([+-])(\d\d):?(\d\d)?)?)?"
)
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class CsvFormat:
    """CSV files with a header, or with names given for their columns.

    Attributes:
        label: column of the label; or instead show and click.
        fields: columns that become features; None: all but label, show, click, time and those in `without`.
        without: columns that become none.
        time: column of the time of a row, in `time_format`: `iso` for ISO 8601, `epoch` for seconds since 1970, or as strptime
            takes it.
        quote: stands around a value that holds delimiters; None where quotes are characters like others.
        header: the first line of each file names its columns.
        columns: names of the columns of files without header; without them columns are called 0, 1, 2, …
        features: settings of features that need not be guessed, as YAML.
    """

    label: str | None = None
    show: str | None = None
    click: str | None = None
    fields: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    time: str | None = None
    time_format: str = ISO
    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: tuple[str, ...] = ()
    features: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.label is None) == (self.show is None) or (self.show is None) != (self.click is None):
            raise ImportRefused("say which column is the label, or which are show and click.")
        if len(self.delimiter) != 1:
            raise ImportRefused(f"the delimiter {self.delimiter!r} is not one character.")
        if self.quote is not None and len(self.quote) != 1:
            raise ImportRefused(f"the quote {self.quote!r} is neither one character nor none.")
        if self.fields is not None and self.without:
            raise ImportRefused("say either which columns become features, or which become none.")
        if self.fields == ():
            raise ImportRefused("name at least one field that becomes a feature.")
        if known := [name for name in self.fields or () if name in self.answers]:
            raise ImportRefused(
                f"{', '.join(known)} cannot be a feature: it is the label, or what else is known only of rows that were shown"
                " (--time, --show, --click); take it out of --fields."
            )

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns of the label and the time."""
        return tuple(name for name in (self.label, self.show, self.click, self.time) if name is not None)

    @property
    def kind(self) -> str:
        """`data.format` of the rows that are written."""
        return "tsv" if (self.delimiter, self.quote) == ("\t", None) else "csv"

    @property
    def is_kept(self) -> bool:
        """Whether a row can be written as it was read."""
        return self.kind == "tsv" or (self.delimiter, self.quote) == (",", '"')


class CsvImport:
    """One import: the columns are those of the first file.

    Args:
        form: of the files.
        added_to: the values file of hours that the rows are added to.
    """

    slots = None

    def __init__(self, form: CsvFormat, added_to: Mapping[str, Any] | None = None) -> None:
        self._form = form
        self._added_to = added_to
        self._delimiter = form.delimiter.encode()
        self._quote = None if form.quote is None else form.quote.encode()
        self._names: list[str] = []
        self._of_features: list[int] = []
        self._place_of: dict[str, int] = {}
        self._guess = ColumnGuess([])
        self.rewritten = 0
        """Rows whose label or columns were not written as they were read."""

    @property
    def features(self) -> int:
        return len(self._of_features)

    @property
    def is_guessed(self) -> bool:
        """Whether more rows would change nothing of the values."""
        return self._guess.full

    @property
    def notes(self) -> list[str]:
        """Sentences about features that were guessed."""
        return [] if self._form.features or self._added_to is not None else self._guess.notes()

    @property
    def header(self) -> bytes:
        """The first line of each file that is written; empty for files without header."""
        return self._line([name.encode() for name in self._names]) + b"\n" if self._form.header else b""

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:
        """Rows of a file, or why they are none. Raises ImportRefused for a header that cannot be read or lacks a column."""
        first = next(lines, None)
        if first is None:
            return
        form = self._form
        try:
            names = [cell.decode() for cell in self._cells(first)]
        except (RowRefused, UnicodeDecodeError) as refused:
            raise ImportRefused(f"{name}: line 1: {refused}.") from refused
        if not form.header:
            names = list(form.columns) or [str(number) for number in range(len(names))]
        order = self._order(names, name)
        if not form.header:
            yield self._row_or_refused(first, 1, len(names), order)
        for number, line in enumerate(lines, 2):
            yield self._row_or_refused(line, number, len(names), order)

    def values(self, start: str, end: str, interval: int = 60) -> str:
        """The values file that trains the rows. Raises ImportRefused where they are not those of the hours that are there."""
        if self._added_to is not None:
            self._require_same(self._added_to)
        form = self._form
        data = {
            "source": '{url: "file:."}    # the folder of this file; a cluster needs hdfs:// or a mounted file:///',
            "path": "/",
            "start": start,
            "end": end,
            "format": form.kind,
            "label": yaml_text(str(form.label if form.label is not None else form.click)),
        }
        if interval != 60:
            data["splitInterval"] = str(interval)
        if form.show is not None:
            data["shows"] = yaml_text(form.show)
        if not form.header:
            data["columns"] = f"[{', '.join(map(yaml_text, self._names))}]"
        features = form.features or self._guess.features()
        guessed = (
            f"    # guessed from the first {self._guess.rows:,} rows: whole numbers may be ids, so they are categories"
        )
        lines = [
            "data:",
            *(f"  {key}: {value}" for key, value in data.items()),
            f"features:{'' if form.features else guessed}",
            *(f"  {yaml_text(name)}: {settings}" for name, settings in features.items()),
        ]
        return "\n".join(lines) + "\n"

    def _require_same(self, values: Mapping[str, Any]) -> None:
        """Raises ImportRefused."""
        form, data = self._form, values.get("data") or {}
        ours = {"format": form.kind, "label": form.label if form.label is not None else form.click, "shows": form.show}
        ours["columns"] = None if form.header else self._names  # type: ignore[assignment]
        for key, value in ours.items():
            if data.get(key) != value:
                raise ImportRefused(
                    f"the {VALUES} there has data.{key} {data.get(key)}, and these rows {value}; they must be the same."
                )
        for name, feature in (values.get("features") or {}).items():
            column = feature.get("column") or name
            if feature.get("type") != "crossed" and column not in self._names:
                raise ImportRefused(
                    f"the {VALUES} there has the feature {name} of the column {column!r}, which these rows lack; they have "
                    f"{', '.join(self._names)}."
                )

    def _order(self, names: list[str], file: str) -> list[int] | None:
        """Where the columns of the first file are among these; None: they are the same. Raises ImportRefused."""
        if self._names:
            return None if names == self._names else [self._place(names, each, file) for each in self._names]
        form = self._form
        for each in (*form.answers, *form.without, *(form.fields or ())):
            self._place(names, each, file)
        wanted = list(dict.fromkeys(form.fields or ())) or [
            name for name in names if name not in {*form.answers, *form.without}
        ]
        if not wanted:
            raise ImportRefused(f"{file} has no column beside the label and the time; there is nothing to learn from.")
        self._of_features = [self._place(names, each, file) for each in wanted]
        self._guess = ColumnGuess(wanted)
        self._place_of = {name: self._place(names, name, file) for name in form.answers}
        self._names = names
        return None

    def _place(self, names: list[str], wanted: str, file: str) -> int:
        times = names.count(wanted)
        if times == 1:
            return names.index(wanted)
        shown = ", ".join(text[:_SHOWN_CHARACTERS] for text in names[:100])
        if times:
            raise ImportRefused(
                f"{file} has {times} columns {wanted!r}; its columns are: {shown}; give each its own name."
            )
        way_out = "if that is no header, say --no-header and perhaps --columns"
        if not self._form.header:
            way_out = "--columns names them"
        if len(names) == 1:
            way_out += f"; they are not separated by {self._form.delimiter!r}, which --delimiter changes"
        raise ImportRefused(f"{file} has no column {wanted!r}; its columns are: {shown}; {way_out}.")

    def _row_or_refused(self, line: bytes, number: int, width: int, order: list[int] | None) -> Row | RowRefused:
        try:
            return self._row(line, width, order)
        except RowRefused as refused:
            return RowRefused(refused.reason, f"line {number}: {refused}")

    def _row(self, line: bytes, width: int, order: list[int] | None) -> Row:
        """Raises RowRefused."""
        form = self._form
        cells = self._cells(line)
        if len(cells) != width:
            raise RowRefused("columns", f"{len(cells)} columns instead of {width}")
        kept = form.is_kept and order is None
        if order is not None:
            cells = [cells[place] for place in order]
        answers: dict[int, bytes] = {}
        show = 1
        if form.label is not None:
            place = self._place_of[form.label]
            click = int(cells[place]) if cells[place] in {b"0", b"1"} else clicked(cells[place].decode())
            answers[place] = b"%d" % click
        else:
            show, click = (self._count(cells, name, answers) for name in (form.show, form.click))
            if not 0 <= click <= show < COUNT_LIMIT or show == 0:
                raise RowRefused(
                    "show_click", f"show {show} and click {click} are not 0 <= click <= show, 0 < show < 2^31"
                )
        time = None
        if form.time is not None:
            time = time_of(cells[self._place_of[form.time]].decode().strip(), form.time_format)
        for place, answer in answers.items():
            if cells[place] != answer:
                cells[place], kept = answer, False
        if not self._guess.full:
            self._guess.add([cells[place] for place in self._of_features])
        self.rewritten += not kept
        return Row(show, click, time, line if kept else self._line(cells))

    def _count(self, cells: list[bytes], name: str | None, answers: dict[int, bytes]) -> int:
        place = self._place_of[str(name)]
        try:
            count = int(cells[place])
        except ValueError:
            raise RowRefused("not_a_number", f"{cells[place].decode()!a:.120} is not a whole number") from None
        answers[place] = b"%d" % count
        return count

    def _cells(self, line: bytes) -> list[bytes]:
        """Raises RowRefused."""
        if not line:
            raise RowRefused("empty", "the line holds nothing")
        if not line.isascii():
            try:
                line.decode()
            except UnicodeDecodeError:
                raise RowRefused("not_utf8", f"{line[:_SHOWN_CHARACTERS]!r} is not UTF-8") from None
        if self._quote is None or self._quote not in line:
            return line.split(self._delimiter)
        try:
            [cells] = csv.reader(
                [line.decode()], strict=True, delimiter=self._form.delimiter, quotechar=self._form.quote
            )
        except (csv.Error, ValueError) as error:
            raise RowRefused(
                "not_csv",
                f"it is not CSV ({error}); a row is one line, and where quotes are part of values, say --quote none",
            ) from None
        return [cell.encode() for cell in cells]

    def _line(self, cells: Sequence[bytes]) -> bytes:
        if self._form.kind == "tsv":
            return b"\t".join(cells)
        return b",".join(
            b'"' + cell.replace(b'"', b'""') + b'"' if b'"' in cell or b"," in cell else cell for cell in cells
        )


_CRITEO_NUMBERS = tuple(f"I{number}" for number in range(1, 14))
_CRITEO_CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
CRITEO = CsvFormat(
    label="label",
    delimiter="\t",
    quote=None,
    header=False,
    columns=("label", *_CRITEO_NUMBERS, *_CRITEO_CATEGORIES),
    features={
        **dict.fromkeys(_CRITEO_NUMBERS, "{type: numeric, transform: [log1p], missing: 0}"),
        **dict.fromkeys(_CRITEO_CATEGORIES, "{type: categorical}"),
    },
)
"""Criteo's display advertising data: label, 13 counts, 26 categories."""


def time_of(text: str, time_format: str) -> datetime:
    """Raises RowRefused."""
    time = _parsed_time(text, time_format)
    if time is None:
        form = "ISO 8601, such as 2020-04-01T03:10:00Z" if time_format == ISO else time_format
        raise RowRefused("time", f"the time {text!a:.120} is not {form}")
    return time


@lru_cache(maxsize=1 << 16)
def _parsed_time(text: str, time_format: str) -> datetime | None:
    try:
        if time_format == ISO:
            return _iso_time(text)
        if time_format == EPOCH:
            return datetime.fromtimestamp(float(text), timezone.utc)
        time = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is given below
    except (ValueError, OverflowError, OSError):
        return None
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)


def _iso_time(text: str) -> datetime | None:
    """As `datetime.fromisoformat` of Python 3.11, which 3.10 does not have; without an offset it is UTC."""
    if (match := _ISO_TIME.fullmatch(text)) is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    return datetime(
        int(year), int(month), int(day), int(hour), int(minute), int(second), int(fraction.ljust(6, "0")[:6]), timezone.utc
    ) - offset  # fmt: skip
