"""`elastic-ctr predict` beside a run on this machine, whose data it knows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from typer.testing import CliRunner, Result

from answering import saying
from elastic_ctr.config.data import split_end
from elastic_ctr.config.load import dump
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.plan import RunPlaces, roles
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from operate.cli.test_predict import RowServer

VERSION = 7  # RowServer's
ROWS = "click,user,price,age,tags\n1,u1,70,7,a|b\n0,u2,10,8,\n"


class Run(NamedTuple):
    folder: Path
    hours: Path
    server: RowServer

    def predict(self, *words: object, given: str = "") -> Result:
        return CliRunner().invoke(
            build("predict"), ["predict", *map(str, words), "--dir", str(self.folder)], input=given
        )

    def publish(self, until: str) -> None:
        """The version that answers has learned all up to an hour."""
        manifest = VersionManifest(
            version=VERSION, kind="base", base=VERSION, parent=None, pass_id=until, event_time_max=split_end(until, 60, "UTC"),
            created_at=1.0, partitions=4, dim=9, keys=0, slots=("0",), sparse_dim=None, network="deepfm", cube_files=(), model_files=(),
            samples=0, auc_live=None, auc_published=None,
        )  # fmt: skip
        FileStore(self.folder / "store").put_bytes(manifest.to_json(), layout.version_manifest(VERSION))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Its data are hours of CSV without names that end in .csv, labelled by `click`."""
    hours = tmp_path / "hours"
    for hour in ("00", "01", "02"):
        (hours / "20200401" / hour).mkdir(parents=True)
        (hours / "20200401" / hour / "part-00000").write_text(ROWS)
        (hours / "20200401" / hour / "donefile").touch()
    data = {
        "source": {"url": "file:."},
        "start": "20200401/00",
        "end": "20200401/02",
        "format": "csv",
        "label": "click",
    }
    features = {name: {"type": "categorical"} for name in ("user", "tags", "age")} | {"price": {"type": "numeric"}}
    (hours / "values.yaml").write_text(yaml.safe_dump({"data": data, "features": features}))
    places = RunPlaces(tmp_path / "run", load_values([hours / "values.yaml"], None, "20200401/01"))
    for role in roles(places):
        (tmp_path / "run" / "config").mkdir(parents=True, exist_ok=True)
        places.config_file(role).write_text(dump(role.file))
    server = RowServer()
    with saying(server) as address, StateLock(tmp_path / "run" / "state"):
        RunFolder(tmp_path / "run").write(RunInfo("m:1", "t:2", "s:3", [address], "ctr"))
        yield Run(tmp_path / "run", hours, server)


def test_format_and_label_are_those_of_the_run(run: Run) -> None:
    done = run.predict(run.hours / "20200401/02/part-00000")

    assert (done.exit_code, done.stdout) == (0, "0.7\n0.1\n")
    assert done.stderr.startswith("2 rows, 2 shows, 1 clicks: AUC 1.000000")


def test_words_for_a_missing_number_are_those_of_the_run(run: Run) -> None:
    values = yaml.safe_load((run.hours / "values.yaml").read_text())
    values["data"]["missing"] = ["?"]
    (run.hours / "values.yaml").write_text(yaml.safe_dump(values))
    places = RunPlaces(run.folder, load_values([run.hours / "values.yaml"], None))
    [master] = [role for role in roles(places) if role.command == "master"]
    places.config_file(master).write_text(dump(master.file))

    done = run.predict("-", "--format", "csv", given="user,price,age,tags\nu1,?,7,a\nu2,NULL,8,\n")

    assert done.stdout.splitlines()[1] == "nan"
    assert (done.exit_code, done.stdout.splitlines()[0]) == (1, "0.5")
    assert "row 2" in done.stderr


def test_the_columns_of_files_without_a_header_are_those_of_the_run(run: Run, tmp_path: Path) -> None:
    names, _, rows = ROWS.partition("\n")
    values = yaml.safe_load((run.hours / "values.yaml").read_text())
    values["data"]["columns"] = names.split(",")
    (run.hours / "values.yaml").write_text(yaml.safe_dump(values))
    places = RunPlaces(run.folder, load_values([run.hours / "values.yaml"], None))
    [master] = [role for role in roles(places) if role.command == "master"]
    places.config_file(master).write_text(dump(master.file))
    (tmp_path / "rows.csv").write_text(rows)

    done = run.predict(tmp_path / "rows.csv")

    assert (done.exit_code, done.stdout) == (0, "0.7\n0.1\n")
    assert "AUC 1.000000" in done.stderr


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_rows_without_a_label_are_predicted_without_measures(run: Run, tmp_path: Path, name: str) -> None:
    text = "user,price,age,tags\nu1,70,7,a\n"
    if name == "rows.tsv":
        text = text.replace(",", "\t")
    if name == "rows.jsonl":
        text = json.dumps({"user": "u1", "price": 70})
    (tmp_path / name).write_text(text)

    done = run.predict(tmp_path / name)

    assert (done.exit_code, done.stdout, done.stderr) == (0, "0.7\n", "")


