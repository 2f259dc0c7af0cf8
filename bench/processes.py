"""What is measured, as real processes: our cube-server by its own command, Redis of Debian; ended when the block ends."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

COMMAND = Path(sys.executable).parent / "elastic-ctr"
_LOOKUP_PROCESS = Path(__file__).parents[1] / "tests" / "lookup_process.py"
MAX_KEYS = 131_072
_START_SECONDS = 120
CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Server:
    """A process that answers on port; admin is the port of its admin door, if it has one."""

    pid: int
    port: int
    admin: int = 0

    def pids(self) -> list[int]:
        """Its own and its children's."""
        return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running(
    command: list[str], log: Path, ready: Callable[[], bool], *, env: dict[str, str] | None = None
) -> Iterator[int]:
    """A process, its pid once it is ready. Raises RuntimeError when it ends before that."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
    # Wherever this thread is kept just now.
    _keep(process.pid, CORES)
    try:
        until = time.monotonic() + _START_SECONDS
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]} did not start within {_START_SECONDS} s; it said:\n{tail}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_child(pid: int) -> psutil.Process:
    """The one that has been there longest. Raises LookupError where there is none just now."""
    children = psutil.Process(pid).children()
    if not children:
        raise LookupError(f"process {pid} has no child")
    return min(children, key=psutil.Process.create_time)


def engine_of(pid: int) -> psutil.Process:
    """The process with Paddle of a pserver or a trainer. Raises LookupError where there is none just now.

    A pserver has others, too, which compact its log: the lowest of their ids need not be the engine's, ids begin anew.
    """
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                if any(
                    re.fullmatch(r"elastic_ctr\.training\.(pserver|trainer)\.process", word) for word in child.cmdline()
                ):
                    return child
    raise LookupError(f"process {pid} has no child with the engine")


@contextmanager
def one_core(servers: Iterable[int]) -> Iterator[None]:
    """Keep the servers on the first core and this thread, which loads them, on the others: nobody takes turns with who asks.

    Where there is one core alone, they share it.
    """
    pids, before = list(servers), os.sched_getaffinity(0)
    try:
        for pid in pids:
            _keep(pid, CORES[:1])
        os.sched_setaffinity(0, CORES[1:] or CORES)
        yield
    finally:
        os.sched_setaffinity(0, before)
        for pid in pids:
            _keep(pid, CORES)


def _keep(pid: int, cores: Iterable[int]) -> None:
    """All threads that there are of a process, if it still lives."""
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def ask(port: int, path: str, body: Any = None, *, timeout: float = 120) -> Any:
    """A call of an admin door, its JSON or text. Raises RuntimeError with what it said."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=timeout) as answer:
            text = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            raise RuntimeError(f"{path} was refused: {refused.read().decode()}") from refused
    return json.loads(text) if text[:1] in b"{[" else text


def answers(port: int, path: str) -> bool:
    """Whether that is answered with 200."""
    try:
        ask(port, path, timeout=5)
    except (OSError, RuntimeError):
        return False
    return True


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def cube_server(log: Path, *, workers: int = 1) -> Iterator[Server]:
    """Lookups of a cube-server, which has nothing loaded yet: the tests' process without an agent, that takes orders over HTTP."""
    port, admin = free_port(), free_port()
    settings = {"port": port, "admin_port": admin, "workers": workers, "max_keys": MAX_KEYS}
    command = [sys.executable, str(_LOOKUP_PROCESS), json.dumps(settings)]
    with running(command, log, lambda: answers(admin, "/readyz")) as pid:
        yield Server(pid, port, admin)


@contextmanager
def redis_server(log: Path, *, huge: bool = False) -> Iterator[Server]:
    """Redis, nothing kept on disk. Raises RuntimeError where it is not installed.

    `huge`: in huge pages, which it keeps away from by itself: they make a fork slow, and one that keeps nothing never forks.
    """
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("redis-server is not installed: apt-get install redis-server, then again")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            found,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
            *(["--disable-thp", "no"] if huge else []),
        ]
        env = {**os.environ, "MALLOC_CONF": "thp:always"} if huge else None
        with running(command, log, lambda: accepts(port), env=env) as pid:
            yield Server(pid, port)
