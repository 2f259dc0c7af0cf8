"""A serving pod whose workers answer as a test says; the real ones are in tests/contract."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from elastic_ctr.cube.release import Holder, Placement, ReleaseDocument
from elastic_ctr.serving.rollout import Rollout
from elastic_ctr.serving.worker_pool import ServingWorker, WorkerPool
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish

PARTITIONS = 2


def put(store: FileStore, version: int, folder: Path) -> None:
    files = []
    for name in ("network.pdmodel", "network.pdiparams", "sample.jsonl"):
        source = folder / name
        source.write_text(f"{name} of {version}")
        files.append(publish(store, source, f"{layout.model_folder(version)}/{name}"))
    manifest = VersionManifest(
        version=version, kind="base", base=version, parent=None, pass_id="1", event_time_max=1, created_at=1.0,
        partitions=PARTITIONS, dim=1, keys=0, slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=(),
        model_files=tuple(files), samples=0, auc_live=None, auc_published=None,
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))


class Scripted:
    """A worker, or the process that checks: `outcome[version]` is what its check or load ends with, at once or when the
    test says so. A pin of what it has not loaded, or has let go, is one of its `faults`: the real one would end over it.
    """

    def __init__(self, index: int, log: list[tuple[Any, ...]]) -> None:
        self.index = index
        self.loaded: set[int] = set()
        self.kept: set[int] = set()
        self.updating: asyncio.Task[None] | None = None
        self.pinned: int | None = None
        self.canary: int | None = None
        self.listening = False
        self.silent = False
        self.killed = 0
        self.outcome: dict[int, dict[str, Any] | Exception | asyncio.Future[dict[str, Any]]] = {}
        self.listens = {"ok": True}
        self.answers_with: int | None = None
        self.faults: list[int] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has: set[int] = set()
        self._log = log

    @property
    def answering(self) -> bool:
        return self.listening and not self.silent

    @property
    def is_updated(self) -> bool:
        return self.updating is None or self.updating.done()

    def kill(self) -> None:
        self.killed += 1

    def send(self, do: str, **what: Any) -> "asyncio.Future[dict[str, Any]]":
        self._log.append((self.index, do, what["stage"] if do == "stage" else what.get("version")))
        answer = asyncio.ensure_future(self._answer(do, what))
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    async def _answer(self, do: str, what: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if do == "listen":
            return self.listens
        if do == "pin":
            self.answers_with = what["version"]
            if self.answers_with not in self._has:
                self.faults.append(self.answers_with)
        if do == "keep":
            self._has &= {*what["versions"], self.answers_with}
        if do == "check":
            return await self._outcome(what["version"], {"passed": 1e-7})
        if do == "load":
            assert (Path(what["folder"]) / "manifest.json").exists()
            outcome = await self._outcome(what["version"], {"ok": True})
            if "ok" in outcome:
                self._has.add(what["version"])
            return outcome
        return {"ok": True}

    async def _outcome(self, version: int, usual: dict[str, Any]) -> dict[str, Any]:
        outcome = self.outcome.get(version, usual)
        if isinstance(outcome, Exception):
            raise outcome
        return await asyncio.shield(outcome) if isinstance(outcome, asyncio.Future) else outcome

    def hangs_at(self, version: int) -> "asyncio.Future[dict[str, Any]]":
        """Until what is returned has a result."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.outcome[version] = answer
        return answer


CHECKER = -1


class Pod:
    def __init__(self, store: FileStore, scratch: Path, count: int) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.running = {index: Scripted(index, self.log) for index in range(count)}
        self.checker = Scripted(CHECKER, self.log)
        self.rollout = Rollout(store, scratch, cast("WorkerPool", self))
        self._revision = 0
        self.keepers: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def kept(self) -> None:
        await self.keepers

    def in_order(self) -> list[Scripted]:
        return [self.running[index] for index in sorted(self.running)]

    def all(self) -> list[Scripted]:
        return [*self.in_order(), self.checker]

    def document(self, **fields: Any) -> None:
        self._revision += 1
        versions = {fields.get(name) for name in ("live", "previous", "candidate")} - {None}
        holders = {version: {"cube:1": Holder(partitions=tuple(range(PARTITIONS)))} for version in versions}
        document = ReleaseDocument(
            **{
                "generation": 1,
                "revision": self._revision,
                "placement": Placement(shards=1),
                "wanted": tuple(versions),
                "holders": holders,
                **fields,
            }
        )
        self.rollout.on_document(document)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def start_anew(self, index: int) -> Scripted:
        self.running[index] = Scripted(index, self.log)
        self.rollout.started(cast("ServingWorker", self.running[index]))
        return self.running[index]

    def did(self, do: str) -> list[tuple[Any, ...]]:
        return [(index, what) for index, done, what in self.log if done == do]

    def checked(self) -> list[int]:
        return [version for _, version in self.did("check")]


@asynccontextmanager
async def pod(
    tmp_path: Path, versions: tuple[int, ...] = (1, 2, 3), workers: int = 2, live: int | None = None
) -> AsyncIterator[Pod]:
    """With `live` it answers with that one already."""
    store = FileStore(tmp_path / "store")
    for version in versions:
        put(store, version, tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    it = Pod(store, scratch, workers)
    task = asyncio.create_task(it.rollout.run())
    try:
        if live is not None:
            it.document(live=live)
            await it.until(lambda: it.rollout.serving == live)
        yield it
    finally:
        assert not task.done()
        assert not any(worker.faults for worker in it.in_order())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
