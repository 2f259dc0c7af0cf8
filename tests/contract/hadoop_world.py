"""A real HDFS: one NameNode and one DataNode, started by tests/hadoop/hdfs from the jars that `tools/get hadoop` fetched."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from contract.kerberos_world import Kdc, why_not_kerberos
from needs import needs
from ports import free_port, free_ports

HDFS = Path(__file__).parents[1] / "hadoop"
PREFIX = Path(os.environ.get("HDFS_PREFIX", Path(__file__).parents[2] / "build" / "tools" / "hadoop"))
ENVIRONMENT = {**os.environ, "HDFS_PREFIX": str(PREFIX)}


def why_not() -> str:
    """The reason to skip where Hadoop cannot be started; else empty."""
    if shutil.which("java") is None:
        return needs("Java", "apt-get install openjdk-17-jdk-headless")
    return "" if (PREFIX / "lib").exists() else needs("hadoop")


class Hadoop:
    """Owns a folder. `kill` and `start` are of one daemon, or of what is down. With a KDC it wants Kerberos, and has https alone."""

    def __init__(self, folder: Path, kdc: Kdc | None = None) -> None:
        self._kdc = kdc
        rpc, self.http, data = free_port(), free_port(), free_ports(3)
        self._command = [
            str(HDFS / "hdfs"), "--dir", str(folder), "--rpc", str(rpc), "--http", str(self.http), "--dn", str(data),
        ]  # fmt: skip
        self.door, self.scheme = f"127.0.0.1:{self.http}", "webhdfs"
        if kdc is not None:
            # Cookies and tokens live so briefly that each test sees new ones.
            self._command += ["--secure", str(kdc.folder), "--cookie", "2", "--token", "3"]
            self.door, self.scheme = f"localhost:{self.http}", "swebhdfs"

    def _run(self, *words: str, tries: int = 1) -> None:
        for left in reversed(range(tries)):
            done = subprocess.run(
                [*self._command, *words], capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT
            )
            if done.returncode == 0:
                return
            assert left, f"hdfs {' '.join(words)}: {done.stdout}{done.stderr}"

    def start(self) -> "Hadoop":
        # It waits for a minute, which is short where everything else runs as well.
        self._run("start", tries=2)
        return self

    def stop(self) -> None:
        self._run("stop")

    def kill(self, daemon: str) -> None:
        self._run("kill", daemon)

    def ask(self, verb: str, path: str, operation: str, user: str = "root", **parameters: str) -> dict[str, Any]:
        """One call of WebHDFS, by somebody who is not under test."""
        with requests.Session() as session:
            session.trust_env = False
            scheme, headers = "http", {}
            named = {"user.name": user}
            if self._kdc is not None:
                scheme, headers, named = "https", self._kdc.header(), {}
                session.verify = str(self._kdc.authority)
            answer = session.request(
                verb,
                f"{scheme}://{self.door}/webhdfs/v1{path}",
                params={"op": operation, **named, **parameters},
                headers=headers,
                timeout=30,
            )
        answer.raise_for_status()
        return answer.json() if answer.content else {}

    def files(self, folder: str) -> list[str]:
        """Every file below, temporary ones included."""
        found: list[str] = []
        for each in self.ask("GET", folder, "LISTSTATUS")["FileStatuses"]["FileStatus"]:
            path = f"{folder}/{each['pathSuffix']}"
            found += self.files(path) if each["type"] == "DIRECTORY" else [path]
        return sorted(found)


@contextmanager
def secure_hadoop_world(folder: Path) -> Iterator[tuple[Hadoop, Kdc]]:
    """An HDFS that wants Kerberos, and its KDC; skips the test where they cannot be started."""
    if reason := why_not() or why_not_kerberos():
        pytest.skip(reason)
    kdc = Kdc(folder / "kdc").start()
    made = Hadoop(folder / "hadoop", kdc)
    try:
        yield made.start(), kdc
    finally:
        made.stop()
        kdc.stop()
