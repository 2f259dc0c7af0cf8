import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import pages, saying
from elastic_ctr.cube.transfer.state import ReleaseState, StepTimes
from elastic_ctr.cube.transfer.state_file import PersistedState, StateFile
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from elastic_ctr.operate.report.page import page
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.training.master.training_status import status_of_ledger
from operate.cli.answers import DELTA, answers
from operate.cli.fake_kubectl import FakeKubectl
from operate.report.runs import report_of
from training.master.world import World, data_of

ROOT = Path(__file__).parents[4]
INFO = RunInfo("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", ["127.0.0.1:1"], "ctr", ended_at=9e9, ended="the last one")


def call(*words: object) -> Result:
    return CliRunner().invoke(build("report"), ["report", *map(str, words)])


@contextmanager
def roles(**changes: Any) -> Iterator[tuple[str, str]]:
    found = {**answers(), **changes}
    with (
        saying(pages({"/status": found["master"]})) as master,
        saying(pages({"/status": found["transfer"]})) as transfer,
    ):
        yield master, transfer


def finished(folder: Path, one: World, live: int) -> RunFolder:
    """The folder of a local run with the ledger of this training; its first version is live."""
    run = RunFolder(folder)
    (folder / "state" / "cube-transfer").mkdir(parents=True)
    (folder / "state" / "master").mkdir()
    run.write(INFO)
    for name in ("ledger.db", "ledger.db-wal"):
        if (found := one.folder / name).exists():
            shutil.copyfile(found, folder / "state" / "master" / name)
    state = ReleaseState(generation=1, live=live, times={live: StepTimes(published=100.0, seen=101.0, live=103.5)})
    StateFile(folder / "state" / "cube-transfer").write(PersistedState(state=state, revisions=1))
    return run


@pytest.fixture
def ended(tmp_path: Path) -> RunFolder:
    one = World(tmp_path / "world", data_of(holdout=0.2))
    one.finish()
    live = one.ledger.saves.versions()[0]["id"]
    one.ledger.close()
    return finished(tmp_path / "run", one, live)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): (each.read_bytes(), each.stat().st_mtime_ns) for each in files}


def test_a_run_at_addresses_becomes_a_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"

    with roles() as (master, transfer):
        done = call("-o", file, "--address", master, "--transfer", transfer)
        again = call("--address", master, "--transfer", transfer)

    assert (done.exit_code, done.stdout) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(file))}: 3 passes, \d+ KB\n", done.stderr)
    said = report_of(master, {role: answers()[role] for role in ("master", "transfer")})
    assert file.read_text() == page(said) == again.stdout
    assert str(DELTA) in file.read_text()


def test_a_release_in_a_cluster_is_named_in_its_page(kubectl: FakeKubectl) -> None:
    with roles() as (master, transfer):
        ports = {"ctr-master-0:8701": master, "ctr-cube-transfer-0:8300": transfer}
        kubectl.say(forward={door: int(address.partition(":")[2]) for door, address in ports.items()})
        done = call("-n", "ns")

    assert done.exit_code == 0
    assert "release ctr in namespace ns" in done.stdout
    assert f"<b>{DELTA}</b>" in done.stdout


def test_a_run_that_has_ended_is_read_from_its_folder_and_nothing_in_it_changes(ended: RunFolder) -> None:
    before = content(ended.path)

    done = call("--dir", ended.path)

    assert (done.exit_code, done.stderr) == (0, "")
    assert content(ended.path) == before
    assert done.stdout == call("--dir", ended.path).stdout
    assert str(ended.path) in done.stdout
    rows = re.findall(r'<th scope="row">(2020\d+/\d+)</th><td class="w">done', done.stdout)
    assert rows == ["20200401/01", "20200401/00"]
    assert '<b class="live">live</b>' in done.stdout
    assert "<td>3.5</td>" in done.stdout


def test_the_ledger_of_a_master_that_was_killed_is_read_whole(tmp_path: Path) -> None:
    one = World(tmp_path / "world")
    one.finish()
    # The ledger is open: its last transactions stand in the write-ahead log alone.
    run = finished(tmp_path / "run", one, one.ledger.saves.versions()[0]["id"])
    assert (run.path / "state" / "master" / "ledger.db-wal").stat().st_size

    done = call("--dir", run.path, "--json")

    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert found["master"] == status_of_ledger(one.ledger).to_dict()
    assert found["errors"] == {}
    assert [each["learning"]["epochs"] for each in found["master"]["passes"]] == [1, 1]
    assert list(found["transfer"]["versions"].values()) == [{"secondsToLive": 3.5}]


