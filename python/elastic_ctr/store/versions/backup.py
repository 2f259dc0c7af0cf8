"""Backups: the files of a release at another address, from which `restore` fills an empty release.

    backup/release.txt            the id of the release, because two releases never share a backup
    backup/files/<path>           files of the store by their paths; they never change, so the next backup copies only new ones
    backup/state/<sha256>         the ledger, the log of clicks and the release document, at one moment
    backup/manifest.json          the names and checksums of all these; it is replaced last

A copy takes longer than retention waits. So the state is copied first, and then the files that it needs: those of the live version and
of the checkpoints. If one of them is deleted meanwhile, the backup begins again with a newer state, and what is copied stays.
"""

import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NamedTuple, TypeVar

from pydantic import model_validator
from typing_extensions import Self

from elastic_ctr.runtime.documents import DocumentDamaged, Numbered, read_document
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store.backends import AlreadyPublished, FileTooLarge, NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    DictionaryManifest,
    FileEntry,
    ManifestDamaged,
    Record,
    UnixSeconds,
    VersionId,
    VersionManifest,
    Whole,
    digest_of,
)
from elastic_ctr.store.versions.published_files import checked_file, published_versions, versions_in

log = logging.getLogger(__name__)

SCHEMA = 1
LEDGER: Final = "ledger"
CLICKS: Final = "clicks"
RELEASE: Final = "release"
Part = Literal["ledger", "clicks", "release"]
_MANIFEST = "backup/manifest.json"
_OWNER = "backup/release.txt"
FILES = "backup/files"
_STATE = "backup/state"
TOPS = ("output/", "checkpoints/")
COPIES = 4
_ATTEMPTS = 5
M = TypeVar("M", VersionManifest, DictionaryManifest, CheckpointManifest)


class BackupRefused(ValueError):
    """A backup or a restore is impossible. The message has the reason and the way out."""


class Overtaken(StoreError):
    """Retention has deleted a file that the copied state needs."""


class BackupManifest(Record):
    """A complete backup.

    Attributes:
        release: the id of the ledger.
        made_by: the version of elastic-ctr.
        live: the version that was live; None if none was.
        checkpoint: the checkpoint to which training returns; empty if there was none.
        state: the ledger, and where the release has them, the log of clicks and the release document.
        files: files of the store; `manifests` are restored after them.

    A manifest without a ledger, or with a path that no published file has, is refused.
    """

    schema_number: Whole = SCHEMA
    release: str
    made_at: UnixSeconds
    made_by: str
    live: VersionId | None
    checkpoint: str
    state: dict[Part, FileEntry]
    files: tuple[FileEntry, ...]
    manifests: tuple[FileEntry, ...]

    @property
    def published(self) -> tuple[FileEntry, ...]:
        """Return all files of the store."""
        return (*self.files, *self.manifests)

    @property
    def stored(self) -> tuple[FileEntry, ...]:
        """Return the entries of all files of the backup but this manifest, with their places in it."""
        return (*(entry_in(FILES, each) for each in self.published), *map(entry_of_state, self.state.values()))

    @model_validator(mode="after")
    def _is_of_a_release(self) -> Self:
        if LEDGER not in self.state:
            raise ValueError("it names no ledger")
        for each in self.published:
            path = PurePosixPath(each.path)
            if not each.path.startswith(TOPS) or ".." in path.parts or str(path) != each.path:
                raise ValueError(f"{each.path[:200]!r} is not a path of a published file")
        return self


@dataclass(frozen=True)
class State:
    """The state of the roles at one moment, as files of this machine.

    Attributes:
        newest: the newest version that the ledger knows.
        checkpoints: their names, the newest last.
        files: by its name in the manifest.
    """

    release: str
    live: int | None
    newest: int
    checkpoints: Sequence[str]
    files: Mapping[Part, Path]


class BackedUp(NamedTuple):
    """A complete backup, and how much of it was copied by this call."""

    manifest: BackupManifest
    files: int
    bytes: int


def back_up(
    store: Store, target: Store, state: Callable[[], State], folder: Path, made_by: str, said: Callable[[str], None]
) -> BackedUp:
    """Bring a backup up to date. `state` copies the state of the roles; `folder` is for files on their way.

    Raises BackupRefused, StoreError, ManifestDamaged.
    """
    copies = Copies(folder)
    for attempt in range(_ATTEMPTS):
        now = state()
        _own(target, now.release)
        copies.trusted |= _named_by_the_last(target)
        try:
            manifest = _Backup(store, target, copies).of(now, made_by)
        except Overtaken as again:
            if attempt == _ATTEMPTS - 1:
                raise
            said(f"{again}; the backup begins again with a newer state, and what is copied stays")
            continue
        _sweep(target, manifest)
        return BackedUp(manifest, copies.files, copies.bytes)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def scratch_in(state: Path) -> Iterator[Path]:
    """Yield an empty folder of `state` for files on their way, which one process has at a time. Raises StateInUse, OSError."""
    folder = state / "backup"
    with StateLock(folder):
        files = folder / "files"
        # A process that was killed has left its files.
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        try:
            yield files
        finally:
            shutil.rmtree(files, ignore_errors=True)


