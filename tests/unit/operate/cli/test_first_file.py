"""A misspelt column is found in the first file, before anything starts."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from typer.testing import CliRunner

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.local import check_columns
from elastic_ctr.operate.cli.main import build


def values_of(folder: Path, form: str, name: str, content: bytes, **data: object) -> Path:
    """Hours of which the second one has the first file with a word in it."""
    for hour in ("00", "01"):
        (folder / "20200401" / hour).mkdir(parents=True)
        (folder / "20200401" / hour / name).write_bytes(content if hour == "01" or form == "parquet" else b"")
        (folder / "20200401" / hour / "donefile").touch()
    given = {
        "data": {
            "source": {"url": folder.as_uri()}, "path": "/", "start": "20200401/00", "end": "20200401/01", "format": form,
            "label": "click", **data,
        },
        "features": {"user": {"type": "categorical"}, "cost": {"type": "numeric", "column": "prise", "missing": 0}},
    }  # fmt: skip
    (folder / "values.yaml").write_text(yaml.safe_dump(given))
    return folder / "values.yaml"


def of_parquet(tmp_path: Path) -> bytes:
    parquet.write_table(pa.table({"user": ["a"], "price": [1.0], "click": [1]}), tmp_path / "x.parquet")
    return (tmp_path / "x.parquet").read_bytes()


CSV = b"\xef\xbb\xbfuser,price,click\r\na,1,1\r\n"
FILES = {
    "csv": ("csv", "part.csv", CSV),
    "zipped csv": ("csv", "part.csv.gz", gzip.compress(CSV)),
    "tsv": ("tsv", "part.tsv", CSV.replace(b",", b"\t")),
    "parquet": ("parquet", "part.parquet", b""),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_column_that_the_header_lacks_is_named_with_the_one_that_was_meant(tmp_path: Path, kind: str) -> None:
    form, name, content = FILES[kind]
    values = values_of(tmp_path / "data", form, name, content or of_parquet(tmp_path))

    done = CliRunner().invoke(build("local"), ["local", "up", "-f", str(values), "--dir", str(tmp_path / "run")])

    hour = "00" if kind == "parquet" else "01"
    assert done.exit_code == 2
    assert done.stderr == (
        f"features.cost reads the column 'prise', which 20200401/{hour}/{name} lacks: it has user, price, click; did you mean 'price'?\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_label_that_is_none_of_the_columns_is_named(tmp_path: Path) -> None:
    values = values_of(tmp_path, "csv", "part.csv", CSV.replace(b"price", b"prise"), label="bought")

    with pytest.raises(
        ConfigRefused, match=r"^data\.label reads the column 'bought', which .* lacks: .*; name one of them$"
    ):
        check_columns(load_values([values], None))


def test_a_file_that_names_no_columns_before_its_rows_is_left_to_the_master(tmp_path: Path) -> None:
    for number, (form, content, more) in enumerate(
        [
            ("jsonl", json.dumps({"user": "a", "click": 1}).encode(), {}),
            ("csv", b"a,1,1\n", {"columns": ["user", "prise", "click"]}),
            ("csv", b"", {}),
            ("parquet", b"no parquet", {}),
        ]
    ):
        values = values_of(tmp_path / str(number), form, "part", content, **more)

        check_columns(load_values([values], None))


def test_hours_that_are_not_there_yet_are_waited_for_by_the_master(tmp_path: Path) -> None:
    values = values_of(tmp_path, "csv", "part.csv", CSV, start="20210101/00", end=None)

    check_columns(load_values([values], None))
