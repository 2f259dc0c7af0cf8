"""The agent of a cube pod: it fetches the parts that the pod owes, has them loaded, and reports the loaded ones.

It is a task of cube-server. Three tasks run side by side: following the release document, loading, reporting. A restarted process has
no parts and loads all of them again, from the cache.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.cube.agent.cache import Cache, FetchStopped
from elastic_ctr.cube.agent.handoff import HandoffTimers
from elastic_ctr.cube.agent.lookup_parts import LoadedParts, LookupParts, NothingServes, PartsRefused
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.cube.placement import assigned_partitions, served_without, shard_of_pod, unneeded_partitions
from elastic_ctr.cube.release import AgentReport, ReleaseDocument
from elastic_ctr.cube.release_client import ReleaseClient
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.growing_pause import growing_pause
from elastic_ctr.runtime.lifecycle import run_until_one_ends, wait_event
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions.manifest import DictionaryManifest, ManifestDamaged

log = logging.getLogger(__name__)

# Parts that had to be fetched are loaded in batches of this size.
_BATCH = 8
_LONGEST_BACK_OFF = 30.0
# A part that fails its checks after this many fetches is damaged in the store.
_DAMAGED_TIMES = 3
# A restarted cube-transfer answers again within this time.
_TRANSFER_RESTART_SECONDS = 40.0
# Damaged parts that an error names.
_NAMED = 3


class CubeAgent:
    """One pod's agent. Made and used inside one event loop.

    `address` is where readers reach the pod, `tokens` are for cube-transfer. Raises ValueError for a pod name without a shard.
    """

    def __init__(
        self,
        config: CubeServerFile,
        store: Store,
        lookups: LookupParts,
        *,
        pod: str,
        address: str,
        tokens: Tokens | None = None,
    ) -> None:
        self.pod = pod
        self.shard = shard_of_pod(pod)
        self.address = address
        self.release = ReleaseClient(f"http://{config.transfer_address}", tokens, self._on_document)
        self.cache = Cache(store, Path(config.cube.cache_dir), config.cube.fetch_bytes_per_second)
        self.draining = False
        self.drained = asyncio.Event()
        self.refused: dict[int, str] = {}
        self._config = config.cube
        self._grace_seconds = config.grace_seconds
        self._lookups = lookups
        self._last_seen: dict[int, frozenset[int]] = {}
        self._handoff = HandoffTimers(config.cube.drain_seconds)
        self._changed = asyncio.Event()
        self._report_now = asyncio.Event()
        self._errors: dict[str, str] = {}
        self._failures: dict[int, int] = {}
        self._damaged: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        # All versions of a model have the same number of partitions, known from the first manifest.
        self._partitions: int | None = None
        self._live: int | None = None
        # The newest loaded version, the fold that it announces, and whether that fold is cached or its fetch was given up.
        self._newest_loaded = 0
        self._fold_ahead: int | None = None
        self._fold_is_done = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set, then drain, report that nothing is loaded, and end."""
        work = (self.release.run(), self._work(), self._report_loop(), self._drain_when_stopped(stop))
        try:
            await run_until_one_ends(*work)
        finally:
            self.cache.stopped.set()
        await self._report({})
        await self.release.close()

    @property
    def document(self) -> ReleaseDocument | None:
        return self.release.document

    @property
    def errors(self) -> list[str]:
        """Current errors, as sentences."""
        found = (self.release.error, self.release.report_error, *self._errors.values())
        return [each for each in found if each is not None]

    def loaded_partitions(self) -> int:
        return sum(map(len, self._lookups.loaded().versions.values()))

    def drain(self) -> None:
        """Announce that this pod is draining, and fetch no further parts."""
        if not self.draining:
            log.info("draining: other pods take over what this one answers")
            self.draining = True
            self._report_now.set()

    def ready(self) -> tuple[bool, str]:
        """Return (ready, reason). Before any version has been live, every running agent is ready."""
        document = self.document
        if self.draining:
            return False, "draining"
        if document is None:
            return False, "transfer has not said yet what to hold"
        if document.live is None:
            return True, "ready; no version has ever been live"
        if self._partitions is None:
            return False, f"the manifest of version {document.live} has not been read yet"
        owed = assigned_partitions(self.shard, document.live, document, self._partitions)
        lacking = owed - self._lookups.loaded().versions.get(document.live, frozenset())
        if lacking:
            return False, f"{len(lacking)} partitions of version {document.live} are still to be loaded"
        return True, f"ready; holds version {document.live}"

    def status(self) -> dict[str, Any]:
        document = self.document
        return {
            "role": "cube-server",
            "pod": self.pod,
            "shard": self.shard,
            "address": self.address,
            "draining": self.draining,
            "generation": None if document is None else document.generation,
            "revision": None if document is None else document.revision,
            "live": None if document is None else document.live,
            "wanted": [] if document is None else list(document.wanted),
            "refused": {str(version): reason for version, reason in self.refused.items()},
            "errors": self.errors,
        }

    def _on_document(self, document: ReleaseDocument) -> None:
        if document.live != self._live:
            log.info("live is %s, wanted are %s", document.live, list(document.wanted))
        self._live = document.live
        self.refused = {v: reason for v, reason in self.refused.items() if v in document.wanted}
        self._failures = {v: count for v, count in self._failures.items() if v in document.wanted}
        self._changed.set()

    # Working

    async def _work(self) -> None:
        while True:
            try:
                if self.document is not None and not self.draining:
                    await self._reconcile(self.document)
                    await self._fetch_ahead(self.document)
                self._errors.pop("unload", None)
            except PartsRefused as failed:
                self._set_error("unload", str(failed))
            except OSError as failed:
                self._set_error("disk", f"the cache cannot be used: {failed.strerror or failed}")
            await wait_event(self._changed, min(0.5, self._config.report_seconds))
            self._changed.clear()

    async def _fetch_ahead(self, document: ReleaseDocument) -> None:
        """Fetch the full parts of an announced fold, while there is no other work."""
        version = self._fold_ahead
        if version is None or self._fold_is_done or self._partitions is None or document.live is None:
            return
        if any(str(each) in self._errors for each in document.wanted):
            # The next turn of `_work` tries again.
            return
        owed = sorted(assigned_partitions(self.shard, document.live, document, self._partitions))
        try:
            whole = await asyncio.to_thread(self.cache.fetch_ahead, version, owed, self._changed.is_set)
        except FetchStopped:
            return
        except (ManifestDamaged, StoreError, OSError) as failed:
            # If the failure persists, loading the first version over the fold reports it as an error.
            log.info("the full parts that version %d was merged into are not fetched beforehand: %s", version, failed)
            whole = True
        self._fold_is_done = whole

    def _look(self) -> LoadedParts:
        """Return the loaded parts. If they have changed, the next report is due now."""
        held = self._lookups.loaded()
        if held.versions != self._last_seen:
            self._last_seen = held.versions
            self._report_now.set()
        damaged = {sentence for parts in held.damaged.values() for sentence in parts.values()}
        if damaged:
            self._set_error("damaged", f"{'; '.join(sorted(damaged)[:_NAMED])}: the part is fetched anew")
        else:
            self._errors.pop("damaged", None)
        return held

    async def _reconcile(self, document: ReleaseDocument) -> None:
        """Load one version after the other, the live one first; a newer document takes effect between two batches."""
        held = self._look()
        for version in document.wanted:
            given_up = version in self.refused and version == document.candidate
            if (
                given_up
                or self._is_loaded(version, document, held)
                or time.monotonic() < self._not_before.get(version, 0.0)
            ):
                continue
            try:
                await self._load(document, version)
            except FetchStopped:
                return
            except (ManifestDamaged, StoreError, PartsRefused) as failed:
                absent = isinstance(failed, NotInStore) and await asyncio.to_thread(self.cache.is_published, version)
                self._failed(version, str(failed), damaged=absent or isinstance(failed, ManifestDamaged))
            except OSError as failed:
                self._failed(version, f"version {version} cannot be kept on this disk: {failed.strerror or failed}")
            except Exception as failed:
                # All pods load this version: an error of it that ended them would end every lookup of the others.
                log.exception("version %d cannot be loaded", version)
                self._failed(version, f"version {version} cannot be loaded: {type(failed).__name__}: {failed}")
            else:
                self._failures.pop(version, None)
                self._damaged.pop(version, None)
                self.refused.pop(version, None)
                self._errors.pop(str(version), None)
            if self._superseded(document):
                return
        for name in [each for each in self._errors if each.isdigit() and int(each) not in document.wanted]:
            del self._errors[name]
        await self._unload_unneeded(document)
        self._errors.pop("disk", None)

    def _is_loaded(self, version: int, document: ReleaseDocument, held: LoadedParts) -> bool:
        """True if all assigned partitions are loaded and the version has no error that another attempt would clear."""
        if self._partitions is None or version in self.refused or str(version) in self._errors:
            return False
        owed = assigned_partitions(self.shard, version, document, self._partitions)
        return owed <= held.versions.get(version, frozenset())

    def _superseded(self, document: ReleaseDocument) -> bool:
        """True if a newer document wants other versions or another placement; new holders alone do not count."""
        now = self.document
        return self.draining or now is None or (now.wanted, now.placement) != (document.wanted, document.placement)

    async def _load(self, document: ReleaseDocument, version: int) -> None:
        """Load all parts that can be loaded, then raise the first error.

        Raises StoreError, ManifestDamaged, PartsRefused, OSError, FetchStopped.
        """
        manifest = await asyncio.to_thread(self.cache.manifest, version)
        self._partitions = manifest.partitions
        if version > self._newest_loaded:
            self._newest_loaded = version
            if manifest.fold_ahead != self._fold_ahead:
                self._fold_ahead, self._fold_is_done = manifest.fold_ahead, False
        wrong: dict[int, Exception] = {}
        most = manifest.partitions
        while True:
            held = self._look()
            # Other pods load too, which changes the partitions assigned to this one.
            owed = assigned_partitions(self.shard, version, self.document or document, manifest.partitions)
            missing = sorted(owed - held.versions.get(version, frozenset()) - wrong.keys())
            if self._superseded(document):
                return
            if not missing:
                break
            self.cache.invalidate(version, held.damaged.get(version, {}).keys() & set(missing))
            there = await asyncio.to_thread(self._cached, manifest)
            # Cached parts are loaded at once, the others batch by batch.
            batch = ([p for p in missing if p in there] or missing[:_BATCH])[:most]
            refused = await self._load_batch(manifest, batch, wrong)
            if refused is not None and len(batch) == 1:
                wrong[batch[0]] = refused
            elif refused is not None:
                most = 1  # one bad part fails its batch: parts loaded one by one show which
        if wrong:
            raise next(iter(wrong.values()))

    def _cached(self, manifest: DictionaryManifest) -> set[int]:
        """Return the partitions that need no fetching, after fetching an overlay that is one file for all of them."""
        if manifest.in_one_file:
            with contextlib.suppress(ManifestDamaged, StoreError):
                self.cache.fetch_overlays(manifest)
        return self.cache.cached_partitions(manifest.version)

    def _parts(
        self, version: int, batch: Collection[int]
    ) -> tuple[dict[int, Paths], dict[int, ManifestDamaged | NotInStore]]:
        """Return the checked local files by partition, and the errors of the partitions without."""
        parts: dict[int, Paths] = {}
        wrong: dict[int, ManifestDamaged | NotInStore] = {}
        for partition in batch:
            try:
                parts[partition] = Paths.of(*self.cache.parts(version, partition))
            except (ManifestDamaged, NotInStore) as bad:  # noqa: PERF203 (a file is read in between)
                wrong[partition] = bad
        return parts, wrong

    async def _load_batch(
        self, manifest: DictionaryManifest, batch: Collection[int], wrong: dict[int, Exception]
    ) -> PartsRefused | None:
        parts, bad = await asyncio.to_thread(self._parts, manifest.version, batch)
        wrong.update(bad)
        if parts:
            try:
                await self._lookups.load(manifest.version, manifest.dim, manifest.partitions, parts)
            except NothingServes:
                raise
            except PartsRefused as refused:
                self.cache.invalidate(manifest.version, parts)
                return refused
        return None

    def _failed(self, version: int, sentence: str, *, damaged: bool = False) -> None:
        failures = self._failures.get(version, 0) + 1
        self._failures[version] = failures
        self._not_before[version] = time.monotonic() + growing_pause(failures, 0.5, _LONGEST_BACK_OFF)
        self._set_error(str(version), sentence)
        if damaged:
            self._damaged[version] = self._damaged.get(version, 0) + 1
            if self._damaged[version] >= _DAMAGED_TIMES:
                self.refused[version] = sentence
                self._report_now.set()

    def _set_error(self, about: str, sentence: str) -> None:
        if self._errors.get(about) != sentence:
            log.warning("%s", sentence)
            self._errors[about] = sentence
            self._report_now.set()

    async def _unload_unneeded(self, document: ReleaseDocument) -> None:
        """Unload partitions whose timers have run out, then delete the files of unneeded versions."""
        now = time.monotonic()
        for version in self._unneeded(self._look(), document, now):
            due = self._handoff.due(version, now)
            asked = self._lookups.loaded().last_asked_seconds.get(version)
            # Other pods answer these partitions of a wanted version, and the document no longer lists this pod for
            # them.
            quiet = version in document.wanted or asked is None or asked >= self._config.drain_seconds
            if quiet and due:
                log.info("unloading %s partitions of version %s: nobody needs them here", len(due), version)
                await self._lookups.unload(version, due)
        needed = {*self._look().versions, *document.wanted}
        for version in await asyncio.to_thread(self.cache.forget, needed, self._fold_ahead):
            log.info("the files of version %s are deleted from the cache", version)

    def _unneeded(self, held: LoadedParts, document: ReleaseDocument, now: float) -> Mapping[int, frozenset[int]]:
        """Return the loaded and unneeded partitions by version, and update their timers."""
        if self._partitions is None or self.draining:
            return {}
        if now - self.release.reported_at > 3 * self._config.report_seconds + 1:
            # cube-transfer does not answer: readers may still use a document that lists this pod, so the timers start
            # over once it answers again.
            self._handoff.update({}, {}, now)
            return {}
        free = unneeded_partitions(held.versions, document, self.shard, self.address, self._partitions)
        mine = {v: document.holders.get(v, {}).get(self.address) for v in document.wanted}
        named = {v: holder.partitions for v, holder in mine.items() if holder is not None}
        self._handoff.update(free, named, now)
        return free

    # Reporting

    async def _report_loop(self) -> None:
        while True:
            # Fetching may keep `_work` busy for minutes, so this loop looks for damage too.
            self._look()
            self._report_now.clear()
            await self._report(self._advertised())
            await wait_event(self._report_now, self._config.report_seconds)

    def _advertised(self) -> dict[int, tuple[int, ...]]:
        """Return the loaded partitions without those that are about to be unloaded because other pods answer them."""
        held, document = self._lookups.loaded(), self.document
        now = time.monotonic()
        # Update the timers during loads too: the timer of a partition that was needed in between starts over.
        free = {} if document is None else self._unneeded(held, document, now)
        found: dict[int, tuple[int, ...]] = {}
        for version, parts in sorted(held.versions.items()):
            wanted = document is not None and version in document.wanted
            going = self._handoff.hidden(version, now) if wanted and version in free else set[int]()
            if stays := tuple(sorted(parts - going)):
                found[version] = stays
        return found

    async def _report(self, loaded: Mapping[int, tuple[int, ...]]) -> None:
        await self.release.report(
            AgentReport(
                pod=self.pod,
                address=self.address,
                shard=self.shard,
                loaded=dict(loaded),
                draining=self.draining,
                document=self.document,
                refused=self.refused,
                errors=tuple(self.errors),
            )
        )

    # Ending

    async def _drain_when_stopped(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.drain()
        began = time.monotonic()
        # Not awaited: a worker that loads or hangs carries the order out later, and may be the only one that answers.
        pause = min(0.2, self._config.drain_idle_seconds / 4)
        ordering = asyncio.create_task(self._order_to_drain(pause))
        while (waited := time.monotonic() - began) < self._grace_seconds:
            held = self._lookups.loaded()
            quiet = waited if held.last_lookup_seconds is None else min(held.last_lookup_seconds, waited)
            if quiet >= self._config.drain_idle_seconds and self._replaced(held):
                break
            await asyncio.sleep(pause)
        ordering.cancel()
        self.drained.set()
        log.info("drained")

    async def _order_to_drain(self, pause: float) -> None:
        """Order the drain until it is carried out. Meanwhile readers have it from the release document."""
        while True:
            try:
                await self._lookups.drain(draining=True)
            except Exception as refused:  # noqa: BLE001, PERF203 (nothing awaits this task)
                self._set_error("drain", str(refused) or repr(refused))
                await asyncio.sleep(pause)
            else:
                self._errors.pop("drain", None)
                return

    def _replaced(self, held: LoadedParts) -> bool:
        """True if other pods answer this pod's partitions, no pod is up that could, or cube-transfer does not answer.

        An upgrade restarts cube-transfer too, so the agent waits longer than a restart takes.
        """
        document = self.document
        if document is None or time.monotonic() - self.release.answered_at > _TRANSFER_RESTART_SECONDS:
            return True
        return not document.placement.up or served_without(self.address, held.versions, document)
