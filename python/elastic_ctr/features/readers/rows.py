"""Rows of a part of a file as cells, whatever the kind of the file: what readers are asked for and what they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeAlias

from elastic_ctr.features.cells import Cells, Inputs, Places
from elastic_ctr.features.line import MAX_LINE_BYTES, Reason

MOST_ROWS = 1 << 11
MOST_BYTES = 8 << 20

Kind: TypeAlias = Literal["csv", "tsv", "jsonl", "parquet", "reader"]


class ColumnsRefused(ValueError):
    """A file whose columns are not those that are wanted; one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Format:
    """The kind of the files. `columns` names those of text without a header line; None: the first line of each file names them.

    A `reader` is a function of the user's own, `package.module:function`; see `own_reader`.
    """

    kind: Kind
    columns: tuple[str, ...] | None = None
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns that are read of each row.

    A label alone is 0 or 1 and its show is 1. With `shows` both are counts: whole numbers below 2^31, shows of at least 1,
    label of at most shows. Rows without label, as those to predict, have show 1 and click 0.
    """

    inputs: Inputs
    label: str | None = None
    shows: str | None = None

    def __post_init__(self) -> None:
        if self.shows is not None and self.label is None:
            raise ValueError(f"shows {self.shows!r} stands without a label; name the column of the clicks, too.")

    @property
    def counts(self) -> tuple[str, ...]:
        """The columns of label and shows, as far as they are read."""
        return tuple(column for column in (self.label, self.shows) if column is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        return tuple(dict.fromkeys([*self.counts, *self.inputs.columns]))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row beside its texts."""
        return 16 * len(self.inputs.texts) + 8 * len(self.inputs.numbers) + 24


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that was left out.

    `place` is the offset of its first byte in the text (decompressed), or its number in the file from 0 on where rows have
    no offset. `detail` is a sentence that names the column, its value and what is allowed; `excerpt` the row's first bytes.
    """

    place: int
    reason: Reason
    detail: str
    excerpt: bytes


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows in their order: `shows`, `clicks` and `places` (as in RefusedRow) are i64[n] of the n rows of `cells`; `refused`
    are those that lay among them.
    """

    cells: Cells
    shows: Places
    clicks: Places
    places: Places
    refused: list[RefusedRow]


def rows_in_range(
    stream: BinaryIO,
    path: str,
    format: Format,  # noqa: A002 (the name of the key in the values file)
    wanted: Wanted,
    start: int = 0,
    end: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[RowBatch]:
    """The rows of a file that lie in [start, end), in batches of at most 64k rows and about 8 MB.

    Whatever the cut points, every row is in exactly one range: a line in that of its first byte, a row of a Parquet file in
    that of the first data byte of its row group. Memory is bounded by a few batches, however large the file is.

    Args:
        stream: the file as it is stored.
        path: its name, for sentences; text whose name ends in .gz or .zst is decompressed and can only be read whole.
        format: of the file.
        wanted: of each row.
        start: the first byte of the range.
        end: the byte after the range; None is the end of the file.
        max_line_bytes: a longer line, or a row with more bytes of text, is refused.

    Raises:
        ColumnsRefused: the file lacks a column or has one that cannot be read.
        DamagedFile: it is cut off.
        ValueError: `start` is not 0 and the file is compressed.
    """
    if format.kind == "parquet":
        from elastic_ctr.features.readers.parquet import rows_of_parquet

        return rows_of_parquet(stream, path, wanted, start, end, max_line_bytes)
    if format.kind == "reader":
        from elastic_ctr.features.readers.own_reader import rows_of_reader

        return rows_of_reader(format.reader, stream, path, wanted, start, end, max_line_bytes)
    if format.kind == "jsonl":
        from elastic_ctr.features.readers.jsonl import rows_of_json_lines

        return rows_of_json_lines(stream, path, wanted, start, end, max_line_bytes)
    from elastic_ctr.features.readers.text import rows_of_text

    return rows_of_text(stream, path, format, wanted, start, end, max_line_bytes)


def find_columns(wanted: Sequence[str], names: Sequence[str], path: str) -> list[int]:
    """The place of each wanted column among the names of a file. Raises ColumnsRefused."""
    for column in wanted:
        times = names.count(column)
        if times > 1:
            raise ColumnsRefused(f"{path} has {times} columns with the name {column!r}; give each a name of its own.")
        if not times:
            known = ", ".join(map(repr, names[:_MOST_NAMES])) + (" …" if len(names) > _MOST_NAMES else "")
            raise ColumnsRefused(f"{path} lacks the column {column!r}; it has {known or 'none'}.")
    return [names.index(column) for column in wanted]


_MOST_NAMES = 60
