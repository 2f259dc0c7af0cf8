"""Generations of server processes: how the next one begins at a checkpoint, and how its tables are filled.

One trainer pushes first values or loads the last checkpoint, whose rows are then counted. No other trainer joins before that.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import merged_rows, rows_differ
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.members import JobResults
from elastic_ctr.master.schedule import Part
from elastic_ctr.master.store_queries import Pending, StoreQueries
from elastic_ctr.master.tasks import Lease
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import ManifestDamaged

log = logging.getLogger(__name__)

TRIES = 3
"""Saves, or loads of a checkpoint, that may fail in a row before the pass is stopped."""


class Generations:
    """The present generation. Its state is in the ledger: a master that restarts goes on in it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock

    @property
    def present(self) -> int:
        return self._ledger.facts.generation

    @property
    def last_checkpoint(self) -> str | None:
        """The checkpoint that the next recovery returns to; None: the start."""
        rows = self._ledger.checkpoints()
        return rows[-1]["name"] if rows else None

    @property
    def used(self) -> bool:
        """A trainer was told to initialise it, so its servers may hold rows."""
        return self._ledger.facts.used == self.present

    @property
    def ready(self) -> bool:
        """Its servers hold first values, or a checkpoint whose rows were counted."""
        return self._ledger.facts.initialised == self.present

    @property
    def initialised_by(self) -> int:
        """The trainer whose values are in the servers; 0 while they are empty."""
        generation, trainer = self._ledger.facts.initialised_by
        return trainer if generation == self.present else 0

    def open(self) -> None:
        """From now on trainers may join it."""
        with self._ledger:
            self._ledger.set_facts(initialised=self.present, load_failures=0)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.present)

    def start_pass_over(self, ordinal: int) -> None:
        """The next recovery returns to before this pass: its files may have changed, so no part of it may stay trained."""
        for row in self._ledger.checkpoints():
            if row["pass"] == ordinal and row["mid"]:
                self._ledger.remove_checkpoint(row["name"])

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Damaged checkpoints: the next recovery returns to the one before them."""
        for name in names:
            log.error("checkpoint %s is damaged and is set aside: %s", name, reason)
            self._ledger.set_aside(name, reason)

    def holds(self, ordinal: int) -> bool:
        """Whether the last checkpoint was made after the whole of this pass."""
        rows = self._ledger.checkpoints()
        return bool(rows) and rows[-1]["pass"] == ordinal and not rows[-1]["mid"]

    def roll_back(self, role: str, reason: str) -> None:
        """Back to the last checkpoint, in a new generation of server processes."""
        with self._ledger:
            generation = self._ledger.increment("generation")
            start: dict[str, Any] = {"name": "the start", "pass": 0, "mid": None, "follows": None, "base": None}
            last = next(reversed(self._ledger.checkpoints()), start)
            back_to = last["pass"]
            lost = self._ledger.roll_back(back_to, last if last["mid"] else None)
            self._ledger.set_facts(follows=last["follows"], base=last["base"], finished=False)
            self._ledger.abandon_versions(last["follows"] or 0)
            self._ledger.increment("rolled_back", lost)
            self._ledger.add_recovery(role, reason, self._clock(), lost)
            # An unfinished save of the checkpoint's own pass is planned again.
            save = self._ledger.save_of(back_to)
            if save is not None and save.stage != "done":
                self._ledger.drop_saves(back_to)
        log.warning("generation %d begins at %s: %s", generation, last["name"], reason)


VERIFY = "verify"


class Initialisation(Part):
    """The trainer that initialises the present generation. In memory: a restarted master repeats it, which is harmless."""

    def __init__(self, ledger: Ledger, settings: MasterFile, store: StoreQueries, clock: Callable[[], float]) -> None:
        super().__init__(ledger, settings, store, clock)
        self._generations = Generations(ledger, clock)
        self._lease: Lease | None = None
        self._granted: set[int] = set()
        self.verifying = False
        """The checkpoint is loaded, and its rows are being counted."""
        self._results = JobResults(settings.pservers)

    def start_over(self) -> None:
        """The cause was mended: no failure counts any more."""
        self._ledger.set_facts(load_failures=0)

    def forget(self) -> None:
        """Another generation begins."""
        self._lease = None
        self._granted = set()
        self.verifying = False
        self._results.clear()

    def joins(self, trainer: int) -> None:
        """A trainer that joins again has given up initialising."""
        self._granted.discard(trainer)

    def ask(self, trainer: int) -> bool:
        """Whether this trainer is to initialise."""
        lease = self._lease
        now = self._clock()
        if self.verifying or (lease is not None and not lease.over(now) and lease.trainer != trainer):
            return False
        self._lease = Lease(
            trainer, "", now, now + self._config.lease_seconds, longest=self._config.save_timeout_seconds
        )
        self._granted.add(trainer)
        self._ledger.set_facts(used=self._generations.present)
        return True

    def renew(self, trainer: int, ends: float) -> bool:
        """False for a trainer that was to initialise and has been replaced by another."""
        if self._lease is not None and self._lease.trainer == trainer:
            self._lease.ends = ends
            return True
        return trainer not in self._granted or self._generations.initialised_by == trainer

    def report(self, trainer: int) -> bool:
        """A trainer has initialised; whether it held the lease."""
        if self._lease is None or self._lease.trainer != trainer:
            return False
        self._lease = None
        self._ledger.set_facts(initialised_by=(self._generations.present, trainer))
        if self._generations.last_checkpoint is None:
            self._generations.open()
        else:
            self.verifying = True
            self._results.clear()
        return True

    def expire(self, now: float) -> None:
        """Loading twice is harmless: another trainer does it within the generation."""
        if self._lease is not None and self._lease.over(now):
            log.warning("trainer %d did not initialise; another one will", self._lease.trainer)
            self._lease = None

    def _jobs(self) -> list[control.Job]:
        return [control.Job(id=f"{VERIFY}-{self._generations.present}", kind=control.COUNT, folder=VERIFY)]

    def jobs(self, index: int) -> list[control.Job]:
        """The rows that a pserver still has to count."""
        return self._results.open(index, self._jobs()) if self.verifying else []

    def take(self, index: int, result: control.JobResult) -> str:
        """The count of a pserver. Returns why the load has failed; empty if it has not."""
        self._results.take(index, result)
        if not self._results.complete(self._jobs()):
            return ""
        try:
            return self._end_verifying()
        except (StoreError, ManifestDamaged) as failed:
            # The job stays open, so the pserver sends its result again.
            self._results.give_up(index, result.id)
            if not isinstance(failed, Pending):
                log.warning("the loaded checkpoint cannot be verified yet: %s", failed)
            return ""

    def _end_verifying(self) -> str:
        name = self._generations.last_checkpoint or ""
        found = merged_rows(self._results.all())
        difference = rows_differ(self._store.rows_of(name), found)
        self.verifying = False
        if not difference:
            log.info("checkpoint %s is loaded: %d rows", name, sum(found.values()))
            self._generations.open()
            return ""
        failures = self._ledger.increment("load_failures")
        reason = f"checkpoint {name} did not load whole: {difference}"
        current = self._ledger.current_pass()
        if failures >= TRIES and len(self._ledger.checkpoints()) > 1:
            self._generations.set_aside([name], difference)
            self.start_over()
        elif failures >= TRIES and current is not None:
            self._schedule.stop(current, f"{reason}, {failures} times; restore the checkpoint's files in the store")
            return ""
        return reason
