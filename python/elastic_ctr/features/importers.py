"""Click logs of other systems as hours of `show click feasign:slot` lines: CSV, Criteo's TSV, libFM.

A value becomes a feasign by xxh3_64 of "field=value", the same in every process and on every machine. An empty value is
a missing one: its slot gets no feature. Rows that make no sense are counted with examples, never dropped unseen.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import xxhash

from elastic_ctr.features.blocks import open_lines
from elastic_ctr.features.hours import HOUR, HourTree, hour_name
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import COUNT_LIMIT
from elastic_ctr.features.slots import SlotList

EXAMPLES = 5
ISO = "iso"
EPOCH = "epoch"
LIBFM_SLOT = "features"

_ONE_ROW = "by their quotes they are one row"
_ISO_TIME = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?\s*(?:[Zz]|([+-])(\d\d):?(\d\d)?)?)?"
)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-]")
_EXAMPLE_CHARACTERS = 120
_TRUTH = {"true": 1.0, "false": 0.0}


class ImportRefused(ValueError):
    """An import cannot go on, for example for a missing column or too many bad rows: one sentence."""


class RowRefused(ValueError):
    """One row that makes no sense; `reason` for counting, and the `lines` of the file that went with it."""

    def __init__(self, reason: str, detail: str, lines: int = 1) -> None:
        super().__init__(detail)
        self.reason = reason
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Row:
    """Show and click, the time if there is one, and the feasigns as `feasign:slot` text."""

    show: int
    click: int
    time: datetime | None
    features: list[bytes]


Rows = Iterator[Row | RowRefused]


@dataclass
class Summary:
    """The result of an import: rows and lines, sums, refused rows by reason with the first examples, the hours.

    A refused row counts as many as it has lines: a stray quote takes whole rows with it.
    """

    rows: int = 0
    records: int = 0
    shows: int = 0
    clicks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    slots: int = 0
    hours: int = 0
    start: str | None = None
    end: str | None = None

    @property
    def refused_share(self) -> float:
        """Refused rows among all rows."""
        return self.refused.total() / self.rows if self.rows else 0.0

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"refused": dict(self.refused), "refusedShare": self.refused_share}


def feasign_of(slot: str, value: str) -> int:
    """The feasign of a value of a field: stable over processes and machines, never the padding key."""
    text = f"{slot}={value}".encode("utf-8", "surrogateescape")
    return xxhash.xxh3_64_intdigest(text) or xxhash.xxh3_64_intdigest(text, seed=1) or PADDING_KEY + 1


def clicked(label: str) -> int:
    """1 for the label 1 or true, 0 for 0, -1 or false, however they are written. Raises RowRefused for any other label."""
    number = _TRUTH.get(label.strip().lower(), _float(label))
    if number not in {1.0, 0.0, -1.0}:
        raise RowRefused("label", f"the label {label!a:.120} is not 1, 0, -1, true or false")
    return int(number == 1.0)


def log_bucket(count: int) -> int:
    """A count as one of few values: itself up to 2 (negative ones too), then the square of its logarithm, rounded down."""
    return count if count <= 2 else int(math.log(count) ** 2)


@dataclass(frozen=True)
class CsvFormat:
    """A CSV file with a header, or with names given for its columns.

    Attributes:
        fields: columns that become slots.
        label: column of the label; or instead show and click.
        time: column of the time of a row, in `time_format`: `iso` for ISO 8601, `epoch` for seconds since 1970, or as strptime
            takes it.
        quote: stands around a value that holds delimiters or line ends; None where quotes are characters like others. A value is
            refused if it begins with the rest of a row and ends with the beginning of one: then its quotes are stray ones, and
            the rows between them would be one value, unseen.
        header: the first line names the columns.
        columns: names of the columns of files without header; without them columns are called 0, 1, 2, …
        counts: fields that hold whole numbers, which become `log_bucket`s.
    """

    fields: tuple[str, ...]
    label: str | None = None
    show: str | None = None
    click: str | None = None
    time: str | None = None
    time_format: str = ISO
    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.label is None) == (self.show is None) or (self.show is None) != (self.click is None):
            raise ImportRefused("say which column is the label, or which are show and click.")
        if len(self.delimiter) != 1:
            raise ImportRefused(f"the delimiter {self.delimiter!r} is not one character.")
        if self.quote is not None and len(self.quote) != 1:
            raise ImportRefused(f"the quote {self.quote!r} is neither one character nor none.")
        if not self.fields:
            raise ImportRefused("name at least one field that becomes a slot.")
        if known := [name for name in self.fields if name in self.answers()]:
            raise ImportRefused(
                f"{', '.join(known)} cannot be a feature: it is the label, or what else is known only of rows that were shown"
                " (--time, --show, --click); take it out of --fields."
            )

    def answers(self) -> list[str]:
        """The columns of the label and the time."""
        return [name for name in (self.label, self.show, self.click, self.time) if name is not None]

    def slots(self) -> SlotList:
        """Slots named as the fields, with what cannot stand in a line replaced by `_`."""
        try:
            return SlotList.parse([_NOT_IN_A_NAME.sub("_", name) for name in self.fields])
        except ValueError as error:
            raise ImportRefused(f"the fields do not make a slot list: {error}") from error

    def rows(self, stream: TextIO, name: str) -> Rows:
        """Rows of a file, or why they are none. Raises ImportRefused when the first row cannot be read, or a column is missing."""
        reader = csv.reader(stream, strict=True, **_dialect(self.delimiter, self.quote))
        try:
            first = next(reader, None)
            if reader.line_num > 1:
                raise csv.Error(_ONE_ROW)  # noqa: TRY301 (refused as other rows that are not CSV)
        except csv.Error as error:
            raise ImportRefused(f"{name}: {self._not_csv(1, reader.line_num, error)}.") from error
        if first is None:
            return
        names = first if self.header else list(self.columns) or [str(number) for number in range(len(first))]
        place = {
            wanted: _column(names, wanted, name, self.header, self.delimiter)
            for wanted in [*self.fields, *self.answers()]
        }
        slots = [
            (slot, place[wanted], wanted in self.counts) for slot, wanted in zip(self.slots(), self.fields, strict=True)
        ]
        rows = reader if self.header else itertools.chain([first], reader)
        done = reader.line_num if self.header else 0
        while True:
            try:
                cells = next(rows, None)
                if cells is None:
                    return
                if reader.line_num > done + 1 and (len(cells) != len(names) or self._swallowed_rows(cells)):
                    raise csv.Error(_ONE_ROW)  # noqa: TRY301 (refused as other rows that are not CSV)
                yield self._row(cells, len(names), place, slots)
            except csv.Error as error:
                yield RowRefused("not_csv", self._not_csv(done + 1, reader.line_num, error), reader.line_num - done)
            except RowRefused as refused:
                yield RowRefused(refused.reason, f"line {reader.line_num}: {refused}")
            done = reader.line_num

    def _swallowed_rows(self, cells: list[str]) -> bool:
        """Whether a value of several lines begins with the rest of a row and ends with the beginning of one."""
        for place, cell in enumerate(cells):
            first, line_end, rest = cell.partition("\n")
            after = rest.rpartition("\n")[2].count(self.delimiter)
            if line_end and first.count(self.delimiter) == len(cells) - 1 - place and after == place:
                return True
        return False

    def _not_csv(self, first: int, last: int, error: csv.Error) -> str:
        lines = f"line {first} is" if first == last else f"lines {first} to {last} are"
        sentence = f"{lines} not CSV ({error})"
        return sentence if self.quote is None else f"{sentence}; where quotes are part of values, say --quote none"

    def _row(self, cells: list[str], width: int, place: dict[str, int], slots: list[tuple[str, int, bool]]) -> Row:
        if len(cells) != width:
            raise RowRefused("columns", f"{len(cells)} columns instead of {width}")
        if self.label is not None:
            show, click = 1, clicked(cells[place[self.label]])
        else:
            assert self.show is not None
            assert self.click is not None
            show, click = _integer(cells[place[self.show]]), _integer(cells[place[self.click]])
            if not 0 <= click <= show < COUNT_LIMIT or show == 0:
                raise RowRefused(
                    "show_click", f"show {show} and click {click} are not 0 <= click <= show, 0 < show < 2^31"
                )
        time = None if self.time is None else _time(cells[place[self.time]].strip(), self.time_format)
        features = [
            _feature(slot, str(log_bucket(_integer(cells[at]))) if counts else cells[at])
            for slot, at, counts in slots
            if cells[at]
        ]
        return Row(show, click, time, features)


def columns_of(file: Path, delimiter: str, quote: str | None) -> list[str]:
    """The first row of a CSV file."""
    with open_lines(file) as binary, io.TextIOWrapper(binary, "utf-8-sig", "surrogateescape", "") as stream:
        return next(csv.reader(stream, **_dialect(delimiter, quote)), [])


def _dialect(delimiter: str, quote: str | None) -> dict[str, Any]:
    quoting = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    return {"delimiter": delimiter, "quotechar": quote, "quoting": quoting}


_CRITEO_COUNTS = tuple(f"I{number}" for number in range(1, 14))
_CRITEO_FIELDS = (*_CRITEO_COUNTS, *(f"C{number}" for number in range(1, 27)))
CRITEO = CsvFormat(
    _CRITEO_FIELDS,
    label="label",
    delimiter="\t",
    quote=None,
    header=False,
    columns=("label", *_CRITEO_FIELDS),
    counts=_CRITEO_COUNTS,
)
"""Criteo's display advertising data: label, 13 counts, 26 categories."""


