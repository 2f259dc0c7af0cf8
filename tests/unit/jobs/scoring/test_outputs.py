"""Files of scored rows, read back by other programs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from elastic_ctr.formats.line import Reason
from elastic_ctr.jobs.scoring.outputs import row_writer, same_rows
from elastic_ctr.jobs.scoring.records import Records, RefusedRecord
from elastic_ctr.jobs.scoring.scoring_job import OutputFormat
from elastic_ctr.serving.batching.instances import instances_of

DETAIL = "the column \"price\" is 'a,b', which is not a decimal number"


def block(rows: int, places: list[int], copied: list[str] | None = None) -> Records:
    left = sorted(set(range(rows)) - set(places))
    return Records(
        rows,
        instances_of([], 1),
        np.array([2 * place + 1 for place in places], np.int64),
        np.array(places, np.int64),
        np.array(places, np.int64),
        [RefusedRecord(place, Reason.NOT_A_NUMBER, DETAIL) for place in left],
        () if copied is None else (copied,),
    )


def scores(places: list[int]) -> Any:
    return np.array([1 / (place + 3) for place in places], np.float32)


def written(path: Path, form: OutputFormat, blocks: list[Records], copied: tuple[str, ...] = (), *, labelled: bool = True) -> None:  # fmt: skip
    with row_writer(path, form, copied, labelled=labelled) as writer:
        for each in blocks:
            writer.add(each, scores(each.places.tolist()))


def test_csv_has_a_row_for_each_and_an_empty_probability_for_a_refused_one(tmp_path: Path) -> None:
    file = tmp_path / "out"

    written(file, "csv", [block(3, [0, 2], ["a,b", 'say "x"']), block(2, [0, 1], ["", "é"])], ("id",))

    with file.open(newline="", encoding="utf-8") as text:
        header, *rows = csv.reader(text)
    assert header == ["probability", "show", "click", "reason", "id"]
    assert [row[1:] for row in rows] == [
        ["1", "0", "", "a,b"], ["", "", DETAIL, ""], ["5", "2", "", 'say "x"'], ["1", "0", "", ""], ["3", "1", "", "é"],
    ]  # fmt: skip
    assert [np.float32(row[0]) if row[0] else None for row in rows] == [
        *(scores([0])), None, *scores([2]), *scores([0, 1]),
    ]  # fmt: skip


def test_parquet_has_the_same_in_groups_of_many_rows(tmp_path: Path) -> None:
    file = tmp_path / "out"

    written(file, "parquet", [block(2048, list(range(1, 2048))) for _ in range(40)])

    found = pq.ParquetFile(file)
    assert (found.metadata.num_rows, found.metadata.num_row_groups) == (40 * 2048, 2)
    rows = found.read().to_pylist()
    assert rows[2048] == {"probability": None, "show": None, "click": None, "reason": DETAIL}
    assert rows[1] == {"probability": scores([1])[0], "show": 3, "click": 1, "reason": None}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_unlabelled_rows_have_no_counts_and_no_row_is_a_file_all_the_same(tmp_path: Path, form: OutputFormat) -> None:
    file = tmp_path / "out"

    written(file, form, [], labelled=False)

    if form == "csv":
        assert file.read_text() == "probability,reason\n"
    else:
        assert pq.read_table(file).column_names == ["probability", "reason"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_outputs_of_two_processors_are_the_same_but_for_rounding(form: OutputFormat, tmp_path: Path) -> None:
    one, rounded, moved, other, torn = (tmp_path / name for name in ("one", "rounded", "moved", "other", "torn"))
    texts = ["a,\nb", "007"]
    for file, change in ((one, 0.0), (rounded, 1e-7), (moved, 1e-3)):
        with row_writer(file, form, ("id",), labelled=True) as writer:
            writer.add(block(3, [0, 2], texts), (scores([0, 2]) + change).astype(np.float32))
    written(other, form, [block(3, [0, 2], ["a,\nb", "7"])], ("id",))
    torn.write_bytes(one.read_bytes()[:-3])

    assert same_rows(one, one, form)
    assert rounded.read_bytes() != one.read_bytes()
    assert same_rows(one, rounded, form)
    assert [same_rows(one, each, form) for each in (moved, other, torn)] == [False, False, False]


@pytest.mark.parametrize("foreign", [b"", b"foreign\n", b"\xff\xfe\x00", b"probability,show,click,reason\nx,1,1,\n"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_foreign_file_is_not_the_same_output(form: OutputFormat, foreign: bytes, tmp_path: Path) -> None:
    written(tmp_path / "one", form, [block(1, [0])])
    (tmp_path / "foreign").write_bytes(foreign)

    assert not same_rows(tmp_path / "one", tmp_path / "foreign", form)


def test_a_parquet_file_whose_probability_is_text_is_not_the_same_output(tmp_path: Path) -> None:
    written(tmp_path / "one", "parquet", [block(1, [0])])
    table = pq.read_table(tmp_path / "one")
    texts = table.set_column(0, "probability", [["0.5 or so"]])
    pq.write_table(texts, tmp_path / "foreign")

    assert not same_rows(tmp_path / "one", tmp_path / "foreign", "parquet")
