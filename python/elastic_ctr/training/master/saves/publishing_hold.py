"""The publishing hold of a stream: a loss of quality after a version went live begins it, an operator ends it. The ledger has it."""

import logging
import math
import time
from collections.abc import Callable

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions.safeguards import Hold, is_resumed, write_hold
from elastic_ctr.training.master.calendar.quality_gate import LOOKED_AT, abrupt_loss, limits_of, loss_after_live
from elastic_ctr.training.master.decisions import DecisionLock
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import HoldRow, PassRow

log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


def is_held(ledger: Ledger, current: PassRow, config: MasterConfig, now: float, *, late_clicks: bool) -> bool:
    """True if the trained pass `current` makes no version. Its windows may begin a hold. Called within a transaction."""
    facts = ledger.facts
    if facts.hold is not None:
        return True
    windows = ledger.figures.windows(current.ordinal, facts.compared_from, LOOKED_AT)
    # After an operator has resumed, only windows since then are the reference.
    earlier = () if facts.compared_from else facts.windows_before
    abrupt = abrupt_loss(config.max_quality_loss, config.max_live_loss)
    lasting = limits_of(config.max_live_loss, late_clicks)
    found = loss_after_live(windows, limits_of(abrupt, late_clicks), lasting, earlier)
    if found is None:
        return False
    log.error("publishing is held: %s", found.reason)
    # The clock may be set back, and numbers only grow.
    number = max(int(now * 1000), facts.last_hold + 1)
    hold = Hold(number=number, suspects=found.suspects, reason=found.reason, held_at=now + facts.clock_moved)
    ledger.set_facts(hold=HoldRow(hold=hold, since=current.ordinal), last_hold=number)
    return True


def end_hold(ledger: Ledger) -> None:
    """Resume publishing. Later windows are compared with one another only, because the present clicks are the new normal."""
    with ledger:
        last = ledger.passes.last()
        ledger.set_facts(hold=None, compared_from=0 if last is None else last.ordinal + 1)
    log.info("publishing goes on: an operator has resumed it; windows that are trained from now on are the new measure")


class HoldAnnouncer:
    """Writes a hold to the store for cube-transfer, and ends it when cube-transfer has written the resumption. It calls the store without
    the lock.
    """

    def __init__(self, lock: DecisionLock, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = lock
        self._store = store
        self._clock = clock
        self._looked_at = -math.inf

    def step(self) -> None:
        """Write or end the hold if that is due. Raises StoreError; call again later."""
        with self._lock.reading() as ledger:
            row = ledger.facts.hold
        now = self._clock()
        if row is None or now - self._looked_at < _LOOK_SECONDS:
            return
        # Set before the call, so that an unavailable store does not delay every turn of the master.
        self._looked_at = now
        if not row.announced:
            write_hold(self._store, row.hold)
            with self._lock.writing() as ledger:
                ledger.set_facts(hold=row.model_copy(update={"announced": True}))
        elif is_resumed(self._store, row.hold.number):
            with self._lock.writing() as ledger:
                end_hold(ledger)
