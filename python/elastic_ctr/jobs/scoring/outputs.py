"""Scored rows as files: CSV or Parquet, one row for each row of the input, in its order.

Columns: `probability`; `show` and `click` if rows are labelled; `reason`, a sentence for a refused row, whose other columns are
empty; then the columns copied from the input.
"""

import csv
import filecmp
import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.jobs.scoring.records import Records
from elastic_ctr.jobs.scoring.scoring_job import OutputFormat
from elastic_ctr.serving.batching.pooling import Floats

# Rows of a Parquet row group, and rows that are formatted together.
_ROWS_AT_ONCE = 1 << 16
OWN = ("probability", "show", "click", "reason")
# The most difference between probabilities of processors that add in another order.
_ROUNDING = 1e-5
_ROUNDED = ("pooled.", "number.")


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
        # A refused row has no texts.
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
    """Yield the writer of a new file, which is complete when the block ends. Raises OSError."""
    import pyarrow as pa

    counts = [("show", pa.int64()), ("click", pa.int64())] if labelled else []
    texts = [(column, pa.string()) for column in copied]
    schema = pa.schema([("probability", pa.float32()), *counts, ("reason", pa.string()), *texts])
    with path.open("wb") as out, ExitStack() as ends:
        if form == "parquet":
            from pyarrow.parquet import ParquetWriter

            file = ends.enter_context(ParquetWriter(out, schema))
        else:
            from pyarrow.csv import CSVWriter, WriteOptions

            # Python writes the header, because Arrow would quote every name.
            names = io.StringIO(newline="")
            csv.writer(names, lineterminator="\n").writerow(schema.names)
            out.write(names.getvalue().encode())
            file = ends.enter_context(CSVWriter(out, schema, write_options=WriteOptions(include_header=False)))
        rows = RowWriter(file.write_table, schema, labelled=labelled)
        yield rows
        rows.flush()


def same_rows(one: Path, other: Path, form: OutputFormat) -> bool:
    """True if two outputs agree except for rounding; `one` was written here, `other` may be any file. Raises OSError."""
    import pyarrow as pa

    if filecmp.cmp(one, other, shallow=False):
        return True
    ours = _table(one, form)
    try:
        theirs = _table(other, form)
    except (pa.ArrowException, csv.Error, UnicodeDecodeError):
        return False
    if not ours.schema.equals(theirs.schema) or len(ours) != len(theirs):
        return False
    for name, mine, others in zip(ours.column_names, ours.columns, theirs.columns, strict=True):
        if name == "probability":
            first, second = (column.to_numpy().astype(np.float64) for column in (mine, others))
            if not np.allclose(first, second, rtol=0, atol=_ROUNDING, equal_nan=True):
                return False
        elif not name.startswith(_ROUNDED) and not mine.equals(others):
            return False
    return True


def _table(file: Path, form: OutputFormat) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if form == "parquet":
        return parquet.read_table(file)
    with file.open(newline="", encoding="utf-8") as text:
        names = next(csv.reader(text), [])
    types = {name: pa.float64() if name == "probability" else pa.string() for name in names}
    return arrow_csv.read_csv(
        file,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=types),
    )
