"""Import of CSV and TSV files into hours of the same format: rows are kept as they are if trainers can read them.

A row is rewritten if its label is not 0 or 1, if it has other quotes or separators, or if it has line breaks within quotes: for
trainers a row is a line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elastic_ctr.formats.imports.importers import ImportedRow, ImportRefused, RowRefused, Rows
from elastic_ctr.formats.imports.proposal import Proposal, Proposed
from elastic_ctr.formats.imports.row_answers import Answers
from elastic_ctr.formats.imports.text_files import lines_of_file, records_of, without_last_empty
from elastic_ctr.formats.imports.written_values import WrittenValues, require_same

_LINE_BREAK = re.compile(rb"\r\n|[\r\n]")
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class RecordFormat(Answers):
    """Files of records with named columns.

    Attributes:
        fields: columns that become features; None: the proposal chooses among all but label, show, click, time and `without`.
        without: columns that become no features.
        encoding: the encoding of the files, by its name in Python; None: UTF-8.
    """

    fields: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    encoding: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fields is not None and self.without:
            raise ImportRefused("say either which columns become features, or which become none.")
        if self.fields is not None and not self.fields:
            raise ImportRefused("name at least one field that becomes a feature.")
        if known := [name for name in self.fields or () if name in self.names]:
            raise ImportRefused(
                f"{', '.join(known)} cannot be a feature: it is the label, or what else is known only of rows that were shown"
                " (--time, --show, --click); take it out of --fields."
            )


@dataclass(frozen=True)
class CsvFormat(RecordFormat):
    """CSV files with a header, or with names given for their columns.

    Attributes:
        quote: the character around a value that contains delimiters; None: quotes are ordinary characters.
        header: the first line of each file names its columns.
        columns: names of the columns of files without header; empty: the columns are called 0, 1, 2, …
        features: settings of features that need not be guessed, as YAML.
    """

    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: tuple[str, ...] = ()
    features: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter.encode()) != 1 or self.delimiter in "\r\n":
            raise ImportRefused(f"the delimiter {self.delimiter!r} is not one ASCII character.")
        if self.quote is not None and len(self.quote.encode()) != 1:
            raise ImportRefused(f"the quote {self.quote!r} is neither one ASCII character nor none.")
        if self.quote == self.delimiter:
            raise ImportRefused(f"{self.quote!r} is the delimiter and the quote; give one of them.")

    @property
    def kind(self) -> str:
        """The `data.format` of the written rows."""
        return "tsv" if (self.delimiter, self.quote) == ("\t", None) else "csv"

    @property
    def is_kept(self) -> bool:
        """True if a row can be written as it was read."""
        return self.kind == "tsv" or (self.delimiter, self.quote) == (",", '"')


class CsvImport:
    """One import, with the columns of the first file.

    Args:
        form: the format of the files.
        added_to: the values file of the hours to which the rows are added.
    """

    slots = None

    def __init__(self, form: CsvFormat, added_to: Mapping[str, object] | None = None) -> None:
        self._form = form
        self._added_to = added_to
        self._delimiter = form.delimiter.encode()
        self._quote = None if form.quote is None else form.quote.encode()
        self._names: list[str] = []
        self._of_features: list[int] = []
        self._place_of: dict[str, int] = {}
        self._proposal = Proposal([])
        self._nameless = False
        self.joined = 0
        """Rows that went over several lines."""
        self.rewritten = 0
        """Rows whose label or columns were not written as they were read."""

    @property
    def proposal(self) -> Proposal:
        return self._proposal

    @property
    def features(self) -> int:
        return len(self._proposal.features())

    @property
    def is_guessed(self) -> bool:
        """True once further rows no longer change the proposed values."""
        return self._proposal.full

    @property
    def columns(self) -> list[Proposed]:
        """The proposal for each column; empty if rows are added to existing hours."""
        if self._added_to is not None:
            return []
        nameless = [Proposed("", "", "", "it has no name; name it in the header, or by --no-header and --columns")]
        return nameless * self._nameless + self._proposal.columns()

    @property
    def notes(self) -> list[str]:
        """Sentences about columns that a user should check, and about rewritten rows."""
        found = [] if self._form.features or self._added_to is not None else self._proposal.notes()
        if self.joined:
            found.append(
                f"{self.joined:,} rows had line breaks within quotes, each of which became a blank: in training a row is a line."
            )
        return found

    @property
    def header(self) -> bytes:
        """The first line of each written file; empty for files without header."""
        return self._line([name.encode() for name in self._names]) + b"\n" if self._form.header else b""

    def file_rows(self, path: Path, stored: BinaryIO | None = None) -> Rows:
        """As Importer.file_rows. `stored` has the file's bytes if it is not of this machine."""
        return self.rows(lines_of_file(path, self._form.encoding, stored), str(path))

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:
        """Yield rows of a file, or reasons to refuse them. Raises ImportRefused for a header that cannot be read or lacks a column."""
        form = self._form
        records = records_of(without_last_empty(lines), self._delimiter, self._quote)
        first = next(records, None)
        if first is None:
            return
        try:
            names = [_LINE_BREAK.sub(b" ", cell).decode() for cell in self._cells(first)]
        except (RowRefused, UnicodeDecodeError) as refused:
            raise ImportRefused(
                f"{name}: line 1: {refused}; --encoding, --delimiter and --quote say how it is written."
            ) from refused
        if any("\0" in cell for cell in names):
            raise ImportRefused(f"{name}: line 1 has bytes 0; is it UTF-16? Say --encoding utf-16-le.")
        if not form.header:
            names = list(form.columns) or [str(number) for number in range(len(names))]
        order = self._order(names, name)
        if not form.header:
            yield self._row_or_refused(first, 1, len(names), order)
        for number, line in enumerate(records, 2):
            yield self._row_or_refused(line, number, len(names), order)

    def values(self, start: str, end: str, interval: int = 60, splits: int = 1) -> str:
        """Return the values file that trains the rows; empty if they are added. Raises ImportRefused if existing hours differ."""
        form = self._form
        columns = None if form.header else tuple(self._names)
        if self._added_to is not None:
            require_same(self._added_to, form.kind, form, columns, self._names)
            return ""
        given = WrittenValues(form.kind, form, columns, interval, splits)
        return given.text(start, end, self._proposal, guessed=form.features is None)

    def _order(self, names: list[str], file: str) -> list[int] | None:
        """Return the positions of the first file's columns among these names, or None if both are the same. Raises ImportRefused."""
        if self._names:
            if names == self._names:
                return None
            return [self._place(names, each, file) if each.strip() else -1 for each in self._names]
        form = self._form
        for each in (*form.names, *form.without, *(form.fields or ())):
            self._place(names, each, file)
        wanted = list(dict.fromkeys(form.fields or ())) or [
            name for name in names if name.strip() and name not in {*form.names, *form.without}
        ]
        self._nameless = any(not name.strip() and name not in {*form.names, *form.without} for name in names)
        if not wanted:
            raise ImportRefused(
                f"{file} has no column beside the label and the time that has a name; there is nothing to learn from: name its columns in "
                "the header, or by --no-header and --columns."
            )
        self._of_features = [self._place(names, each, file) for each in wanted]
        self._proposal = Proposal(wanted, form.fields or (), form.features)
        self._place_of = {name: self._place(names, name, file) for name in form.names}
        self._names = names
        return None

    def _place(self, names: list[str], wanted: str, file: str) -> int:
        times = names.count(wanted)
        if times == 1 or (times and wanted in self._form.without):
            return names.index(wanted)
        shown = ", ".join(text[:_SHOWN_CHARACTERS] for text in names[:100])
        if times:
            raise ImportRefused(
                f"{file} has {times} columns {wanted!r}; its columns are: {shown}; give each its own name, or leave them out by --except."
            )
        way_out = "if that is no header, say --no-header and perhaps --columns"
        if not self._form.header:
            way_out = "--columns names them"
        if len(names) == 1:
            way_out += f"; they are not separated by {self._form.delimiter!r}, which --delimiter changes"
        raise ImportRefused(f"{file} has no column {wanted!r}; its columns are: {shown}; {way_out}.")

    def _row_or_refused(
        self, line: bytes, number: int, width: int, order: list[int] | None
    ) -> ImportedRow | RowRefused:
        try:
            return self._row(line, width, order)
        except RowRefused as refused:
            return RowRefused(refused.reason, f"line {number}: {refused}")

    def _row(self, line: bytes, width: int, order: list[int] | None) -> ImportedRow:
        """Raises RowRefused."""
        form = self._form
        cells = self._cells(line)
        if len(cells) != width:
            raise RowRefused("columns", f"{len(cells)} columns instead of {width}")
        kept = form.is_kept and order is None
        if order is not None:
            cells = [cells[place] if place >= 0 else b"" for place in order]
        if b"\n" in line:
            cells = [_LINE_BREAK.sub(b" ", cell) for cell in cells]
            self.joined += 1
            kept = False
        answers: dict[int, int] = {}
        show = 1
        if form.label is not None:
            place = self._place_of[form.label]
            is_plain = form.positive is None and cells[place] in {b"0", b"1"}
            click = int(cells[place]) if is_plain else form.clicked(cells[place].decode())
            answers[place] = click
        else:
            shown, clicked = self._place_of[str(form.show)], self._place_of[str(form.click)]
            show, click = form.counts(cells[shown].decode(), cells[clicked].decode())
            answers = {shown: show, clicked: click}
        time = None if form.time is None else form.time_of(cells[self._place_of[form.time]].decode())
        for place, answer in answers.items():
            if cells[place] != b"%d" % answer:
                cells[place], kept = b"%d" % answer, False
        if not self._proposal.full:
            self._proposal.add([cells[place].decode() for place in self._of_features])
        self.rewritten += not kept
        return ImportedRow(show, click, time, line if kept else self._line(cells))

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


