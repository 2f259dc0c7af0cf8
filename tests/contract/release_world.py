"""A whole cube on this machine, each role its own process: builder, transfer, servers, and readers we play."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from credentials import auth, tokens
from elastic_ctr.cube.client.reader import CubeClient
from elastic_ctr.cube.release import ReaderReport, ReleaseDocument
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import announce
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish
from ports import free_port

DIM = 9
PARTITIONS = 6
TOKEN = "secret"
HOST = "127.0.0.1"
PATIENCE = 300.0
_LAST_LINES = 20

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]

_RUN = """
import json, sys
from importlib import import_module
from elastic_ctr.runtime import logging
from elastic_ctr.runtime.child_process import die_with_parent
module, function, role = sys.argv[1:4]
arguments = json.loads(sys.argv[4])
die_with_parent(int(sys.argv[5]))
logging.configure(role)
kind, given = arguments["config"]
arguments["config"] = getattr(import_module("elastic_ctr.config.role_files"), kind)(**given)
getattr(import_module(module), function)(**arguments)
"""


def values_of(keys: Keys, version: int) -> Values:
    """What a version says of its keys: no two versions the same."""
    return np.stack(
        [(keys % 1000).astype(np.float32) + np.float32(i) + np.float32(version) for i in range(DIM)], axis=1
    )


def publish_version(
    store: FileStore,
    work: Path,
    version: int,
    keys: Keys,
    *,
    parent: int | None = None,
    base: int | None = None,
    damage: Callable[[Path], None] | None = None,
    dim: int = DIM,
    files: int = PARTITIONS,
) -> VersionManifest:
    """As the master does: files, manifest, donefile. A parent makes it a delta; one of a stream is one file."""
    kind: Any = "base" if parent is None else "delta"
    entries = []
    for partition in range(files):
        own = np.sort(keys[keys % files == partition])
        file = work / f"{version}-{partition}.seq"
        with SequenceFileWriter(file, seed=file.name) as writer:
            writer.write(own, np.resize(values_of(own, version), (own.size, dim)))
        path = layout.cube_file(version, kind, partition, files)
        entries.append(publish(store, file, path, records=own.size))
        if damage is not None and partition == files - 1:
            damage(store.root / path)
    manifest = VersionManifest(
        version=version, kind=kind, base=version if base is None else base, parent=parent, pass_id="20200401/00",
        event_time_max=int(time.time()), created_at=time.time(), partitions=PARTITIONS, dim=dim, keys=int(keys.size),
        slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=tuple(entries), model_files=(), samples=0,
        auc_live=None, auc_published=None,
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))
    announce(store)
    return manifest


def eventually(what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first truth of the condition; a failed connection is not one yet."""
    until = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except (httpx.HTTPError, KeyError):
            found = None
        if found:
            return found
        assert time.monotonic() < until, f"in {seconds:.0f} s it did not come true that {what}"
        time.sleep(0.02)


