"""The version that this pod answers with: it is fetched, checked in a process of its own, loaded, and then pinned by every worker.

The rule: workers answer only with a version that this pod has validated. The target is the live version; until it is validated,
the present one stays. A refusal is final for its version. A check that exceeds its deadline is killed and refuses nothing,
because the store, cube or this node's disk may hang. It is tried again after the checks of other versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.runtime.process_pool import WorkerHung, WorkerLost
from elastic_ctr.serving.worker_pool import ServingWorker, WorkerPool
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import ManifestDamaged, VersionManifest
from elastic_ctr.store.versions.published_files import fetch, published_versions, read_version

log = logging.getLogger(__name__)

# Fetches of a version's files before it is refused: a file may be damaged on its way.
_TRIES = 2
# Checker processes that a version may end before it is refused: an operator may have killed one.
_LOSSES = 3
_AGAIN_SECONDS = 0.5
# A check takes a second, but the process may first have to start and to import Paddle on a busy machine.
_CHECK_SECONDS = 120.0


class NotYet(Exception):
    """A check has no verdict yet; the text has the reason."""


class Rollout:
    """Brings the workers to the state in the release document. The event loop owns the state."""

    def __init__(self, store: Store, scratch: Path, workers: WorkerPool) -> None:
        self.document: ReleaseDocument | None = None
        self.serving: int | None = None
        self.validated: dict[int, float] = {}
        self.refused: dict[int, str] = {}
        self.differences: dict[int, float] = {}
        self.last_refusal: str | None = None
        self.stage = "the release document has not come yet"
        self.manifests: dict[int, VersionManifest] = {}
        self.switched: Callable[[VersionManifest], None] = lambda _: None
        self.changed = asyncio.Event()
        self.on_change = asyncio.Event()
        self._workers = workers
        workers.on_start = self.started
        self._store = store
        self._scratch = scratch
        self._document_came = asyncio.Event()
        self._fetches: dict[int, asyncio.Task[VersionManifest]] = {}
        self._check: tuple[int, asyncio.Task[None]] | None = None
        # By wanted version: checks without a verdict, fetches of unusable files, checker processes that it ended.
        self._attempts: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()

    # -- events

    def on_document(self, document: ReleaseDocument) -> None:
        """Send a newer document to the workers at once, for its holders; the rest is reconciled later."""
        self.document = document
        for worker in self._workers.all():
            send_document(worker, document)
        self._document_came.set()
        self.changed.set()

    def started(self, worker: ServingWorker) -> None:
        if self.document is not None:
            send_document(worker, self.document)
        worker.send("stage", stage=self.stage)
        self.changed.set()

    @property
    def canary(self) -> int | None:
        """The candidate, while a worker answers its share of the requests with it; else None."""
        answering = {worker.canary for worker in self._workers.in_order() if worker.listening} - {None}
        return max((version for version in answering if version is not None), default=None)

    def ready(self) -> tuple[bool, str]:
        """Return (ready, reason): a worker answers with the live version, or accepts requests before any version has been live."""
        document = self.document
        answering = [worker for worker in self._workers.in_order() if worker.answering]
        if document is None:
            return False, self.stage
        if not answering:
            return False, f"no worker accepts requests yet; {self.stage}"
        if document.live is None:
            return True, f"no version is live yet: {self.stage}"
        if any(worker.pinned == document.live for worker in answering):
            return True, f"version {document.live} is live and answered with"
        return False, f"version {document.live} is live and not answered with yet: {self.stage}"

    # -- reconciling

    async def run(self) -> None:
        """Reconcile until cancelled. Raises an error of the worker pool, because a pod must not run with fewer workers forever."""
        tasks = [asyncio.create_task(each) for each in (self._follow(), self._workers.kept())]
        try:
            await asyncio.gather(*tasks)
        finally:
            updating = [worker.updating for worker in self._workers.in_order() if worker.updating is not None]
            checks = [] if self._check is None else [self._check[1]]
            for task in (*tasks, *updating, *checks, *self._fetches.values()):
                task.cancel()

    async def _follow(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            document = self.document
            if document is None:
                continue
            self._choose_check(document)
            pins = {worker.pinned for worker in self._workers.in_order() if worker.listening} - {None}
            if len(pins) == 1 and pins != {self.serving}:
                self.serving = pins.pop()
                if self.serving in self.manifests:
                    self.switched(self.manifests[self.serving])
            self._unload_unneeded(document)
            for worker in self._workers.in_order():
                if worker.is_updated:
                    if worker.updating is not None:
                        worker.updating.result()
                    worker.updating = asyncio.create_task(self._update(worker))
            if document.live is None and document.candidate is None:
                self._set_stage("no version has been published yet")

    # -- checks, one at a time

    def _wanted(self, document: ReleaseDocument) -> list[int]:
        """Return the versions to check, the most urgent first."""
        wanted = [document.live]
        if document.live not in self.validated:
            # Until the live version is validated the one before it answers, even in a process that has just started.
            wanted += [self.serving, document.previous]
        wanted.append(document.candidate)
        return [each for each in dict.fromkeys(wanted) if each is not None and each not in self.refused]

    def _choose_check(self, document: ReleaseDocument) -> None:
        """Begin the most urgent check, and end a check under way that is less urgent or no longer needed."""
        waiting = [version for version in self._wanted(document) if version not in self.validated]
        # A version whose checks had no verdict comes after the others, because the reason may last.
        version = min(waiting, key=lambda each: self._attempts[each], default=None)
        if self._check is not None:
            checked, task = self._check
            if task.done():
                task.result()
            elif checked == version:
                return
            else:
                task.cancel()
            self._check = None
        if version is not None:
            self._check = version, asyncio.create_task(self._run_check(version))

    async def _run_check(self, version: int) -> None:
        """Check a version within the deadline. After a check without a verdict, another version is next after a pause."""
        try:
            await asyncio.wait_for(self._verdict(version), _CHECK_SECONDS)
        except asyncio.TimeoutError:
            await self._postpone(version, f"its check took more than {_CHECK_SECONDS:g} s")
        except (NotYet, OSError) as not_yet:
            await self._postpone(version, str(not_yet))
        finally:
            self.on_change.set()
            self.changed.set()

    async def _postpone(self, version: int, why: str) -> None:
        self._set_stage(f"version {version} cannot be checked yet: {why}")
        self._attempts[version] += 1
        self._document_came.clear()
        await wait_event(self._document_came, _AGAIN_SECONDS)

    async def _verdict(self, version: int) -> None:
        """Validate or refuse a version. Raises NotYet, OSError if there is no verdict."""
        try:
            manifest = await self._fetched(version)
        except (ManifestDamaged, NotInStore) as unusable:
            if isinstance(unusable, NotInStore) and not await asyncio.to_thread(self._store_is_there):
                # An unreachable store is no evidence against the version.
                raise NotYet(str(unusable)) from unusable
            self._failures[version] += 1
            if self._failures[version] < _TRIES:
                raise NotYet(str(unusable)) from unusable
            self._refuse(version, f"version {version}: {unusable}")
            return
        assert self.document is not None
        held = {number for holder in self.document.holders.get(version, {}).values() for number in holder.partitions}
        if len(held) < manifest.partitions:
            raise NotYet(f"cube holds {len(held)} of its {manifest.partitions} partitions")
        checker = self._workers.checker
        if checker is None or checker.ended.done():
            raise NotYet("the process that checks versions starts")
        self._set_stage(f"version {version} is being checked")
        try:
            outcome = await checker.send("check", version=version, folder=str(self._folder(version)))
        except asyncio.CancelledError:
            # The checker may hang, and would delay the next check.
            checker.kill()
            raise
        except WorkerHung as hung:
            # A hung checker is no evidence against the version: this node's disk or processor may have stood still.
            raise NotYet(str(hung)) from hung
        except WorkerLost as lost:
            self._losses[version] += 1
            if self._losses[version] < _LOSSES:
                raise NotYet(str(lost)) from lost
            self._refuse(version, f"version {version} ended the process that checked it ({lost})")
            return
        if "later" in outcome:
            raise NotYet(outcome["later"])
        if "refused" in outcome:
            self._refuse(version, outcome["refused"], outcome.get("maxAbsDiff"))
        else:
            self.validated[version] = outcome["passed"]
            log.info("version %d has passed (largest difference %.3g)", version, outcome["passed"])

    def _store_is_there(self) -> bool:
        try:
            return bool(published_versions(self._store))
        except (StoreError, OSError):
            return False

    def _folder(self, version: int) -> Path:
        """Return the folder of a fetched version's network, samples and manifest."""
        return self._scratch / f"version-{version}"

    async def _fetched(self, version: int) -> VersionManifest:
        """Fetch the files of a version into its folder, once. Raises the errors of reading the store."""
        fetching = self._fetches.get(version)
        if fetching is None or (fetching.done() and fetching.exception() is not None):
            fetching = asyncio.create_task(asyncio.to_thread(self._fetch, version))
            self._fetches[version] = fetching
        # The fetch continues if this check is cancelled, because a reading thread cannot be ended.
        manifest = self.manifests[version] = await asyncio.shield(fetching)
        return manifest

    def _fetch(self, version: int) -> VersionManifest:
        manifest = read_version(self._store, version)
        prefix = layout.model_folder(version) + "/"
        if layout.sample_file(version) not in {entry.path for entry in manifest.model_files}:
            raise ManifestDamaged(f"its manifest lists no {layout.sample_file(version)}")
        for entry in manifest.model_files:
            name = entry.path.removeprefix(prefix)
            if not entry.path.startswith(prefix) or "/" in name or name in {"", ".", "..", layout.MANIFEST}:
                raise ManifestDamaged(f"its manifest lists {entry.path} among the model files, which stand in {prefix}")
            fetch(self._store, entry, self._folder(version) / name)
        (self._folder(version) / layout.MANIFEST).write_bytes(manifest.to_json())
        return manifest

    # -- workers, each with its own task, so that a hung worker delays no other

    async def _update(self, worker: ServingWorker) -> None:
        """Order a worker step by step until it has loaded the wanted versions, answers with the best one, and listens."""
        obeyed = False
        with contextlib.suppress(WorkerLost):
            while await self._step(worker):
                obeyed = True
                self.changed.set()
        if obeyed:
            # The loaded version may be superseded by now.
            asyncio.get_running_loop().call_soon(self.changed.set)

    async def _step(self, worker: ServingWorker) -> bool:
        """Send the next order. Return True if the worker carried it out, False also if there is none. Raises WorkerLost."""
        document = self.document
        assert document is not None
        order = (self.serving,) if document.live is None else (document.live, self.serving, document.previous)
        best = next((version for version in order if version in self.validated), None)
        # A validated candidate is loaded ahead, so that switching to it takes no time.
        ahead = document.candidate if document.candidate in self.validated else None
        if best is not None and worker.pinned != best:
            if best not in worker.loaded:
                return await self._load(worker, best)
            await worker.send("pin", version=best)
            worker.pinned = best
            log.info("worker %d answers with version %d", worker.index, best)
            self.on_change.set()
            return True
        if not worker.listening and (best is not None or document.live is None):
            worker.listening = self._check_answer(await worker.send("listen"), worker)
            return worker.listening
        if ahead is not None and ahead not in worker.loaded:
            return await self._load(worker, ahead)
        canary = ahead if document.canary and worker.pinned == document.live else None
        if worker.canary != canary:
            await worker.send("canary", version=canary)
            worker.canary = canary
            return True
        return False

    async def _load(self, worker: ServingWorker, version: int) -> bool:
        worker.kept.add(version)
        outcome = await worker.send("load", version=version, folder=str(self._folder(version)))
        if obeyed := self._check_answer(outcome, worker):
            worker.loaded.add(version)
        return obeyed

    def _check_answer(self, outcome: dict[str, Any], worker: ServingWorker) -> bool:
        """True if the worker carried out the order; otherwise schedule it again after a pause."""
        if "error" in outcome:
            self._set_stage(f"worker {worker.index}: {outcome['error']}")
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self.changed.set)
        return "error" not in outcome

    def _unload_unneeded(self, document: ReleaseDocument) -> None:
        named = {*document.wanted, document.live, document.previous, document.candidate, self.serving}
        # A refused version may be loaded, too, and is not kept.
        kept = {version for version in named if version is not None} - self.refused.keys()
        kept |= {worker.pinned for worker in self._workers.in_order() if worker.pinned is not None}
        for worker in self._workers.in_order():
            if worker.kept != kept and worker.is_updated:
                # The answer is not awaited, because a worker carries out its orders in sequence.
                worker.send("keep", versions=sorted(kept))
                worker.kept = set(kept)
                worker.loaded &= kept
                if worker.canary not in kept:
                    # The worker makes the same change.
                    worker.canary = None
        loading = {version for worker in self._workers.in_order() if not worker.is_updated for version in worker.kept}
        for version in [each for each in self._fetches if each not in kept | loading]:
            self._forget(version)
        # A version that is no longer named is checked again if it comes back.
        for known in (self.validated, self._attempts, self._failures, self._losses):
            for version in [version for version in known if version not in kept]:
                del known[version]

    def _forget(self, version: int) -> None:
        """Delete the files of a version, unless its fetch is still under way."""
        if (fetch := self._fetches[version]).done():
            fetch.exception()
            del self._fetches[version]
            self.manifests.pop(version, None)
            shutil.rmtree(self._folder(version), ignore_errors=True)

    # -- stages

    def _refuse(self, version: int, sentence: str, difference: float | None = None) -> None:
        log.error("refused: %s", sentence)
        self.refused[version] = self.last_refusal = sentence
        if difference is not None:
            self.differences[version] = difference
        self._set_stage(sentence)

    def _set_stage(self, stage: str) -> None:
        if stage == self.stage:
            return
        self.stage = stage
        if self.serving is None:
            for worker in self._workers.in_order():
                worker.send("stage", stage=stage)


def send_document(worker: ServingWorker, document: ReleaseDocument) -> None:
    worker.send("document", document=document.model_dump(mode="json", by_alias=True))
