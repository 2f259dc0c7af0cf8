import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from certificates import Authority
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import Auth, PserverFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import PserverConfig
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import ForeignMasterGrace
from elastic_ctr.training.control.server_sockets import expose
from elastic_ctr.training.pserver import supervisor as module
from elastic_ctr.training.pserver.folders import Folders
from elastic_ctr.training.pserver.process import REFUSED
from elastic_ctr.training.pserver.supervisor import PserverSupervisor, _do, _save_of
from paddle_socket import PaddleSocket
from ports import free_port

MODEL = Model(partitions=2, embedding_dim=2)


class Master:
    """Answers with what a test says, and keeps what it was told."""

    def __init__(self) -> None:
        self.orders = control.PserverOrders(generation=1)
        self.told: list[control.PserverState] = []
        self.away = False

    def call_once(self, method: str, request: Any, timeout: float = 10) -> Any:  # noqa: ARG002 (the client's own)
        assert method == "SyncPserver"
        if self.away:
            raise _Away
        self.told.append(request)
        return self.orders


class _Away(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.005)


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def parent(tmp_path: Path, master: Master) -> PserverSupervisor:
    made = PserverSupervisor(
        0,
        PserverFile(
            data=Data(source=DataSource(url="file:///data"), start="20200401/00", slots=("a",)),
            model=MODEL,
            store=StoreConfig(url=f"file://{tmp_path}/store"),
            pserver=PserverConfig(port=1, admin_port=2, scratch_dir=str(tmp_path / "scratch")),
            pservers=1,
            master_address="127.0.0.1:1",
        ),
        host="127.0.0.1",
        client=master,  # type: ignore[arg-type]
        store=FileStore(tmp_path / "store"),
    )
    made._turn()
    return made


def save(parent: PserverSupervisor, folder: str) -> None:
    for kind, name in (("000", "part-000-00000"), ("000", "part-000-00001"), ("001", "part-000.gz")):
        file = parent._folder() / folder / kind / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")


def checkpoint_job(name: str = "3-1-checkpoint") -> control.Job:
    return control.Job(id=name, kind=control.CHECKPOINT, folder=f"save/{name}", checkpoint=f"c-{name}")


def told_results(parent: PserverSupervisor, master: Master) -> list[str]:
    parent._turn()
    return [result.id for result in master.told[-1].results]


def test_a_job_is_done_and_its_result_is_told_until_the_master_has_it(
    parent: PserverSupervisor, master: Master
) -> None:
    save(parent, "save/3-1-checkpoint")
    master.orders.jobs.append(checkpoint_job())

    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])
    del master.orders.jobs[:]
    parent._turn()

    assert told_results(parent, master) == []


def test_a_master_that_restarted_hears_of_a_job_whose_folder_is_gone(parent: PserverSupervisor, master: Master) -> None:
    save(parent, "save/3-1-checkpoint")
    master.orders.jobs.append(checkpoint_job())
    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])
    first = master.told[-1].results[0]
    del master.orders.jobs[:]
    for _ in range(2):
        parent._turn()

    master.orders.jobs.append(checkpoint_job())
    parent._turn()

    assert told_results(parent, master) == ["3-1-checkpoint"]
    assert master.told[-1].results[0] == first


def test_a_compaction_beside_it_forgets_no_result_of_a_save(parent: PserverSupervisor, master: Master) -> None:
    save(parent, "save/3-1-checkpoint")
    # Of an older pass, and waiting to be tried again.
    compaction = control.Job(id="1-1-compaction-7", kind=control.COMPACT, checkpoint="c", version=7, log_of="gone-g1")
    parent._retry_at[compaction.id] = time.monotonic() + 600
    master.orders.jobs.extend([compaction, checkpoint_job()])
    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])

    # The master has it, and is started again when the folder is gone.
    del master.orders.jobs[1:]
    parent._turn()
    assert told_results(parent, master) == []
    master.orders.jobs.append(checkpoint_job())
    parent._turn()

    assert told_results(parent, master) == ["3-1-checkpoint"]


