"""Lookup servers as processes: loading and unloading, their figures, and how they end."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cube.parts import as_keys, values_for, write_parts
from cube.peers import Peer
from cube.running import ServerProcess, gone, until, workers_that
from cube.server.asking import KEYS, every_worker_answers, peers_of
from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.load import dump
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.server.cube_server import run_cube_server
from elastic_ctr.cube.server.lookup_server import LookupServer
from elastic_ctr.cube.wire import Status
from elastic_ctr.runtime.lifecycle import PortInUse
from elastic_ctr.runtime.lock import StateInUse, StateLock
from ports import free_port


def file_of(folder: Path, **cube: Any) -> CubeServerFile:
    return CubeServerFile(
        model=Model(),
        store=StoreConfig(url=f"file://{folder}/store"),
        cube=CubePodConfig(cache_dir=str(folder), **cube),
        transfer_address="127.0.0.1:1",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dictionaries")


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerProcess]:
    """One server of two workers for the tests that leave it as it was."""
    server = ServerProcess(workers=2)
    yield server
    assert server.stop() == 0


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    yield shared
    for version in shared.loaded()["versions"]:
        shared.http.post("/unload", json={"version": int(version), "partitions": None})
    shared.http.post("/drain", json={"draining": False})


def test_a_loaded_version_is_answered_by_every_worker_until_it_is_unloaded(server: ServerProcess, folder: Path) -> None:
    paths = write_parts(folder / "v1", KEYS, partitions=3)

    assert server.load(1, paths).status_code == 200
    assert server.loaded()["versions"] == {"1": [0, 1, 2]}
    every_worker_answers(server, 1)

    assert server.http.post("/unload", json={"version": 1, "partitions": None}).status_code == 200
    assert server.loaded()["versions"] == {}
    every_worker_answers(server, 1, Status.VERSION_NOT_HELD)


def test_partitions_can_be_added_and_taken_from_a_version(server: ServerProcess, folder: Path) -> None:
    paths = write_parts(folder / "v1", KEYS, partitions=3)

    server.load(1, {0: paths[0]}, partitions=3)
    every_worker_answers(server, 1, Status.PARTITION_NOT_HELD)
    assert server.load(1, {1: paths[1], 2: paths[2]}, partitions=3).json()["versions"] == {"1": [0, 1, 2]}
    every_worker_answers(server, 1)

    server.http.post("/unload", json={"version": 1, "partitions": [0, 2]})
    assert server.loaded()["versions"] == {"1": [1]}


def test_an_overlay_is_loaded_with_its_full_part(server: ServerProcess, folder: Path) -> None:
    paths = write_parts(folder / "v2", KEYS, partitions=2, overlay_keys=KEYS)

    assert server.load(2, paths).status_code == 200

    every_worker_answers(server, 2)


def test_a_recent_overlay_is_loaded_over_another(server: ServerProcess, folder: Path) -> None:
    paths = write_parts(folder / "v3", KEYS, partitions=2, overlay_keys=KEYS[::2], recent_keys=KEYS)

    assert server.load(3, paths).status_code == 200

    every_worker_answers(server, 3)
    alone = {number: own._replace(overlay=None) for number, own in paths.items()}
    refused = server.load(4, alone)
    assert refused.status_code == 422
    assert "no overlay below it" in refused.json()["error"]


def test_a_damaged_part_is_refused_and_nothing_changes(server: ServerProcess, folder: Path) -> None:
    good = write_parts(folder / "v1", KEYS, partitions=2)
    bad = write_parts(folder / "v2", KEYS, partitions=2, version=2)
    content = bytearray(bad[1].full.read_bytes())
    content[-1] ^= 1
    bad[1].full.write_bytes(content)
    server.load(1, good)

    refused = server.load(2, bad)

    assert refused.status_code == 422
    assert "checksum of its records does not match" in refused.json()["error"]
    assert server.loaded()["versions"] == {"1": [0, 1]}
    every_worker_answers(server, 1)
    every_worker_answers(server, 2, Status.VERSION_NOT_HELD)


def test_files_that_are_absent_or_another_partition_are_refused(server: ServerProcess, folder: Path) -> None:
    here = write_parts(folder / "v1", KEYS, partitions=2)

    for paths, reason in (
        ({0: here[0]._replace(full=folder / "absent.dict")}, "No such file"),
        ({1: here[0]}, "given as 1 of 2"),
    ):
        refused = server.load(1, paths, partitions=2)
        assert refused.status_code == 422
        assert reason in refused.json()["error"]
    assert server.loaded()["versions"] == {}


def test_another_dim_beside_what_is_held_is_refused(server: ServerProcess, folder: Path) -> None:
    server.load(1, write_parts(folder / "v1", KEYS, partitions=2))

    refused = server.load(2, write_parts(folder / "wide", KEYS, partitions=2, dim=5, version=2), dim=5)

    assert refused.status_code == 422
    assert "unload 1 first" in refused.json()["error"]


def test_draining_is_said_by_every_worker_until_it_is_taken_back(server: ServerProcess) -> None:
    for draining in (True, False):
        assert server.http.post("/drain", json={"draining": draining}).json()["draining"] is draining
        for peer in peers_of(server):
            with peer:
                assert peer.ask(1, KEYS, 4).draining is draining


def test_held_says_when_a_version_was_last_asked_for(server: ServerProcess, folder: Path) -> None:
    server.load(1, write_parts(folder / "v1", KEYS, partitions=2))
    server.load(2, write_parts(folder / "v2", KEYS, partitions=2, version=2))
    assert server.loaded()["lastAskedSeconds"] == {"1": None, "2": None}

    with Peer(server.port) as peer:
        peer.keep_alive(2)

    assert server.loaded()["lastAskedSeconds"]["1"] is None
    assert server.loaded()["lastAskedSeconds"]["2"] >= 0
    with Peer(server.port) as peer:
        peer.ask(1, KEYS, 4)
    held = server.loaded()
    assert held["lastAskedSeconds"]["1"] >= 0
    assert held["lastLookupSeconds"] >= 0


def test_metrics_are_summed_over_workers(server: ServerProcess, folder: Path) -> None:
    def metric(name: str) -> float:
        [line] = [
            line
            for line in server.http.get("/metrics").text.splitlines()
            if line.startswith(f"elastic_ctr_cube_{name} ")
        ]
        return float(line.split()[-1])

    server.load(1, write_parts(folder / "v1", KEYS, partitions=2))
    names = ("requests_total", "keys_total", "missing_keys_total", "not_held_replies_total")
    before = [metric(name) for name in names]
    peers = peers_of(server)
    for peer in peers:
        peer.ask(1, as_keys([1, 2, 3, 999]), 4)
        peer.ask(7, as_keys([1]), 4)

    # Those of former tests are closed already, but the server may learn of it only now.
    until(lambda: metric("connections") == len(peers))
    assert [metric(name) - old for name, old in zip(names, before, strict=True)] == [32, 80, 16, 16]
    assert 'elastic_ctr_cube_loaded_partitions{version="1"} 2.0' in server.http.get("/metrics").text
    for peer in peers:
        peer.socket.close()


def test_status_says_what_runs(server: ServerProcess, folder: Path) -> None:
    server.load(1, write_parts(folder / "v1", KEYS, partitions=2))

    status = server.status()

    assert status["address"] == server.address
    assert (status["dim"], status["partitions"], status["maxKeys"], status["ready"]) == (4, 2, 2000, True)
    assert len(status["workers"]) == 2


def test_readers_are_answered_while_versions_are_loaded_and_unloaded(server: ServerProcess, folder: Path) -> None:
    paths = {version: write_parts(folder / f"v{version}", KEYS, partitions=2, version=version) for version in (1, 2, 3)}
    server.load(1, paths[1])
    over = threading.Event()
    failures: list[BaseException] = []
    answered = dict.fromkeys(paths, 0)

    def read() -> None:
        try:
            with Peer(server.port) as peer:
                while not over.is_set():
                    for version in paths:
                        reply = peer.ask(version, KEYS, 4)
                        assert reply.version == version
                        if reply.status == Status.OK:
                            assert reply.values.tobytes() == values_for(KEYS, 4, version).tobytes()
                            answered[version] += 1
                        else:
                            assert version != 1
                            assert reply.status == Status.VERSION_NOT_HELD
        except BaseException as failed:  # noqa: BLE001 - reported below
            failures.append(failed)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    while min(answered.values()) < 10 and not failures:
        for version in (2, 3):
            assert server.load(version, paths[version]).status_code == 200
        for version in (2, 3):
            server.http.post("/unload", json={"version": version, "partitions": None})
    over.set()
    for reader in readers:
        reader.join()

    assert not failures


def test_told_to_end_it_verifies_no_more_files(tmp_path: Path) -> None:
    verified = tmp_path / "verified"
    slowly = f"""
