"""The tasks of a pass: their leases and their results. The state is in the ledger.

A lease ends with its task unfinished in one of four ways:

- a failure: the trainer reported an error, or took longer than `taskTimeoutSeconds`, counted from when it began the task, and
  again from when it began to train it. The data is the likely cause: `maxFailures` in a row park the task.
- a lost lease: the trainer was silent for `leaseSeconds`, or left because of its own machine, such as a full disk. So a healthy
  task survives many of these; `max_lost_leases` in a row park it, because the task itself may then kill its trainers. All tasks
  of a lost trainer count it, because the culprit is unknown.
- neither: the trainer left in order, or a recovery began.

- refused columns: the file lacks a column, or has an unreadable one. No trainer could do better, so the task is parked.

A finished task resets its counts. A parked task stops its pass; none of its records are dropped.
"""

import logging
from collections.abc import Collection, Sequence

import numpy as np

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.features.statistics.collector import StatisticsPart as CollectedPart
from elastic_ctr.features.statistics.collector import part_name, part_of
from elastic_ctr.runtime.growing_pause import growing_pause
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import order_of_records
from elastic_ctr.training.master.decisions import DecisionContext, Part
from elastic_ctr.training.master.ledger.key_table import Touched
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import Histogram, PassRow, TaskRow
from elastic_ctr.training.master.passes import learning
from elastic_ctr.training.model.evaluation import BUCKETS, histogram_of
from elastic_ctr.training.model.grouped_auc import GROUP_BUCKETS, sample_of

log = logging.getLogger(__name__)

_EXAMPLES = 3
# Files of a task that a message lists beside the first.
_NAMED = 4
_LONGEST_PAUSE = 8.0
PHASES = {
    "analyzing": control.ANALYZE,
    "checking": control.CHECK,
    "training": control.TRAIN,
    "evaluating": control.EVALUATE,
}
_BEFORE_TRAINING = ("analyzing", "checking")
_PREDICTED_AT_ONCE = 512
# Rows of the sample of groups of a pass, of 26 bytes each. The ledger keeps as many over all tasks until the pass is done.
GROUP_ROWS = 100_000
# The fewest rows of a task, so that one group with any number of scores fits. A pass of more than 100 tasks thus has more rows.
_LEAST_GROUP_ROWS = GROUP_BUCKETS
# The most tasks of a pass that are sampled for its drift, which bounds the work of the master's merge.
_SAMPLED_TASKS = 16


