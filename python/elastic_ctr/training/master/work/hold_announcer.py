"""Writes a publishing hold to the store for cube-transfer, and ends it when cube-transfer has written the resumption."""

import math
import time
from collections.abc import Callable

from elastic_ctr.store import Store
from elastic_ctr.store.versions.safeguards import is_resumed, write_hold
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.saves.hold import end_hold

_LOOK_SECONDS = 2.0


class HoldAnnouncer:
    """Calls the store without the coordinator's lock."""

    def __init__(self, coordinator: Coordinator, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._store = store
        self._clock = clock
        self._looked_at = -math.inf

    def step(self) -> None:
        """Write or end the hold if that is due. Raises StoreError; call again later."""
        with self._coordinator.locked() as ledger:
            row = ledger.facts.hold
        now = self._clock()
        if row is None or now - self._looked_at < _LOOK_SECONDS:
            return
        # Set before the call, so that an unavailable store does not delay every turn of the master.
        self._looked_at = now
        if not row.announced:
            write_hold(self._store, row.hold)
            with self._coordinator.locked() as ledger:
                ledger.set_facts(hold=row.model_copy(update={"announced": True}))
        elif is_resumed(self._store, row.hold.number):
            with self._coordinator.locked() as ledger:
                end_hold(ledger)
