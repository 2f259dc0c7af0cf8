"""The connections of a door, driven one call at a time."""

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.sockets import (
    BROKEN,
    CLOSED,
    CLOSING,
    ENDED,
    HELLO,
    INPUT,
    LARGE,
    LARGE_INPUT,
    LARGE_OUTPUT,
    NOTHING,
    OUT_END,
    SKIP,
    STATE,
    Sockets,
)

INPUT_BYTES, OUTPUT_BYTES = 256 << 10, 8 << 20
DESCRIPTORS = 128


@dataclass
class Door:
    """A door without any rules, and the peer of its one connection."""

    sockets: Sockets
    peer: socket.socket
    fd: int

    @property
    def row(self) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self.sockets.connections[self.fd]
        return row

    def input(self, start: int = 0, end: int = INPUT_BYTES) -> NDArray[np.uint8]:
        at = self.fd * self.sockets.input_bytes
        return self.sockets.inputs[at + start : at + end]

    def say(self, data: bytes, most: int = INPUT_BYTES) -> int:
        """Have the peer say that, and read it once."""
        self.peer.sendall(data)
        self.wait()
        return int(sockets.receive(self.sockets, self.fd, most))

    def wait(self) -> int:
        return int(sockets.wait(self.sockets, 10_000))

    def send(self, data: bytes) -> int:
        bytes_ = np.frombuffer(data, np.uint8)
        return int(sockets.send(self.sockets, self.fd, np.uint64(bytes_.ctypes.data), bytes_.size))


@pytest.fixture
def door() -> Iterator[Door]:
    with select.epoll() as epoll, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = sockets.new_sockets(DESCRIPTORS, sockets.WIDTH + 1, INPUT_BYTES, OUTPUT_BYTES, epoll.fileno())
        made = made._replace(listener=listener.fileno())
        with socket.create_connection(listener.getsockname(), timeout=10) as peer:
            fd = int(sockets.accept(made))
            assert fd >= 0
            yield Door(made, peer, fd)
            if made.connections[fd, STATE] != CLOSED:
                sockets.close(made, fd)


def test_an_accepted_connection_waits_for_a_hello_and_is_watched(door: Door) -> None:
    assert door.row.tolist() == [HELLO] + [0] * sockets.WIDTH
    assert sockets.open_descriptors(door.sockets) == [door.fd]
    assert sockets.wait(door.sockets, 0) == 0
    assert sockets.accept(door.sockets) == NOTHING

    door.peer.sendall(b"hello")

    assert door.wait() == 1


def test_a_descriptor_without_a_row_is_the_callers_to_turn_away() -> None:
    with select.epoll() as epoll, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = sockets.new_sockets(1, sockets.WIDTH, 1, 1, epoll.fileno())._replace(listener=listener.fileno())
        with socket.create_connection(listener.getsockname(), timeout=10) as peer:
            fd = int(sockets.accept(made))
            assert fd >= len(made.connections)
            assert sockets.accept(made) == NOTHING

            sockets.reject(fd)

            assert peer.recv(1) == b""


def test_received_bytes_are_appended_to_the_input(door: Door) -> None:
    assert door.say(b"abc") == 3
    assert door.say(b"defgh", most=6) == 3

    assert door.row[INPUT] == 6
    assert door.input(end=6).tobytes() == b"abcdef"


def test_a_receive_without_data_is_another_result_than_one_from_a_peer_that_ended(door: Door) -> None:
    assert sockets.receive(door.sockets, door.fd, 10) == NOTHING

    door.peer.shutdown(socket.SHUT_WR)
    door.wait()

    assert sockets.receive(door.sockets, door.fd, 10) == ENDED


def test_a_reset_is_a_broken_connection(door: Door) -> None:
    door.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    door.peer.close()
    door.wait()

    assert sockets.receive(door.sockets, door.fd, 10) == BROKEN
    assert door.send(b"anybody") == BROKEN


def test_bytes_to_be_passed_over_are_counted_down(door: Door) -> None:
    door.row[SKIP] = 10

    assert sockets.skipped(door.row, 4) == 4
    assert door.row[SKIP] == 6
    assert sockets.skipped(door.row, 100) == 6
    assert door.row[SKIP] == 0