def test_results_of_an_older_save_are_forgotten(parent: PserverSupervisor, master: Master) -> None:
    for name in ("3-1-checkpoint", "4-1-checkpoint"):
        save(parent, f"save/{name}")
        del master.orders.jobs[:]
        master.orders.jobs.append(checkpoint_job(name))
        until(lambda name=name: told_results(parent, master) == [name])  # type: ignore[misc]

    assert list(parent._results) == ["4-1-checkpoint"]


def test_rows_that_were_loaded_are_counted_again_when_asked_again(parent: PserverSupervisor, master: Master) -> None:
    job = control.Job(id="verify-1", kind=control.COUNT, folder="verify")
    save(parent, "verify")
    master.orders.jobs.append(job)
    until(lambda: told_results(parent, master) == ["verify-1"])
    del master.orders.jobs[:]
    parent._turn()
    (parent._folder() / "verify/000/part-000-00001").write_bytes(b"x\n")

    master.orders.jobs.append(job)
    until(lambda: told_results(parent, master) == ["verify-1"])

    assert master.told[-1].results[0].rows[1] == 1


def test_a_job_that_fails_is_told_in_words_and_tried_again(
    parent: PserverSupervisor, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.training.pserver.supervisor._RETRY_SECONDS", 0.0)
    master.orders.jobs.append(checkpoint_job())
    until(lambda: not told_results(parent, master) and "save/3-1-checkpoint" in master.told[-1].error)

    save(parent, "save/3-1-checkpoint")

    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])
    assert parent.status()["error"] == ""


def test_a_compaction_that_cannot_be_done_is_told_while_other_jobs_are_done_beside_it(
    parent: PserverSupervisor, master: Master
) -> None:
    save(parent, "save/3-1-checkpoint")
    compaction = control.Job(id="3-1-compaction-7", kind=control.COMPACT, checkpoint="c", version=7, log_of="gone-g1")
    master.orders.jobs.extend([compaction, checkpoint_job()])

    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])
    until(lambda: (parent._turn(), "gone-g1 is not compacted: " in master.told[-1].error)[1])

    parent._compactor.stop()
    assert parent._compactor._pool is not None


def test_a_new_generation_forgets_the_old_ones_work_and_its_folder(parent: PserverSupervisor, master: Master) -> None:
    save(parent, "save/3-1-checkpoint")
    old = parent._folder()
    master.orders.jobs.append(checkpoint_job())
    until(lambda: told_results(parent, master) == ["3-1-checkpoint"])

    del master.orders.jobs[:]
    master.orders.generation = 2
    parent._turn()

    assert told_results(parent, master) == []
    assert master.told[-1].generation == 2
    assert not old.exists()
    assert parent._folder().exists()


