"""The supervisor of Paddle's server process: health, recovery, and the files of saves.

The server process never releases the GIL and never exits by itself, and its table is lost when it ends. The supervisor reports its
state to the master every half second. A new generation is a new server process with a new socket. The supervisor counts or uploads
the folders that the server process saves to the scratch folder.
"""

import json
import logging
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import psutil

from elastic_ctr.config.role_files import PserverFile
from elastic_ctr.runtime.child_process import end_child, log_lines, python_module, start_child
from elastic_ctr.runtime.growing_pause import growing_pause
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import ForeignMasterGrace, MasterClient
from elastic_ctr.training.control.forwarder import ping_through
from elastic_ctr.training.control.proof import ProofRefused, new_life
from elastic_ctr.training.control.server_call import ping
from elastic_ctr.training.control.server_sockets import address_on_this_machine, expose, socket_name
from elastic_ctr.training.pserver.folders import Folders
from elastic_ctr.training.pserver.process import REFUSED
from elastic_ctr.training.pserver.table_compaction import COMPACTION, Compactor

log = logging.getLogger(__name__)

STOPPED = 143
_PERIOD = 0.5
_RETRY_SECONDS = 2.0
_VERIFY = "verify-"
_LINES_OF_A_LOST_SERVER = 60
_SILENT_SECONDS = 60.0
_DAMAGED_SECONDS = 2.0
# An upgrade deletes the pods of a training and its master at about the same time. The first master that answers may be the old one,
# which does not know of a handover, so the supervisor waits a few seconds for the new one.
_LINGER_SECONDS = 5.0