@pytest.mark.parametrize(("size", "rest"), [(0, b"abcdef"), (2, b"cdef"), (6, b"")])
def test_taken_bytes_make_room_for_the_rest_of_the_input(door: Door, size: int, rest: bytes) -> None:
    door.say(b"abcdef")

    sockets.consume(door.sockets, door.fd, size)

    assert door.row[INPUT] == len(rest)
    assert door.input(end=len(rest)).tobytes() == rest


def test_of_a_connection_that_ends_everything_is_taken(door: Door) -> None:
    door.say(b"abcdef")
    door.row[CLOSING] = 1

    sockets.consume(door.sockets, door.fd, 2)

    assert door.row[INPUT] == 0


def test_bytes_that_the_socket_does_not_take_wait_and_arrive_whole_and_in_order(door: Door) -> None:
    door.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    said = np.random.default_rng(1).bytes(7 << 20)
    pieces = [said[at : at + (1 << 20)] for at in range(0, len(said), 1 << 20)]

    for piece in pieces[:6]:
        door.send(piece)
    assert door.row[OUT_END] > 0
    assert door.row[LARGE_OUTPUT] == 1
    heard = bytearray(door.peer.recv(1 << 20))
    assert sockets.send_waiting(door.sockets, door.fd) != BROKEN
    for piece in pieces[6:]:
        door.send(piece)
    while len(heard) < len(said):
        heard += door.peer.recv(1 << 20)
        if door.row[OUT_END] > 0:
            assert sockets.send_waiting(door.sockets, door.fd) != BROKEN

    assert heard == said
    assert door.row[OUT_END] == 0


def test_closing_gives_back_the_pages_of_large_frames_and_clears_the_row(door: Door) -> None:
    door.input()[:] = 7
    door.row[LARGE_INPUT] = 1

    sockets.close(door.sockets, door.fd)

    assert not door.row.any()
    assert not door.input().any()
    assert sockets.open_descriptors(door.sockets) == []
    assert door.peer.recv(1) == b""


def test_pages_of_a_large_frame_go_back_and_the_small_ones_stay(door: Door) -> None:
    while door.row[INPUT] <= LARGE:
        door.say(bytes([7]) * LARGE)
    assert door.row[LARGE_INPUT] == 1

    sockets.release_memory(door.sockets, door.fd)

    assert door.row[LARGE_INPUT] == 0
    assert (door.input(end=LARGE) == 7).all()
    assert not door.input(start=LARGE).any()


def test_room_is_reserved_in_whole_pages_of_zeros() -> None:
    assert [sockets.pages(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    # More than any machine has: it costs address space alone.
    room = sockets.reserve(1 << 40)
    assert (room.size, room[-1]) == (1 << 40, 0)


LONGEST = 2_000_000_000


def test_busy_poll_goes_on_after_a_prompt_request_and_ends_after_a_late_one(door: Door) -> None:
    door.peer.sendall(b"at once")
    ready, polling = sockets.busy_poll(door.sockets, 10_000, 0, LONGEST)
    assert (ready, polling) == (1, LONGEST)

    ready, polling = sockets.busy_poll(door.sockets, 10_000, polling, LONGEST)
    assert (ready, polling) == (1, LONGEST), "what is found while polling keeps it polling"

    sockets.receive(door.sockets, door.fd, INPUT_BYTES)
    with said_later(door.peer, 0.05):
        ready, polling = sockets.busy_poll(door.sockets, 10_000, 1000, 1000)
    assert (ready, polling) == (1, 0)


def test_busy_poll_finds_bytes_that_come_meanwhile_without_sleeping(door: Door) -> None:
    polling = 60_000_000_000

    with said_later(door.peer, 0.05):
        # Whoever slept would be told not to poll next time: nothing comes within no time.
        assert sockets.busy_poll(door.sockets, 10_000, polling, 0) == (1, polling)


def test_busy_poll_is_off_where_its_longest_time_is_0(door: Door) -> None:
    door.peer.sendall(b"at once")

    assert sockets.busy_poll(door.sockets, 10_000, 0, 0) == (1, 0)


@contextmanager
def said_later(peer: socket.socket, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, peer.sendall, (b"later",))
    timer.start()
    yield
    timer.join()
