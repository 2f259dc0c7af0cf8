"""The `features:` that an import proposes: a guess at the meaning of columns, from their first rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from statistics import median, quantiles

from elastic_ctr.features.imports.category_texts import NUMBER, note_of_texts

MOST_ROWS = 20_000
"""So many rows are looked at."""

_NUMBER = re.compile(NUMBER.encode())
_NOT_IN_A_NAME = re.compile(r"[^!-9;-~]|^<<$")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that YAML does not read as text.
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_SKEW = 2.0
_BUCKETS = 10
_SEVERAL = 2
_FEW = 0.1  # of the values of a column
_MOST_TEXTS = 8


class _Column:
    """The first cells of a column, counted by kind."""

    def __init__(self) -> None:
        self._values = 0
        self._other: bytes | None = None
        self._texts: set[bytes] = set()
        self.numbers: list[float] = []
        self._has_point = self._has_fraction = False
        self._negatives: set[bytes] = set()

    def add(self, cell: bytes) -> None:
        self._values += 1
        if len(self._texts) <= _MOST_TEXTS:
            self._texts.add(cell)
        number = float(cell) if _NUMBER.fullmatch(cell) else math.inf
        if math.isinf(number):
            self._other = self._other or cell
            return
        self.numbers.append(number)
        self._has_point |= b"." in cell
        self._has_fraction |= b"e" in cell.lower() or not number.is_integer()
        if cell.startswith(b"-") and len(self._negatives) < _SEVERAL:
            self._negatives.add(cell)

    def settings(self, of: str) -> str:
        """Its feature's as YAML; `of` names the column."""
        if self._other is not None or not self._is_like_a_number:
            return f"{{type: categorical{of}}}"
        if not self._is_like_an_amount:
            return f"{{type: categorical{of}, round: 0}}"
        numbers = self.numbers
        skewed = min(numbers) >= 0 and sum(numbers) / len(numbers) > _SKEW * median(numbers)
        return f"{{type: numeric{of}, {'transform: [log1p], ' if skewed else ''}missing: 0}}"

    def note(self, name: str) -> str | None:
        """A fact about the column that its guess does not show."""
        others = self._values - len(self.numbers)
        if self._other is not None and others <= _FEW * self._values and self._is_like_a_number:
            return (
                f"the column {name!r} became a category because {others:,} of its {self._values:,} values, such as "
                f"{self._other.decode(errors='replace')!r}, are no numbers; leave them empty to make it a number."
            )
        if self._other is None or len(self._texts) > _MOST_TEXTS:
            return None
        return note_of_texts(name, sorted(each.decode(errors="replace") for each in self._texts))

    @property
    def _is_like_an_amount(self) -> bool:
        return self._has_fraction or len(self._negatives) >= _SEVERAL

    @property
    def _is_like_a_number(self) -> bool:
        return self._is_like_an_amount or self._has_point


class ColumnGuess:
    """Takes the cells of rows and says what each column is.

    A column with a fraction, or with several negative numbers, is `numeric`, with log1p where its numbers are skewed to the
    right. Everything else is `categorical`, whole numbers, too: they may be ids, and one negative number may stand for none. Whole
    numbers with a point, as pandas writes those of a column with gaps (`7.0`), are read as numbers, so that 7 has their key.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._names = list(columns)
        self._features = _names_of_features(columns)
        self._columns = [_Column() for _ in columns]

    @property
    def full(self) -> bool:
        return self.rows >= MOST_ROWS

    def add(self, cells: Sequence[bytes]) -> None:
        """The cells of a row, in the order of the columns."""
        self.rows += 1
        for column, cell in zip(self._columns, cells, strict=True):
            if cell:
                column.add(cell)

    def features(self) -> dict[str, str]:
        """Each feature with its settings as YAML, in the order of the columns."""
        found = {}
        for feature, name, column in zip(self._features, self._names, self._columns, strict=True):
            found[feature] = column.settings("" if name == feature else f", column: {yaml_text(name)}")
        if found and not any("type: categorical" in each for each in found.values()):
            found |= self._buckets()
        return found

    def notes(self) -> list[str]:
        """Sentences about columns whose guess may surprise."""
        found = (column.note(name) for name, column in zip(self._names, self._columns, strict=True))
        return [each for each in found if each is not None]

    def _buckets(self) -> dict[str, str]:
        """A network needs a feature with keys: the first number's ranges."""
        numbers = self._columns[0].numbers
        ends = sorted(
            {float(f"{each:.6g}") for each in quantiles(numbers, n=_BUCKETS)} if len(numbers) > 1 else numbers
        )
        settings = f"type: bucketized, column: {yaml_text(self._names[0])}, boundaries: {json.dumps(ends)}"
        return {_free_name(f"{self._features[0]}_range", self._features): f"{{{settings}}}"}


def _names_of_features(columns: Sequence[str]) -> list[str]:
    """A name of its own for each column: the column's where it can be a feature's, else one like it."""
    possible = [_NOT_IN_A_NAME.sub("_", column) or "_" for column in columns]
    # As YAML names what is yes or no.
    possible = [f"{name}_" if name in {"true", "false"} else name for name in possible]
    taken = {column for column, name in zip(columns, possible, strict=True) if column == name}
    names = []
    for column, name in zip(columns, possible, strict=True):
        names.append(name if column == name else _free_name(name, taken))
        taken.add(names[-1])
    return names


def _free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or with the first number behind it that makes it another than those taken."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def yaml_text(text: str) -> str:
    """Text in a YAML file, with quotes where it needs them."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)