@dataclass(frozen=True)
class LibfmFormat:
    """Lines `label index:value …`.

    Attributes:
        fields: how many features each line has, if the n-th of them is always of the n-th field: each gets a slot then.
            Otherwise all features are in one slot, `features`.
    """

    fields: int | None = None

    def slots(self) -> SlotList:
        """The slot `features`, or one a field: 0, 1, …"""
        return SlotList.parse([LIBFM_SLOT] if self.fields is None else list(range(self.fields)))

    def rows(self, stream: TextIO, name: str) -> Rows:  # noqa: ARG002 - as CsvFormat.rows
        for number, text in enumerate(stream, 1):
            try:
                yield self._row(text.split())
            except RowRefused as refused:  # noqa: PERF203 (one row, not the file)
                yield RowRefused(refused.reason, f"line {number}: {refused}")

    def _row(self, tokens: list[str]) -> Row:
        if not tokens:
            raise RowRefused("empty", "the line holds nothing")
        click = clicked(tokens[0])
        if self.fields is not None and len(tokens) - 1 != self.fields:
            raise RowRefused("columns", f"{len(tokens) - 1} features instead of {self.fields}")
        features = []
        for place, token in enumerate(tokens[1:]):
            index, colon, value = token.partition(":")
            number = _float(value)
            if not colon or not index or not math.isfinite(number):
                raise RowRefused("not_a_number", f"{token!a:.120} is not index:value")
            if number:  # a zero is how a sparse format says that there is nothing
                slot = LIBFM_SLOT if self.fields is None else str(place)
                features.append(_feature(slot, index if number == 1 else f"{index}:{number:.9g}"))
        return Row(1, click, None, features)