import time
from elastic_ctr.cube.dictionary.format import DictionaryPart
def verify(self, on_bytes=None):
    with open({str(verified)!r}, "a") as list:
        list.write("one more\\n")
    time.sleep(2)
DictionaryPart.verify = verify
"""
    server = ServerProcess(before=workers_that(slowly))
    paths = write_parts(tmp_path, KEYS, partitions=10)

    def load() -> None:
        with contextlib.suppress(httpx.HTTPError):
            server.load(1, paths)

    loading = threading.Thread(target=load)
    loading.start()
    until(verified.exists)
    server.process.terminate()
    assert server.process.wait(30) == 0
    loading.join()

    assert len(verified.read_text().splitlines()) < len(paths)
    server.stop()


def test_workers_end_when_the_server_is_told_to() -> None:
    server = ServerProcess(workers=2)
    workers = server.status()["workers"]

    with Peer(server.port):
        assert server.stop() == 0

    assert all(gone(pid) for pid in workers)


def test_a_machine_that_cannot_compile_ends_the_server_with_a_sentence(tmp_path: Path) -> None:
    broken = """
import numba
def njit(**options):
    raise OSError("no compiler for this processor")
numba.njit = njit
"""
    config = tmp_path / "config.yaml"
    config.write_text(dump(file_of(tmp_path, port=free_port(), admin_port=free_port())))
    code = f"""
{workers_that(broken)}
import sys
from elastic_ctr.operate.cli.main import main
sys.argv = ["elastic-ctr", "cube-server", "--config", {str(config)!r}]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)

    assert ended.returncode == 2
    assert "no compiler for this processor" in ended.stderr
    assert "cannot work on this machine, and none will: the log says why" in ended.stderr


