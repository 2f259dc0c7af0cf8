"""The interface of readers: the wanted columns in, batches of rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from elastic_ctr.formats.cells import Cells, Places
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.line import Reason

MOST_ROWS = 1 << 11
MOST_BYTES = 8 << 20
_MOST_NAMES = 60

Kind: TypeAlias = Literal["csv", "tsv", "jsonl", "parquet", "reader"]


class ColumnsRefused(ValueError):
    """A file lacks wanted columns, or cannot be read as such; the text is one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Format:
    """The kind of the files. `columns` names those of text without a header line; None: the first line of each file names them.

    `reader` names a function of the user's, `package.module:function`; see `own_reader`. Folders of paths are columns (`partitions`), but
    not those of `root`, with which paths may begin; None: no folder is.
    """

    kind: Kind
    columns: tuple[str, ...] | None = None
    reader: str = ""
    root: str | None = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read of each row.

    A label without `shows` is 0 or 1 and its show is 1. With `shows` both are counts: whole numbers below 2^31, shows of at least 1,
    label of at most shows; with `late_clicks`, shows may be 0 if the label is not. Rows without label, such as rows to predict, have
    show 1 and click 0.
    """

    inputs: InputColumns
    label: str | None = None
    shows: str | None = None
    late_clicks: bool = False

    def __post_init__(self) -> None:
        if self.shows is not None and self.label is None:
            raise ValueError(f"shows {self.shows!r} stands without a label; name the column of the clicks, too.")

    @property
    def counts(self) -> tuple[str, ...]:
        """The columns of label and shows that are read."""
        return tuple(column for column in (self.label, self.shows) if column is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        return tuple(dict.fromkeys([*self.counts, *self.inputs.columns]))

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in memory, without its texts."""
        return 16 * len(self.inputs.texts) + 8 * len(self.inputs.numbers) + 24


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that was left out.

    `place` is the offset of its first byte in the (decompressed) text, or its number in the file from 0 on if rows have no
    offset. `detail` is a sentence that names the column, its value and the allowed values; `excerpt` has the row's first bytes.
    """

    place: int
    reason: Reason
    detail: str
    excerpt: bytes


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows in their order: `shows`, `clicks` and `places` (as in RefusedRow) are i64[n] of the n rows of `cells`; `refused`
    are the refused rows between them.
    """

    cells: Cells
    shows: Places
    clicks: Places
    places: Places
    refused: list[RefusedRow]


def find_columns(wanted: Sequence[str], names: Sequence[str], path: str) -> list[int]:
    """Return the index of each wanted column among the names of a file. Raises ColumnsRefused."""
    for column in wanted:
        times = names.count(column)
        if times > 1:
            raise ColumnsRefused(f"{path} has {times} columns with the name {column!r}; give each a name of its own.")
        if not times:
            known = ", ".join(map(repr, names[:_MOST_NAMES])) + (" …" if len(names) > _MOST_NAMES else "")
            raise ColumnsRefused(f"{path} lacks the column {column!r}; it has {known or 'none'}.")
    return [names.index(column) for column in wanted]
