"""One agent against a server and a transfer that are played over real sockets, so that each can do what it likes."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cube.parts import of_partition, values_for, write_parts
from cube.peers import Peer
from cube.published import RemoteStore
from cube.running import ServerProcess
from elastic_ctr.cube.agent import server
from elastic_ctr.cube.agent.cache import Cache
from elastic_ctr.cube.agent.role import CubeAgent
from elastic_ctr.cube.agent.server import Held, Server, ServerGone, ServerRefused, ServerSilent
from elastic_ctr.cube.agent.service import agent_app
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.release import AgentReport, Holder, Placement, ReleaseDocument
from elastic_ctr.runtime.http import HttpServer, RequestRefused, application, bearer, require_token, serving
from elastic_ctr.store import FileStore, StoreError
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import DictionaryManifest, publish

PARTITIONS = 4
MINE = (0, 2)
ADDRESS = "127.0.0.1:1"
OTHER = "127.0.0.1:2"


class Played:
    """A server that holds what it is told, and a transfer that says what the test says."""

    def __init__(self) -> None:
        self.held: dict[int, set[int]] = {}
        self.loads: list[tuple[int, list[int]]] = []
        self.unloads: list[tuple[int, list[int]]] = []
        self.asked: dict[int, float | None] = {}
        self.draining = False
        self.refuses: set[tuple[int, int]] = set()
        self.lookup: float | None = None
        self.slow = False  # to be told to drain, as while one of its workers hangs
        self.drain_refused = False
        self.drains = 0
        self.document: ReleaseDocument | None = None
        self.reports: list[AgentReport] = []
        self.away = False
        self.gone = False  # transfer, which is restarted

    def server(self) -> Any:
        async def held(request: Request) -> Response:
            return JSONResponse(
                {
                    "versions": {str(v): sorted(parts) for v, parts in self.held.items() if parts},
                    "lastAskedSeconds": {str(v): self.asked.get(v) for v in self.held},
                    "draining": self.draining,
                    "lastLookupSeconds": self.lookup,
                }
            )

        async def load(request: Request) -> Response:
            require_token(request, "secret")
            body = await request.json()
            version, parts = body["version"], [int(p) for p in body["parts"]]
            self.loads.append((version, parts))
            for partition in parts:
                assert Path(body["parts"][str(partition)]["full"]).exists()
                if (version, partition) in self.refuses:
                    raise RequestRefused(422, f"part {partition} is damaged")
            self.held.setdefault(version, set()).update(parts)
            return JSONResponse({})

        async def unload(request: Request) -> Response:
            require_token(request, "secret")
            body = await request.json()
            self.unloads.append((body["version"], body["partitions"]))
            self.held[body["version"]] -= set(body["partitions"])
            return JSONResponse({})

        async def drain(request: Request) -> Response:
            require_token(request, "secret")
            self.drains += 1
            if self.slow:
                await asyncio.sleep(0.5)
            if self.drain_refused:
                raise RequestRefused(422, "MemoryError: no room")
            self.draining = (await request.json())["draining"]
            return JSONResponse({})

        orders = [Route(path, each, methods=["POST"]) for path, each in
                  (("/load", load), ("/unload", unload), ("/drain", drain))]  # fmt: skip
        return application([Route("/held", held), *orders])

    def transfer(self) -> Any:
        async def release(request: Request) -> Response:
            if self.gone:
                raise RequestRefused(503, "it is not there")
            after = int(request.query_params.get("after", -1))
            for _ in range(20):
                if self.document is not None and self.document.revision != after:
                    return Response(self.document.model_dump_json(by_alias=True))
                await asyncio.sleep(0.01)
            return Response(status_code=304)

        async def agents(request: Request) -> Response:
            require_token(request, "secret")
            self.reports.append(AgentReport.model_validate_json(await request.body()))
            return Response(status_code=503 if self.away else 204)

        return application([Route("/release", release), Route("/agents", agents, methods=["POST"])])

    def say(self, live: int | None, *others: int, **more: Any) -> ReleaseDocument:
        """The next document: wanted are live and the others; this pod's shard is 0 of 2."""
        before = self.document
        wanted = tuple(v for v in (live, *others) if v is not None)
        fields = {
            "generation": 1, "revision": 1 if before is None else before.revision + 1, "live": live, "wanted": wanted,
            "placement": Placement(shards=2, up=(0, 1)), "candidate": others[-1] if others else None, **more,
        }  # fmt: skip
        self.document = ReleaseDocument.model_validate(fields)
        return self.document


