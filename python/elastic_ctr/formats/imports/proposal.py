"""The `features:` that an import proposes for each column, with reasons, from the first rows of any format."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from elastic_ctr.formats.imports.cell_texts import NUMBER, looks_like_time, note_of_texts
from elastic_ctr.formats.inputs import USUAL_WORDS

_NOT_IN_A_NAME = re.compile(r"[^!-9;-~]|^<<$")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that YAML does not read as text.
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
# Characters that JSON writes unescaped, and that YAML does not read as themselves.
_UNREADABLE = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def names_of_features(columns: Sequence[str]) -> list[str]:
    """Return a unique name for each column: its own if it is valid for a feature, else a similar one, or `column_5` for the fifth."""
    possible = [
        (_NOT_IN_A_NAME.sub("_", column) or "_") if column.isascii() else f"column_{number}"
        for number, column in enumerate(columns, 1)
    ]
    # YAML would read these names as truth values.
    possible = [f"{name}_" if name in {"true", "false"} else name for name in possible]
    taken = {column for column, name in zip(columns, possible, strict=True) if column == name}
    names = []
    for column, name in zip(columns, possible, strict=True):
        names.append(name if column == name else free_name(name, taken))
        taken.add(names[-1])
    return names


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name` with the first number appended that is not taken."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def yaml_text(text: str) -> str:
    """Return text for a YAML file, in quotes if it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT:
        return text
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


MOST_ROWS = 20_000
"""So many rows are looked at."""

_NUMBER = re.compile(NUMBER)
_DIALECTS = (
    (re.compile(r"[€$£¥]\s?-?[0-9][0-9.,]*|-?[0-9][0-9.,]*\s?[€$£¥]"), "an amount of money"),
    (re.compile(r"[+-]?[0-9]+([.,][0-9]+)?\s?%"), "a percentage"),
    (re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{3})*,[0-9]+"), "a number with a decimal comma"),
    (re.compile(r"[+-]?[0-9]{1,3}([,' \u00a0\u202f][0-9]{3})+([.][0-9]+)?"), "a number with its thousands set apart"),
    (re.compile(rf"\s+{NUMBER}\s*|{NUMBER}\s+"), "a number with blanks around it"),
)
_TYPE = re.compile(r"\{type: \w+")
_SKEW = 2.0
_BUCKETS = 10
_SEVERAL = 2
_MOST_TEXTS = 8
# With fewer values, a column of one value only, or of a new value in each row, is not left out.
_ENOUGH = 20
_NEARLY_ALL = 0.95
_HALF = 0.5
# From here on a float64 rounds whole numbers, so a number written with an exponent was an id.
_ID = 1e15
# A number of a larger size is damaged or a placeholder: a single one dominates the mean of its column. 64-bit integers are below it.
_LARGEST = 1e20
_FEW = 0.01
_CATEGORY = "{type: categorical"


@dataclass(frozen=True, slots=True)
class ColumnVerdict:
    """The proposal for a column. `settings` are its feature's, as YAML; empty: the column is left out, and `why` is the reason."""

    settings: str
    why: str
    note: str = ""


