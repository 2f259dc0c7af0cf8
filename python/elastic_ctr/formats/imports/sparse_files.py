"""Lines of libFM, libSVM (`label index:value …`) and libFFM (`label field:index:value …`).

If all values are 0 and 1, rows become lines of feasigns. Other values are numbers: rows become JSON lines then, with a column for each
index that has such a value, and lists of the other indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from elastic_ctr.formats.hours import values_text
from elastic_ctr.formats.imports.importers import ImportedRow, ImportRefused, RowRefused, Rows, clicked, feasign_of
from elastic_ctr.formats.imports.proposal import Proposal, Proposed
from elastic_ctr.formats.imports.row_answers import Answers
from elastic_ctr.formats.imports.text_files import lines_of_file
from elastic_ctr.formats.imports.written_values import WrittenValues, require_same
from elastic_ctr.formats.slots import SlotList

SLOT = "features"
MOST_NUMBERS = 1_000
"""Columns of numbers at most: each is an input of the network."""

_LABEL = "label"
_LISTED = '{type: categorical, separator: " "}'
_PARTS = {False: "index:value", True: "field:index:value"}

Token = tuple[str, str, float]  # field, index, value


@dataclass(frozen=True)
class SparseFormat:
    """The form of the lines.

    Attributes:
        with_fields: tokens are `field:index:value`.
        fields: the number of features of each line, if the n-th is always of the n-th field; None: all are of one field.
        binary: any value but 0 counts as 1.
        positive: as in Answers.
    """

    with_fields: bool = False
    fields: int | None = None
    binary: bool = False
    positive: str | None = None

    def tokens(self, line: bytes) -> tuple[int, list[Token]]:
        """Return (click, the features that are not 0) of a line without its comment. Raises RowRefused."""
        words = line.decode("utf-8", "surrogateescape").split("#", 1)[0].split()
        if not words:
            raise RowRefused("empty", "the line holds nothing")
        label = Answers(label=_LABEL, positive=self.positive).clicked(words[0]) if self.positive else clicked(words[0])
        # The query id of a ranking data set is no feature.
        given = [word for word in words[1:] if not word.startswith("qid:")]
        if self.fields is not None and len(given) != self.fields:
            raise RowRefused("columns", f"{len(given)} features instead of {self.fields}")
        found = []
        for place, word in enumerate(given):
            *names, value = word.split(":")
            number = _number(value)
            if len(names) != 1 + self.with_fields or not all(names) or not math.isfinite(number):
                raise RowRefused("not_a_number", f"{word!a:.120} is not {_PARTS[self.with_fields]}{_other(word)}")
            if number:  # a zero means an absent feature in a sparse format
                of = names[0] if self.with_fields else SLOT if self.fields is None else str(place)
                found.append((of, names[-1], 1.0 if self.binary else number))
        return label, found


def _other(word: str) -> str:
    """Return a hint if a token has the other format, or empty."""
    names = word.count(":")
    return {1: "; that is libFM's form: use `import libfm`", 2: "; that is libFFM's form: use `import libffm`"}.get(
        names, ""
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass
class SparseImport:
    """One import of files that were scanned before, because the indices with numbers must be known for all lines."""

    form: SparseFormat
    found: list[str]
    numbers: dict[tuple[str, str], str]
    """The column of each index with a number, by field and index."""
    had_queries: bool = False
    added_to: Mapping[str, object] | None = None
    """The values file of hours that the rows are added to."""
    header: bytes = b""
    rewritten: int = 0
    _proposal: Proposal = field(init=False)

    def __post_init__(self) -> None:
        listed = {} if not self.numbers else {self._column(each): _LISTED for each in self.found}
        self._proposal = Proposal([*listed, *self.numbers.values()], (), listed, typed=True)

    @classmethod
    def scanned(
        cls, form: SparseFormat, files: Sequence[Path], report: Callable[[str], None] = lambda _: None
    ) -> SparseImport:
        """Scan the files. Raises ImportRefused if more indices have numbers than a network can have inputs."""
        fields: dict[str, None] = {} if form.fields is None else dict.fromkeys(map(str, range(form.fields)))
        numbers: dict[tuple[str, str], None] = {}
        queries = False
        for path in files:
            report(f"{path} is looked through for numbers")
            for line in lines_of_file(path):
                queries = queries or b" qid:" in line
                try:
                    _, tokens = form.tokens(line)
                except RowRefused:
                    continue
                for of, index, value in tokens:
                    fields[of] = None
                    if value != 1:
                        numbers[of, index] = None
        if len(numbers) > MOST_NUMBERS:
            raise ImportRefused(
                f"{len(numbers):,} indices have values other than 0 and 1, and a network has {MOST_NUMBERS:,} numbers at most; "
                "--binary takes each value but 0 as 1, or keep fewer indices. Nothing was written."
            )
        known = sorted(fields, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
        columns = {(of, index): f"x{index}" if of == SLOT else f"x{of}_{index}" for of, index in numbers}
        return cls(form, known or [SLOT], columns, queries)

    @property
    def slots(self) -> SlotList | None:
        """The slots of lines of feasigns; None if rows become JSON lines."""
        try:
            return None if self.numbers else SlotList.parse(list(self.found))
        except ValueError as wrong:
            raise ImportRefused(f"the fields are no names of slots: {wrong}") from wrong

    @property
    def features(self) -> int:
        return len(self._proposal.features()) if self.numbers else len(self.found)

    @property
    def columns(self) -> list[Proposed]:
        return self._proposal.columns() if self.numbers else []

    @property
    def notes(self) -> list[str]:
        found = self._proposal.notes() if self.numbers else []
        if self.had_queries:
            found.append("qid:… names the query of a row, which is no feature: it is left out.")
        return found

    def values(self, start: str, end: str, interval: int = 60, splits: int = 1) -> str:
        """As Importer.values."""
        if slots := self.slots:
            return values_text(slots, start, end)
        if self.added_to is not None:
            self._require_same(self.added_to)
            return ""
        given = WrittenValues("jsonl", Answers(label=_LABEL), None, interval, splits)
        return given.text(start, end, self._proposal, guessed=True)

    def _require_same(self, there: Mapping[str, object]) -> None:
        """Raises ImportRefused if rows do not fit the existing hours, also if an index has numbers that no feature there reads."""
        columns = [self._column(each) for each in self.found] + list(self.numbers.values())
        require_same(there, "jsonl", Answers(label=_LABEL), None, columns)
        features = there.get("features")
        if new := sorted(set(self.numbers.values()) - set(features if isinstance(features, dict) else {})):
            raise ImportRefused(
                f"{', '.join(new[:10])} are numbers in these rows alone, and no feature there reads them; import all files together into "
                "another folder."
            )

    def file_rows(self, path: Path) -> Rows:
        """As Importer.file_rows."""
        return self.rows(lines_of_file(path), str(path))

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:  # noqa: ARG002 (as other importers have it)
        """Yield the rows of lines."""
        for number, line in enumerate(lines, 1):
            try:
                click, tokens = self.form.tokens(line)
                yield ImportedRow(1, click, None, self._json(click, tokens) if self.numbers else _clicks(click, tokens))
            except RowRefused as refused:  # noqa: PERF203 (one row, not the file)
                yield RowRefused(refused.reason, f"line {number}: {refused}")

    def _column(self, of: str) -> str:
        return of if of == SLOT else f"f{of}"

    def _json(self, click: int, tokens: list[Token]) -> bytes:
        row: dict[str, object] = {_LABEL: click, **{self._column(each): [] for each in self.found}}
        row |= dict.fromkeys(self.numbers.values(), 0)
        for of, index, value in tokens:
            if (column := self.numbers.get((of, index))) is not None:
                row[column] = value
            else:
                listed = row[self._column(of)]
                assert isinstance(listed, list)
                listed.append(index)
        if not self._proposal.full:
            self._proposal.rows += 1
            for column in self.numbers.values():
                self._proposal.sample(column).add(repr(row[column]))
        try:
            return orjson.dumps(row)
        except (TypeError, ValueError):
            raise RowRefused("not_utf8", "an index is not UTF-8") from None


def _clicks(click: int, tokens: list[Token]) -> bytes:
    features = (f"{feasign_of(of, index)}:{of}".encode("ascii") for of, index, _ in tokens)
    return b" ".join((b"1 %d" % click, *features))
