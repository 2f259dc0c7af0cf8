"""Cube-servers for tests: a lookup loop in this process, and the whole thing as processes."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop

PROCESS = Path(__file__).parents[2] / "lookup_process.py"


class Running:
    """A loop with a port, to be asked."""

    def __init__(self, loop: LookupLoop, port: int = 0) -> None:
        self.loop = loop
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        loop.listen(self.listener)
        loop.start()

    def hold(self, *tables: VersionTable, draining: bool = False) -> None:
        self.loop.replace(Holdings.of(*tables), draining=draining)

    def stop(self) -> None:
        self.loop.stop()
        self.listener.close()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition; the limit is only there to end a test that has failed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)


class ServerProcess:
    """A cube-server without an agent, as a process with its workers, on free ports; `before` is Python that its parent runs first."""

    def __init__(self, *, before: str = "", **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESS), json.dumps({"max_keys": 2000, **settings}), before],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port, self.admin_port = (int(number) for number in self.process.stdout.readline().split())
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.admin_port}", timeout=280)
        try:
            # Machine code that no cache has takes a minute, on a loaded machine several.
            until(self.ready, 280)
        except BaseException:
            self.process.kill()
            self.stop()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.http.get("/status").json()
        return status

    def loaded(self) -> dict[str, Any]:
        loaded: dict[str, Any] = self.http.get("/loaded").json()
        return loaded

    def load(
        self, version: int, paths: Mapping[int, Paths], *, dim: int = 4, partitions: int | None = None
    ) -> httpx.Response:
        parts = {number: [None if path is None else str(path) for path in own] for number, own in paths.items()}
        count = len(paths) if partitions is None else partitions
        return self.http.post("/load", json={"version": version, "dim": dim, "partitions": count, "parts": parts})

    def stop(self) -> int:
        """End it as Kubernetes would; its exit code."""
        self.http.close()
        self.process.terminate()
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def workers_that(code: str) -> str:
    """For the parent: its workers run that first."""
    return f"""
import subprocess
popen = subprocess.Popen
def changed(command, **more):
    code = {code!r} + "\\nfrom elastic_ctr.cube.server.lookup_worker import main\\nmain()"
    return popen([command[0], "-c", code, *command[3:]], **more)
subprocess.Popen = changed
"""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