class World:
    """Starts and ends the processes; its questions go over the network as everybody's do."""

    def __init__(self, root: Path, *, shards: int = 2, replicas: int = 1, **transfer: Any) -> None:
        self.root = root
        self.store = FileStore(root / "store")
        self.shards = shards
        self.replicas = replicas
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.transfer_options = transfer
        self.ports: dict[str, int] = {}
        self.auth = auth(root / "tokens", TOKEN).model_dump()
        self.work = root / "work"
        self.work.mkdir(parents=True)
        self.documents: list[ReleaseDocument] = []
        self._bases = itertools.count(1_000, 1_000)

    # Processes

    def port(self, name: str) -> int:
        if name not in self.ports:
            self.ports[name] = free_port()
        return self.ports[name]

    def url(self, name: str) -> str:
        return f"http://{HOST}:{self.port(name)}"

    def start(self, role: str, module: str, function: str, arguments: Mapping[str, Any]) -> None:
        log = (self.root / f"{role}.log").open("ab")
        command = [sys.executable, "-c", _RUN, f"elastic_ctr.cube.{module}", function, role, json.dumps(arguments)]
        self.processes[role] = subprocess.Popen([*command, str(os.getpid())], stdout=log, stderr=log)
        log.close()

    def role_file(self, kind: str, **given: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"host": HOST, "auth": self.auth, "store": {"url": self.store.url}, **given}

    def start_builder(self, **options: Any) -> None:
        settings = {"builder_port": self.port("builder"), "scratch_dir": str(self.root / "builder"), **options}
        config = self.role_file("CubeBuilderFile", cube_transfer=settings)
        self.start("builder", "builder.build_server", "run_cube_builder", {"config": config})

    def start_transfer(self, **options: Any) -> None:
        settings = {
            "state_dir": str(self.root / "transfer"), "port": self.port("transfer"), "builder_port": self.port("builder"),
            "poll_seconds": 0.1, "report_timeout_seconds": 2.0, "state_recovery_seconds": 1.0,
            "validation_timeout_seconds": 3.0, **self.transfer_options, **options,
        }  # fmt: skip
        config = self.role_file(
            "CubeTransferFile", cube_transfer=settings, shards=self.shards, replicas_per_shard=self.replicas
        )
        self.start("transfer", "transfer.transfer_api", "run_cube_transfer", {"config": config})

    def pods(self) -> list[tuple[str, int]]:
        return [(f"ctr-cube-s{s}-{r}", s) for s in range(self.shards) for r in range(self.replicas)]

    def address(self, pod: str) -> str:
        return f"{HOST}:{self.port(pod)}"

    def start_pod(self, pod: str, **options: Any) -> None:
        settings = {
            "cache_dir": str(self.root / pod), "port": self.port(pod), "admin_port": self.port(f"{pod}.admin"),
            "drain_seconds": 0.5, "report_seconds": 0.2, "drain_idle_seconds": 0.5, **options,
        }  # fmt: skip
        transfer = f"{HOST}:{self.port('transfer')}"
        config = self.role_file(
            "CubeServerFile", model={}, cube=settings, transfer_address=transfer, grace_seconds=20.0
        )
        arguments = {"config": config, "pod": pod, "address": self.address(pod)}
        self.start(pod, "server.cube_server", "run_cube_server", arguments)

    def start_all(self) -> None:
        """All roles that do not run."""
        if "builder" not in self.processes:
            self.start_builder()
        if "transfer" not in self.processes:
            self.start_transfer()
        for pod, _ in self.pods():
            if pod not in self.processes:
                self.start_pod(pod)

    def kill(self, role: str) -> None:
        """As kill -9."""
        process = self.processes.pop(role)
        process.kill()
        process.wait()

    def end(self, role: str, seconds: float = 30.0) -> int:
        """As SIGTERM; what the process ended with."""
        process = self.processes.pop(role)
        process.send_signal(signal.SIGTERM)
        return process.wait(seconds)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        # pytest shows it where a test has failed.
        for file in sorted(self.root.glob("*.log")):
            print(file.name, *file.read_text().splitlines()[-_LAST_LINES:], sep="\n  ")

    def log(self, role: str) -> str:
        return (self.root / f"{role}.log").read_text()

    # Publishing

    def next_base(self) -> int:
        """A version above all that were asked for before."""
        return next(self._bases)

    def base(self, version: int, keys: int = 600, **options: Any) -> Keys:
        made = np.arange(1, keys + 1, dtype=np.uint64) * np.uint64(7)
        publish_version(self.store, self.work, version, made, **options)
        return made

    def delta(self, version: int, keys: Keys, parent: int, base: int, **options: Any) -> None:
        publish_version(self.store, self.work, version, keys, parent=parent, base=base, **options)

    # Questions

    def check_running(self) -> None:
        """Raises AssertionError with the log of a role that has ended by itself: nothing would come true any more."""
        for role, process in self.processes.items():
            if process.poll() is not None:
                lines = self.log(role).splitlines()[-_LAST_LINES:]
                raise AssertionError("\n".join([f"{role} has ended with {process.returncode}", *lines]))

    def status(self) -> dict[str, Any]:
        self.check_running()
        return dict(httpx.get(f"{self.url('transfer')}/status", timeout=60).raise_for_status().json())

    def document(self) -> ReleaseDocument:
        self.check_running()
        answer = httpx.get(f"{self.url('transfer')}/release", timeout=60).raise_for_status()
        found = ReleaseDocument.model_validate_json(answer.content)
        self.documents.append(found)
        return found

    def pods_know(self, version: int) -> bool:
        """Whether every pod carries a document in which this version is live."""
        found = [httpx.get(f"{self.url(f'{pod}.admin')}/status", trust_env=False).json() for pod, _ in self.pods()]
        return all(each["live"] == version for each in found)

    def ready_of(self, pod: str) -> str:
        return httpx.get(f"{self.url(f'{pod}.admin')}/readyz", timeout=60).text

    def live(self, version: int, seconds: float = PATIENCE) -> ReleaseDocument:
        """Wait until a version is live."""

        def is_live() -> ReleaseDocument | None:
            document = self.document()
            return document if document.live == version else None

        try:
            found = eventually(f"version {version} is live", is_live, seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{json.dumps(self.status(), indent=1)}") from late
        assert isinstance(found, ReleaseDocument)
        return found

    def report(self, pod: str, **said: Any) -> None:
        """As a serving pod."""
        report = ReaderReport(pod=pod, **said)
        answer = httpx.post(f"{self.url('transfer')}/readers", content=report.to_json(), headers=bearer(tokens(TOKEN)))
        assert answer.status_code == 204, answer.text

    def rollback(self, **order: Any) -> httpx.Response:
        return httpx.post(f"{self.url('transfer')}/rollback", json=order, headers=bearer(tokens(TOKEN)), timeout=60)

    def seek(self, version: int, keys: Keys) -> tuple[Values, npt.NDArray[np.bool_]]:
        """Values and misses, from whoever the document names."""
        document = self.document()

        async def ask() -> tuple[Values, npt.NDArray[np.bool_]]:
            client = CubeClient(DIM, partitions=PARTITIONS)
            client.set_holders(document.addresses(), document.draining())
            try:
                return await client.lookup(version, keys)
            finally:
                await client.close()

        return asyncio.run(ask())


@contextlib.contextmanager
def world(root: Path, **options: Any) -> Iterator[World]:
    made = World(root, **options)
    try:
        yield made
    finally:
        made.close()
