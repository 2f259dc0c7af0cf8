"""Criteo's display advertising data: label, 13 counts, 26 categories, tabs between, no header."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_ctr.formats.imports.delimited_files import CsvFormat, CsvImport
from elastic_ctr.formats.imports.importers import ImportRefused, Rows

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
