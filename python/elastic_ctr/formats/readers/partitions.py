"""Columns in the folders of a file's path, as Hive and Spark write them: `country=de/part-0.parquet` has the column `country`.

A value is text, as a cell of CSV is; `%2F` in it stands for a slash, and `__HIVE_DEFAULT_PARTITION__` is missing. If the file has a
column of that name, too, the folder's value counts. Spark decides so as well, because it finds the files of `country = 'de'` by their
folders: a value in the file that differs would be in the answer of no query.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import unquote

import numpy as np

from elastic_ctr.formats.cells import Cells, copied
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.readers.batches import ColumnsRefused, Format, RowBatch, Wanted

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_LONGEST = 1 << 20


def partition_values(path: str, root: str | None = "") -> dict[str, str]:
    """Return the columns in a path's folders below `root` with their values; an empty one is missing. None: folders are no columns."""
    found: dict[str, str] = {}
    if root is None:
        return found
    for folder in path.removeprefix(f"{root}/").split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if key and equals:
            found[unquote(key)] = "" if value == _MISSING else unquote(value)
    return found


def with_partitions(
    path: str, root: str | None, wanted: Wanted, read: Callable[[Wanted], Iterator[RowBatch]]
) -> Iterator[RowBatch]:
    """Yield rows with the wanted columns, of which `read` reads those that no folder has. Raises ColumnsRefused, too."""
    values = {column: value for column, value in partition_values(path, root).items() if column in wanted.columns}
    if not values:
        yield from read(wanted)
        return
    if (count := next((column for column in wanted.counts if column in values), None)) is not None:
        raise ColumnsRefused(
            f"{path} has the label or shows {count!r} in a folder's name, and they are read from files; write the column into the files, "
            "and give the folder another name."
        )
    inputs = wanted.inputs
    of_path = np.array([each.column in values for each in inputs.texts], np.bool_)
    number_of_path = np.array([column in values for column in inputs.numbers], np.bool_)
    row = _row_of(values, _inputs(inputs, values, there=True), path)
    for batch in read(replace(wanted, inputs=_inputs(inputs, values, there=False))):
        rows = len(batch.cells)
        own = copied(batch.cells, np.arange(rows, dtype=np.int64))
        begins, ends = (np.empty((rows, len(of_path)), np.int64) for _ in range(2))
        numbers = np.empty((rows, len(number_of_path)), np.float64)
        begins[:, ~of_path], begins[:, of_path] = own.begins, row.begins + len(own.data)
        ends[:, ~of_path], ends[:, of_path] = own.ends, row.ends + len(own.data)
        numbers[:, ~number_of_path], numbers[:, number_of_path] = own.numbers, row.numbers
        yield replace(batch, cells=Cells(np.concatenate([own.data, row.data]), begins, ends, numbers))


def _inputs(inputs: InputColumns, values: dict[str, str], *, there: bool) -> InputColumns:
    """Return the inputs that are in `values`, or the others."""
    return replace(
        inputs,
        texts=tuple(each for each in inputs.texts if (each.column in values) is there),
        numbers=tuple(column for column in inputs.numbers if (column in values) is there),
    )


def _row_of(values: dict[str, str], inputs: InputColumns, path: str) -> Cells:
    """Return the values as the row of a CSV file, so that texts, numbers and words for missing ones mean the same."""
    from elastic_ctr.formats.readers.text import rows_of_text

    line = io.StringIO(newline="")
    csv.writer(line, quoting=csv.QUOTE_ALL).writerow(values.values())
    text = io.BytesIO(line.getvalue().encode())
    [batch, *_] = rows_of_text(text, "folders", Format("csv", tuple(values)), Wanted(inputs), 0, None, _LONGEST)
    if batch.refused:
        raise ColumnsRefused(f"the folders of {path} cannot be read: {batch.refused[0].detail}")
    return batch.cells
