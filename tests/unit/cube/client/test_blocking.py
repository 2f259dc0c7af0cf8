"""The blocking client and the command that uses it."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cube.parts import as_keys, values_for, write_parts
from cube.running import Running
from cube_oracles import pack_reply, unpack_request
from elastic_ctr.cube import wire
from elastic_ctr.cube.client import blocking
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import HELLO_BYTES, Hello
from elastic_ctr.operate.cli import cube as command
from elastic_ctr.operate.cli.data_files import dict_app
from ports import free_port

KEYS = np.arange(1, 101, dtype=np.uint64)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[str]]:
    """Two servers, of the even and of the odd partitions of version 3."""
    servers = []
    for number in (0, 1):
        paths = write_parts(tmp_path / str(number), KEYS, partitions=4, version=3, only=[number, number + 2])
        servers.append(Running(LookupLoop(counters.private(), 10, 1000)))
        servers[-1].hold(VersionTable.open(3, 4, 4, paths))
    yield [f"127.0.0.1:{server.port}" for server in servers]
    for server in servers:
        server.stop()


def test_each_partition_is_looked_up_where_it_is(pair: list[str]) -> None:
    with BlockingCubeClient(pair) as client:
        values, missing = client.lookup(3, np.append(KEYS, as_keys([0, 700])))

    assert values[:-2].tolist() == values_for(KEYS, 4, 3).tolist()
    assert missing.tolist() == [False] * 101 + [True]


def test_a_version_or_partition_without_a_holder_among_the_servers_is_not_held(pair: list[str]) -> None:
    with BlockingCubeClient(pair) as client, pytest.raises(VersionNotHeld, match="answered version not held; "):
        client.lookup(4, KEYS)
    with BlockingCubeClient(pair[:1]) as client, pytest.raises(VersionNotHeld, match="answered partition not held"):
        client.lookup(3, KEYS)


def test_a_client_needs_an_address_that_is_valid_and_answers(pair: list[str]) -> None:
    nobody = f"127.0.0.1:{free_port()}"

    with BlockingCubeClient([nobody, *pair]) as client:
        assert not client.lookup(3, KEYS)[1].any()
    with pytest.raises(CubeUnavailable, match=f"{nobody} does not answer as a cube-server"):
        BlockingCubeClient([nobody])
    with pytest.raises(CubeUnavailable, match="write host:port"):
        BlockingCubeClient(["nonsense"])
    with pytest.raises(CubeUnavailable, match="no address"):
        BlockingCubeClient([])


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[Running]]:
    """Two servers, both of all partitions of version 3; a test takes out whom it stops."""
    servers = []
    for number in (0, 1):
        paths = write_parts(tmp_path / str(number), KEYS, partitions=4, version=3)
        servers.append(Running(LookupLoop(counters.private(), 1000, 1000)))
        servers[-1].hold(VersionTable.open(3, 4, 4, paths))
    yield servers
    for server in servers:
        server.stop()


@pytest.mark.parametrize("busy_poll", [True, False])
@pytest.mark.parametrize("asked_before", [True, False])
def test_a_server_that_fails_is_replaced_by_another_that_holds_the_same(
    replicas: list[Running], asked_before: bool, busy_poll: bool
) -> None:
    addresses = [f"127.0.0.1:{server.port}" for server in replicas]

    with BlockingCubeClient(addresses, busy_poll=busy_poll) as client:
        if asked_before:
            client.lookup(3, KEYS)
        replicas.pop(0).stop()

        for _ in range(3):
            assert client.lookup(3, KEYS)[0].tolist() == values_for(KEYS, 4, 3).tolist()
        replicas.pop().stop()
        with pytest.raises(CubeUnavailable) as nobody:
            client.lookup(3, KEYS)

    assert all(f"{address} " in str(nobody.value) for address in addresses)


def test_a_partition_that_only_a_failed_server_may_hold_is_unavailable(
    pair: list[str], replicas: list[Running]
) -> None:
    going = f"127.0.0.1:{replicas[0].port}"

    with BlockingCubeClient([going, pair[0]]) as client:
        replicas.pop(0).stop()

        assert not client.lookup(3, as_keys([4, 6]))[1].any()
        with pytest.raises(CubeUnavailable, match=f"{pair[0]} answered partition not held; {going} "):
            client.lookup(3, as_keys([4, 5]))


def test_a_server_that_hangs_is_waited_for_once_in_a_lookup(replicas: list[Running]) -> None:
    questions = []

    def hang(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
                connection.sendall(Hello(4, 4, 1000).pack())
                questions.append(connection.recv(wire.request_bytes(1)))

    with socket.create_server(("127.0.0.1", 0)) as hung:
        threading.Thread(target=hang, args=(hung,), daemon=True).start()
        addresses = [f"127.0.0.1:{port}" for port in (hung.getsockname()[1], replicas[0].port)]
        with BlockingCubeClient(addresses, timeout_seconds=0.2) as client:
            for _ in range(2):
                assert client.lookup(3, KEYS)[0].tolist() == values_for(KEYS, 4, 3).tolist()

    assert len(questions) == 1


def test_seek_prints_values_and_what_is_missing(pair: list[str]) -> None:
    given = ["seek", "5", "700", "--version", "3", "--address", ",".join(pair)]

    plain = CliRunner().invoke(command.app, given)
    as_json = CliRunner().invoke(command.app, [*given, "--json"])

    row = values_for(as_keys([5]), 4, 3)[0]
    assert plain.exit_code == as_json.exit_code == 1
    assert plain.output == "5\t3\t" + " ".join(f"{value:.6g}" for value in row) + "\n700\t3\tmissing\n"
    assert [json.loads(line) for line in as_json.output.splitlines()] == [
        {"key": 5, "version": 3, "values": row.tolist()},
        {"key": 700, "version": 3, "values": None},
    ]


def document_of(pair: list[str], live: int | None = 3) -> ReleaseDocument:
    """The second server is draining."""
    holders = {pair[0]: {"partitions": [0, 2]}, pair[1]: {"partitions": [1, 3], "draining": True}}
    document = {"generation": 1, "revision": 4, "placement": {"shards": 2}, "live": live, "holders": {"3": holders}}
    return ReleaseDocument.model_validate(document)


def test_seek_finds_the_live_version_and_its_holders_in_the_release_document(
    pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"there:8300": document_of(pair)}
    monkeypatch.setattr(command, "release_document", asked.pop)

    found = CliRunner().invoke(command.app, ["seek", "5", "6", "--transfer", "there:8300"])

    assert found.exit_code == 0
    assert found.output.startswith("5\t3\t")
    assert not asked


@pytest.mark.parametrize(
    ("arguments", "live", "reason"),
    [
        ([], None, "no version is live yet at there:8300; say --version"),
        (["--version", "9"], 3, "no cube-server holds version 9; held are: 3"),
    ],
)
def test_seek_says_what_the_release_document_does_not_name(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], live: int | None, reason: str
) -> None:
    monkeypatch.setattr(command, "release_document", {"there:8300": document_of(pair, live)}.pop)

    refused = CliRunner().invoke(command.app, ["seek", "5", "--transfer", "there:8300", *arguments])

    assert refused.exit_code == 2
    assert reason in refused.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x", "--version", "3"], "'x' is not a key"),
        ([str(2**64), "--version", "3"], "is not a key"),
        (["5", "--transfer", "127.0.0.1:1"], "say --transfer, or --version and --address"),
        (["5", "--version", "9"], "version 9 is not held"),
    ],
)
def test_seek_says_what_is_wrong_and_exits_with_2(pair: list[str], arguments: list[str], reason: str) -> None:
    refused = CliRunner().invoke(command.app, ["seek", *arguments, "-a", ",".join(pair)])

    assert refused.exit_code == 2
    assert reason in refused.output


def test_dict_stat_describes_a_part_and_refuses_a_damaged_one(tmp_path: Path) -> None:
    path = write_parts(tmp_path, KEYS)[0].full

    whole = CliRunner().invoke(dict_app, ["stat", str(path), "--json"])
    plain = CliRunner().invoke(dict_app, ["stat", str(path)])
    path.write_bytes(path.read_bytes()[:-1])
    damaged = CliRunner().invoke(dict_app, ["stat", str(path)])

    assert (whole.exit_code, json.loads(whole.output)["keys"]) == (0, 100)
    assert "bytesPerKey" in plain.output
    assert damaged.exit_code == 2
    assert "is damaged" in damaged.output


@pytest.mark.parametrize("busy_poll", [True, False])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100, 5000])
def test_a_client_that_stays_awake_reads_the_same_as_one_that_sleeps(pair: list[str], n: int, busy_poll: bool) -> None:
    asked = np.arange(2, 2 * n + 2, 2, dtype=np.uint64)

    with BlockingCubeClient(pair[:1], busy_poll=busy_poll) as client:
        for _ in range(20):
            values, missing = client.lookup(3, asked)

            held = asked[asked <= 100]
            assert values.dtype == np.float32
            assert values[: held.size].tolist() == values_for(held, 4, 3).tolist()
            assert not values[held.size :].any()
            assert missing.tolist() == (asked > 100).tolist()


@pytest.mark.parametrize("busy_poll", [True, False])
def test_a_refusal_costs_neither_kind_of_client_its_connection(pair: list[str], busy_poll: bool) -> None:
    with BlockingCubeClient(pair[:1], busy_poll=busy_poll) as client:
        for _ in range(3):
            with pytest.raises(VersionNotHeld, match="answered version not held"):
                client.lookup(4, KEYS)
            assert not client.lookup(3, as_keys([4]))[1].any()


class Slow:
    """Answers each key with itself, the first question late and on whichever connection it came."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.late = threading.Event()
        self._first = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
            connection.sendall(Hello(1, 1, 1000).pack())
            while frame := connection.recv(wire.request_bytes(1), socket.MSG_WAITALL):
                head, keys = unpack_request(frame)
                if self._first:
                    self._first = False
                    self.late.wait(60)
                values = keys.astype(np.float32).reshape(-1, 1)
                connection.sendall(pack_reply(head.id, head.version, values, np.zeros(keys.size, np.bool_)))

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize("busy_poll", [True, False])
def test_an_answer_that_came_too_late_is_never_taken_for_another_questions(busy_poll: bool) -> None:
    server = Slow()
    try:
        with BlockingCubeClient([server.address], timeout_seconds=0.2, busy_poll=busy_poll) as client:
            with pytest.raises(CubeUnavailable, match="did not answer in time"):
                client.lookup(3, as_keys([7]))
            server.late.set()

            assert [client.lookup(3, as_keys([key]))[0].tolist() for key in (9, 10)] == [[[9.0]], [[10.0]]]
    finally:
        server.close()


@pytest.mark.parametrize("busy_poll", [True, False])
def test_a_question_that_was_given_up_leaves_no_answer_behind(busy_poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Slow()
    server.late.set()
    try:
        with BlockingCubeClient([server.address], busy_poll=busy_poll) as client:
            received = blocking._CubeServer._receive

            def interrupted(*_: object) -> int:
                monkeypatch.setattr(blocking._CubeServer, "_receive", received)
                raise KeyboardInterrupt

            monkeypatch.setattr(blocking._CubeServer, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.lookup(3, as_keys([7]))

            assert client.lookup(3, as_keys([9]))[0].tolist() == [[9.0]]
    finally:
        server.close()
