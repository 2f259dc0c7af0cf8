"""Generations of server processes: how the next one begins at a checkpoint, and how its tables are filled.

One trainer pushes first values or loads the last checkpoint, whose rows are then counted. No other trainer joins before that.
"""

import logging
from collections.abc import Callable, Iterable

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import merged_rows, rows_differ
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.members import JobResults
from elastic_ctr.master.schedule import Schedule
from elastic_ctr.master.store_queries import Pending, StoreFacts
from elastic_ctr.master.tasks import Lease
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import ManifestDamaged

log = logging.getLogger(__name__)

TRIES = 3
"""Saves, or loads of a checkpoint, that may fail in a row before the pass is stopped."""


class Generations:
    """What the ledger knows of the present generation. Nothing of it lives in memory: a master that restarts goes on in it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        if ledger.get("generation") is None:
            ledger.set_fact("generation", 1)

    @property
    def present(self) -> int:
        return int(self._ledger.get("generation"))

    @property
    def last_checkpoint(self) -> str | None:
        """Where the next recovery comes back to; None: to the start."""
        rows = self._ledger.checkpoints()
        return rows[-1]["name"] if rows else None

    @property
    def used(self) -> bool:
        """Somebody was told to initialise it, so its servers may hold something."""
        return bool(self._ledger.get("touched") == self.present)

    def use(self) -> None:
        self._ledger.set_fact("touched", self.present)

    @property
    def ready(self) -> bool:
        """Its servers hold first values, or a checkpoint whose rows were counted."""
        return bool(self._ledger.get("initialised") == self.present)

    @property
    def initialised_by(self) -> int:
        """The trainer whose values are in the servers; 0: nobody's yet."""
        generation, trainer = self._ledger.get("initialised_by", (0, 0))
        return int(trainer) if generation == self.present else 0

    def initialise(self, trainer: int) -> None:
        self._ledger.set_fact("initialised_by", [self.present, trainer])

    def open(self) -> None:
        """From now on it is trained."""
        with self._ledger:
            self._ledger.set_fact("initialised", self.present)
            self._ledger.set_fact("load_failures", 0)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.present)

    def start_pass_over(self, ordinal: int) -> None:
        """The next recovery comes back to before this pass: its files may be others now, so no part of it may stay trained."""
        for row in self._ledger.checkpoints():
            if row["pass"] == ordinal and row["mid"]:
                self._ledger.remove_checkpoint(row["name"])

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Damaged checkpoints: the next recovery comes back to the one before them."""
        for name in names:
            log.error("checkpoint %s is damaged and is set aside: %s", name, reason)
            self._ledger.set_aside(name, reason)

    def holds(self, ordinal: int) -> bool:
        """Whether the last checkpoint was made after this pass, with all of it."""
        rows = self._ledger.checkpoints()
        return bool(rows) and rows[-1]["pass"] == ordinal and not rows[-1]["mid"]

    def roll_back(self, role: str, reason: str) -> None:
        """Back to the last checkpoint, in a new generation of server processes."""
        with self._ledger:
            generation = self._ledger.increment("generation")
            rows = self._ledger.checkpoints()
            back_to = rows[-1]["pass"] if rows else 0
            lost = self._ledger.roll_back(back_to, rows[-1] if rows and rows[-1]["mid"] else None)
            follows = rows[-1]["follows"] if rows else None
            self._ledger.set_fact("follows", follows)
            self._ledger.set_fact("base", rows[-1]["base"] if rows else None)
            self._ledger.abandon_versions(follows or 0)
            self._ledger.increment("rolled_back", lost)
            self._ledger.set_fact("finished", value=False)
            self._ledger.add_recovery(role, reason, self._clock(), lost)
            # A save of the checkpoint's own pass was on its way: it is planned anew.
            save = self._ledger.save_of(back_to)
            if save is not None and save.stage != "done":
                self._ledger.drop_saves(back_to)
        log.warning("generation %d begins at %s: %s", generation, rows[-1]["name"] if rows else "the start", reason)


VERIFY = "verify"


class Initialisation:
    """Who initialises the present generation. In memory: after a restart of the master it is done once more, which is harmless."""

    def __init__(
        self,
        ledger: Ledger,
        generations: Generations,
        schedule: Schedule,
        settings: MasterFile,
        store: StoreFacts,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._generations = generations
        self._schedule = schedule
        self._config = settings.master
        self._store = store
        self._clock = clock
        self._lease: Lease | None = None
        self._granted: set[int] = set()
        self._verifying = False
        self._answers = JobResults(settings.pservers)

    def start_over(self) -> None:
        """Somebody has mended the cause: all tries are there again."""
        self._ledger.set_fact("load_failures", 0)

    def forget(self) -> None:
        """Another generation begins."""
        self._lease = None
        self._granted = set()
        self._verifying = False
        self._answers.clear()

    def joins(self, trainer: int) -> None:
        """Whoever asks to be let in is not at it, whatever it was told before."""
        self._granted.discard(trainer)

    @property
    def verifying(self) -> bool:
        """It is loaded and being counted."""
        return self._verifying

    def ask(self, trainer: int) -> bool:
        """Whether this trainer is the one to do it."""
        lease = self._lease
        now = self._clock()
        if self._verifying or (lease is not None and not lease.over(now) and lease.trainer != trainer):
            return False
        self._lease = Lease(
            trainer, "", now, now + self._config.lease_seconds, longest=self._config.save_timeout_seconds
        )
        self._granted.add(trainer)
        self._generations.use()
        return True

    def renew(self, trainer: int, ends: float) -> bool:
        """False for one that was to do it, and in whose place another does it or has done it."""
        if self._lease is not None and self._lease.trainer == trainer:
            self._lease.ends = ends
            return True
        return trainer not in self._granted or self._generations.initialised_by == trainer

    def report(self, trainer: int) -> bool:
        """A trainer has done it; whether it was its turn."""
        if self._lease is None or self._lease.trainer != trainer:
            return False
        self._lease = None
        self._generations.initialise(trainer)
        if self._generations.last_checkpoint is None:
            self._generations.open()
        else:
            self._verifying = True
            self._answers.clear()
        return True

    def expire(self, now: float) -> None:
        """Loading twice is harmless: another one does it within the generation."""
        if self._lease is not None and self._lease.over(now):
            log.warning("trainer %d did not initialise; another one will", self._lease.trainer)
            self._lease = None

    def _jobs(self) -> list[control.Job]:
        return [control.Job(id=f"{VERIFY}-{self._generations.present}", kind=control.COUNT, folder=VERIFY)]

    def jobs(self, index: int) -> list[control.Job]:
        """What a pserver's parent still has to count."""
        return self._answers.open(index, self._jobs()) if self._verifying else []

    def take(self, index: int, result: control.JobResult) -> str:
        """What a parent has counted. Why the load has failed; empty if it has not."""
        self._answers.take(index, result)
        if not self._answers.complete(self._jobs()):
            return ""
        try:
            return self._end_verifying()
        except (StoreError, ManifestDamaged) as failed:
            # The job stays open, so its result comes again.
            self._answers.give_up(index, result.id)
            if not isinstance(failed, Pending):
                log.warning("what was loaded cannot be compared yet: %s", failed)
            return ""

    def _end_verifying(self) -> str:
        name = self._generations.last_checkpoint or ""
        found = merged_rows(self._answers.all())
        difference = rows_differ(self._store.rows_of(name), found)
        self._verifying = False
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
