"""The `features:` that an import proposes: a guess at the meaning of columns, from their first rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import median, quantiles

MOST_ROWS = 20_000
"""So many rows are looked at."""

_NUMBER = re.compile(rb"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(?P<exponent>[eE][+-]?[0-9]+)?")
_NOT_IN_A_NAME = re.compile(r"[^!-9;-~]|^<<$")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that YAML does not read as text.
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_SKEW = 2.0
_BUCKETS = 10
_SEVERAL = 2


class GuessRefused(ValueError):
    """The columns make no features: one sentence."""


class ColumnGuess:
    """Takes the cells of rows and says what each column is.

    A column with a fraction, or with several negative numbers, is `numeric`, with log1p where its numbers are skewed to the
    right. Everything else is `categorical`, whole numbers, too: they may be ids, and one negative number may stand for none.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._columns = list(columns)
        self._names = [_NOT_IN_A_NAME.sub("_", column) or "_" for column in columns]
        if twice := next((name for name in self._names if self._names.count(name) > 1), None):
            raise GuessRefused(f"two columns would be the feature {twice!r}; take one of them out with --except.")
        self._numbers: list[list[float] | None] = [[] for _ in columns]
        self._fractions = [False] * len(columns)
        self._negatives: list[set[bytes]] = [set() for _ in columns]

    @property
    def full(self) -> bool:
        return self.rows >= MOST_ROWS

    def add(self, cells: Sequence[bytes]) -> None:
        """The cells of a row, in the order of the columns."""
        self.rows += 1
        for place, cell in enumerate(cells):
            numbers = self._numbers[place]
            if not cell or numbers is None:
                continue
            found = _NUMBER.fullmatch(cell)
            if found is None:
                self._numbers[place] = None
            else:
                numbers.append(float(cell))
                self._fractions[place] |= bool(found["exponent"] or b"." in cell)
                if cell.startswith(b"-") and len(self._negatives[place]) < _SEVERAL:
                    self._negatives[place].add(cell)

    def features(self) -> dict[str, str]:
        """Each feature with its settings as YAML, in the order of the columns."""
        found = {
            name: self._settings(place, column)
            for place, (name, column) in enumerate(zip(self._names, self._columns, strict=True))
        }
        if found and not any("type: categorical" in each for each in found.values()):
            found |= self._buckets()
        return found

    def _settings(self, place: int, column: str) -> str:
        of = "" if column == self._names[place] else f", column: {yaml_text(column)}"
        numbers = self._numbers[place]
        if not numbers or not (self._fractions[place] or len(self._negatives[place]) >= _SEVERAL):
            return f"{{type: categorical{of}}}"
        skewed = min(numbers) >= 0 and sum(numbers) / len(numbers) > _SKEW * median(numbers)
        return f"{{type: numeric{of}, {'transform: [log1p], ' if skewed else ''}missing: 0}}"

    def _buckets(self) -> dict[str, str]:
        """A network needs a feature with keys: the first number's ranges."""
        numbers = self._numbers[0] or [0.0, 1.0]
        ends = sorted(
            {float(f"{each:.6g}") for each in quantiles(numbers, n=_BUCKETS)} if len(numbers) > 1 else numbers
        )
        settings = f"type: bucketized, column: {yaml_text(self._columns[0])}, boundaries: {json.dumps(ends)}"
        return {f"{self._names[0]}_range": f"{{{settings}}}"}


def yaml_text(text: str) -> str:
    """Text in a YAML file, with quotes where it needs them."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)
