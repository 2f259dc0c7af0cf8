import json
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
from elastic_ctr.operate.cli.backup_commands import needed_checkpoints
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.endpoints import answers
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import RELEASE, read_backup
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.server import LEDGER
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