class Pod:
    """An agent with what it talks to."""

    def __init__(self, root: Path, played: Played, agent: CubeAgent, stop: asyncio.Event) -> None:
        self.root = root
        self.played = played
        self.agent = agent
        self.stop = stop

    async def until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        async def wait() -> Any:
            while not (found := condition()):
                await asyncio.sleep(0.005)
            return found

        return await asyncio.wait_for(wait(), seconds)

    async def holds(self, **versions: tuple[int, ...]) -> None:
        expected = {int(name[1:]): set(parts) for name, parts in versions.items()}
        await self.until(lambda: {v: p for v, p in self.played.held.items() if p} == expected)


def put_dictionary(store: FileStore, work: Path, *versions: int) -> None:
    work.mkdir(exist_ok=True)
    for version in versions:
        files = []
        for partition in range(PARTITIONS):
            (work / "part").write_bytes(bytes([version, partition]) * 1000)
            files.append(publish(store, work / "part", layout.dictionary_part(version, partition)))
        manifest = DictionaryManifest(
            version=version, kind="full", full_version=version, base=version, parent=None, partitions=PARTITIONS,
            dim=2, keys=0, files=tuple(files),
        )  # fmt: skip
        store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))


def put_real_dictionary(store: FileStore, work: Path, version: int, keys: Keys) -> None:
    parts = write_parts(work / str(version), keys, version=version, partitions=PARTITIONS)
    manifest = DictionaryManifest(
        version=version, kind="full", full_version=version, base=version, parent=None, partitions=PARTITIONS,
        dim=4, keys=keys.size,
        files=tuple(publish(store, parts[p].full, layout.dictionary_part(version, p)) for p in range(PARTITIONS)),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))


@asynccontextmanager
async def pod(root: Path, played: Played, *, store: FileStore | None = None, **options: Any) -> AsyncIterator[Pod]:
    store = store or FileStore(root / "store")
    async with serving(played.server(), "127.0.0.1", 0) as door, serving(played.transfer(), "127.0.0.1", 0) as to:
        agent = CubeAgent(
            "c-s0-0", 0, ADDRESS, transfer_url=f"http://127.0.0.1:{to.port}",
            store=store, cache_dir=root / "cache", token="secret",
            **{"server_url": f"http://127.0.0.1:{door.port}", "report_seconds": 0.02, "drain_seconds": 0.1, "quiet_seconds": 0.05, "poll_wait_seconds": 1.0, "grace_seconds": 0.5, **options},
        )  # fmt: skip
        stop = asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        made = Pod(root, played, agent, stop)
        try:
            yield made
        finally:
            stop.set()
            await asyncio.wait_for(running, 60)


@pytest.fixture
def played(tmp_path: Path) -> Played:
    put_dictionary(FileStore(tmp_path / "store"), tmp_path / "work", 4, 5, 6, 7)
    return Played()


async def test_what_the_shard_owes_of_the_wanted_versions_is_loaded_live_first(tmp_path: Path, played: Played) -> None:
    played.say(5, 4, 6)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE, v4=MINE, v6=MINE)
        await it.until(lambda: played.reports[-1].holds == {5: MINE, 4: MINE, 6: MINE})

        assert [version for version, _ in played.loads] == [5, 4, 6]
        assert it.agent.ready() == (True, "ready; holds version 5")


async def test_before_any_version_was_live_a_pod_that_runs_is_ready(tmp_path: Path, played: Played) -> None:
    async with pod(tmp_path, played) as it:
        assert not it.agent.ready()[0]
        played.say(None)
        await it.until(lambda: it.agent.ready()[0])


