"""Rows of Parquet files, row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

from elastic_ctr.formats.blocks import COMPRESSED, DamagedFile, ReadNoting
from elastic_ctr.formats.readers.batches import MOST_BYTES, ColumnsRefused, RowBatch, Wanted
from elastic_ctr.formats.readers.record_batches import batches_of, check_schema, mean_row_bytes

_MOST_ROWS = 1 << 14
# Bytes of the read buffers of all columns together, and the least and most of one column.
_BUFFERS_BYTES, _LEAST_BUFFER, _MOST_BUFFER = 32 << 20, 64 << 10, 1 << 20


def rows_of_parquet(
    stream: BinaryIO, path: str, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    """As `rows.rows_in_range`, for the row groups whose first data byte is in the range. `places` are row numbers in the file."""
    if path.endswith(COMPRESSED):
        raise ColumnsRefused(
            f"{path} is Parquet that was compressed once more; decompress it, so that it can be read in parts."
        )
    noting = ReadNoting(stream)
    buffer = min(max(_BUFFERS_BYTES // max(len(wanted.columns), 1), _LEAST_BUFFER), _MOST_BUFFER)
    file = _read(partial(_open, noting, buffer), noting, path)
    check_schema(file.schema_arrow, wanted, path)
    first, measured = 0, 1
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        row, first = first, first + group.num_rows
        if not group.num_rows or _first_byte(group) < start or (end is not None and _first_byte(group) >= end):
            continue
        # Dictionary encoding makes a group smaller than its rows in memory, so take the larger estimate.
        row_bytes = max(measured, group.total_byte_size // group.num_rows)
        rows = min(max(MOST_BYTES // row_bytes, 1), _MOST_ROWS)
        batches = file.iter_batches(rows, row_groups=[number], columns=list(wanted.columns), use_threads=False)
        while (batch := _read(partial(next, batches, None), noting, path)) is not None:
            measured = max(measured, mean_row_bytes(batch))
            yield from batches_of(batch, wanted, path, row, max_line_bytes)
            row += len(batch)


def schema_of(stream: BinaryIO, path: str) -> Any:
    """Return the schema of a file. Raises ColumnsRefused, DamagedFile."""
    noting = ReadNoting(stream)
    return _read(partial(_open, noting, _LEAST_BUFFER), noting, path).schema_arrow


def _open(noting: ReadNoting, buffer: int) -> Any:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    return ParquetFile(pa.PythonFile(noting, "r"), buffer_size=buffer, pre_buffer=False)


def _read(read: Callable[[], Any], noting: ReadNoting, path: str) -> Any:
    import pyarrow as pa

    try:
        return read()
    except pa.ArrowNotImplementedError as error:
        raise ColumnsRefused(f"{path} cannot be read: {error}") from error
    except (pa.ArrowException, OSError) as error:
        noting.raise_noted()
        raise DamagedFile(path, error) from error


def _first_byte(group: Any) -> int:
    column = group.column(0)
    # Writers omit the dictionary's offset in different ways: None, 0, or an offset after the data.
    return int(min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset))
