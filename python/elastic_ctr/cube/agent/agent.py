"""`cube-agent`: brings one cube-server the parts that its pod owes, and reports what the server answers.

Three things go on side by side: following the release document, working towards it, reporting. Nothing is remembered
that the server could be asked: a server that was restarted holds nothing, and is given everything again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from elastic_ctr.cube.agent.cache import Cache, FetchStopped
from elastic_ctr.cube.agent.drain_client import LONGEST_DRAIN_SECONDS
from elastic_ctr.cube.agent.handoff import HandedOver
from elastic_ctr.cube.agent.server_client import LoadedParts, Server, ServerGone, ServerRefused, ServerUnreachable
from elastic_ctr.cube.placement import covered_without, owed_partitions, unneeded_partitions
from elastic_ctr.cube.release import AgentReport, ReleaseDocument
from elastic_ctr.runtime.http import bearer
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.store import NotInStore, Store, StoreError
from elastic_ctr.versions.manifest import DictionaryManifest, ManifestDamaged

log = logging.getLogger(__name__)

# So many parts that had to be fetched are given to the server at a time.
_BATCH = 8
_LONGEST_BACK_OFF = 30.0
# A part that is wrong so often, each time fetched anew, is wrong in the store.
_DAMAGED_TIMES = 3
_QUIET_SECONDS = 5.0
# So many damaged parts are named.
_NAMED = 3


class CubeAgent:
    """One pod's agent. Made and used inside one event loop.

    `address` is where readers reach the server, `server_url` its admin door. Bytes a second bound fetching alone.
    """

    def __init__(
        self,
        pod: str,
        shard: int,
        address: str,
        *,
        server_url: str,
        transfer_url: str,
        store: Store,
        cache_dir: Path,
        token: str | None = None,
        bytes_per_second: float = 100 << 20,
        drain_seconds: float = 30.0,
        report_seconds: float = 1.0,
        grace_seconds: float = LONGEST_DRAIN_SECONDS,
        drain_idle_seconds: float = _QUIET_SECONDS,
        poll_wait_seconds: float = 20.0,
    ) -> None:
        self.pod = pod
        self.shard = shard
        self.address = address
        self.document: ReleaseDocument | None = None
        self.loaded: LoadedParts | None = None
        self.draining = False
        self.errors: dict[str, str] = {}
        self.refused: dict[int, str] = {}
        self._transfer_url = transfer_url.rstrip("/")
        self._server_url = server_url
        self._token = token
        self._cache = Cache(store, cache_dir, bytes_per_second)
        self._drain_seconds = drain_seconds
        self._report_seconds = report_seconds
        self._grace_seconds = grace_seconds
        self._drain_idle_seconds = drain_idle_seconds
        self._poll_wait_seconds = poll_wait_seconds
        self._something = asyncio.Event()
        self._report_now = asyncio.Event()
        self._failures: dict[int, int] = {}
        self._damaged: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._handed_over = HandedOver(drain_seconds)
        self._transfer_heard_at = float("-inf")
        self._report_taken_at = float("-inf")
        # All versions of a model have the same number; learned from the first manifest.
        self._partitions: int | None = None
        self._server: Server | None = None
        self._client: httpx.AsyncClient | None = None
        self.drained = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set, then drain, report that nothing is loaded any more, and end."""
        async with httpx.AsyncClient(trust_env=False) as client:
            self._client = client
            self._server = Server(self._server_url, self._token, client)
            work = [asyncio.create_task(each) for each in (self._follow(), self._work(), self._report_on())]
            ending = asyncio.create_task(self._drained_after(stop))
            try:
                done, _ = await asyncio.wait([ending, *work], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._cache.stopped.set()
                for task in (ending, *work):
                    task.cancel()
                await asyncio.gather(ending, *work, return_exceptions=True)
            await self._report({})

    @property
    def fetched_bytes(self) -> int:
        return self._cache.fetched_bytes

    def drain(self) -> None:
        """Tell readers and transfer that this pod is going; nothing new is fetched from now on."""
        if not self.draining:
            log.info("draining: other pods take over what this one answers")
            self.draining = True
            self._report_now.set()

    def ready(self) -> tuple[bool, str]:
        """As in the design: before any version has been live everything that runs is ready."""
        document, held = self.document, self.loaded
        if self.draining:
            return False, "draining"
        if held is None:
            return False, "the cube-server does not answer yet"
        if document is None:
            return False, "transfer has not said yet what to hold"
        if document.live is None:
            return True, "ready; no version has ever been live"
        if self._partitions is None:
            return False, f"the manifest of version {document.live} has not been read yet"
        owed = owed_partitions(self.shard, document.live, document, self._partitions)
        lacking = owed - held.versions.get(document.live, frozenset())
        if lacking:
            return False, f"{len(lacking)} partitions of version {document.live} are still to be loaded"
        return True, f"ready; holds version {document.live}"

    def status(self) -> dict[str, Any]:
        document, held = self.document, self.loaded
        return {
            "role": "cube-agent",
            "pod": self.pod,
            "shard": self.shard,
            "address": self.address,
            "draining": self.draining,
            "generation": None if document is None else document.generation,
            "revision": None if document is None else document.revision,
            "live": None if document is None else document.live,
            "wanted": [] if document is None else list(document.wanted),
            "loaded": {} if held is None else {str(v): sorted(parts) for v, parts in sorted(held.versions.items())},
            "refused": {str(version): reason for version, reason in self.refused.items()},
            "errors": list(self.errors.values()),
        }

    # Following

    async def _follow(self) -> None:
        while True:
            try:
                answer = await self._ask_release()
                if answer is not None:
                    self._take(answer)
            except (httpx.HTTPError, ValidationError, ValueError) as failed:  # noqa: PERF203 (a poll)
                self._complain("transfer", f"transfer at {self._transfer_url} does not answer: {failed}", quiet=True)
                await asyncio.sleep(min(1.0, self._report_seconds))

    async def _ask_release(self) -> ReleaseDocument | None:
        assert self._client is not None
        known = self.document
        query: dict[str, str] = {"wait": str(self._poll_wait_seconds)}
        if known is not None:
            query |= {"after": str(known.revision), "generation": str(known.generation)}
        # A transfer that was lost without a word is heard of no sooner than this ends.
        timeout = httpx.Timeout(self._poll_wait_seconds + 3.0, connect=2.0)
        answer = await self._client.get(f"{self._transfer_url}/release", params=query, timeout=timeout)
        if answer.status_code not in {200, 304}:
            raise ValueError(f"{answer.status_code} {answer.text[:200]}")
        self._transfer_heard_at = time.monotonic()
        self.errors.pop("transfer", None)
        return ReleaseDocument.model_validate_json(answer.content) if answer.status_code == 200 else None

    def _take(self, document: ReleaseDocument) -> None:
        if not document.is_newer_than(self.document):
            # An old one comes from a transfer that has lost its state and has not been told yet.
            log.debug("generation %s revision %s is not newer", document.generation, document.revision)
            return
        if self.document is None or self.document.live != document.live:
            log.info("live is %s, wanted are %s", document.live, list(document.wanted))
        self.document = document
        self.refused = {v: reason for v, reason in self.refused.items() if v in document.wanted}
        self._failures = {v: count for v, count in self._failures.items() if v in document.wanted}
        self._something.set()

    # Working

    async def _work(self) -> None:
        assert self._server is not None
        while True:
            try:
                await self._look()
                self.errors.pop("server", None)
                if self.document is not None and not self.draining:
                    await self._approach(self.document)
            except (ServerUnreachable, ServerRefused) as failed:
                self._complain("server", str(failed))
            except OSError as failed:
                self._complain("disk", f"the cache cannot be used: {failed.strerror or failed}")
            await wait_event(self._something, min(0.5, self._report_seconds))
            self._something.clear()

    async def _look(self) -> LoadedParts:
        assert self._server is not None
        try:
            held = await self._server.loaded()
        except ServerUnreachable:
            self.loaded = None
            raise
        if self.loaded is None or held.versions != self.loaded.versions:
            self.loaded = held
            self._report_now.set()
        self.loaded = held
        damaged = {sentence for parts in held.damaged.values() for sentence in parts.values()}
        if damaged:
            self._complain("damaged", f"{'; '.join(sorted(damaged)[:_NAMED])}: the part is fetched anew")
        else:
            self.errors.pop("damaged", None)
        return held

    async def _approach(self, document: ReleaseDocument) -> None:
        """One version at a time, live first; a newer document is looked at between two batches."""
        for version in document.wanted:
            given_up = version in self.refused and version == document.candidate
            if given_up or time.monotonic() < self._not_before.get(version, 0.0):
                continue
            try:
                await self._load(document, version)
            except FetchStopped:
                return
            except ManifestDamaged as damaged:
                self._failed(version, str(damaged), damaged=True)
            except (StoreError, ServerRefused) as failed:
                self._failed(
                    version, str(failed), damaged=isinstance(failed, NotInStore) and self._cache.is_published(version)
                )
            except OSError as failed:
                if isinstance(failed, ServerUnreachable):
                    raise
                self._failed(version, f"version {version} cannot be kept on this disk: {failed.strerror or failed}")
            else:
                self._failures.pop(version, None)
                self._damaged.pop(version, None)
                self.refused.pop(version, None)
                self.errors.pop(str(version), None)
            if self._overtaken(document):
                return
        for name in [each for each in self.errors if each.isdigit() and int(each) not in document.wanted]:
            del self.errors[name]
        self.errors.pop("disk", None)
        await self._let_go(document)

    def _overtaken(self, document: ReleaseDocument) -> bool:
        """Whether something else is to be loaded now; that others load, too, is no reason to begin again."""
        now = self.document
        return self.draining or now is None or (now.wanted, now.placement) != (document.wanted, document.placement)

    async def _load(self, document: ReleaseDocument, version: int) -> None:
        """Everything that can be loaded is; then the first part that could not is raised.

        Raises StoreError, ManifestDamaged, ServerRefused, ServerUnreachable, OSError, FetchStopped.
        """
        manifest = await asyncio.to_thread(self._cache.manifest, version)
        self._partitions = manifest.partitions
        wrong: dict[int, OSError | ManifestDamaged] = {}
        most = manifest.partitions
        before: list[int] = []
        while True:
            held = await self._look()
            # Who holds what changes while others load, and with it what this pod owes.
            owed = owed_partitions(self.shard, version, self.document or document, manifest.partitions)
            missing = sorted(owed - held.versions.get(version, frozenset()) - wrong.keys())
            if self._overtaken(document):
                return
            if not missing:
                break
            self._cache.distrust(version, held.damaged.get(version, {}).keys() & set(missing))
            if missing == before:
                raise ServerRefused(f"the cube-server took parts of version {version} and does not hold them")
            there = await asyncio.to_thread(self._cache.at_hand, version)
            # What is on this machine is answered at once; the rest comes batch by batch.
            batch = ([p for p in missing if p in there] or missing[:_BATCH])[:most]
            before = missing
            refused = await self._load_batch(manifest, batch, wrong)
            if refused is not None and len(batch) == 1:
                wrong[batch[0]] = refused
            elif refused is not None:
                before, most = [], 1  # one part spoils its batch: given one by one, the server says which
        if wrong:
            raise next(iter(wrong.values()))

    async def _load_batch(
        self, manifest: DictionaryManifest, batch: Collection[int], wrong: dict[int, OSError | ManifestDamaged]
    ) -> ServerRefused | None:
        assert self._server is not None
        parts: dict[int, tuple[Path, Path | None]] = {}
        for partition in batch:
            try:
                parts[partition] = await asyncio.to_thread(self._cache.parts, manifest.version, partition)
            except (ManifestDamaged, NotInStore) as bad:  # noqa: PERF203 (a file is read in between)
                wrong[partition] = bad
        if parts:
            try:
                await self._server.load(manifest.version, manifest.dim, manifest.partitions, parts)
            except ServerRefused as refused:
                self._cache.distrust(manifest.version, parts)
                return refused
        return None

    def _failed(self, version: int, sentence: str, *, damaged: bool = False) -> None:
        failures = self._failures.get(version, 0) + 1
        self._failures[version] = failures
        self._not_before[version] = time.monotonic() + min(_LONGEST_BACK_OFF, 0.25 * 2**failures)
        self._complain(str(version), sentence)
        if damaged:
            self._damaged[version] = self._damaged.get(version, 0) + 1
            if self._damaged[version] >= _DAMAGED_TIMES:
                self.refused[version] = sentence
                self._report_now.set()

    def _complain(self, about: str, sentence: str, *, quiet: bool = False) -> None:
        if self.errors.get(about) != sentence:
            log.log(logging.INFO if quiet else logging.WARNING, "%s", sentence)
            self.errors[about] = sentence
            self._report_now.set()

    async def _let_go(self, document: ReleaseDocument) -> None:
        """Unload what has long been needed by nobody, then delete its files."""
        assert self._server is not None
        held = await self._look()
        now = time.monotonic()
        for version, parts in self._unneeded(held, document, now).items():
            asked = held.asked.get(version)
            # Of a wanted version others answer these partitions, and this pod is not named for them any more.
            quiet = version in document.wanted or asked is None or asked >= self._drain_seconds
            due = [p for p in parts if self._handed_over.over((version, p), now)]
            if quiet and due:
                log.info("unloading %s partitions of version %s: nobody needs them here", len(due), version)
                await self._server.unload(version, due)
        held = await self._look()
        for version in await asyncio.to_thread(self._cache.forget, {*held.versions, *document.wanted}):
            log.info("the files of version %s are deleted from the cache", version)

    def _named(self, version: int, document: ReleaseDocument) -> frozenset[int]:
        """Partitions of a wanted version that readers are told to ask this pod for."""
        mine = document.holders.get(version, {}).get(self.address) if version in document.wanted else None
        return frozenset() if mine is None else frozenset(mine.partitions)

    def _unneeded(self, held: LoadedParts, document: ReleaseDocument, now: float) -> Mapping[int, frozenset[int]]:
        """What is held and not needed, by version; since when is noted."""
        if self._partitions is None or self.draining:
            return {}
        if now - self._report_taken_at > 3 * self._report_seconds + 1:
            # Transfer is away: readers may know no newer document than one that names this pod, so their time begins
            # anew when it is back.
            self._handed_over.see((), (), now)
            return {}
        free = unneeded_partitions(held.versions, document, self.shard, self.address, self._partitions)
        pairs = {(version, p) for version, parts in free.items() for p in parts}
        named = {(version, p) for version in free for p in self._named(version, document)}
        self._handed_over.see(pairs, named, now)
        return free

    # Reporting

    async def _report_on(self) -> None:
        while True:
            # Fetching may keep `_work` busy for minutes: what the server answers is asked here as well.
            with contextlib.suppress(ServerUnreachable, ServerRefused):
                await self._look()
            self._report_now.clear()
            await self._report(self._advertised())
            await wait_event(self._report_now, self._report_seconds)

    def _advertised(self) -> dict[int, tuple[int, ...]]:
        """What the server answers, without what is about to be unloaded while others answer it."""
        held, document = self.loaded, self.document
        if held is None:
            return {}
        now = time.monotonic()
        # Also while it loads: who is needed again meanwhile, and no longer, begins anew.
        free = {} if document is None else self._unneeded(held, document, now)
        found: dict[int, tuple[int, ...]] = {}
        for version, parts in sorted(held.versions.items()):
            wanted = document is not None and version in document.wanted
            going = {p for p in free.get(version, ()) if wanted and self._handed_over.going((version, p), now)}
            if stays := tuple(sorted(parts - going)):
                found[version] = stays
        return found

    async def _report(self, loaded: Mapping[int, tuple[int, ...]]) -> None:
        assert self._client is not None
        report = AgentReport(
            pod=self.pod,
            address=self.address,
            shard=self.shard,
            loaded=dict(loaded),
            draining=self.draining,
            document=self.document,
            refused=self.refused,
            errors=tuple(self.errors.values()),
        )
        try:
            answer = await self._client.post(
                f"{self._transfer_url}/agents",
                content=report.to_json(),
                headers={"content-type": "application/json", **bearer(self._token)},
                timeout=5.0,
            )
        except httpx.HTTPError as failed:
            log.debug("no report: %s", failed)
            return
        if answer.status_code >= 400:
            self._complain("report", f"transfer refused the report: {answer.text[:300]}")
        else:
            self._report_taken_at = time.monotonic()
            self.errors.pop("report", None)

    # Ending

    async def _drained_after(self, stop: asyncio.Event) -> None:
        assert self._server is not None
        await stop.wait()
        self.drain()
        until = time.monotonic() + self._grace_seconds
        began = heard = time.monotonic()
        while time.monotonic() < until:
            try:
                held = await self._server.loaded()
                heard = time.monotonic()
                if held.draining:
                    self.errors.pop("drain", None)
                else:
                    await self._order_to_drain(self._server)
            except ServerGone as gone:
                # Nobody is answered where nobody listens; but it may be about to come back.
                if time.monotonic() - heard >= self._drain_idle_seconds:
                    log.info("nothing to drain: %s", gone)
                    break
            except (ServerUnreachable, ServerRefused) as failed:
                # It may answer lookups all the same, and be the only one who does.
                heard = time.monotonic()
                self._complain("server", str(failed))
            else:
                quiet = time.monotonic() - began if held.lookup is None else min(held.lookup, time.monotonic() - began)
                if quiet >= self._drain_idle_seconds and self._covered(held):
                    break
            await asyncio.sleep(min(0.2, self._drain_idle_seconds / 4))
        self.drained.set()
        log.info("drained")

    async def _order_to_drain(self, server: Server) -> None:
        """Raises ServerUnreachable. A refusal holds up no drain: readers learn of it from the release document, too."""
        try:
            await server.drain(draining=True)
        except ServerRefused as refused:
            # Not about "server": that is forgotten whenever the server answers anything else.
            self._complain("drain", str(refused))

    def _covered(self, held: LoadedParts) -> bool:
        """Whether others answer for this pod, or nobody is there who could, or could tell.

        An upgrade that takes pods away restarts transfer too: it is waited for longer than that takes.
        """
        document = self.document
        if document is None or time.monotonic() - self._transfer_heard_at > 2 * self._poll_wait_seconds:
            return True
        return not document.placement.up or covered_without(self.address, held.versions, document)
