"""The training process. It exits with 75 to rejoin, and its supervisor then starts it again.

python -m elastic_ctr.training.trainer.process SETTINGS.json NAME
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from elastic_ctr.config.model import digest_of_model
from elastic_ctr.config.own_network import OWN
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.formats.readers.batches import ColumnsRefused
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.runtime.lifecycle import preserve_sigterm_handler
from elastic_ctr.runtime.logging import configure_from_environment
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends import RetryPolicy, Store, StoreUnavailable, open_source, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import fetch, read_checkpoint, read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import ForeignMasterGrace, MasterClient
from elastic_ctr.training.control.server_sockets import link_sockets, reach
from elastic_ctr.training.model.networks.inspection import inspect_own
from elastic_ctr.training.model.networks.own import NetworkRefused
from elastic_ctr.training.model.program import prepare_environment, start_paddle
from elastic_ctr.training.trainer.conversions import Conversions
from elastic_ctr.training.trainer.converted_files import ScratchFailed, on_scratch
from elastic_ctr.training.trainer.engine import Engine, EngineBroken
from elastic_ctr.training.trainer.supervisor import LEAVE_SIGNAL, WATCH_FILE
from elastic_ctr.training.trainer.take_over import Names
from elastic_ctr.training.trainer.task_work import TaskWork
from elastic_ctr.training.trainer.watchdog import REJOIN, ServerWatchdog, delegated_to_parent

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1800.0
# Share of saveTimeoutSeconds that a save waits for an unreachable store. It may wait for several files, and must report before
# the timeout.
_SAVER_RETRY_SHARE = 0.2
_STORE_AWAY_SECONDS = 1.0
# Long poll of a lease. A signal takes effect only when the master has answered.
_HOLD_SECONDS = 1.0


class TrainerProcess:
    """Joins the training and works on tasks until the master or the supervisor ends it."""

    def __init__(self, name: str, settings: TrainerFile) -> None:
        self._name = name
        self._settings = settings
        self._scratch = Path(settings.trainer.scratch_dir)
        self._leaving = False
        # True while a handover needs this trainer for one more save; the master then orders it to leave.
        self._keep_running = False
        self._leave_timeout = 0.0
        self._trainer_id = 0
        self._foreign_master = ForeignMasterGrace()
        self._client = MasterClient(settings.master_address, settings.auth.internal())
        # Retries for long, because a few failed tasks or saves stop the pass.
        retry = RetryPolicy(_RETRY_SECONDS, give_up=self._may_go)
        given, stream = settings.data.source, settings.data.is_stream
        self._source = (
            open_stream(given.url, given.kafka.properties, given.tokens()) if stream else open_source(given, retry)
        )
        self._store = self._open_store(retry)
        self._conversions = Conversions(settings, self._store)
        # The next task, if the answer to a report had one.
        self._given: control.Task | None = None

    def stop(self, *_: object) -> None:
        """Handle a signal: finish the current task, then leave."""
        self._leaving = True

    def _may_go(self) -> bool:
        return self._leaving and not self._keep_running

    def run(self) -> int:
        if not self._network_is_usable():
            return 2
        reply = self._join()
        if reply is None or reply.verdict == control.JoinReply.LEAVE:
            return 0
        model = self._settings.model
        if reply.model_digest != digest_of_model(model, self._settings.input):
            log.error("this trainer's model settings are not the master's; give all roles the same values file")
            return 2
        self._generation = reply.generation
        self._leave_timeout = reply.leave_timeout_seconds
        servers, trainer = list(reply.servers), self._settings.trainer
        sockets = Path.cwd()
        if not link_sockets(servers, sockets):
            # The forwarder ends with this process.
            reach(sockets, servers, token=self._settings.auth.internal_file, tls=self._settings.tls_dir)
        self._engine = Engine(
            model,
            self._settings.input,
            len(servers),
            threads=trainer.threads,
            gradient_merge=trainer.gradient_merge,
            group=self._settings.data.group,
        )
        self._watchdog = ServerWatchdog(
            self._client, self._trainer_id, self._generation, servers, str(sockets), reply.lease_seconds
        )
        self._watchdog.start()
        self._engine.connect(self._trainer_id)
        if reply.verdict == control.JoinReply.INITIALISE:
            self._initialise(load=reply.load, take_over=reply.take_over, dense_of=reply.dense_of)
        saver_store = self._open_store(RetryPolicy(_SAVER_RETRY_SHARE * reply.save_seconds, give_up=self._may_go))
        self._work = TaskWork(
            self._settings, self._engine, self._watchdog, self._conversions, self._source, self._store, saver_store
        )
        log.info("trainer %d works in generation %d", self._trainer_id, self._generation)
        try:
            self._do_tasks()
            if self._leave():
                log.info("trainer %d stays until its training is handed over", self._trainer_id)
                self._keep_running = True
                self._do_tasks()
        except ScratchFailed as failed:
            # Not reported as a failure of the task, because a few of those stop the pass.
            log.error("trainer %d gives back what it holds and ends: %s", self._trainer_id, failed)  # noqa: TRY400 (one sentence)
            # Released before the leave: otherwise the answer to the next renewal would be an order to rejoin.
            self._watchdog.release_all()
            self._leave(str(failed))
            return 1
        self._engine.close()
        return 0

    def _network_is_usable(self) -> bool:
        """True unless a network of the user's own is unusable. Checked before the trainer joins, or it would fail during a save."""
        model = self._settings.model
        if model.network.name == OWN:
            with preserve_sigterm_handler():
                start_paddle(model)
            try:
                inspect_own(model, self._settings.input)
            except NetworkRefused as refused:
                log.error("this network cannot be trained: %s", refused)  # noqa: TRY400 (one sentence)
                return False
        return True

    def _open_store(self, retry: RetryPolicy) -> Store:
        return open_store(self._settings.store, tokens=self._settings.auth.internal(), retry=retry)

    def _leave(self, reason: str = "") -> bool:
        """Leave the training, with retries. Return True if the master needs this trainer for a handover."""
        leaver = self._member()
        if reason:
            leaver.reason, leaver.table_unchanged = reason, not self._work.stepped
        gives_up_at = time.monotonic() + self._leave_timeout
        while True:
            try:
                answer = self._client.call_once("LeaveTrainer", leaver)
            except grpc.RpcError as failed:  # noqa: PERF203 (trying again is what it is for)
                log.warning(
                    "the master did not answer the leave of trainer %d: %s", self._trainer_id, failed.code().name
                )
                if not self._leaving or time.monotonic() > gives_up_at:
                    return False
                time.sleep(0.5)
            else:
                return self._leaving and answer.keep_running

    def _join(self) -> control.JoinReply | None:
        said = ""
        while not self._leaving:
            training = self._settings.training
            request = control.JoinRequest(name=self._name, trainer_id=self._trainer_id, training=training)
            reply = self._client.call("JoinTrainer", request, give_up=lambda: self._leaving)
            if reply is None:
                return None
            self._trainer_id = reply.trainer_id
            may_end = self._foreign_master.may_end(wrong_training=reply.wrong_training)
            ends = may_end and self._settings.exit_when_done
            idle = reply.verdict == control.JoinReply.LEAVE and not ends
            if reply.verdict != control.JoinReply.WAIT and not idle:
                return reply  # type: ignore[no-any-return]
            if reply.reason != said:
                said = reply.reason
                log.info("%s", said)
            time.sleep(2 if idle else 0.2)
        return None

    def _member(self) -> control.Membership:
        return control.Membership(trainer_id=self._trainer_id, generation=self._generation)

    def _initialise(self, *, load: bool, take_over: str, dense_of: int) -> None:
        member = self._member()
        if load:
            with delegated_to_parent(self._watchdog, self._scratch / WATCH_FILE):
                if dense_of:
                    self._load_log(dense_of)
                    member.rows.extend(self._engine.count_rows())
                    self._handle_ack(self._client.call("ReportInitialised", member))
                    return
                if take_over:
                    member.taken_over = self._take_over(take_over)
                else:
                    self._engine.load("load")
                # Servers do not report what they loaded, so the supervisors count the rows of this save.
                self._engine.save("verify", mode="checkpoint")
        else:
            self._engine.initialise()
        self._handle_ack(self._client.call("ReportInitialised", member))

    def _load_log(self, version: int) -> None:
        """Load the tables that the supervisors have prepared, with the dense values of a version's network. Raises StoreError,
        ManifestDamaged.
        """
        self._engine.load("load")
        folder = self._scratch / layout.NETWORK_FOLDER
        for entry in read_version(self._store, version).model_files:
            if entry.path in layout.network_files(version):
                fetch(self._store, entry, folder / Path(entry.path).name)
        self._engine.set_dense_of(folder / Path(layout.NETWORK[0]).stem)

    def _take_over(self, checkpoint: str) -> str:
        """Load the tables of another model and take over its network as far as it fits. Raises StoreError, ManifestDamaged."""
        manifest = read_checkpoint(self._store, checkpoint)
        assert manifest.model is not None
        network = layout.checkpoint_folder(checkpoint) + f"/{layout.NETWORK_FOLDER}/"
        folder = self._scratch / layout.NETWORK_FOLDER
        for entry in manifest.files:
            if entry.path.startswith(network):
                fetch(self._store, entry, folder / Path(entry.path).name)
        self._engine.load_tables("load")
        before = Names(manifest.model.slots, manifest.model.numbers)
        return self._engine.initialise_from(folder / Path(layout.NETWORK[0]).stem, before)

    def _handle_ack(self, answer: control.Acknowledgement) -> None:
        if answer.rejoin:
            log.warning("rejoining: %s", answer.reason)
            raise SystemExit(REJOIN)

    def _lease(self, *, prefetch: bool = False) -> control.Task | None:
        """Wait for a task. Return None when it is time to leave or, with `prefetch`, if no task can be prepared now."""
        if self._given is not None:
            given, self._given = self._given, None
            return given
        while not self._may_go():
            request = self._lease_request()
            request.prefetch, request.hold_seconds = prefetch, 0 if prefetch else _HOLD_SECONDS
            asked = time.monotonic()
            reply = self._client.call("LeaseTask", request, give_up=self._may_go)
            if reply is None or reply.verdict == control.LeaseReply.LEAVE:
                return None
            if reply.verdict == control.LeaseReply.REJOIN:
                self._handle_ack(control.Acknowledgement(rejoin=True, reason=reply.reason))
            if reply.verdict == control.LeaseReply.WORK:
                self._watchdog.hold(reply.task.attempt)
                return reply.task  # type: ignore[no-any-return]
            if prefetch:
                return None
            # Minus the time for which the master has blocked the call.
            time.sleep(max(0.0, min(max(reply.wait_seconds, 0.05), 5) - (time.monotonic() - asked)))
        return None

    def _lease_request(self) -> control.LeaseRequest:
        return control.LeaseRequest(
            trainer_id=self._trainer_id,
            generation=self._generation,
            converted=self._work.converted_tasks(),
            reads_further=True,
        )

    def _do_tasks(self) -> None:
        task = self._lease()
        dataset: Any = None
        while task is not None:
            self._work.forget_other_passes(task)
            following: control.Task | None = None
            following_dataset: Any = None
            if task.phase == control.ANALYZE:
                self._report(task, partial(self._work.analyze, task), go_on=True)
            elif task.phase == control.CHECK:
                self._report(task, partial(self._work.check, task), go_on=True)
            elif task.phase in (control.TRAIN, control.EVALUATE):
                if dataset is None:
                    dataset = self._prepare(task)
                if dataset is not None:
                    following = self._lease(prefetch=True)
                    following_dataset = None if following is None else self._prepare(following)
                    self._report(task, partial(self._work.round, task, dataset), go_on=following_dataset is None)
                    self._work.release(dataset)
            else:
                self._report(task, partial(self._work.save, task))
            if following_dataset is None:
                following = self._lease()
            task, dataset = following, following_dataset

    def _prepare(self, task: control.Task) -> Any:
        """Start loading the task's dataset. If the task cannot be converted, report the failure and return None."""
        try:
            return self._work.prepare(task)
        except ScratchFailed:
            raise
        except Exception as failed:
            log.exception("task %s cannot be prepared", task.id)
            self._report(task, partial(_raise, failed))
            return None

    def _report(self, task: control.Task, work: Callable[[], control.TaskResult], *, go_on: bool = False) -> None:
        """Do the work and report its result. `go_on`: the answer of the master may have the next task."""
        began, broken = time.monotonic(), False
        try:
            result = work()
        except ScratchFailed:
            raise
        except Exception as failed:
            log.exception("task %s failed", task.id)
            broken = isinstance(failed, EngineBroken)
            result = control.TaskResult(error=str(failed) or type(failed).__name__)
            result.store_unavailable = isinstance(failed, StoreUnavailable)
            result.columns_refused = isinstance(failed, ColumnsRefused)
            if task.phase in (control.SAVE, control.SCORE):
                result.table_unchanged = not self._work.stepped
            if result.store_unavailable:
                # The master leases the task again at once, and a full store fails at once, too.
                time.sleep(_STORE_AWAY_SECONDS)
        result.trainer_id = self._trainer_id
        result.generation = self._generation
        result.task_id = task.id
        result.attempt = task.attempt
        result.seconds = time.monotonic() - began
        # Released before the report: afterwards the lease is gone, and the answer to a renewal would be an order to rejoin.
        self._watchdog.release(task.attempt)
        self._watchdog.running("")
        if go_on and not broken and not self._may_go():
            result.next.CopyFrom(self._lease_request())
        answer = self._client.call("ReportTask", result)
        self._handle_ack(answer)
        if broken:
            log.warning("trainer %d begins anew: its engine was stopped in the middle of a batch", self._trainer_id)
            # The leave releases the task that it had leased ahead, which then does not count as a lost lease.
            self._watchdog.release_all()
            self._leave()
            raise SystemExit(REJOIN)
        if answer.next.verdict == control.LeaseReply.WORK:
            self._given = answer.next.task
            self._watchdog.hold(self._given.attempt)


def _raise(failed: Exception) -> control.TaskResult:
    raise failed


def main() -> None:
    die_with_parent(int(sys.argv[3]))
    settings = TrainerFile.model_validate_json(Path(sys.argv[1]).read_text())
    configure_from_environment("trainer")
    # Paddle prints settings to stdout at every dataset run.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = 1
    try:
        scratch = Path(settings.trainer.scratch_dir)
        with on_scratch(scratch):
            prepare_environment(scratch / "engine")
        child = TrainerProcess(sys.argv[2], settings)
        for each in (LEAVE_SIGNAL, signal.SIGTERM):
            signal.signal(each, child.stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = child.run()
    except SystemExit as end:
        code = int(end.code or 0)
    except ScratchFailed as failed:
        log.error("the trainer ends: %s", failed)  # noqa: TRY400 (one sentence)
    except BaseException:
        log.exception("the trainer failed")
    logging.shutdown()
    # Paddle's threads crash during an orderly shutdown of the interpreter.
    os._exit(code)


if __name__ == "__main__":
    main()
