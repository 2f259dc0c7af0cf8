"""Giving out tasks and taking them back. Their leases are in the ledger.

A lease ends without its task done in one of three ways:

- a failure: the trainer reported an error, or took longer than `taskTimeoutSeconds`, counted from when it began the task, and
  once more from when it began to train it. The data is the likely cause: `maxFailures` in a row park the task.
- a lost lease: the trainer was not heard for `leaseSeconds`, or left for a reason of its own, as a full disk. The machine is the
  likely cause, so a healthy task survives many: `maxLostLeases` in a row park it, for then the task itself may end its
  trainers. All tasks of a lost trainer count it, since the one at fault is unknown.
- neither: the trainer left in order, or a recovery began.

A task that is done starts counting again. A parked task stops its pass; none of its records are dropped.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.ledger import Histogram, PassRow, TaskRow
from elastic_ctr.master.schedule import Part
from elastic_ctr.model.evaluation import BUCKETS

log = logging.getLogger(__name__)


@dataclass
class Lease:
    """Times in unix seconds. `longest` s after it began it is over despite renewals: a trainer that hangs renews for ever."""

    trainer: int
    attempt: str
    began: float
    ends: float
    longest: float

    def over(self, now: float) -> bool:
        return now > self.ends or self.overdue(now)

    def overdue(self, now: float) -> bool:
        return now - self.began > self.longest


_EXAMPLES = 3
_PHASES = {"checking": control.CHECK, "training": control.TRAIN, "evaluating": control.EVALUATE}


class Tasks(Part):
    """The tasks of the present pass."""

    waits = ""

    def resume(self, ends: float) -> None:
        """After a restart leases go on until `ends`; the downtime of the master counts for no task."""
        now = self._clock()
        self._ledger.exclude_downtime(now, self._config.lease_seconds)
        self._ledger.renew([task.attempt for task in self._ledger.leased()], "", now, ends)

    def lease(self, current: PassRow, request: control.LeaseRequest) -> control.Task | None:
        """The next one for this trainer; None when there is none, or none that may be prepared ahead."""
        if current.state not in _PHASES or (request.prefetch and current.state == "checking"):
            return None
        todo = self._ledger.tasks(current.ordinal, "todo")
        if not todo:
            return None
        has = set(request.converted)
        # A trainer that has a task converted already is given that one.
        row = next((task for task in todo if task.id in has), todo[0])
        attempt = f"{row.id}:{self._ledger.increment('attempts')}"
        now = self._clock()
        since = None if request.prefetch else now
        self._ledger.lease(row.id, request.trainer_id, attempt, since, now + self._config.lease_seconds)
        samples = -(-2 * self._config.samples // max(1, len(self._ledger.tasks(current.ordinal))))
        return control.Task(
            id=row.id,
            attempt=attempt,
            phase=_PHASES[current.state],
            path=row.path,
            start=row.start,
            end=row.stop,
            records=row.records,
            samples=min(self._config.samples, max(samples, 8)),
            epoch=current.epoch,
            pass_id=current.id,
        )

    def renew(self, attempts: Collection[str], running: str, ends: float) -> bool:
        """Whether all of them are still held."""
        held = [attempt for attempt in attempts if self._ledger.task_of_attempt(attempt) is not None]
        self._ledger.renew(held, running, self._clock(), ends)
        return len(held) == len(attempts)

    def report(self, result: control.TaskResult) -> bool:
        """Take what a trainer found, or its failure. False: the lease had run out, nothing is taken."""
        task = self._ledger.task_of_attempt(result.attempt)
        if task is None:
            return False
        if task.trainer is not None:
            self._ledger.start_next_task(task.trainer, self._clock())
        if result.store_unavailable:
            self.waits = f"task {task.id} of {task.path} waits for its source or the store: {result.error}"
            self._ledger.give_back(task, error=result.error, failed=False, repeated=0, park_at=0)
            return True
        self.waits = ""
        if result.error:
            log.warning("task %s of %s failed: %s", task.id, task.path, result.error)
            self._failed(task, result.error)
            return True
        current = self._ledger.current_pass()
        if current is None or current.ordinal != task.ordinal:
            raise AssertionError(f"task {task.id} is leased but its pass is not the present one")
        histograms = (_histogram(result.positives), _histogram(result.negatives))
        # Not by the state of the pass: it may have been stopped while this task was under way.
        if current.epoch == 0:
            counts = {k: int(getattr(result, k)) for k in ("records", "shows", "clicks", "ignored", "padding")}
            refused = [(r.reason, int(r.lines), list(r.examples)[:_EXAMPLES]) for r in result.refused]
            samples = [(s.line, int(s.show), int(s.click)) for s in result.samples]
            self._ledger.checked(task, counts, refused, samples, histograms)
        else:
            self._ledger.trained(task, histograms, rounds=int(task.trained < current.epoch))
        return True

    def leave(self, trainer: int, reason: str = "") -> None:
        """A trainer that leaves gives back what it holds: in order, or for a reason, and then it is a loss."""
        for task in self._ledger.leased():
            if task.trainer != trainer:
                continue
            if reason:
                self._lost(task, reason)
            else:
                self._ledger.give_back(
                    task, error="its trainer left", failed=False, repeated=_repeated(task), park_at=0
                )

    def expire(self, now: float) -> None:
        for task in self._ledger.leased():
            if now > task.lease_ends:
                log.warning("trainer %s lost task %s of %s", task.trainer, task.id, task.path)
                heard_at = task.lease_ends - self._config.lease_seconds
                self._ledger.add_recovery("trainer", f"trainer {task.trainer} lost task {task.id}", heard_at, 0)
                self._ledger.end_recoveries(now)
                self._lost(task)
            elif task.leased_at is not None and now - task.leased_at > self._config.task_timeout_seconds:
                self._failed(task, f"it took longer than {self._config.task_timeout_seconds:g} s")

    def _failed(self, task: TaskRow, why: str) -> None:
        limit = self._config.max_failures
        if self._ledger.give_back(task, error=why, failed=True, repeated=_repeated(task), park_at=limit):
            self._stop(task, f"failed {limit} times, the last time: {why}", "mend the cause")

    def _lost(self, task: TaskRow, reason: str = "") -> None:
        limit = self._config.max_lost_leases
        why = f"trainer {task.trainer} left: {reason}" if reason else f"trainer {task.trainer} was lost"
        if self._ledger.give_back(task, error=why, failed=False, lost=True, repeated=_repeated(task), park_at=limit):
            self._stop(
                task,
                f"lost its trainer {limit} times in a row, the last time: {why}",
                "mend that"
                if reason
                else "see in the trainers' logs what ended them (memory, a line they cannot bear), mend it",
            )

    def _stop(self, task: TaskRow, what: str, way_out: str) -> None:
        current = self._ledger.current_pass()
        # The first reason stands.
        if current is not None and current.state != "stopped":
            part = f" bytes {task.start} to {task.stop or 'the end'}" if task.start or task.stop else ""
            self._schedule.stop(
                current,
                f"task {task.id} ({task.path}{part}) {what}; nothing of it is dropped: {way_out}",
            )


def _repeated(task: TaskRow) -> int:
    """Gradients of a started task may have reached the servers: its records may be applied twice."""
    return task.records if task.running else 0


def _histogram(raw: bytes) -> Histogram:
    found = np.frombuffer(raw, "<f8")
    if found.size not in (0, BUCKETS):
        raise ValueError(f"a histogram of {found.size} buckets instead of {BUCKETS}")
    return found if found.size else np.zeros(BUCKETS)