async def test_a_server_that_was_restarted_is_given_everything_again(tmp_path: Path, played: Played) -> None:
    played.say(5)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)

        played.held = {}
        await it.holds(v5=MINE)

        assert len(played.loads) == 2


async def test_a_document_of_a_lower_generation_changes_nothing(tmp_path: Path, played: Played) -> None:
    played.say(5, generation=3)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        heard = len(played.reports)

        played.say(6, generation=2)
        await it.until(lambda: len(played.reports) > heard + 5)

        assert it.agent.document is not None
        assert it.agent.document.live == 5
        assert played.reports[-1].document == it.agent.document


async def test_an_old_version_is_unloaded_and_its_files_deleted_once_nobody_asks(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        played.asked = {5: 0.0}
        played.say(6)
        await it.holds(v5=MINE, v6=MINE)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.unloads == []

        played.asked = {5: 1.0}
        await it.holds(v6=MINE)
        await it.until(lambda: not (tmp_path / "cache" / "5").exists())

    assert (tmp_path / "cache" / "6").exists()


async def test_the_last_live_version_is_kept_until_the_new_one_is_held(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.refuses = {(6, 2)}
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        played.say(6)
        await it.holds(v5=(2,), v6=(0,))
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)

        assert played.held[5] == {2}
        assert any("part 2 is damaged" in error for error in played.reports[-1].errors)
        assert not it.agent.ready()[0]
        played.refuses = set()
        await it.holds(v6=MINE)


async def test_what_others_owe_now_is_first_no_longer_reported_and_then_unloaded(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=0.3) as it:
        await it.holds(v5=MINE)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        mine = Holder(partitions=MINE, shard=0)
        played.say(5, placement=four, holders={5: {ADDRESS: mine}})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.reports[-1].holds == {5: MINE}

        played.say(5, placement=four, holders={5: {ADDRESS: mine, OTHER: Holder(partitions=(2,), shard=2)}})
        await it.until(lambda: played.reports[-1].holds == {5: (0,)})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.held == {5: {0, 2}}, "the document that readers have still names this pod"

        others = {ADDRESS: Holder(partitions=(0,), shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: others})
        await it.holds(v5=(0,))


async def test_what_another_pod_has_just_come_to_answer_is_reported_on_for_readers_who_do_not_find_that_pod_yet(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=1000) as it:
        await it.holds(v5=MINE)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        both = {ADDRESS: Holder(partitions=MINE, shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: both})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 50)

        assert played.reports[-1].document == played.document
        assert played.reports[-1].holds == {5: MINE}


async def test_nothing_is_unloaded_while_readers_cannot_be_told(tmp_path: Path, played: Played) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=0.3) as it:
        await it.holds(v5=MINE)
        played.away = True
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 100)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        others = {ADDRESS: Holder(partitions=(0,), shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: others})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 50)
        assert played.held == {5: {0, 2}}

        played.away = False
        await it.holds(v5=(0,))


async def test_the_partitions_of_a_shard_that_is_down_are_loaded_too(tmp_path: Path, played: Played) -> None:
    played.say(5, placement=Placement(shards=2, up=(0,)))
    async with pod(tmp_path, played) as it:
        await it.holds(v5=(0, 1, 2, 3))


@pytest.mark.parametrize("kind", [FileStore, RemoteStore])
async def test_a_damaged_part_of_the_candidate_is_reported_and_refused_and_the_rest_is_answered(
    tmp_path: Path, played: Played, kind: type[FileStore]
) -> None:
    store = kind(tmp_path / "store")
    (store.root / layout.dictionary_part(6, 2)).write_bytes(b"\x00" * 2000)
    played.say(5, 6)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE, v6=(0,))
        report = await it.until(lambda: played.reports[-1].refused and played.reports[-1])

        assert "part-00002.dict" in report.refused[6]
        assert report.holds[5] == MINE
        played.say(5, 7)
        await it.until(lambda: played.held.get(7) == set(MINE) and not played.reports[-1].refused)


