"""Runs the whole pipeline as real processes of this machine, and lets tests hurt them."""

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil
import yaml
from bench.processes import engine_of, first_child

from elastic_ctr.config.load import settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.processes import Supervisor
from elastic_ctr.operate.local.session import Session
from elastic_ctr.runtime.status.master_status import LineCounts, TrainingStatus
from ports import free_ports

SHARED = Path(__file__).parents[3] / "shared"
LAYERS = (64, 32)


def values_for(data: Path, slots: list[Any] | None, start: str, end: str, /, **changes: Any) -> dict[str, Any]:
    """A values file for a folder of hours, on ports of its own, quick to look and to decide; rows of columns have no slots."""
    port = free_ports(120)
    given: dict[str, Any] = {
        "data": {
            "source": {"url": f"file://{data}"},
            "path": "/",
            "start": start,
            "end": end,
            **({} if slots is None else {"slots": slots}),
            "sleepSeconds": 0.5,
        },
        "model": {"network": {"layers": [*LAYERS]}, "partitions": 12},
        "master": {"config": {"port": port, "statusPort": port + 1, "leaseSeconds": 8, "pserverTimeoutSeconds": 6}},
        "trainer": {"replicas": 2, "config": {"batchSize": 256, "adminPort": port + 90}},
        "pserver": {"replicas": 2, "config": {"port": port + 20, "adminPort": port + 2}},
        "cube": {
            "replicasPerShard": 1,
            "config": {"shards": 1, "port": port + 60, "adminPort": port + 61},
        },
        "cubeTransfer": {
            "config": {
                "port": port + 10,
                "validationTimeoutSeconds": 20,
            }
        },
        "serving": {
            "replicas": 1,
            # Each worker imports Paddle, which takes longer than what most tests ask it.
            "config": {"port": port + 80, "adminPort": port + 81, "grpcPort": port + 82, "workers": 1},
        },
    }
    return merged(given, changes)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return {
        **below,
        **{
            k: merged(below[k], v) if isinstance(v, dict) and isinstance(below.get(k), dict) else v
            for k, v in above.items()
        },
    }


TRAINING = ("master", "trainer", "pserver")
TWO_SHARDS: dict[str, Any] = {"config": {"shards": 2}}


def open_to_others(folder: Path) -> list[str]:
    """What another user of the machine could read or change of a run: files that are not 0600, folders that are not 0700."""
    found = []
    # What the roles and the run write; a test has files of its own beside them.
    for top in ("", "config", "logs", "state", "scratch", "store", "tokens", "run.json"):
        for each in (folder / top, *((folder / top).rglob("*") if top else ())):
            with contextlib.suppress(FileNotFoundError):
                mode = each.stat().st_mode
                if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600) and not stat.S_ISSOCK(mode):
                    found.append(f"{each} {stat.S_IMODE(mode):o}")
    return found


class Run:
    """One run, driven by the test: the test's thread is the one that watches the processes.

    `only` names the commands of the roles that are started; all of them unless given.
    """

    def __init__(self, folder: Path, values: dict[str, Any], only: Collection[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        self.session = Session(RunPlaces(folder, settings(Values, values, "values.yaml")))
        self.places = self.session.places
        if only is not None:
            roles = [role for role in self.session.supervisor.roles if role.command in only]
            self.session.supervisor = Supervisor(self.places, roles)

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Watch until the condition holds; its value. Fails with the state of things."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.session.look()
            if found := condition():
                return found
            time.sleep(0.25)
        raise AssertionError(
            f"{what}: not within {seconds} s; current {self.status.current}, live {self.session.live}, "
            f"release {self.session.release}, restarts {self.session.supervisor.restarts}; logs in {self.places.folder}/logs"
        )

    def finish(self, seconds: float = 240) -> dict[str, Any]:
        def finished() -> bool:
            self.session.raise_for_problems()
            return self.session.finished()

        self.until(finished, seconds, "the run's end")
        return self.session.report()

    @property
    def status(self) -> TrainingStatus:
        """The master's last answer; an empty one before the first."""
        return self.session.status or TrainingStatus(passes=(), ledger=LineCounts())

    def state(self) -> str:
        """`<pass> <state>` of the pass under way."""
        current = self.status.current
        return f"{current.id} {current.state}" if current else ""

    def generation(self) -> int:
        return self.status.generation

    def trained(self) -> int:
        """Records in the model by the ledger."""
        return self.status.ledger.trained

    def pid(self, name: str) -> int:
        return self.session.supervisor.pids()[name]

    def child(self, name: str, seconds: float = 20) -> psutil.Process:
        """The child that a parent has had longest."""
        return self._found(first_child, name, seconds)

    def engine(self, name: str, seconds: float = 20) -> psutil.Process:
        """The process with Paddle that a pserver or trainer looks after."""
        return self._found(engine_of, name, seconds)

    def _found(self, find: Callable[[int], psutil.Process], name: str, seconds: float) -> psutil.Process:
        def look() -> psutil.Process | None:
            with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                return find(self.pid(name))
            return None

        process = self.until(look, seconds, f"the child of {name}")
        assert isinstance(process, psutil.Process)
        return process

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)
