"""A server answers float32, whatever its parts have."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cube.parts import as_keys, values_for, write_parts, write_table
from cube.peers import Peer
from cube.running import Running, ServerProcess
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.features.quantiser import quantised
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind

DIM = 9
KEYS = np.arange(1, 1001, dtype=np.uint64)
UNKNOWN = as_keys([0, 5000])


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(LookupLoop(counters.private(), 2000, piece_bytes=4 * DIM * 300))
    yield server
    server.stop()


def check(peer: Peer, version: int, kind: ValueKind) -> None:
    asked = np.concatenate([KEYS, UNKNOWN])

    reply = peer.ask(version, asked, DIM)

    assert reply.values[: KEYS.size].tobytes() == quantised(values_for(KEYS, DIM, version), kind).tobytes()
    assert not reply.values[KEYS.size :].any()
    assert np.flatnonzero(reply.missing).tolist() == [KEYS.size + 1]


@pytest.mark.parametrize("kind", VALUE_KINDS)
def test_a_lookup_is_answered_with_the_quantised_values(running: Running, tmp_path: Path, kind: ValueKind) -> None:
    running.hold(write_table(tmp_path, KEYS, dim=DIM, partitions=3, values=kind))

    with Peer(running.port) as peer:
        check(peer, 1, kind)


def test_versions_of_other_kinds_are_held_side_by_side_while_peers_stay(running: Running, tmp_path: Path) -> None:
    tables = {
        kind: write_table(tmp_path / kind, KEYS, dim=DIM, version=version, partitions=3, values=kind)
        for version, kind in enumerate(VALUE_KINDS, 1)
    }
    running.hold(tables["float32"])

    with Peer(running.port) as peer:
        check(peer, 1, "float32")
        running.hold(*tables.values())
        for version, kind in enumerate(VALUE_KINDS, 1):
            check(peer, version, kind)
        running.hold(tables["int8"])
        check(peer, 3, "int8")
        assert peer.keep_alive(1).status != 0


def test_the_server_of_a_pod_loads_an_overlay_of_bytes(tmp_path: Path) -> None:
    newer = KEYS[::10]
    paths = write_parts(tmp_path / "cache", KEYS, dim=DIM, partitions=2, overlay_keys=newer, values="int8")
    server = ServerProcess(workers=1)
    try:
        assert server.load(2, paths, dim=DIM).status_code == 200

        with Peer(server.port) as peer:
            reply = peer.ask(2, KEYS, DIM)

        wanted = np.where(np.isin(KEYS, newer)[:, None], values_for(KEYS, DIM, 2), values_for(KEYS, DIM, 1))
        assert reply.values.tobytes() == quantised(wanted, "int8").tobytes()
    finally:
        server.stop()
