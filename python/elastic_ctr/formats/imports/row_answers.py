"""The answers of a row, known only after it was shown: shows, clicks and the time, from the texts of their columns."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from elastic_ctr.formats.imports.cell_texts import FORMATS, ISO, parsed_time
from elastic_ctr.formats.imports.importers import ImportRefused, RowRefused, clicked
from elastic_ctr.formats.line import COUNT_LIMIT

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_THRESHOLD = re.compile(r"\s*(>=|<=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True)
class Answers:
    """The columns of the answers.

    Attributes:
        label: the column of the label; None: the columns show and click are used instead.
        positive: the labels that are clicks: words with commas between, or a threshold such as `>=4`; None: 1 and true.
        time: the column of the time of a row, in `time_format`.
    """

    label: str | None = None
    show: str | None = None
    click: str | None = None
    positive: str | None = None
    time: str | None = None
    time_format: str = ISO

    def __post_init__(self) -> None:
        if (self.label is None) == (self.show is None) or (self.show is None) != (self.click is None):
            raise ImportRefused(
                "say which column is the label (--label), or which are show and click (--show, --click)."
            )
        if self.positive is not None and self.label is None:
            raise ImportRefused("--positive is of a --label, and there is none; leave it out.")
        if self.positive is not None and _THRESHOLD.match(self.positive) and self._threshold is None:
            raise ImportRefused(f"--positive {self.positive!r} compares with no number; write '>=4'.")
        if self.time_format not in FORMATS and "%" not in self.time_format:
            raise ImportRefused(
                f"the time format {self.time_format!r} is none of {', '.join(FORMATS)}, and none of Python's strptime, such as %d.%m.%Y."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.label, self.show, self.click, self.time) if name is not None)

    @property
    def counted(self) -> str:
        """The column that `data.label` names."""
        return str(self.label if self.label is not None else self.click)

    @property
    def _threshold(self) -> tuple[Callable[[float, float], bool], float] | None:
        match = _THRESHOLD.fullmatch(self.positive or "")
        number = math.nan if match is None else _float(match[2])
        return None if match is None or math.isnan(number) else (_COMPARISONS[match[1]], number)

    def clicked(self, label: str) -> int:
        """Raises RowRefused."""
        if self.positive is None:
            return clicked(label)
        if not label.strip():
            raise RowRefused("label", "the label is empty")
        if (threshold := self._threshold) is None:
            return int(label.strip() in {word.strip() for word in self.positive.split(",")})
        number = _float(label)
        if math.isnan(number):
            raise RowRefused("label", f"the label {label!a:.120} is no number to compare with {self.positive}")
        return int(threshold[0](number, threshold[1]))

    def counts(self, show: str, click: str) -> tuple[int, int]:
        """Raises RowRefused."""
        shows, clicks = _count(show), _count(click)
        if not 0 <= clicks <= shows < COUNT_LIMIT or shows == 0:
            raise RowRefused(
                "show_click", f"show {shows} and click {clicks} are not 0 <= click <= show, 0 < show < 2^31"
            )
        return shows, clicks

    def time_of(self, text: str) -> datetime:
        """Raises RowRefused."""
        time = parsed_time(text.strip(), self.time_format)
        if time is None:
            form = "ISO 8601, such as 2020-04-01T03:10:00Z" if self.time_format == ISO else self.time_format
            raise RowRefused("time", f"the time {text.strip()!a:.120} is not {form}")
        return time


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RowRefused("not_a_number", f"{text!a:.120} is not a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
