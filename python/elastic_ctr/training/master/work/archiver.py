"""Copies each base with its checkpoint into the bucket of `store.config.archive`, which is a store of bases for whatever reads stores.

The ledger names the base that is due, and the bucket has what is copied already, so a restarted master goes on with the missing files.
Files are created and never replaced, and the version's manifest comes last: each version of the archive has its checkpoint.
"""

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.status.master_status import ArchiveStatus
from elastic_ctr.store.backends import AlreadyPublished, Store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import TOPS, Copies, files_of
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from elastic_ctr.store.versions.safeguards import read_refusals
from elastic_ctr.training.master.decisions import DecisionLock
from elastic_ctr.training.master.ledger.save_table import SaveTable

log = logging.getLogger(__name__)

OWNERS = "archive/releases.txt"
_LOOK_SECONDS, _LONGEST_END = 5.0, 5.0
_LOWEST_PRIORITY = 19


def newest_base(saves: SaveTable, known: str | None = None) -> tuple[str, int] | None:
    """Return the newest checkpoint that was made with a base, and that base; None without one, or if the checkpoint is `known`."""
    rows = [
        row
        for row in saves.checkpoints()
        if row["base"] is not None and row["follows"] == row["base"] and not row["mid"]
    ]
    # The ledger of a stream has many versions, so they are looked up only for news.
    if not rows or rows[-1]["name"] == known:
        return None
    # The checkpoint of the next pass follows the base as well.
    passes = saves.version_passes()
    found = [(str(row["name"]), int(row["base"])) for row in rows if passes.get(row["base"]) == row["pass"]]
    return found[-1] if found and found[-1][0] != known else None


def archiver_of(settings: MasterFile, lock: DecisionLock, store: Store) -> "Archiver | None":
    """Return the archiver of `store.config.archive`, None without one. The bucket is opened when a base is due: training goes on without it."""
    if settings.store.archive is None:
        return None
    place, master = settings.store.moved(settings.store.archive.url), settings.master
    opened = partial(open_store, place, setting="store.config.archive")
    return Archiver(lock, store, place.url, opened, Path(master.state_dir), master.keep_checkpoints)


class Archiver:
    """Runs in a thread of the lowest priority, so that no pass and no save waits for the bucket.

    `copying` is the checkpoint that is being copied, which `CheckpointRetention` keeps meanwhile. cube-transfer keeps its base with it.
    """

    def __init__(
        self, lock: DecisionLock, store: Store, url: str, archive: Callable[[], Store], scratch: Path, keep: int
    ) -> None:
        self._lock = lock
        self._store = store
        self._open = archive
        self._scratch = scratch / "archive"
        self._keep = keep
        self._archived: str | None = None
        self._due_since: float | None = None
        self.copying = ""
        self.status = ArchiveStatus(url=url)

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds since the newest base became due, 0 once it is in the archive."""
        since = self._due_since
        return 0.0 if since is None else time.monotonic() - since

    @contextmanager
    def running(self, stop: threading.Event, metrics: Metrics) -> Iterator[None]:
        """Copy what is due in a thread until `stop` is set. The file on its way then has some seconds; the next start goes on with it."""
        what = "Failed attempts to copy a base to the archive."
        metrics.counter_of("archive_failures", what, lambda: self.status.failures)
        what = "Seconds for which the newest base has not been in the archive; 0 if it is."
        metrics.gauge("archive_waiting_seconds", what).set_function(lambda: self.waiting_seconds)
        thread = threading.Thread(target=self.run, args=(stop,), name="archiver", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join(_LONGEST_END)

    def run(self, stop: threading.Event) -> None:
        """Copy what is due until `stop` is set. A failure is shown, and its copy goes on at the next look."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while not stop.wait(_LOOK_SECONDS):
            try:
                self.step(stop)
            except (OSError, ValueError, sqlite3.Error) as failed:  # noqa: PERF203 (trying again is what it is for)
                if (error := f"the newest base is not archived yet: {failed}") != self.status.error:
                    log.warning("%s", error)
                self._note(failures=self.status.failures + 1, error=error)
            finally:
                self.copying = ""

    def step(self, stop: threading.Event) -> None:
        """Copy the newest base unless it is there. Raises StoreError, OSError, ManifestDamaged, ValueError for operators."""
        with self._lock.reading() as ledger:
            due = newest_base(ledger.saves, self._archived)
            if due is None:
                return
            self.copying, base = due
            release, started = ledger.facts.id, ledger.facts.started_from
        self._due_since = self._due_since or time.monotonic()
        archive = self._open()
        self._own(archive, release, started is not None and started.store.rstrip("/") == archive.url)
        refused = read_refusals(self._store)
        if base not in refused and not archive.exists(layout.version_manifest(base)):
            began = time.monotonic()
            if not self._copy(archive, self.copying, base, stop):
                return
            log.info("base %d is archived in %s, in %.1f s", base, archive.url, time.monotonic() - began)
        self._sweep(archive, refused)
        self._archived, self._due_since = self.copying, None
        self._note(version=max(published_versions(archive), default=None), checkpoint=self._archived, error="")

    def _note(self, **changes: object) -> None:
        self.status = self.status.model_copy(update=changes)

    def _own(self, archive: Store, release: str, follows: bool) -> None:
        """Make this release the last one of the archive's owners, which alone may write. Raises ValueError for another one's archive."""
        with suppress(AlreadyPublished):
            archive.put_bytes(release.encode(), OWNERS)
        owners = archive.get_bytes(OWNERS).decode("utf-8", "replace").split()
        if release not in owners and follows:
            archive.put_bytes(" ".join([*owners, release]).encode(), OWNERS, overwrite=True)
        elif owners[-1:] != [release]:
            raise ValueError(
                f"{archive.url} is the archive of another release ({', '.join(owners)[-80:]}); set store.config.archive.url to an address "
                "of this release alone"
            )

    def _copy(self, archive: Store, name: str, base: int, stop: threading.Event) -> bool:
        """Copy all files, one after the other, and the manifests. Return False if `stop` was set."""
        checkpoint, version = read_checkpoint(self._store, name), read_version(self._store, base)
        # A killed process has left its file.
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        copies = Copies(self._scratch, create=True)
        # A compacted checkpoint has files of its version.
        for entry in {each.path: each for each in (*files_of(checkpoint), *files_of(version))}.values():
            if stop.is_set():
                return False
            copies.copy(self._store, archive, [(entry, entry.path)])
        for path in (layout.checkpoint_manifest(name), layout.version_manifest(base)):
            with suppress(AlreadyPublished):
                archive.put_bytes(self._store.get_bytes(path), path)
        return True

    def _sweep(self, archive: Store, refused: Iterable[int]) -> None:
        """Delete what the newest `keep` bases do not need: older and refused ones, and the rest of interrupted copies."""
        kept = [each for each in published_versions(archive) if each not in set(refused)][-self._keep :]
        needed = {layout.version_manifest(each) for each in kept}
        needed |= {file.path for each in kept for file in files_of(read_version(archive, each))}
        for path in archive.walk(layout.CHECKPOINTS):
            if path.endswith("/manifest.json"):
                checkpoint = read_checkpoint(archive, path.split("/")[1])
                if checkpoint.base_version in kept:
                    needed |= {path, *(file.path for file in files_of(checkpoint))}
        gone = [path for top in TOPS for path in archive.walk(top.rstrip("/")) if path not in needed]
        # Manifests first, so that no version lacks a file.
        for path in sorted(gone, key=lambda path: not path.startswith(layout.VERSIONS)):
            archive.delete(path)
