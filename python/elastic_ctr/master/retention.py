"""Which checkpoints go from the store. The master alone deletes them.

The ledger's own: all but the newest `keepCheckpoints` of whole passes, and those in mid pass that one of them is newer than
(none takes its place: a pass that is stopped goes back to before it). Those that it does not name: a folder without a manifest that has not
changed for a day (an upload that was cut off), and one with a manifest that is older than the last committed checkpoint (a
recovery overtook it between its upload and its commit; or it is an older ledger's). What is newer than that stays: as long
as this ledger has committed nothing, an operator may still bring the other ledger back.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.store import NotInStore, Store, StoreError
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import ManifestDamaged, is_orphan, read_checkpoint

log = logging.getLogger(__name__)


class Retention:
    """Sweeps after each save and at start; a store that is away is asked again at the next one."""

    def __init__(
        self, coordinator: Coordinator, store: Store, keep: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._keep = keep
        self._clock = clock

    def sweep(self) -> None:
        with self._coordinator.locked():
            ledger = self._coordinator.reading()
            rows, damaged = ledger.checkpoints(), ledger.damaged_checkpoints()
            current = ledger.current_pass()
            save = None if current is None else ledger.save_of(current.ordinal)
        writing = None if save is None else save.checkpoint
        named = [row["name"] for row in (*damaged, *rows)]
        try:
            for name in (*superseded(rows, self._keep), *outlived(damaged, rows, self._keep)):
                delete_checkpoint(self._store, name)
                with self._coordinator.locked():
                    self._coordinator.reading().remove_checkpoint(name)
            for name in unnamed(self._store, named, writing, self._clock()):
                delete_checkpoint(self._store, name)
                log.info("checkpoint %s is deleted from the store: the ledger does not name it", name)
        except StoreError as failed:
            log.warning("old checkpoints cannot be deleted: %s", failed)


def superseded(rows: Sequence[Mapping[str, Any]], keep: int) -> list[str]:
    """Which of the ledger's checkpoints, oldest first, nobody comes back to any more."""
    whole = [number for number, row in enumerate(rows) if not row["mid"]]
    if not whole:
        return []
    stay = set(whole[-keep:])
    return [row["name"] for number, row in enumerate(rows[: whole[-1]]) if number not in stay]


def outlived(damaged: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], keep: int) -> list[str]:
    """Which checkpoints that were set aside go: those with `keep` newer ones of whole passes, `rows` being the ledger's others."""
    whole = [row["pass"] for row in rows if not row["mid"]]
    return [row["name"] for row in damaged if sum(ordinal > row["pass"] for ordinal in whole) >= keep]


def delete_checkpoint(store: Store, name: str) -> None:
    """The manifest first: what has none is no checkpoint. Raises StoreError."""
    store.delete(layout.checkpoint_manifest(name))
    store.delete(layout.checkpoint_folder(name))


def unnamed(store: Store, named: Sequence[str], writing: str | None, now: float) -> Iterator[str]:
    """Checkpoints in the store that go although they were never the ledger's. Raises StoreError.

    `named` are the ledger's, oldest first; `writing` is the one of the save under way.
    """
    others = [name[:-1] for name in store.list(layout.CHECKPOINTS) if name.endswith("/")]
    others = [name for name in others if name not in named and name != writing]
    committed_at = _created_at(store, named[-1]) if others and named else None
    for name in others:
        created_at = _created_at(store, name)
        if created_at is None:
            if is_orphan(store, layout.checkpoint_folder(name), now):
                yield name
        elif committed_at is not None and created_at < committed_at:
            yield name


def _created_at(store: Store, name: str) -> float | None:
    """Unix seconds; None without a manifest that can be read."""
    try:
        return read_checkpoint(store, name).created_at
    except (NotInStore, ManifestDamaged):
        return None
