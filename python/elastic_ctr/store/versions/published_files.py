"""Published files and manifests in a store: publishing, fetching and checking them."""

from pathlib import Path
from typing import TypeVar

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import FileTooLarge, NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    DictionaryManifest,
    FileEntry,
    ManifestDamaged,
    Record,
    VersionManifest,
    digest_of,
)

ORPHAN_SECONDS = 86400.0
R = TypeVar("R", bound=Record)
M = TypeVar("M", VersionManifest, DictionaryManifest)


def publish(store: Store, source: Path, path: str, records: int = 0) -> FileEntry:
    """Put one file into the store. Return its entry."""
    size, sha256 = digest_of(source)
    store.put(source, path)
    return FileEntry(path=path, bytes=size, sha256=sha256, records=records)


def fetch(store: Store, entry: FileEntry, target: Path) -> Path:
    """Get one file and verify it. Raises ManifestDamaged if its size or checksum differs from the manifest's."""
    store.get(entry.path, target)
    try:
        check(store, entry, target)
    except ManifestDamaged:
        target.unlink()
        raise
    return target


def check(store: Store, entry: FileEntry, path: Path) -> None:
    """Compare a file on this machine with its entry. Raises ManifestDamaged, OSError."""
    size, sha256 = digest_of(path)
    if (size, sha256) != (entry.bytes, entry.sha256):
        raise ManifestDamaged(
            f"{entry.path} in {store.url} is not what its manifest says ({size} bytes, sha256 {sha256[:12]}… instead of "
            f"{entry.bytes} bytes, {entry.sha256[:12]}…); put a copy of the file back, or have another version answer: "
            "`elastic-ctr rollback VERSION`"
        )


def checked_file(store: Store, entry: FileEntry, folder: Path) -> Path:
    """Return the file itself if the store is local, else a copy in `folder`; both are verified.

    Raises NotInStore, StoreError, ManifestDamaged.
    """
    local = store.local_path(entry.path)
    if local is None:
        return fetch(store, entry, folder / entry.path.replace("/", "-"))
    try:
        check(store, entry, local)
    except FileNotFoundError as gone:
        raise NotInStore(f"{entry.path} is not in {store.url}") from gone
    except OSError as failed:
        raise StoreError(f"{entry.path} cannot be read from {store.url}: {failed.strerror or failed}") from failed
    return local


def read_version(store: Store, version: int) -> VersionManifest:
    """Return the manifest of a version. Raises NotInStore, ManifestDamaged."""
    return _of_version(VersionManifest, store, version, layout.version_manifest(version))


def read_dictionary(store: Store, version: int) -> DictionaryManifest:
    """Return the dictionary manifest of a version. Raises NotInStore, ManifestDamaged."""
    return _of_version(DictionaryManifest, store, version, layout.dictionary_manifest(version))


def read_full(store: Store, dictionary: DictionaryManifest) -> DictionaryManifest:
    """Return the manifest with the full parts of a dictionary, which may be its own. Raises NotInStore, ManifestDamaged."""
    version = dictionary.full_version
    if dictionary.version == version:
        return dictionary
    return (
        read_fold(store, version)
        if dictionary.folded
        else _parsed(DictionaryManifest, store, layout.dictionary_manifest(version))
    )


def read_fold(store: Store, version: int) -> DictionaryManifest:
    """Return the manifest of the full parts that a version's overlay was merged into. Raises NotInStore, ManifestDamaged."""
    return _parsed(DictionaryManifest, store, layout.dictionary_fold(version))


def read_checkpoint(store: Store, name: str) -> CheckpointManifest:
    """Return the manifest of a checkpoint. Raises NotInStore, ManifestDamaged."""
    return _parsed(CheckpointManifest, store, layout.checkpoint_manifest(name))


def published_versions(store: Store) -> list[int]:
    """Return the ids of all versions with a manifest, oldest first."""
    return versions_in(store, layout.VERSIONS, ".json")


def versions_in(store: Store, folder: str, ending: str) -> list[int]:
    """Return the versions with a file or folder `<version><ending>` in a folder, oldest first. Raises StoreError."""
    names = (name.removesuffix(ending) for name in store.list(folder) if name.endswith(ending))
    return sorted(int(name) for name in names if layout.is_version(name))


def is_orphan(store: Store, folder: str, now: float) -> bool:
    """True if a folder without a manifest was abandoned: nothing in it has changed for a day. Raises StoreError."""
    return now - store.newest(folder) > ORPHAN_SECONDS


def _parsed(kind: type[R], store: Store, path: str) -> R:
    try:
        return read_document(kind, store.get_bytes(path))
    except (DocumentDamaged, FileTooLarge) as wrong:
        raise ManifestDamaged(f"{path} in {store.url} is damaged: {wrong}") from wrong


def _of_version(kind: type[M], store: Store, version: int, path: str) -> M:
    """Return a manifest. One that names another version than its path is refused: it could make a chain of parents circular."""
    manifest = _parsed(kind, store, path)
    if manifest.version != version:
        raise ManifestDamaged(f"{path} is damaged: it names version {manifest.version}")
    return manifest
