"""Both lookup loops, driven over real sockets in this process: they must behave alike."""

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cube.parts import MAX_KEY, as_keys, values_for, write_parts, write_table
from cube.peers import HungUp, Peer
from cube.running import Running, until
from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import HELLO_BYTES, Hello, MessageKind, Status

DIM = 9
PIECE_KEYS = 640
MAX_KEYS = 3 * PIECE_KEYS + 80  # four pieces of an answer
KEYS = np.arange(1, 1001, dtype=np.uint64)


def _loop() -> LookupLoop:
    return LookupLoop(counters.private(), MAX_KEYS, max_connections=200, piece_bytes=4 * DIM * PIECE_KEYS)


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(_loop())
    yield server
    server.stop()


@pytest.fixture
def table(running: Running, tmp_path: Path) -> VersionTable:
    """Version 1, all of its 3 partitions, held."""
    table = write_table(tmp_path / "v1", KEYS, dim=DIM, partitions=3)
    running.hold(table)
    return table


def _check(reply: wire.LookupReply, keys: Keys, version: int) -> None:
    known = (keys > 0) & (keys <= KEYS[-1])
    assert (reply.status, reply.version) == (Status.OK, version)
    assert (reply.missing == (~known & (keys != 0))).all()
    assert reply.values.tobytes() == np.where(known[:, None], values_for(keys, DIM, version), np.float32(0)).tobytes()


def _send_until_stuck(peer: Peer, frame: bytes) -> int:
    """Repeat the frame until nobody takes any more; how many bytes went."""
    sent = 0
    try:
        while True:
            sent += peer.socket.send(frame[sent % len(frame) :])
    except TimeoutError:
        return sent


def test_keys_are_answered_with_values_and_miss_bits(running: Running, table: VersionTable) -> None:
    keys = as_keys([5, 2000, 0, 7, MAX_KEY, 2**63, 1000, 5, 0])

    with Peer(running.port) as peer:
        assert peer.hello == Hello(DIM, 3, MAX_KEYS)
        for n in range(keys.size + 1):
            _check(peer.ask(1, keys[:n], DIM), keys[:n], 1)


def test_requests_of_any_size_are_answered_in_order(running: Running, table: VersionTable) -> None:
    sizes = [1, 0, 7, 64, 65, 1000, MAX_KEYS, 3, 129, PIECE_KEYS, PIECE_KEYS + 1] * 5
    asked = [np.resize(KEYS[number:], size) for number, size in enumerate(sizes)]

    with Peer(running.port) as peer:
        peer.send(b"".join(wire.pack_request(MessageKind.LOOKUP, number, 1, keys) for number, keys in enumerate(asked)))
        for number, keys in enumerate(asked):
            reply = peer.reply(DIM)
            assert reply.id == number
            _check(reply, keys, 1)


