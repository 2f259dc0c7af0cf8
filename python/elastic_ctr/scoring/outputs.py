"""Scored rows as files: CSV or Parquet, one row for each row of the input, in its order.

Columns: `probability`; `show` and `click` where rows are labelled; `reason`, a sentence for a row that was refused, whose other
columns are empty; then the columns that were copied from the input.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.scoring.records import Records
from elastic_ctr.scoring.scoring_job import OutputFormat
from elastic_ctr.serving.batching.pooling import Floats

# Of a row group of Parquet, and of what is formatted at once.
_ROWS_AT_ONCE = 1 << 16
OWN = ("probability", "show", "click", "reason")


class RowWriter:
    """Appends blocks to a file."""

    def __init__(self, write: Any, schema: Any, *, labelled: bool) -> None:
        self._write = write
        self._schema = schema
        self._labelled = labelled
        self._held: list[Any] = []
        self._rows = 0

    def add(self, records: Records, probabilities: Floats) -> None:
        import pyarrow as pa

        scored = np.zeros(records.rows, np.bool_)
        scored[records.places] = True
        columns = [self._spread(probabilities, records, scored)]
        if self._labelled:
            columns += [self._spread(counts, records, scored) for counts in (records.shows, records.clicks)]
        reasons: list[str | None] = [None] * records.rows
        for each in records.refused:
            reasons[each.place] = each.detail
        columns.append(pa.array(reasons, pa.string()))
        # The texts of a refused row are not known.
        where = None if scored.all() else pa.array(np.where(scored, np.cumsum(scored) - 1, 0), mask=~scored)
        for texts in records.copied:
            column = pa.array(texts, pa.string())
            columns.append(column if where is None else column.take(where))
        self._held.append(pa.record_batch(columns, schema=self._schema))
        self._rows += records.rows
        if self._rows >= _ROWS_AT_ONCE:
            self.flush()

    @staticmethod
    def _spread(values: Any, records: Records, scored: Any) -> Any:
        import pyarrow as pa

        if len(values) == records.rows:
            return pa.array(values)
        column = np.zeros(records.rows, values.dtype)
        column[records.places] = values
        return pa.array(column, mask=~scored)

    def flush(self) -> None:
        import pyarrow as pa

        if self._held:
            self._write(pa.Table.from_batches(self._held, self._schema).combine_chunks())
        self._held, self._rows = [], 0


@contextmanager
def row_writer(path: Path, form: OutputFormat, copied: Sequence[str], *, labelled: bool) -> Iterator[RowWriter]:
    """A new file, which is whole when the block ends. Raises OSError."""
    import pyarrow as pa

    counts = [("show", pa.int64()), ("click", pa.int64())] if labelled else []
    texts = [(column, pa.string()) for column in copied]
    schema = pa.schema([("probability", pa.float32()), *counts, ("reason", pa.string()), *texts])
    with path.open("wb") as out:
        if form == "parquet":
            from pyarrow.parquet import ParquetWriter

            with ParquetWriter(out, schema) as parquet:
                rows = RowWriter(parquet.write_table, schema, labelled=labelled)
                yield rows
                rows.flush()
        else:
            from pyarrow.csv import CSVWriter, WriteOptions

            # Arrow would quote every name.
            names = io.StringIO(newline="")
            csv.writer(names, lineterminator="\n").writerow(schema.names)
            out.write(names.getvalue().encode())
            with CSVWriter(out, schema, write_options=WriteOptions(include_header=False)) as text:
                rows = RowWriter(text.write_table, schema, labelled=labelled)
                yield rows
                rows.flush()
