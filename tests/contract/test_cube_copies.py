"""Two cube-servers that hold the same, one killed after the other: what their readers see of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cube.parts import values_for, write_parts
from cube.running import ServerProcess
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.client.connection import CubeUnavailable
from elastic_ctr.cube.client.reader import CubeClient
from elastic_ctr.cube.dictionary.format import Values
from elastic_ctr.cube.dictionary.table import Paths

DIM, PARTITIONS = 4, 3
KEYS = np.arange(1, 301, dtype=np.uint64)
WANTED = values_for(KEYS, DIM).tobytes()


class Copies:
    def __init__(self, folder: Path, paths: dict[int, Paths]) -> None:
        self._folder, self._paths = folder, paths
        self.servers = [ServerProcess(), ServerProcess()]
        for server in self.servers:
            server.load(1, paths)
        self.addresses = [server.address for server in self.servers]

    def kill(self, number: int) -> None:
        """As a node does that loses power: nobody says good-bye."""
        killed = self.servers[number]
        killed.process.kill()
        killed.stop()

    def start(self, number: int) -> ServerProcess:
        self.servers[number] = ServerProcess(port=int(self.addresses[number].rpartition(":")[2]))
        return self.servers[number]

    def kill_each(self) -> None:
        """In turn: the second one once the first holds everything again."""
        for number in range(2):
            self.kill(number)
            self.start(number).load(1, self._paths)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    running = Copies(tmp_path, write_parts(tmp_path / "v1", KEYS, dim=DIM, partitions=PARTITIONS))
    yield running
    running.stop()


async def _asked_all_the_while(
    lookup: Callable[[], Awaitable[tuple[Values, object]]], kill: Callable[[], None]
) -> tuple[int, list[Exception]]:
    """How many lookups were right while that was going on, and what the others failed with."""
    killing = asyncio.create_task(asyncio.to_thread(kill))
    right, failures = 0, []
    while not killing.done():
        try:
            values, _ = await lookup()
        except Exception as failed:  # noqa: BLE001 - compared with none below
            failures.append(failed)
        else:
            assert values.tobytes() == WANTED
            right += 1
        await asyncio.sleep(0.002)
    await killing
    return right, failures


async def test_every_lookup_is_answered_while_either_of_two_copies_is_killed(copies: Copies) -> None:
    client = CubeClient(DIM, partitions=PARTITIONS)
    client.set_holders({1: {address: list(range(PARTITIONS)) for address in copies.addresses}})

    right, failures = await _asked_all_the_while(lambda: client.lookup(1, KEYS), copies.kill_each)

    await client.close()
    assert failures == []
    assert right > 100


async def test_a_blocking_client_is_answered_while_either_of_two_copies_is_killed(copies: Copies) -> None:
    with BlockingCubeClient(copies.addresses) as client:
        right, failures = await _asked_all_the_while(
            lambda: asyncio.to_thread(client.lookup, 1, KEYS), copies.kill_each
        )

    assert failures == []
    assert right > 100


def test_a_blocking_client_asks_a_copy_that_was_away_when_it_was_made(copies: Copies) -> None:
    copies.kill(0)
    with BlockingCubeClient(copies.addresses) as client:
        assert client.lookup(1, KEYS)[0].tobytes() == WANTED
        back = copies.start(0)
        assert client.lookup(1, KEYS)[0].tobytes() == WANTED
        back.load(1, copies._paths)
        copies.kill(1)

        assert client.lookup(1, KEYS)[0].tobytes() == WANTED


def test_a_blocking_client_asks_a_copy_that_held_nothing_when_it_was_made(copies: Copies) -> None:
    copies.kill(0)
    back = copies.start(0)
    with BlockingCubeClient(copies.addresses) as client:
        back.load(1, copies._paths)
        copies.kill(1)

        assert client.lookup(1, KEYS)[0].tobytes() == WANTED
        back.http.post("/unload", json={"version": 1, "partitions": None})
        with pytest.raises((CubeUnavailable, LookupError)):
            client.lookup(1, KEYS)
