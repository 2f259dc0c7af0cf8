"""Tells cube-transfer that publishing is held, and learns from it that an operator has ended the hold: through the store."""

import math
import time
from collections.abc import Callable

from elastic_ctr.store import Store
from elastic_ctr.store.versions.holds import is_resumed, write_hold
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.saves.hold import end_hold

_LOOK_SECONDS = 2.0


class HoldAnnouncer:
    """Works without the coordinator's lock while it waits for the store."""

    def __init__(self, coordinator: Coordinator, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._store = store
        self._clock = clock
        self._looked_at = -math.inf

    def step(self) -> None:
        """Raises StoreError: try again later."""
        with self._coordinator.locked() as ledger:
            row = ledger.facts.hold
        now = self._clock()
        if row is None or now - self._looked_at < _LOOK_SECONDS:
            return
        # Before the store is asked: one that is away must not keep the master from its other work at each turn.
        self._looked_at = now
        if not row.announced:
            write_hold(self._store, row.hold)
            with self._coordinator.locked() as ledger:
                ledger.set_facts(hold=row.model_copy(update={"announced": True}))
        elif is_resumed(self._store, row.hold.number):
            with self._coordinator.locked() as ledger:
                end_hold(ledger)
