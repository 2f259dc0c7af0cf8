import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import saying
from elastic_ctr.config.load import dump, load
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.cube.release import Holder, Placement, ReleaseDocument
from elastic_ctr.cube.transfer.state import ReleaseState
from elastic_ctr.cube.transfer.state_file import PersistedState
from elastic_ctr.operate.cli.backup_commands import needed_checkpoints
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.endpoints import answers
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import RELEASE, read_backup
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.ledger_file import LEDGER
from operate.cli.fake_kubectl import FakeKubectl
from ports import free_port
from training.master.world import settings_of

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
RELEASED = ReleaseDocument(
    generation=2, revision=7, placement=Placement(shards=2), live=None, holders={5: {"a:1": Holder(partitions=(0,))}}
)


def call(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(build("backup"), ["backup", *map(str, words)], input=given)


@pytest.fixture
def transfer(kubectl: FakeKubectl) -> Iterator[None]:
    answer = json.loads(RELEASED.to_json())
    with saying(lambda *_: (200, answer)) as address:
        kubectl.say(forward={"ctr-cube-transfer-0:8300": int(address.partition(":")[2])}, exec=0)
        yield


@pytest.mark.usefixtures("transfer")
def test_in_a_cluster_the_masters_pod_gets_the_release_document_and_the_token_by_its_input(
    kubectl: FakeKubectl, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("me s3cret")

    done = call("--to", "http://archive/ctr", "--token-file", tmp_path / "token", "-n", "ns")
    kubectl.say(exec=1)
    failed = call("--to", "hdfs://archive/ctr", "-n", "ns")

    assert (done.exit_code, failed.exit_code) == (0, 1)
    words = [each for each in kubectl.calls if "exec" in each]
    assert words[0][2:] == [
        "exec", "--stdin", "ctr-master-0", "--container", "master", "--",
        "elastic-ctr", "backup", "--in-pod", "--to", "http://archive/ctr", "--user", "root",
    ]  # fmt: skip
    assert kubectl.created == {"release": json.loads(RELEASED.to_json()), "tokens": None}


@pytest.mark.usefixtures("transfer")
def test_in_a_cluster_a_backup_that_retention_has_overtaken_begins_again_with_the_release_document_of_then(
    kubectl: FakeKubectl,
) -> None:
    kubectl.say(exec=75)

    done = call("--to", "http://archive/ctr", "-n", "ns")

    assert done.exit_code == 1
    words = ["exec" if "exec" in each else "document" for each in kubectl.calls if {"exec", "port-forward"} & {*each}]
    assert words == ["document", "exec"] * 3


def config(folder: Path, **more: Any) -> Path:
    """The role file of a master in this folder."""
    ports = {"port": free_port(), "statusPort": free_port()}
    given = {"master": {"stateDir": str(folder / "state"), **ports}, "store": {"url": f"file://{folder}/store"}, **more}
    file = folder / "config.yaml"
    folder.mkdir(exist_ok=True)
    file.write_text(dump(settings_of(**given)))
    return file


def begun(folder: Path) -> Path:
    """The role file of a master that has begun, without a version yet."""
    file = config(folder)
    with closing(Ledger(folder / "state" / LEDGER)) as ledger:
        ledger.set_facts(id="abc", last_version=3)
    return file


def test_in_the_masters_pod_the_ledger_and_the_release_document_are_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(begun(tmp_path)))
    sent = json.dumps({"release": json.loads(RELEASED.to_json()), "tokens": "me s3cret"})

    done = call("--in-pod", "--to", f"file://{tmp_path}/archive", given=sent)

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"no live version, with no checkpoint, is in file://{tmp_path}/archive: ")
    manifest = read_backup(FileStore(tmp_path / "archive"))
    assert manifest.release == "abc"
    kept = tmp_path / "archive/backup/state" / manifest.state[RELEASE].sha256
    assert ReleaseDocument.model_validate_json(kept.read_bytes()) == RELEASED.model_copy(update={"holders": {}})
    assert not list((tmp_path / "state/backup").glob("files/*"))


def test_a_master_without_a_ledger_restores_first_and_goes_on_with_the_restored_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(begun(tmp_path / "lost")))
    url = f"file://{tmp_path}/archive"
    assert (
        call(
            "--in-pod", "--to", url, given=json.dumps({"release": json.loads(RELEASED.to_json()), "tokens": None})
        ).exit_code
        == 0
    )
    file = config(tmp_path / "new", restore={"url": url})
    ledger = tmp_path / "new/state" / LEDGER

    with subprocess.Popen([COMMAND, "master", "--config", file]) as master:
        address = f"http://127.0.0.1:{load(MasterFile, file).master.status_port}/healthz"
        while master.poll() is None and not (ledger.exists() and answers(address)):
            time.sleep(0.05)
        master.terminate()

    with closing(Ledger(ledger)) as restored:
        assert (restored.facts.id, restored.facts.last_version) == ("abc", 3)
    document = FileStore(tmp_path / "new/store").get_bytes(layout.RESTORED)
    assert ReleaseDocument.model_validate_json(document).revision == RELEASED.revision


