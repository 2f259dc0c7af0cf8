"""A real REST catalog: Iceberg's own server, which keeps its tables in SQLite and their files in a folder."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from needs import needs, program
from ports import free_port
from written_tables import WrittenIceberg

LIB = Path(__file__).parents[2] / "build" / "tools" / "iceberg-rest" / "lib"


def iceberg_rest_absent() -> str:
    """The reason to skip where the catalog cannot be started; else empty."""
    return "" if LIB.exists() else needs("iceberg-rest")


class RestCatalogServer:
    """Owns a process and a folder. Killed and started again it keeps its port and its tables."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = folder / "log"
        self._environment = {
            "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
            "CATALOG_REST_PORT": str(self.port),
            # A second connection that still reads would lock the file to writers, at once.
            "CATALOG_CLIENTS": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RestCatalogServer":
        server = "org.apache.iceberg.rest.RESTCatalogServer"
        command = [program("java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{LIB}/*", server]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self._environment})
        while not self._listens():
            if self._process.poll() is not None:
                raise RuntimeError(f"the catalog ended: {self._log.read_text()}")
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections are accepted, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Until all threads have stopped; one may still answer before.
        os.waitpid(self._process.pid, os.WUNTRACED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalogServer]:
    """A running catalog; skips the test where it is absent."""
    if iceberg_rest_absent():
        pytest.skip(iceberg_rest_absent())
    folder.mkdir(parents=True, exist_ok=True)
    made = RestCatalogServer(folder)
    try:
        yield made.start()
    finally:
        made.kill()


class WrittenByRest(WrittenIceberg):
    """A table that is written through a REST catalog."""

    def __init__(self, server: RestCatalogServer) -> None:
        self.url = f"iceberg+rest://{server.address}/{self.name}"
        self.begin(load_catalog("writer", type="rest", uri=f"http://{server.address}"))
