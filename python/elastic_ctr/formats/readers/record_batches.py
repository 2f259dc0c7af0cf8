"""Record batches of pyarrow to cells, for Parquet and for readers of the user's.

A text cell is text or bytes unchanged, a whole number in decimal, a date as `2020-04-01`, `true` or `false`, or the values of a list
with the separator between; a number cell is a whole, decimal or floating-point number. Null and empty texts are missing, in lists, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.cells import Bytes, Cells, Numbers, Places
from elastic_ctr.formats.convert import EXCERPT_BYTES
from elastic_ctr.formats.line import MAX_LINE_BYTES
from elastic_ctr.formats.readers import row_refusals
from elastic_ctr.formats.readers.batches import (
    MOST_BYTES,
    MOST_ROWS,
    ColumnsRefused,
    RefusedRow,
    RowBatch,
    Wanted,
    find_columns,
)
from elastic_ctr.formats.readers.loops import check_both, check_utf8, join_values
from elastic_ctr.formats.readers.row_refusals import Codes, judge_counts, refusal, refuse, shown_bytes


def check_schema(schema: Any, wanted: Wanted, path: str) -> None:
    """Raises ColumnsRefused for a wanted column that the pyarrow schema lacks, or whose type cannot be read as wanted."""
    names = schema.names
    find_columns(wanted.columns, names, path)
    for column, separator in wanted.inputs.texts:
        kind = schema.field(names.index(column)).type
        of = _class(kind)
        if of == "list" and separator:
            of = {"list": "nested", "floating": "vector", "decimal": "vector"}.get(
                _class(kind.value_type), _class(kind.value_type)
            )
        if of not in ("text", "whole", "date", "truth", "null"):
            raise ColumnsRefused(f"{path}: the column {column!r} {_NO_TEXT.get(of, _UNREADABLE).format(kind)}")
    for column in wanted.inputs.numbers:
        kind = schema.field(names.index(column)).type
        of = _class(kind)
        if of not in ("whole", "floating", "decimal", "null"):
            raise ColumnsRefused(f"{path}: the column {column!r} {_NO_NUMBER.get(of, _UNREADABLE).format(kind)}")
    for column in wanted.counts:
        kind = schema.field(names.index(column)).type
        if _class(kind) not in ("whole", "floating", "decimal", "null", "truth"):
            way_out = "0 and 1, or as true and false" if wanted.shows is None else "whole numbers"
            says = "number of shows" if column == wanted.shows else "label"
            raise ColumnsRefused(f"{path}: the {says} {column!r} has the type {kind}; write it as {way_out}.")


_UNREADABLE = "has the type {}, which cannot be read; write it as text or as a number."
_NO_TEXT = {
    "floating": "is used as a category and holds floating-point numbers ({}); give `round`, or make the feature numeric.",
    "list": "holds lists ({}); give the feature a `separator`.",
    "decimal": "is used as a category and holds numbers with a point ({}); give `round`, or make the feature numeric.",
    "vector": "holds vectors ({}), which are no categories; `elastic-ctr import parquet` makes a column of each number.",
    "time": "holds times ({}), which are no categories; leave the column out, or name it with `elastic-ctr import parquet --time`.",
    "nested": "has the type {}, which cannot be read; a list holds texts or whole numbers.",
}
_NO_NUMBER = {
    "text": "has turned into text ({}), and a number is wanted; write it as a number, or make the feature categorical.",
    "truth": "holds true and false ({}), and a number is wanted; write 0 and 1, or make the feature categorical.",
    "date": "holds dates ({}), and a number is wanted; make the feature categorical.",
    "list": "holds lists ({}), and a number is wanted; make the feature categorical, with a `separator`.",
}


def _class(kind: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _class(kind.value_type)
    if types.is_decimal(kind):
        return "decimal" if kind.scale else "whole"
    classes = {
        "text": (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
        ),
        "whole": (types.is_integer,),
        "floating": (types.is_floating,),
        "truth": (types.is_boolean,),
        "date": (types.is_date,),
        "time": (types.is_timestamp,),
        "null": (types.is_null,),
        "list": (types.is_list, types.is_large_list, types.is_fixed_size_list),
    }
    return next((name for name, tests in classes.items() if any(test(kind) for test in tests)), "other")


def mean_row_bytes(batch: Any) -> int:
    """Return the mean bytes of a row of a pyarrow.RecordBatch; 0 if it has no row."""
    import pyarrow as pa

    try:
        size: int = batch.nbytes
    except pa.ArrowTypeError:  # not implemented for string_view
        size = batch.get_total_buffer_size()
    return size // max(len(batch), 1)


def batches_of(
    batch: Any, wanted: Wanted, path: str, first: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[RowBatch]:
    """Yield `cells_of_record_batch` of a batch of any size, in parts that respect the limits of a RowBatch."""
    check_schema(batch.schema, wanted, path)
    used = batch.select(wanted.columns)
    row_bytes = mean_row_bytes(used) + wanted.row_bytes
    rows = min(max(MOST_BYTES // row_bytes, 1), MOST_ROWS)
    for begin in range(0, len(used), rows):
        yield cells_of_record_batch(used.slice(begin, rows), wanted, path, first + begin, max_line_bytes)


def cells_of_record_batch(
    batch: Any, wanted: Wanted, path: str, first: int = 0, max_line_bytes: int = MAX_LINE_BYTES
) -> RowBatch:
    """Return the rows of a pyarrow.RecordBatch.

    Args:
        batch: has the wanted columns.
        wanted: the columns to read.
        path: the name of the file for sentences.
        first: the number of the first row in the file.
        max_line_bytes: a row with more bytes of text is refused.

    Raises:
        ColumnsRefused: as `check_schema`.
    """
    check_schema(batch.schema, wanted, path)
    inputs = wanted.inputs
    codes, details = np.zeros(len(batch), np.uint8), np.zeros(len(batch), np.int64)
    number_columns = (*wanted.counts, *inputs.numbers)
    numbers, cells = np.empty((len(batch), len(number_columns))), np.zeros((len(batch), len(number_columns)), np.uint8)
    for place, column in enumerate(number_columns):
        numbers[:, place], cells[:, place] = _numbers(batch.column(column), inputs.missing.numbers)
    counted = len(wanted.counts)
    shows, clicks = judge_counts(wanted, numbers[:, :counted], cells[:, :counted], codes, details)
    for place in range(counted, len(number_columns)):
        refuse(row_refusals.NOT_FINITE, cells[:, place] != row_refusals.FINE, place, codes, details)

    texts = _text_cells(batch, wanted, codes, details)
    sizes = (texts.ends - texts.begins).sum(axis=1)
    for place, number in inputs.in_both_ways:
        check_both(texts.data, texts.begins, texts.ends, place, numbers, counted + number, codes, details)
    refuse(row_refusals.TOO_LONG, sizes > max_line_bytes, 0, codes, details)
    if texts.data.max(initial=0) >= 0x80:
        check_utf8(texts.data, texts.begins, texts.ends, codes, details)

    rows = Cells(texts.data, texts.begins, texts.ends, np.ascontiguousarray(numbers[:, counted:]))
    places = np.arange(first, first + len(batch), dtype=np.int64)
    kept = codes == row_refusals.FINE
    if kept.all():
        return RowBatch(rows, shows, clicks, places, [])
    refused = []
    for row in np.flatnonzero(~kept).tolist():
        code, detail = int(codes[row]), int(details[row])
        facts: dict[str, object] = {"limit": max_line_bytes}
        if code in (row_refusals.NOT_UTF8, row_refusals.BAD_SEPARATOR):
            text = inputs.texts[detail]
            value = repr(text.separator) if code == row_refusals.BAD_SEPARATOR else shown_bytes(rows.text(row, detail))
            facts = {"column": text.column, "value": value}
        elif code != row_refusals.TOO_LONG:
            facts = {"column": number_columns[detail], "value": _shown(batch.column(number_columns[detail])[row])}
            if wanted.shows is not None:
                facts |= {"shows": wanted.shows, "limit": _shown(batch.column(wanted.shows)[row])}
        excerpt = _excerpt(rows, row, wanted, [_shown(batch.column(column)[row]) for column in wanted.counts])
        refused.append(RefusedRow(first + row, *refusal(code, **facts), excerpt))
    rows = Cells(rows.data, rows.begins[kept], rows.ends[kept], rows.numbers[kept])
    return RowBatch(rows, shows[kept], clicks[kept], places[kept], refused)


def _shown(scalar: Any) -> str:
    return "null" if not scalar.is_valid else str(scalar.as_py())


def _excerpt(rows: Cells, row: int, wanted: Wanted, counts: list[str]) -> bytes:
    """Return a row as `column=value, …`, because a row of a Parquet file has no text of its own."""
    parts = [f"{column}={count}".encode() for column, count in zip(wanted.counts, counts, strict=True)]
    texts = wanted.inputs.texts
    parts += [
        text.column.encode() + b"=" + rows.text(row, place)[:EXCERPT_BYTES] for place, text in enumerate(texts[:_MOST])
    ]
    numbers = zip(wanted.inputs.numbers, rows.numbers[row].tolist(), strict=True)
    parts += [f"{column}={number:.17g}".encode() for column, number in numbers]
    return b", ".join(parts)[:EXCERPT_BYTES]


_MOST = EXCERPT_BYTES // 2


def _numbers(array: Any, missing: tuple[str, ...]) -> tuple[Numbers, Codes]:
    """Return numbers and codes. Null is NaN; infinity has the code NOT_FINITE, as has NaN unless it is a word for a missing value."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_null(array.type):
        return np.full(len(array), np.nan), np.zeros(len(array), np.uint8)
    if types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    # Numbers above 2^53 are rounded to the nearest float64.
    numbers: Numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = np.isinf(numbers) if _NAN in missing else ~np.isfinite(numbers)
    if bad.any() and array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        bad &= ~null
        numbers = np.where(null, np.nan, numbers)
    return numbers, np.where(bad, row_refusals.NOT_FINITE, row_refusals.FINE).astype(np.uint8)


