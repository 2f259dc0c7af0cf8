"""Generations of server processes: the return to a checkpoint, the initialisation of the tables, and the mid-pass handover of a
training that an upgrade replaces.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.decisions import DecisionContext, Part
from elastic_ctr.training.master.generations.checkpoint_files import checkpoint_name, merged_rows, rows_differ
from elastic_ctr.training.master.generations.members import JobResults, Lease, Pservers, Trainers
from elastic_ctr.training.master.generations.store_queries import Pending
from elastic_ctr.training.master.ledger.rows import HandoverState, PassRow, SaveRow

log = logging.getLogger(__name__)

TRIES = 3
"""Saves, or loads of a checkpoint, that may fail in a row before the pass is stopped."""
VERIFY = "verify"

_LONGEST_LEAVE = 30.0
_TRAINED = ("training", "evaluating")


class Initialisation(Part):
    """The initialisation of the current generation: one trainer pushes first values or loads the last checkpoint, whose rows are then
    counted. Other trainers join afterwards. The state is in memory; a restarted master repeats the initialisation, which is harmless.
    """

    _lease: Lease | None = None
    _granted: frozenset[int] = frozenset()
    verifying = False
    """The checkpoint is loaded, and its rows are being counted."""

    def __init__(self, context: DecisionContext) -> None:
        super().__init__(context)
        self._results = JobResults(context.settings.pservers)

    def forget(self) -> None:
        """Reset the state for a new generation."""
        self._lease = None
        self._granted = frozenset()
        self.verifying = False
        self._results.clear()

    def joins(self, trainer: int) -> None:
        """A trainer that joins again has given up initialising."""
        self._granted -= {trainer}

    def ask(self, trainer: int) -> bool:
        """Give the lease to this trainer unless another one has it. Return True if this trainer is to initialise."""
        lease, now = self._lease, self._clock()
        if self.verifying or (lease is not None and not lease.over(now) and lease.trainer != trainer):
            return False
        ends = now + self._config.lease_seconds
        self._lease = Lease(trainer, "", now, ends, longest=self._config.save_timeout_seconds)
        self._granted |= {trainer}
        self._ledger.set_facts(used=self._generations.present)
        return True

    def renew(self, trainer: int, ends: float) -> bool:
        """Renew the lease. Return False for a trainer that was to initialise and was replaced by another one."""
        if self._lease is not None and self._lease.trainer == trainer:
            self._lease.ends = ends
            return True
        return trainer not in self._granted or self._generations.initialised_by == trainer

    def report(self, trainer: int, taken_over: str = "") -> bool:
        """Take the report that a trainer has initialised. Return True if it had the lease. `taken_over`: the parts of another network."""
        if self._lease is None or self._lease.trainer != trainer:
            return False
        self._lease = None
        started = self._ledger.facts.started_from
        if taken_over and started is not None:
            log.info("of the network of version %d is taken over: %s", started.version, taken_over)
            self._ledger.set_facts(started_from=started.model_copy(update={"taken_over": taken_over}))
        self._ledger.set_facts(initialised_by=(self._generations.present, trainer))
        if not self._generations.last_checkpoint:
            self._generations.open([0] * self._settings.pservers)
        elif not self._generations.dense_of:
            self.verifying = True
            self._results.clear()
        return True

    def expire(self, now: float) -> None:
        """End an expired lease. Another trainer then loads within the same generation; loading twice is harmless."""
        if self._lease is not None and self._lease.over(now):
            log.warning("trainer %d did not initialise; another one will", self._lease.trainer)
            self._lease = None

    def _jobs(self) -> list[control.Job]:
        return [control.Job(id=f"{VERIFY}-{self._generations.present}", kind=control.COUNT, folder=VERIFY)]

    def jobs(self, index: int) -> list[control.Job]:
        """Return the count job if the pserver has not answered it yet."""
        return self._results.open(index, self._jobs()) if self.verifying else []

    def take(self, index: int, result: control.JobResult) -> str:
        """Take a pserver's count. Return the reason if the load has failed, else ""."""
        self._results.take(index, result)
        if not self._results.complete(self._jobs()):
            return ""
        name, found = self._generations.last_checkpoint, merged_rows(self._results.all())
        try:
            difference = rows_differ(self._store.rows_of(name), found)
        except (StoreError, ManifestDamaged) as failed:
            # The job stays open, so the pserver sends its result again.
            self._results.give_up(index, result.id)
            if not isinstance(failed, Pending):
                log.warning("the loaded checkpoint cannot be verified yet: %s", failed)
            return ""
        self.verifying = False
        if not difference:
            log.info("checkpoint %s is loaded: %d rows", name, sum(found.values()))
            self._generations.open([sum(merged_rows(each).values()) for each in self._results.by_pserver()])
            return ""
        return self._load_failed(difference)

    def judge_log(self, loaded: Sequence[int], fetched: Sequence[int]) -> str:
        """Compare, after the load of a checkpoint by log, the rows at each pserver with those in its files. Return the reason if the load
        has failed, else "".
        """
        if list(loaded) == list(fetched):
            log.info("checkpoint %s is loaded by log: %d rows", self._generations.last_checkpoint, sum(loaded))
            self._generations.open(loaded)
            return ""
        return self._load_failed(f"the pservers hold {list(loaded)} rows of {list(fetched)}")

    def _load_failed(self, difference: str) -> str:
        """Count a failed load and return the reason. After several in a row, set the checkpoint aside or stop the pass."""
        name = self._generations.last_checkpoint
        failures = self._ledger.increment("load_failures")
        reason = f"checkpoint {name} did not load whole: {difference}"
        current = self._ledger.passes.current()
        if failures >= TRIES and len(self._ledger.saves.checkpoints()) > 1:
            self._generations.set_aside([name], difference)
            self._ledger.set_facts(load_failures=0)
        elif failures >= TRIES and current is not None:
            self._schedule.stop(current, f"{reason}, {failures} times; restore the checkpoint's files in the store")
            return ""
        return reason


