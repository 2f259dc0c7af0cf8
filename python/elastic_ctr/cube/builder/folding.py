"""Folds of a stream: a large overlay is merged into full parts in the background, so that no build waits for the merge.

Versions that are built meanwhile lie over the former full parts. So do the next few, whose manifests announce the fold: cube pods
fetch it then, and the first version over the fold waits for none of its parts.
"""

import logging
import shutil
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.cube.builder.job import (
    FOLD,
    Plan,
    Task,
    folded,
    might_stand_on,
    plan_build,
    publish_dictionary,
    run_task,
)
from elastic_ctr.cube.builder.part import MEMORY_BYTES
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.child_process import background_pool, children_without_interrupts, end_at_once
from elastic_ctr.store.backends import Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest, FileEntry

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 30.0
# Seconds between announcing a fold and using it; at least the time that the fold took, in which cube pods fetch it.
_AHEAD_SECONDS, _AHEAD_SHARE = 10.0, 1.0
_MEMORY_BYTES = MEMORY_BYTES // 2


class Folding:
    """One fold at a time, in a thread and a process of its own. Versions lie over the fold `newest`, and will lie over the announced
    fold `ahead`. A restarted builder has neither and begins a fold with the next large overlay.
    """

    def __init__(self, config: CubeBuilderFile, store: Store, tokens: Tokens | None) -> None:
        self.newest: DictionaryManifest | None = None
        self.ahead: DictionaryManifest | None = None
        self._use_at = 0.0
        self._config = config
        self._store = store
        self._tokens = tokens
        self._thread: threading.Thread | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._stopping = False
        self._not_before = 0.0

    def plan(self, version: int) -> Plan:
        """Plan a version's build, over the newest fold if the version stands on it. Raises as `plan_build`."""
        if self.ahead is not None and time.monotonic() >= self._use_at:
            self.newest, self.ahead = self.ahead, None
        fold = self.newest
        plan = plan_build(version, self._store, fold)
        below = plan.ancestor
        if fold is not None and below is not None and might_stand_on(below, fold):
            log.info(
                "version %d was rolled back, or a compaction went past it: no version after it lies over its fold",
                fold.version,
            )
            if self.newest is fold:
                # Without this, every build would read the manifests back to the fold.
                self.newest = None
        return plan

    def begin(self, plan: Plan, scratch: Path) -> None:
        """Begin a fold of the overlay in `scratch`, unless a fold is under way, is announced, or failed a moment ago."""
        busy = self.ahead is not None or (self._thread is not None and self._thread.is_alive())
        if busy or time.monotonic() < self._not_before:
            return
        folder = scratch.parent / FOLD
        [overlay] = plan.files("overlay")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            shutil.copyfile(scratch / overlay, folder / overlay)
        except OSError as failed:
            self._failed(plan.manifest.version, failed)
            return
        self._thread = threading.Thread(target=self._fold, args=(plan, folder), name="fold", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._pool is not None:
            end_at_once(self._pool)
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _fold(self, plan: Plan, folder: Path) -> None:
        began, version = time.monotonic(), plan.manifest.version
        try:
            manifest = self._folded(plan, folder)
        except (RuntimeError, StoreError, OSError) as failed:
            if not self._stopping:
                self._failed(version, failed)
        else:
            spent = time.monotonic() - began
            self._use_at = time.monotonic() + max(_AHEAD_SECONDS, _AHEAD_SHARE * spent)
            self.ahead = manifest
            log.info("the overlay of version %d is merged into full parts in %.1f s", version, spent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _failed(self, version: int, failed: Exception) -> None:
        """Pause after a failed fold. Versions keep lying over the former full parts; a later overlay begins another fold."""
        self._not_before = time.monotonic() + _PAUSE_SECONDS
        log.warning("the overlay of version %d is not merged into full parts: %s", version, failed)

    def _folded(self, plan: Plan, folder: Path) -> DictionaryManifest:
        """Raises RuntimeError, StoreError, OSError."""
        self._pool = background_pool()
        entries: list[FileEntry] = []
        try:
            for partition, name in enumerate(plan.files("merge")):
                task = Task(self._config.store, plan, "merge", partition, folder, self._tokens, _MEMORY_BYTES)
                part = self._done(task)
                entries.append(self._done(task._replace(step="publish", part=part)))
                (folder / name).unlink()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return publish_dictionary(self._store, folded(plan, entries), layout.dictionary_fold(plan.manifest.version))

    def _done(self, task: Task) -> FileEntry:
        assert self._pool is not None
        with children_without_interrupts():
            future = self._pool.submit(run_task, task)
        outcome = future.result()
        if outcome.entry is None:
            raise RuntimeError(outcome.failed or "no part was built")
        return outcome.entry
