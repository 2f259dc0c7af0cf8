"""The master holds the call of a trainer without work until there is some, over real gRPC."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from credentials import access
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.master.server import ControlServicer, start_server
from ports import free_port
from training.master.world import World, world

WAIT, WORK = control.LeaseReply.WAIT, control.LeaseReply.WORK
# A held call that ends before is one that was ended. Nothing waits for so long.
HOLD_SECONDS = 20.0


class Master:
    """A training that is initialised and has no hour yet, behind its real server."""

    def __init__(self, one: World, ends: threading.Event) -> None:
        self.world = one
        self.trainer = one.trainers[0]
        while not one.coordinator.initialised:
            for each in one.pservers:
                each.sync()
            if self.trainer.initialises is None:
                self.trainer.join()
            else:
                self.trainer.initialise()
        port = free_port()
        self.server = start_server(
            ControlServicer(one.coordinator, lambda *_: None, access(None), ends), "127.0.0.1", port
        )
        self.client = MasterClient(f"127.0.0.1:{port}", None)

    def lease(self, hold: float) -> tuple[control.LeaseReply, float]:
        """The answer, and the seconds until it came."""
        began = time.monotonic()
        request = control.LeaseRequest(
            trainer_id=self.trainer.id, generation=self.trainer.generation, hold_seconds=hold
        )
        reply = self.client.call_once("LeaseTask", request)
        return reply, time.monotonic() - began


@pytest.fixture
def ends() -> threading.Event:
    return threading.Event()


@pytest.fixture
def master(tmp_path: Path, ends: threading.Event) -> Iterator[Master]:
    found = Master(world(tmp_path), ends)
    yield found
    found.client.close()
    found.server.stop(grace=0).wait()


def in_background(pool: ThreadPoolExecutor, master: Master, hold: float) -> "Future[tuple[control.LeaseReply, float]]":
    """A call that is being held."""
    call = pool.submit(master.lease, hold)
    time.sleep(0.3)
    assert not call.done()
    return call


def test_a_trainer_that_waits_is_given_work_as_soon_as_there_is_some(master: Master) -> None:
    with ThreadPoolExecutor() as pool:
        call = in_background(pool, master, HOLD_SECONDS)
        master.world.find_hours()
        reply, seconds = call.result()

    assert reply.verdict == WORK
    assert seconds < HOLD_SECONDS


def test_without_work_the_call_ends_after_the_time_that_the_trainer_gave(master: Master) -> None:
    reply, seconds = master.lease(0.7)

    assert reply.verdict == WAIT
    assert seconds >= 0.7


def test_a_trainer_of_before_that_gives_no_time_is_answered_at_once(master: Master) -> None:
    reply, _ = master.lease(0)

    assert reply.verdict == WAIT
    assert reply.wait_seconds > 0


def test_a_trainer_that_ends_while_it_waits_is_given_nothing(master: Master) -> None:
    with ThreadPoolExecutor() as pool:
        call = in_background(pool, master, HOLD_SECONDS)
        master.client.close()
        with pytest.raises(grpc.RpcError):
            call.result()
        # The server hears of it by the connection.
        time.sleep(1.0)
        master.world.find_hours()
        time.sleep(1.0)

    assert not master.world.ledger.tasks.leased()


def test_a_master_that_ends_holds_no_call(master: Master, ends: threading.Event) -> None:
    with ThreadPoolExecutor() as pool:
        call = in_background(pool, master, HOLD_SECONDS)
        ends.set()
        reply, seconds = call.result()

    assert reply.verdict == WAIT
    assert seconds < HOLD_SECONDS


def test_more_trainers_may_wait_than_calls_are_held(master: Master) -> None:
    with ThreadPoolExecutor(48) as pool:
        calls = [pool.submit(master.lease, 5.0) for _ in range(48)]
        time.sleep(0.5)
        # Another call has its answer meanwhile.
        state = master.world.pservers[0].state()
        assert master.client.call_once("SyncPserver", state, timeout=3).start
        answers = [call.result()[0].verdict for call in calls]

    assert answers == [WAIT] * 48
