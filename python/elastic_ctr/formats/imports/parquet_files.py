"""Parquet files, whose rows become JSON lines with decimals, dates, times and vectors in the form of requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic_ctr.formats.imports.importers import ImportRefused, Rows
from elastic_ctr.formats.imports.record_files import Record, RecordImport

_MOST_ROWS = 4_096


class ParquetImport(RecordImport):
    """One import."""

    def file_rows(self, path: Path) -> Rows:
        """As Importer.file_rows."""
        return self.rows(_records(path), str(path))


def _records(path: Path) -> Iterator[Record]:
    """Raises ImportRefused."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ImportRefused(f"{path} has several columns {twice!r}; give each its own name.")
            number = 0
            for batch in file.iter_batches(_MOST_ROWS):
                for values in _in_microseconds(batch).to_pylist():
                    number += 1
                    yield Record(number, values)
    except (pa.ArrowException, ValueError) as wrong:
        if isinstance(wrong, ImportRefused):
            raise
        raise ImportRefused(f"{path} cannot be read as Parquet: {wrong}") from wrong


def _in_microseconds(batch: Any) -> Any:
    """Times as Python has them, which cuts nanoseconds off."""
    import pyarrow as pa
    from pyarrow import types

    for place, field in enumerate(batch.schema):
        if types.is_timestamp(field.type) and field.type.unit == "ns":
            times = batch.column(place).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, times)
    return batch
