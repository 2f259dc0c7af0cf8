"""Mid-pass handover, when an upgrade replaces a training: the old servers save their table once more before they end.

The upgrade ends the old pods, which still work within their grace. No task is given out any more. Once no task is open, a
trainer saves the table as it is: a checkpoint in mid pass, which leaves the table unchanged. If a pass is being saved already,
that save is finished instead. Then, or when the old pods fall silent or their time is up, a recovery begins the new training;
its members wait until then.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.master.checkpoint_files import checkpoint_name
from elastic_ctr.master.ledger import HandoverState, Ledger, SaveRow
from elastic_ctr.master.members import Pservers, Trainers
from elastic_ctr.master.recovery import Generations
from elastic_ctr.master.schedule import Part
from elastic_ctr.master.store_queries import StoreQueries

log = logging.getLogger(__name__)

_LONGEST_LEAVE = 30.0
_TRAINED = ("training", "evaluating")


class MidPassHandover(Part):
    """The state of a handover is in the ledger: a master that restarts continues it."""

    def __init__(self, ledger: Ledger, settings: MasterFile, store: StoreQueries, clock: Callable[[], float]) -> None:
        super().__init__(ledger, settings, store, clock)
        self._generations = Generations(ledger, clock)
        self._seconds = settings.handover_seconds
        self._silence = max(self._config.lease_seconds, self._config.pserver_timeout_seconds)
        # Every living member is heard within a lease from this moment on, also after a restart of the master.
        self._listens_since: float | None = None

    @property
    def state(self) -> HandoverState | None:
        """None while no training is replaced."""
        return self._ledger.facts.handover

    @property
    def before(self) -> str | None:
        """The training that is replaced; None while none is."""
        return None if self.state is None else self.state.before

    @property
    def leave_timeout(self) -> float:
        """Seconds that a leaving member waits for a master that does not answer: an upgrade restarts the master too."""
        return min(_LONGEST_LEAVE, self._seconds)

    def resume(self) -> None:
        """Members may have called while the master was down."""
        self._listens_since = None

    def begin(self, before: str) -> HandoverState | None:
        """Begin if the replaced training is worth a save: its servers hold a part of a pass that no checkpoint has."""
        current = self._ledger.current_pass()
        pservers = len(self._ledger.facts.pservers)
        if not self._seconds or not pservers or not self._generations.ready:
            return None
        if current is None or current.state not in (*_TRAINED, "saving"):
            return None
        ends = self._clock() + self._seconds
        state = HandoverState(before=before, pservers=pservers, ordinal=current.ordinal, ends=ends)
        self._ledger.set_facts(handover=state)
        log.warning("training %s is replaced: it has %.0f s to save once more and leave", before, self._seconds)
        return state

    def order(self) -> None:
        """The save in mid pass, once and as soon as no task is open."""
        current, state = self._ledger.current_pass(), self.state
        if state is None or current is None or current.state not in _TRAINED or self._ledger.leased():
            return
        generation = self._generations.present
        name = checkpoint_name(current, generation)
        save = SaveRow(current.ordinal, generation, ("checkpoint",), None, None, name, self._clock())
        stood = {"state": current.state, "epoch": current.epoch, "trained_at": current.trained_at}
        with self._ledger:
            self._ledger.begin_save(save)
            self._ledger.set_pass(current.ordinal, state="saving")
            self._ledger.set_facts(handover=state.model_copy(update={"mid": stood}))

    def mid_pass_state(self, save: SaveRow) -> Mapping[str, Any] | None:
        """Where the pass stood when this save was ordered in its middle; None for a save of a whole pass."""
        state = self.state
        if state is None or state.ordinal != save.ordinal or save.generation != self._generations.present:
            return None
        return state.mid

    def done(self, state: HandoverState) -> bool:
        """The pass under way was saved as a whole. A save in its middle is done with its commit."""
        current = self._ledger.current_pass()
        return current is None or current.ordinal != state.ordinal

    def broken(self, state: HandoverState, pservers: Pservers, trainers: Trainers) -> str:
        """Why nothing more can be saved; empty while it can."""
        current, now = self._ledger.current_pass(), self._clock()
        if current is not None and current.state == "stopped":
            return f"pass {current.id} is stopped"
        if now > state.ends:
            return f"it was not done within {self._seconds:g} s"
        if self._listens_since is None:
            self._listens_since = now
        since = now - self._silence
        if since < self._listens_since:
            return ""
        if unheard := pservers.silent_since(since):
            return f"pserver {', '.join(map(str, unheard))} of {pservers.count} is gone"
        save = None if current is None else self._ledger.save_of(current.ordinal)
        only_written = save is not None and save.stage in ("saved", "written")
        return "" if only_written or trainers.heard_since(since) else "no trainer is left"

    def reason_text(self, state: HandoverState, training: str, why_not: str) -> str:
        """Why a recovery begins the new training, and why the last training since a checkpoint is lost."""
        replaced = f"training {state.before} was replaced by {training}"
        save = self._ledger.save_of(state.ordinal)
        stands = save is not None and save.checkpoint in {row["name"] for row in self._ledger.checkpoints()}
        return replaced if stands or not why_not else f"{replaced}, and was not saved once more: {why_not}"
