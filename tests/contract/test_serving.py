"""Serving against a real cube-server, a real store and networks that Paddle exported: what clients get."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from elastic_ctr.serving.app import Serving, ServingProcess
from elastic_ctr.store import FileStore
from serving_world import (
    SLOTS,
    Cube,
    Exported,
    Transfer,
    cube_server,
    export,
    features_of,
    line_of,
    put_version,
)

FIRST, SECOND = 1001, 1002
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Exported]:
    folder = tmp_path_factory.mktemp("exports")
    return {version: export(folder / str(version), version) for version in (FIRST, SECOND)}


@pytest.fixture
def cube(tmp_path: Path) -> Iterator[Cube]:
    folder = tmp_path / "dict"
    folder.mkdir()
    yield from cube_server(folder)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
async def transfer() -> AsyncIterator[Transfer]:
    transfer = await Transfer().start()
    yield transfer
    await transfer.stop()


class Running:
    """A serving process of this test, and a client of its doors."""

    def __init__(self, process: ServingProcess, client: httpx.AsyncClient, task: "asyncio.Task[None]") -> None:
        self.process = process
        self.task = task
        self._client = client

    async def infer(self, features: list[list[tuple[int, str]]]) -> httpx.Response:
        instances = [
            {"slots": [{"slot_name": slot, "feasigns": [feasign]} for feasign, slot in each]} for each in features
        ]
        return await self._client.post(
            f"http://127.0.0.1:{self.process.port}/ElasticCTRPredictionService/inference", json={"instances": instances}
        )

    async def lines(self, features: list[list[tuple[int, str]]]) -> httpx.Response:
        inputs = [
            {
                "name": "line",
                "shape": [len(features)],
                "datatype": "BYTES",
                "data": [line_of(each) for each in features],
            }
        ]
        return await self.hot("POST", "/v2/models/ctr/infer", json={"inputs": inputs})

    async def hot(self, method: str, path: str, **what: Any) -> httpx.Response:
        return await self._client.request(method, f"http://127.0.0.1:{self.process.port}{path}", **what)

    async def admin(self, path: str) -> httpx.Response:
        return await self._client.get(f"http://127.0.0.1:{self.process.admin_port}{path}")

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2400):
            if condition():
                return
            assert not self.task.done(), "serving ended"
            await asyncio.sleep(0.025)
        raise AssertionError(f"it never came to that: {self.process.status()}")

    async def until_version(self, version: int) -> None:
        await self.until(lambda: self.process.releases.serving == version)


@asynccontextmanager
async def serving(store: FileStore, transfer: Transfer, scratch: Path, **what: Any) -> AsyncIterator[Running]:
    process = ServingProcess(
        Serving(store, transfer.url, "serving-0", scratch, port=0, admin_port=0, lookup_timeout_ms=5000, **what)
    )
    stop = asyncio.Event()
    task = asyncio.create_task(process.run(stop))
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            yield Running(process, client, task)
    finally:
        stop.set()
        await task


async def test_a_version_on_disk_answers_as_its_network_and_embeddings_say(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, tmp_path: Path
) -> None:
    put_version(store, exports[FIRST])
    cube.load(exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    features = [features_of(number) for number in range(300)]
    async with serving(store, transfer, tmp_path / "scratch") as running:
        await running.until_version(FIRST)

        answer = await running.infer(features)
        by_line = await running.lines(features)

    expected = [exports[FIRST].probability(each) for each in features]
    assert answer.status_code == 200
    assert [each["prob1"] for each in answer.json()["predictions"]] == pytest.approx(expected, abs=TOLERANCE)
    assert by_line.status_code == 200
    probability, version = by_line.json()["outputs"]
    assert probability["data"] == pytest.approx(expected, abs=TOLERANCE)
    assert set(version["data"]) == {FIRST}
    assert max(expected) - min(expected) > 0.3