class PserverSupervisor:
    """Owns one server process at a time. `host` is its address for other pods."""

    def __init__(self, index: int, settings: PserverFile, *, host: str, client: MasterClient, store: Store) -> None:
        self._index = index
        self._settings = settings
        self._host = host
        self._scratch = Path(settings.pserver.scratch_dir)
        self._client = client
        self._store = store
        self._foreign_master = ForeignMasterGrace()
        self._idle = ""
        self._leaving = False
        self._keep_running = False
        self._leave_timeout = 0.0
        self._incarnation = uuid.uuid4().hex
        self._generation = 0
        # Random name of this generation's server process, which is part of its address.
        self._life = ""
        self._served = False
        self._child: subprocess.Popen[bytes] | None = None
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._preparing: Future[int] | None = None
        self._fetched_rows = 0
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jobs")
        self._compactor = Compactor(index, settings)
        self._running: dict[str, Future[control.JobResult]] = {}
        self._results: dict[str, control.JobResult] = {}
        self._retry_at: dict[str, float] = {}
        self._error = ""
        # The reason why trainers cannot connect through the forwarder, and when the next try is due.
        self._unreached, self._try_at = "", 0.0
        self._wanted: set[str] = set()
        self._failed_job = ""
        self._damaged = ""
        self._failed_starts = 0
        self._reported_dead_pid = 0
        self._answered_at = 0.0
        self._alone_since: float | None = None

    def status(self) -> dict[str, Any]:
        return {
            "index": self._index,
            "incarnation": self._incarnation,
            "generation": self._generation,
            "child": None if self._child is None else self._child.pid,
            "alive": self._alive(),
            "jobs": sorted(self._running),
            "idle": self._idle,
            "error": self._unreached or self._error,
        }

    def run(self, stop: threading.Event) -> int:
        """Run until training is over (exit code 0) or `stop` is set (143).

        143 is 128 + SIGTERM, so that Volcano does not count a stopped pod as a completed one. During a mid-pass handover the server
        process goes on until the table is saved.
        """
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            while not stop.is_set():
                began = time.monotonic()
                if self._turn():
                    return 0
                stop.wait(max(0.0, self._pause() - (time.monotonic() - began)))
            self._hand_over()
            return STOPPED
        finally:
            self._end_child()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._compactor.stop()

    def _hand_over(self) -> None:
        """Go on while the master still needs this table. Calls to an unreachable master are retried for `leave_timeout_seconds`."""
        self._leaving = True
        began = time.monotonic()
        gives_up_at = began + self._leave_timeout
        # Without a timeout no handover is possible, so the process ends at once.
        while self._leave_timeout and self._alive():
            if self._turn():
                return
            if self._alone_since is None:
                if not self._keep_running and time.monotonic() - began > _LINGER_SECONDS:
                    return
                gives_up_at = time.monotonic() + self._leave_timeout
            elif time.monotonic() > gives_up_at:
                return
            time.sleep(self._pause())

    def _pause(self) -> float:
        # Poll faster while the master waits for a job. A compaction takes long, and nothing waits for it.
        waited_for = [each for each in self._running if COMPACTION not in each]
        return 0.1 if waited_for or (self._preparing is not None and not self._leaving) else _PERIOD

    def _turn(self) -> bool:
        try:
            over = self._sync()
        except grpc.RpcError as failed:
            # The server process keeps its table while the master is down.
            if self._alone_since is None:
                log.warning("the master does not answer: %s: %s; retrying", failed.code().name, failed.details())
                self._alone_since = time.monotonic()
            return False
        if self._alone_since is not None:
            log.info("the master answers again, after %.0f s", time.monotonic() - self._alone_since)
            self._alone_since = None
        return over

    def _sync(self) -> bool:
        """Send the state to the master and follow its orders. Return True if training is over. Raises grpc.RpcError."""
        orders = self._client.call_once("SyncPserver", self._state(), timeout=10)
        may_end = self._foreign_master.may_end(wrong_training=orders.wrong_training)
        if orders.leave:
            return self._leave(orders.reason or "training is over", may_end=may_end and self._settings.exit_when_done)
        self._leave_timeout, self._keep_running = orders.leave_timeout_seconds, orders.keep_running
        if orders.reason and orders.reason != self._idle:
            log.info("%s", orders.reason)
        self._idle = orders.reason
        if orders.generation != self._generation:
            self._begin(orders.generation)
        if self._child is None and orders.start:
            self._start_when_ready(orders.checkpoint)
        self._work(orders.jobs)
        return False

    def _leave(self, reason: str, *, may_end: bool) -> bool:
        """Return True if this process is to end. Otherwise drop the table and wait for another generation."""
        if may_end or self._leaving:
            log.info("%s", reason)
            return True
        if self._idle != reason:
            log.info("%s; waiting for more work", reason)
            self._idle, self._unreached = reason, ""
            self._end_child()
            self._compactor.end()
            # So that the next orders start a new server process, even in the same generation.
            self._generation = 0
        return False

    def _state(self) -> control.PserverState:
        self._end_without_forwarder()
        serving = self._serving()
        if serving:
            self._answered_at = time.monotonic()
        elif self._alive() and time.monotonic() - self._answered_at > _SILENT_SECONDS:
            # A server that cannot listen logs an error but keeps running, and one that hangs blocks every trainer.
            log.error("the server process has not answered for %.0f s and is ended", _SILENT_SECONDS)
            end_child(self._child)  # type: ignore[arg-type]
        # Another start would be refused, too. So the error stays in the state, and the process does not count as lost.
        refused = self._child is not None and self._child.poll() == REFUSED
        lost = self._child is not None and not self._alive() and not refused
        if refused and self._child is not None and self._reported_dead_pid != self._child.pid:
            self._reported_dead_pid = self._child.pid
            self._error = self._last_line()
            log.error("%s", self._error)
        if lost and self._child is not None and self._reported_dead_pid != self._child.pid:
            # Counted once: the process is reported as lost until the master begins another generation.
            self._reported_dead_pid = self._child.pid
            self._failed_starts += 1
            self._error = self._end_of_child(self._child.returncode)
            log.error("%s", self._error)
            # Copied, because its folder is deleted with the next generation.
            for line in self._log_lines()[-_LINES_OF_A_LOST_SERVER:]:
                log.error("server process: %s", line)
        for name, future in list(self._running.items()):
            if future.done():
                del self._running[name]
                self._results[name] = future.result()
                if self._results[name].error:
                    self._error, self._failed_job = self._results.pop(name).error, name
                    self._retry_at[name] = time.monotonic() + _RETRY_SECONDS
                else:
                    self._error = ""
        return control.PserverState(
            index=self._index,
            incarnation=self._incarnation,
            host=self._host,
            admin_port=self._settings.pserver.admin_port,
            generation=self._generation,
            serving=not lost and serving,
            lost=lost,
            results=[result for name, result in self._results.items() if name in self._wanted],
            error=self._unreached or self._error,
            training=self._settings.training,
            leaving=self._leaving,
            damaged_checkpoint=self._damaged,
            memory_bytes=self._memory(),
            fetched_rows=self._fetched_rows,
            server="" if self._child is None else self._server(),
        )

    def _server(self) -> str:
        """Return the address of this generation's server process for trainers."""
        if not self._settings.forwarded:
            return address_on_this_machine(self._socket().absolute())
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._settings.pserver.port}/{self._life}"

    def _socket(self) -> Path:
        return self._folder() / socket_name(self._index)

    def _end_of_child(self, code: int) -> str:
        if self._forwarder is not None and (ended := self._forwarder.poll()) is not None:
            return f"its forwarder ended with {ended}, as the log of pserver {self._index} says, and its server process with it"
        return f"its server process ended with {code}: {self._last_words()}"

    def _memory(self) -> int:
        """Return the resident bytes of the server process; 0 without one."""
        try:
            return int(psutil.Process(self._child.pid).memory_info().rss) if self._child is not None else 0
        except psutil.Error:
            return 0

    def _folder(self) -> Path:
        return self._scratch / f"generation-{self._generation}-{self._life[:8]}"

    def _begin(self, generation: int) -> None:
        """Begin a generation with a new server process, because Paddle's load does not clear a table."""
        self._end_child()
        self._compactor.end()
        old = self._folder()
        self._generation, self._life, self._served = generation, new_life(), False
        self._unreached = ""
        self._running.clear()
        self._results.clear()
        self._retry_at.clear()
        self._preparing = None
        self._damaged = ""
        shutil.rmtree(old, ignore_errors=True)
        self._folder().mkdir(parents=True, exist_ok=True)
        log.info("pserver %d enters generation %d", self._index, generation)

    def _folders(self) -> Folders:
        return Folders(self._folder(), self._store, self._settings.model, self._index, self._settings.pservers)

    def _start_when_ready(self, checkpoint: str) -> None:
        if self._preparing is None:
            # A short pause, because damaged files may be restored at any time.
            pause = _DAMAGED_SECONDS if self._damaged else growing_pause(self._failed_starts, 1.0, 30.0)
            self._preparing = self._pool.submit(_prepare, self._folders(), checkpoint, pause)
        if not self._preparing.done():
            return
        try:
            self._fetched_rows = self._preparing.result()
        except (StoreError, ValueError, OSError) as failed:
            self._error = f"checkpoint {checkpoint} cannot be fetched: {failed}"
            log.warning("%s", self._error)
            self._damaged = checkpoint if isinstance(failed, NotInStore | ManifestDamaged) else ""
            self._failed_starts += 0 if self._damaged else 1
            self._preparing = None
            return
        if self._damaged:
            self._damaged = self._error = ""
        self._start_child()

    def _start_child(self) -> None:
        spec = {
            "model": self._settings.model.model_dump(mode="json", by_alias=True),
            "input": asdict(self._settings.input),
            "servers": self._settings.pservers,
            "index": self._index,
            "scratch": str(self._folder()),
            "parent": os.getpid(),
        }
        file = self._folder() / "spec.json"
        file.write_text(json.dumps(spec))
        self._answered_at = time.monotonic()
        command = python_module("elastic_ctr.training.pserver.process", str(file))
        self._child = start_child(command, binds_itself=True, log=self._folder() / "server.log")
        if self._settings.forwarded:
            settings = self._settings
            listen = f"{settings.host}:{settings.pserver.port}"
            self._forwarder = expose(
                self._socket(), listen=listen, life=self._life, token=settings.auth.internal_file, tls=settings.tls_dir
            )

    def _alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _end_without_forwarder(self) -> None:
        """End the server process if its forwarder has ended: trainers have lost their connections, and Paddle would silently go on."""
        if self._forwarder is None or self._forwarder.poll() is None or not self._alive():
            return
        log.error("the forwarder ended with %s; its server process is ended, too", self._forwarder.returncode)
        reason = self._end_of_child(0)
        end_child(self._child)  # type: ignore[arg-type]
        if not self._served:
            # Its port is taken, or it has no secret. No trainer was connected, so no recovery is needed; it starts again after a pause.
            self._error = reason
            self._child = self._forwarder = self._preparing = None
            self._failed_starts += 1

    def _serving(self) -> bool:
        if not self._alive():
            return False
        try:
            ping(self._socket())
        except OSError:
            return False
        if not self._served and not self._is_reached():
            # The server process itself is healthy.
            self._answered_at = time.monotonic()
            return False
        self._served = True
        if self._failed_starts:
            self._failed_starts, self._error = 0, ""
        return True

    def _is_reached(self) -> bool:
        """True if a trainer could connect through the forwarder. Otherwise the server does not count as serving, so no trainer joins."""
        token, tls = self._settings.auth.internal_file, self._settings.tls_dir
        if self._forwarder is None or token is None:
            return True
        if time.monotonic() < self._try_at:
            return False
        self._try_at = time.monotonic() + _PERIOD
        try:
            ping_through(self._server(), Path(token), None if tls is None else Path(tls))
        except ConnectionRefusedError:
            # It starts, or it has ended.
            return False
        except (OSError, ValueError, ProofRefused) as failed:
            self._unreached = f"trainers do not get through its forwarder: {failed}"
            return False
        self._unreached = ""
        return True

    def _log_lines(self) -> list[str]:
        return log_lines(self._folder() / "server.log")

    def _last_line(self) -> str:
        return (self._log_lines() or ["the server process refused its settings and left no log"])[-1][:500]

    def _last_words(self) -> str:
        lines = self._log_lines()
        if not lines:
            return "it left no log"
        errors = [line.strip()[:200] for line in lines if "Error" in line or "error" in line]
        return errors[-1] if errors else "no error in its log"

    def _end_child(self) -> None:
        for child in filter(None, (self._child, self._forwarder)):
            # Without grace: the server process never releases the GIL, so it ignores SIGTERM.
            end_child(child)
        self._child = self._forwarder = None

    def _work(self, jobs: Sequence[control.Job]) -> None:
        self._wanted = {job.id for job in jobs}
        saves = {_save_of(name) for name in self._wanted if COMPACTION not in name}
        for name in [each for each in self._running if COMPACTION in each and each not in self._wanted]:
            # The master has given the compaction up, and the next one must not wait for it.
            self._compactor.end()
            del self._running[name]
        if self._failed_job and self._failed_job not in self._wanted:
            self._failed_job = self._error = ""
        # Results of the last save are kept, because a restarted master requests them again after their folders are deleted.
        self._results = {
            name: result
            for name, result in self._results.items()
            if name in self._wanted or (not name.startswith(_VERIFY) and (not saves or _save_of(name) in saves))
        }
        for job in jobs:
            waits = time.monotonic() < self._retry_at.get(job.id, 0)
            if job.id not in self._running and job.id not in self._results and not waits:
                self._running[job.id] = self._begin_job(job)

    def _begin_job(self, job: control.Job) -> Future[control.JobResult]:
        if job.kind == control.COMPACT:
            return self._compactor.submit(self._folder(), job)
        return self._pool.submit(_do, self._folders(), job)


def _save_of(job: str) -> str:
    """Return the save of a job, the first two parts of its id `<pass>-<generation>-…`."""
    return "-".join(job.split("-")[:2])


def _prepare(folders: Folders, checkpoint: str, pause: float) -> int:
    """Fetch the checkpoint after a pause. Return the number of rows that the server will load."""
    time.sleep(pause)
    return folders.fetch_checkpoint(checkpoint) if checkpoint else 0


def _do(folders: Folders, job: control.Job) -> control.JobResult:
    """Do a job. It never raises: the result reports a failure, and the job is retried."""
    began = time.monotonic()
    try:
        if job.kind == control.COUNT:
            result = folders.count(job.folder)
        elif job.kind == control.CHECKPOINT:
            result = folders.upload_checkpoint(job.folder, job.checkpoint)
        else:
            result = folders.export(job)
        result.id, result.seconds = job.id, time.monotonic() - began
    except Exception as failed:
        log.exception("job %s failed", job.id)
        return control.JobResult(id=job.id, error=f"{job.folder}: {failed}")
    log.info("job %s took %.2f s", job.id, time.monotonic() - began)
    return result
