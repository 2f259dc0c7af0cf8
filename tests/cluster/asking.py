"""Runs in a pod of the cube image: asks without pause, and checks every answer against what was published.

    python asking.py predict|lookup RATE SERVING TRANSFER STORE

`predict`: lines of sample.jsonl through serving's Service; an answer must be what the file says for the version that the
answer names. `lookup`: keys through the cube client, at the holders that the release document names; an answer must be
what the SequenceFiles of the version say. Prints a JSON line each second, and one with `total` when it is told to end.
It has no copy of expected values until it needs one: an answer waits for them and never counts as right before.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Coroutine
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from elastic_ctr.cube.client.connection import VersionNotHeld
from elastic_ctr.cube.client.reader import CubeClient
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest

Row = npt.NDArray[np.float32]

ALLOWED = 1e-5
LINES, KEYS = 8, 64
# A pod that is killed without a word stays in the Service until its node has told the others.
PATIENCE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 0.5


class Tally:
    """Counts of the second under way, and since the start."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self._second: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._ms: list[float] = []

    def count(self, name: str, by: int = 1) -> None:
        self.total[name] += by
        self._second[name] += by

    def failed(self, sentence: str) -> None:
        self.errors[sentence] += 1
        self._errors[sentence] += 1

    def took(self, seconds: float) -> None:
        self._ms.append(round(seconds * 1000, 2))

    def line(self) -> dict[str, Any]:
        shown = {"at": time.time(), **self._second, "errors": dict(self._errors), "ms": self._ms}
        self._second, self._errors, self._ms = Counter(), Counter(), []
        return {**shown, "versions": dict(self.versions)}


class Published:
    """What the store says of versions, fetched once each."""

    def __init__(self, store: str) -> None:
        self._http = httpx.AsyncClient(base_url=store, trust_env=False, timeout=30)
        self._samples: dict[int, list[tuple[str, float]]] = {}
        self._values: dict[int, dict[int, Row]] = {}
        self._manifests: dict[int, VersionManifest] = {}

    async def _get(self, path: str) -> bytes:
        answer = await self._http.get("/" + path)
        answer.raise_for_status()
        return answer.content

    async def manifest(self, version: int) -> VersionManifest:
        if version not in self._manifests:
            text = await self._get(layout.version_manifest(version))
            self._manifests[version] = VersionManifest.model_validate_json(text)
        return self._manifests[version]

    async def samples(self, version: int) -> list[tuple[str, float]]:
        if version not in self._samples:
            lines = (await self._get(layout.sample_file(version))).splitlines()
            read = [json.loads(line) for line in lines]
            self._samples[version] = [(each["line"], float(each["published"])) for each in read]
        return self._samples[version]

    async def values(self, version: int) -> dict[int, Row]:
        """The base, and each delta after it, later wins."""
        if version not in self._values:
            manifest = await self.manifest(version)
            known = (
                {} if manifest.parent is None or manifest.kind == "base" else dict(await self.values(manifest.parent))
            )
            for entry in manifest.cube_files:
                for keys, rows in SequenceFileReader(io.BytesIO(await self._get(entry.path)), name=entry.path):
                    known.update(zip(keys.tolist(), rows, strict=True))
            self._values[version] = known
        return self._values[version]


