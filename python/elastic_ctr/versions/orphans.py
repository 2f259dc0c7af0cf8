"""Folders of the store that have no manifest: one is being written, or whoever wrote it was cut off."""

import contextlib

from elastic_ctr.store import NotInStore, Store

ORPHAN_SECONDS = 86400.0


def is_orphan(store: Store, folder: str, now: float) -> bool:
    """Whether nothing in a folder without a manifest has changed for a day. Raises StoreError."""
    return now - newest_change(store, folder) > ORPHAN_SECONDS


def newest_change(store: Store, folder: str) -> float:
    """Unix seconds. A folder itself does not change when a file below it is written to. Raises StoreError."""
    newest = 0.0
    for path in (folder, *store.walk(folder)):
        with contextlib.suppress(NotInStore):
            newest = max(newest, store.modified_at(path))
    return newest