async def test_a_full_disk_is_reported_and_tried_again_and_what_is_loaded_is_answered(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Cache.parts

    def full(self: Cache, version: int, partition: int) -> tuple[Path, Path | None]:
        if version == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, version, partition)

    played.say(5, 6)
    async with pod(tmp_path, played) as it:
        with monkeypatch.context() as patched:
            patched.setattr(Cache, "parts", full)
            await it.until(lambda: played.reports and any("No space left" in e for e in played.reports[-1].errors))
            assert played.held == {5: set(MINE)}
            assert played.reports[-1].refused == {}
        await it.holds(v5=MINE, v6=MINE)
        await it.until(lambda: not played.reports[-1].errors)


async def test_an_agent_that_ends_drains_while_the_pod_is_asked_and_then_holds_nothing(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.lookup = 0.0
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=Placement(shards=2, up=(1,)), holders={5: {OTHER: Holder(partitions=(0, 1, 2, 3))}})
        it.stop.set()
        await it.until(lambda: played.draining and played.reports[-1].draining)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 10)
        assert played.reports[-1].holds == {5: MINE}
        assert not it.agent.drained.is_set()

        played.lookup = 10.0
        await it.until(it.agent.drained.is_set)

    assert played.reports[-1].holds == {}
    assert played.reports[-1].draining


async def test_a_pod_that_nobody_replaces_yet_stays_until_it_is_replaced(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.lookup = 10.0
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert not it.agent.drained.is_set()

        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1, 2))}})
        await it.until(it.agent.drained.is_set)


async def test_a_pod_that_nobody_replaces_yet_stays_though_transfer_is_restarted_meanwhile(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.lookup = 10.0
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0, poll_wait_seconds=0.5) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: it.agent.document == played.document)
        played.gone = True
        await it.until(lambda: "transfer" in it.agent.errors)
        await asyncio.sleep(0.3)
        assert not it.agent.drained.is_set()

        # Who never comes back is waited for no longer than a restart takes.
        await it.until(it.agent.drained.is_set)


@pytest.mark.parametrize("how", ["slow", "refused"])
async def test_a_pod_that_nobody_replaces_yet_stays_though_its_server_is_slow_to_drain_or_refuses_to(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(server, "_ASK_SECONDS", 0.1)
    played.say(5)
    played.lookup = 10.0
    played.slow, played.drain_refused = how == "slow", how == "refused"
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: played.drains == 3)
        assert not it.agent.drained.is_set()
        assert played.reports[-1].holds == {5: MINE}

        played.slow = played.drain_refused = False
        await it.until(lambda: played.draining)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 10)
        assert not it.agent.drained.is_set()

        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1, 2))}})
        await it.until(it.agent.drained.is_set)


async def test_a_pod_whose_server_never_takes_the_order_to_drain_goes_once_nobody_asks_it_and_others_answer(
    tmp_path: Path, played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = "the cube-server refused /drain with 422: MemoryError: no room"
    played.say(5)
    played.lookup = 0.0
    played.drain_refused = True
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=Placement(shards=2, up=(1,)), holders={5: {OTHER: Holder(partitions=(0, 1, 2, 3))}})
        it.stop.set()
        await it.until(lambda: played.drains >= 10 and refusal in played.reports[-1].errors)
        assert not it.agent.drained.is_set()

        played.lookup = 10.0
        await it.until(it.agent.drained.is_set)

    # However often it refuses, and answers otherwise.
    assert caplog.messages.count(refusal) == 1


async def test_where_nobody_listens_for_a_while_there_is_nothing_to_drain(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.say(5)
    played.lookup = 10.0
    held, gone = Server.held, False

    async def asked(self: Server) -> Held:
        if gone:
            raise ServerGone("nobody listens")
        return await held(self)

    monkeypatch.setattr(Server, "held", asked)
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0, quiet_seconds=2.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: played.draining)
        gone = True
        await asyncio.sleep(1.0)
        gone = False
        await it.until(lambda: played.reports[-1].holds == {5: MINE})
        assert not it.agent.drained.is_set()

        gone = True
        await it.until(it.agent.drained.is_set)