class Asker(ABC):
    """Asks at a rate, and lets what comes back be judged behind it."""

    def __init__(self, rate: float, published: Published) -> None:
        self.tally = Tally()
        self.published = published
        self.stopping = asyncio.Event()
        self.unjudged: deque[tuple[int, Any, Any]] = deque()
        self._pause = 1 / rate
        self._dice = random.Random(1)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        background = [
            loop.create_task(self._print()),
            loop.create_task(self._judge_all()),
            *map(loop.create_task, self.background()),
        ]
        await self.prepare()
        asked: set[asyncio.Task[None]] = set()
        next_at = loop.time()
        while not self.stopping.is_set():
            task = loop.create_task(self._one())
            asked.add(task)
            task.add_done_callback(asked.discard)
            next_at = max(next_at + self._pause, loop.time() - 1)
            await asyncio.sleep(max(0, next_at - loop.time()))
        if asked:
            await asyncio.wait(asked)
        # What still waits for its expected values may get them.
        for _ in range(50):
            if not self.unjudged:
                break
            await asyncio.sleep(0.2)
        for task in background:
            task.cancel()
        self.tally.count("unjudged", len(self.unjudged))
        totals = {**self.tally.total, "errors": dict(self.tally.errors), "versions": dict(self.tally.versions)}
        print(json.dumps({"total": totals}), flush=True)

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What else runs as long as it asks."""
        return []

    @abstractmethod
    async def prepare(self) -> None:
        """What must be known before the first request."""

    @abstractmethod
    async def ask(self) -> tuple[int, Any, Any]:
        """Version, what was asked, what came."""

    @abstractmethod
    async def right(self, version: int, asked: Any, answer: Any) -> str | None:
        """None, or the sentence that says what is wrong."""

    async def _one(self) -> None:
        self.tally.count("sent")
        start = time.perf_counter()
        try:
            version, asked, answer = await self.ask()
        except Exception as failed:  # noqa: BLE001 - whatever it is, it is a request without an answer
            self.tally.failed(f"{type(failed).__name__}: {failed}"[:300])
            return
        self.tally.took(time.perf_counter() - start)
        self.tally.count("answered")
        self.tally.versions[version] += 1
        self.unjudged.append((version, asked, answer))

    async def _judge_all(self) -> None:
        while True:
            while self.unjudged:
                version, asked, answer = self.unjudged[0]
                try:
                    wrong = await self.right(version, asked, answer)
                except httpx.HTTPError as absent:
                    # The store may be down; the answer keeps waiting.
                    self.tally.total["store failures"] += 1
                    print(json.dumps({"store": str(absent)[:200]}), flush=True)
                    await asyncio.sleep(1)
                    continue
                self.unjudged.popleft()
                self.tally.count("right" if wrong is None else "wrong")
                if wrong is not None:
                    self.tally.failed(wrong)
            await asyncio.sleep(0.05)

    async def _print(self) -> None:
        while True:
            await asyncio.sleep(1)
            print(json.dumps(self.tally.line()), flush=True)


class Predict(Asker):
    """Through the Service, as any HTTP client with retries of what never reached a server."""

    def __init__(self, rate: float, published: Published, serving: str, transfer: str) -> None:
        super().__init__(rate, published)
        self._transfer = transfer
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=8, keepalive_expiry=5)
        self._http = httpx.AsyncClient(base_url=serving, trust_env=False, timeout=15, limits=limits)
        self._lines: list[str] = []

    async def prepare(self) -> None:
        async with httpx.AsyncClient(base_url=self._transfer, trust_env=False) as client:
            while not self.stopping.is_set():
                with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
                    live = (await client.get("/release")).json()["live"]
                    self._lines = [line for line, _ in await self.published.samples(live)]
                    return
                await asyncio.sleep(0.5)

    async def ask(self) -> tuple[int, Any, Any]:
        lines = self._dice.choices(self._lines, k=LINES)
        tensor = {"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + PATIENCE_SECONDS, 0.05
        while True:
            try:
                answer = await self._http.post("/v2/models/ctr/infer", json={"inputs": [tensor]})
                break
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as failed:
                self.tally.count("retried")
                self.tally.failed(f"retried: {type(failed).__name__}: {failed}"[:200])
                if loop.time() > until:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code} {answer.text[:200]}")
        outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
        versions = set(outputs["version"])
        if len(versions) != 1:
            raise RuntimeError(f"one answer of versions {versions}")
        return int(versions.pop()), lines, outputs["probability"]

    async def right(self, version: int, asked: Any, answer: Any) -> str | None:
        known = dict(await self.published.samples(version))
        judged = 0
        for line, probability in zip(asked, answer, strict=True):
            if line in known:
                judged += 1
                if not abs(probability - known[line]) <= ALLOWED:
                    return f"version {version} answers {probability} where {known[line]} was published"
        self.tally.count("values", judged)
        if judged == 0:
            # Its samples are other lines: from now on those of the version that answers are asked too.
            self._lines = list(known)
            self.tally.count("without sample")
        return None


class Lookup(Asker):
    """As serving does: holders from the release document, repeated once where a version has just gone."""

    def __init__(self, rate: float, published: Published, transfer: str) -> None:
        super().__init__(rate, published)
        self._http = httpx.AsyncClient(base_url=transfer, trust_env=False, timeout=httpx.Timeout(40, connect=2))
        self._document: ReleaseDocument | None = None
        self._client: CubeClient | None = None
        self._keys: list[int] = []

    def background(self) -> list[Coroutine[Any, Any, None]]:
        return [self._follow(), self._keep_alive()]

    async def prepare(self) -> None:
        while self._document is None or self._document.live is None:
            if self.stopping.is_set():
                return
            await asyncio.sleep(0.2)
        live = self._document.live
        manifest = await self.published.manifest(live)
        self._keys = list(await self.published.values(live))
        client = CubeClient(manifest.dim, partitions=manifest.partitions, timeout_ms=2000)
        self._client = client
        self._tell(self._document)

    def _tell(self, document: ReleaseDocument) -> None:
        if self._client is None:
            return
        self._client.set_holders(document.addresses(), document.draining())

    async def _follow(self) -> None:
        while True:
            try:
                after = f"?after={self._document.revision}&wait=20" if self._document else ""
                answer = await self._http.get(f"/release{after}")
                if answer.status_code == 200:
                    document = ReleaseDocument.model_validate_json(answer.content)
                    if document.is_newer_than(self._document):
                        self._document = document
                        self._tell(document)
                        continue
            except httpx.HTTPError:
                pass  # Transfer may be down: the document that is known goes on holding.
            await asyncio.sleep(0.2)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(5)
            if self._client is not None and self._document is not None and self._document.live is not None:
                await self._client.keep_alive([self._document.live])

    async def ask(self) -> tuple[int, Any, Any]:
        assert self._client is not None
        assert self._document is not None
        # Two in KEYS were never seen.
        chosen = [*self._dice.choices(self._keys, k=KEYS - 2), *(self._dice.getrandbits(64) for _ in range(2))]
        keys = np.array(chosen, np.uint64)
        for last in (False, True):
            version = self._document.live
            assert version is not None
            try:
                return version, chosen, await self._client.lookup(version, keys)
            except VersionNotHeld:
                if last:
                    raise
                self.tally.count("repeated")
                await self._newest()
        raise AssertionError

    async def _newest(self) -> None:
        document = ReleaseDocument.model_validate_json((await self._http.get("/release")).content)
        if document.is_newer_than(self._document):
            self._document = document
            self._tell(document)

    async def right(self, version: int, asked: Any, answer: Any) -> str | None:
        known = await self.published.values(version)
        values, missing = answer
        for key, row, absent in zip(asked, values, missing, strict=True):
            expected = known.get(key)
            if absent != (expected is None) or not np.array_equal(row, 0 * row if expected is None else expected):
                return f"version {version} answers key {key} with {row.tolist()} missing={bool(absent)}, not {expected}"
        self.tally.count("values", len(asked))
        return None


def main(what: str, rate: str, serving: str, transfer: str, store: str) -> None:
    async def run() -> None:
        published = Published(store)
        asker: Asker
        if what == "predict":
            asker = Predict(float(rate), published, serving, transfer)
        else:
            asker = Lookup(float(rate), published, transfer)
        await asker.run()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