def read_backup(backup: Store) -> BackupManifest:
    """Return the manifest of the complete backup. Raises BackupRefused, StoreError."""
    try:
        data = backup.get_bytes(_MANIFEST)
    except NotInStore as gone:
        half = ": the first one has not come to its end" if backup.exists(_OWNER) else ""
        raise BackupRefused(
            f"{backup.url} has no complete backup{half}; run `elastic-ctr backup` to the end, or give another address"
        ) from gone
    try:
        number = read_document(Numbered, data).schema_number
        if number > SCHEMA:
            raise BackupRefused(
                f"the backup in {backup.url} has schema number {number} and this release knows up to {SCHEMA}: restore it with the release "
                "that has made it, or with a newer one"
            )
        return read_document(BackupManifest, data)
    except (DocumentDamaged, FileTooLarge) as damaged:
        raise BackupRefused(f"{_MANIFEST} in {backup.url} is damaged ({damaged}); restore another backup") from damaged


def entry_in(folder: str, entry: FileEntry) -> FileEntry:
    """Return the entry of the same file below `folder` of a backup."""
    return entry.model_copy(update={"path": f"{folder}/{entry.path}"})


def entry_of_state(entry: FileEntry) -> FileEntry:
    return entry.model_copy(update={"path": f"{_STATE}/{entry.sha256}"})


def _own(target: Store, release: str) -> None:
    """Mark an address as that of this release's backup. Raises BackupRefused if it is another one's."""
    with suppress(AlreadyPublished):
        target.put_bytes(release.encode(), _OWNER)
    if (owner := target.get_bytes(_OWNER).decode("utf-8", "replace")) != release:
        raise BackupRefused(
            f"{target.url} has the backup of another release ({owner[:40]}, not {release}); give each release an address of its own"
        )


def has(store: Store, entry: FileEntry) -> bool:
    """True if the store's file is that of the entry, by its bytes. Raises StoreError."""
    if size_of(store, entry.path) != entry.bytes:
        return False
    digest = sha256()
    for block in store.read_from(entry.path):
        digest.update(block)
    return digest.hexdigest() == entry.sha256


def _named_by_the_last(target: Store) -> set[FileEntry]:
    """Return the files of the complete backup that is there. Other files are of interrupted ones, perhaps before a restore."""
    try:
        return set(read_backup(target).stored)
    except BackupRefused:
        return set()


def size_of(store: Store, path: str) -> int | None:
    try:
        return store.size(path)
    except NotInStore:
        return None


def _sweep(target: Store, manifest: BackupManifest) -> None:
    """Delete the files of earlier and of interrupted backups."""
    named = {each.path for each in manifest.stored}
    for folder in {"backup", *(str(PurePosixPath(path).parent) for path in named)}:
        target.sweep(folder)
    for path in (*target.walk(FILES), *target.walk(_STATE)):
        if path not in named:
            target.delete(path)


