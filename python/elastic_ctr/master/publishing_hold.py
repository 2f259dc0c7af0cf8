"""The publishing hold of a stream: begun by a lasting loss of quality, ended by an operator. Its state is in the ledger."""

import logging

from elastic_ctr.config.roles import LiveLoss
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.ledger_quality import COMPARED_WINDOWS
from elastic_ctr.master.ledger_rows import HoldRow, PassRow
from elastic_ctr.master.quality_gate import TRIAL, lasting_loss

log = logging.getLogger(__name__)

# Refused ones may be among the published.
_LOOKED_AT = TRIAL + 2 * COMPARED_WINDOWS


def is_held(ledger: Ledger, current: PassRow, limits: LiveLoss, now: float) -> bool:
    """Whether pass `current`, which is trained, makes no version: its windows may begin a hold. Called within a transaction."""
    facts = ledger.facts
    if facts.hold is not None:
        return True
    found = lasting_loss(ledger.windows(current.ordinal, facts.compared_from, _LOOKED_AT), limits)
    if found is None:
        return False
    log.error("publishing is held: %s", found.reason)
    number = int(now * 1000)
    ledger.set_facts(
        hold=HoldRow(number=number, since=current.ordinal, suspects=found.suspects, reason=found.reason, held_at=now)
    )
    return True


def end_hold(ledger: Ledger) -> None:
    """The next windows are compared with one another alone: what the clicks are like now is the new measure."""
    with ledger:
        last = ledger.last_pass()
        ledger.set_facts(hold=None, compared_from=0 if last is None else last.ordinal + 1)
    log.info("publishing goes on: an operator has resumed it")
