"""The decisions of the master, under one lock. Each part owns its state and reports events; the coordinator answers with a recovery
or with the next step of the pass. No call waits for the network.
"""

import logging
from collections.abc import Sequence

from elastic_ctr.config.model import digest_of_model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.runtime.steady_clock import SteadyClock
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.decisions import DecisionContext, DecisionLock, Part
from elastic_ctr.training.master.generations.members import Pservers, Trainers
from elastic_ctr.training.master.generations.recovery import FallBack, Initialisation, MidPassHandover
from elastic_ctr.training.master.generations.store_queries import StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import Facts, PassRow, SaveRow
from elastic_ctr.training.master.passes.epochs import EpochRunner
from elastic_ctr.training.master.passes.found_data import FoundData
from elastic_ctr.training.master.passes.tasks import Tasks
from elastic_ctr.training.master.saves.checkpointing import Checkpointing, is_save
from elastic_ctr.training.master.saves.planning import SavePlanning
from elastic_ctr.training.master.shown_passes import ShownPasses

log = logging.getLogger(__name__)

_OVER = "every hour is trained"
# Seconds; a smaller difference is a slewed clock.
_CLOCK_JUMP = 2.0


class Coordinator(Part):
    """The master's decisions. Every public method may be called from any thread. Callers of `saves`, `planning` and `mid_pass` take the
    `lock`.
    """

    def __init__(
        self, ledger: Ledger, settings: MasterFile, store: StoreQueries, clock: SteadyClock | None = None
    ) -> None:
        self._machine = clock = clock or SteadyClock(ledger.facts.clock_moved, _CLOCK_JUMP)
        context = DecisionContext(ledger, settings, store, clock)
        super().__init__(context)
        self._training = settings.training
        self.lock = DecisionLock(ledger, self._resume_writing)
        self._digest = digest_of_model(settings.model, settings.input)
        self._started_at = clock()
        self.pservers = Pservers(settings.pservers)
        self._trainers = Trainers(ledger)
        self.mid_pass = MidPassHandover(context)
        self._runner = EpochRunner(context)
        self._tasks = Tasks(context)
        self._initialisation = Initialisation(context)
        self._fall_back = FallBack(context)
        self.saves = Checkpointing(context)
        self.planning = SavePlanning(context, self.saves.compaction)
        self.shown = ShownPasses()
        self.found = FoundData(context, self.lock, self._advance, lambda: len(self.trainers()))
        self._resume()

    def _resume(self) -> None:
        """Continue after a restart: leases are extended from now, a stopped pass is retried."""
        with self.lock.reading(), self._ledger:
            if (handover := self.mid_pass.state) is not None:
                self._serve(handover.pservers)
            self._go_on()
            current = self._ledger.passes.current()
            if current is not None and current.state == "stopped":
                self._take_up(current)
            if self._schedule.cut_again():
                # `data.end` was moved after training had finished. The pservers may have ended and restarted empty.
                self._ledger.set_facts(finished=False)
                if self._generations.used:
                    self._recover("master", "there are more hours to train")
            self._take_over()

    def _go_on(self) -> None:
        """Extend leases from now: while the master was down, trainers could neither renew them nor report results."""
        ends = self._clock() + self._config.lease_seconds
        self._tasks.resume(ends)
        self.saves.resume(ends)
        self.mid_pass.resume()

    def _resume_writing(self) -> None:
        """Continue after a failed write to the ledger."""
        self._go_on()
        # Only a write shows that the disk has room again.
        self._ledger.set_facts(resumed_at=self._clock())

    def _take_up(self, stopped: PassRow) -> None:
        """Begin a stopped pass again, after its data or settings were corrected."""
        self._ledger.set_facts(save_failures=0, save_lost_leases=0, load_failures=0)
        self._generations.start_pass_over(stopped.ordinal)
        self._runner.forget_first_values(stopped)
        # Gradients of a begun epoch may be in the table, and an unfinished load may have used damaged files.
        if stopped.epoch > 0 or (self._generations.used and not self._generations.ready):
            self._recover("master", "a stopped pass is taken up again")
        if self._generations.holds(stopped.ordinal):
            # The checkpoint includes the whole pass, so training it again would count it twice. Only its version is missing.
            self._ledger.passes.update(stopped.ordinal, state="saving", reason="")
        else:
            self._ledger.passes.update(stopped.ordinal, state="waiting", epoch=0, reason="")

    def _take_over(self) -> None:
        """Detect that a new training has replaced the last one. Its pservers have empty tables and may be more or fewer."""
        before = self._ledger.facts.training or self._training
        self._ledger.set_facts(training=self._training)
        if before == self._training:
            return
        # If this training interrupts a handover, the members of that handover are gone.
        self._end_handover()
        if self._generations.used and not self._schedule.finished:
            if (handover := self.mid_pass.begin(before)) is not None:
                self._serve(handover.pservers)
                return
            self._recover("training", f"training {before} was replaced by {self._training}")
        self._ledger.set_facts(pservers={})

    def _serve(self, pservers: int) -> None:
        """Set the number of pservers that share the table from now on."""
        self.pservers.begin(pservers)
        self.saves.serve(pservers)

    def _hand_over(self) -> None:
        """Take the next step of a handover."""
        if (state := self.mid_pass.state) is None:
            return
        current = self._ledger.passes.current()
        if self.finished:
            self._end_handover()
        elif current is None or current.ordinal != state.ordinal:
            # The pass was saved as a whole. A mid-pass save ends the handover with its commit.
            self._recover("training", "")
        elif broken := self.mid_pass.broken(state, current, self.pservers, self._trainers):
            self._recover("training", broken)
        else:
            self.mid_pass.order(state, current)

    def _end_handover(self) -> None:
        if self.mid_pass.state is not None:
            self._ledger.set_facts(pservers={}, handover=None)
            self._serve(self._settings.pservers)

    def _recover(self, role: str, reason: str) -> None:
        """Return to the last checkpoint in a new generation of server processes."""
        with self._ledger:
            if (handover := self.mid_pass.state) is not None:
                role, reason = "training", self.mid_pass.reason_text(handover, reason)
            self._generations.roll_back(role, reason)
            self.saves.forget()
            self._end_handover()
        self._initialisation.forget()
        self._fall_back.forget()

    def _advance(self) -> None:
        """Advance the current pass until it waits for a trainer, a pserver or the store."""
        with self._ledger:
            while (current := self._ledger.passes.current()) is not None:
                part = self.planning if current.state == "saving" else self._runner
                if not part.step(current):
                    return

    @property
    def generation(self) -> int:
        return self._generations.present

    @property
    def initialised(self) -> bool:
        return self._generations.ready

    @property
    def handover(self) -> str | None:
        """Return the training that hands over to this one, or None."""
        return self.mid_pass.before

    @property
    def save_waits(self) -> str:
        """Return a message for operators if the current save or task is blocked, else ""."""
        return self._fall_back.waits or self.saves.waits or self._tasks.waits

    @property
    def finished(self) -> bool:
        """True if all passes are done and no further one will come."""
        with self.lock.reading():
            return self._schedule.finished

    def trainers(self) -> dict[int, tuple[str, float]]:
        """Return id -> (name, time of the last call) of the trainers that called within the lease time."""
        with self.lock.reading():
            return self._trainers.heard_since(self._clock() - self._config.lease_seconds)

    @property
    def facts(self) -> Facts:
        """Return the single values of the ledger."""
        with self.lock.reading():
            return self._ledger.facts

    def _wrong_training(self, training: str) -> str:
        """Return the reason for a caller to leave, or "" if it belongs to this training or to the one that hands over to it."""
        belongs = training in (self._training, self.mid_pass.before)
        return "" if belongs else f"training {training} was replaced by {self._training}"

    def _waiting_for_handover(self, training: str) -> str:
        """Return the reason for a caller to wait while the former training hands over, or ""."""
        before = self.mid_pass.before
        return f"waits for training {before}, which is saved once more" if before not in (None, training) else ""

    def sync_pserver(self, state: control.PserverState) -> control.PserverOrders:
        with self.lock.writing():
            if not self._wrong_training(state.training):
                if early := self._waiting_for_handover(state.training):
                    return control.PserverOrders(generation=state.generation, reason=early)
                with self._ledger:
                    self._update_pserver(state)
            if foreign := self._wrong_training(state.training):
                return control.PserverOrders(leave=True, wrong_training=True, reason=foreign)
            return control.PserverOrders(
                generation=self.generation,
                start=self.pservers.complete,
                checkpoint=self._generations.last_checkpoint,
                jobs=self._jobs(state.index),
                leave=self.finished,
                reason=_OVER if self.finished else "",
                keep_running=state.leaving and self.mid_pass.state is not None,
                leave_timeout_seconds=self.mid_pass.leave_timeout,
            )

    def _update_pserver(self, state: control.PserverState) -> None:
        """Take a pserver's state, which may end the generation, and a handover with it."""
        incarnations = self._ledger.facts.pservers
        before = incarnations.get(str(state.index))
        if before != state.incarnation:
            if before is not None:
                self._lost_pserver(f"pserver {state.index} was replaced by a new process")
            if self._wrong_training(state.training):
                return
            self._ledger.set_facts(pservers={**incarnations, str(state.index): state.incarnation})
        self.pservers.learn(state, self._clock())
        if state.lost and state.generation == self.generation and not self.finished:
            self._recover("pserver", f"the server process of pserver {state.index} has ended")
        if damage := self._fall_back.take(state):
            self._recover("store", damage)
        for result in state.results:
            self._take(state.index, result)

    def _lost_pserver(self, reason: str) -> None:
        """Begin a recovery, unless the pservers were still empty."""
        if self._generations.used and not self.finished:
            self._recover("pserver", reason)

    def _jobs(self, index: int) -> list[control.Job]:
        return self._initialisation.jobs(index) if self._initialisation.verifying else self.saves.jobs(index)

    def _take(self, index: int, result: control.JobResult) -> None:
        if result.id not in {job.id for job in self._jobs(index)}:
            return
        if result.error:
            # The pserver retries; the status shows the error.
            log.warning("pserver %d: %s", index, result.error)
        elif not self._initialisation.verifying:
            self.saves.take(index, result)
        elif reason := self._initialisation.take(index, result):
            self._recover("pserver", reason)

    def silent_pservers(self) -> list[tuple[int, str, int]]:
        """Return (index, host, admin port) of pservers that have been silent for too long. The caller probes them without the lock."""
        with self.lock.reading():
            now = self._clock()
            if now - self._started_at < self._config.pserver_timeout_seconds:
                return []
            silent = self.pservers.silent(now, self._config.pserver_timeout_seconds)
            return [(index, one.host, one.admin_port) for index, one in self.pservers.items() if index in silent]

    def declare_lost(self, index: int, reason: str) -> None:
        """Take the failed probe of a pserver as its loss."""
        with self.lock.writing():
            self._lost_pserver(f"pserver {index} is lost: {reason}")
            self.pservers.forget(index)

    def join(self, name: str, trainer_id: int, training: str = "local") -> control.JoinReply:
        with self.lock.writing():
            if foreign := self._wrong_training(training):
                return control.JoinReply(verdict=control.JoinReply.LEAVE, wrong_training=True, reason=foreign)
            if early := self._waiting_for_handover(training):
                return control.JoinReply(trainer_id=trainer_id, reason=early)
            generation = self.generation
            trainer_id = self._trainers.enter(name, trainer_id, self._clock())
            for gone in self._trainers.replaced_by(trainer_id):
                # The former process is gone, so its task leases end now. A save's lease runs until it expires.
                with self._ledger:
                    self._tasks.lose_those_of(gone)
                self._trainers.leave(gone)
            self._initialisation.joins(trainer_id)
            reply = control.JoinReply(
                trainer_id=trainer_id,
                generation=generation,
                servers=self.pservers.servers(generation),
                model_digest=self._digest,
                lease_seconds=self._config.lease_seconds,
                leave_timeout_seconds=self.mid_pass.leave_timeout,
                save_seconds=self._config.save_timeout_seconds,
            )
            if self.finished:
                reply.verdict = control.JoinReply.LEAVE
                reply.reason = _OVER
            elif waiting := self.pservers.waiting_for(generation):
                reply.reason = f"waits for {waiting}"
            elif not reply.servers:
                # During a handover from an earlier release, its pservers do not report their addresses.
                reply.reason = "waits for pservers that say where they are reached"
            elif self.initialised:
                reply.verdict = control.JoinReply.JOIN
            elif self._initialisation.ask(trainer_id):
                reply.verdict = control.JoinReply.INITIALISE
                reply.load = bool(self._generations.last_checkpoint)
                reply.take_over = self._generations.take_over
                reply.dense_of = self._generations.dense_of
            else:
                reply.reason = "waits for the first values"
            return reply

    def _stale(self, trainer_id: int, generation: int) -> str:
        """Return the reason for a caller to rejoin, or "" if its generation and id are current."""
        if generation != self.generation:
            return f"generation {generation} is over, this is {self.generation}"
        if not self._trainers.given_out(trainer_id):
            return f"trainer {trainer_id} was never given out here"
        self._trainers.heard(trainer_id, self._clock())
        return ""

    def initialised_by(self, member: control.Membership) -> control.Acknowledgement:
        with self.lock.writing():
            reason = self._stale(member.trainer_id, member.generation)
            if not reason and self._generations.initialised_by != member.trainer_id:
                if self.initialised:
                    self._late_initialiser(member.trainer_id)
                    reason = "another trainer had initialised"
                elif not self._initialisation.report(member.trainer_id, member.taken_over):
                    reason = "another trainer initialises"
                elif self._generations.dense_of and (
                    wrong := self._initialisation.judge_log(list(member.rows), self.pservers.fetched_rows())
                ):
                    self._recover("pserver", wrong)
                    reason = wrong
            return control.Acknowledgement(rejoin=bool(reason), reason=reason)

    def _late_initialiser(self, trainer: int) -> None:
        """Recover from a suspended trainer that initialised late: its values may have overwritten rows trained since."""
        self._recover("trainer", f"trainer {trainer} initialised when others were training already")

    def leave(self, member: control.Membership) -> control.Acknowledgement:
        trainer, reason = member.trainer_id, member.reason
        with self.lock.writing():
            if member.generation == self.generation:
                if reason:
                    log.warning("trainer %d leaves: %s", trainer, reason)
                with self._ledger:
                    self._tasks.leave(trainer, reason)
                    if lost := self.saves.leave(trainer, reason, table_unchanged=member.table_unchanged):
                        self._recover("trainer", lost)
                    elif reason and self.initialised:
                        now = self._clock()
                        self._ledger.add_recovery("trainer", f"trainer {trainer} left: {reason}", now, 0)
                        self._ledger.end_recoveries(now)
                # A trainer that leaves because of an error cannot help the handover.
                if self.mid_pass.state is not None and not reason:
                    stays = "the training is saved once more before it ends"
                    return control.Acknowledgement(keep_running=True, reason=stays)
            self._trainers.leave(trainer)
            return control.Acknowledgement()

    def unreachable(self, report: control.UnreachableReport) -> tuple[int, str, int] | None:
        """Return (index, host, admin port) of the pserver that the master must probe, or None if the report is outdated."""
        with self.lock.reading():
            servers = self.pservers.servers(self.generation)
            if report.generation != self.generation or report.server not in servers:
                return None
            index, one = self.pservers.items()[servers.index(report.server)]
            log.warning("trainer %d cannot reach pserver %d: %s", report.trainer_id, index, report.reason)
            return index, one.host, one.admin_port

    def lease(self, request: control.LeaseRequest) -> control.LeaseReply:
        with self.lock.writing():
            if self.finished:
                return control.LeaseReply(verdict=control.LeaseReply.LEAVE)
            if reason := self._stale(request.trainer_id, request.generation):
                return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason=reason)
            current, task, wait = self._ledger.passes.current(), None, 0.1
            if current is not None and current.state == "stopped":
                wait = 0.5
            elif self._initialisation.verifying:
                wait = 0.2
            elif not self.initialised:
                # It initialised before the master restarted, and the rows that it loaded were never counted.
                return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason="what was loaded is not verified")
            elif current is None:
                wait = 0.5
            elif current.state == "saving":
                task = None if request.prefetch else self.saves.lease(current, request.trainer_id)
            elif self.mid_pass.state is None:
                task = self._tasks.lease(current, request)
            if task is None:
                return control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=wait)
            if self._needs_statistics:
                task.statistics = self._ledger.facts.statistics
            return control.LeaseReply(verdict=control.LeaseReply.WORK, task=task)

    def renew(self, request: control.RenewRequest) -> control.Acknowledgement:
        with self.lock.writing(), self._ledger:
            if reason := self._stale(request.trainer_id, request.generation):
                return control.Acknowledgement(rejoin=True, reason=reason)
            ends = self._clock() + self._config.lease_seconds
            if not self._initialisation.renew(request.trainer_id, ends):
                if self.initialised:
                    # The trainer must end, but the values that it was sending may have overwritten rows trained since.
                    self._late_initialiser(request.trainer_id)
                return control.Acknowledgement(rejoin=True, reason="another trainer initialises")
            self.saves.renew(request.trainer_id, ends)
            tasks = [attempt for attempt in request.attempts if not is_save(attempt)]
            all_held = self._tasks.renew(tasks, request.running, ends)
            if not all_held or not all(self.saves.holds(a) for a in request.attempts if is_save(a)):
                return control.Acknowledgement(rejoin=True, reason="a lease has run out and went to another trainer")
            return control.Acknowledgement()

    def report(self, result: control.TaskResult) -> control.Acknowledgement:
        with self.lock.writing():
            if reason := self._stale(result.trainer_id, result.generation):
                return control.Acknowledgement(rejoin=True, reason=reason)
            if is_save(result.attempt):
                if not self.saves.holds(result.attempt):
                    return control.Acknowledgement(rejoin=True, reason="the save went on without this trainer")
                with self._ledger:
                    if lost := self.saves.report(result):
                        self._recover("trainer", lost)
                return control.Acknowledgement()
            with self._ledger:
                if not self._tasks.report(result):
                    return control.Acknowledgement(rejoin=True, reason="the lease had run out")
                self._advance()
            return control.Acknowledgement()

    def files_judged(self, save: SaveRow) -> None:
        """Take the next step after the files of a save were checked and its checkpoint, if it has one by now, was committed."""
        with self.lock.writing(), self._ledger:
            if self.mid_pass.mid_pass_state(save) is not None:
                # The mid-pass checkpoint is committed; the recovery begins the new training.
                self._recover("training", "")
                return
            self.saves.end_files(save)
            self._advance()

    def version_committed(self, save: SaveRow, keys: int, *, refused: str = "", log_on: str = "") -> None:
        with self.lock.writing(), self._ledger:
            self.saves.commit_version(save, keys, refused, log_on)
            self._advance()

    def versions_found(self, published: list[int]) -> None:
        """Take the versions in the store at the master's start: some that the next delta depends on may be lost."""
        with self.lock.writing():
            lost = self.planning.lost_versions(published)
            if self.saves.stands_on(lost):
                self._recover("master", f"version {lost[0]}, which the save under way stands on, is not in the store")

    def tick(self) -> None:
        """Apply timeouts and take the next steps, in one transaction."""
        with self.lock.writing(), self._ledger:
            now = self._clock()
            if self._machine.moved != self._ledger.facts.clock_moved:
                self._ledger.set_facts(clock_moved=self._machine.moved)
            self._tasks.expire(now)
            self._initialisation.expire(now)
            if lost := self.saves.expire(now):
                self._recover("trainer", lost)
            self.saves.compaction.expire(now)
            self.saves.gather()
            self._advance()
            self._hand_over()

    def stopped_pass(self) -> PassRow | None:
        with self.lock.reading():
            current = self._ledger.passes.current()
            return current if current is not None and current.state == "stopped" else None

    def retry(self, name: str, skip: Sequence[tuple[str, int]] = ()) -> str:
        """Begin a stopped pass again, without the records that begin at these offsets of its files or partitions. Return the reason for a
        refusal, or "" if the pass was begun.
        """
        with self.lock.writing(), self._ledger:
            current = self._ledger.passes.current()
            if current is None or current.state != "stopped":
                return f"no pass is stopped; {'every pass is done' if current is None else f'pass {current.id} is {current.state}'}"
            if current.id != name:
                return f"pass {name} is not stopped, pass {current.id} is"
            if refused := self._ledger.tasks.skip(current, skip):
                return refused
            log.info("pass %s is retried%s", name, "".join(f", without {path}:{offset}" for path, offset in skip))
            self._take_up(current)
            return ""