class Copies:
    """Copies of files between stores. `files` and `bytes` count those that the target lacked.

    A file in the target that is not `trusted` is read before it is taken for the one: it may be of the same name and size alone. Copied
    files are. Another file of the name is replaced, or with `create` refused as AlreadyPublished.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self._folder = folder
        self._replace = not create
        self.trusted: set[FileEntry] = set()
        self.files = self.bytes = 0

    def copy(self, source: Store, target: Store, wanted: Collection[tuple[FileEntry, str]]) -> None:
        """Copy files to their places, unless they are there. Raises NotInStore, ManifestDamaged, StoreError."""
        with ThreadPoolExecutor(max_workers=COPIES) as pool:
            for (entry, place), size in zip(
                wanted, pool.map(lambda each: self._copied(source, target, *each), wanted), strict=True
            ):
                self.trusted.add(entry.model_copy(update={"path": place}))
                self.files += size is not None
                self.bytes += size or 0

    def _copied(self, source: Store, target: Store, entry: FileEntry, place: str) -> int | None:
        if self.has(target, entry.model_copy(update={"path": place})):
            return None
        file = checked_file(source, entry, self._folder)
        try:
            target.put(file, place, overwrite=self._replace)
        except StoreError as failed:
            if not file.exists():
                raise NotInStore(f"{entry.path} is not in {source.url} any more") from failed
            raise
        if file.is_relative_to(self._folder):
            file.unlink()
        return entry.bytes

    def has(self, target: Store, entry: FileEntry) -> bool:
        """True if the target has the file. Raises StoreError."""
        return size_of(target, entry.path) == entry.bytes if entry in self.trusted else has(target, entry)

    def put(self, data: bytes, target: Store, place: str) -> None:
        """Write a small file, unless it is there."""
        with suppress(NotInStore):
            if target.get_bytes(place) == data:
                return
        target.put_bytes(data, place, overwrite=True)
        self.files += 1
        self.bytes += len(data)


class _Backup:
    """One attempt: the files that the state needs, then the other published ones, then the manifest."""

    def __init__(self, store: Store, target: Store, copies: Copies) -> None:
        self._store = store
        self._target = target
        self._copies = copies
        self._files: dict[str, FileEntry] = {}
        self._manifests: dict[str, FileEntry] = {}

    def of(self, state: State, made_by: str) -> BackupManifest:
        """Copy everything. Raises Overtaken, StoreError, ManifestDamaged."""
        self._needed(state)
        for top in (layout.STATISTICS, layout.REFUSED, layout.HOLDS):
            for path in self._store.walk(top):
                with suppress(NotInStore):
                    self._keep(path, self._store.get_bytes(path))
        # A newer version is unknown to the copied ledger, whose master would give its id again.
        versions = [each for each in published_versions(self._store) if each <= state.newest]
        built = [each for each in versions_in(self._store, layout.DICTIONARIES, "/") if each <= state.newest]
        # Oldest first: a version is kept only if those that it stands on are.
        for version in versions:
            self._take(layout.version_manifest(version), VersionManifest)
        for version in built:
            self._take(layout.dictionary_fold(version), DictionaryManifest)
        for version in built:
            self._take(layout.dictionary_manifest(version), DictionaryManifest)
        entries = {name: self._state(file) for name, file in state.files.items()}
        manifest = BackupManifest(
            release=state.release,
            made_at=time.time(),
            made_by=made_by,
            live=state.live,
            checkpoint=state.checkpoints[-1] if state.checkpoints else "",
            state=entries,
            files=tuple(self._files.values()),
            manifests=tuple(self._manifests.values()),
        )
        self._target.put_bytes(manifest.to_json(), _MANIFEST, overwrite=True)
        return manifest

    def _needed(self, state: State) -> None:
        """Copy the files of the live version, which retention may delete first, and of the checkpoints."""
        try:
            if state.live is not None:
                path = layout.dictionary_manifest(state.live)
                dictionary, _ = self._read(path, DictionaryManifest)
                for each in (*sorted(_stands_on(dictionary)), path):
                    self._copy_all(each, DictionaryManifest)
                self._copy_all(layout.version_manifest(state.live), VersionManifest)
            for name in state.checkpoints:
                self._copy_all(layout.checkpoint_manifest(name), CheckpointManifest)
        except NotInStore as gone:
            raise Overtaken(f"retention was faster: {gone}") from gone

    def _read(self, path: str, kind: type[M]) -> tuple[M, bytes]:
        data = self._store.get_bytes(path)
        try:
            return read_document(kind, data), data
        except DocumentDamaged as damaged:
            raise ManifestDamaged(f"{path} in {self._store.url} is damaged: {damaged}") from damaged

    def _take(self, path: str, kind: type[M]) -> None:
        """Copy a published folder, unless it is deleted or damaged, or stands on one that is."""
        if path in self._manifests:
            return
        try:
            manifest, _ = self._read(path, kind)
            if _stands_on(manifest) <= self._manifests.keys():
                self._copy_all(path, kind)
        except NotInStore:
            return  # not built, or deleted since
        except ManifestDamaged as damaged:
            log.warning("%s is left out of the backup: %s", path, damaged)

    def _copy_all(self, path: str, kind: type[M]) -> None:
        manifest, data = self._read(path, kind)
        entries = {each.path: each for each in files_of(manifest) if each.path not in self._files}
        wanted = [(each, f"{FILES}/{each.path}") for each in entries.values()]
        self._copies.copy(self._store, self._target, wanted)
        self._files |= entries
        self._keep(path, data)

    def _keep(self, path: str, data: bytes) -> None:
        self._copies.put(data, self._target, f"{FILES}/{path}")
        self._manifests[path] = FileEntry(path=path, bytes=len(data), sha256=sha256(data).hexdigest())

    def _state(self, file: Path) -> FileEntry:
        size, digest = digest_of(file)
        entry = FileEntry(path=file.name, bytes=size, sha256=digest)
        stored = entry_of_state(entry)
        if not self._copies.has(self._target, stored):
            self._target.put(file, stored.path, overwrite=True)
            self._copies.files += 1
            self._copies.bytes += size
        return entry


def files_of(manifest: VersionManifest | DictionaryManifest | CheckpointManifest) -> Iterable[FileEntry]:
    """Return the files that a manifest names."""
    match manifest:
        case VersionManifest(counts=counts):
            return (*manifest.cube_files, *manifest.model_files, *(() if counts is None else (counts,)))
        case DictionaryManifest(below=below):
            return (*manifest.files, *(() if below is None else (below.file,)))
        case CheckpointManifest():
            return manifest.files


def _stands_on(manifest: VersionManifest | DictionaryManifest | CheckpointManifest) -> set[str]:
    """Return the manifests without which a manifest has no use."""
    match manifest:
        case VersionManifest(version=version, base=base, parent=parent):
            return {layout.version_manifest(each) for each in (base, parent or base) if each != version}
        case DictionaryManifest(full_version=full, version=version):
            if full == version:
                return set()
            return {layout.dictionary_fold(full) if manifest.folded else layout.dictionary_manifest(full)}
        case CheckpointManifest():
            return set()
