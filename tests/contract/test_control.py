"""Master and callers over real gRPC on this machine."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from credentials import access, tokens
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
from ports import free_port

TOKEN = "a-token_of~letters"
CALLS = [
    ("SyncPserver", control.PserverState(training="local")),
    ("JoinTrainer", control.JoinRequest(training="local")),
    ("ReportInitialised", control.Membership()),
    ("LeaseTask", control.LeaseRequest()),
    ("RenewLeases", control.RenewRequest()),
    ("ReportTask", control.TaskResult()),
    ("ReportUnreachable", control.UnreachableReport()),
    ("LeaveTrainer", control.Membership()),
]


@pytest.fixture
def ends() -> threading.Event:
    """Set once the master was told to end."""
    return threading.Event()


@pytest.fixture
def servicer(tmp_path: Path, ends: threading.Event) -> Iterator[ControlServicer]:
    ledger = Ledger(tmp_path / "ledger.db")
    settings = MasterFile(
        data=Data(source=DataSource(url="file:///x"), start="20200401/00", slots=("a",)),
        model=Model(embedding_dim=2),
        store=StoreConfig(url="file:///s"),
        master=MasterConfig(),
        trainer=TrainerConfig(),
        pservers=1,
    )
    coordinator = Coordinator(ledger, settings, StoreQueries(FileStore(tmp_path / "store")))
    yield ControlServicer(coordinator, lambda *_: None, access(TOKEN), ends)
    ledger.close()


@pytest.fixture
def address(servicer: ControlServicer) -> Iterator[str]:
    port = free_port()
    server = start_server(servicer, "127.0.0.1", port)
    yield f"127.0.0.1:{port}"
    server.stop(grace=0).wait()


def test_a_call_with_the_token_is_answered(address: str) -> None:
    client = MasterClient(address, tokens(TOKEN))

    reply = client.call("JoinTrainer", control.JoinRequest(name="t", training="local"))

    assert reply.verdict == control.JoinReply.WAIT
    assert reply.reason == "waits for pserver 0 of 1"
    client.close()


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
@pytest.mark.parametrize(("method", "request_"), CALLS)
def test_no_call_is_answered_without_the_token(address: str, token: str, method: str, request_: object) -> None:
    client = MasterClient(address, tokens(token))

    with pytest.raises(grpc.RpcError) as refused:
        client.call(method, request_)

    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert (
        refused.value.details() == "the internal token is missing or wrong; give both sides the same auth.internalFile"
    )
    client.close()


@pytest.mark.parametrize(("method", "request_"), CALLS)
def test_a_master_that_is_ending_decides_nothing_any_more(
    address: str, ends: threading.Event, method: str, request_: object
) -> None:
    client = MasterClient(address, tokens(TOKEN))
    ends.set()

    def another_begins() -> bool:
        ends.clear()
        return False

    with pytest.raises(grpc.RpcError) as put_off:
        client.call_once(method, request_)

    assert put_off.value.code() == grpc.StatusCode.UNAVAILABLE
    assert client.call(method, request_, give_up=another_begins) is not None
    client.close()


def test_the_tests_of_tokens_cover_every_call_of_the_protocol() -> None:
    methods = {method.name for method in control.DESCRIPTOR.services_by_name["Control"].methods}

    assert {method for method, _ in CALLS} == methods


def test_a_caller_waits_for_a_master_that_starts_late(servicer: ControlServicer) -> None:
    port = free_port()
    client = MasterClient(f"127.0.0.1:{port}", tokens(TOKEN))
    tried = threading.Event()
    replies: list[control.JoinReply] = []

    def give_up() -> bool:
        tried.set()
        return False

    thread = threading.Thread(
        target=lambda: replies.append(
            client.call("JoinTrainer", control.JoinRequest(name="t", training="local"), give_up=give_up)
        )
    )
    thread.start()
    tried.wait()
    assert replies == []

    server = start_server(servicer, "127.0.0.1", port)
    thread.join()

    assert replies[0].trainer_id == 1
    client.close()
    server.stop(grace=0).wait()


def test_a_caller_goes_on_with_a_master_that_restarts(servicer: ControlServicer) -> None:
    port = free_port()
    client = MasterClient(f"127.0.0.1:{port}", tokens(TOKEN))
    trainers = []
    for _ in range(2):
        server = start_server(servicer, "127.0.0.1", port)
        trainers.append(client.call("JoinTrainer", control.JoinRequest(name="t", training="local")).trainer_id)
        server.stop(grace=0).wait()

    assert trainers == [1, 2]
    client.close()


def test_a_caller_that_gives_up_gets_nothing() -> None:
    client = MasterClient(f"127.0.0.1:{free_port()}", tokens(TOKEN))
    asked = []

    def give_up() -> bool:
        asked.append(1)
        return len(asked) > 2

    assert client.call("JoinTrainer", control.JoinRequest(), give_up=give_up) is None
    client.close()


@pytest.mark.parametrize("caller", ["127.0.0.1", "[::1]"])
def test_a_master_that_listens_on_every_address_is_called_by_ipv4_and_ipv6(
    servicer: ControlServicer, caller: str
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    port = free_port()
    server = start_server(servicer, "::", port)
    client = MasterClient(f"{caller}:{port}", tokens(TOKEN))

    reply = client.call("JoinTrainer", control.JoinRequest(name="t", training="local"))

    assert reply.reason == "waits for pserver 0 of 1"
    client.close()
    server.stop(grace=0).wait()


def test_a_port_that_is_taken_is_a_sentence_that_names_it(servicer: ControlServicer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port} is in use; free it or set master\.config\.port"):
            start_server(servicer, "127.0.0.1", port)


def test_a_failure_inside_the_master_is_an_internal_error_and_the_next_call_is_answered(
    servicer: ControlServicer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MasterClient(address, tokens(TOKEN))

    def broken(*_: object) -> None:
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(servicer._coordinator, "join", broken)
        with pytest.raises(grpc.RpcError) as failed:
            client.call("JoinTrainer", control.JoinRequest(training="local"))

    assert failed.value.code() == grpc.StatusCode.INTERNAL
    assert failed.value.details() == "the master failed: the disk is full"
    assert client.call("JoinTrainer", control.JoinRequest(training="local")).trainer_id == 1
    client.close()


def test_the_master_takes_a_message_of_the_size_of_65536_samples(servicer: ControlServicer, address: str) -> None:
    client = MasterClient(address, tokens(TOKEN))
    state = control.PserverState(
        index=0, incarnation="x", training="local", results=[control.JobResult(id="x", values=bytes(64 << 20))]
    )

    assert client.call("SyncPserver", state).generation == 1
    client.close()