class ColumnSample:
    """The first cells of a column as text, counted by kind.

    Args:
        name: the column.
        typed: the format distinguishes numbers and texts, as JSON and Parquet do.
    """

    def __init__(self, name: str, *, typed: bool = False) -> None:
        self._name = name
        self._typed = typed
        self._count = 0
        self._missing: Counter[str] = Counter()
        self._texts: set[str] = set()
        self._others: Counter[str] = Counter()
        self.numbers: list[float] = []
        self._has_point = self._has_fraction = self._is_float = False
        self._negatives: set[str] = set()
        self._times = self._quoted = self._rounded = 0
        self._unreadable = ""

    def add(self, cell: str, *, quoted: bool = False) -> None:
        """Count a cell. `quoted`: it is text by the types of its format."""
        if not cell:
            return
        if cell in USUAL_WORDS.numbers:
            self._missing[cell] += 1
            if cell in USUAL_WORDS.texts:
                return
        self._count += 1
        self._texts.add(cell)
        self._times += looks_like_time(cell)
        number = float(cell) if _NUMBER.fullmatch(cell) else math.inf
        if quoted:
            self._quoted += 1
        if math.isinf(number) or quoted:
            self._others[cell] += 1
            return
        self.numbers.append(number)
        self._has_point |= "." in cell
        self._is_float |= "." in cell or "e" in cell.lower()
        self._has_fraction |= "e" in cell.lower() or not number.is_integer()
        self._rounded += "e" in cell.lower() and abs(number) >= _ID
        if cell.startswith("-") and len(self._negatives) < _SEVERAL:
            self._negatives.add(cell)

    def add_unreadable(self, what: str) -> None:
        """Note a value that no feature can have, such as an object."""
        self._unreadable = what

    def verdict(self, rows: int, *, kept: bool) -> ColumnVerdict:
        """Return the proposal after `rows` rows. `kept`: the user named the column, so only an unreadable one is left out."""
        if not self._name.strip():
            return ColumnVerdict("", "it has no name, which a data frame's index has not either")
        if self._unreadable:
            return ColumnVerdict("", f"it holds {self._unreadable}")
        is_number = bool(self.numbers) and self._others.keys() <= set(USUAL_WORDS.numbers)
        if self._typed and self._is_float and not is_number:
            return ColumnVerdict("", "it holds numbers with a point and texts; write it as one of them")
        large = [number for number in self.numbers if abs(number) > _LARGEST]
        if is_number and self._is_like_an_amount and len(large) > _FEW * self._count:
            return ColumnVerdict(
                "", f"it holds {large[0]:g}, and a number of a size above {_LARGEST:g} is a damaged one; mend such rows"
            )
        if not kept and (reason := self._useless(rows, is_number=is_number)):
            return ColumnVerdict("", reason)
        note = self._note_of_words()
        if not self._count:
            return ColumnVerdict(f"{_CATEGORY}}}", "no row has a value")
        if is_number and self._is_like_an_amount:
            if large:
                note = f"the column {self._name!r} holds {large[0]:g}; a number of a size above {_LARGEST:g} is a damaged one: mend such rows."
            return ColumnVerdict(self._number(), self._range(), note)
        if is_number and self._has_point:
            return ColumnVerdict(f"{_CATEGORY}, round: 0}}", "whole numbers with a point, which may be ids", note)
        why = f"{len(self._texts):,} different values"
        if is_number:
            why += ": whole numbers may be ids"
        return ColumnVerdict(f"{_CATEGORY}}}", why, self._note() or note)

    def _useless(self, rows: int, *, is_number: bool) -> str:
        """Return why the column is left out, or empty if it is not."""
        if rows < _ENOUGH:
            return ""
        distinct = len(self._texts)
        if not distinct:
            return "it is empty in every row"
        if distinct == 1 and self._count == rows:
            return f"every row has the same value, {next(iter(self._texts))[:40]!r}"
        if is_number and self._rounded > _HALF * self._count:
            return "its numbers are ids that were rounded when they were written with an exponent (1.67687E+18); export it as text"
        if self._count < _ENOUGH:
            return ""
        if self._times == self._count and distinct > _HALF * self._count:
            return "it holds times; --time names the column of the row's time"
        if distinct < _NEARLY_ALL * self._count or (is_number and self._is_like_an_amount):
            return ""
        way_out = "; if it is an amount, make it numeric" if is_number else self._dialect()
        return f"{distinct:,} of {self._count:,} values differ, as ids of rows do{way_out or ''}; --fields keeps it"

    def _number(self) -> str:
        numbers = self.numbers
        skewed = min(numbers) >= 0 and sum(numbers) / len(numbers) > _SKEW * median(numbers)
        return f"{{type: numeric{', transform: [log1p, standardize]' if skewed else ''}}}"

    def _range(self) -> str:
        return f"numbers from {min(self.numbers):g} to {max(self.numbers):g}"

    def _note_of_words(self) -> str:
        """Return a note on words for a missing value in the column, or empty."""
        words = {word: count for word, count in self._missing.items() if word not in self._texts or self.numbers}
        if not words or (self._others.keys() - set(USUAL_WORDS.numbers)):
            words = {word: count for word, count in words.items() if word in USUAL_WORDS.texts}
        if not words:
            return ""
        found = ", ".join(f"'{word}' ({count:,} times)" for word, count in sorted(words.items()))
        return (
            f"the column {self._name!r} has {found}, which stands for a missing value; data.missing lists such words."
        )

    def _note(self) -> str:
        """Return a note on a category that its settings do not show, or empty."""
        if dialect := self._dialect():
            return f"the column {self._name!r} became a category{dialect}."
        others = sum(self._others.values())
        if self.numbers and others and self._is_like_a_number and len(self.numbers) > others:
            word, _ = self._others.most_common(1)[0]
            way_out = "leave them empty to make it a number"
            if len(self._others) == 1:
                way_out = f"if that word stands for none, list it in data.missing, and make the column numeric; else {way_out}"
            return (
                f"the column {self._name!r} became a category because {others:,} of its {self._count:,} values, such as "
                f"{word!r}, are no numbers; {way_out}."
            )
        if len(self._others) == 1 and self.numbers and len(self.numbers) >= others:
            word = next(iter(self._others))
            return f"the column {self._name!r} holds numbers but for {word!r}; if that word stands for none, list it in data.missing."
        if self._typed or not self._others or len(self._texts) > _MOST_TEXTS:
            return ""
        return note_of_texts(self._name, sorted(self._texts)) or ""

    def _dialect(self) -> str:
        """Return `: its values are percentages, …` if most values are numbers in another notation, or empty."""
        if not self._count or self._quoted:
            return ""
        for pattern, what in _DIALECTS:
            found = [text for text in self._others if pattern.fullmatch(text)]
            if found and sum(self._others[text] for text in found) > _HALF * self._count:
                return (
                    f": {found[0]!r} is {what}, which is read as text; write numbers as -1234.5, without signs and blanks, to make it "
                    "numeric"
                )
        return ""

    @property
    def _is_like_an_amount(self) -> bool:
        return self._has_fraction or len(self._negatives) >= _SEVERAL

    @property
    def _is_like_a_number(self) -> bool:
        return self._is_like_an_amount or self._has_point


