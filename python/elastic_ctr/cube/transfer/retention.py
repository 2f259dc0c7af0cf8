"""Deleting what nobody needs any more. Transfer alone does it."""

import logging
from collections.abc import Collection, Iterable

from elastic_ctr.store import NotInStore, Store
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import ManifestDamaged, is_orphan, read_checkpoint

log = logging.getLogger(__name__)


def delete_version(store: Store, version: int) -> None:
    """Manifests first: what is half deleted is a folder without a manifest. Raises StoreError."""
    store.delete(layout.version_manifest(version))
    store.delete(layout.dictionary_manifest(version))
    for folder in (layout.dictionary_folder(version), f"{layout.CUBE}/{version}", layout.model_folder(version)):
        store.delete(folder)
    store.delete(layout.refusal(version))


def delete_orphans(store: Store, published: Collection[int], built: Collection[int], now: float) -> list[str]:
    """Folders of versions that have no manifest and have not changed for a day. Raises StoreError.

    One that is newer than all that is published may be on its way still, however long that takes.
    """
    deleted = []
    newest = max(published, default=0)
    kept = {layout.CUBE: set(published), layout.MODELS: set(published), layout.DICTIONARIES: {*published, *built}}
    for parent, keep in kept.items():
        for name in store.list(parent):
            number = name.removesuffix("/")
            if number == name or not layout.is_version(number) or int(number) in keep or int(number) > newest:
                continue
            folder = f"{parent}/{number}"
            if is_orphan(store, folder, now):
                store.delete(folder)
                deleted.append(folder)
    return deleted


def followed_by_checkpoints(store: Store) -> set[int]:
    """Versions that training may come back to: the next delta may name them as its parent. Raises StoreError."""
    found: set[int] = set()
    for name in store.list(layout.CHECKPOINTS):
        if name.endswith("/"):
            try:
                checkpoint = read_checkpoint(store, name[:-1])
            except (NotInStore, ManifestDamaged):
                continue  # unfinished, or not ours: it leads back to nothing
            found |= known(checkpoint.follows_version, checkpoint.base_version)
    return found


def known(*versions: int | None) -> set[int]:
    return {each for each in versions if each is not None}


def delete_versions(store: Store, doomed: Iterable[int]) -> list[int]:
    """Raises StoreError at the first that cannot be deleted."""
    deleted = []
    for version in doomed:
        delete_version(store, version)
        deleted.append(version)
        log.info("version %s is deleted from the store: newer ones are kept and nothing needs it", version)
    return deleted