def test_a_damaged_checkpoint_is_named_until_it_can_be_fetched(
    parent: PserverSupervisor, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DAMAGED_SECONDS", 0.0)
    monkeypatch.setattr(parent, "_start_child", lambda: None)
    master.orders.start = True
    master.orders.checkpoint = "lost"

    def told() -> control.PserverState:
        parent._turn()
        return master.told[-1]

    until(lambda: told().damaged_checkpoint == "lost")
    assert "checkpoint lost cannot be fetched" in master.told[-1].error
    assert parent._failed_starts == 0
    manifest = CheckpointManifest(
        name="lost", pass_id="p", pass_ordinal=1, follows_version=None, base_version=None, created_at=1.0, partitions=2,
        rows={}, files=(),
    )  # fmt: skip
    parent._store.put_bytes(manifest.to_json(), layout.checkpoint_manifest("lost"))

    until(lambda: not told().damaged_checkpoint)
    assert master.told[-1].error == ""


def test_a_master_that_is_away_changes_nothing(parent: PserverSupervisor, master: Master) -> None:
    master.away = True

    assert parent._turn() is False
    assert parent._generation == 1


def test_the_order_to_leave_ends_it(parent: PserverSupervisor, master: Master) -> None:
    master.orders.leave = True

    assert parent._turn() is True


class Ended:
    """A server process that has ended."""

    pid = 4711
    returncode = -9

    def poll(self) -> int:
        return self.returncode

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        return self.returncode


def test_a_server_process_that_ends_is_lost_until_the_next_generation_and_counted_once(
    parent: PserverSupervisor, master: Master
) -> None:
    (parent._folder() / "server.log").write_text("starting\nRuntimeError: no memory\n")
    parent._child = Ended()  # type: ignore[assignment]

    for _ in range(2000):
        parent._state()
    parent._turn()

    assert master.told[-1].lost
    assert not master.told[-1].serving
    assert master.told[-1].error == "its server process ended with -9: RuntimeError: no memory"
    assert parent._failed_starts == 1


def test_a_pause_before_a_start_stays_bounded_however_often_it_failed(
    parent: PserverSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(
        "elastic_ctr.training.pserver.supervisor._prepare", lambda _folders, _name, pause: pauses.append(pause)
    )
    monkeypatch.setattr(parent, "_start_child", lambda: None)
    for failed in (0, 1, 2, 10_000):
        parent._failed_starts, parent._preparing = failed, None
        parent._start_when_ready("")
        until(lambda failed=failed: len(pauses) == [0, 1, 2, 10_000].index(failed) + 1)  # type: ignore[misc]

    assert pauses == [0.0, 1.0, 2.0, 30.0]


def test_no_job_ever_raises(tmp_path: Path) -> None:
    folders = Folders(tmp_path, FileStore(tmp_path / "store"), MODEL, 0, 1)

    for kind in (control.COUNT, control.CHECKPOINT, control.EXPORT):
        assert _do(folders, control.Job(id="x", kind=kind, folder="none")).error.startswith("none: ")


def test_a_jobs_save_is_its_pass_and_generation() -> None:
    assert _save_of("3-1-checkpoint") == _save_of("3-1-delta-1600000000") != _save_of("3-2-delta-1600000000")


def test_a_pserver_that_does_not_end_waits_without_a_table_and_begins_anew(
    parent: PserverSupervisor, master: Master
) -> None:
    parent._settings = parent._settings.model_copy(update={"exit_when_done": False})
    master.orders = control.PserverOrders(leave=True, reason="every hour is trained")

    assert not parent._turn()
    assert parent.status()["idle"] == "every hour is trained"
    parent._turn()
    assert master.told[-1].generation == 0
    master.orders = control.PserverOrders(generation=2)
    assert not parent._turn()

    parent._turn()
    assert master.told[-1].generation == 2
    assert parent.status()["idle"] == ""


def test_a_pserver_whose_training_was_replaced_asks_on_without_a_table_and_ends(
    parent: PserverSupervisor, master: Master
) -> None:
    now = [0.0]
    parent._foreign_master = ForeignMasterGrace(lambda: now[0])
    master.orders = control.PserverOrders(leave=True, wrong_training=True, reason="training local was replaced by b")

    assert not parent._turn()
    assert not parent._turn()
    assert master.told[-1].generation == 0
    now[0] = ForeignMasterGrace.SECONDS

    assert parent._turn()
    assert master.told[-1].training == "local"


def test_a_pserver_that_met_the_master_before_its_own_begins_when_its_own_is_there(
    parent: PserverSupervisor, master: Master
) -> None:
    master.orders = control.PserverOrders(leave=True, wrong_training=True, reason="training local was replaced by a")
    assert not parent._turn()
    master.orders = control.PserverOrders(generation=7)
    assert not parent._turn()

    parent._turn()

    assert master.told[-1].generation == 7
    assert parent.status()["idle"] == ""


class Lives(Ended):
    """A server process that serves."""

    def poll(self) -> int | None:  # type: ignore[override]
        return None

    def kill(self) -> None:
        pass


@pytest.fixture
def serving(parent: PserverSupervisor, monkeypatch: pytest.MonkeyPatch) -> PserverSupervisor:
    """A parent whose child serves, told to end by the first call of `_hand_over`."""
    parent._child = Lives()  # type: ignore[assignment]
    monkeypatch.setattr(parent, "_serving", lambda: True)
    return parent


def test_a_pserver_that_is_told_to_end_goes_once_the_master_has_not_needed_it_for_a_while(
    serving: PserverSupervisor, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.training.pserver.supervisor._LINGER_SECONDS", 0.7)
    master.orders = control.PserverOrders(generation=1, leave_timeout_seconds=30)
    serving._turn()
    asked = len(master.told)

    serving._hand_over()

    assert [each.leaving for each in master.told[asked:]] == [True] * 3


def test_a_pserver_that_the_old_master_does_not_need_stays_for_the_handover_of_the_new_one(
    serving: PserverSupervisor, master: Master
) -> None:
    master.orders = control.PserverOrders(generation=1, leave_timeout_seconds=30)
    serving._turn()
    answered, tries = master.call_once, []

    def of_two_masters(method: str, request: Any, timeout: float = 10) -> Any:
        answered(method, request, timeout)
        tries.append(method)
        needed = len(tries) in (2, 3)
        return control.PserverOrders(
            generation=1, leave_timeout_seconds=30, keep_running=needed, leave=len(tries) == 4, reason="handed over"
        )

    master.call_once = of_two_masters  # type: ignore[method-assign]
    serving._settings = serving._settings.model_copy(update={"exit_when_done": False})
    serving._hand_over()

    assert len(tries) == 4


def test_a_pserver_whose_table_is_handed_over_writes_what_is_saved_and_then_goes(
    serving: PserverSupervisor, master: Master
) -> None:
    master.orders = control.PserverOrders(
        generation=1, leave_timeout_seconds=30, keep_running=True, jobs=[checkpoint_job()]
    )
    serving._turn()
    save(serving, "save/3-1-checkpoint")
    answered = master.call_once

    def until_written(method: str, request: Any, timeout: float = 10) -> Any:
        orders = answered(method, request, timeout)
        if request.results:
            orders = control.PserverOrders(leave=True, reason="training a was replaced by b")
        return orders

    master.call_once = until_written  # type: ignore[method-assign]
    serving._settings = serving._settings.model_copy(update={"exit_when_done": False})
    serving._hand_over()

    assert [result.id for result in master.told[-1].results] == ["3-1-checkpoint"]
    assert master.told[-1].leaving


def test_a_pserver_that_is_told_to_end_while_the_master_restarts_waits_for_its_word(
    serving: PserverSupervisor, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.training.pserver.supervisor._LINGER_SECONDS", 0.0)
    master.orders = control.PserverOrders(generation=1, leave_timeout_seconds=30)
    serving._turn()
    asked, answered, tries = len(master.told), master.call_once, []

    def away_at_first(method: str, request: Any, timeout: float = 10) -> Any:
        tries.append(method)
        if len(tries) < 3:
            raise _Away
        return answered(method, request, timeout)

    master.call_once = away_at_first  # type: ignore[method-assign]
    serving._hand_over()

    assert len(tries) == 3
    assert len(master.told) == asked + 1


@pytest.mark.parametrize("patience", [0, 0.01])
def test_a_pserver_does_not_wait_for_ever_for_a_master_that_is_away(
    serving: PserverSupervisor, master: Master, patience: float
) -> None:
    master.orders = control.PserverOrders(generation=1, leave_timeout_seconds=patience)
    serving._turn()
    asked, master.away = len(master.told), True

    serving._hand_over()

    assert len(master.told) == asked


def test_a_pserver_without_a_table_goes_without_asking(parent: PserverSupervisor, master: Master) -> None:
    master.orders = control.PserverOrders(generation=1, leave_timeout_seconds=30, keep_running=True)
    parent._turn()
    asked = len(master.told)

    parent._hand_over()

    assert len(master.told) == asked


def test_a_master_that_is_away_for_long_is_said_once_and_that_it_is_back(
    parent: PserverSupervisor, master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    master.away = True
    for _ in range(5):
        parent._turn()
    master.away = False
    parent._turn()
    parent._turn()

    said = [record.getMessage() for record in caplog.records if "master" in record.getMessage()]
    assert said[0] == "the master does not answer: UNAVAILABLE: connection refused; retrying"
    assert [line.startswith("the master answers again, after ") for line in said[1:]] == [True]


def test_a_server_process_that_refuses_its_network_is_not_lost_and_its_sentence_stays_in_the_state(
    parent: PserverSupervisor, master: Master
) -> None:
    sentence = "the network cannot be trained: model.network.source has no function logit"
    (parent._folder() / "server.log").write_text(f"an Error of before\n{sentence}\n")
    parent._child = Refusing()  # type: ignore[assignment]
    master.orders.start = True

    for _ in range(3):
        parent._turn()

    assert {(told.lost, told.serving, told.error) for told in master.told[-3:]} == {(False, False, sentence)}
    assert (parent._failed_starts, parent._reported_dead_pid) == (0, Refusing.pid), "it is not started again"


class Refusing:
    """A server process that has ended with REFUSED."""

    pid = 8
    returncode = REFUSED

    def poll(self) -> int:
        return self.returncode

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        return self.returncode


@pytest.mark.parametrize("days", [0, 2])
def test_a_server_serves_once_a_trainer_would_get_through_its_forwarder(
    parent: PserverSupervisor, master: Master, tmp_path: Path, days: int
) -> None:
    (tmp_path / "server").mkdir()
    server, token, port = PaddleSocket(tmp_path / "server"), tmp_path / "internal", free_port()
    token.write_text("test secret\n")
    tls = Authority(tmp_path / "home").folder(tmp_path / "tls", days)
    parent._settings = parent._settings.model_copy(
        update={
            "auth": Auth(internal_file=str(token)),
            "tls_dir": str(tls),
            "forwarded": True,
            "pserver": parent._settings.pserver.model_copy(update={"port": port}),
        }
    )
    parent._child = subprocess.Popen(["sleep", "600"])
    parent._socket = lambda: server.path  # type: ignore[method-assign]
    parent._forwarder = expose(
        server.path, listen=f"127.0.0.1:{port}", life=parent._life, token=str(token), tls=str(tls)
    )

    def told() -> control.PserverState:
        parent._turn()
        return master.told[-1]

    if days:
        until(lambda: told().serving)
        assert told().error == ""
    else:
        until(lambda: "certificate has expired" in told().error)
        assert "trainers do not get through its forwarder" in told().error
        assert (told().serving, told().lost) == (False, False)
    parent._end_child()
    server.end()


@pytest.mark.parametrize("served", [False, True])
def test_a_forwarder_that_ends_costs_a_recovery_only_where_a_trainer_may_have_been_connected(
    parent: PserverSupervisor, master: Master, served: bool
) -> None:
    child = subprocess.Popen(["sleep", "600"])
    parent._child, parent._served = child, served
    parent._forwarder = subprocess.Popen(["false"])
    parent._forwarder.wait()

    parent._turn()

    assert child.poll() is not None
    told = master.told[-1]
    assert (told.lost, told.serving) == (served, False)
    assert told.error == "its forwarder ended with 1, as the log of pserver 0 says, and its server process with it"
    assert (parent._child is None) == (not served)
    assert parent._failed_starts == 1