_NAN = "NaN"


class _Texts(NamedTuple):
    data: Bytes
    begins: Places
    ends: Places


def _text_cells(batch: Any, wanted: Wanted, codes: Codes, details: Places) -> _Texts:
    texts = wanted.inputs.texts
    begins, ends = (np.empty((len(batch), len(texts)), np.int64) for _ in range(2))
    parts: list[Bytes] = []
    size = 0
    for place, (column, separator) in enumerate(texts):
        array = batch.column(column)
        if _class(array.type) == "list":
            found, bad = _joined(array, separator)
            refuse(row_refusals.BAD_SEPARATOR, bad, place, codes, details)
        else:
            found = _texts(array)
        begins[:, place], ends[:, place] = found.begins + size, found.ends + size
        parts.append(found.data)
        size += len(found.data)
    return _Texts(np.concatenate(parts) if parts else np.empty(0, np.uint8), begins, ends)


def _texts(array: Any) -> _Texts:
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_null(array.type) or not len(array):
        nothing = np.zeros(len(array), np.int64)
        return _Texts(np.empty(0, np.uint8), nothing, nothing)
    if types.is_date64(array.type):
        array = array.cast(pa.date32())
    if _class(array.type) in ("whole", "truth", "date"):
        array = array.cast(pa.string())
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    _, offsets_buffer, data = array.buffers()
    wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
    all_offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = all_offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    used = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    begins, ends = offsets[:-1], offsets[1:]
    if array.null_count:
        ends = np.where(array.is_valid().to_numpy(zero_copy_only=False), ends, begins)
    return _Texts(used, begins, ends)


def _joined(array: Any, separator: str) -> tuple[_Texts, npt.NDArray[np.bool_]]:
    """Return each list's values joined by the separator, and bool[n], true for lists with a value that contains it."""
    import pyarrow as pa
    from pyarrow import compute

    values = _texts(array.flatten())
    counts = compute.list_value_length(array).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    data = np.empty(len(values.data) + len(values.begins), np.uint8)
    ends, bad = np.empty(len(array), np.int64), np.zeros(len(array), np.bool_)
    join_values(
        values.data.copy(),  # numba would compile the loop again for read-only arrays
        values.begins,
        values.ends,
        np.cumsum(counts),
        ord(separator),
        data,
        ends,
        bad,
    )
    return _Texts(data[: ends[-1] if len(ends) else 0], np.append(0, ends[:-1]) if len(ends) else ends, ends), bad