@dataclass(frozen=True, slots=True)
class Proposed:
    """A column, the name of its feature (empty: it is left out), the feature's settings as YAML, and why."""

    column: str
    feature: str
    settings: str
    why: str

    def __str__(self) -> str:
        """Return a line for a terminal."""
        name = self.column or '""'
        if not self.feature:
            return f"{name}: left out, {self.why}"
        return f"{name}: {self.settings.removeprefix('{').removesuffix('}')} ({self.why})"


class Proposal:
    """Takes the cells of rows and proposes a feature for each column.

    A column with a fraction, or with several negative numbers, is `numeric`, with log1p if its numbers are skewed to the right.
    Every other column is `categorical`, even of whole numbers: they may be ids, and one negative number may stand for a missing one.
    Whole numbers with a point, as pandas writes those of a column with gaps (`7.0`), are rounded numbers, so that 7 has the same key. A
    column without a name, with one value, or with a new value in nearly every row is left out.

    Args:
        columns: the columns' names.
        kept: columns that the user named, which are not left out.
        settings: settings of known columns, as YAML.
    """

    def __init__(
        self,
        columns: Sequence[str],
        kept: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        *,
        typed: bool = False,
    ) -> None:
        self.rows = 0
        self._kept = set(kept)
        self._settings = dict(settings or {})
        self._separators: dict[str, str] = {}
        self._typed = typed
        self.samples = {name: ColumnSample(name, typed=typed) for name in columns}

    def separate(self, column: str, mark: str) -> None:
        """Note that a column has the values of a list, separated by `mark`."""
        self._separators[column] = mark

    @property
    def full(self) -> bool:
        return self.rows >= MOST_ROWS

    def sample(self, column: str) -> ColumnSample:
        """Return the sample of a column, which may be new."""
        if column not in self.samples:
            self.samples[column] = ColumnSample(column, typed=self._typed)
        return self.samples[column]

    def add(self, cells: Sequence[str]) -> None:
        """Add the cells of a row, in the order of the columns."""
        self.rows += 1
        for column, cell in zip(self.samples.values(), cells, strict=True):
            column.add(cell)

    def _verdict(self, name: str) -> ColumnVerdict:
        if name in self._settings:
            return ColumnVerdict(self._settings[name], "as this format has it")
        found = self.samples[name].verdict(self.rows, kept=name in self._kept)
        if found.settings and name in self._separators:
            return ColumnVerdict(
                f"{_CATEGORY}, separator: {yaml_text(self._separators[name])}}}", f"lists of {found.why}"
            )
        return found

    def columns(self) -> list[Proposed]:
        """Return the proposal for each column, in order."""
        found = []
        for feature, name in zip(names_of_features(list(self.samples)), self.samples, strict=True):
            verdict = self._verdict(name)
            of = "" if name == feature else f", column: {yaml_text(name)}"
            kind = _TYPE.match(verdict.settings)
            settings = verdict.settings if kind is None else kind[0] + of + verdict.settings[kind.end() :]
            found.append(Proposed(name, feature if settings else "", settings, verdict.why))
        return found

    def features(self) -> dict[str, str]:
        """Return each feature with its settings as YAML, in the order of the columns."""
        found = {each.feature: each.settings for each in self.columns() if each.feature}
        if found and not any(_CATEGORY in each for each in found.values()):
            found |= self._buckets()
        return found

    def notes(self) -> list[str]:
        """Return sentences about columns that are left out, or whose proposal may surprise."""
        found = []
        for each in self.columns():
            if not each.feature:
                found.append(f"the column {each.column!r} is left out: {each.why}.")
            elif note := self._verdict(each.column).note:
                found.append(note)
            if each.feature.startswith("column_") and not each.column.isascii():
                found.append(
                    f"the column {each.column!r} is the feature {each.feature}: names of features are ASCII; requests name the column."
                )
        return found

    def _buckets(self) -> dict[str, str]:
        """Return buckets of the first number, because a network needs a feature with keys."""
        first = next(each for each in self.columns() if each.feature)
        numbers = self.samples[first.column].numbers
        cuts = quantiles(numbers, n=_BUCKETS) if len(numbers) > 1 else numbers
        ends = sorted({float(f"{each:.6g}") for each in cuts if abs(each) < _LARGEST}) or [0.0]
        settings = f"type: bucketized, column: {yaml_text(first.column)}, boundaries: {json.dumps(ends)}"
        return {free_name(f"{first.feature}_range", names_of_features(list(self.samples))): f"{{{settings}}}"}
