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

from credentials import auth, tokens
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.runtime.auth import bearer

_START = """
import json, logging, sys
from elastic_ctr.config.role_files import Auth
from elastic_ctr.config.roles import CubePodConfig
from elastic_ctr.cube.server.lookup_server import CubeServer
logging.basicConfig(level=logging.INFO)
exec(sys.argv[2])
settings, auth = json.loads(sys.argv[1])
# Not checked again: port 0 is for tests.
server = CubeServer(CubePodConfig().model_copy(update={"port": 0, "admin_port": 0, **settings}), auth=Auth(**auth))
print(server.port, server.admin_port, flush=True)
server.run()
"""


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
    """`cube-server` as a process with its workers, on free ports; `before` is Python that its parent runs first."""

    def __init__(self, dict_dir: Path, *, token: str | None = None, before: str = "", **settings: Any) -> None:
        files = {} if token is None else auth(dict_dir.parent / "tokens", token).model_dump()
        given = [{"cache_dir": str(dict_dir), "max_keys": 2000, **settings}, files]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(given), before],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port, self.admin_port = (int(number) for number in self.process.stdout.readline().split())
        headers = bearer(None if token is None else tokens(token))
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.admin_port}", headers=headers, timeout=280)
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
        parts = {
            str(number): {name: str(path) for name, path in own._asdict().items() if path is not None}
            for number, own in paths.items()
        }
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
