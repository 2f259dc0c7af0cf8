"""An agent, and the lookups and the transfer that it works for, which are played: each can do what it likes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credentials import access, tokens
from cube.parts import write_parts
from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.agent.agent import CubeAgent
from elastic_ctr.cube.agent.lookup_parts import LoadedParts, LookupParts, PartsRefused
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.cube.release import AgentReport, Placement, ReleaseDocument
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import RequestRefused, application, serving
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest
from elastic_ctr.store.versions.published_files import publish

PARTITIONS = 4
MINE = (0, 2)
ADDRESS = "127.0.0.1:1"
OTHER = "127.0.0.1:2"


class Played:
    """Lookups that have the parts that were loaded, and a transfer that publishes the test's documents."""

    def __init__(self) -> None:
        self.held: dict[int, set[int]] = {}
        self.loads: list[tuple[int, list[int]]] = []
        self.unloads: list[tuple[int, list[int]]] = []
        self.asked: dict[int, float | None] = {}
        self.draining = False
        self.refuses: set[tuple[int, int]] = set()
        # Raised for each load of a version.
        self.breaks: dict[int, Exception] = {}
        self.lookup: float | None = None
        self.slow = False  # to be told to drain, as while one of its workers hangs
        self.drain_refused = False
        self.drains = 0
        self.document: ReleaseDocument | None = None
        self.reports: list[AgentReport] = []
        self.away = False
        self.gone = False  # transfer, which is restarted

    def loaded(self) -> LoadedParts:
        return LoadedParts(
            versions={version: frozenset(parts) for version, parts in self.held.items() if parts},
            last_asked_seconds={version: self.asked.get(version) for version in self.held},
            last_lookup_seconds=self.lookup,
            draining=self.draining,
            damaged={},
        )

    async def load(self, version: int, dim: int, partitions: int, parts: Mapping[int, Paths]) -> None:
        assert (dim, partitions) == (2, PARTITIONS)
        self.loads.append((version, list(parts)))
        if version in self.breaks:
            raise self.breaks[version]
        for partition, paths in parts.items():
            assert paths.full.exists()
            if (version, partition) in self.refuses:
                raise PartsRefused(f"part {partition} is damaged")
        self.held.setdefault(version, set()).update(parts)

    async def unload(self, version: int, partitions: Collection[int]) -> None:
        self.unloads.append((version, list(partitions)))
        self.held[version] -= set(partitions)

    async def drain(self, *, draining: bool) -> None:
        self.drains += 1
        while self.slow:
            await asyncio.sleep(0.005)
        if self.drain_refused:
            raise PartsRefused("MemoryError: no room")
        self.draining = draining

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
            access("secret").require(request, Right.INTERNAL)
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
    """An agent, with its lookups and transfer."""

    def __init__(self, root: Path, played: Played, agent: CubeAgent, stop: asyncio.Event) -> None:
        self.root = root
        self.played = played
        self.agent = agent
        self.stop = stop

    async def until(self, condition: Callable[[], Any], seconds: float = 120) -> Any:
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
async def pod(
    root: Path,
    played: Played,
    *,
    store: FileStore | None = None,
    lookups: LookupParts | None = None,
    grace_seconds: float = 0.5,
    **options: Any,
) -> AsyncIterator[Pod]:
    store = store or FileStore(root / "store")
    async with serving(played.transfer(), "127.0.0.1", 0) as to:
        settings = {
            "cache_dir": str(root / "cache"), "report_seconds": 0.02, "drain_seconds": 0.1, "drain_idle_seconds": 0.05,
            **options,
        }  # fmt: skip
        config = CubeServerFile(
            model=Model(),
            store=StoreConfig(url=store.url),
            cube=CubePodConfig(**settings),
            transfer_address=f"127.0.0.1:{to.port}",
            grace_seconds=grace_seconds,
        )
        agent = CubeAgent(
            config,
            store,
            lookups or played,
            pod="c-s0-0",
            address=ADDRESS,
            tokens=tokens("secret"),
        )
        stop = asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        made = Pod(root, played, agent, stop)
        try:
            yield made
        finally:
            stop.set()
            await asyncio.wait_for(running, 60)