class FallBack(Part):
    """The return to an older checkpoint if a pserver has found the last one damaged.

    If no older one is whole, the pserver keeps trying: the files may be restored, or the whole store may be unavailable.
    """

    waits = ""
    """The message for operators while no older checkpoint is whole."""
    _found_by: int | None = None

    def forget(self) -> None:
        """Reset the state for a new generation."""
        self.waits, self._found_by = "", None

    def take(self, state: control.PserverState) -> str:
        """Take a pserver's state. Return the reason if training goes back to an older checkpoint, else ""."""
        name = state.damaged_checkpoint
        if not name and self._found_by == state.index:
            self.forget()
        if not name or state.generation != self._generations.present or name != self._generations.last_checkpoint:
            return ""
        older = [row["name"] for row in reversed(self._ledger.saves.checkpoints()[:-1])]
        try:
            whole = self._store.whole_checkpoint(older) if older else ""
        except StoreError as failed:
            if not isinstance(failed, Pending):
                log.warning("the older checkpoints cannot be checked yet: %s", failed)
            return ""
        if whole:
            self._generations.set_aside([name, *older[: older.index(whole)]], state.error)
            return f"checkpoint {name} is damaged, training goes back to {whole}: {state.error}"
        self._found_by = state.index
        self.waits = (
            f"checkpoint {name} is damaged and no older one is whole: put its files back into the store and training goes on by itself, "
            "or begin anew with an empty state and store"
        )
        return ""


