"""Generations of server processes: the return to a checkpoint, the initialisation of the tables, and the mid-pass handover of a
training that an upgrade replaces.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.store import StoreError
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.stream_schedule import schedule_of
from elastic_ctr.training.master.generations.checkpoint_files import checkpoint_name, merged_rows, rows_differ
from elastic_ctr.training.master.generations.members import JobResults, Lease, Pservers, Trainers
from elastic_ctr.training.master.generations.store_queries import Pending, StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import HandoverState, PassRow, SaveRow

log = logging.getLogger(__name__)

TRIES = 3
"""Saves, or loads of a checkpoint, that may fail in a row before the pass is stopped."""
VERIFY = "verify"

_START: dict[str, Any] = {
    "name": "",
    "pass": 0,
    "mid": None,
    "follows": None,
    "base": None,
    "stands_on": "",
    "compacted": False,
}
_LONGEST_LEAVE = 30.0
_TRAINED = ("training", "evaluating")


class Generations:
    """The current generation. Its state is in the ledger, so a restarted master continues it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock

    @property
    def present(self) -> int:
        return self._ledger.facts.generation

    @property
    def _last(self) -> dict[str, Any]:
        """Return the row of the checkpoint that the next recovery returns to, or that of the start."""
        return next(reversed(self._ledger.checkpoints()), _START)

    @property
    def last_checkpoint(self) -> str:
        """Return the name of the checkpoint that the next recovery returns to; "" is the start."""
        return str(self._last["name"])

    @property
    def take_over(self) -> str:
        """Return the last checkpoint if it is of another model whose dense values have other shapes, else ""."""
        started = self._ledger.facts.started_from
        return self.last_checkpoint if started is not None and not started.dense and self._last["pass"] == 0 else ""

    @property
    def dense_of(self) -> int:
        """Return the version whose network has the last checkpoint's dense values, if that is by log or compacted; else 0."""
        last = self._last
        return int(last["follows"]) if last["stands_on"] or last["compacted"] else 0

    @property
    def used(self) -> bool:
        """True if a trainer has got the order to initialise it, so its servers may have rows."""
        return self._ledger.facts.used == self.present

    @property
    def ready(self) -> bool:
        """True if its servers have first values, or a checkpoint whose rows were counted."""
        return self._ledger.facts.initialised == self.present

    @property
    def initialised_by(self) -> int:
        """Return the trainer whose values are in the servers; 0 while they are empty."""
        generation, trainer = self._ledger.facts.initialised_by
        return trainer if generation == self.present else 0

    def open(self, rows: Sequence[int]) -> None:
        """Let trainers join the generation. `rows`: rows in the table of each pserver."""
        with self._ledger:
            self._ledger.set_facts(initialised=self.present, load_failures=0, table_rows=rows)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.present)

    def start_pass_over(self, ordinal: int) -> None:
        """Remove the pass's mid-pass checkpoints: its files may have changed, so a recovery must return to before it."""
        for row in self._ledger.checkpoints():
            if row["pass"] == ordinal and row["mid"]:
                self._ledger.remove_checkpoint(row["name"])

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Set damaged checkpoints aside, so that the next recovery returns to the one before them."""
        for name in names:
            log.error("checkpoint %s is damaged and is set aside: %s", name, reason)
            self._ledger.set_aside(name, reason)

    def holds(self, ordinal: int) -> bool:
        """True if the last checkpoint was made after the whole of this pass."""
        return self._last["pass"] == ordinal and not self._last["mid"]

    def roll_back(self, role: str, reason: str) -> None:
        """Return to the last checkpoint, in a new generation of server processes. Called within a transaction."""
        generation, last = self._ledger.increment("generation"), self._last
        lost = self._ledger.roll_back(last["pass"], last if last["mid"] else None)
        self._ledger.set_facts(follows=last["follows"], base=last["base"], finished=False)
        self._ledger.abandon_versions(last["follows"] or 0)
        self._ledger.increment("rolled_back", lost)
        self._ledger.add_recovery(role, reason, self._clock(), lost)
        log.warning("generation %d begins at %s: %s", generation, last["name"] or "the start", reason)


class Part:
    """A part of the coordinator, with the collaborators of all parts."""

    def __init__(self, ledger: Ledger, settings: MasterFile, store: StoreQueries, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._settings = settings
        self._config = settings.master
        self._store = store
        self._clock = clock
        self._schedule = schedule_of(ledger, settings.data, clock)
        self._generations = Generations(ledger, clock)
        features = settings.features
        self._needs_statistics = features is not None and bool(features.needs_statistics)
        # Results of the jobs that this part gives to pservers.
        self._results = JobResults(settings.pservers)


class Initialisation(Part):
    """The initialisation of the current generation: one trainer pushes first values or loads the last checkpoint, whose rows are then
    counted. Other trainers join afterwards. The state is in memory; a restarted master repeats the initialisation, which is harmless.
    """

    _lease: Lease | None = None
    _granted: frozenset[int] = frozenset()
    verifying = False
    """The checkpoint is loaded, and its rows are being counted."""

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
        current = self._ledger.current_pass()
        if failures >= TRIES and len(self._ledger.checkpoints()) > 1:
            self._generations.set_aside([name], difference)
            self._ledger.set_facts(load_failures=0)
        elif failures >= TRIES and current is not None:
            self._schedule.stop(current, f"{reason}, {failures} times; restore the checkpoint's files in the store")
            return ""
        return reason


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
        current = self._ledger.current_pass()
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
        if current.state not in _TRAINED or self._ledger.leased():
            return
        generation = self._generations.present
        name = checkpoint_name(current, generation)
        save = SaveRow(current.ordinal, generation, ("checkpoint",), None, None, name, self._clock())
        stood = {"state": current.state, "epoch": current.epoch, "trained_at": current.trained_at}
        self._ledger.begin_save(save)
        self._ledger.set_pass(current.ordinal, state="saving")
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
        save = self._ledger.save_of(current.ordinal)
        only_written = save is not None and save.stage in ("saved", "written")
        return "" if only_written or trainers.heard_since(since) else "no trainer is left"

    def reason_text(self, state: HandoverState, why_not: str) -> str:
        """Return the reason of the recovery that begins the new training, and, if there was no save, `why_not`."""
        replaced = f"training {state.before} was replaced by {self._settings.training}"
        save = self._ledger.save_of(state.ordinal)
        stands = save is not None and save.checkpoint in {row["name"] for row in self._ledger.checkpoints()}
        return replaced if stands or not why_not else f"{replaced}, and was not saved once more: {why_not}"
