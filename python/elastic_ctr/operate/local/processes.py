"""Starts the processes of a local run and restarts them, as a cluster would: the end of a role ends no other role."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from elastic_ctr.operate.local.endpoints import answers
from elastic_ctr.operate.local.plan import Role, RunPlaces
from elastic_ctr.runtime.child_process import end_children, log_lines, start_child
from elastic_ctr.runtime.growing_pause import growing_pause

log = logging.getLogger(__name__)

_STABLE_SECONDS = 10.0
_LONGEST_PAUSE = 10.0
_REFUSED_PAUSE = 60.0
_MOST_FAILURES = 8
_LAST = "cube-transfer"
REFUSED = 2
"""Exit code of a role that cannot start with what it was given: it is started again after a longer pause."""


@dataclass
class Restart:
    """An unexpected end of a role, and the seconds until it was healthy again."""

    role: str
    name: str
    at: float
    reason: str
    seconds: float | None = None


# No request waits for these roles. Training works in bursts that fill all cores, so it yields to the roles that coordinate it.
_NICENESS = {"trainer": 10, "pserver": 10, "cube-builder": 10, "master": 5, "cube-transfer": 5}


@dataclass
class _Running:
    role: Role
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    restart_at: float = 0.0
    failures: int = 0
    problem: str = ""
    done: bool = False
    restart: Restart | None = None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class Supervisor:
    """Owns every process of a run. `watch` must be called often; nothing happens between calls. A thread that calls a method must
    outlive the roles, because they die with the thread that started them.
    """

    places: RunPlaces
    roles: list[Role]
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    restarts: list[Restart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all = {role.name: _Running(role) for role in self.roles}
        self._lock = threading.Lock()

    def start(self) -> None:
        for each in self._all.values():
            self._start(each)

    def _start(self, each: _Running) -> None:
        log_file = self.places.log_file(each.role)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        program, config = Path(sys.executable).parent / "elastic-ctr", self.places.config_file(each.role)
        environment = {**os.environ, **self.environment, "POD_NAME": each.role.name}
        command = [str(program), each.role.command, "--config", str(config)]
        # Roles stay in this session: a kernel with autogroups divides a core among sessions first, and predictions would wait tens of
        # milliseconds for training, whatever the niceness of both.
        each.process = start_child(command, own_group=True, log=log_file, environment=environment)
        each.started_at = self.clock()
        # A role with a higher niceness gets a lower share of the cores if all are busy.
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, each.process.pid) + _NICENESS.get(each.role.command, 0)
            os.setpriority(os.PRIO_PROCESS, each.process.pid, niceness)

    def pids(self) -> dict[str, int]:
        """Return the process ids of running roles by name."""
        return {name: each.process.pid for name, each in self._all.items() if each.process and each.runs}

    def problems(self) -> list[str]:
        """Return a sentence for each role that does not run; it is restarted after a pause nevertheless."""
        return [each.problem for each in self._all.values() if each.problem]

    def watch(self) -> None:
        """Restart roles that ended."""
        with self._lock:
            for each in self._all.values():
                self._watch(each)

    def _watch(self, each: _Running) -> None:
        if each.done:
            return
        now = self.clock()
        if each.process is not None:
            code = each.process.poll()
            if code is None:
                health = each.role.health
                if each.restart is not None and each.restart.seconds is None and (health is None or answers(health)):
                    each.restart.seconds = round(now - each.restart.at, 3)
                if now - each.started_at > _STABLE_SECONDS:
                    each.failures, each.problem = 0, ""
                return
            each.process = None
            if code == 0 and each.role.ends:
                each.done = True
                return
            self._plan_restart(each, code, now)
        if now >= each.restart_at:
            try:
                self._start(each)
            except OSError as failed:
                each.problem = f"{each.role.name} cannot be started: {failed}"
                each.restart_at = now + _LONGEST_PAUSE

    def _plan_restart(self, each: _Running, code: int, now: float) -> None:
        if code == REFUSED:
            each.problem = f"{each.role.name} cannot run: {self.last_words(each.role)}"
            each.restart_at = now + _REFUSED_PAUSE
            log.warning("%s", each.problem)
            return
        each.failures += 1
        if each.failures >= _MOST_FAILURES:
            each.problem = (
                f"{each.role.name} ended {each.failures} times in a row within {_STABLE_SECONDS:.0f} s of its start; "
                f"{self.places.log_file(each.role)} says why, last: {self.last_words(each.role)}"
            )
        each.restart_at = now + growing_pause(each.failures - 1, 1.0, _LONGEST_PAUSE)
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        log.warning("%s ended (%s) and is started again", each.role.name, reason)
        each.restart = Restart(each.role.command, each.role.name, now, reason)
        self.restarts.append(each.restart)

    def last_words(self, role: Role) -> str:
        return "\n".join(log_lines(self.places.log_file(role))[-3:]) or "it left an empty log"

    def stop(self, grace_seconds: float = 15.0) -> None:
        """SIGTERM all roles, then SIGKILL those still running. cube-transfer ends last: draining cube pods read its document."""
        with self._lock:
            running = [each for each in self._all.values() if each.runs]
            ends = time.monotonic() + grace_seconds
            for last in (False, True):
                ending = [each.process for each in running if (each.role.command == _LAST) == last and each.process]
                end_children(ending, max(0.1, ends - time.monotonic()))
            for each in self._all.values():
                each.process = None
                each.done = True
