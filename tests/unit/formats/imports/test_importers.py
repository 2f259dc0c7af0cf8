from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.hours import HourTree, parse_hour
from elastic_ctr.formats.imports.delimited_files import CsvFormat, CsvImport
from elastic_ctr.formats.imports.importers import (
    Importer,
    ImportRefused,
    RowRefused,
    Summary,
    clicked,
    feasign_of,
    import_files,
    splits_of,
)
from elastic_ctr.formats.imports.sparse_files import SparseFormat, SparseImport

START = parse_hour("20200401/00")


def run(kind: Importer, out: Path, *files: Path, **options: float) -> Summary:
    with HourTree(out) as tree:
        return import_files(files, kind, tree, start=START, **options)  # type: ignore[arg-type]


def run_text(kind: Importer, tmp_path: Path, text: str | bytes, **options: float) -> Summary:
    file = tmp_path / "in.txt"
    tmp_path.mkdir(exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return run(kind, tmp_path / "out", file, **options)


def run_libfm(tmp_path: Path, text: str, form: SparseFormat | None = None, **options: float) -> Summary:
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "in.txt"
    file.write_text(text)
    return run(SparseImport.scanned(form or SparseFormat(), [file]), tmp_path / "out", file, **options)


def hours(out: Path) -> dict[str, list[bytes]]:
    for folder in out.glob("????????/??"):
        assert (folder / "donefile").read_bytes() == b""
    return {
        str(part.parent.relative_to(out)): part.read_bytes().splitlines() for part in sorted(out.rglob("part-00000"))
    }


def test_a_feasign_is_the_hash_of_field_and_value() -> None:
    # xxh3_64 of b"app=x": fixed for ever, or models and lines made apart no longer agree.
    assert feasign_of("app", "x") == 5635426359475637851
    assert feasign_of("app", "x") != feasign_of("os", "x")


def test_a_feasign_is_the_same_in_every_process() -> None:
    code = "from elastic_ctr.formats.imports.importers import feasign_of; print(feasign_of('app', 'x'))"

    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert found == {f"{feasign_of('app', 'x')}\n"}


@pytest.mark.parametrize(
    ("text", "click"),
    [
        ("1", 1),
        ("+1", 1),
        ("1.0", 1),
        ("0", 0),
        ("-1", 0),
        ("0.0", 0),
        (" 1", 1),
        ("True", 1),
        ("false", 0),
        ("FALSE", 0),
    ],
)
def test_labels_are_one_and_zero_or_one_and_minus_one(text: str, click: int) -> None:
    assert clicked(text) == click


@pytest.mark.parametrize("text", ["", "2", "yes", "nan", "0.5", "-2", "1,0"])
def test_other_labels_are_refused(text: str) -> None:
    with pytest.raises(RowRefused, match="is not 1, 0, -1, true or false"):
        clicked(text)


def test_bad_rows_are_counted_with_the_first_examples(tmp_path: Path) -> None:
    text = "1 3:1\n1 x\nmaybe 3:1\n\n" + "2 3:1\n" * 10 + "0 4:1\n"

    summary = run_libfm(tmp_path, text, max_refused_share=1)

    assert (summary.rows, summary.records) == (15, 2)
    assert summary.refused == {"not_a_number": 1, "empty": 1, "label": 11}
    assert summary.examples[:2] == [
        f"{tmp_path / 'in.txt'}: line 2: 'x' is not index:value",
        f"{tmp_path / 'in.txt'}: line 3: the label 'maybe' is not 1, 0, -1, true or false",
    ]
    assert len(summary.examples) == 5
    assert summary.as_dict()["refusedShare"] == 13 / 15


def test_too_many_bad_rows_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        ImportRefused, match=r"1 of 50 rows were refused \(1 for label\), more than the share of 0.01; nothing"
    ):
        run_libfm(tmp_path, "1 3:1\n" * 49 + "? 3:1\n")

    assert not list((tmp_path / "out").rglob("*"))


def test_rows_without_a_time_fill_hours_one_after_the_other(tmp_path: Path) -> None:
    run_libfm(tmp_path, "0 3:1\n" * 5, rows_per_hour=2)

    assert {hour: len(lines) for hour, lines in hours(tmp_path / "out").items()} == {
        "20200401/00": 2,
        "20200401/01": 2,
        "20200401/02": 1,
    }


def test_gzipped_files_are_unzipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 3:1\n"))

    kind = SparseImport.scanned(SparseFormat(), [tmp_path / "a.txt.gz"])
    assert run(kind, tmp_path / "out", tmp_path / "a.txt.gz").records == 1


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="there is no row in"):
        run_libfm(tmp_path, "")


@pytest.mark.parametrize(
    ("records", "hours_", "due"),
    [
        (100_000, 20, (60, 1)),
        (5_000, 10, (60, 10)),
        (30_000, 24, (60, 4)),
        (1_000, 4_919, (1_440, 205)),
        (100_000, 4_919, (1_440, 10)),
        (1, 1, (60, 1)),
    ],
)
def test_passes_of_some_thousands_of_rows_are_proposed(records: int, hours_: int, due: tuple[int, int]) -> None:
    assert splits_of(records, hours_) == due


def test_rows_of_months_are_folders_of_days(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text(
        "y,a,t\n"
        + "".join(
            f"1,{day % 3},2020-{1 + day // 28:02}-{1 + day % 28:02}T{hour:02}:30\n"
            for day in range(84)
            for hour in (3, 7)
        )
    )

    summary = run(CsvImport(CsvFormat(label="y", time="t")), tmp_path / "out", file)

    assert (summary.split_interval, summary.hours, summary.passes) == (1440, 88, 1)
    assert (summary.start, summary.end) == ("20200101/00", "20200328/00")
    day = tmp_path / "out" / "20200105" / "00"
    assert [part.name for part in sorted(day.iterdir())] == ["donefile", "part-00000", "part-00001"]
    assert read_yaml(tmp_path / "out" / "values.yaml")["data"]["splitsPerPass"] == 88


def test_rows_that_are_added_to_folders_of_days_make_folders_of_days(tmp_path: Path) -> None:
    file, more = tmp_path / "in.csv", tmp_path / "more.csv"
    file.write_text("y,a,t\n" + "".join(f"1,x,2020-01-{day:02}T03:30\n" for day in range(1, 29)))
    more.write_text("y,a,t\n1,x,2020-01-30T23:00\n")
    form = CsvFormat(label="y", time="t", fields=("a",))
    run(CsvImport(form), tmp_path / "out", file)

    with HourTree(tmp_path / "out", append=True, minutes=1440) as tree:
        added = CsvImport(form, read_yaml(tmp_path / "out" / "values.yaml"))
        summary = import_files([more], added, tree, start=START)

    assert (summary.hours, summary.end) == (2, "20200130/00")
    assert list(hours(tmp_path / "out"))[-2:] == ["20200129/00", "20200130/00"]
