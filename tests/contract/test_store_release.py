"""Roles whose store is another machine, which is away when they begin, and again later: they wait, and go on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from contract.file_server_world import FileServer, file_server_world
from contract.release_world import HOST, TOKEN, World, eventually, values_of, world
from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import RetryPolicy, open_store
from ports import free_port

BASE = 1_700_000_000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server_world(token=TOKEN) as made:
        yield made


@pytest.fixture
def cube(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, shards=1) as made:
        yield made


def keep_in(cube: World, url: str) -> None:
    cube.store = open_store(StoreConfig(url=url), tokens=tokens(TOKEN), retry=RetryPolicy(60))  # type: ignore[assignment]


def problems(cube: World) -> str:
    return " ".join(cube.status()["problems"])


def test_a_cube_goes_live_and_on_while_its_file_server_comes_and_goes(server: FileServer, cube: World) -> None:
    keep_in(cube, server.url)
    with closing(cube.store):
        server.kill()
        cube.start_all()
        eventually(
            "transfer says that the store is away", lambda: "is it running, and is store.config.url" in problems(cube)
        )

        server.start()
        keys = cube.base(BASE)
        cube.live(BASE)
        eventually("transfer says no more", lambda: not cube.status()["problems"])

        server.kill()
        eventually(
            "transfer says that the store is away", lambda: f"cannot be read from {server.url}" in problems(cube)
        )
        values, missed = cube.seek(BASE, keys)
        assert not missed.any()
        np.testing.assert_array_equal(values, values_of(keys, BASE))

        server.start()
        cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE)
        cube.live(BASE + 1)
        values, _ = cube.seek(BASE + 1, keys)
        np.testing.assert_array_equal(values[:5], values_of(keys[:5], BASE + 1))
        np.testing.assert_array_equal(values[5:], values_of(keys[5:], BASE))

    assert not [each for each in server.files() if ".part-" in each or each.startswith("tmp/")]


def test_a_master_that_begins_before_its_store_waits_for_it_and_says_so(server: FileServer, tmp_path: Path) -> None:
    status_port = free_port()
    (tmp_path / "internal").write_text(f"test {TOKEN}")
    (tmp_path / "logs").mkdir()
    settings = {
        "host": HOST,
        "auth": {"internalFile": str(tmp_path / "internal")},
        "data": {"source": {"url": f"file://{tmp_path}/logs"}, "start": "20200401/00", "slots": ["1"]},
        "model": {"network": "slot-dnn", "embeddingDim": 3},
        "store": {"url": server.url},
        "master": {"port": free_port(), "statusPort": status_port, "stateDir": str(tmp_path / "state")},
        "trainer": {},
        "pservers": 1,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    server.kill()
    command = [str(Path(sys.executable).parent / "elastic-ctr"), "master", "-c", str(tmp_path / "config.yaml")]
    with (tmp_path / "log").open("ab") as log:
        master = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "POD_NAME": "master-0"})
    try:

        def said() -> str:
            assert master.poll() is None, (tmp_path / "log").read_text()
            return (tmp_path / "log").read_text()

        eventually("it says what it waits for", lambda: f"checkpoints cannot be listed in {server.url}" in said())
        server.start()
        answer = eventually("it works", lambda: said() and httpx.get(f"http://{HOST}:{status_port}/status"))

        assert answer.json()["error"] == ""
        assert answer.json()["waitsFor"] in {"", "20200401/00/donefile"}
    finally:
        master.terminate()
        assert master.wait(30) == 0