class Tasks(Part):
    """The tasks of the current pass. A failed task is leased again after a pause, because its cause may be temporary and a few failures
    in a row stop the pass.
    """

    waits = ""

    def __init__(self, context: DecisionContext) -> None:
        super().__init__(context)
        # By task, the end of its pause. A restart of the master ends all pauses.
        self._pauses: dict[str, float] = {}

    def resume(self, ends: float) -> None:
        """After a restart, extend leases until `ends` and exclude the master's downtime from the time of tasks."""
        now = self._clock()
        self._ledger.tasks.exclude_downtime(now, self._config.lease_seconds)
        self._ledger.tasks.renew([task.attempt for task in self._ledger.tasks.leased()], "", now, ends)

    def lease(self, current: PassRow, request: control.LeaseRequest) -> control.Task | None:
        """Lease the next task to this trainer. Return None if there is none, or none that may be leased ahead."""
        if current.state not in PHASES or (request.prefetch and current.state in _BEFORE_TRAINING):
            return None
        now = self._clock()
        self._pauses = {task: until for task, until in self._pauses.items() if until > now}
        further = self._ledger.tasks.further(current.ordinal)
        todo = [
            task
            for task in self._ledger.tasks.of(current.ordinal, "todo")
            # A trainer of an earlier release would only train the first file.
            if task.id not in self._pauses and (request.reads_further or task.id not in further)
        ]
        if not todo:
            return None
        holdout = self._pinned_holdout(current)
        has = set(request.converted)
        # Prefer a task that the trainer has converted already.
        row = next((task for task in todo if task.id in has), todo[0])
        parts = further.get(row.id, [])
        attempt = f"{row.id}:{self._ledger.increment('attempts')}"
        since = None if request.prefetch else now
        self._ledger.tasks.lease(row.id, request.trainer_id, attempt, since, now + self._config.lease_seconds)
        tasks = self._ledger.tasks.of(current.ordinal)
        if current.state == "training" and self._settings.data.is_stream:
            # Queued ahead for the save after the pass, whose version would otherwise be late by the answer.
            self._store.expect_published()
        pass_records = sum(task.records for task in tasks)
        samples = -(-2 * self._config.samples // max(1, len(tasks)))
        return control.Task(
            id=row.id,
            attempt=attempt,
            phase=PHASES[current.state],
            path=row.path,
            start=row.start,
            end=row.stop,
            records=self._records_of(current, row),
            all_records=row.records,
            batch_size=self._batch_size(current, pass_records),
            holdout=holdout,
            offset=self._offset(current),
            samples=min(self._config.samples, max(samples, 8)),
            epoch=current.epoch,
            pass_id=current.id,
            shuffle_seed=order_of_records(self._settings.data, self._settings.model.seed, row.path, row.start),
            collect=current.state == "checking"
            and self._collects(current, [task.id for task in tasks].index(row.id), len(tasks)),
            group=self._settings.data.group,
            group_rows=max(GROUP_ROWS // len(tasks), _LEAST_GROUP_ROWS),
            touched=self._settings.data.is_stream,
            left_out=self._ledger.tasks.left_out(row, {row.path, *(path for path, *_ in parts)}),
            further=[control.Part(path=path, start=start, end=stop) for path, start, stop in parts],
            file=self._file(row),
        )

    def _file(self, row: TaskRow) -> str:
        """Return the identity by which a trainer finds the file of a followed folder, or ""."""
        places = self._ledger.facts.stream
        return "" if places is None else places.files.get(row.path, "")

    def _batch_size(self, current: PassRow, records: int) -> int:
        """Return the batch size for a pass of `records`. Predictions do not depend on it, so theirs is large, which is faster."""
        if current.state != "training":
            return _PREDICTED_AT_ONCE
        return size_of_epoch(self._ledger, self._settings, current, records, current.epoch)

    def _records_of(self, current: PassRow, task: TaskRow) -> int:
        """Return the number of the task's records in the current phase."""
        if current.state in _BEFORE_TRAINING or not holdout_of(self._ledger, self._settings, current):
            return task.records
        held_out = self._ledger.tasks.held_out(current.ordinal).get(task.id, 0)
        return held_out if current.state == "evaluating" else task.records - held_out

    def _pinned_holdout(self, current: PassRow) -> float:
        """Return the share of held-out records, fixed at the pass's first task: if it changed, records would be in no part or in both."""
        learned, share = (
            self._ledger.figures.learning(current.ordinal),
            holdout_of(self._ledger, self._settings, current),
        )
        if learned.holdout is None:
            self._ledger.figures.set_learning(current.ordinal, learned.model_copy(update={"holdout": share}))
        return share

    def _offset(self, current: PassRow) -> float:
        """Return the constant added to logits: before training with the last version's shift, as that version predicts; then without."""
        offset = self._ledger.facts.offset or 0.0
        return offset + shift_before(self._ledger, current) if current.state in _BEFORE_TRAINING else offset

    def _collects(self, current: PassRow, place: int, tasks: int) -> bool:
        """True if the columns of a task are sampled for the drift. The pass of which the statistics were computed has none."""
        if self._settings.features is None or self._ledger.facts.statistics_of == current.ordinal:
            return False
        # Spread evenly over the pass.
        return place * _SAMPLED_TASKS // tasks != (place - 1) * _SAMPLED_TASKS // tasks

    def renew(self, attempts: Collection[str], running: str, ends: float) -> bool:
        """Renew leases. Return True if all attempts are still leased."""
        held = [attempt for attempt in attempts if self._ledger.tasks.of_attempt(attempt) is not None]
        self._ledger.tasks.renew(held, running, self._clock(), ends)
        return len(held) == len(attempts)

    def report(self, result: control.TaskResult) -> bool:
        """Take a trainer's result or failure. Return False if the lease had expired; the result is then dropped."""
        task = self._ledger.tasks.of_attempt(result.attempt)
        if task is None:
            return False
        if task.trainer is not None:
            self._ledger.tasks.start_next_task(task.trainer, self._clock())
        if result.store_unavailable:
            self.waits = f"task {task.id} of {task.path} waits for its source or the store: {result.error}"
            self._ledger.tasks.give_back(task, error=result.error)
            return True
        self.waits = ""
        if result.columns_refused:
            self._ledger.tasks.give_back(
                task, error=result.error, failed=True, repeated=self._repeated(task), park_at=1
            )
            self._stop_pass(f"{result.error.rstrip('.')}; nothing of the file is dropped: mend it")
            return True
        if result.error:
            log.warning("task %s of %s failed: %s", task.id, task.path, result.error)
            self._failed(task, result.error)
            return True
        current = self._ledger.passes.current()
        if current is None or current.ordinal != task.ordinal:
            raise AssertionError(f"task {task.id} is leased but its pass is not the present one")
        refused = [(r.reason, int(r.lines), list(r.examples)[:_EXAMPLES]) for r in result.refused]
        analyzes = self._needs_statistics and not self._ledger.facts.statistics
        collected = None
        if analyzes or result.statistics:
            try:
                collected = part_of(part_name(task.path, task.start), result.statistics)
            except ValueError as damaged:
                log.warning("task %s of %s: %s", task.id, task.path, damaged)
                self._failed(task, str(damaged))
                return True
        if analyzes and collected is not None:
            self._ledger.tasks.analyzed(task, int(result.records), refused, collected, dict(result.refused_of))
            return True
        if result.groups:
            # Validated here, because the end of the pass reads it in the master's own step, where an error has no caller.
            sample_of(result.groups)
        # By the epoch, not by the state of the pass, which may have been stopped while this task was under way.
        if current.epoch == 0:
            self._checked(task, current, result, refused, collected)
        else:
            self._trained(task, current.epoch, result)
        self._ledger.figures.set_groups(task.id, task.ordinal, result.group, result.groups)
        return True

    def _checked(
        self,
        task: TaskRow,
        current: PassRow,
        result: control.TaskResult,
        refused: Sequence[tuple[str, int, Sequence[str]]],
        collected: CollectedPart | None,
    ) -> None:
        counts = {k: int(getattr(result, k)) for k in ("records", "shows", "clicks", "ignored", "padding")}
        samples = [(s.line, int(s.show), int(s.click)) for s in result.samples]
        self._ledger.tasks.checked(
            task, counts, refused, samples, _histograms(result), collected, dict(result.refused_of)
        )
        self._ledger.tasks.set_unpredictable(task, result.unpredictable)
        if result.gone:
            log.error(
                "%d offsets of task %s were lost before they were read: let the stream keep them for longer",
                result.gone,
                task.id,
            )
            self._ledger.lost_offsets(int(result.gone))
        if holdout_of(self._ledger, self._settings, current):
            self._ledger.tasks.set_held_out(task.id, task.ordinal, int(result.held_out))

    def _trained(self, task: TaskRow, epoch: int, result: control.TaskResult) -> None:
        trains = task.trained < epoch
        self._ledger.tasks.trained(task, _histograms(result), epochs=int(trains))
        # Before the first base no delta needs touched keys.
        if trains and result.touched_told and self._ledger.facts.follows is not None:
            # Every epoch pushes the same shows and clicks.
            added = np.frombuffer(result.touched_counts, "<f4").reshape(-1, 2) * np.float32(epoch)
            self._ledger.keys.add(task.id, task.ordinal, Touched(np.frombuffer(result.touched, "<u8"), added))

    def leave(self, trainer: int, reason: str = "") -> None:
        """Release the tasks of a leaving trainer. If it leaves for a `reason`, each counts as a lost lease."""
        for task in self._ledger.tasks.leased():
            if task.trainer == trainer and reason:
                self._lost(task, reason)
            elif task.trainer == trainer:
                self._ledger.tasks.give_back(task, error="its trainer left", repeated=self._repeated(task))

    def lose_those_of(self, trainer: int) -> None:
        """Take the leases of a lost trainer back."""
        for task in self._ledger.tasks.leased():
            if task.trainer == trainer:
                self._lose(task)

    def _lose(self, task: TaskRow) -> None:
        log.warning("trainer %s lost task %s of %s", task.trainer, task.id, task.path)
        heard_at = task.lease_ends - self._config.lease_seconds
        self._ledger.add_recovery("trainer", f"trainer {task.trainer} lost task {task.id}", heard_at, 0)
        self._ledger.end_recoveries(self._clock())
        self._lost(task)

    def expire(self, now: float) -> None:
        for task in self._ledger.tasks.leased():
            if now > task.lease_ends:
                self._lose(task)
            elif task.leased_at is not None and now - task.leased_at > self._config.task_timeout_seconds:
                self._failed(task, f"it took longer than {self._config.task_timeout_seconds:g} s")

    def _repeated(self, task: TaskRow) -> int:
        """Return the records of a started task, except held-out ones: their gradients may reach the pservers twice."""
        return task.records - self._ledger.tasks.held_out(task.ordinal).get(task.id, 0) if task.running else 0

    def _failed(self, task: TaskRow, why: str) -> None:
        limit = self._config.max_failures
        self._pauses[task.id] = self._clock() + growing_pause(task.failures + 1, 1.0, _LONGEST_PAUSE)
        if self._ledger.tasks.give_back(task, error=why, failed=True, repeated=self._repeated(task), park_at=limit):
            self._stop(task, f"failed {limit} times, the last time: {why}", "mend the cause")

    def _lost(self, task: TaskRow, reason: str = "") -> None:
        limit = self._config.max_lost_leases
        why, way_out = f"trainer {task.trainer} left: {reason}", "mend that"
        if not reason:
            why = f"trainer {task.trainer} was lost"
            way_out = "see in the trainers' logs what ended them (memory, a line they cannot bear), mend it"
        if self._ledger.tasks.give_back(task, error=why, lost=True, repeated=self._repeated(task), park_at=limit):
            self._stop(task, f"lost its trainer {limit} times in a row, the last time: {why}", way_out)

    def _stop(self, task: TaskRow, what: str, way_out: str) -> None:
        part = f" bytes {task.start} to {task.stop or 'the end'}" if task.start or task.stop else ""
        if others := self._ledger.tasks.further(task.ordinal).get(task.id):
            part += f", {', '.join(path for path, *_ in others[:_NAMED])}{f' and {len(others) - _NAMED} more files' if len(others) > _NAMED else ''}"
        self._stop_pass(f"task {task.id} ({task.path}{part}) {what}; nothing of it is dropped: {way_out}")

    def _stop_pass(self, reason: str) -> None:
        current = self._ledger.passes.current()
        # Keep the first reason.
        if current is not None and current.state != "stopped":
            self._schedule.stop(current, reason)


def size_of_epoch(ledger: Ledger, settings: MasterFile, current: PassRow, records: int, epoch: int) -> int:
    """Return the records of a step in an epoch of a pass of `records`."""
    clicks = ledger.passes.counts(current.ordinal)["clicks"]
    return learning.batch_size(settings.trainer, records, epoch, clicks=clicks, stream=settings.data.is_stream)


def holdout_of(ledger: Ledger, settings: MasterFile, current: PassRow) -> float:
    """Return the pass's share of held-out records: the one fixed at its first task, else that of the settings."""
    pinned = ledger.figures.learning(current.ordinal).holdout
    return settings.data.holdout if pinned is None else pinned


def shift_before(ledger: Ledger, current: PassRow) -> float:
    """Return the shift of the version before the pass; at first that of the model that this one started from."""
    started_from = ledger.facts.started_from
    return ledger.figures.last_shift(current.ordinal, 0.0 if started_from is None else started_from.shift)


def _histograms(result: control.TaskResult) -> tuple[Histogram, Histogram]:
    """Return the predictions of clicked and of other records."""
    positives, negatives = (
        histogram_of(np.frombuffer(raw, "<f8")) if raw else np.zeros(BUCKETS)
        for raw in (result.positives, result.negatives)
    )
    return positives, negatives
