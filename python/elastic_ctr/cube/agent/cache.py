"""The cached parts of an agent: fetched with a rate limit, resumed after an interruption, checked before use.

<cache>/<version>/manifest.json     the dictionary's manifest: a restarted pod loads cached parts without the store
<cache>/<version>/part-00017.dict   a checked part: a copy, so that damage to it never damages the store
<cache>/<version>/part-00017.part   a part that is being fetched
<cache>/<version>/overlay.dict      the overlay of all partitions, where it is one file
<cache>/<version>/fold.json         the manifest of full parts that this overlay was merged into
"""

import errno
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest, FileEntry, ManifestDamaged, digest_of
from elastic_ctr.store.versions.published_files import read_dictionary, read_fold

_PIECE = 4 << 20
# Error numbers of a read from bytes that the disk has lost.
_LOST = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}


class FetchStopped(Exception):
    """The agent ends; the bytes fetched so far stay for the next start."""


class _FetchPaused(Exception):
    """The agent has other work; the bytes fetched so far stay."""


class Cache:
    """Owned by one agent; its methods block and are called from one thread at a time."""

    def __init__(
        self, store: Store, folder: Path, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._folder = folder.resolve()
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._next_block_at = clock()
        self._checked: dict[Path, tuple[int, int]] = {}
        self._manifests: dict[int, DictionaryManifest] = {}
        self._folds: dict[int, DictionaryManifest] = {}
        self.fetched_bytes = 0
        self.stopped = threading.Event()

    def is_published(self, version: int) -> bool:
        """True if the store has the version's manifest: a part that it lacks then is missing for good."""
        try:
            return self._store.exists(layout.dictionary_manifest(version))
        except (StoreError, OSError):
            return False

    def manifest(self, version: int) -> DictionaryManifest:
        """Raises NotInStore, StoreError, ManifestDamaged, OSError."""
        if version not in self._manifests:
            self._manifests[version] = self._kept(
                layout.dictionary_manifest(version), lambda: read_dictionary(self._store, version)
            )
        return self._manifests[version]

    def _full_below(self, manifest: DictionaryManifest) -> DictionaryManifest:
        """Return the manifest with the full parts of this one. Raises as `manifest` does."""
        version = manifest.full_version
        if not manifest.folded or manifest.version == version:
            return self.manifest(version)
        return self._fold(version)

    def _fold(self, version: int) -> DictionaryManifest:
        """Return the manifest of the full parts that a version's overlay was merged into. Raises as `manifest` does."""
        if version not in self._folds:
            self._folds[version] = self._kept(layout.dictionary_fold(version), lambda: read_fold(self._store, version))
        return self._folds[version]

    def _kept(self, path: str, read: Callable[[], DictionaryManifest]) -> DictionaryManifest:
        """Return a manifest from its local copy; without one from the store, and keep a copy."""
        file = self._folder / PurePosixPath(path).relative_to(layout.DICTIONARIES)
        try:
            return read_document(DictionaryManifest, file.read_bytes())
        except (FileNotFoundError, DocumentDamaged):
            found = read()
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".new")
        temporary.write_bytes(found.to_json())
        temporary.replace(file)
        return found

    def parts(self, version: int, partition: int) -> tuple[Path, ...]:
        """Return local, checked files of a partition, the lowest layer first: the full part, then the overlays.

        Raises NotInStore, StoreError, ManifestDamaged, OSError, FetchStopped.
        """
        return tuple(self._file(entry) for entry in self._layers(self.manifest(version), partition))

    def fetch_overlays(self, manifest: DictionaryManifest) -> None:
        """Fetch the overlays of a manifest whose overlay is one file of all partitions. Raises as `parts` does."""
        for entry in manifest.overlays(0):
            self._file(entry)

    def fetch_ahead(self, version: int, partitions: Iterable[int], has_work: Callable[[], bool]) -> bool:
        """Fetch the full parts of a fold before a version lies over them. Return False if other work interrupted it.

        Raises as `parts` does.
        """
        fold = self._fold(version)
        try:
            for partition in partitions:
                self._file(fold.part(partition), has_work)
        except _FetchPaused:
            return False
        return True

    def cached_partitions(self, version: int) -> set[int]:
        """Return the partitions that need no fetching. Raises as `manifest` does."""
        manifest = self.manifest(version)
        layers = {p: self._layers(manifest, p) for p in range(manifest.partitions)}
        # Each file once: an overlay may be the one of all partitions.
        there = {path: path.exists() for path in {self._path(each) for own in layers.values() for each in own}}
        return {p for p, own in layers.items() if all(there[self._path(each)] for each in own)}

    def _layers(self, manifest: DictionaryManifest, partition: int) -> tuple[FileEntry, ...]:
        """Raises as `manifest` does."""
        return self._full_below(manifest).part(partition), *manifest.overlays(partition)

    def forget(self, needed: Collection[int], ahead: int | None = None) -> list[int]:
        """Delete files of versions that are not needed, not below a needed one, and not `ahead`. Return these. Raises OSError."""
        try:
            keep = {ahead} | {each for version in needed for each in (version, *self.manifest(version).others)}
        except (StoreError, ManifestDamaged):
            return []  # the versions below cannot be read now, and deleting can wait
        gone = []
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) not in keep:
                shutil.rmtree(folder, ignore_errors=True)
                self._manifests.pop(int(folder.name), None)
                self._folds.pop(int(folder.name), None)
                gone.append(int(folder.name))
        self._checked = {path: seen for path, seen in self._checked.items() if int(path.parent.name) in keep}
        return gone

    def invalidate(self, version: int, partitions: Iterable[int]) -> None:
        """Check the files of these partitions again, because the server found them damaged."""
        own = self._manifests.get(version)
        folds = own is not None and own.folded
        below = None if own is None else (self._folds if folds else self._manifests).get(own.full_version)
        for partition in partitions:
            full = () if below is None else (below.part(partition),)
            for entry in (*full, *(() if own is None else own.overlays(partition))):
                self._checked.pop(self._path(entry), None)

    def _path(self, entry: FileEntry) -> Path:
        """By version, as in the store."""
        return self._folder / PurePosixPath(entry.path).relative_to(layout.DICTIONARIES)

    def _file(self, entry: FileEntry, has_work: Callable[[], bool] = lambda: False) -> Path:
        """Return the checked local file of an entry, fetched if needed. Raises _FetchPaused once the agent `has_work`."""
        target = self._path(entry)
        if target.exists():
            if self._is_right(target, entry):
                return target
            # The local file is damaged, so it is fetched anew.
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fetch(target, entry, has_work)
        return target

    def _is_right(self, path: Path, entry: FileEntry) -> bool:
        """True if size and digest match. The agent reads a file's bytes once in its life, unless the file changes."""
        found = path.stat()
        seen = (found.st_size, found.st_mtime_ns)
        if self._checked.get(path) == seen:
            return True
        try:
            if found.st_size != entry.bytes or digest_of(path)[1] != entry.sha256:
                return False
        except OSError as failed:
            if failed.errno not in _LOST:
                raise
            return False
        self._checked[path] = seen
        return True

    def _fetch(self, target: Path, entry: FileEntry, has_work: Callable[[], bool]) -> None:
        if has_work():
            raise _FetchPaused(entry.path)
        partial = target.with_suffix(".part")
        size = partial.stat().st_size if partial.exists() else 0
        if size > entry.bytes:
            partial.unlink()
            size = 0
        # Write large pieces, whatever sizes the store yields: the kernel tends to keep bytes that are written together in
        # huge pages, in which lookups find records faster.
        with partial.open("ab", buffering=_PIECE) as out:
            if size < entry.bytes:
                for block in self._store.read_from(entry.path, size):
                    if self.stopped.is_set():
                        raise FetchStopped(entry.path)
                    out.write(block)
                    size += len(block)
                    self.fetched_bytes += len(block)
                    # The rate is averaged since a fetch last fell below it.
                    now = self._clock()
                    self._next_block_at = max(self._next_block_at, now) + len(block) / self._bytes_per_second
                    self.stopped.wait(self._next_block_at - now)
                    if size < entry.bytes and has_work():
                        raise _FetchPaused(entry.path)
            # Not synced: after a crash the bytes are compared with their digest before they are used.
            out.flush()
        if size < entry.bytes and self._store.size(entry.path) >= entry.bytes:
            raise StoreError(f"{entry.path} ended after {size} of {entry.bytes} bytes; the rest is fetched next time")
        try:
            damaged = digest_of(partial) != (entry.bytes, entry.sha256)
        except OSError as failed:
            if failed.errno in _LOST:
                partial.unlink()
            raise
        if damaged:
            partial.unlink()
            raise ManifestDamaged(
                f"{entry.path} in {self._store.url} is not what the dictionary's manifest says; cube-transfer has it built again from "
                "its SequenceFile"
            )
        partial.replace(target)
        found = target.stat()
        self._checked[target] = (found.st_size, found.st_mtime_ns)
