"""Lines of libFM, libSVM and libFFM as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.imports.importers import ImportRefused, feasign_of
from elastic_ctr.formats.imports.sparse_files import SparseFormat, SparseImport
from formats.imports.test_importers import hours, run_libfm


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in hours(tmp_path / "out")["20200401/00"]]


def features(tmp_path: Path) -> dict[str, Any]:
    return dict(read_yaml(tmp_path / "out" / "values.yaml")["features"])


def test_features_without_numbers_are_in_one_slot(tmp_path: Path) -> None:
    text = "1 3:1 7:1 9:0\n-1 3:1.0 # a comment\n0\n3 1:1\n1 x\n"

    summary = run_libfm(tmp_path, text, max_refused_share=1)

    slot = "features"
    assert hours(tmp_path / "out")["20200401/00"] == [
        b"1 1 %d:features %d:features" % (feasign_of(slot, "3"), feasign_of(slot, "7")),
        b"1 0 %d:features" % feasign_of(slot, "3"),
        b"1 0",
    ]
    assert summary.refused == {"label": 1, "not_a_number": 1}


def test_lines_with_a_fixed_number_of_fields_have_a_slot_each(tmp_path: Path) -> None:
    summary = run_libfm(tmp_path, "1 3:1 7:1\n0 3:1\n", SparseFormat(fields=2), max_refused_share=1)

    assert hours(tmp_path / "out")["20200401/00"] == [b"1 1 %d:0 %d:1" % (feasign_of("0", "3"), feasign_of("1", "7"))]
    assert summary.refused == {"columns": 1}


def test_an_index_with_another_value_than_0_and_1_is_a_number(tmp_path: Path) -> None:
    run_libfm(tmp_path, "1 qid:3 3:1 7:0.898209\n-1 3:1 9:1\n1 7:1\n")

    assert rows(tmp_path) == [
        {"label": 1, "features": ["3"], "x7": 0.898209},
        {"label": 0, "features": ["3", "9"], "x7": 0},
        {"label": 1, "features": [], "x7": 1.0},
    ]
    assert features(tmp_path) == {"features": {"type": "categorical", "separator": " "}, "x7": {"type": "numeric"}}


def test_the_fields_of_libffm_are_slots_and_its_numbers_columns(tmp_path: Path) -> None:
    run_libfm(tmp_path / "plain", "1 0:3:1 10:7:1\n0 2:3:1\n", SparseFormat(with_fields=True))
    run_libfm(tmp_path / "numbers", "1 0:3:1 2:7:0.25\n0 0:4:1\n", SparseFormat(with_fields=True))

    assert (tmp_path / "plain" / "out" / "slot.conf").read_text().split() == ["0", "2", "10"]
    assert rows(tmp_path / "numbers") == [
        {"label": 1, "f0": ["3"], "f2": [], "x2_7": 0.25},
        {"label": 0, "f0": ["4"], "f2": [], "x2_7": 0},
    ]
    assert features(tmp_path / "numbers")["x2_7"] == {"type": "numeric"}


@pytest.mark.parametrize(
    ("text", "form", "sentence"),
    [
        ("1 0:3:1\n", SparseFormat(), "'0:3:1' is not index:value; that is libFFM's form: use `import libffm`"),
        ("1 3:1\n", SparseFormat(with_fields=True), "that is libFM's form: use `import libfm`"),
        (
            "1 " + " ".join(f"{index}:0.5" for index in range(1_001)) + "\n",
            SparseFormat(),
            "1,001 indices have values other than 0 and 1, and a network has 1,000 numbers at most; --binary takes",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_way_out(
    text: str, form: SparseFormat, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ImportRefused) as refused:
        run_libfm(tmp_path, text, form)

    assert sentence in str(refused.value)
    assert not list((tmp_path / "out").rglob("donefile"))


def test_binary_takes_each_value_as_1(tmp_path: Path) -> None:
    run_libfm(tmp_path, "2 3:0.5\n1 4:7\n", SparseFormat(binary=True, positive="2"))

    slot = "features"
    assert hours(tmp_path / "out")["20200401/00"] == [
        b"1 1 %d:features" % feasign_of(slot, "3"),
        b"1 0 %d:features" % feasign_of(slot, "4"),
    ]


def test_rows_with_other_numbers_are_not_added(tmp_path: Path) -> None:
    run_libfm(tmp_path, "1 3:1 7:0.5\n0 3:1\n")
    there = read_yaml(tmp_path / "out" / "values.yaml")
    for text, sentence in (
        ("1 3:0.5 7:0.5\n", "x3 are numbers in these rows alone, and no feature there reads them"),
        ("1 3:1 4:0.5\n", "the values.yaml there has the feature x7 of the column 'x7', which these rows lack"),
    ):
        file = tmp_path / "more.txt"
        file.write_text(text)
        kind = SparseImport.scanned(SparseFormat(), [file])
        kind.added_to = there
        with pytest.raises(ImportRefused) as refused:
            kind.values("20200401/01", "20200401/01")
        assert sentence in str(refused.value)
