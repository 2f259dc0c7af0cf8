import json
import socket
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from credentials import auth, tokens
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Dense, Model, ModelInput, digest_of_model
from elastic_ctr.config.role_files import MasterFile, TrackingServerSettings
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.runtime.lock import StateInUse
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.backends.source import FileSource, FolderListing
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.master.calendar.schedule import ChangedFiles
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import PassRow
from elastic_ctr.training.master.server import Master, refuse_raw_numbers, remember_settings
from ports import free_port
from runtime.tracking_server import Server
from status_documents import complete
from training.master.world import MODEL, data_of, rows_data_of, settings_of

# Looks at once and again: what is waited for here is a donefile, not a clock.
TOKEN = "word"
DATA = data_of(path="/logs", sleepSeconds=0.01)


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Running:
    """The role in a thread, with its real doors."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.port, self.status_port = free_port(), free_port()
        self.store = FileStore(folder / "store")
        self.settings = settings_of(
            data=DATA,
            auth=auth(folder / "tokens", TOKEN),
            master=MasterConfig(port=self.port, status_port=self.status_port, state_dir=str(folder / "state")),
            **given,
        )
        self.master = Master(self.settings, source=FileSource(folder), store=self.store)
        self._stop = threading.Event()
        self.codes: list[int] = []
        self._thread = threading.Thread(target=lambda: self.codes.append(self.master.run(self._stop)))

    def start(self) -> "Running":
        self._thread.start()
        until(self._answers)
        return self

    def _answers(self) -> bool:
        try:
            self.get("/healthz")
        except OSError:
            return False
        return True

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def retry(self, name: str, token: str = "") -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.status_port}/retry"
        answer = httpx.post(url, json={"pass": name}, headers=headers, trust_env=False, timeout=30)
        return answer.status_code, answer.text

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/status")))

    def end(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "logs").mkdir()
    made = Running(tmp_path)
    yield made
    made.end()


def hour(root: Path, split: str) -> Path:
    folder = root / "logs" / split
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "part").write_bytes(b"1 0 5:a\n")
    return folder


def test_its_status_is_the_document_of_a_training(running: Running, tmp_path: Path) -> None:
    running.start()
    hour(tmp_path, "20200401/00").joinpath("donefile").touch()
    until(lambda: (running.status()["current"] or {}).get("state") == "checking")

    found = complete(TrainingStatus, running.get("/status"), absent=("stream", "archive"))

    assert [each.id for each in found.passes] == ["20200401/00"]


def test_it_says_which_donefile_it_waits_for_and_goes_on_once_it_is_there(running: Running, tmp_path: Path) -> None:
    folder = hour(tmp_path, "20200401/00")
    running.start()
    until(lambda: running.status()["waitsFor"] == "20200401/00/donefile")

    (folder / "donefile").touch()

    until(lambda: (running.status()["current"] or {}).get("state") == "checking")
    assert running.status()["waitsFor"] == ""
    assert running.status()["passes"][0]["tasks"] == 1
    metrics = dict(line.rsplit(" ", 1) for line in running.get("/metrics").splitlines() if not line.startswith("#"))
    assert metrics["elastic_ctr_master_files_read_total"] == "1.0"
    assert metrics['elastic_ctr_master_auc{moment="after"}'] == "NaN"
    assert not [name for name in metrics if name.endswith("_created")]


def test_it_answers_trainers_and_ends_with_zero_when_told(running: Running) -> None:
    running.start()
    client = MasterClient(f"127.0.0.1:{running.port}", tokens(TOKEN))

    reply = client.call("JoinTrainer", control.JoinRequest(name="t", training="local"))
    client.close()
    running.end()

    assert reply.model_digest == digest_of_model(MODEL, input_of(DATA, None))
    assert running.codes == [0]


def test_a_second_master_over_the_same_state_is_refused(running: Running, tmp_path: Path) -> None:
    with pytest.raises(StateInUse, match="is used by another process"):
        Running(tmp_path)


def test_a_restarted_master_keeps_the_name_of_its_ledger(running: Running, tmp_path: Path) -> None:
    running.start()
    name = running.master._ledger.facts.id
    running.end()

    again = Running(tmp_path).start()
    kept = again.master._ledger.facts.id
    again.end()

    assert kept == name


def test_a_manifest_without_its_donefile_line_is_announced_at_start(running: Running) -> None:
    manifest = VersionManifest(
        version=7,
        kind="base",
        base=7,
        parent=None,
        pass_id="20200401/00",
        event_time_max=0,
        created_at=0.0,
        partitions=4,
        dim=2,
        keys=0,
        slots=("a",),
        sparse_dim=None,
        network="slot-dnn",
        cube_files=(),
        model_files=(),
        samples=0,
        auc_live=None,
        auc_published=None,
    )
    running.store.put_bytes(manifest.to_json(), layout.version_manifest(7))

    running.start()

    until(lambda: running.store.exists(layout.BASE_DONEFILE))
    assert json.loads(running.store.get_bytes(layout.BASE_DONEFILE)) == {
        "id": 7,
        "key": 7,
        "input": "/output/ctr_cube/7/base",
    }


def test_a_source_that_is_away_is_told_and_tried_again(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hour(tmp_path, "20200401/00") / "donefile").touch()
    listed = FileSource.listing
    away = True

    def listing(self: FileSource, folder: str) -> FolderListing:
        if away:
            raise StoreError("hdfs is away")
        return listed(self, folder)

    monkeypatch.setattr(FileSource, "listing", listing)
    running.start()
    until(lambda: running.status()["error"] == "hdfs is away")

    away = False

    until(lambda: running.status()["error"] == "" and running.status()["current"] is not None)
    until(lambda: running.status()["current"]["state"] == "checking")


def test_a_taken_port_is_a_sentence_and_frees_the_state(running: Running, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", running.port))
        taken.listen()
        with pytest.raises(OSError, match=r"is in use; free it or set master\.config\.port"):
            running.master.run(threading.Event())

    again = Running(tmp_path)
    again.start()
    again.end()


def test_a_ledger_goes_on_only_with_the_settings_it_began_with(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    model, slots = Model(), ModelInput(("a", "b"))
    remember_settings(ledger, DATA, model, slots)
    remember_settings(ledger, DATA, model, slots)

    other = Model(network="lr")
    with pytest.raises(
        ValueError, match=r"^model\.network deepfm -> lr: the ledger and the store are another model's"
    ) as changed:
        remember_settings(ledger, DATA, other, slots)
    assert "another --dir" in str(changed.value)
    assert "model.startFrom" in str(changed.value)
    with pytest.raises(ValueError, match=r"^the slots a, b -> a, c: the ledger"):
        remember_settings(ledger, DATA, model, ModelInput(("a", "c")))
    with pytest.raises(ValueError, match=r"^settings of the model or of its features: the ledger"):
        remember_settings(ledger, DATA, Model(dense=Dense(learning_rate=0.1)), slots)
    with pytest.raises(ValueError, match=r"data\.splitsPerPass was 1 .* put it back, or begin with an empty state"):
        remember_settings(ledger, DATA.model_copy(update={"splits_per_pass": 2}), model, slots)

    ledger.close()


def test_a_model_of_raw_numbers_is_not_standardized_by_another_release(tmp_path: Path) -> None:
    def told(**transform: object) -> MasterFile:
        numbers = {name: {"type": "numeric", "missing": 0, **transform} for name in ("x", "y")}
        features = Features.model_validate({**numbers, "user": {"type": "categorical"}})
        return settings_of(data=rows_data_of(), features=features)

    # As a release that had no other default wrote it.
    before = told(transform=[])
    assert '"transform":[]' in before.input.definition
    ledger = Ledger(tmp_path / "ledger.db")
    refuse_raw_numbers(ledger, told())
    remember_settings(ledger, before.data, before.model, before.input)

    refuse_raw_numbers(ledger, before)
    refuse_raw_numbers(ledger, told(transform=["standardize"]))
    with pytest.raises(
        ValueError,
        match=r"features\.x has no `transform`.* write `transform: \[\]` there, and in y, to go on as before",
    ):
        refuse_raw_numbers(ledger, told())

    ledger.close()


def test_a_ledger_that_cannot_be_written_is_told_and_written_once_there_is_room(
    running: Running, tmp_path: Path
) -> None:
    running.start()
    client = MasterClient(f"127.0.0.1:{running.port}", tokens(TOKEN))
    ledger = running.master._ledger
    until(lambda: running.status()["waitsFor"] != "")
    # What a full disk is to SQLite.
    pages = ledger.db.execute("pragma page_count").fetchone()[0]
    ledger.db.execute(f"pragma max_page_count = {pages}")

    with pytest.raises(grpc.RpcError, match="the ledger cannot be written") as refused:
        client.call_once("SyncPserver", control.PserverState(incarnation="i" * 100_000, host="h", training="local"))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    folder = hour(tmp_path, "20200401/00")
    for number in range(1000):
        (folder / f"part-{number}").write_bytes(b"1 0 5:a\n")
    (folder / "donefile").touch()
    until(lambda: "the ledger cannot be written" in running.status()["error"])
    ledger.db.execute("pragma max_page_count = 1000000")

    until(lambda: (running.status()["current"] or {}).get("state") == "checking")
    client.call_once("SyncPserver", control.PserverState(incarnation="i" * 100_000, host="h", training="local"))
    client.close()
    until(lambda: running.status()["error"] == "")


def test_a_pserver_lost_while_the_ledger_cannot_be_written_does_not_end_the_master(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = running.master._coordinator
    monkeypatch.setattr(coordinator, "silent_pservers", lambda: [(0, "127.0.0.1", free_port())])

    def full(index: int, reason: str) -> None:
        raise sqlite3.OperationalError(f"database or disk is full ({index}, {reason})")

    monkeypatch.setattr(coordinator, "declare_lost", full)
    running.start()

    until(
        lambda: "the ledger cannot be written (database or disk is full (0, it is silent" in running.status()["error"]
    )


def test_its_run_in_the_tracking_server_ends_with_it(tmp_path: Path) -> None:
    server = Server()
    tracking = TrackingServerSettings(url=server.url, experiment="clicks")
    (tmp_path / "logs").mkdir()
    running = Running(tmp_path, training="ctr-train-1", tracking=tracking).start()

    running.end()

    assert running.codes == [0]
    assert server.status() == "KILLED"
    server.close()


def stopped(running: Running, root: Path) -> Path:
    """A pass that its check has stopped; the file that is to blame."""
    folder = hour(root, "20200401/00")
    (folder / "donefile").touch()
    running.start()
    until(lambda: (running.status()["current"] or {}).get("state") == "checking")
    coordinator = running.master._coordinator
    with coordinator.lock.reading() as ledger:
        current = ledger.passes.current()
        assert current is not None
        coordinator._schedule.stop(current, "the lines of 20200401/00/part are refused")
    return folder / "part"


def state_of(running: Running) -> str:
    return str((running.status()["current"] or {})["state"])


def test_a_stopped_pass_is_retried_by_a_call_with_the_token(running: Running, tmp_path: Path) -> None:
    stopped(running, tmp_path)
    assert "run `elastic-ctr pass retry 20200401/00`" in running.status()["current"]["reason"]

    assert running.retry("20200401/00", "wrong")[0] == 401
    assert running.retry("20200401/07", TOKEN) == (
        409,
        '{"error":"pass 20200401/07 is not stopped, pass 20200401/00 is"}',
    )
    assert state_of(running) == "stopped"
    assert running.retry("20200401/00", TOKEN)[0] == 200

    until(lambda: state_of(running) == "checking")


def test_a_stopped_pass_is_retried_once_its_files_were_changed(running: Running, tmp_path: Path) -> None:
    file = stopped(running, tmp_path)

    file.write_bytes(b"1 1 5:b\n")

    until(lambda: state_of(running) == "checking")


def test_files_that_are_still_being_written_are_not_read_yet(tmp_path: Path) -> None:
    folder, now = hour(tmp_path, "20200401/00"), 0.0
    one = PassRow(1, "20200401/00", ("20200401/00",), 0, False, "stopped")
    changed = ChangedFiles(FileSource(tmp_path), data_of(path="/logs", sleepSeconds=10), lambda: now)
    changed.remember(one)
    found = []
    for step in range(40):
        if 10 <= step < 13:
            (folder / "part").write_bytes(b"x" * step)
        now += 10
        found.append(changed.look(one))
        if found[-1]:
            break

    assert 14 <= len(found) < 40
    changed.remember(one)
    assert not changed.look(one)


def test_a_new_training_without_its_source_folder_is_refused_and_a_running_one_waits_for_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"data\.source: the folder file://{tmp_path}/logs does not exist: is data"):
        Running(tmp_path)
    (tmp_path / "logs").mkdir()
    Running(tmp_path).start().end()
    (tmp_path / "logs").rmdir()

    again = Running(tmp_path).start()
    until(lambda: "logs does not exist" in again.status()["waitsFor"])
    again.end()


def test_a_new_training_whose_store_lacks_what_versions_need_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(_: FileStore) -> None:
        raise StoreError("it takes a second object of one name")

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(FileStore, "verify", lacks)

    with pytest.raises(StoreError, match="takes a second object of one name"):
        Running(tmp_path)
