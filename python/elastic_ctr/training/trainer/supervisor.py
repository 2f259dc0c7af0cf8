"""The supervisor of a training process: it restarts the process when that ends to rejoin, and signals it to leave.

Kubernetes would restart it with a growing back-off, but a rejoin should take seconds.
"""

import json
import logging
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.runtime.child_process import end_child, python_module, start_child
from elastic_ctr.runtime.mlflow import Reporter, TrackingServer
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.trainer.converted_files import ScratchFailed, on_scratch
from elastic_ctr.training.trainer.watchdog import REJOIN, ServerWatchdog

log = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
WATCH_FILE = "watch.json"
STOPPED = 143
# Exit code for which a restart does not help: the settings differ from the master's.
_REFUSED = 2
_SHORTEST_LIFE = 1.0
# Seconds from a delegation to the first round of the watchdog: shorter than a lease, longer than a stream's micro-pass.
_DELEGATED_AFTER = 1.0
# Not SIGTERM: during the import of Paddle its own handler of SIGTERM is in place, which ends the process or hangs it.
LEAVE_SIGNAL = signal.SIGUSR1
_STOPPED_BY_A_SIGNAL = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


class TrainerSupervisor:
    """Owns one training process at a time."""

    def __init__(self, name: str, settings: TrainerFile, grace_seconds: float = 600) -> None:
        self._name = name
        self._settings = settings
        self._scratch = Path(settings.trainer.scratch_dir)
        self._grace_seconds = grace_seconds
        self._child: int | None = None
        self._starts = 0

    def status(self) -> dict[str, Any]:
        return {"name": self._name, "training": self._settings.training, "child": self._child, "starts": self._starts}

    def run(self, stop: threading.Event) -> int:
        """Run until the training process ends for good. Return its exit code, or 143 if `stop` was set.

        143 is 128 + SIGTERM, so that Volcano does not count a stopped pod as a completed one.
        """
        try:
            return self._run(stop)
        except ScratchFailed as failed:
            # Kubernetes restarts the pod, which helps when the disk has room again or on another machine.
            log.error("the trainer ends: %s", failed)  # noqa: TRY400 (one sentence)
            return 1

    def _run(self, stop: threading.Event) -> int:
        file = self._scratch / SETTINGS_FILE
        with on_scratch(file):
            self._scratch.mkdir(parents=True, exist_ok=True)
            file.write_text(self._settings.model_dump_json(by_alias=True))
        while True:
            with on_scratch(self._scratch):
                # A dead process may have left its watchdog state.
                (self._scratch / WATCH_FILE).unlink(missing_ok=True)
            began = time.monotonic()
            command = python_module("elastic_ctr.training.trainer.process", str(file), self._name, str(os.getpid()))
            child = start_child(command, binds_itself=True)
            self._child, self._starts = child.pid, self._starts + 1
            code = self._wait(child, stop)
            if stop.is_set():
                return STOPPED
            waits = code == 0 and not self._settings.exit_when_done
            if code != REJOIN and not waits:
                if code:
                    log.error("the training process ended with %s", code)
                # A crash of the engine ends only this trainer. The master decides whether the table is still valid.
                return code if code in (0, _REFUSED) else 1
            stop.wait(max(0.0, _SHORTEST_LIFE - (time.monotonic() - began)))

    def _wait(self, child: "subprocess.Popen[bytes]", stop: threading.Event) -> int:
        told_at = None
        duty = _DelegatedWatchdog(self._settings, self._scratch / WATCH_FILE, child.pid)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(0.2)
            if reason := duty.round():
                log.warning("the training process is ended to rejoin: %s", reason)
                end_child(child)
                return REJOIN
            if stop.is_set() and told_at is None:
                told_at = time.monotonic()
                child.send_signal(LEAVE_SIGNAL)
            if told_at is not None and time.monotonic() - told_at > self._grace_seconds:
                log.warning("the training process did not leave in %.0f s and is killed", self._grace_seconds)
                child.kill()


class _DelegatedWatchdog:
    """Runs the training process's watchdog during trainings, saves and loads, in which the engine may block the GIL."""

    def __init__(self, settings: TrainerFile, file: Path, child: int) -> None:
        self._settings = settings
        self._file = file
        self._child = child
        self._client: MasterClient | None = None
        self._watchdog: ServerWatchdog | None = None
        self._reasons: list[str] = []
        self._written = 0
        self._next = 0.0

    def round(self) -> str:
        """Run one round of the watchdog, at most one a period. Return the reason if the training process must rejoin, else ""."""
        written = self._time_written()
        if written != self._written:
            # The state is new or gone. The child ran its own watchdog until now, and a stream replaces the state soon.
            self._written, self._watchdog, self._reasons = written, None, []
            self._next = time.monotonic() + _DELEGATED_AFTER
        # The leases of a process stopped by a signal are not renewed, so that it counts as lost.
        if not written or time.monotonic() < self._next or psutil.Process(self._child).status() in _STOPPED_BY_A_SIGNAL:
            return ""
        if self._watchdog is None:
            try:
                state = json.loads(self._file.read_text())
            except (OSError, ValueError):
                return ""
            self._client = self._client or MasterClient(self._settings.master_address, self._settings.auth.internal())
            self._watchdog = ServerWatchdog(self._client, **state, end=self._reasons.append)
        self._watchdog.round()
        self._next = time.monotonic() + self._watchdog.period
        # The result is stale if the process runs its own watchdog again, or has delegated another state.
        return self._reasons[0] if self._reasons and self._time_written() == written else ""

    def _time_written(self) -> int:
        """Return the modification time of the state's file in ns; 0 without a file."""
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0


_HOST_METRICS_SECONDS = 15.0


class HostMetrics(Reporter):
    """A reporter in the trainer's supervisor. It waits for the master to begin the run."""

    def __init__(self, server: TrackingServer, name: str, training: str, experiment: str) -> None:
        super().__init__(_HOST_METRICS_SECONDS, self._send, server)
        self._name = name
        self._training = training
        self._experiment = experiment
        self._run: str | None = None

    def _send(self) -> None:
        """Report the machine's CPU in per cent of all cores since the last report, and the bytes of this pod's processes."""
        own = psutil.Process()
        memory = 0
        for each in (own, *own.children(recursive=True)):
            try:
                memory += each.memory_info().rss
            except psutil.NoSuchProcess:  # noqa: PERF203 (each may have ended)
                pass
        metrics = {
            f"host/{self._name}/cpu_percent": psutil.cpu_percent(),
            f"host/{self._name}/memory_bytes": float(memory),
        }
        run, self._run = self._run, None
        if run is None:
            run = self._server.run_of(self._training, self._experiment, begin=False)
        if run is not None:
            self._server.log(run, metrics, int(time.time()))
        # Kept only after a success, so that a deleted run is looked up again.
        self._run = run
