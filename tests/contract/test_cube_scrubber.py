"""`cube-server` as processes, with dictionary parts that change in place under them."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from cube.parts import values_for, write_parts
from cube.peers import Peer
from cube.running import ServerProcess, until
from cube.server.asking import KEYS, every_worker_answers
from elastic_ctr.cube.dictionary.format import DictionaryPart
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.cube.wire import Status

PARTITIONS = 3


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(workers=2, scrub_megabytes_per_second=1000)
    yield running
    assert running.stop() == 0


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    yield shared
    for version in (1, 2):
        shared.http.post("/unload", json={"version": version, "partitions": None})


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _value_of(path: Path) -> int:
    """Where a byte of a value stands that a key of the tests has."""
    part = DictionaryPart.open(path)
    return int(part.header.sections["records"].offset + (part.keys == KEYS[0]).argmax() * part.header.stride + 8)


def _damage_partition_1(paths: dict[int, Paths]) -> None:
    assert KEYS[0] % PARTITIONS == 1
    _flip(paths[1].full, _value_of(paths[1].full))


def test_a_part_that_changes_in_place_is_dropped_while_the_others_are_answered(
    server: ServerProcess, tmp_path: Path
) -> None:
    paths = write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS)
    server.load(1, paths)
    every_worker_answers(server, 1)

    _damage_partition_1(paths)

    until(lambda: "damaged" in str(server.loaded()["damaged"].get("1", {}).get("1")))
    assert server.loaded()["versions"] == {"1": [0, 2]}
    every_worker_answers(server, 1, Status.PARTITION_NOT_HELD)
    whole = KEYS[KEYS % PARTITIONS != 1]
    with Peer(server.port) as peer:
        assert peer.ask(1, whole, 4).values.tobytes() == values_for(whole, 4, 1).tobytes()
    assert "elastic_ctr_cube_damaged_partitions_total 0.0" not in server.http.get("/metrics").text
    assert server.status()["damaged"] == server.loaded()["damaged"]


def test_a_part_reported_as_damaged_is_not_answered_until_it_is_fetched_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    paths = write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS)
    whole = paths[1].full.read_bytes()
    server.load(1, paths)
    _damage_partition_1(paths)
    until(lambda: bool(server.loaded()["damaged"]))

    refused = server.load(1, {1: paths[1]}, partitions=PARTITIONS)
    every_worker_answers(server, 1, Status.PARTITION_NOT_HELD)
    # As the agent does it: another file in its place.
    paths[1].full.unlink()
    paths[1].full.write_bytes(whole)
    server.load(1, {1: paths[1]}, partitions=PARTITIONS)

    assert refused.status_code == 422
    assert "checksum of its records does not match; fetch or build it again" in refused.json()["error"]
    assert server.loaded()["damaged"] == {}
    every_worker_answers(server, 1)


def test_a_damaged_part_below_overlays_is_dropped_from_every_version(server: ServerProcess, tmp_path: Path) -> None:
    below = write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS)
    above = write_parts(tmp_path / "v2", KEYS, partitions=PARTITIONS, overlay_keys=KEYS[:10])
    shared = {number: paths._replace(full=below[number].full) for number, paths in above.items()}
    server.load(1, below)
    server.load(2, shared)

    _damage_partition_1(below)

    until(lambda: server.loaded()["versions"] == {"1": [0, 2], "2": [0, 2]})
    assert {version: list(found) for version, found in server.loaded()["damaged"].items()} == {"1": ["1"], "2": ["1"]}


def test_a_header_that_changes_in_place_is_damage_too(server: ServerProcess, tmp_path: Path) -> None:
    paths = write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS)
    server.load(1, paths)

    _flip(paths[2].full, 100)

    until(lambda: server.loaded()["versions"] == {"1": [0, 1]})
    assert "header" in server.loaded()["damaged"]["1"]["2"]


def test_a_part_that_is_cut_while_it_is_mapped_is_dropped_and_no_worker_ends(
    server: ServerProcess, tmp_path: Path
) -> None:
    paths = write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS)
    server.load(1, paths)

    os.truncate(paths[0].full, 4096)

    until(lambda: server.loaded()["versions"] == {"1": [1, 2]})
    assert "cannot be read" in server.loaded()["damaged"]["1"]["0"]
    assert server.status()["workerRestarts"] == 0


def test_an_unloaded_version_is_verified_no_longer(server: ServerProcess, tmp_path: Path) -> None:
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=PARTITIONS))
    until(lambda: server.status()["scrub"]["verifiedBytes"] > 0)
    server.http.post("/unload", json={"version": 1, "partitions": None})

    def is_at_rest() -> bool:
        before = server.status()["scrub"]["verifiedBytes"]
        until(lambda: server.status()["scrub"]["lastRoundSeconds"] < 0.5)
        until(lambda: server.status()["scrub"]["lastRoundSeconds"] > 0.5)
        until(lambda: server.status()["scrub"]["lastRoundSeconds"] < 0.5)
        return bool(server.status()["scrub"]["verifiedBytes"] == before)

    until(is_at_rest)


def test_workers_map_parts_in_huge_pages_and_the_parent_keeps_no_page(server: ServerProcess, tmp_path: Path) -> None:
    keys = np.arange(1, 250_000, dtype=np.uint64)
    [first, second] = (write_parts(tmp_path / name, keys)[0].full for name in ("first", "second"))
    for file in (first, second):
        _forget(file)
    alone = DictionaryPart.open(first, verify=True)
    huge = _mapped(os.getpid(), first)["FilePmdMapped"]
    if not huge:
        pytest.skip("this machine maps no files in huge pages")

    server.load(1, {0: Paths(second, None)})

    parent = server.process.pid
    workers = [each.pid for each in psutil.Process(parent).children()]
    assert [_mapped(pid, second)["FilePmdMapped"] for pid in workers] == [huge, huge]
    until(lambda: server.status()["scrub"]["verifiedBytes"] > 2 * alone.path.stat().st_size)
    until(lambda: _mapped(parent, second)["Rss"] < huge // 2)


def _forget(file: Path) -> None:
    """The next reader of a file reads it from the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _mapped(pid: int, file: Path) -> Counter[str]:
    """Kilobytes of a process's mapping of a file, by the names of /proc/PID/smaps."""
    found: Counter[str] = Counter()
    wanted = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            wanted = line.endswith(str(file))
        elif wanted and rest[-1] == "kB":
            found[name.removesuffix(":")] += int(rest[0])
    return found
