import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import typer
import yaml
from pyarrow import parquet
from typer.testing import CliRunner, Result

from elastic_ctr.config.load import load
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli import propose as module

ROWS = 300
COUNTRIES = ("de", "a%2Fb", "__HIVE_DEFAULT_PARTITION__")


def rows_of(count: int) -> list[dict[str, object]]:
    dice = random.Random(7)
    return [
        {
            "user": f"u{dice.randrange(40)}",
            "age": dice.random() * 50,
            "vector": [0.5, 1.5],
            "request": f"x{number}",
            "click": int(dice.random() < 0.5),
        }
        for number in range(count)
    ]


def as_parquet(rows: list[dict[str, object]], file: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), file.with_suffix(".parquet"))


def as_json_lines(rows: list[dict[str, object]], file: Path) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    file.with_suffix(".jsonl.gz").write_bytes(gzip.compress(text.encode()))


def as_csv(rows: list[dict[str, object]], file: Path) -> None:
    columns = [each for each in rows[0] if each != "vector"]
    lines = [",".join(columns), *(",".join(str(row[each]) for each in columns) for row in rows)]
    file.with_suffix(".csv").write_text("\n".join(lines) + "\n")


FORMATS = {"parquet": as_parquet, "jsonl": as_json_lines, "csv": as_csv}


def partitioned(
    folder: Path, write: Callable[[list[dict[str, object]], Path], None], rows: list[dict[str, object]]
) -> None:
    """Two hours in folders as Spark writes them, long ago."""
    for hour in range(2):
        for country in COUNTRIES:
            below = folder / f"dt=2020-04-01/hr={hour:02}/country={country}"
            below.mkdir(parents=True)
            write([{**row, "request": f"{row['request']}-{country}"} for row in rows], below / "part-0")
    for each in [folder, *folder.rglob("*")]:
        os.utime(each, (1e9, 1e9))


def values_file(folder: Path, kind: str, **changes: object) -> Path:
    data = {
        "source": {"url": "file:clicks"},
        "path": "/dt={time:%Y-%m-%d}/hr={time:%H}",
        "start": "20200401/00",
        "format": kind,
        "label": "click",
        "settleSeconds": 300,
        **changes,
    }
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"data": data}))
    return file


def call(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(module.propose)
    return CliRunner().invoke(app, ["-f", *map(str, arguments)])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_proposal_completes_the_values_file_of_a_partitioned_table(kind: str, tmp_path: Path) -> None:
    partitioned(tmp_path / "clicks", FORMATS[kind], rows_of(ROWS))
    file = values_file(tmp_path, kind)
    done = call(file)
    assert done.exit_code == 0, done.output
    file.write_text(file.read_text().replace("file:clicks", f"file://{tmp_path}/clicks") + done.stdout)
    features = load(Values, file).features
    assert features is not None
    assert {name: feature.type for name, feature in features.root.items()} == {
        "user": "categorical",
        "age": "numeric",
        "country": "categorical",
    }
    assert "request: left out" in done.stderr
    assert "3 different values in the names of folders" in done.stderr
    assert "the column 'hr' is of data.path, and left out" in done.stderr
    assert f"part-0.{ {'jsonl': 'jsonl.gz'}.get(kind, kind) }: {ROWS} rows\n" in done.stderr


def test_a_vector_is_no_feature_of_rows_that_are_read_where_they_are(tmp_path: Path) -> None:
    partitioned(tmp_path / "clicks", as_parquet, rows_of(ROWS))
    done = call(values_file(tmp_path, "parquet"), "--json")
    told = json.loads(done.stdout)
    assert [each["column"] for each in told["columns"] if not each["feature"]] == ["vector", "request"]
    assert (told["split"], told["rows"], told["refused"]) == ("20200401/00", ROWS * len(COUNTRIES), 0)


def test_chosen_columns_may_be_of_files_and_of_folders(tmp_path: Path) -> None:
    partitioned(tmp_path / "clicks", as_csv, rows_of(ROWS))
    file = values_file(tmp_path, "csv")
    assert list(json.loads(call(file, "--json", "--fields", "request,country").stdout)["features"]) == [
        "request",
        "country",
    ]
    assert list(json.loads(call(file, "--json", "--except", "age,country").stdout)["features"]) == ["user"]
    assert list(json.loads(call(file, "--json", "--fields", "country").stdout)["features"]) == ["country"]
    done = call(file, "--fields", "usr")
    assert done.exit_code == 1
    assert "has no column 'usr'" in done.stderr


def test_a_label_that_training_would_refuse_is_told_and_nothing_is_printed(tmp_path: Path) -> None:
    rows = [{**row, "click": "yes"} for row in rows_of(ROWS)]
    partitioned(tmp_path / "clicks", as_parquet, rows)
    done = call(values_file(tmp_path, "parquet"))
    assert done.exit_code == 1
    assert not done.stdout
    assert "the label 'yes' is not 1, 0, -1, true or false" in done.stderr


def test_labels_that_an_import_would_rewrite_are_told_by_the_reader_of_training(tmp_path: Path) -> None:
    rows = [{**row, "click": -1 if row["click"] else 1} for row in rows_of(ROWS)]
    partitioned(tmp_path / "clicks", as_csv, rows)
    done = call(values_file(tmp_path, "csv"))
    assert "refused" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("clicks", {"slots": ["1"], "label": None}, "format clicks has no columns to propose features for"),
        ("parquet", {"label": None}, "data: label is missing"),
        ("parquet", {"path": "/none"}, "/none does not exist: is data.source.url or data.path right?"),
        ("parquet", {"start": "20200402/00"}, "has no complete folder with files from 20200402/00 on"),
        ("jsonl", {"source": {"url": "kafka://broker:9092/clicks"}, "start": "earliest", "path": "/", "settleSeconds": None}, "is a stream"),
    ],
)  # fmt: skip
def test_data_without_rows_to_propose_from_are_a_sentence(
    kind: str, changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    partitioned(tmp_path / "clicks", as_parquet, rows_of(3))
    done = call(values_file(tmp_path, kind, **changes))
    assert done.exit_code in (1, 2)
    assert sentence in done.stderr
    assert not done.stdout


def test_a_file_with_features_gets_no_second_block(tmp_path: Path) -> None:
    partitioned(tmp_path / "clicks", as_parquet, rows_of(ROWS))
    file = values_file(tmp_path, "parquet")
    file.write_text(file.read_text() + call(file).stdout)
    done = call(file)
    assert done.exit_code == 2
    assert "there are features already" in done.stderr
