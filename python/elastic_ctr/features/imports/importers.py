"""Click logs of other systems as hours that can be trained on: rows of CSV as they are, lines of libFM as clicks.

Rows that make no sense are counted with examples, never dropped unseen.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import xxhash

from elastic_ctr.features.blocks import open_lines
from elastic_ctr.features.hours import HOUR, HourTree, hour_name, values_text
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.slots import SlotList

EXAMPLES = 5
LIBFM_SLOT = "features"

_REPORT_ROWS = 100_000
_TRUTH = {"true": 1.0, "false": 0.0}


class ImportRefused(ValueError):
    """An import cannot go on, for example for a missing column or too many bad rows: one sentence."""


class RowRefused(ValueError):
    """One row that makes no sense; `reason` for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Row:
    """Show and click, the time if there is one, and the line that is written."""

    show: int
    click: int
    time: datetime | None
    line: bytes


Rows = Iterator[Row | RowRefused]


class Importer(Protocol):
    """How rows are read and written. All but `rows` is asked for when rows have been read."""

    @property
    def slots(self) -> SlotList | None:
        """Of lines of feasigns; None: rows are rows of columns."""

    @property
    def features(self) -> int:
        """How many features or slots there are."""

    @property
    def header(self) -> bytes:
        """The first line of each file that is written, or nothing."""

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:
        """The rows of one file."""

    def values(self, start: str, end: str) -> str:
        """The values file of hours from `start` to `end`. Raises ImportRefused where the rows cannot be added to those there."""


@dataclass
class Summary:
    """The result of an import: rows and lines, sums, refused rows by reason with the first examples, the hours."""

    rows: int = 0
    records: int = 0
    shows: int = 0
    clicks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    features: int = 0
    hours: int = 0
    start: str | None = None
    end: str | None = None

    @property
    def refused_share(self) -> float:
        """Refused rows among all rows."""
        return self.refused.total() / self.rows if self.rows else 0.0

    def count(self, file: str, row: Row | RowRefused) -> None:
        self.rows += 1
        if isinstance(row, RowRefused):
            self.refused[row.reason] += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append(f"{file}: {row}")
        else:
            self.records += 1
            self.shows += row.show
            self.clicks += row.click

    def require_few_refused(self, max_refused_share: float) -> None:
        """Raises ImportRefused."""
        if self.refused_share <= max_refused_share:
            return
        counted = ", ".join(f"{count} for {reason}" for reason, count in self.refused.most_common())
        hint = "; --time-format says how times are written" if "time" in self.refused else ""
        raise ImportRefused(
            f"{self.refused.total()} of {self.rows} rows were refused ({counted}), more than the share of "
            f"{max_refused_share:g}; nothing was written. First: {self.examples[0]}{hint}."
        )

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


@dataclass(frozen=True)
class LibfmFormat:
    """Lines `label index:value …`.

    Attributes:
        fields: how many features each line has, if the n-th of them is always of the n-th field: each gets a slot then.
            Otherwise all features are in one slot, `features`.
    """

    fields: int | None = None

    @property
    def slots(self) -> SlotList:
        """The slot `features`, or one a field: 0, 1, …"""
        return SlotList.parse([LIBFM_SLOT] if self.fields is None else list(range(self.fields)))

    @property
    def features(self) -> int:
        return len(self.slots)

    header = b""

    def values(self, start: str, end: str) -> str:
        return values_text(self.slots, start, end)

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:  # noqa: ARG002 - as Importer.rows
        for number, line in enumerate(lines, 1):
            try:
                yield self._row(line.decode("utf-8", "surrogateescape").split())
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
        return Row(1, click, None, b" ".join((b"1 %d" % click, *features)))


def import_files(
    files: Sequence[Path],
    importer: Importer,
    tree: HourTree,
    *,
    start: datetime,
    rows_per_hour: int | None = None,
    max_hours: int = 24 * 366,
    max_refused_share: float = 0.01,
    report: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Read files into hours and publish them.

    Args:
        files: read in this order; decompressed if their names end in .gz or .zst.
        importer: of their rows.
        tree: where the hours go.
        start: the first hour, for rows without a time.
        rows_per_hour: how many rows without a time make an hour; without it all are in one.
        max_hours: a longer tree is refused: one wrong date would make years of empty hours.
        max_refused_share: more refused rows than this share, and nothing is published.
        report: is told how many rows of a file are read, from time to time.

    Raises:
        ImportRefused: with what was wrong; nothing was published.
    """
    summary = Summary()
    first = last = None
    begun: set[datetime] = set()
    for name, row in _read(files, importer, report):
        if isinstance(row, RowRefused):
            summary.count(name, row)
            continue
        if row.time is not None:
            hour = row.time.replace(minute=0, second=0, microsecond=0)
        else:
            hour = start + HOUR * (summary.records // rows_per_hour if rows_per_hour else 0)
        first = hour if first is None else min(first, hour)
        last = hour if last is None else max(last, hour)
        head = b"" if hour in begun else importer.header
        begun.add(hour)
        tree.append(f"{hour_name(hour)}/part-00000", head + row.line + b"\n")
        summary.count(name, row)
    summary.require_few_refused(max_refused_share)
    if first is None or last is None:
        raise ImportRefused(f"there is no row in {', '.join(str(path) for path in files)}; nothing was written.")
    hours = (last - first) // HOUR + 1
    if hours > max_hours:
        raise ImportRefused(
            f"the rows lie between {hour_name(first)} and {hour_name(last)}, {hours} hours, which is more than "
            f"{max_hours}; is the time format right? Nothing was written."
        )
    summary.features = importer.features
    summary.start, summary.end = hour_name(first), hour_name(last)
    summary.hours = tree.publish(importer.slots, first, last, importer.values(summary.start, summary.end))
    return summary


def _read(
    files: Sequence[Path], importer: Importer, report: Callable[[str], None]
) -> Iterator[tuple[str, Row | RowRefused]]:
    for path in files:
        for number, row in enumerate(importer.rows(lines_of_file(path), str(path)), 1):
            if number % _REPORT_ROWS == 0:
                report(f"{number:,} rows of {path} are read")
            yield str(path), row


def lines_of_file(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed, without BOM and line ends."""
    with open_lines(path) as stream:
        for number, line in enumerate(stream):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
            yield text.removesuffix(b"\n").removesuffix(b"\r")


def _feature(slot: str, value: str) -> bytes:
    return f"{feasign_of(slot, value)}:{slot}".encode("ascii")


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
