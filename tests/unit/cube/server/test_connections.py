"""`cube-server` as a process, with crowds of connections that say nothing."""

import contextlib
from collections.abc import Iterator

import pytest

from cube.parts import values_for, write_parts
from cube.peers import HungUp, Peer
from cube.running import ServerProcess, until
from cube.server.asking import KEYS
from elastic_ctr.cube.wire import Hello, Status
from elastic_ctr.runtime.lifecycle import raise_fd_limit

# More than a worker has places for: 1,024 connections and 64 other descriptors.
CROWD = 1200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    raise_fd_limit(2 * CROWD)
    folder = tmp_path_factory.mktemp("dictionaries")
    running = ServerProcess()
    running.load(1, write_parts(folder, KEYS, partitions=3))
    yield running
    assert running.stop() == 0


def _connected(port: int) -> Peer:
    """Places are given away only of those that have been idle for a moment."""
    found: list[Peer] = []

    def answered() -> bool:
        with contextlib.suppress(HungUp, ConnectionError):
            found.append(Peer(port))
        return bool(found)

    until(answered)
    return found[0]


def _check(peer: Peer) -> None:
    reply = peer.ask(1, KEYS, 4)
    assert reply.status == Status.OK
    assert reply.values.tobytes() == values_for(KEYS, 4, 1).tobytes()


@pytest.mark.parametrize("greet", [False, True], ids=["without a hello", "after their hello"])
def test_readers_find_a_place_among_more_silent_connections_than_there_are_places(
    server: ServerProcess, greet: bool
) -> None:
    with contextlib.ExitStack() as open_:
        for _ in range(CROWD):
            silent = Peer(server.port, greet=False)
            open_.callback(silent.socket.close)
            if greet:
                silent.send(Hello().pack())

        for _ in range(5):
            _check(open_.enter_context(_connected(server.port)))


def test_a_connection_with_lookups_is_kept_among_a_crowd_of_silent_ones(server: ServerProcess) -> None:
    with contextlib.ExitStack() as open_:
        reader = open_.enter_context(_connected(server.port))
        for number in range(2 * CROWD):
            silent = Peer(server.port, greet=False)
            open_.callback(silent.socket.close)
            if number % 20 == 0:
                _check(reader)
        _check(reader)


def test_a_connection_without_a_whole_hello_is_hung_up_on(server: ServerProcess) -> None:
    nothing, a_word, all_but_a_byte = b"", b"ECTR", Hello().pack()[:15]
    with contextlib.ExitStack() as open_:
        greeted = open_.enter_context(_connected(server.port))
        silent = {
            said: open_.enter_context(Peer(server.port, greet=False)) for said in (nothing, a_word, all_but_a_byte)
        }
        for said, peer in silent.items():
            peer.send(said)

        assert {said: peer.rest() for said, peer in silent.items()} == dict.fromkeys(silent, b"")

        _check(greeted)
    until(lambda: server.status()["connections"] == 0)