def test_a_run_that_never_released_anything_has_a_page_too(ended: RunFolder) -> None:
    StateFile(ended.path / "state" / "cube-transfer").path.unlink()

    done = call("--dir", ended.path)

    assert done.exit_code == 0
    assert "which version is live is unknown" in done.stdout


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("state/master/ledger.db", b"not a ledger" * 200, "cannot be read as a ledger: file is not a database"),
        ("state/cube-transfer/release.json", b'{"revisions": -1}', "is damaged: state: Field required; move it away"),
    ],
)
def test_files_that_cannot_be_read_are_named(ended: RunFolder, file: str, text: bytes, sentence: str) -> None:
    (ended.path / file).write_bytes(text)
    output = ended.path / "report.html"

    done = call("--dir", ended.path, "-o", output)

    assert done.exit_code == 2
    assert f"{ended.path / file} {sentence}" in done.stderr
    assert not output.exists()


def test_a_ledger_of_a_newer_release_is_named(ended: RunFolder) -> None:
    path = ended.path / "state" / "master" / "ledger.db"
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("pragma user_version = 2")

    done = call("--dir", ended.path)

    assert done.exit_code == 2
    assert f"{path} was written by a newer release" in done.stderr


def test_a_folder_without_a_run_or_without_a_ledger_is_refused(tmp_path: Path, ended: RunFolder) -> None:
    (ended.path / "state" / "master" / "ledger.db").unlink()

    nothing, no_ledger = call("--dir", tmp_path), call("--dir", ended.path)

    assert (nothing.exit_code, no_ledger.exit_code) == (2, 2)
    assert "no run was ever started there" in nothing.stderr
    assert "has no ledger: the master of that run never started" in no_ledger.stderr


def test_a_ledger_that_a_master_has_open_is_not_read(ended: RunFolder) -> None:
    with StateLock(ended.path / "state" / "master"):
        done = call("--dir", ended.path)

    assert done.exit_code == 2
    assert "has just been started again" in done.stderr


def test_without_cube_transfer_the_page_is_written_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "report.html"

    with roles() as (master, _):
        done = call("-o", file, "--address", master, "--transfer", "127.0.0.1:1")

    assert done.exit_code == 1
    assert "http://127.0.0.1:1/status does not answer" in done.stderr
    assert "cube-transfer did not answer" in file.read_text()


def test_without_the_master_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("the last one")

    with roles() as (_, transfer):
        done = call("-o", file, "--address", "127.0.0.1:1", "--transfer", transfer)

    assert done.exit_code == 2
    assert "http://127.0.0.1:1/status does not answer" in done.stderr
    assert file.read_text() == "the last one"


def test_a_status_that_cannot_be_shown_and_a_file_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    strange = {**answers()["master"], "passes": [{"pass": 7}]}
    (tmp_path / "file").write_text("")

    with roles(master=strange) as (master, transfer):
        wrong = call("--address", master, "--transfer", transfer)
    with roles() as (master, transfer):
        unwritten = call("--address", master, "--transfer", transfer, "-o", tmp_path / "file" / "report.html")

    assert (wrong.exit_code, unwritten.exit_code) == (2, 2)
    assert "passes.0.pass: Input should be a valid string; are both of one release?" in wrong.stderr
    assert "cannot be written" in unwritten.stderr


def test_the_command_of_the_manual_writes_its_page(ended: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    manual = (ROOT / "docs" / "operations" / "report.md").read_text()
    [command] = re.findall(r"^\.venv/bin/elastic-ctr report (.+)$", manual, re.MULTILINE)
    home = ended.path.parent / "home"
    home.mkdir()
    ended.path.rename(home / "elastic-ctr-local")
    monkeypatch.chdir(home)

    done = call(*shlex.split(command))

    assert done.exit_code == 0
    assert (home / "report.html").read_text().startswith("<!doctype html>")