async def test_grace_ends_every_drain(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.lookup = 0.0
    async with pod(tmp_path, played, grace_seconds=0.2) as it:
        await it.holds(v5=MINE)
        it.stop.set()
        await it.until(it.agent.drained.is_set)


async def test_the_agents_door_shows_it_and_drains_it_for_who_knows_the_token(tmp_path: Path, played: Played) -> None:
    played.say(5)
    async with pod(tmp_path, played) as it:
        door = HttpServer(agent_app(it.agent, it.stop, "secret"), "127.0.0.1", 0)
        await door.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}") as client:
            await it.holds(v5=MINE)
            await it.until(lambda: it.agent.ready()[0])
            assert (await client.get("/readyz")).text == "ready; holds version 5\n"
            assert (await client.get("/status")).json()["holds"] == {"5": [0, 2]}
            assert "elastic_ctr_cube_agent_ready 1.0" in (await client.get("/metrics")).text
            assert (await client.post("/drain")).status_code == 401
            assert (await client.post("/drain", headers=bearer("secret"))).status_code == 202
            assert (await client.get("/readyz")).text == "draining\n"
        await it.until(it.agent.drained.is_set)
        await door.stop()


async def test_a_server_that_refuses_or_is_silent_is_told_apart(played: Played) -> None:
    async with serving(played.server(), "127.0.0.1", 0) as door, httpx.AsyncClient() as client:
        stranger = Server(f"http://127.0.0.1:{door.port}", "wrong", client)
        assert await stranger.held() == Held({}, {}, draining=False, lookup=None)

        with pytest.raises(ServerRefused, match="refused /drain with 401: this call changes something"):
            await stranger.drain(draining=True)
    async with httpx.AsyncClient() as client:
        with pytest.raises(ServerGone, match="does not answer"):
            await Server(f"http://127.0.0.1:{door.port}", None, client).held()


async def test_a_server_that_is_slow_is_not_taken_for_one_that_is_gone(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_ASK_SECONDS", 0.1)
    played.slow = True
    async with serving(played.server(), "127.0.0.1", 0) as door, httpx.AsyncClient() as client:
        with pytest.raises(ServerSilent, match="does not answer") as silent:
            await Server(f"http://127.0.0.1:{door.port}", "secret", client).drain(draining=True)

    assert not isinstance(silent.value, ServerGone)


class Unreachable(RemoteStore):
    """A store that answers only while it is not away."""

    away = False

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        if self.away:
            raise StoreError("the store is away")
        return super().read_from(path, offset)


async def test_a_part_that_no_worker_can_open_any_more_is_fetched_anew_while_the_rest_is_answered(
    tmp_path: Path, played: Played
) -> None:
    keys = np.arange(1, 301, dtype=np.uint64)
    store = Unreachable(tmp_path / "real")
    put_real_dictionary(store, tmp_path / "work", 5, keys)
    played.say(5)
    process = await asyncio.to_thread(
        lambda: ServerProcess(tmp_path / "cache", env={"ELASTIC_CTR_LOOKUP": "numpy"}, token="secret")
    )

    def values(partition: int) -> bytes:
        with Peer(process.port) as peer:
            return peer.ask(5, of_partition(keys, partition, PARTITIONS), 4).values.tobytes()

    try:
        async with pod(tmp_path, played, store=store, server_url=f"http://127.0.0.1:{process.admin_port}") as it:
            await it.until(lambda: played.reports and played.reports[-1].holds == {5: MINE}, 60)
            lost = tmp_path / "cache" / "5" / "part-00002.dict"
            store.away = True
            os.truncate(lost, 100)
            os.kill(process.status()["workers"][0], signal.SIGKILL)

            await it.until(lambda: played.reports[-1].holds == {5: (0,)}, 60)
            await it.until(process.ready, 60)
            assert await asyncio.to_thread(values, 0) == values_for(of_partition(keys, 0, PARTITIONS), 4, 5).tobytes()

            store.away = False
            await it.until(lambda: played.reports[-1].holds == {5: MINE}, 60)
            assert await asyncio.to_thread(values, 2) == values_for(of_partition(keys, 2, PARTITIONS), 4, 5).tobytes()
    finally:
        assert await asyncio.to_thread(process.stop) == 0