class MidPassHandover(Part):
    """Mid-pass handover when an upgrade replaces a training: the old servers save their table once more before they end.

    Kubernetes terminates the old pods, which go on working within their grace period. The master leases no further task. Once no task
    is open, a trainer saves the table unchanged as a mid-pass checkpoint. If a pass is being saved already, that save is finished
    instead. Then, or if the old pods fall silent or time out, a recovery begins the new training, whose members wait until then. The
    state is in the ledger, so a restarted master continues the handover.
    """

    # Start of the observation: every living member calls within a lease from this moment on, also after a restart of the master.
    _listens_since: float | None = None

    @property
    def state(self) -> HandoverState | None:
        """Return the handover's state, or None if no training is being replaced."""
        return self._ledger.facts.handover

    @property
    def before(self) -> str | None:
        """Return the training that is being replaced, or None."""
        return None if self.state is None else self.state.before

    @property
    def leave_timeout(self) -> float:
        """Return the seconds that a leaving member waits for an unresponsive master, because an upgrade restarts the master too."""
        return min(_LONGEST_LEAVE, self._settings.handover_seconds)

    def resume(self) -> None:
        """Restart the observation of members, which may have called while the master was down."""
        self._listens_since = None

    def begin(self, before: str) -> HandoverState | None:
        """Begin a handover if the old servers have a part of a pass that no checkpoint has. Return its state, or None."""
        current = self._ledger.passes.current()
        pservers, seconds = len(self._ledger.facts.pservers), self._settings.handover_seconds
        if not seconds or not pservers or not self._generations.ready:
            return None
        if current is None or current.state not in (*_TRAINED, "saving"):
            return None
        ends = self._clock() + seconds
        state = HandoverState(before=before, pservers=pservers, ordinal=current.ordinal, ends=ends)
        self._ledger.set_facts(handover=state)
        log.warning("training %s is replaced: it has %.0f s to save once more and leave", before, seconds)
        return state

    def order(self, state: HandoverState, current: PassRow) -> None:
        """Order the mid-pass save, once, when no task is open. Called within a transaction."""
        if current.state not in _TRAINED or self._ledger.tasks.leased():
            return
        generation = self._generations.present
        name = checkpoint_name(current, generation)
        save = SaveRow(current.ordinal, generation, ("checkpoint",), None, None, name, self._clock())
        stood = {"state": current.state, "epoch": current.epoch, "trained_at": current.trained_at}
        self._ledger.saves.begin(save)
        self._ledger.passes.update(current.ordinal, state="saving")
        self._ledger.set_facts(handover=state.model_copy(update={"mid": stood}))

    def mid_pass_state(self, save: SaveRow) -> Mapping[str, Any] | None:
        """Return the columns of the pass when this mid-pass save was ordered, or None for a save of a whole pass."""
        state = self.state
        if state is None or state.ordinal != save.ordinal or save.generation != self._generations.present:
            return None
        return state.mid

    def broken(self, state: HandoverState, current: PassRow, pservers: Pservers, trainers: Trainers) -> str:
        """Return the reason if nothing more can be saved, else ""."""
        now = self._clock()
        if current.state == "stopped":
            return f"pass {current.id} is stopped"
        if now > state.ends:
            return f"it was not done within {self._settings.handover_seconds:g} s"
        if self._listens_since is None:
            self._listens_since = now
        since = now - max(self._config.lease_seconds, self._config.pserver_timeout_seconds)
        if since < self._listens_since:
            return ""
        if unheard := pservers.silent_since(since):
            return f"pserver {', '.join(map(str, unheard))} of {pservers.count} is gone"
        save = self._ledger.saves.of(current.ordinal)
        only_written = save is not None and save.stage in ("saved", "written")
        return "" if only_written or trainers.heard_since(since) else "no trainer is left"

    def reason_text(self, state: HandoverState, why_not: str) -> str:
        """Return the reason of the recovery that begins the new training, and, if there was no save, `why_not`."""
        replaced = f"training {state.before} was replaced by {self._settings.training}"
        save = self._ledger.saves.of(state.ordinal)
        stands = save is not None and save.checkpoint in {row["name"] for row in self._ledger.saves.checkpoints()}
        return replaced if stands or not why_not else f"{replaced}, and was not saved once more: {why_not}"
