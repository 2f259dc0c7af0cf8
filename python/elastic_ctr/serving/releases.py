"""Which version this pod answers with: fetched, checked by every worker, switched in turn.

The rule: a worker answers only with a version that it has passed itself. The live one is wanted; until it has passed,
what was answered before stays. A refusal is final for its version.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.serving.worker import MANIFEST_FILE, SAMPLE_FILE
from elastic_ctr.serving.workers import Worker, WorkerHung, WorkerLost, Workers
from elastic_ctr.store import NotInStore, Store, StoreError
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import ManifestDamaged, VersionManifest, fetch, published_versions, read_version

log = logging.getLogger(__name__)

# A damaged file may have been damaged on its way; a process may have been ended by somebody else.
_TRIES = 2
# Somebody may have killed the process; the third time it was the version.
_LOSSES = 3
_AGAIN_SECONDS = 0.5
# A check takes a second, on a busy machine several. Past this nobody knows whether it ends: others have their turn.
_TURN_SECONDS = 10.0


class VersionUnusable(ValueError):
    """A version cannot be served by anyone: why."""


class Check(NamedTuple):
    """By whom, of what, since when."""

    worker: Worker
    version: int
    begun: float


class Releases:
    """Brings the workers to what the release document says. State has one owner: the task of `run`."""

    def __init__(self, store: Store, scratch: Path) -> None:
        self.document: ReleaseDocument | None = None
        self.serving: int | None = None
        self.passed: dict[int, float] = {}
        self.refused: dict[int, str] = {}
        self.differences: dict[int, float] = {}
        self.last_refusal: str | None = None
        self.switches = 0
        self.stage = "the release document has not come yet"
        self.manifests: dict[int, VersionManifest] = {}
        self.changed = asyncio.Event()
        self.on_change = asyncio.Event()
        self._store = store
        self._scratch = scratch
        self._folders: dict[int, Path] = {}
        self._failures: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()
        # Under way, or answered and not looked at yet.
        self._checks: dict[asyncio.Task[bool], Check] = {}
        self._delayed = False
        self._stages: dict[int, str] = {}

    # -- what happens to us

    def take(self, document: ReleaseDocument, workers: Workers) -> None:
        """A newer document: its holders are told to the workers at once, the rest follows."""
        self.document = document
        for worker in workers.in_order():
            tell(worker, document)
        self.changed.set()

    def started(self, worker: Worker) -> None:
        if self.document is not None:
            tell(worker, self.document)
        worker.send("stage", stage=self.stage)
        self.changed.set()

    def ready(self, workers: Workers) -> tuple[bool, str]:
        """Before any version has been live: runs. Afterwards: answers with the live version."""
        document = self.document
        answering = [worker for worker in workers.running.values() if worker.answering]
        if document is None:
            return False, self.stage
        if not answering:
            return False, f"no worker accepts requests yet; {self.stage}"
        if document.live is None:
            return True, f"no version is live yet: {self.stage}"
        if any(worker.pinned == document.live for worker in answering):
            return True, f"version {document.live} is live and answered with"
        return False, f"version {document.live} is live and not answered with yet: {self.stage}"

    # -- what we do about it

    async def run(self, workers: Workers) -> None:
        """Until cancelled. Raises what else ended the keeping of workers: a pod does not go on with one less for ever."""
        tasks = [asyncio.create_task(each) for each in (self._follow(workers), workers.kept())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, *self._checks):
                task.cancel()

    async def _follow(self, workers: Workers) -> None:
        again: asyncio.TimerHandle | None = None
        while True:
            await self.changed.wait()
            if again is not None:
                # Of an earlier time: it would be a change in the middle of this one.
                again.cancel()
            self.changed.clear()
            self._delayed = False
            try:
                await self._settle(workers)
            except WorkerLost as lost:
                log.info("%s; its successor is told", lost)
                self._delayed = True
            if self._delayed:
                again = asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self.changed.set)

    async def _settle(self, workers: Workers) -> None:
        for check in [each for each in self._checks if each.done()]:
            del self._checks[check]
            # What it found is known; whom it lost is not.
            check.result()
        document = self.document
        if document is None or not workers.running:
            return
        if document.live is None and self.serving is None:
            await self._listen(workers)
        for version in self._wanted(document):
            await self._check(version, workers)
            if self.changed.is_set():
                # Something newer is wanted, or another worker is there: begin again with that.
                return
            # The live version goes first in the list, so it is switched to before a candidate takes time.
            await self._switch(document, workers)
        await self._switch(document, workers)
        self._let_go(document, workers)
        if document.live is None and document.candidate is None:
            self._say(workers, "no version has been published yet")

    def _wanted(self, document: ReleaseDocument) -> list[int]:
        """Versions to check, most urgent first."""
        wanted = [document.live]
        if document.live not in self.passed:
            # Without the live one the one before it serves, also in a process that has just been started.
            wanted += [self.serving, document.previous]
        wanted.append(document.candidate)
        unique = dict.fromkeys(version for version in wanted if version is not None)
        return [version for version in unique if version not in self.refused]

    async def _check(self, version: int, workers: Workers) -> None:
        if all(version in worker.passed for worker in workers.running.values()):
            return
        try:
            folder = await self._fetched(version)
        except (VersionUnusable, ManifestDamaged, NotInStore) as unusable:
            if isinstance(unusable, NotInStore) and not await asyncio.to_thread(self._store_is_there):
                # A store that is away says nothing about the version.
                self._again(workers, f"version {version}: {unusable}")
                return
            self._failures[version] += 1
            self._again(workers, f"version {version}: {unusable}")
            if self._failures[version] >= _TRIES:
                self._refuse(version, f"version {version}: {unusable}", workers)
            return
        except OSError as failed:
            # The store's, or this disk's: what is answered with stays either way.
            self._again(workers, f"version {version} cannot be fetched: {failed}")
            return
        manifest = self.manifests[version]
        assert self.document is not None
        held = {number for holder in self.document.holders.get(version, {}).values() for number in holder.partitions}
        if len(held) < manifest.partitions:
            # The next document says more; no need to ask again before.
            self._say(workers, f"cube holds {len(held)} of {manifest.partitions} partitions of version {version}")
            return
        is_live = version == self.document.live
        for worker in workers.in_order():
            if version in worker.passed:
                continue
            if not is_live and self._at_checks(worker) - {version}:
                # Were it at both and ended, nobody would know over which.
                continue
            self._say(workers, f"version {version} is being checked")
            passed = await self._check_in(worker, version, folder, workers)
            # Others may pass the live one. A candidate is not worth a second worker that hangs.
            if not passed and (not is_live or self.changed.is_set()):
                return
        if workers.running:
            self.on_change.set()

    def _store_is_there(self) -> bool:
        try:
            return bool(published_versions(self._store))
        except (StoreError, OSError):
            return False

    async def _check_in(self, worker: Worker, version: int, folder: Path, workers: Workers) -> bool:
        """Whether it has passed. A check is left alone on a change, and when it takes long: it may hang."""
        now = asyncio.get_running_loop().time()
        check = next((task for task, (who, what, _) in self._checks.items() if who is worker and what == version), None)
        if check is None:
            check = asyncio.create_task(self._checked_in(worker, version, folder, workers))
            self._checks[check] = Check(worker, version, now)
            # It may load it, whatever comes of the check.
            worker.kept.add(version)
        check.remove_done_callback(self._checked_late)
        change = asyncio.create_task(self.changed.wait())
        turn = max(0.0, self._checks[check].begun + _TURN_SECONDS - now)
        try:
            await asyncio.wait({check, change}, timeout=turn, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if check.done():
            del self._checks[check]
            return check.result()
        check.add_done_callback(self._checked_late)
        return False

    def _checked_late(self, _: asyncio.Task[bool]) -> None:
        self.on_change.set()
        self.changed.set()

    def _at_checks(self, worker: Worker) -> set[int]:
        """Versions whose checks it has not answered; if it has ended, those that it ended at."""
        return {
            version
            for check, (who, version, _) in self._checks.items()
            if who is worker and (not check.done() or check.exception() is not None)
        }

    async def _checked_in(self, worker: Worker, version: int, folder: Path, workers: Workers) -> bool:
        try:
            outcome = await worker.order("check", version=version, folder=str(folder))
        except WorkerHung as hung:
            # Of the version that says nothing: this node's disk or processor may have stood still.
            self._again(workers, f"version {version} cannot be checked yet: {hung}")
            raise
        except WorkerLost as lost:
            if len(self._at_checks(worker)) > 1:
                # Nobody knows which of them it was.
                raise
            self._losses[version] += 1
            if self._losses[version] >= _LOSSES:
                self._refuse(version, f"version {version} ended the process that checked it ({lost})", workers)
            raise
        if version in self.refused:
            # By another worker meanwhile.
            return False
        if "passed" in outcome:
            worker.passed.add(version)
            self._losses.pop(version, None)
            self.passed[version] = max(self.passed.get(version, 0.0), outcome["passed"])
            log.info(
                "version %d has passed in worker %d (largest difference %.3g)", version, worker.index, outcome["passed"]
            )
            return True
        if "refused" in outcome:
            self._refuse(version, outcome["refused"], workers, outcome.get("maxAbsDiff"))
        else:
            self._again(workers, outcome["later"])
        return False

    async def _switch(self, document: ReleaseDocument, workers: Workers) -> None:
        """Pin what is best of what has passed, worker after worker; what is pinned may be listened with."""
        order = [document.live, self.serving, document.previous] if document.live is not None else [self.serving]
        # Who is at a check last: it may hear nothing until that is done.
        for worker in sorted(workers.in_order(), key=lambda each: len(self._at_checks(each))):
            best = next((version for version in order if version is not None and version in worker.passed), None)
            if best is None:
                continue
            if worker.pinning != best:
                worker.pinning = best
                # It obeys in the order in which it was told, so the last one is what stays.
                pin = worker.send("pin", version=best)
                pin.add_done_callback(partial(self._pinned, worker, best))
                if not self._at_checks(worker):
                    await pin
            if worker.pinned == best and not worker.listening:
                await self._listen_in(worker, workers)
        pins = {worker.pinned for worker in workers.running.values()} - {None}
        if len(pins) == 1 and (version := pins.pop()) != self.serving:
            self.serving = version
            self.switches += 1

    def _pinned(self, worker: Worker, version: int, answer: asyncio.Future[dict[str, Any]]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        worker.pinned = version
        log.info("worker %d answers with version %d", worker.index, version)
        self.on_change.set()
        # It may come late: what all of them answer with is seen anew.
        self.changed.set()

    async def _listen(self, workers: Workers) -> None:
        for worker in workers.in_order():
            if not worker.listening:
                await self._listen_in(worker, workers)

    async def _listen_in(self, worker: Worker, workers: Workers) -> None:
        outcome = await worker.order("listen")
        if "error" in outcome:
            self._again(workers, f"worker {worker.index}: {outcome['error']}")
        else:
            worker.listening = True

    def _let_go(self, document: ReleaseDocument, workers: Workers) -> None:
        named = {*document.wanted, document.live, document.previous, document.candidate, self.serving}
        # A refused one may be loaded too, and is of no use to anyone.
        kept = {version for version in named if version is not None} - self.refused.keys()
        kept |= {worker.pinned for worker in workers.running.values() if worker.pinned is not None}
        kept |= {check.version for check in self._checks.values()}
        for worker in workers.in_order():
            if worker.kept != kept:
                # Nobody waits for the answer: it has done this before it hears whatever it is told next.
                worker.send("keep", versions=sorted(kept))
                worker.kept = set(kept)
                worker.passed &= kept
        for version in [version for version in self._folders if version not in kept]:
            self._forget(version)
        # Nobody is told of it any more, and it is checked anew should it come back.
        for known in (self.passed, self._failures, self._losses):
            for version in [version for version in known if version not in kept]:
                del known[version]

    def _forget(self, version: int) -> None:
        self.manifests.pop(version, None)
        folder = self._folders.pop(version, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _fetched(self, version: int) -> Path:
        """The folder with the network, the samples and the manifest. Raises what reading the store raises."""
        folder = self._folders.get(version)
        if folder is None:
            folder = self._scratch / f"version-{version}"
            self.manifests[version] = await asyncio.to_thread(_fetch, self._store, version, folder)
            self._folders[version] = folder
        return folder

    # -- words

    def _refuse(self, version: int, sentence: str, workers: Workers, difference: float | None = None) -> None:
        log.error("refused: %s", sentence)
        self.refused[version] = self.last_refusal = sentence
        self.passed.pop(version, None)
        if difference is not None:
            self.differences[version] = difference
        for worker in workers.running.values():
            worker.passed.discard(version)
        self._forget(version)
        self._say(workers, sentence)
        self.on_change.set()
        self.changed.set()

    def _again(self, workers: Workers, why: str) -> None:
        self._delayed = True
        self._say(workers, why)

    def _say(self, workers: Workers, stage: str) -> None:
        if stage == self.stage:
            return
        self.stage = stage
        if self.serving is None:
            for worker in workers.in_order():
                worker.send("stage", stage=stage)


def tell(worker: Worker, document: ReleaseDocument) -> None:
    worker.send("document", document=document.model_dump(mode="json", by_alias=True))


def _fetch(store: Store, version: int, folder: Path) -> VersionManifest:
    manifest = read_version(store, version)
    prefix = layout.model_folder(version) + "/"
    if layout.sample_file(version) not in {entry.path for entry in manifest.model_files}:
        raise VersionUnusable(f"its manifest lists no {layout.sample_file(version)}")
    for entry in manifest.model_files:
        name = entry.path.removeprefix(prefix)
        if not entry.path.startswith(prefix) or "/" in name or name in {"", ".", "..", MANIFEST_FILE}:
            raise VersionUnusable(f"its manifest lists {entry.path} among the model files, which stand in {prefix}")
        fetch(store, entry, folder / name)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


assert layout.sample_file(1).endswith("/" + SAMPLE_FILE)