@pytest.mark.parametrize("name", ["port", "admin_port"])
def test_a_port_in_use_is_named(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = file_of(tmp_path, **{"port": free_port(), "admin_port": free_port(), name: port})

        with pytest.raises(PortInUse, match=f"127.0.0.1:{port} is used by another process"):
            run_cube_server(config, pod="cube-s0-0", address=f"127.0.0.1:{port}")


def test_two_servers_do_not_share_a_port() -> None:
    server = ServerProcess()

    with pytest.raises(PortInUse):
        LookupServer(CubePodConfig(port=server.port))
    assert server.stop() == 0


def test_two_servers_do_not_share_a_cache(tmp_path: Path) -> None:
    with StateLock(tmp_path), pytest.raises(StateInUse):
        run_cube_server(file_of(tmp_path), pod="cube-s0-0", address="127.0.0.1:1")


def test_a_pod_without_a_shard_in_its_name_does_not_start(tmp_path: Path) -> None:
    config = file_of(tmp_path, port=free_port(), admin_port=free_port())

    with pytest.raises(ValueError, match="does not end in -s<shard>-<replica>"):
        run_cube_server(config, pod="cube-0", address="127.0.0.1:1")


def test_an_error_of_the_agent_ends_the_process(tmp_path: Path) -> None:
    """Kubernetes starts it again; a pod without an agent would answer the version of that hour for ever."""
    config = tmp_path / "config.yaml"
    config.write_text(dump(file_of(tmp_path, port=free_port(), admin_port=free_port())))
    code = f"""
import sys
from elastic_ctr.cube.agent.agent import CubeAgent
from elastic_ctr.operate.cli.main import main
async def _work(self): raise ValueError("nobody thought of this")
CubeAgent._work = _work
sys.argv = ["elastic-ctr", "cube-server", "--config", {str(config)!r}]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)

    assert ended.returncode == 1
    assert "nobody thought of this" in ended.stderr


def test_a_body_behind_an_offer_of_another_protocol_is_no_request_of_its_own(server: ServerProcess) -> None:
    hidden = b"POST /drain HTTP/1.1\r\nHost: a\r\nContent-Length: 17\r\n\r\n" + b'{"draining":true}'
    offer = b"POST /none HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.admin_port), timeout=30) as connection:
        connection.sendall(
            offer % len(hidden) + hidden + b"GET /loaded HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 404 " in answer
    assert b"HTTP/1.1 200 " in answer
