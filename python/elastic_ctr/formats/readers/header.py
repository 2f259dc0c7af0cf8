"""The names of a file's columns, without its rows."""

from __future__ import annotations

import codecs
from typing import BinaryIO

from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.readers.batches import Format
from elastic_ctr.formats.readers.text import header_of

_CHUNK = 64 << 10


def names_of(stream: BinaryIO, path: str, form: Format, max_line_bytes: int) -> tuple[str, ...] | None:
    """Return the columns' names; None for an empty file or a format without header. Raises ColumnsRefused, DamagedFile, ValueError."""
    if form.columns is not None or form.kind not in {"csv", "tsv", "parquet"}:
        return form.columns
    if form.kind == "parquet":
        from elastic_ctr.formats.readers.parquet import schema_of

        return tuple(schema_of(stream, path).names)
    first = next(lines_in_range(open_lines(stream, path), 0, 1, max_line_bytes, chunk=_CHUNK), (0, b""))[1]
    line = first.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0]
    return header_of(line, path, form, max_line_bytes) if line else None
