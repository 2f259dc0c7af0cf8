"""Rows of files of any format, and the names of their columns."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.line import MAX_LINE_BYTES
from elastic_ctr.formats.readers.batches import Format, RowBatch, Wanted
from elastic_ctr.formats.readers.partitions import partition_values, with_partitions

_HEADER_CHUNK = 64 << 10


def rows_in_range(
    stream: BinaryIO,
    path: str,
    format: Format,  # noqa: A002 (the name of the key in the values file)
    wanted: Wanted,
    start: int = 0,
    end: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[RowBatch]:
    """Yield the rows of a file in [start, end), in batches of at most 2,048 rows. Columns in its path come from there (`partitions`).

    For any cut points, every row is in exactly one range: a line in the range of its first byte, a row of a Parquet file in
    that of the first data byte of its row group. Memory is bounded by a few batches for files of any size.

    Args:
        stream: the file as it is stored.
        path: its name, for sentences; text whose name ends in .gz or .zst is decompressed and can only be read whole.
        format: the format of the file.
        wanted: the columns to read.
        start: the first byte of the range.
        end: the byte after the range; None is the end of the file.
        max_line_bytes: a longer line, or a row with more bytes of text, is refused.

    Raises:
        ColumnsRefused: the file lacks a column or has one that cannot be read.
        DamagedFile: the file is cut off.
        ValueError: `start` is not 0 and the file is compressed.
    """

    def read(rest: Wanted) -> Iterator[RowBatch]:
        return _rows(stream, path, format, rest, start, end, max_line_bytes)

    return with_partitions(path, format.root, wanted, read)


def _rows(
    stream: BinaryIO, path: str, form: Format, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    if form.kind == "parquet":
        from elastic_ctr.formats.readers.parquet import rows_of_parquet

        return rows_of_parquet(stream, path, wanted, start, end, max_line_bytes)
    if form.kind == "reader":
        from elastic_ctr.formats.readers.own_reader import rows_of_reader

        return rows_of_reader(form.reader, stream, path, wanted, start, end, max_line_bytes)
    if form.kind == "jsonl":
        from elastic_ctr.formats.readers.jsonl import rows_of_json_lines

        return rows_of_json_lines(stream, path, wanted, start, end, max_line_bytes)
    from elastic_ctr.formats.readers.text import rows_of_text

    return rows_of_text(stream, path, form, wanted, start, end, max_line_bytes)


def names_of(stream: BinaryIO, path: str, form: Format, max_line_bytes: int) -> tuple[str, ...] | None:
    """Return the columns' names, with those in the path; None for an empty file or a format without header.

    Raises ColumnsRefused, DamagedFile, ValueError.
    """
    names = _names(stream, path, form, max_line_bytes)
    return None if names is None else tuple(dict.fromkeys([*names, *partition_values(path, form.root)]))


def _names(stream: BinaryIO, path: str, form: Format, max_line_bytes: int) -> tuple[str, ...] | None:
    if form.columns is not None or form.kind not in {"csv", "tsv", "parquet"}:
        return form.columns
    if form.kind == "parquet":
        from elastic_ctr.formats.readers.parquet import schema_of

        return tuple(schema_of(stream, path).names)
    from elastic_ctr.formats.readers.text import header_of

    first = next(lines_in_range(open_lines(stream, path), 0, 1, max_line_bytes, chunk=_HEADER_CHUNK), (0, b""))[1]
    line = first.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0]
    return header_of(line, path, form, max_line_bytes) if line else None
