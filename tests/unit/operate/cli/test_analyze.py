import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.operate.cli import analyze as module

HEADER = "click,price,device\n"


def hour(folder: Path, name: str, rows: str, *, complete: bool = True) -> None:
    (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    (folder / "data" / name / "part.csv").write_text(HEADER + rows)
    if complete:
        (folder / "data" / name / "donefile").write_bytes(b"")


def rows(first: int, end: int) -> str:
    return "".join(f"{row % 2},{row},{'ab'[row % 3 == 0]}\n" for row in range(first, end))


@pytest.fixture
def values(tmp_path: Path) -> Path:
    hour(tmp_path, "20200401/00", rows(0, 100))
    hour(tmp_path, "20200401/01", rows(100, 200))
    hour(tmp_path, "20200401/02", rows(200, 300), complete=False)
    hour(tmp_path, "20200331/23", rows(300, 400))
    (tmp_path / "data/20200401/notes").mkdir()
    file = tmp_path / "values.yaml"
    given = {
        "data": {
            "source": {"url": f"file://{tmp_path}/data"},
            "start": "20200401/00",
            "format": "csv",
            "label": "click",
        },
        "features": {"price": {"type": "numeric", "transform": ["standardize"]}, "device": {"type": "categorical"}},
    }
    file.write_text(yaml.safe_dump(given))
    return file


def changed(file: Path, block: str, **keys: object) -> Path:
    given = yaml.safe_load(file.read_text())
    given[block] = {**given.get(block, {}), **keys}
    file.write_text(yaml.safe_dump(given))
    return file


def call(values: Path, *arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(module.analyze)
    return CliRunner().invoke(app, ["-f", str(values), "--processes", "1", *map(str, arguments)])


def test_the_hours_that_are_complete_since_the_start_are_read_and_shown(values: Path) -> None:
    done = call(values)

    assert done.exit_code == 0, done.output
    assert "20200401/02 has no donefile yet and is left out" in done.stderr
    assert "200 rows of 2 hours, 20200401/00 to 20200401/01" in done.stderr
    [price] = [line.split() for line in done.stdout.splitlines() if line.startswith("price")]
    assert price[1:] == ["200", "0.0%", "200", "0", "49", "99", "149", "199", "99.5", "57.734"]


def test_hours_may_be_chosen_before_the_start(values: Path) -> None:
    done = call(values, "--hours", "20200331/23..20200401/00")

    assert "200 rows of 2 hours, 20200331/23 to 20200401/00" in done.stderr


def test_one_hour_may_be_chosen(values: Path) -> None:
    assert "100 rows of 1 hours" in call(values, "--hours", "20200401/01").stderr


def test_json_is_the_file_itself_and_nothing_else(values: Path, tmp_path: Path) -> None:
    done = call(values, "--json", "-o", tmp_path / "statistics.json")

    assert done.stdout.strip() == (tmp_path / "statistics.json").read_text()
    assert Statistics.from_json(done.stdout).numbers["price"].rows == 200


def test_the_file_is_the_same_with_several_processes_and_however_files_are_cut(values: Path, tmp_path: Path) -> None:
    call(values, "-o", tmp_path / "one.json")
    done = call(changed(values, "data", taskBytes=500), "--processes", "2", "-o", tmp_path / "two.json")

    assert done.exit_code == 0, done.output
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert one == two


def test_the_file_is_taken_as_statistics_of_the_values(values: Path, tmp_path: Path) -> None:
    call(values, "-o", tmp_path / "statistics.json")

    done = call(values, "--set-file", f"statistics={tmp_path}/statistics.json")

    assert done.exit_code == 0, done.output


def test_statistics_of_other_columns_are_refused_with_the_feature(values: Path, tmp_path: Path) -> None:
    call(values, "-o", tmp_path / "statistics.json")
    changed(values, "features", age={"type": "numeric", "transform": ["standardize"]})

    done = call(values, "--set-file", f"statistics={tmp_path}/statistics.json")

    assert done.exit_code == 2
    assert "features.age needs the statistics of age, and these are of price; analyze the data again" in done.stderr


def test_refused_rows_are_counted_and_named(values: Path, tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", rows(0, 200) + "1,dear,a\n")

    done = call(values)

    assert done.exit_code == 0
    told = (
        "1 of 301 rows were refused: not_a_number 1 (such as 20200401/00/part.csv: the column 'price' is 'dear', which is not a "
        "decimal number such as -1.5e3)"
    )
    assert told in done.stderr.replace("\n", " ")


def test_a_number_far_from_1_is_told_and_one_that_is_too_large_is_refused(values: Path, tmp_path: Path) -> None:
    assert "learns from numbers near 1" not in call(values).stderr

    hour(tmp_path, "20200401/00", rows(0, 200) + "1,1e30,a\n")
    done = call(changed(values, "features", price={"type": "numeric", "transform": []}))

    assert "features.price: the network gets numbers up to 199, and learns from numbers near 1" in done.stderr
    assert "number_too_large 1 (such as 20200401/00/part.csv: the column 'price' is 1e+30;" in done.stderr


def test_a_vocabulary_of_fewer_values_than_asked_for_is_told(values: Path, tmp_path: Path) -> None:
    changed(values, "features", device={"type": "categorical", "vocabulary": {"top": 3}})
    assert "vocabulary.top" not in call(values).stderr

    hour(tmp_path, "20200401/01", f"1,1,{'long' * 100}\n")
    found = call(values)

    assert found.exit_code == 0
    assert "features.device: vocabulary.top is 3, and the statistics list 2 of about 3 values of device" in found.stderr


def test_more_refused_rows_than_a_training_would_bear_write_nothing(values: Path, tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", rows(0, 50) + "1,dear,a\n" * 50)

    done = call(values, "-o", tmp_path / "statistics.json")

    assert done.exit_code == 1
    assert "50 of 200 rows were refused" in done.stderr
    assert "more than data.maxRefusedShare 0.01" in done.stderr
    assert not (tmp_path / "statistics.json").exists()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_file_that_lacks_a_column_ends_with_1_and_its_name(values: Path, tmp_path: Path, processes: str) -> None:
    (tmp_path / "data/20200401/01/part.csv").write_text("click,device\n1,a\n")

    done = call(values, "--processes", processes)

    assert done.exit_code == 1
    assert "20200401/01/part.csv lacks the column 'price'; it has 'click', 'device'." in done.stderr


@pytest.mark.parametrize(
    ("hours", "sentence"),
    [
        ("20200401/0", "start: '20200401/0' is not YYYYMMDD/HH or YYYYMMDD/HHMM"),
        ("20200402/00..20200401/00", "end 20200401/00 is before start 20200402/00"),
        ("20200401/0030", "start 20200401/0030 is not on the 60-minute grid of splitInterval"),
    ],
)
def test_hours_that_are_none_end_with_2_and_a_sentence(values: Path, hours: str, sentence: str) -> None:
    done = call(values, "--hours", hours)

    assert done.exit_code == 2
    assert sentence in done.stderr


def test_without_a_complete_hour_the_folder_is_named(values: Path, tmp_path: Path) -> None:
    done = call(values, "--hours", "20210101/00")

    assert done.exit_code == 1
    assert f"file://{tmp_path}/data has no hour with a donefile from 20210101/00 to 20210101/00" in done.stderr


def test_hours_without_rows_make_no_statistics(values: Path, tmp_path: Path) -> None:
    hour(tmp_path, "20200401/05", "")

    done = call(values, "--hours", "20200401/05")

    assert done.exit_code == 1
    assert "the hours have no row" in done.stderr


def test_rows_that_are_all_refused_are_not_none(values: Path, tmp_path: Path) -> None:
    hour(tmp_path, "20200401/05", "click,price,device\n1,dear,phone\n")

    done = call(changed(values, "data", maxRefusedShare=1), "--hours", "20200401/05")

    assert done.exit_code == 1
    assert "every row was refused" in done.stderr
    assert "the column 'price' is 'dear'" in done.stderr


def test_feasigns_have_no_columns_to_analyze(values: Path) -> None:
    given = yaml.safe_load(values.read_text())
    del given["features"], given["data"]["format"], given["data"]["label"]
    values.write_text(yaml.safe_dump({**given, "data": {**given["data"], "slots": ["a"]}}))

    done = call(values)

    assert done.exit_code == 2
    assert "there are no features" in done.stderr


def test_a_plot_without_its_package_is_refused_before_anything_is_read(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    done = call(values, "--plot", tmp_path / "picture.png")

    assert done.exit_code == 2
    assert "--plot needs matplotlib, which is not installed" in done.stderr


def runs(pid: int) -> bool:
    """And is no zombie that nobody asks for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("wait", [0.02, 0.3, 1])
def test_ctrl_c_ends_every_process_at_once_and_leaves_nothing(values: Path, tmp_path: Path, wait: float) -> None:
    hour(tmp_path, "20200401/00", rows(0, 3_000_000))
    changed(values, "data", taskBytes=1 << 20)
    code = "from elastic_ctr.operate.cli.main import main; main()"
    arguments = ["analyze", "-f", str(values), "--processes", "2", "-o", str(tmp_path / "statistics.json")]
    running = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    # Both processes of the pool have only begun; a third is the tracker of multiprocessing.
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    ends = time.monotonic() + 60
    while len(children.read_text().split()) < 3:
        assert time.monotonic() < ends
        time.sleep(0.01)
    time.sleep(wait)
    pids = [int(each) for each in children.read_text().split()]

    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=30)

    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; nothing was written"
    assert "Traceback" not in said
    assert not (tmp_path / "statistics.json").exists()
    ends = time.monotonic() + 10
    while any(map(runs, pids)):
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_an_error_of_an_own_reader_is_a_sentence(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forgetful_reader.py").write_text(
        "def rows(file, start, end):\n    raise KeyError('boom')\n    yield\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    changed(values, "data", format="reader", reader="forgetful_reader:rows")

    done = call(values)

    assert done.exit_code == 1
    sentence = "the reader forgetful_reader:rows failed in 20200401/00/part.csv: KeyError: 'boom'; mend the reader"
    assert sentence in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(("form", "notes"), [("csv", 1), ("reader", 0)])
def test_a_category_of_numbers_with_a_point_is_told_where_texts_have_no_type(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, notes: int
) -> None:
    for file in (tmp_path / "data").glob("*/*/part.csv"):
        file.write_text("click,price,device\n" + "".join(f"{row % 2},{row},{row}.0\n" for row in range(50)))
    reader = "from pyarrow import csv\ndef rows(file, start, end):\n    yield from csv.read_csv(file, convert_options=text).to_batches()\n"
    reader += "text = csv.ConvertOptions(column_types={'device': 'string'})\n"
    (tmp_path / f"reader_of_{form}.py").write_text(reader)
    monkeypatch.syspath_prepend(tmp_path)
    if form == "reader":
        changed(values, "data", format=form, reader=f"reader_of_{form}:rows")

    done = call(values)

    assert done.exit_code == 0, done.output
    assert done.stderr.count("note: the column 'device' is read as text, and a request must send its texts") == notes
