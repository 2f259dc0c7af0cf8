"""Rows of Parquet files."""

from __future__ import annotations

import csv
import io
import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from elastic_ctr.formats.blocks import DamagedFile
from elastic_ctr.formats.line import MAX_LINE_BYTES
from elastic_ctr.formats.readers.batches import ColumnsRefused, Format, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from formats.readers.oracle import Row, rows_of, rows_of_lines, wanted_of

PARQUET = Format("parquet")
WANTED = wanted_of(["user", "id"], ["price", "id"], "click", "seen")


def written(table: Any, rows: int = 3, **options: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=rows, **options)
    return sink.getvalue()


def table_of(rows: int) -> Any:
    return pa.table({"x": [f"row {row}" for row in range(rows)], "y": list(range(rows))})


def read(
    content: bytes, wanted: Wanted, start: int = 0, end: int | None = None, path: str = "part-0"
) -> list[RowBatch]:
    return list(rows_in_range(io.BytesIO(content), path, PARQUET, wanted, start, end, MAX_LINE_BYTES))


users = st.none() | st.text(max_size=5).filter(lambda text: not {"\n", "\r", "\0"} & set(text)) | st.just("long" * 5000)
rows = st.tuples(
    users,
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 1e308, 5e-324, 1e23]),
    st.integers(0, 2),
    st.integers(0, 2) | st.just(2**31 - 1),
)


@given(table=st.lists(rows, max_size=12), group=st.integers(1, 5), page=st.sampled_from([1, 1 << 20]))
def test_the_same_table_as_csv_and_as_parquet_gives_the_same_cells(table: Any, group: int, page: int) -> None:
    names = ("user", "id", "price", "click", "seen")
    kinds = (pa.string(), pa.uint64(), pa.float64(), pa.int8(), pa.int64())
    columns = zip(*table, strict=True) if table else [[]] * 5
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[*row[:2], None if row[2] is None else repr(row[2]), *row[3:]] for row in table])
    content = text.getvalue().encode()

    of_parquet = rows_of(read(written(pa.table(arrays, names=names), group, data_page_size=page), WANTED))
    of_csv = rows_of(rows_in_range(io.BytesIO(content), "part-0", Format("csv", names), WANTED))

    assert of_csv == rows_of_lines(content, "csv", names, WANTED)
    assert [row[1:] for row in of_parquet] == [row[1:] for row in of_csv]
    assert [row.place for row in of_parquet] == list(range(len(table)))


@given(count=st.integers(0, 20), group=st.integers(1, 7), cuts=st.lists(st.integers(0, 4000), max_size=4))
def test_over_any_cut_points_every_row_is_in_exactly_one_range(count: int, group: int, cuts: list[int]) -> None:
    content = written(table_of(count), group)
    ranges = itertools.pairwise([0, *sorted(cuts), None])

    found = rows_of(batch for start, end in ranges for batch in read(content, wanted_of(["x"], ["y"]), start or 0, end))

    assert found == [Row(row, (b"row %d" % row,), (float(row).hex(),), 1, 0) for row in range(count)]


@pytest.mark.parametrize("options", [{"use_dictionary": True}, {"use_dictionary": False}, {"compression": "zstd"}])
def test_a_row_group_lies_in_the_range_of_its_first_data_byte(options: Any) -> None:
    content = written(table_of(9), 3, **options)
    metadata = parquet.ParquetFile(io.BytesIO(content)).metadata
    columns = [metadata.row_group(group).column(0) for group in range(3)]
    firsts = [column.dictionary_page_offset or column.data_page_offset for column in columns]

    assert firsts[0] == 4  # behind the magic number
    for group, first in enumerate(firsts):
        [batch] = read(content, wanted_of(["x"]), first, first + 1)
        assert batch.places.tolist() == [3 * group, 3 * group + 1, 3 * group + 2]
        assert read(content, wanted_of(["x"]), first + 1, first + 2) == []


def test_only_the_columns_that_are_wanted_are_read() -> None:
    table = table_of(3).append_column("when", pa.array([0, 1, 2], pa.timestamp("us")))
    table = table.append_column("nested", pa.array([{"x": "no"}] * 3)).append_column("a.b", pa.array(["dot"] * 3))

    [batch] = read(written(table), wanted_of(["a.b", "x"]))

    assert (batch.cells.text(0, 0), batch.cells.text(0, 1)) == (b"dot", b"row 0")


def test_categories_of_pandas_and_lists_are_read_back() -> None:
    table = pa.table({"x": pa.array(["a", None, "a"]).dictionary_encode(), "y": pa.array([[1, 2], None, [3]])})

    found = rows_of(read(written(table), wanted_of(["x", "y|"])))

    assert [row.texts for row in found if isinstance(row, Row)] == [(b"a", b"1|2"), (b"", b""), (b"a", b"3")]


def test_a_later_file_of_another_schema_is_named() -> None:
    with pytest.raises(ColumnsRefused) as gone:
        read(written(table_of(3).drop_columns(["y"])), wanted_of(["x"], ["y"]), path="20260801/01/part-7")
    with pytest.raises(ColumnsRefused, match=r"20260801/01/part-7: the column 'y' has turned into text \(string\)"):
        read(written(pa.table({"x": ["a"], "y": ["1"]})), wanted_of(["x"], ["y"]), path="20260801/01/part-7")

    assert str(gone.value) == "20260801/01/part-7 lacks the column 'y'; it has 'x'."


@pytest.mark.parametrize("left", [0, 3, 100, -1, -9])
def test_a_file_that_is_cut_off_is_named(left: int) -> None:
    with pytest.raises(DamagedFile, match=r"part-0 is damaged or cut off \("):
        read(written(table_of(1000))[:left], wanted_of(["x"]))


def test_a_damaged_page_is_damage() -> None:
    content = bytearray(written(table_of(5000), 5000, compression="zstd"))
    content[100:5000] = bytes(4900)

    with pytest.raises(DamagedFile, match=r"part-0 is damaged or cut off \("):
        read(bytes(content), wanted_of(["x"], ["y"]))


def test_an_error_of_reading_the_source_is_not_taken_for_damage() -> None:
    class Gone(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(f"the node is gone before its {size} bytes")

    with pytest.raises(OSError, match="the node is gone") as raised:
        list(rows_in_range(Gone(written(table_of(5))), "part-0", PARQUET, wanted_of(["x"])))
    assert raised.type is OSError


def test_parquet_that_was_compressed_once_more_is_refused() -> None:
    with pytest.raises(ColumnsRefused, match=r"part\.parquet\.gz is Parquet that was compressed once more"):
        read(b"", wanted_of(["x"]), path="part.parquet.gz")


def test_long_texts_make_batches_of_few_rows() -> None:
    table = pa.table({"x": [f"{row}" * 3000 for row in range(10_000)]})

    found = read(written(table, 5000, use_dictionary=False), wanted_of(["x"]))

    assert max(batch.cells.data.size for batch in found) <= 9 << 20
    assert sum(len(batch.cells) for batch in found) == 10_000


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_texts_that_arrow_keeps_as_views_are_read_as_any_other(kind: Any) -> None:
    texts = [f"a text of more than twelve bytes {row}" for row in range(7)]
    content = written(pa.table({"x": pa.array(texts, kind)}))

    found = rows_of(read(content, wanted_of(["x"])))

    assert found == [Row(row, (text.encode(),), (), 1, 0) for row, text in enumerate(texts)]
