"""Import of click logs of other systems as hours for training, for files of any format.

Invalid rows are counted with examples, never dropped silently.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import xxhash

from elastic_ctr.formats.hours import HOUR, HourTree, hour_name, split_start
from elastic_ctr.formats.imports.proposal import Proposed
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.slots import SlotList

EXAMPLES = 5

_REPORT_ROWS = 100_000
_TRUTH = {"true": 1.0, "false": 0.0}


class ImportRefused(ValueError):
    """An import cannot continue, such as for a missing column or too many invalid rows; the text is one sentence."""


class RowRefused(ValueError):
    """One row is invalid; `reason` is its category for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """Show and click, the time if there is one, and the line that is written."""

    show: int
    click: int
    time: datetime | None
    line: bytes


Rows = Iterator[ImportedRow | RowRefused]


class Importer(Protocol):
    """Reads rows and returns the lines to write. All members but `file_rows` are used after rows have been read."""

    @property
    def slots(self) -> SlotList | None:
        """The slots of lines of feasigns; None for rows of columns."""

    @property
    def features(self) -> int:
        """The number of features or slots."""

    @property
    def header(self) -> bytes:
        """The first line of each written file, or empty."""

    @property
    def columns(self) -> list[Proposed]:
        """The proposal for each column, if the format has columns."""

    def file_rows(self, path: Path) -> Rows:
        """Yield the rows of one file, or reasons to refuse them. Raises ImportRefused for a file that cannot be read."""

    def values(self, start: str, end: str, interval: int, splits: int) -> str:
        """Return the values file of splits of `interval` minutes, `splits` per pass. Raises ImportRefused if existing hours differ."""


@dataclass
class Summary:
    """The result of an import: rows, sums, refused rows by reason with the first examples, and the hours."""

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
    split_interval: int = 60
    splits_per_pass: int = 1
    passes: int = 0

    @property
    def refused_share(self) -> float:
        """The share of refused rows among all rows."""
        return self.refused.total() / self.rows if self.rows else 0.0

    def count(self, file: str, row: ImportedRow | RowRefused) -> None:
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
        hint = "".join(f"; {way_out}" for reason, way_out in _WAYS_OUT.items() if reason in self.refused)
        raise ImportRefused(
            f"{self.refused.total()} of {self.rows} rows were refused ({counted}), more than the share of "
            f"{max_refused_share:g}; nothing was written. First: {self.examples[0]}{hint}; mend the rows, or raise --max-refused-share."
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"refused": dict(self.refused), "refusedShare": self.refused_share}


_WAYS_OUT = {
    "time": "--time-format says how times are written",
    "label": "--positive says which labels are clicks, such as --positive yes or --positive '>=4'",
    "not_utf8": "--encoding says how the file is written, such as --encoding latin-1",
}

ROWS_OF_A_PASS = 5_000
"""So many rows a pass are proposed: fewer teach little beside the fixed cost of a pass."""
_FEW_ROWS, _LONG_HOURS, _DAY = 200, 48, 24 * 60


def splits_of(records: int, hours: int) -> tuple[int, int]:
    """Return (minutes of a folder, folders of a pass) for rows with times, such that a pass has some thousand rows."""
    interval = _DAY if hours > _LONG_HOURS and records < _FEW_ROWS * hours else 60
    folders = math.ceil(hours * 60 / interval)
    return interval, min(max(round(ROWS_OF_A_PASS * folders / max(records, 1)), 1), folders)


def feasign_of(slot: str, value: str) -> int:
    """Return the feasign of a field's value: the same in all processes and machines, never the padding key."""
    text = f"{slot}={value}".encode("utf-8", "surrogateescape")
    return xxhash.xxh3_64_intdigest(text) or xxhash.xxh3_64_intdigest(text, seed=1) or PADDING_KEY + 1


def clicked(label: str) -> int:
    """Return 1 for the label 1 or true, 0 for 0, -1 or false, in any notation. Raises RowRefused for any other label."""
    number = _TRUTH.get(label.strip().lower(), _float(label))
    if number not in {1.0, 0.0, -1.0}:
        raise RowRefused("label", f"the label {label!a:.120} is not 1, 0, -1, true or false")
    return int(number == 1.0)


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
        files: the files in the order of reading; decompressed if their names end in .gz or .zst.
        importer: reads their rows.
        tree: gets the hours.
        start: the first hour, for rows without a time.
        rows_per_hour: the number of rows without a time in an hour; None: all rows are in one.
        max_hours: a longer tree is refused, because one wrong date would make years of empty hours.
        max_refused_share: nothing is published if the share of refused rows is higher.
        report: called repeatedly with a sentence about the rows read from a file.

    Raises:
        ImportRefused: with the reason; nothing was published.
    """
    summary = Summary()
    first = last = None
    begun: set[datetime] = set()
    timed = False
    for name, row in _read(files, importer, report):
        if isinstance(row, RowRefused):
            summary.count(name, row)
            continue
        if row.time is not None:
            hour, timed = row.time.replace(minute=0, second=0, microsecond=0), True
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
    _publish(summary, importer, tree, first, last, splits_of(summary.records, hours) if timed else (60, 1))
    return summary


def _publish(
    summary: Summary, importer: Importer, tree: HourTree, first: datetime, last: datetime, proposed: tuple[int, int]
) -> None:
    minutes, splits = tree.minutes or proposed[0], proposed[1]
    first, last = split_start(first, minutes), split_start(last, minutes)
    summary.start, summary.end = hour_name(first), hour_name(last)
    summary.split_interval, summary.splits_per_pass = minutes, splits
    values = importer.values(summary.start, summary.end, minutes, splits)
    summary.hours = tree.publish(importer.slots, first, last, values, minutes)
    summary.passes = math.ceil(summary.hours / splits)


def _read(
    files: Sequence[Path], importer: Importer, report: Callable[[str], None]
) -> Iterator[tuple[str, ImportedRow | RowRefused]]:
    for path in files:
        for number, row in enumerate(importer.file_rows(path), 1):
            if number % _REPORT_ROWS == 0:
                report(f"{number:,} rows of {path} are read")
            yield str(path), row


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
