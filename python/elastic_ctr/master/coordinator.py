"""What happens next: members, leases, rounds, saves, recovery. One lock, one ledger; calls are short.

A pass goes through rounds. In the first all its tasks are converted, validated and predicted; only then is the first one
trained, so a refused pass has changed nothing. Then `epochs` rounds of training, one that predicts again with what was learned, then the save, with no task open.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from elastic_ctr.config.data import Data
from elastic_ctr.config.roles import MasterConfig
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.ledger import Ledger, PassRow, SaveRow, TaskRow
from elastic_ctr.master.passes import Pass, passes, pick_samples, save_plan
from elastic_ctr.master.pservers import Pservers
from elastic_ctr.master.saving import (
    Published,
    PublishRefused,
    checkpoint_name,
    compare,
    describe_refusals,
    folder_of,
    jobs_of,
    merged_rows,
    rows_differ,
)
from elastic_ctr.model.metrics import BUCKETS, auc_of_histogram
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import ManifestDamaged
from elastic_ctr.versions.version import next_version

log = logging.getLogger(__name__)

VERIFY = "verify"
_EXAMPLES = 3
_SAVE_RETRIES = 3
_PHASES = {"checking": control.CHECK, "training": control.TRAIN, "evaluating": control.EVALUATE}


@dataclass
class _Holder:
    """A trainer that holds something which is no task: the initialisation, or a save."""

    trainer: int
    attempt: str
    ends: float


class Coordinator:
    """The master's decisions. Every public method may be called from any thread."""

    def __init__(
        self,
        ledger: Ledger,
        data: Data,
        config: MasterConfig,
        *,
        pservers: int,
        epochs: int,
        dim: int,
        model_digest: str,
        rows_of_checkpoint: Callable[[str], dict[int, int]],
        known_versions: Callable[[], list[int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._data = data
        self._config = config
        self._epochs = epochs
        self._dim = dim
        self._digest = model_digest
        self._rows_of_checkpoint = rows_of_checkpoint
        self._known_versions = known_versions
        self._clock = clock
        self._lock = threading.RLock()
        self.pservers = Pservers(pservers)
        self._started_at = clock()
        self._initializer: _Holder | None = None
        self._saver: _Holder | None = None
        self._granted: set[tuple[int, int]] = set()
        self._verifying = False
        self._results: dict[int, dict[str, control.JobResult]] = {}
        self._trainers: dict[int, tuple[str, float]] = {}
        if ledger.fact("generation") is None:
            ledger.set_fact("generation", 1)
        self._resume()

    # -- state in words --------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return int(self._ledger.fact("generation"))

    @property
    def initialised(self) -> bool:
        return bool(self._ledger.fact("initialised") == self.generation)

    @property
    def finished(self) -> bool:
        """Every pass there will ever be is done."""
        with self._lock:
            return bool(self._ledger.fact("finished", default=False))

    def trainers(self) -> dict[int, tuple[str, float]]:
        """Id -> (name, last heard at), of those heard within the lease."""
        with self._lock:
            now = self._clock()
            return {k: v for k, v in self._trainers.items() if now - v[1] <= self._config.lease_seconds}

    def _resume(self) -> None:
        """After a restart: leases go on from now, a pass that was stopped is looked at again."""
        with self._lock, self._ledger:
            ends = self._clock() + self._config.lease_seconds
            self._ledger.renew([task.attempt for task in self._ledger.leased()], "", ends)
            saver = self._ledger.fact("saver")
            if saver is not None:
                self._saver = _Holder(saver["trainer"], saver["attempt"], ends)
            current = self._ledger.current_pass()
            if current is not None and current.state == "stopped":
                # Whoever restarts the master has mended the data or the settings: look again from the start. Once a
                # round of training has begun something of it may be in the table, whatever was reported.
                begun = current.epoch > 0
                self._ledger.set_fact("save_failures", 0)
                self._ledger.set_fact("load_failures", 0)
                if begun:
                    self._recover("master", "a stopped pass is taken up again")
                self._ledger.set_pass(current.ordinal, state="waiting", epoch=0, reason="")
            if self.finished and not self._calendar_is_done():
                # data.end was moved. The servers may have left and come back empty since.
                self._ledger.set_fact("finished", value=False)
                if self._generation_was_used():
                    self._recover("master", "there are more hours to train")

    # -- pservers --------------------------------------------------------------------------------------------------

    def sync_pserver(self, state: control.PserverState) -> control.PserverOrders:
        with self._lock:
            now = self._clock()
            incarnations = self._ledger.fact("pservers", {})
            before = incarnations.get(str(state.index))
            if before != state.incarnation:
                if before is not None and self._generation_was_used() and not self.finished:
                    self._recover("pserver", f"pserver {state.index} was replaced by a new process")
                with self._ledger:
                    incarnations = self._ledger.fact("pservers", {})
                    incarnations[str(state.index)] = state.incarnation
                    self._ledger.set_fact("pservers", incarnations)
            self.pservers.learn(state, now)
            if state.lost and state.generation == self.generation and not self.finished:
                self._recover("pserver", f"the server process of pserver {state.index} has ended")
            for result in state.results:
                self._take_result(state.index, result)
            return control.PserverOrders(
                generation=self.generation,
                endpoints=self.pservers.endpoints(self.generation),
                checkpoint=self._last_checkpoint() or "",
                jobs=self._open_jobs(state.index),
                leave=self.finished,
            )

    def _generation_was_used(self) -> bool:
        """Somebody was told to initialise it, so its servers may hold something."""
        return bool(self._ledger.fact("touched") == self.generation)

    def silent_pservers(self) -> list[tuple[int, str, int]]:
        """(index, host, admin port) of parents not heard of for too long: the caller asks them itself, without the lock."""
        with self._lock:
            now = self._clock()
            if now - self._started_at < self._config.pserver_timeout_seconds:
                return []
            silent = self.pservers.silent(now, self._config.pserver_timeout_seconds)
            return [(i, one.host, one.admin_port) for i in silent if (one := self.pservers.get(i)) is not None]

    def declare_lost(self, index: int, reason: str) -> None:
        """The master has looked for itself."""
        with self._lock:
            self.pservers.forget(index)
            if self._generation_was_used() and not self.finished:
                self._recover("pserver", f"pserver {index} is lost: {reason}")

    # -- trainers: membership --------------------------------------------------------------------------------------

    def join(self, name: str, trainer_id: int) -> control.JoinReply:
        with self._lock:
            generation = self.generation
            if not trainer_id or trainer_id > int(self._ledger.fact("last_trainer", 0)):
                trainer_id = self._ledger.count_up("last_trainer")
            self._trainers[trainer_id] = (name, self._clock())
            reply = control.JoinReply(
                trainer_id=trainer_id,
                generation=generation,
                endpoints=self.pservers.endpoints(generation),
                model_digest=self._digest,
                lease_seconds=self._config.lease_seconds,
            )
            if self.finished:
                reply.verdict = control.JoinReply.LEAVE
                return reply
            waiting = self.pservers.waiting_for(generation)
            if waiting:
                reply.reason = f"waits for {waiting}"
                return reply
            if self.initialised:
                reply.verdict = control.JoinReply.JOIN
                return reply
            holder = self._initializer
            if self._verifying or (holder is not None and holder.ends > self._clock() and holder.trainer != trainer_id):
                reply.reason = "waits for the first values"
                return reply
            self._initializer = _Holder(trainer_id, "", self._clock() + self._config.lease_seconds)
            self._granted.add((generation, trainer_id))
            self._ledger.set_fact("touched", generation)
            reply.verdict = control.JoinReply.INITIALISE
            reply.load = self._last_checkpoint() is not None
            return reply

    def _stale(self, trainer_id: int, generation: int) -> str:
        """Why a caller must rejoin; empty if it belongs."""
        if generation != self.generation:
            return f"generation {generation} is over, this is {self.generation}"
        if trainer_id > int(self._ledger.fact("last_trainer", 0)):
            return f"trainer {trainer_id} was never given out here"
        name = self._trainers.get(trainer_id, ("", 0.0))[0]
        self._trainers[trainer_id] = (name, self._clock())
        return ""

    def initialised_by(self, member: control.Membership) -> control.Acknowledgement:
        with self._lock:
            if reason := self._stale(member.trainer_id, member.generation):
                return control.Acknowledgement(rejoin=True, reason=reason)
            holder = self._initializer
            if self._initialised_by() == member.trainer_id:
                return control.Acknowledgement()
            if self.initialised:
                # It slept while another did its work: first values or a checkpoint now lie over what was learned since.
                self._recover("trainer", f"trainer {member.trainer_id} initialised when others were training already")
                return control.Acknowledgement(rejoin=True, reason="another trainer had initialised")
            if holder is None or holder.trainer != member.trainer_id:
                return control.Acknowledgement(rejoin=True, reason="another trainer initialises")
            self._initializer = None
            self._ledger.set_fact("initialised_by", [self.generation, member.trainer_id])
            if self._last_checkpoint() is None:
                self._open_gate()
            else:
                self._verifying = True
                self._results = {}
            return control.Acknowledgement()

    def _initialised_by(self) -> int:
        generation, trainer = self._ledger.fact("initialised_by", (0, 0))
        return int(trainer) if generation == self.generation else 0

    def _open_gate(self) -> None:
        with self._ledger:
            self._ledger.set_fact("initialised", self.generation)
            self._ledger.set_fact("load_failures", 0)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.generation)

    def leave(self, member: control.Membership) -> control.Acknowledgement:
        with self._lock:
            self._trainers.pop(member.trainer_id, None)
            if member.generation == self.generation:
                for task in self._ledger.leased():
                    if task.trainer == member.trainer_id:
                        self._lost(task, "its trainer left", failed=False)
            return control.Acknowledgement()

    def unreachable(self, report: control.UnreachableReport) -> tuple[int, str, int] | None:
        """Which parent the master must ask, if the report is about this generation: (index, host, admin port)."""
        with self._lock:
            if report.generation != self.generation:
                return None
            endpoints = self.pservers.endpoints(self.generation)
            if report.endpoint not in endpoints:
                return None
            index = endpoints.index(report.endpoint)
            one = self.pservers.get(index)
            log.warning("trainer %d cannot reach %s: %s", report.trainer_id, report.endpoint, report.reason)
            return None if one is None else (index, one.host, one.admin_port)

    # -- trainers: tasks -------------------------------------------------------------------------------------------

    def lease(self, request: control.LeaseRequest) -> control.LeaseReply:
        with self._lock:
            if self.finished:
                return control.LeaseReply(verdict=control.LeaseReply.LEAVE)
            if reason := self._stale(request.trainer_id, request.generation):
                return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason=reason)
            current = self._ledger.current_pass()
            if current is not None and current.state == "stopped":
                return control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=0.5)
            if not self.initialised:
                if self._verifying:
                    return control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=0.2)
                # It initialised for a master that has ended since: what it loaded was never counted.
                return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason="what was loaded is not verified")
            if current is None:
                return control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=0.5)
            task = None
            if current.state in _PHASES and not (request.ahead and current.state == "checking"):
                task = self._lease_task(current, request)
            elif current.state == "saving" and not request.ahead:
                task = self._lease_save(current, request)
            if task is None:
                return control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=0.1)
            return control.LeaseReply(verdict=control.LeaseReply.WORK, task=task)

    def _lease_task(self, current: PassRow, request: control.LeaseRequest) -> control.Task | None:
        todo = self._ledger.tasks(current.ordinal, "todo")
        if not todo:
            return None
        has = set(request.converted)
        # A task goes to whoever has it converted already; the others leave it to them while there is a choice.
        row = next((task for task in todo if task.id in has), todo[0])
        attempt = f"{row.id}:{self._ledger.count_up('attempts')}"
        now = self._clock()
        self._ledger.lease(row.id, request.trainer_id, attempt, now, now + self._config.lease_seconds)
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

    def _lease_save(self, current: PassRow, request: control.LeaseRequest) -> control.Task | None:
        save = self._ledger.save_of(current.ordinal)
        if save is None or save.stage not in ("ordered", "exported") or self._saver is not None:
            return None
        attempt = f"save:{self._ledger.count_up('attempts')}"
        self._saver = _Holder(request.trainer_id, attempt, self._clock() + self._config.lease_seconds)
        self._ledger.set_fact("saver", {"trainer": request.trainer_id, "attempt": attempt})
        order = control.SaveOrder(
            version=save.version or 0, samples=[_sample(each) for each in self.samples_of(current.ordinal)]
        )
        if save.stage == "ordered":
            order.steps.extend(control.SaveStep(name=step, folder=folder_of(save, step)) for step in save.steps)
        else:
            published = self._published(save)
            order.keys = published.keys.tobytes()
            order.values = published.values.tobytes()
            order.live = self._saved(save).live
        return control.Task(
            id=f"save:{current.ordinal}",
            attempt=attempt,
            phase=control.SAVE if save.stage == "ordered" else control.SCORE,
            pass_id=current.id,
            save=order,
        )

    def samples_of(self, ordinal: int) -> list[tuple[str, int, int]]:
        """The sample lines of a pass, or of the last one before it that has any: always the same, whoever asks."""
        offered = self._ledger.samples(ordinal)
        while not offered and ordinal > 1:
            ordinal -= 1
            offered = self._ledger.samples(ordinal)
        return [offered[task][position] for task, position in pick_samples(offered, self._config.samples)]

    def renew(self, request: control.RenewRequest) -> control.Acknowledgement:
        with self._lock:
            if reason := self._stale(request.trainer_id, request.generation):
                return control.Acknowledgement(rejoin=True, reason=reason)
            ends = self._clock() + self._config.lease_seconds
            late = (
                self.generation,
                request.trainer_id,
            ) in self._granted and self._initialised_by() != request.trainer_id
            if late and (self._initializer is None or self._initializer.trainer != request.trainer_id):
                return control.Acknowledgement(rejoin=True, reason="another trainer initialises")
            for holder in (self._initializer, self._saver):
                if holder is not None and holder.trainer == request.trainer_id:
                    holder.ends = ends
            known = [
                a for a in request.attempts if a.startswith("save:") or self._ledger.task_of_attempt(a) is not None
            ]
            self._ledger.renew([a for a in known if not a.startswith("save:")], request.running, ends)
            missing = set(request.attempts) - set(known)
            if missing or any(a.startswith("save:") and not self._holds_save(a) for a in known):
                return control.Acknowledgement(rejoin=True, reason="a lease has run out and went to another trainer")
            return control.Acknowledgement()

    def _holds_save(self, attempt: str) -> bool:
        return self._saver is not None and self._saver.attempt == attempt

    def report(self, result: control.TaskResult) -> control.Acknowledgement:
        with self._lock:
            if reason := self._stale(result.trainer_id, result.generation):
                return control.Acknowledgement(rejoin=True, reason=reason)
            if result.attempt.startswith("save:"):
                return self._report_save(result)
            task = self._ledger.task_of_attempt(result.attempt)
            if task is None:
                return control.Acknowledgement(rejoin=True, reason="the lease had run out")
            if result.error:
                log.warning("task %s of %s failed: %s", task.id, task.path, result.error)
                self._lost(task, result.error, failed=True)
                return control.Acknowledgement()
            current = self._ledger.current_pass()
            if current is None or current.ordinal != task.ordinal:
                raise AssertionError(f"task {task.id} is leased but its pass is not the present one")
            histograms = (_histogram(result.positives), _histogram(result.negatives))
            with self._ledger:
                # Not by the pass's state: it may have been stopped while this task was under way.
                if current.epoch == 0:
                    counts = {k: int(getattr(result, k)) for k in ("records", "shows", "clicks", "ignored", "padding")}
                    refused = [(r.reason, int(r.lines), list(r.examples)[:_EXAMPLES]) for r in result.refused]
                    samples = [(s.line, int(s.show), int(s.click)) for s in result.samples]
                    self._ledger.checked(task, counts, refused, samples, histograms)
                else:
                    self._ledger.trained(task, histograms, rounds=int(task.trained < current.epoch))
                self._advance()
            return control.Acknowledgement()

    def _lost(self, task: TaskRow, why: str, *, failed: bool) -> None:
        """A lease ended without its task done."""
        current = self._ledger.current_pass()
        # Gradients of a started task may have reached the servers: its records may be in the model twice.
        repeated = task.records if task.running else 0
        parked = self._ledger.give_back(
            task, error=why, failed=failed, repeated=repeated, park_at=self._config.max_attempts
        )
        if parked and current is not None:
            part = f" bytes {task.start} to {task.stop or 'the end'}" if task.start or task.stop else ""
            self._stop(
                current,
                f"task {task.id} ({task.path}{part}) failed {self._config.max_attempts} times, the last time: {why}; "
                "nothing of it is dropped: mend the cause and restart the master",
            )

    def _stop(self, current: PassRow, reason: str) -> None:
        self._ledger.set_pass(current.ordinal, state="stopped", reason=reason)
        log.error("pass %s is stopped: %s", current.id, reason)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Move the present pass on as far as it goes without anybody's help. Inside a ledger transaction."""
        while (current := self._ledger.current_pass()) is not None and self._step(current):
            pass

    def _step(self, current: PassRow) -> bool:
        tasks = self._ledger.tasks(current.ordinal)
        closed = all(task.state == "done" for task in tasks)
        if current.state == "checking" and closed:
            return self._end_check(current)
        if current.state == "checked":
            self._ledger.next_round(current.ordinal)
            self._ledger.set_pass(current.ordinal, state="training", epoch=1)
            self._ledger.set_fact(f"training-{current.ordinal}", self._clock())
            return True
        if current.state == "training" and closed:
            if current.epoch < self._epochs and any(task.records for task in tasks):
                self._ledger.next_round(current.ordinal)
                self._ledger.set_pass(current.ordinal, epoch=current.epoch + 1)
                return False
            now = self._clock()
            self._ledger.set_pass(current.ordinal, trained_at=now)
            began = float(self._ledger.fact(f"training-{current.ordinal}", now))
            self._took(current.ordinal, {"train": now - began})
            if self._config.evaluate:
                self._ledger.next_round(current.ordinal)
                self._ledger.set_pass(current.ordinal, state="evaluating")
                return True
            return self._end_rounds(current)
        if current.state == "evaluating" and closed:
            return self._end_rounds(current)
        if current.state == "saving" and self._ledger.save_of(current.ordinal) is None:
            return self._order_save(current)
        return False

    def _took(self, ordinal: int, seconds: Mapping[str, float]) -> None:
        """Seconds of each stage of a pass, for the status and the benches."""
        known = self._ledger.fact(f"seconds-{ordinal}", {})
        self._ledger.set_fact(
            f"seconds-{ordinal}", {**known, **{name: round(taken, 3) for name, taken in seconds.items()}}
        )

    def _end_check(self, current: PassRow) -> bool:
        counts = self._ledger.counts(current.ordinal)
        lines = counts["records"] + counts["refused"]
        if lines and counts["refused"] / lines > self._data.max_refused_share:
            what = describe_refusals(self._ledger.refusals(current.ordinal))
            self._stop(
                current,
                f"{counts['refused']} of {lines} lines were refused, more than data.maxRefusedShare "
                f"{self._data.max_refused_share:g}: {what}; nothing was trained: mend the lines or raise the share, then "
                "restart the master",
            )
            return False
        histograms = self._ledger.histograms(current.ordinal)
        auc = None if histograms is None else auc_of_histogram(*histograms)
        self._ledger.set_pass(current.ordinal, state="checked", auc_before=auc)
        log.info(
            "pass %s is checked: %d records, %d refused, AUC before training %s",
            current.id,
            counts["records"],
            counts["refused"],
            _number(auc),
        )
        return True

    def _end_rounds(self, current: PassRow) -> bool:
        histograms = self._ledger.histograms(current.ordinal)
        auc = None if histograms is None else auc_of_histogram(*histograms)
        self._ledger.set_pass(current.ordinal, state="saving", auc=auc)
        log.info("pass %s is trained: AUC %s", current.id, _number(auc))
        return True

    def _order_save(self, current: PassRow) -> bool:
        is_last = self._data.end is not None and self._is_last(current)
        plan = save_plan(
            Pass(current.ordinal, current.id, current.splits, current.event_time_max, current.ends_day),
            self._config,
            # An hour without records still saves what the hours before it left unsaved.
            records=self._ledger.unpublished(),
            has_base=bool(self._ledger.chain()),
            base_due=bool(self._ledger.fact("base_due", default=False)),
            is_last=is_last,
        )
        steps = plan.steps
        if any(row["pass"] == current.ordinal for row in self._ledger.checkpoints()) and plan.kind == "delta":
            # A recovery came back to this very checkpoint: only its version is still missing.
            steps = tuple(step for step in steps if step != "checkpoint")
        if not steps:
            self._finish_pass(current)
            return True
        version = None
        if plan.kind is not None:
            try:
                published = self._known_versions()
            except StoreError as failed:
                log.warning("the save after pass %s waits for the store: %s", current.id, failed)
                return False
            version = next_version(
                self._clock(),
                [
                    *published,
                    *(v["id"] for v in self._ledger.versions()),
                    int(self._ledger.fact("last_version", 0)),
                ],
            )
            self._ledger.set_fact("last_version", version)
        generation = self.generation
        self._ledger.begin_save(
            SaveRow(
                current.ordinal,
                generation,
                "ordered",
                steps,
                plan.kind,
                version,
                checkpoint_name(current, generation) if "checkpoint" in steps else None,
                None,
                {},
                self._clock(),
            )
        )
        return False

    def _is_last(self, current: PassRow) -> bool:
        return all(p.ordinal <= current.ordinal for p in passes(self._data))

    def _calendar_is_done(self) -> bool:
        if self._data.end is None:
            return False
        last = self._ledger.passes()[-1:]
        return not last or self._is_last(last[0])

    def _finish_pass(self, current: PassRow) -> None:
        self._ledger.set_pass(current.ordinal, state="done", done_at=self._clock())
        if self._data.end is not None and self._is_last(current):
            self._ledger.set_fact("finished", value=True)
            log.info("all passes up to %s are done", self._data.end)

    # -- saves -----------------------------------------------------------------------------------------------------

    def _report_save(self, result: control.TaskResult) -> control.Acknowledgement:
        current = self._ledger.current_pass()
        save = None if current is None else self._ledger.save_of(current.ordinal)
        if current is None or save is None or not self._holds_save(result.attempt):
            return control.Acknowledgement(rejoin=True, reason="the save went on without this trainer")
        self._release_saver()
        if result.error:
            log.warning("save after pass %s failed: %s", current.id, result.error)
            if save.stage == "exported":
                return control.Acknowledgement()
            if self._ledger.count_up("save_failures") >= _SAVE_RETRIES:
                self._stop(current, f"saving failed {_SAVE_RETRIES} times, the last time: {result.error}")
            self._recover("trainer", f"a save failed halfway: {result.error}")
            return control.Acknowledgement()
        seconds = ", ".join(f"{name} {taken:.2f} s" for name, taken in sorted(result.save.seconds.items()))
        log.info("pass %s: %s: %s", current.id, "tables saved" if save.stage == "ordered" else "sample scored", seconds)
        with self._ledger:
            self._took(current.ordinal, dict(result.save.seconds))
            self._ledger.set_fact("save_failures", 0)
            if save.stage == "ordered":
                self._ledger.set_save(current.ordinal, stage="saved", result=result.save.SerializeToString())
                self._results = {}
            else:
                merged = self._saved(save)
                merged.published = result.save.published
                merged.model_files.extend(result.save.model_files)
                self._ledger.set_save(current.ordinal, stage="scored", result=merged.SerializeToString())
        return control.Acknowledgement()

    def _release_saver(self) -> None:
        self._saver = None
        self._ledger.set_fact("saver", None)

    @staticmethod
    def _saved(save: SaveRow) -> control.SaveResult:
        return control.SaveResult.FromString(save.result or b"")

    def _open_jobs(self, index: int) -> list[control.Job]:
        if self._verifying:
            jobs = [control.Job(id=f"{VERIFY}-{self.generation}", kind=control.COUNT, folder=VERIFY)]
        else:
            current = self._ledger.current_pass()
            save = None if current is None or current.state != "saving" else self._ledger.save_of(current.ordinal)
            if save is None or save.stage != "saved" or save.generation != self.generation:
                return []
            jobs = jobs_of(save, self._saved(save).keys, self._ledger.chain())
        done = self._results.get(index, {})
        return [job for job in jobs if job.id not in done]

    def _take_result(self, index: int, result: control.JobResult) -> None:
        if result.id not in {job.id for job in self._open_jobs(index)}:
            return
        if result.error:
            # The parent tries again by itself; the status names it.
            log.warning("pserver %d: %s", index, result.error)
            return
        self._results.setdefault(index, {})[result.id] = result
        if any(self._open_jobs(each) for each in range(self.pservers.count)):
            return
        if self._verifying:
            try:
                self._end_verify()
            except (StoreError, ManifestDamaged) as failed:
                # The job stays open, so its result comes again.
                del self._results[index][result.id]
                log.warning("what was loaded cannot be compared yet: %s", failed)
            return
        current = self._ledger.current_pass()
        save = None if current is None else self._ledger.save_of(current.ordinal)
        if save is not None:
            everything = control.PserverState(results=[r for by_id in self._results.values() for r in by_id.values()])
            jobs = {"results": everything.SerializeToString().hex()}
            # Pservers work side by side: the slowest one is what was waited for.
            for what in ("checkpoint", "export"):
                taken = [r.seconds for r in everything.results if ("checkpoint" in r.id) == (what == "checkpoint")]
                self._took(save.ordinal, {f"{what}Upload": max(taken, default=0.0)})
            self._ledger.set_save(save.ordinal, stage="written", jobs=json.dumps(jobs))

    def _end_verify(self) -> None:
        name = self._last_checkpoint() or ""
        found = merged_rows(r for by_id in self._results.values() for r in by_id.values())
        difference = rows_differ(self._rows_of_checkpoint(name), found)
        self._verifying = False
        if not difference:
            log.info("checkpoint %s is loaded: %d rows", name, sum(found.values()))
            self._open_gate()
            return
        failures = self._ledger.count_up("load_failures")
        reason = f"checkpoint {name} did not load whole: {difference}"
        current = self._ledger.current_pass()
        if failures >= _SAVE_RETRIES and current is not None:
            self._stop(current, f"{reason}, {failures} times; restore the checkpoint's files in the store")
            return
        self._recover("pserver", reason)

    def results_of(self, save: SaveRow) -> list[control.JobResult]:
        raw = save.jobs.get("results", "")
        return list(control.PserverState.FromString(bytes.fromhex(raw)).results)

    def _published(self, save: SaveRow) -> Published:
        saved = self._saved(save)
        keys = np.frombuffer(saved.keys, "<u8")
        pulled = np.frombuffer(saved.values, "<f4").reshape(-1, self._dim)
        exports = [result for result in self.results_of(save) if result.written or result.keys]
        return compare(keys, pulled, exports, self._dim)

    def open_save(self) -> tuple[PassRow, SaveRow, list[control.JobResult], control.SaveResult] | None:
        """A save whose files are written or scored: the publisher's next step is due."""
        with self._lock:
            current = self._ledger.current_pass()
            if current is None or current.state != "saving":
                return None
            save = self._ledger.save_of(current.ordinal)
            if save is None or save.stage not in ("written", "scored"):
                return None
            return current, save, self.results_of(save), self._saved(save)

    def left_out(self, save: SaveRow) -> int:
        """Sample keys this save left out. Raises PublishRefused if what was written is not what was trained."""
        with self._lock:
            return self._published(save).left_out

    def _still(self, save: SaveRow) -> PassRow | None:
        """The pass of a save, unless a recovery has dropped it while the publisher was at the store."""
        now = self._ledger.save_of(save.ordinal)
        current = self._ledger.current_pass()
        if current is None or now is None or current.ordinal != save.ordinal:
            return None
        return (
            current if (now.generation, now.version, now.stage) == (save.generation, save.version, save.stage) else None
        )

    def checkpoint_committed(self, save: SaveRow, follows: int | None, base: int | None) -> None:
        """From now on recoveries come back to it. The checkpoint of a base counts with the version alone."""
        with self._lock:
            if save.checkpoint is not None and self._still(save) is not None:
                self._ledger.add_checkpoint(save.checkpoint, save.ordinal, follows, base, self._clock())

    def files_judged(self, save: SaveRow) -> None:
        """The checkpoint of a written save stands; its version is scored next, or the pass is done without one."""
        with self._lock, self._ledger:
            current = self._still(save)
            if current is None:
                return
            if save.kind is not None:
                self._ledger.set_save(save.ordinal, stage="exported")
                return
            self._ledger.set_save(save.ordinal, stage="done")
            self._finish_pass(current)
            self._advance()

    def version_committed(self, save: SaveRow, keys: int, *, refused: str = "") -> None:
        with self._lock, self._ledger:
            current = self._still(save)
            if current is None or save.version is None or save.kind is None:
                return
            follows = self._ledger.fact("follows")
            base = save.version if save.kind == "base" else int(self._ledger.fact("base"))
            parent = None if save.kind == "base" else follows
            state = "refused" if refused else "published"
            self._ledger.add_version(
                save.version, save.kind, base, parent, save.ordinal, state, keys, self._clock(), refused
            )
            if refused:
                log.error("version %d after pass %s is refused: %s", save.version, current.id, refused)
                # What this save marked as published is in no version: only a base catches up.
                self._ledger.set_fact("base_due", value=True)
            else:
                log.info(
                    "version %d (%s, %d keys) is published after pass %s", save.version, save.kind, keys, current.id
                )
                self._ledger.set_fact("follows", save.version)
                self._ledger.set_fact("base", base)
                if save.kind == "base":
                    self._ledger.set_fact("base_due", value=False)
                    if save.checkpoint is not None:
                        # In one transaction with the version it follows: no recovery sees one without the other.
                        self._ledger.add_checkpoint(
                            save.checkpoint, save.ordinal, save.version, save.version, self._clock()
                        )
                self._ledger.set_pass(current.ordinal, version=save.version)
            self._ledger.set_save(save.ordinal, stage="done")
            self._finish_pass(current)
            self._advance()

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """What the clock alone brings about."""
        with self._lock:
            now = self._clock()
            for task in self._ledger.leased():
                if now > task.lease_ends:
                    log.warning("trainer %s lost task %s of %s", task.trainer, task.id, task.path)
                    self._ledger.add_recovery(
                        "trainer",
                        f"trainer {task.trainer} lost task {task.id}",
                        task.lease_ends - self._config.lease_seconds,
                        0,
                    )
                    self._ledger.end_recoveries(now)
                    self._lost(task, f"trainer {task.trainer} was lost", failed=True)
                elif now - task.leased_at > self._config.task_timeout_seconds:
                    self._lost(task, f"it took longer than {self._config.task_timeout_seconds:g} s", failed=True)
            if self._initializer is not None and now > self._initializer.ends:
                log.warning("trainer %d did not initialise; another one will", self._initializer.trainer)
                self._initializer = None
            if self._saver is not None and now > self._saver.ends:
                trainer = self._saver.trainer
                self._release_saver()
                current = self._ledger.current_pass()
                save = None if current is None else self._ledger.save_of(current.ordinal)
                if save is not None and save.stage == "ordered":
                    self._recover(
                        "trainer", f"trainer {trainer} was lost while it saved; what it did to the table is unknown"
                    )
            with self._ledger:
                self._advance()

    def wants_hours(self) -> PassRow | None:
        """The pass whose folders are to be looked for now."""
        with self._lock:
            current = self._ledger.current_pass()
            if current is None and not self.finished:
                done = len(self._ledger.passes())
                coming = next((p for p in passes(self._data) if p.ordinal == done + 1), None)
                if coming is None:
                    self._ledger.set_fact("finished", value=True)
                    return None
                self._ledger.add_pass(
                    coming.ordinal, coming.id, coming.splits, coming.event_time_max, ends_day=coming.ends_day
                )
                current = self._ledger.current_pass()
            return current if current is not None and current.state == "waiting" else None

    def hours_found(self, one: PassRow, files: dict[str, int], ranges: list[tuple[str, int, int]]) -> None:
        with self._lock, self._ledger:
            # The ledger's own name is in it, for a trainer's scratch may outlive a ledger; and which look this is, for
            # it may hold the lines of a file that was mended since.
            look = self._ledger.count_up("looks")
            named = [
                (f"{self._ledger.fact('id', 'ledger')}-{one.ordinal}-{look}.{number}", *each)
                for number, each in enumerate(ranges)
            ]
            self._ledger.fill_pass(one.ordinal, files, named)
            log.info("pass %s: %d files, %d tasks", one.id, len(files), len(named))
            self._advance()

    # -- recovery --------------------------------------------------------------------------------------------------

    def _last_checkpoint(self) -> str | None:
        rows = self._ledger.checkpoints()
        return rows[-1]["name"] if rows else None

    def _recover(self, role: str, reason: str) -> None:
        """Back to the last checkpoint, in a new generation of server processes."""
        with self._ledger:
            generation = self._ledger.count_up("generation")
            rows = self._ledger.checkpoints()
            back_to = rows[-1]["pass"] if rows else 0
            lost = self._ledger.roll_back(back_to)
            follows = rows[-1]["follows"] if rows else None
            self._ledger.set_fact("follows", follows)
            self._ledger.set_fact("base", rows[-1]["base"] if rows else None)
            self._ledger.abandon_versions(follows or 0)
            self._ledger.count_up("rolled_back", lost)
            self._ledger.set_fact("finished", value=False)
            self._ledger.add_recovery(role, reason, self._clock(), lost)
            # A save of the checkpoint's own pass was on its way: it is planned anew.
            save = self._ledger.save_of(back_to)
            if save is not None and save.stage != "done":
                self._ledger.drop_saves(back_to)
            self._release_saver()
        self._initializer = None
        self._verifying = False
        self._results = {}
        log.warning("generation %d begins at %s: %s", generation, rows[-1]["name"] if rows else "the start", reason)

    def counted(self) -> dict[str, int]:
        """The ledger's sum: every line of every file found has one fate."""
        with self._lock:
            counts = self._ledger.counts()
            return {
                "files": counts["files"],
                "records": counts["records"] + counts["refused"],
                "trained": counts["trained"],
                "refused": counts["refused"],
                "parked": counts["parked"],
                "repeated": counts["repeated"],
                "rolledBack": int(self._ledger.fact("rolled_back", 0)),
            }

    def reading(self) -> "Ledger":
        """For the status page, under `locked()`."""
        return self._ledger

    def locked(self) -> threading.RLock:
        return self._lock


def _sample(sample: tuple[str, int, int]) -> control.Sample:
    return control.Sample(line=sample[0], show=sample[1], click=sample[2])


def _histogram(raw: bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = np.frombuffer(raw, "<f8")
    if found.size not in (0, BUCKETS):
        raise ValueError(f"a histogram of {found.size} buckets instead of {BUCKETS}")
    return found if found.size else np.zeros(BUCKETS)


def _number(auc: float | None) -> str:
    return "-" if auc is None else f"{auc:.4f}"


__all__ = ["Coordinator", "PublishRefused"]
