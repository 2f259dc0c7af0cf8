"""A training whose store is a bucket: a World whose pservers and trainers publish real files there. One process, which a test may kill."""

import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.build_server import CubeBuilder
from elastic_ctr.cube.transfer.catalog import Catalog
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore, RetryPolicy, Store, object_store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import FileEntry
from elastic_ctr.store.versions.published_files import fetch, read_checkpoint
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.export.published import publish_once
from elastic_ctr.training.master.decisions import DecisionLock
from elastic_ctr.training.master.generations.recovery import VERIFY
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.work.archiver import Archiver
from training.master.world import Pserver, Table, Trainer, World

_OF_PARTITIONS = re.compile(r"feature-(\d+)-of-(\d+)\.seq$")


def written(file: Path, path: str, model: Model) -> int:
    """Write the file of a path, the same bytes each time, so that a save may be repeated. Return its records."""
    if (match := _OF_PARTITIONS.search(path)) is None:
        file.write_bytes(sha256(path.encode()).digest() * 8)
        return 1
    keys = np.uint64(int(match[1])) + np.arange(1, 4, dtype=np.uint64) * np.uint64(int(match[2]))
    with SequenceFileWriter(file, seed=path) as writer:
        writer.write(keys, np.ones((3, model.embedding_dim), np.float32))
    return 3


class BucketPserver(Pserver):
    def _do(self, job: control.Job) -> control.JobResult:
        result = super()._do(job)
        for file in result.files if job.folder != VERIFY else ():
            file.MergeFrom(self.world.published(file.path))  # type: ignore[attr-defined]
        return result


@dataclass
class Publishing(World):
    """`at` is where its versions go, `start` the number of its process. All is lost with the process but the ledger and the bucket."""

    at: StoreConfig | None = None
    start: int = 0

    def open_store(self) -> Store:
        assert self.at is not None
        return open_store(self.at, retry=RetryPolicy(60))

    def start_master(self) -> None:
        super().start_master()
        # A kill loses nothing of it that a power cut would.
        self.ledger.db.execute("pragma synchronous = off")

    def start_training(self) -> None:
        # To the master a restarted process is another one, some time later.
        self.lives, self.now = self.start * 100, self.now + self.start * 3600
        self.pservers = [BucketPserver(self, index) for index in range(self.servers)]
        self.trainers = [Trainer(self, f"trainer-{number}") for number in range(2)]

    def published(self, path: str) -> control.File:
        source = self.folder / "file"
        records = written(source, path, self.model)
        return control.File(**dict(publish_once(self.store, source, path, records)))

    def fill(self, task: control.Task, result: control.TaskResult) -> None:
        super().fill(task, result)
        if task.phase == control.SAVE and task.save.version:
            result.save.model_files.extend(map(self.published, layout.network_files(task.save.version)))

    def checkpoint(self, name: str) -> Table:
        """Every file is fetched, as by a pserver."""
        manifest = read_checkpoint(self.store, name)
        for entry in manifest.files:
            fetch(self.store, entry, self.folder / "fetched")
        return {"before": next(iter(manifest.rows.values()))}


def train(folder: Path, at: StoreConfig, start: int) -> None:
    """Two hours, a base and a delta, in a process that may go on from the ledger of another one."""
    # The process is a fork of one that has called no bucket.
    object_store._forked = False
    Publishing(folder, at=at, start=start).finish()
    os._exit(0)


def build(folder: Path, at: StoreConfig, _: int) -> None:
    """Build each version that has no dictionary, as cube-builder does for cube-transfer."""
    object_store._forked = False
    settings = CubeTransferConfig(scratch_dir=str(folder / "scratch"), state_dir=str(folder))
    builder = CubeBuilder(CubeBuilderFile(store=at, cube_transfer=settings))
    # Its workers would outlive it by a moment.
    builder._pool = ThreadPoolExecutor(1)  # type: ignore[assignment]
    store = open_store(at, retry=RetryPolicy(60))
    while usable := Catalog(store).scan().usable:
        builder.build(usable[0])
    os._exit(0)


def archiver(folder: Path, lock: DecisionLock, at: StoreConfig, keep: int = 2) -> Archiver:
    """The archiver of a training whose store is a folder."""
    store = FileStore(folder / "store")
    return Archiver(
        lock, store, at.url, lambda: open_store(at, retry=RetryPolicy(60), setting="store.config.archive"), folder, keep
    )


def archive(folder: Path, at: StoreConfig, _: int) -> None:
    """Copy the newest base of the ledger, as the master's thread does."""
    object_store._forked = False
    ledger = Ledger(folder / "ledger.db")
    ledger.set_facts(id="a-release")
    archiver(folder, DecisionLock(ledger, lambda: None), at).step(threading.Event())
    os._exit(0)


def process_of(
    folder: Path, at: StoreConfig, start: int, work: Callable[[Path, StoreConfig, int], None] = train
) -> multiprocessing.process.BaseProcess:
    """Start a process of its own. It is a fork of a small server, which has imported everything, so it starts in some milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    made = context.Process(target=work, args=(folder, at, start))
    with pytest.MonkeyPatch.context() as patch:
        # The server imports by this path alone.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        made.start()
    return made


def wrong_files(store: Store, entries: Iterable[FileEntry]) -> list[str]:
    """The paths of those that the store lacks, or has with other bytes."""

    def is_right(entry: FileEntry) -> bool:
        return store.exists(entry.path) and sha256(store.get_bytes(entry.path)).hexdigest() == entry.sha256

    with ThreadPoolExecutor(4) as threads:
        listed = list(entries)
        return [each.path for each, right in zip(listed, threads.map(is_right, listed), strict=True) if not right]