_NUMBERS = tuple(f"I{number}" for number in range(1, 14))
_CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
CRITEO = CsvFormat(
    label="label",
    delimiter="\t",
    quote=None,
    header=False,
    columns=("label", *_NUMBERS, *_CATEGORIES),
    features={
        **dict.fromkeys(_NUMBERS, "{type: numeric, transform: [log1p], missing: 0}"),
        **dict.fromkeys(_CATEGORIES, "{type: categorical}"),
    },
)


class CriteoImport(CsvImport):
    """An import that recognizes files of other forms: the rows of the test set have no label, and copies have commas or a header."""

    def rows(self, lines: Iterator[bytes], name: str) -> Rows:
        """As CsvImport.rows."""
        first = next(lines, None)
        if first is None:
            return
        columns = first.count(b"\t") + 1
        if columns == len(CRITEO.columns) - 1:
            asked = ",".join(CRITEO.columns[1:])
            raise ImportRefused(
                f"{name} has {columns} columns: it has no label, as Criteo's test set, and nothing can be learned from it; a model that "
                f"runs scores it: elastic-ctr predict {name} --format tsv --columns {asked}"
            )
        if columns == 1 and first.count(b",") >= len(CRITEO.columns) - 2:
            raise ImportRefused(
                f"{name} has commas between its columns, and Criteo's files have tabs; use `import csv`."
            )
        if first.split(b"\t")[0] == b"label":
            raise ImportRefused(f"{name} has a header, and Criteo's files have none; use `import tsv --label label`.")
        yield from super().rows(_with(first, lines), name)


def _with(first: bytes, lines: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from lines