def test_rows_of_a_pipe_have_the_format_of_the_run(run: Run) -> None:
    done, parquet = run.predict("-", given=ROWS), run.predict("-", "--format", "parquet", given=ROWS)

    assert (done.exit_code, done.stdout) == (0, "0.7\n0.1\n")
    assert (parquet.exit_code, parquet.stdout) == (2, "")
    assert "rows from standard input need --format csv, tsv or jsonl" in parquet.stderr


def test_other_options_come_before_those_of_the_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("bought\tclick\tuser\tprice\tage\ttags\n0\t1\tu\t70\t1\t\n1\t0\tu\t10\t1\t\n")

    named = run.predict(tmp_path / "rows", "--format", "tsv", "--label", "bought")
    none = run.predict(tmp_path / "rows", "--format", "tsv", "--no-clicks")

    assert "AUC 0.000000" in named.stderr
    assert (none.exit_code, none.stdout, none.stderr) == (0, "0.7\n0.1\n", "")


@pytest.mark.parametrize(
    ("hour", "sentence"),
    [
        ("01", "version 7 was trained on these rows (hour 20200401/01): AUC is that of memory and says too much; ask for a later hour"),
        ("02", "version 7 knows events until 2020-04-01 02:00 UTC and was not trained on these rows: AUC is that of new rows"),
    ],
)  # fmt: skip
def test_measures_say_whether_the_version_was_trained_on_the_rows(run: Run, hour: str, sentence: str) -> None:
    run.publish("20200401/01")

    done = run.predict(run.hours / "20200401" / hour / "part-00000")

    figures, said = done.stderr.splitlines()
    assert "AUC" in figures
    assert said.startswith(sentence)


def test_a_file_outside_the_hours_may_have_been_trained(run: Run, tmp_path: Path) -> None:
    run.publish("20200401/01")
    (tmp_path / "clicks.csv").write_text(ROWS)

    for file, given in ((tmp_path / "clicks.csv", ""), ("-", ROWS)):
        assert "these rows are in no hour of the run: if they were trained" in run.predict(file, given=given).stderr


def test_of_the_folder_of_an_hour_its_files_are_predicted(run: Run) -> None:
    run.publish("20200401/01")
    folder = run.hours / "20200401" / "02"
    (folder / "part-00001").write_text("click,user,price,age,tags\n1,u,50,1,\n1,u,x,1,\n")
    (folder / "_SUCCESS").touch()

    done = run.predict(folder)
    as_json = run.predict(folder, "--json")

    assert done.stdout == "0.7\n0.1\n0.5\nnan\n"
    assert f"{folder}/part-00001 row 2: the column 'price' is 'x'" in done.stderr
    assert "3 rows, 3 shows, 2 clicks" in done.stderr
    assert "was not trained on these rows" in done.stderr
    assert [(Path(each["file"]).name, each["row"]) for each in map(json.loads, as_json.stdout.splitlines())] == [
        ("part-00000", 1), ("part-00000", 2), ("part-00001", 1), ("part-00001", 2),
    ]  # fmt: skip


def test_of_an_hour_with_partitions_their_files_are_predicted_and_folders_are_columns(run: Run) -> None:
    run.publish("20200401/01")
    folder = run.hours / "20200401" / "02"
    (folder / "part-00000").unlink()
    for price in (1, 50):
        file = folder / f"price={price}" / "part-00000"
        file.parent.mkdir()
        file.write_text("click,user,age,tags\n1,u,1,\n")

    done = run.predict(folder)

    assert done.stdout == "0.01\n0.5\n"


def test_a_folder_of_hours_names_the_command_that_scores_them_all(run: Run) -> None:
    done = run.predict(run.hours)

    assert (done.exit_code, done.stdout) == (2, "")
    assert (
        f"is not the folder of one hour: name one, or a file; `elastic-ctr predict -f {run.hours}/values.yaml --output DIR` scores"
        in done.stderr
    )


def test_at_an_address_of_its_own_a_run_is_not_looked_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder.parent)
    (run.folder.parent / "run").rename(run.folder.parent / "elastic-ctr-local")
    address = RunFolder(run.folder.parent / "elastic-ctr-local").read()
    assert address is not None

    done = CliRunner().invoke(
        build("predict"), ["predict", "hours/20200401/02/part-00000", "--address", address.predictions[0]]
    )

    assert done.exit_code == 2
    assert "say --format" in done.stderr