@pytest.mark.parametrize(
    "n", [*(PIECE_KEYS + more for more in (-1, 0, 1, 8)), 2 * PIECE_KEYS, 2 * PIECE_KEYS + 1, MAX_KEYS - 3, MAX_KEYS]
)
def test_a_missing_key_of_a_large_lookup_is_flagged_and_counted_wherever_it_is(
    running: Running, table: VersionTable, n: int
) -> None:
    keys = np.resize(KEYS, n)
    keys[[0, PIECE_KEYS - 2, n // 2, -2, -1]] = as_keys([5000, 0, MAX_KEY, 2**63, 5000])
    missing = 0
    with Peer(running.port) as peer:
        for asked in (keys, np.resize(KEYS, n), keys[::-1].copy(), np.full(n, 5000, np.uint64)):
            reply = peer.ask(1, asked, DIM)
            _check(reply, asked, 1)
            missing += int(reply.missing.sum())

    counts = running.loop.counts
    # What is sent is counted thereafter.
    until(lambda: counts[counters.BYTES_OUT] >= HELLO_BYTES + 4 * wire.reply_bytes(n, DIM))
    until(lambda: counts[counters.MISSING] >= missing)
    assert counts[counters.BYTES_OUT] == HELLO_BYTES + 4 * wire.reply_bytes(n, DIM)
    assert (counts[counters.REQUESTS], counts[counters.KEYS], counts[counters.MISSING]) == (4, 4 * n, missing)


def test_requests_around_a_large_one_are_answered_in_their_order(running: Running, tmp_path: Path) -> None:
    running.hold(
        VersionTable.open(1, DIM, 3, write_parts(tmp_path / "1", KEYS, dim=DIM, partitions=3)),
        VersionTable.open(2, DIM, 3, write_parts(tmp_path / "2", KEYS, dim=DIM, version=2, partitions=3, only=[1])),
    )
    large, small = np.resize(KEYS, MAX_KEYS), KEYS[:5]
    asked = [(1, small), (1, large), (1, small), (3, large), (1, large), (2, large), (2, large[:1]), (1, large)]
    with Peer(running.port) as peer:
        peer.send(b"".join(wire.pack_request(MessageKind.LOOKUP, at, v, keys) for at, (v, keys) in enumerate(asked)))
        for at, (version, keys) in enumerate(asked):
            reply = peer.reply(DIM)
            assert reply.id == at
            if version == 1:
                _check(reply, keys, 1)
            elif version == 3:
                assert reply.status == Status.VERSION_NOT_HELD
            elif keys.size > 1:
                assert reply.status == Status.PARTITION_NOT_HELD
            else:
                assert reply.values.tobytes() == values_for(keys, DIM, 2).tobytes()


def test_a_peer_that_leaves_in_the_middle_of_a_large_answer_costs_only_itself(
    running: Running, table: VersionTable
) -> None:
    keys = np.resize(KEYS, MAX_KEYS)
    with Peer(running.port) as other:
        for _ in range(20):
            with Peer(running.port, receive_buffer=1 << 12) as leaving:
                leaving.send(wire.pack_request(MessageKind.LOOKUP, 1, 1, keys) * 3)
                leaving.socket.recv(100)
                leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _check(other.ask(1, keys, DIM), keys, 1)
        until(lambda: running.loop.counts[counters.CONNECTIONS] == 1)


def test_a_peer_that_has_gone_before_its_large_answer_is_hung_up_on_once(tmp_path: Path) -> None:
    loop = _loop()
    loop.replace(Holdings.of(write_table(tmp_path / "v1", KEYS, dim=DIM, partitions=3)), draining=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        loop.listen(listener)
        # On a socket of this kind what was sent can be read though its sender is gone.
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(tmp_path / "s"))
            gone.sendall(Hello().pack() + wire.pack_request(MessageKind.LOOKUP, 1, 1, np.resize(KEYS, MAX_KEYS)) * 2)
        loop.start()
        until(lambda: loop.counts[counters.ACCEPTED] == 1 and loop.counts[counters.CONNECTIONS] == 0)
        loop.stop()

    assert loop.counts[counters.CONNECTIONS] == 0


def test_a_request_may_come_byte_by_byte(running: Running, table: VersionTable) -> None:
    with Peer(running.port, greet=False) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in Hello().pack() + wire.pack_request(MessageKind.LOOKUP, 1, 1, KEYS[:2]):
            peer.send(bytes([byte]))

        peer.receive(HELLO_BYTES)
        _check(peer.reply(DIM), KEYS[:2], 1)


def test_a_version_that_is_not_held_has_its_own_status(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        reply = peer.ask(2, KEYS[:3], DIM)
        assert (reply.status, reply.version, reply.values.size) == (Status.VERSION_NOT_HELD, 2, 0)
        _check(peer.ask(1, KEYS[:3], DIM), KEYS[:3], 1)


def test_a_partition_that_is_not_held_has_its_own_status(running: Running, tmp_path: Path) -> None:
    paths = write_parts(tmp_path, KEYS, dim=DIM, partitions=3, only=[1])
    running.hold(VersionTable.open(1, DIM, 3, paths))

    with Peer(running.port) as peer:
        assert peer.ask(1, as_keys([1, 4, 5]), DIM).status == Status.PARTITION_NOT_HELD
        _check(peer.ask(1, as_keys([1, 4, 0, 7]), DIM), as_keys([1, 4, 0, 7]), 1)


def test_a_server_without_a_version_answers_not_held(running: Running) -> None:
    with Peer(running.port) as peer:
        assert peer.hello == Hello(0, 0, MAX_KEYS)
        assert peer.ask(1, KEYS, DIM).status == Status.VERSION_NOT_HELD
        assert peer.keep_alive(1).status == Status.VERSION_NOT_HELD


def test_a_keep_alive_is_answered_and_counted_for_its_version(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        assert peer.keep_alive(1).status == Status.OK
        assert peer.keep_alive(3).status == Status.VERSION_NOT_HELD

    assert running.loop.counts[counters.KEEP_ALIVES] == 2
    assert running.loop.counts[counters.VERSIONS_AT] == 1


def test_every_reply_of_a_draining_server_has_the_flag_of_draining(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        assert not peer.ask(1, KEYS[:1], DIM).draining
        running.hold(table, draining=True)
        assert peer.ask(1, KEYS[:1], DIM).draining
        assert peer.ask(2, KEYS[:1], DIM).draining


def test_a_request_over_the_limit_is_refused_and_the_connection_goes_on(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        for n in (MAX_KEYS + 1, 100_000):
            reply = peer.ask(1, np.zeros(n, np.uint64), DIM)
            assert (reply.status, reply.id, reply.version) == (Status.BAD_REQUEST, 1, 1)
            _check(peer.ask(1, KEYS, DIM), KEYS, 1)


@pytest.mark.parametrize(("kind", "n"), [(0, 3), (3, 0), (65535, 100), (2, 4)])
def test_an_unknown_kind_is_refused_and_the_connection_goes_on(
    running: Running, table: VersionTable, kind: int, n: int
) -> None:
    frame = struct.pack("<IHHIQQ", 24 + 8 * n, kind, 0, n, 5, 1) + bytes(8 * n)

    with Peer(running.port) as peer:
        peer.send(frame)
        assert peer.reply(DIM).status == Status.BAD_REQUEST
        _check(peer.ask(1, KEYS[:3], DIM), KEYS[:3], 1)


@pytest.mark.parametrize("length", [0, 23, 24, 31, 33, 2**32 - 1])
def test_a_length_that_contradicts_the_count_is_refused_and_hung_up_on(
    running: Running, table: VersionTable, length: int
) -> None:
    with Peer(running.port) as peer:
        peer.send(struct.pack("<IHHIQQ", length, 1, 0, 1, 5, 1))
        assert peer.reply(DIM).status == Status.BAD_REQUEST
        assert peer.rest() == b""

    with Peer(running.port) as peer:
        _check(peer.ask(1, KEYS[:3], DIM), KEYS[:3], 1)


@pytest.mark.parametrize("greeting", [Hello(protocol=2).pack(), b"GET / HTTP/1.1\r\n"])
def test_an_unknown_greeting_is_answered_with_ours_and_hung_up_on(
    running: Running, table: VersionTable, greeting: bytes
) -> None:
    with Peer(running.port, greet=False) as peer:
        peer.send(greeting)
        assert Hello.unpack(peer.receive(HELLO_BYTES)) == Hello(DIM, 3, MAX_KEYS)
        assert peer.rest() == b""


def test_a_peer_that_stops_sending_still_gets_its_replies(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        peer.send(b"".join(wire.pack_request(MessageKind.LOOKUP, 1, 1, KEYS) for _ in range(20)))
        peer.socket.shutdown(socket.SHUT_WR)
        for _ in range(20):
            _check(peer.reply(DIM), KEYS, 1)
        with pytest.raises(HungUp):
            peer.receive(1)


def test_a_peer_that_does_not_read_costs_only_itself(running: Running, table: VersionTable) -> None:
    frame = wire.pack_request(MessageKind.LOOKUP, 1, 1, np.resize(KEYS, MAX_KEYS))
    with Peer(running.port, receive_buffer=1 << 16) as lazy, Peer(running.port) as other:
        lazy.socket.settimeout(0.2)
        sent = _send_until_stuck(lazy, frame)
        received_so_far = int(running.loop.counts[counters.BYTES_IN])

        _check(other.ask(1, KEYS, DIM), KEYS, 1)

        # It is read no further than one round: what it sends stays in its own socket.
        assert received_so_far < 200 * len(frame)
        lazy.socket.settimeout(30)
        for _ in range(sent // len(frame)):
            _check(lazy.reply(DIM), np.resize(KEYS, MAX_KEYS), 1)


def test_a_peer_that_resets_costs_only_itself(running: Running, table: VersionTable) -> None:
    for _ in range(20):
        peer = Peer(running.port)
        peer.send(wire.pack_request(MessageKind.LOOKUP, 1, 1, KEYS) * 3)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()

    with Peer(running.port) as peer:
        _check(peer.ask(1, KEYS, DIM), KEYS, 1)


def test_connections_over_the_limit_are_closed_and_the_others_go_on(running: Running, table: VersionTable) -> None:
    crowd = []
    try:
        with Peer(running.port) as first:
            for _ in range(300):
                crowd.append(Peer(running.port, greet=False))
                # A connection that is idle for a second makes room for a new one.
                _check(first.ask(1, KEYS[:3], DIM), KEYS[:3], 1)
    finally:
        for peer in crowd:
            peer.socket.close()


@settings(max_examples=60)
@given(noise=st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=4), greet=st.booleans())
def test_noise_on_one_connection_does_not_disturb_another(
    running: Running, tmp_path_factory: pytest.TempPathFactory, noise: list[bytes], greet: bool
) -> None:
    if not running.loop.holdings.tables:
        running.hold(write_table(tmp_path_factory.mktemp("v1"), KEYS, dim=DIM, partitions=3))
    with Peer(running.port) as steady:
        with Peer(running.port, greet=greet) as noisy:
            try:
                for data in noise:
                    noisy.send(data)
            except ConnectionError:
                pass  # hung up on already
            _check(steady.ask(1, KEYS[:10], DIM), KEYS[:10], 1)
        _check(steady.ask(1, KEYS[:10], DIM), KEYS[:10], 1)


def test_readers_see_one_version_per_reply_while_versions_come_and_go(running: Running, tmp_path: Path) -> None:
    versions = {number: write_table(tmp_path / str(number), KEYS, dim=DIM, version=number) for number in (1, 2, 3)}
    running.hold(versions[1], versions[2])
    over = threading.Event()
    failures: list[BaseException] = []
    answers = dict.fromkeys((1, 2, 3), 0)

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            with Peer(running.port) as peer:
                while not over.is_set():
                    version = int(random.integers(1, 4))
                    # One in four is answered in pieces.
                    keys = random.choice(KEYS, random.choice([20, 20, 20, PIECE_KEYS + 20]))
                    reply = peer.ask(version, keys, DIM)
                    assert reply.version == version
                    if reply.status == Status.OK:
                        assert reply.values.tobytes() == values_for(keys, DIM, version).tobytes()
                        assert not reply.missing.any()
                        answers[version] += 1
                    else:
                        # Version 1 is held throughout.
                        assert reply.status == Status.VERSION_NOT_HELD
                        assert version != 1
        except BaseException as failed:  # noqa: BLE001 - reported by the test below
            failures.append(failed)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    while min(answers.values()) < 20 and not failures:
        running.hold(versions[1], versions[3])
        running.hold(versions[1], versions[2])
        running.hold(versions[1], versions[2], versions[3])
    over.set()
    for reader in readers:
        reader.join()

    assert not failures


def test_a_reply_that_waits_survives_a_change_to_another_dim(running: Running, tmp_path: Path) -> None:
    keys = np.resize(KEYS, MAX_KEYS)
    running.hold(write_table(tmp_path / "a", KEYS, dim=DIM))
    with Peer(running.port, receive_buffer=1 << 16) as lazy, Peer(running.port) as other:
        count = 60
        sender = threading.Thread(target=lazy.send, args=(wire.pack_request(MessageKind.LOOKUP, 1, 1, keys) * count,))
        sender.start()
        _check(other.ask(1, KEYS, DIM), KEYS, 1)
        _check(lazy.reply(DIM), keys, 1)

        running.hold(write_table(tmp_path / "b", KEYS, dim=4, version=2))

        assert other.ask(2, KEYS[:3], 4).values.tobytes() == values_for(KEYS[:3], 4, 2).tobytes()
        statuses = []
        for _ in range(count - 1):
            reply = lazy.reply(DIM)
            statuses.append(reply.status)
            if reply.status == Status.OK:
                _check(reply, keys, 1)
        sender.join()
        # What was answered before the change comes whole, then what was asked in vain.
        assert statuses == sorted(statuses)
        assert set(statuses) <= {Status.OK, Status.VERSION_NOT_HELD}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_has_failed_takes_nothing_to_hold_any_more(
    running: Running, table: VersionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError("a round found no memory")

    monkeypatch.setattr(running.loop, "serve", fail)
    # The round under way ends with this; there is no next one.
    running.hold(table)
    until(lambda: not running.loop._thread.is_alive())

    with pytest.raises(RuntimeError, match="the lookup loop has ended"):
        running.hold(table)


def test_lookups_keys_misses_and_refusals_are_counted(running: Running, table: VersionTable) -> None:
    with Peer(running.port) as peer:
        peer.ask(1, as_keys([1, 2, 5000]), DIM)
        peer.ask(4, as_keys([1]), DIM)
        peer.ask(1, np.zeros(MAX_KEYS + 1, np.uint64), DIM)
        counts = running.loop.counts

        assert counts[counters.REQUESTS] == 2
        assert counts[counters.KEYS] == 4
        assert counts[counters.MISSING] == 1
        assert counts[counters.NOT_HELD] == 1
        assert counts[counters.BAD_REQUESTS] == 1
        assert counts[counters.ACCEPTED] == counts[counters.CONNECTIONS] == 1
        assert counts[counters.VERSIONS_AT] == 1
