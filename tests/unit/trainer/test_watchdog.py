import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from credentials import access
from elastic_ctr.config.data import Data, Source
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.roles import MasterConfig, StoreConfig, TrainerConfig
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.control.channel import MasterClient
from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.server import ControlServicer, start_server
from elastic_ctr.master.store_queries import StoreQueries
from elastic_ctr.store import FileStore
from elastic_ctr.trainer.watchdog import REJOIN, Watchdog, incarnation
from ports import free_port

TRAINER = """
import sys, threading
from elastic_ctr.control.channel import MasterClient
from elastic_ctr.trainer.watchdog import Watchdog
master, endpoint, trainer_id, attempt = sys.argv[1:]
watchdog = Watchdog(MasterClient(master, None), int(trainer_id), 1, [endpoint], 10.0)
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


class Server:
    """The page that brpc shows of a parameter server, over real HTTP."""

    def __init__(self) -> None:
        server = self

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                failing = server.failures > 0
                server.failures -= failing
                self.send_response(500 if failing else server.status)
                self.end_headers()
                if self.path == "/vars/pid":
                    self.wfile.write(f"{server.pid}\n".encode())

            def log_message(self, *args: object) -> None:
                pass

        self.pid = 4711
        self.status = 200
        self.failures = 0
        self.asked = 0
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def end(self) -> None:
        if self._thread.is_alive():
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()


class Master:
    """The real one's door, ledger and coordinator, with one trainer that has joined."""

    def __init__(self, folder: Path, server: Server) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.looked: list[tuple[int, str, int, str]] = []
        self.ledger = Ledger(folder / "ledger.db")
        data = Data(source=Source(url="file:///x"), start="20200401/00", end="20200401/00", slots=("a",))
        settings = MasterFile(
            data=data,
            model=Model(embedding_dim=2),
            store=StoreConfig(url="file:///s"),
            master=MasterConfig(),
            trainer=TrainerConfig(),
            pservers=1,
        )
        self.coordinator = Coordinator(self.ledger, settings, StoreQueries(FileStore(folder / "store")))
        # The endpoint of generation 1 is one above the first port.
        self.pserver = control.PserverState(
            index=0,
            incarnation="x",
            training="local",
            host="127.0.0.1",
            port=server.port - 1,
            admin_port=1,
            generation=1,
            serving=True,
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
        self.coordinator.found.hours_found(one, {"a": 1}, [("a", 0, 0)])
        return self.coordinator.lease(control.LeaseRequest(trainer_id=self.trainer, generation=1)).task

    def end(self) -> None:
        self._server.stop(grace=0).wait()
        self.ledger.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.end()


@pytest.fixture
def master(tmp_path: Path, server: Server) -> Iterator[Master]:
    made = Master(tmp_path, server)
    yield made
    made.end()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def trainer(master: Master, server: Server) -> Iterator[Start]:
    started = []

    def start(attempt: str = "") -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, master.address, server.endpoint, str(master.trainer), attempt],
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
    master: Master, server: Server, trainer: Start
) -> None:
    process = trainer()
    until(lambda: server.asked > 0)

    server.end()

    assert process.wait(60) == REJOIN
    [(index, host, port, reason)] = master.looked
    assert (index, host, port) == (0, "127.0.0.1", 1)
    assert "refused" in reason


def test_a_pserver_that_answers_with_an_error_is_gone_as_well(master: Master, server: Server, trainer: Start) -> None:
    process = trainer()
    until(lambda: server.asked > 0)

    server.status = 500

    assert process.wait(60) == REJOIN
    assert master.looked[0][3] == "it answers 500"


def test_two_misses_are_not_a_loss(master: Master, server: Server, trainer: Start) -> None:
    server.failures = 2
    process = trainer()

    until(lambda: server.asked > 6 or process.poll() is not None)

    assert process.poll() is None
    assert master.looked == []


def test_another_process_behind_the_endpoint_is_a_loss_at_once(master: Master, server: Server, trainer: Start) -> None:
    process = trainer()
    until(lambda: server.asked > 0)

    server.pid += 1

    assert process.wait(60) == REJOIN
    assert master.looked[0][3] == "another process answers there"


def test_a_trainer_of_an_old_generation_ends_to_rejoin(master: Master, trainer: Start) -> None:
    process = trainer()
    master.pserver.incarnation = "another"

    master.coordinator.sync_pserver(master.pserver)

    assert process.wait(60) == REJOIN
    assert master.looked == []


def test_leases_that_are_held_are_renewed_and_a_lost_one_ends_the_trainer(master: Master, trainer: Start) -> None:
    task = master.lease()
    [row] = master.ledger.leased()
    process = trainer(task.attempt)

    until(lambda: master.ledger.leased()[0].lease_ends > row.lease_ends)
    assert process.poll() is None
    with master.coordinator.locked():
        master.ledger.give_back(master.ledger.leased()[0], error="x", failed=False, repeated=0, park_at=9)

    assert process.wait(60) == REJOIN


def test_a_trainer_outlives_a_master_that_is_away(master: Master, server: Server, trainer: Start) -> None:
    process = trainer()
    master._server.stop(grace=0).wait()
    asked = server.asked

    until(lambda: server.asked > asked + 3)

    assert process.poll() is None


def test_the_master_has_heard_that_a_task_is_running_before_the_call_returns(master: Master, server: Server) -> None:
    task = master.lease()
    client = MasterClient(master.address, None)
    watchdog = Watchdog(client, master.trainer, 1, [server.endpoint], 10.0)
    watchdog.hold(task.attempt)

    watchdog.running(task.attempt)

    assert master.ledger.leased()[0].running
    client.close()


def test_a_trainer_that_leaves_is_not_ended_by_what_its_watchdog_finds_out(
    master: Master, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MasterClient(master.address, None)
    ended: list[str] = []
    watchdog = Watchdog(client, master.trainer, 1, [server.endpoint], 10.0, end=ended.append)
    watchdog.hold(master.lease().attempt)
    master.coordinator.declare_lost(0, "gone")
    answered = client.call_once

    def while_it_asks(method: str, request: object, timeout: float = 10) -> object:
        watchdog.release_all()
        return answered(method, request, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(client, "call_once", while_it_asks)
        watchdog.round()
    server.pid += 1
    watchdog.round()

    assert ended == []
    assert master.looked == []
    client.close()


def test_a_life_is_the_pid_that_the_server_shows(server: Server) -> None:
    assert incarnation(server.endpoint) == "4711"
    server.status = 404
    with pytest.raises(OSError, match="it answers 404"):
        incarnation(server.endpoint)
