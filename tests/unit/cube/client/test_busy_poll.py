"""The question and its answer in machine code: when it polls, and how far it says that it got."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from cube_oracles import pack_refusal, pack_reply
from elastic_ctr.cube import wire
from elastic_ctr.cube.client import busy_poll as module
from elastic_ctr.cube.client.busy_poll import BUSY_POLL_NS, Exchange
from elastic_ctr.cube.wire import MessageKind, Status

DIM, VERSION, REQUEST = 2, 9, 1
KEYS = np.arange(3, dtype=np.uint64)
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)
ANSWER = pack_reply(REQUEST, VERSION, VALUES, np.array([False, True, False]))


class Asking:
    """One connection, whose other end the test is."""

    def __init__(self) -> None:
        self.peer, self.own = socket.socketpair()
        self.own.setblocking(False)
        self.exchange = Exchange(DIM, REQUEST)

    def ask(self) -> object:
        frame = np.empty(len(ANSWER), np.uint8)
        answer = self.exchange.ask(self.own.fileno(), VERSION, KEYS, frame)
        return None if answer is None else (answer[0].tolist(), answer[1].tolist())


@pytest.fixture
def asking() -> Iterator[Asking]:
    one = Asking()
    with one.peer, one.own:
        yield one


def test_an_exchange_that_was_answered_at_once_polls_for_the_next_answer(asking: Asking) -> None:
    asking.exchange.answered(BUSY_POLL_NS / 1e9)
    asking.peer.sendall(ANSWER)

    assert asking.ask() == (VALUES.tolist(), [False, True, False])
    assert asking.peer.recv(1000) == wire.pack_request(MessageKind.LOOKUP, REQUEST, VERSION, KEYS)
    asking.peer.sendall(ANSWER)
    assert asking.ask() is not None


def test_an_exchange_that_waited_sends_and_leaves_the_answer_to_its_caller(asking: Asking) -> None:
    asking.exchange.answered(0)
    asking.exchange.answered(2 * BUSY_POLL_NS / 1e9)
    asking.peer.sendall(ANSWER)

    assert asking.ask() is None
    assert len(asking.exchange.unsent) == asking.exchange.received == 0
    assert asking.peer.recv(1000) == wire.pack_request(MessageKind.LOOKUP, REQUEST, VERSION, KEYS)


def test_an_answer_that_comes_while_it_is_polled_for_is_read_piece_by_piece(asking: Asking) -> None:
    asking.exchange._state[module._POLLING] = 60_000_000_000

    def answer() -> None:
        asking.peer.recv(1000)
        for piece in (ANSWER[:10], ANSWER[10:40], ANSWER[40:]):
            asking.peer.sendall(piece)
            time.sleep(0.01)

    answering = threading.Thread(target=answer)
    answering.start()

    assert asking.ask() == (VALUES.tolist(), [False, True, False])
    answering.join()


def test_an_answer_that_does_not_come_is_not_polled_for_long(asking: Asking) -> None:
    asking.exchange.answered(0)
    asking.peer.sendall(ANSWER[:40])
    began = time.monotonic()

    assert asking.ask() is None
    assert asking.exchange.received == 40
    assert time.monotonic() - began < 10


def test_bytes_that_the_socket_does_not_take_are_unsent(asking: Asking) -> None:
    asking.exchange.answered(0)
    with suppress(BlockingIOError):
        for _ in range(1000):
            asking.own.send(bytes(1 << 16))

    assert asking.ask() is None
    assert bytes(asking.exchange.unsent) == wire.pack_request(MessageKind.LOOKUP, REQUEST, VERSION, KEYS)


@pytest.mark.parametrize(
    "answer",
    [
        pack_refusal(Status.VERSION_NOT_HELD, REQUEST, VERSION),
        pack_reply(REQUEST, VERSION + 1, VALUES, np.zeros(3, np.bool_)),
        pack_reply(REQUEST + 1, VERSION, VALUES, np.zeros(3, np.bool_)),
        pack_reply(REQUEST, VERSION, VALUES[:2], np.zeros(2, np.bool_)),
        ANSWER[:-1] + b"\xff",
    ],
    ids=["a refusal", "another version", "another question's", "fewer keys", "more miss bits than keys"],
)
def test_a_frame_that_is_no_answer_is_left_to_the_caller_with_its_bytes(asking: Asking, answer: bytes) -> None:
    asking.exchange.answered(0)
    asking.peer.sendall(answer)

    assert asking.ask() is None
    assert asking.exchange.received == len(answer)


def test_a_peer_that_hung_up_is_left_to_the_caller(asking: Asking) -> None:
    asking.exchange.answered(0)
    asking.peer.shutdown(socket.SHUT_WR)

    assert asking.ask() is None
    assert asking.exchange.received == 0
