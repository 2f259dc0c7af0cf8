"""Columns in the folders of a path, for files of every format."""

import io
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from elastic_ctr.formats.inputs import USUAL_WORDS, InputColumns, TextInput
from elastic_ctr.formats.readers.batches import ColumnsRefused, Format, Wanted
from elastic_ctr.formats.readers.files import names_of, rows_in_range
from elastic_ctr.formats.readers.partitions import partition_values
from formats.readers.oracle import wanted_of

WANTED = Wanted(
    InputColumns(
        (TextInput("country", ""), TextInput("user", ""), TextInput("tags", "|")), ("hr", "price"), USUAL_WORDS
    ),
    "click",
)
ROWS = [{"user": "ann", "price": 1.5, "click": 1}, {"user": "", "price": 2.0, "click": 0}, {"user": "bob", "price": 3.0, "click": 1}]  # fmt: skip


def written(form: str, rows: list[dict[str, Any]]) -> bytes:
    if form == "parquet":
        sink = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue()
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""]).encode()


def read(
    path: str, form: str = "csv", wanted: Wanted = WANTED, rows: list[dict[str, Any]] = ROWS
) -> list[tuple[list[bytes], list[float]]]:
    batches = list(rows_in_range(io.BytesIO(written(form, rows)), path, Format(form), wanted))  # type: ignore[arg-type]
    assert not any(batch.refused for batch in batches)
    return [
        ([batch.cells.text(row, place) for place in range(len(wanted.inputs.texts))], batch.cells.numbers[row].tolist())
        for batch in batches
        for row in range(len(batch.cells))
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_folder_is_a_column_of_every_row_of_files_of_each_format(form: str) -> None:
    found = read(f"logs/hr=07/country=de/tags=a|b/part-0.{form}", form)

    assert found == [
        ([b"de", b"ann", b"a|b"], [7.0, 1.5]),
        ([b"de", b"", b"a|b"], [7.0, 2.0]),
        ([b"de", b"bob", b"a|b"], [7.0, 3.0]),
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_rows_have_the_cells_that_they_have_with_the_column_in_the_file(form: str) -> None:
    in_file = [{"country": "de", "hr": 7, "tags": "a|b", **row} for row in ROWS]

    assert read("logs/hr=07/country=de/tags=a|b/part-0", form) == read("logs/part-0", form, rows=in_file)


def test_all_columns_may_be_folders() -> None:
    wanted = Wanted(InputColumns((TextInput("country", ""),), ("hr",)))

    for form in ("csv", "jsonl", "parquet"):
        assert read("hr=1/country=de/x", form, wanted) == [([b"de"], [1.0])] * 3


def test_a_folders_value_counts_if_the_file_has_the_column_too() -> None:
    rows = [{**row, "country": "fr", "hr": 9, "tags": "x"} for row in ROWS]

    assert read("country=de/part-0", rows=rows)[0] == ([b"de", b"ann", b"x"], [9.0, 1.5])


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_a_value_is_the_text_that_hive_has_escaped(value: str) -> None:
    escaped = "".join(quote(each, safe="") if each in "\"#%'*/:=?\\{}[]^" else each for each in value)

    assert partition_values(f"logs/country={escaped}/part-0") == {"country": value}


def test_keys_are_escaped_too_and_other_folders_and_the_name_of_the_file_are_no_columns() -> None:
    assert partition_values("/a=b=c/=d/x/user%3Did=7/e=f") == {"a": "b=c", "user=id": "7"}


def test_folders_above_those_of_the_hours_are_no_columns() -> None:
    path = "env=prod/user=ctr/dt=2020-04-01/country=de/x"

    assert partition_values(path, "env=prod/user=ctr") == {"dt": "2020-04-01", "country": "de"}
    assert partition_values(path, "env=prod/user") == partition_values(path)
    rows = rows_in_range(
        io.BytesIO(written("csv", ROWS)), "user=ctr/hr=1/x", Format("csv", root="user=ctr"), wanted_of(["user"], ["hr"])
    )
    assert [batch.cells.text(0, 0) for batch in rows] == [b"ann"]


def test_the_default_partition_and_words_for_a_missing_number_are_missing() -> None:
    [(texts, numbers), *_] = read("hr=__HIVE_DEFAULT_PARTITION__/country=__HIVE_DEFAULT_PARTITION__/tags=NULL/x")

    # Words for a missing text are emptied by the features, as those of a file.
    assert texts == [b"", b"ann", b"NULL"]
    assert np.isnan(numbers[0])


def test_a_value_that_is_no_number_is_refused_with_its_folder() -> None:
    with pytest.raises(
        ColumnsRefused, match=r"the folders of logs/hr=noon/tags=a/country=de/x cannot be read: .*'hr' is 'noon'"
    ):
        read("logs/hr=noon/tags=a/country=de/x")


def test_a_label_in_a_folder_is_refused() -> None:
    with pytest.raises(ColumnsRefused, match="has the label or shows 'click' in a folder's name"):
        read("logs/click=1/country=de/hr=1/tags=a/x")


def test_a_column_that_neither_file_nor_folder_has_is_refused() -> None:
    with pytest.raises(ColumnsRefused, match="lacks the column 'tags'"):
        read("country=de/hr=1/x")


def test_a_column_that_no_feature_reads_may_have_any_value() -> None:
    assert len(read("hr=1/tags=a/country=de/other=%0A/x")) == 3


def test_the_columns_of_a_file_include_those_of_its_folders() -> None:
    stream = io.BytesIO(written("csv", ROWS))

    assert names_of(stream, "country=de/user=x/a.csv", Format("csv"), 100) == ("user", "price", "click", "country")