def import_files(
    files: Sequence[Path],
    rows: Callable[[TextIO, str], Rows],
    slots: SlotList,
    tree: HourTree,
    *,
    start: datetime,
    rows_per_hour: int | None = None,
    max_hours: int = 24 * 366,
    max_refused_share: float = 0.01,
) -> Summary:
    """Read files into hours and publish them.

    Args:
        files: read in this order; unzipped if their names end in .gz.
        rows: gives the rows of one of them.
        slots: of the rows.
        tree: where the hours go.
        start: the first hour, for rows without a time.
        rows_per_hour: how many rows without a time make an hour; without it all are in one.
        max_hours: a longer tree is refused: one wrong date would make years of empty hours.
        max_refused_share: more refused rows than this share, and nothing is published.

    Raises:
        ImportRefused: with what was wrong; nothing was published.
    """
    summary = Summary(slots=len(slots))
    first = last = None
    for name, row in _read(files, rows):
        if isinstance(row, RowRefused):
            summary.rows += row.lines
            summary.refused[row.reason] += row.lines
            if len(summary.examples) < EXAMPLES:
                summary.examples.append(f"{name}: {row}")
            continue
        summary.rows += 1
        if row.time is not None:
            hour = row.time.replace(minute=0, second=0, microsecond=0)
        else:
            hour = start + HOUR * (summary.records // rows_per_hour if rows_per_hour else 0)
        first = hour if first is None else min(first, hour)
        last = hour if last is None else max(last, hour)
        line = b" ".join((b"%d %d" % (row.show, row.click), *row.features))
        tree.append(f"{hour_name(hour)}/part-00000", line + b"\n")
        summary.records += 1
        summary.shows += row.show
        summary.clicks += row.click
    if summary.refused_share > max_refused_share:
        counted = ", ".join(f"{count} for {reason}" for reason, count in summary.refused.most_common())
        hint = "; --time-format says how times are written" if "time" in summary.refused else ""
        raise ImportRefused(
            f"{summary.refused.total()} of {summary.rows} rows were refused ({counted}), more than the share of "
            f"{max_refused_share:g}; nothing was written. First: {summary.examples[0]}{hint}."
        )
    if first is None or last is None:
        raise ImportRefused(f"there is no row in {', '.join(str(path) for path in files)}; nothing was written.")
    hours = (last - first) // HOUR + 1
    if hours > max_hours:
        raise ImportRefused(
            f"the rows lie between {hour_name(first)} and {hour_name(last)}, {hours} hours, which is more than "
            f"{max_hours}; is the time format right? Nothing was written."
        )
    summary.hours = tree.publish(slots, first, last)
    summary.start, summary.end = hour_name(first), hour_name(last)
    return summary


def _read(files: Sequence[Path], rows: Callable[[TextIO, str], Rows]) -> Iterator[tuple[str, Row | RowRefused]]:
    for path in files:
        # Bytes that are not UTF-8 are kept as they are: a value is only ever hashed.
        with open_lines(path) as binary, io.TextIOWrapper(binary, "utf-8-sig", "surrogateescape", "") as stream:
            for row in rows(stream, str(path)):
                yield str(path), row


def _feature(slot: str, value: str) -> bytes:
    return f"{feasign_of(slot, value)}:{slot}".encode("ascii")


def _column(names: list[str], wanted: str, name: str, header: bool, delimiter: str) -> int:
    times = names.count(wanted)
    if times == 1:
        return names.index(wanted)
    shown = ", ".join(text[:_EXAMPLE_CHARACTERS].encode("utf-8", "backslashreplace").decode() for text in names[:100])
    if times:
        raise ImportRefused(f"{name} has {times} columns {wanted!r}; its columns are: {shown}.")
    way_out = "if that is no header, say --no-header and perhaps --columns" if header else "--columns names them"
    if len(names) == 1:
        way_out += f"; they are not separated by {delimiter!r}, which --delimiter changes"
    raise ImportRefused(f"{name} has no column {wanted!r}; its columns are: {shown}; {way_out}.")


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RowRefused("not_a_number", f"{text!a:.120} is not a whole number") from None


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


def _time(text: str, time_format: str) -> datetime:
    time = _parsed_time(text, time_format)
    if time is None:
        form = "ISO 8601, such as 2020-04-01T03:10:00Z" if time_format == ISO else time_format
        raise RowRefused("time", f"the time {text!a:.120} is not {form}")
    return time
