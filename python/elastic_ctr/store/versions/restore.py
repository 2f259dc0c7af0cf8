"""Fills an empty release from a backup. The whole backup is read first, so a damaged one is refused while nothing is written yet."""

import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from elastic_ctr.runtime.sqlite_file import delete_beside, schema_of
from elastic_ctr.store.backends import FileStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import (
    CLICKS,
    COPIES,
    FILES,
    LEDGER,
    RELEASE,
    TOPS,
    BackupManifest,
    BackupRefused,
    Copies,
    Part,
    entry_in,
    entry_of_state,
    has,
    read_backup,
    size_of,
)
from elastic_ctr.store.versions.manifest import ManifestDamaged, digest_of
from elastic_ctr.store.versions.published_files import fetch

# SQLite's files, in the order of their restore.
_DATABASES: tuple[Part, ...] = (CLICKS, LEDGER)
# Written by the roles of the empty release itself, or by an earlier try of the same restore.
_NOT_PUBLISHED = {layout.BASE_DONEFILE, layout.PATCH_DONEFILE, layout.RESTORED}
_DAMAGED = "it is damaged, and nothing is restored; put the file back, or restore another backup"


class RestoredDatabase(NamedTuple):
    """The place of a restored file of SQLite, and the highest schema number that this release knows."""

    path: Path
    schema: int


def restore(
    backup: Store, store: Store, state: Mapping[Part, RestoredDatabase], folder: Path, said: Callable[[str], None]
) -> BackupManifest:
    """Fill an empty release. `state` has the place of the ledger, and of the log of clicks if this process can write it.

    The ledger comes last, so an interrupted restore is repeated, and a master finds a complete one. Nothing is changed where the same
    backup is restored already. Raises BackupRefused, StoreError, OSError.
    """
    manifest = read_backup(backup)
    if _is_restored(manifest, state):
        return manifest
    _refuse_others(store, manifest)
    said(f"{backup.url} is verified: {len(manifest.stored)} files")
    _refuse_damaged(backup, manifest)
    parts = [name for name in _DATABASES if name in manifest.state and name in state]
    try:
        for name in parts:
            _refuse_newer(
                fetch(backup, entry_of_state(manifest.state[name]), folder / name), name, state[name], manifest
            )
        said(f"{len(manifest.published)} files are restored")
        copies = Copies(folder)
        copies.copy(backup, store, [(entry_in(FILES, each), each.path) for each in manifest.files])
        if (document := manifest.state.get(RELEASE)) is not None:
            copies.copy(backup, store, [(entry_of_state(document), layout.RESTORED)])
        # Sorted, checkpoints are first: cube-transfer deletes old versions that no checkpoint follows.
        for each in sorted(manifest.manifests, key=lambda entry: entry.path):
            copies.copy(backup, store, [(entry_in(FILES, each), each.path)])
    except ManifestDamaged as damaged:
        raise BackupRefused(
            f"the backup was damaged meanwhile, and no role starts with what is restored so far: {str(damaged).partition(';')[0]}; put a "
            "copy of the file back and restore again, or restore another backup"
        ) from damaged
    for name in parts:
        path = state[name].path
        # SQLite would play the log of a lost file into the restored one.
        delete_beside(path)
        FileStore(path.parent).put(folder / name, path.name, overwrite=True)
    return manifest


def _is_restored(manifest: BackupManifest, state: Mapping[Part, RestoredDatabase]) -> bool:
    """True if the ledger is that of the backup. Raises BackupRefused if there is another one, or without it another log of clicks."""
    for name in reversed(_DATABASES):
        if name in state and (path := state[name].path).exists():
            known = manifest.state.get(name)
            if known is None or digest_of(path)[1] != known.sha256:
                raise BackupRefused(
                    f"{path} is there already, so this release is not empty; restore into an empty folder or release"
                )
            if name == LEDGER:
                return True
    return False


def _refuse_newer(file: Path, name: Part, place: RestoredDatabase, manifest: BackupManifest) -> None:
    """Raises BackupRefused for a file of a later schema."""
    try:
        number = schema_of(file)
    except sqlite3.Error as failed:
        raise BackupRefused(f"the {name} of the backup is damaged ({failed}); restore another backup") from failed
    if number > place.schema:
        raise BackupRefused(
            f"the {name} of the backup has schema number {number} and this release knows up to {place.schema}: restore it with release "
            f"{manifest.made_by}, which has made it, or with a newer one"
        )


def _refuse_others(store: Store, manifest: BackupManifest) -> None:
    known = {each.path for each in manifest.published} | _NOT_PUBLISHED
    for top in TOPS:
        for path in store.walk(top.rstrip("/")):
            if path not in known:
                raise BackupRefused(
                    f"{store.url} has {path}, which is not of the backup, so this release is not empty; restore into an empty store"
                )


def _refuse_damaged(backup: Store, manifest: BackupManifest) -> None:
    """Read every file of the backup, those of a wrong size first. Raises BackupRefused."""
    for each in manifest.stored:
        found = size_of(backup, each.path)
        if found != each.bytes:
            instead = "lacks it" if found is None else f"has {found} bytes of it"
            raise BackupRefused(
                f"the backup names {each.path} of {each.bytes} bytes, and {backup.url} {instead}: {_DAMAGED}"
            )
    with ThreadPoolExecutor(max_workers=COPIES) as pool:
        for each, whole in zip(manifest.stored, pool.map(lambda one: has(backup, one), manifest.stored), strict=True):
            if not whole:
                raise BackupRefused(
                    f"{each.path} in {backup.url} has another checksum than the backup names: {_DAMAGED}"
                )