def test_a_master_whose_backup_is_not_there_ends_with_one_sentence_and_2(tmp_path: Path) -> None:
    file = config(tmp_path, restore={"url": f"file://{tmp_path}/archive"})

    ended = CliRunner().invoke(build("master"), ["master", "--config", str(file)])

    assert ended.exit_code == 2
    assert f"file://{tmp_path}/archive has no complete backup; run `elastic-ctr backup` to the end" in ended.stderr
    assert not (tmp_path / "state" / LEDGER).exists()


def test_a_backup_into_the_releases_own_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(begun(tmp_path)))

    done = call("--in-pod", "--to", f"file://{tmp_path}/store/archive", given='{"release": null, "tokens": null}')

    assert done.exit_code == 2
    assert "is the release's own store, which would be lost with it; give another address" in done.stderr


def test_a_master_that_has_not_begun_is_refused_and_gets_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(begun(tmp_path)))
    (tmp_path / "state" / LEDGER).unlink()

    done = call("--in-pod", "--to", f"file://{tmp_path}/archive", given='{"release": null, "tokens": null}')

    assert done.exit_code == 2
    assert "has no training: the master has not begun" in done.stderr
    assert not (tmp_path / "state" / LEDGER).exists()


def test_a_damaged_ledger_does_not_replace_the_one_of_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(begun(tmp_path)))
    to = ("--in-pod", "--to", f"file://{tmp_path}/archive")
    assert call(*to, given='{"release": null, "tokens": null}').exit_code == 0
    before = read_backup(FileStore(tmp_path / "archive"))
    with closing(sqlite3.connect(tmp_path / "state" / LEDGER)) as ledger:
        [page] = ledger.execute("select rootpage from sqlite_master where name = 'drifts'").fetchone()
        [size] = ledger.execute("pragma page_size").fetchone()
    with (tmp_path / "state" / LEDGER).open("r+b") as file:
        # A page that a backup does not read otherwise.
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    done = call(*to, given='{"release": null, "tokens": null}')

    assert done.exit_code == 2
    assert f"the ledger {tmp_path}/state/{LEDGER} is damaged" in done.stderr
    assert read_backup(FileStore(tmp_path / "archive")) == before


def run_in(folder: Path, live: int | None) -> Path:
    """The folder of a run that has begun, with its live version."""
    run = folder / "run"
    state = run / "state/master"
    with closing(Ledger(state / LEDGER)) as ledger:
        ledger.set_facts(id="abc", last_version=9)
    settings = settings_of(master={"stateDir": str(state)}, store={"url": f"file://{run}/store"})
    (run / "config").mkdir()
    (run / "config/ctr-master-0.yaml").write_text(dump(settings))
    RunFolder(run).write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "ctr"))
    released(run, live)
    return run


def released(run: Path, live: int | None) -> None:
    file = run / "state/cube-transfer/release.json"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(PersistedState(state=ReleaseState(generation=1, live=live), revisions=1).to_json())


def test_a_backup_that_begins_again_has_the_version_that_is_live_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, get = run_in(tmp_path, live=7), FileStore.get_bytes

    def overtaken(self: FileStore, path: str) -> bytes:
        # Version 7 is deleted, and so no longer live.
        if path == layout.dictionary_manifest(7):
            released(run, live=None)
        return get(self, path)

    monkeypatch.setattr(FileStore, "get_bytes", overtaken)
    done = call("--to", f"file://{tmp_path}/archive", "--dir", run)

    assert done.exit_code == 0, done.output
    assert "the backup begins again with a newer state" in done.stderr
    assert done.stdout.startswith("no live version, ")


def test_the_backup_of_a_run_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir(mode=0o755)

    done = call("--to", f"file://{tmp_path}/archive", "--dir", run_in(tmp_path, live=None))

    assert done.exit_code == 0, done.output
    assert {each.stat().st_mode & 0o077 for each in (tmp_path / "archive").rglob("*")} == {0}


def test_the_command_does_not_load_packages_that_a_masters_memory_limit_has_no_room_for() -> None:
    code = "import sys, elastic_ctr.operate.cli.backup_commands; print({'numba', 'grpc', 'uvicorn'} & {*sys.modules})"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded == "set()\n"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    done = call("--to", f"file://{tmp_path}/archive", "--dir", tmp_path / "absent")

    assert done.exit_code == 2
    assert "absent" in done.stderr
    assert not (tmp_path / "absent").exists()


def test_the_newest_checkpoint_of_a_whole_pass_is_needed_with_the_later_ones_and_the_one_that_it_stands_on() -> None:
    old, save, by_log, mid = (
        {"name": name, "mid": middle, "stands_on": stands_on}
        for name, middle, stands_on in (("a", None, ""), ("b", None, ""), ("c", None, "b"), ("d", {"state": "x"}, ""))
    )

    assert needed_checkpoints([]) == []
    assert needed_checkpoints([old, save]) == ["b"]
    assert needed_checkpoints([old, save, by_log, mid]) == ["b", "c", "d"]
    assert needed_checkpoints([mid]) == ["d"]
