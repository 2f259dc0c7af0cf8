import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from credentials import access
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import MasterConfig, TrainerConfig
from elastic_ctr.store.backends import FileStore
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.generations.store_queries import StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.server import ControlServicer, start_server
from elastic_ctr.training.trainer.watchdog import REJOIN, ServerWatchdog
from paddle_socket import PaddleSocket
from ports import free_port

TRAINER = """
import sys, threading
from pathlib import Path
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.trainer.watchdog import ServerWatchdog
master, server, trainer_id, attempt = sys.argv[1:]
watchdog = ServerWatchdog(MasterClient(master, None), int(trainer_id), 1, ["unix:" + server], str(Path(server).parent), 10.0)
if attempt:
    watchdog.hold(attempt)
watchdog.start()
print("watching", flush=True)
threading.Event().wait()
"""


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Master:
    """The real one's door, ledger and coordinator, with one trainer that has joined."""

    def __init__(self, folder: Path, server: PaddleSocket) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.looked: list[tuple[int, str, int, str]] = []
        self.ledger = Ledger(folder / "ledger.db")
        data = Data(source=DataSource(url="file:///x"), start="20200401/00", end="20200401/00", slots=("a",))
        settings = MasterFile(
            data=data,
            model=Model(embedding_dim=2),
            store=StoreConfig(url="file:///s"),
            master=MasterConfig(),
            trainer=TrainerConfig(),
            pservers=1,
        )
        self.coordinator = Coordinator(self.ledger, settings, StoreQueries(FileStore(folder / "store")))
        self.pserver = control.PserverState(
            index=0,
            incarnation="x",
            training="local",
            host="127.0.0.1",
            admin_port=1,
            generation=1,
            serving=True,
            server=f"unix:{server.path}",
        )
        self.coordinator.sync_pserver(self.pserver)
        self.trainer = self.coordinator.join("trainer-0", 0).trainer_id
        self.coordinator.initialised_by(control.Membership(trainer_id=self.trainer, generation=1))
        self._server = start_server(
            ControlServicer(self.coordinator, lambda *suspect: self.looked.append(suspect), access(None)),
            "127.0.0.1",
            port,
        )

    def lease(self) -> control.Task:
        one = self.coordinator.found.wants_hours()
        assert one is not None
        self.coordinator.found.hours_found(one, {"a": 1}, [[("a", 0, 0)]])
        return self.coordinator.lease(control.LeaseRequest(trainer_id=self.trainer, generation=1)).task

    def end(self) -> None:
        self._server.stop(grace=0).wait()
        self.ledger.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaddleSocket]:
    made = PaddleSocket(tmp_path)
    yield made
    made.end()


@pytest.fixture
def master(tmp_path: Path, server: PaddleSocket) -> Iterator[Master]:
    made = Master(tmp_path, server)
    yield made
    made.end()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def trainer(master: Master, server: PaddleSocket) -> Iterator[Start]:
    started = []

    def start(attempt: str = "") -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, master.address, str(server.path), str(master.trainer), attempt],
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"watching\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_pserver_that_is_gone_is_reported_and_the_trainer_ends_to_rejoin(
    master: Master, server: PaddleSocket, trainer: Start
) -> None:
    process = trainer()
    until(lambda: server.called > 0)

    server.end()

    assert process.wait(60) == REJOIN
    [(index, host, port, reason)] = master.looked
    assert (index, host, port) == (0, "127.0.0.1", 1)
    assert "No such file" in reason


def test_a_pserver_that_answers_with_an_error_is_gone_as_well(
    master: Master, server: PaddleSocket, trainer: Start
) -> None:
    process = trainer()
    until(lambda: server.called > 0)

    server.code = 2001

    assert process.wait(60) == REJOIN
    assert master.looked[0][3] == "the server answers with error 2001"


def test_two_misses_are_not_a_loss(master: Master, server: PaddleSocket, trainer: Start) -> None:
    server.failures = 2
    process = trainer()

    until(lambda: server.called > 6 or process.poll() is not None)

    assert process.poll() is None
    assert master.looked == []


def test_a_trainer_of_an_old_generation_ends_to_rejoin(master: Master, trainer: Start) -> None:
    process = trainer()
    master.pserver.incarnation = "another"

    master.coordinator.sync_pserver(master.pserver)

    assert process.wait(60) == REJOIN
    assert master.looked == []


def test_leases_that_are_held_are_renewed_and_a_lost_one_ends_the_trainer(master: Master, trainer: Start) -> None:
    task = master.lease()
    [row] = master.ledger.tasks.leased()
    process = trainer(task.attempt)

    until(lambda: master.ledger.tasks.leased()[0].lease_ends > row.lease_ends)
    assert process.poll() is None
    with master.coordinator.lock.reading():
        master.ledger.tasks.give_back(master.ledger.tasks.leased()[0], error="x", failed=False, repeated=0, park_at=9)

    assert process.wait(60) == REJOIN


def test_a_trainer_outlives_a_master_that_is_away(master: Master, server: PaddleSocket, trainer: Start) -> None:
    process = trainer()
    master._server.stop(grace=0).wait()
    asked = server.called

    until(lambda: server.called > asked + 3)

    assert process.poll() is None


def test_the_master_has_heard_that_a_task_is_running_before_the_call_returns(
    master: Master, server: PaddleSocket
) -> None:
    task = master.lease()
    client = MasterClient(master.address, None)
    watchdog = ServerWatchdog(client, master.trainer, 1, [f"unix:{server.path}"], str(server.path.parent), 10.0)
    watchdog.hold(task.attempt)

    watchdog.running(task.attempt)

    assert master.ledger.tasks.leased()[0].running
    client.close()


def test_a_trainer_that_leaves_is_not_ended_by_what_its_watchdog_finds_out(
    master: Master, server: PaddleSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MasterClient(master.address, None)
    ended: list[str] = []
    watchdog = ServerWatchdog(
        client, master.trainer, 1, [f"unix:{server.path}"], str(server.path.parent), 10.0, end=ended.append
    )
    watchdog.hold(master.lease().attempt)
    master.coordinator.declare_lost(0, "gone")
    answered = client.call_once

    def while_it_asks(method: str, request: object, timeout: float = 10) -> object:
        watchdog.release_all()
        return answered(method, request, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(client, "call_once", while_it_asks)
        watchdog.round()
    server.end()
    for _ in range(3):
        watchdog.round()

    assert ended == []
    assert master.looked == []
    client.close()
