"""A table of texts, which a terminal and the page of a run show, and the figures that both show alike."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from typing_extensions import Self

from elastic_ctr.runtime.status.master_status import PassStatus, TablePartStatus, TrainingStatus


@dataclass(frozen=True)
class Column:
    """`need`: on a narrow screen, columns with a higher value are dropped first. `right`: aligned to the right, for numbers."""

    name: str
    need: int = 1
    right: bool = False


class Marked(str):
    """A cell with a mark, such as `live`, that its renderer turns into a style."""

    __slots__ = ("mark",)
    mark: str

    def __new__(cls, text: str, mark: str) -> Self:
        made = super().__new__(cls, text)
        made.mark = mark
        return made


@dataclass
class TextTable:
    """The first column names the row."""

    columns: Sequence[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def last(self, rows: int) -> "TextTable":
        """Return the table with only its last rows."""
        return TextTable(self.columns, self.rows[-rows:] if rows > 0 else [])

    def without_empty(self, *names: str) -> "TextTable":
        """Return the table without those of the named columns in which every cell is empty or a dash."""
        kept = [
            at
            for at, column in enumerate(self.columns)
            if column.name not in names or any(row[at] not in ("", "-") for row in self.rows)
        ]
        return TextTable([self.columns[at] for at in kept], [tuple(row[at] for at in kept) for row in self.rows])


def columns(*names: str, words: Sequence[str] = ()) -> list[Column]:
    """Return columns of numbers, but the first and those in `words`. On a narrow screen the last ones are dropped first."""
    return [Column(name, at, right=at > 0 and name not in words) for at, name in enumerate(names)]


def number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the counts is unknown."""
    found = list(counts)
    return None if any(each is None for each in found) else sum(each or 0 for each in found)


ROW_COUNTS = ("rows", "new", "expired", "checkpoint bytes")


def row_counts(part: TablePartStatus) -> tuple[int | None, ...]:
    """Return the figures of ROW_COUNTS at one pserver."""
    return part.rows, part.new, part.expired, part.bytes


def row_totals(parts: Sequence[TablePartStatus]) -> tuple[int | None, ...]:
    """Return the figures of ROW_COUNTS over all pservers."""
    return tuple(map(total, zip(*map(row_counts, parts), strict=True)))


def rows_by_pserver(training: TrainingStatus, saved: PassStatus) -> TextTable:
    """Return the rows, bytes and memory of each pserver after the save of a pass, and their sums if there are several."""
    memory = {each.index: each.memory_bytes for each in training.pservers}
    shown = TextTable(columns("pserver", *ROW_COUNTS, "memory bytes"))
    parts = [(*row_counts(part), memory.get(index)) for index, part in enumerate(saved.table or ())]
    for index, part in enumerate(parts):
        shown.add(str(index), *map(count, part))
    if len(parts) > 1:
        shown.add("all", *(count(total(each)) for each in zip(*parts, strict=True)))
    return shown
