"""A worker in this process: its orders come over a socket, and machine code is made when the test says so."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.serving_settings import ServingConfig, ServingWorkerConfig
from elastic_ctr.cube.client.connection import CubeUnavailable
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.lifecycle import bind
from elastic_ctr.serving import worker_process
from elastic_ctr.serving.batching.instances import instances_of
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.batching.spare_networks import SpareNetworks
from elastic_ctr.serving.worker_process import WorkerProcess
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from fuzz.model import Sum
from serving.frontends import Table
from serving.http_peer import until

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"
Made = TypeVar("Made")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is compiled before it is set. Neither Paddle nor the collector of this process is touched."""
    opened = threading.Event()

    def slowly(make: Callable[[], Made]) -> Made:
        opened.wait(60)
        return make()

    monkeypatch.setattr(worker_process, "anew_if_stale", slowly)
    monkeypatch.setattr(worker_process, "_freeze_gc", lambda: None)
    monkeypatch.setattr("elastic_ctr.serving.batching.predictor.preload", lambda: None)
    return opened


class Parent:
    """Gives orders, and reads what is said until an order is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader = reader
        self._writer = writer
        self.port = port

    async def order(self, do: str, **more: Any) -> dict[str, Any]:
        self._writer.write(json.dumps({"id": 1, "do": do, **more}).encode() + b"\n")
        while (said := json.loads(await self._reader.readline())).get("id") != 1:
            pass
        return dict(said)

    async def busy(self) -> bool:
        """What it says of itself next."""
        while (said := json.loads(await self._reader.readline())).get("event") != "counted":
            pass
        return bool(said["busy"])

    async def asks(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client that has been answered and stays."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_LIVE)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        return reader, writer


@asynccontextmanager
async def started(gate: threading.Event, taken: int | None = None) -> AsyncIterator[tuple[WorkerProcess, Parent]]:
    with bind("127.0.0.1", 0, share=True) as reserved:
        port = taken or reserved.getsockname()[1]
        config = ServingWorkerConfig(
            host="127.0.0.1",
            serving=ServingConfig(port=port, grpc_port=0, max_instances=64, max_body_bytes=1 << 20, max_batch_rows=64),
            cube=CubePodConfig(),
        )
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        it = WorkerProcess(config, writer)
        running = asyncio.create_task(it.run(reader))
        parent = Parent(*await asyncio.open_connection(sock=ours), port)
        try:
            yield it, parent
            if not it.stopped.is_set():
                await parent.order("stop", graceSeconds=5)
            await asyncio.wait_for(running, 30)
        finally:
            gate.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            writer.close()
            parent._writer.close()


async def test_it_listens_once_the_machine_code_is_made(gate: threading.Event) -> None:
    async with started(gate) as (it, parent):
        listening = asyncio.create_task(parent.order("listen"))
        await until(lambda: it._under_way)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", parent.port)
        gate.set()

        assert (await listening)["ok"]
        _, writer = await parent.asks()
        writer.close()


async def test_code_that_cannot_be_compiled_ends_the_worker(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("the test wants it")

    monkeypatch.setattr(worker_process, "anew_if_stale", fails)
    async with started(gate) as (it, parent):
        answer = await asyncio.wait_for(parent.order("listen"), 60)
        await asyncio.wait_for(it.stopped.wait(), 60)

    assert "the test wants it" in answer["error"]


async def test_told_to_listen_after_its_end_it_does_not(gate: threading.Event) -> None:
    async with started(gate) as (it, parent):
        it.stopped.set()
        await it._listen({"id": 2})

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", parent.port)


async def test_a_door_that_cannot_be_opened_is_the_answer_to_the_order_and_the_worker_ends(
    gate: threading.Event,
) -> None:
    gate.set()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with started(gate, taken.getsockname()[1]) as (it, parent):
            answer = await asyncio.wait_for(parent.order("listen"), 60)
            await asyncio.wait_for(it.stopped.wait(), 60)
            # Whoever asks before it has ended hears the same.
            await it._listen({"id": 1})

            assert answer["error"] == it._shut
    assert "Address already in use" in answer["error"]


async def test_it_says_that_it_is_at_something_long_before_it_begins(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    async with started(gate) as (it, parent):
        compiling = await parent.busy()
        gate.set()
        while await parent.busy():
            pass
        say = it._say

        def noted(line: dict[str, Any]) -> None:
            said.append(line)
            say(line)

        async def open_doors() -> None:
            known.append(said[-1])

        monkeypatch.setattr(it, "_say", noted)
        monkeypatch.setattr(it, "_open_frontends", open_doors)
        await parent.order("listen")
        while await parent.busy():
            pass

    assert compiling
    assert known[0]["busy"]


def put_version(folder: Path, published: float) -> None:
    """One sample; the table of these tests answers a key with itself, and the network adds up."""
    manifest = VersionManifest(
        version=1, kind="base", base=1, parent=None, pass_id="1", event_time_max=1, created_at=1.0,
        partitions=1, dim=1, keys=0, slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=(),
        model_files=(), samples=1, auc_live=None, auc_published=None,
    )  # fmt: skip
    (folder / layout.MANIFEST).write_bytes(manifest.to_json())
    (folder / worker_process.SAMPLE_FILE).write_text(json.dumps({"line": "5:0 6:0", "published": published}) + "\n")


async def test_a_version_is_checked_by_its_samples_and_let_go_and_loaded_without_them(
    gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.set()
    table = Table()
    monkeypatch.setattr(SpareNetworks, "load", lambda *_: Sum())
    monkeypatch.setattr(SpareNetworks, "put", lambda *_: None)
    monkeypatch.setattr(WorkerProcess, "_client", lambda *_: table)
    order = {"version": 1, "folder": str(tmp_path)}
    async with started(gate) as (it, parent):
        put_version(tmp_path, 11.0)
        passed = await parent.order("check", **order)
        put_version(tmp_path, 11.5)
        refused = await parent.order("check", **order)
        table.wrong = CubeUnavailable("nobody answers")
        later = await parent.order("check", **order)
        left = list(it._batcher.versions)
        lookups = table.lookups
        loaded = await parent.order("load", **order)
        (tmp_path / layout.MANIFEST).unlink()
        missing = await parent.order("load", **order)

        assert list(it._batcher.versions) == [1]

    assert passed["passed"] == 0.0
    assert refused["maxAbsDiff"] == 0.5
    assert refused["refused"].startswith("version 1 answers sample line 1 with 11")
    assert later["later"] == "nobody answers"
    assert left == []
    assert loaded["ok"]
    assert table.lookups == lookups
    assert missing["error"].startswith("version 1 cannot be loaded (FileNotFoundError")


async def test_a_version_wanted_again_while_a_request_still_uses_it_can_be_answered_with(
    gate: threading.Event, tmp_path: Path
) -> None:
    gate.set()
    slots = SlotList(("0",))
    put_version(tmp_path, 0.0)
    table = Table()
    table.gate.clear()
    answered: list[int] = []
    instances = instances_of([[[5]]], 1)
    async with started(gate) as (it, parent):
        for version in (1, 2):
            it._batcher.add(ModelVersion(version, Schema(slots), None, 1, Sum(), table))
        it._batcher.pin(1)
        it._batcher.submit(lambda _: instances, instances, Schema(slots), lambda _, version: answered.append(version))
        await until(lambda: table.lookups == 1)
        await parent.order("pin", version=2)
        await parent.order("keep", versions=[2])

        outcome = await parent.order("load", version=1, folder=str(tmp_path))
        table.gate.set()
        await until(lambda: bool(answered))
        pinned = await parent.order("pin", version=1)

        assert it._batcher.current().version == 1

    assert outcome["ok"]
    assert pinned["ok"]
    assert answered == [1]
