"""How a generation comes by its values: one trainer pushes first values or loads the last checkpoint, whose rows are then
counted. Nobody else is let in before that.
"""

import logging
from collections.abc import Callable

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import merged_rows, rows_differ
from elastic_ctr.master.generations import TRIES, Generations
from elastic_ctr.master.job_results import JobResults
from elastic_ctr.master.leases import Lease
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.schedule import Schedule
from elastic_ctr.master.store_queries import Pending, StoreFacts
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import ManifestDamaged

log = logging.getLogger(__name__)

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
