"""A pserver's part of a compaction: it merges a checkpoint's log into its own partitions, beside the server process.

The server process is not involved, and its table is trained meanwhile. A separate low-priority process does the work, so that
predictions and training come first and its memory is freed.
"""

import gzip
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from elastic_ctr.config.role_files import PserverFile
from elastic_ctr.runtime.child_process import background_pool, children_without_interrupts, end_at_once
from elastic_ctr.store.backends import RetryPolicy, Store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.export.published import layout_of, publish_once
from elastic_ctr.training.export.table_text import partition_to_sequence_file
from elastic_ctr.training.pserver.folders import Folders

log = logging.getLogger(__name__)

# Part of the id of a compaction's job.
COMPACTION = "-compaction-"
_RETRY_SECONDS = 60.0
# Compression level: level 2 would take longer than the smaller file saves in reading.
_LEVEL = 1


class Compactor:
    """Runs one compaction at a time, with a thread that waits and a process that works."""

    def __init__(self, index: int, settings: PserverFile) -> None:
        self._index = index
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._pool: ProcessPoolExecutor | None = None
        # Number of calls of `end`; a job that was submitted before the last one is not run.
        self._ends = 0

    def submit(self, root: Path, job: control.Job) -> Future[control.JobResult]:
        """Submit a job and return the future of its result, which reports failures. `root`: the scratch folder of a generation."""
        return self._thread.submit(self._run, root, job.SerializeToString(), self._ends)

    def stop(self) -> None:
        """Take no more jobs, and end the present one."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.end()

    def end(self) -> None:
        """End the process at once. Files that it has published stay, and a repeated job finds them."""
        self._ends += 1
        if self._pool is not None:
            end_at_once(self._pool)

    def _run(self, root: Path, job: bytes, ends: int) -> control.JobResult:
        order = control.Job.FromString(job)
        self._pool = background_pool()
        try:
            with children_without_interrupts():
                future = self._pool.submit(_compacted, self._index, self._settings, root, job)
            if ends != self._ends:
                self.end()
            return control.JobResult.FromString(future.result())
        except Exception as failed:  # noqa: BLE001 (it is reported, and the job is retried)
            log.warning("checkpoint %s is not compacted: %s", order.log_of, failed)
            return control.JobResult(id=order.id, error=f"{order.log_of} is not compacted: {failed}")
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _compacted(index: int, settings: PserverFile, root: Path, job: bytes) -> bytes:
    """Run `compact` in the process. Its errors become RuntimeError with the same message, because not all can be pickled."""
    retry = RetryPolicy(_RETRY_SECONDS)
    with closing(open_store(settings.store, tokens=settings.auth.internal(), retry=retry)) as opened:
        folders = Folders(root, opened, settings.model, index, settings.pservers)
        try:
            return compact(folders, opened, control.Job.FromString(job)).SerializeToString()
        except (OSError, ValueError) as failed:
            raise RuntimeError(str(failed) or type(failed).__name__) from None


def compact(folders: Folders, store: Store, job: control.Job) -> control.JobResult:
    """Publish this server's partitions of a checkpoint by log as files of a checkpoint with whole tables and of a base. Server 0 also
    publishes the dense part of the save; a load replaces its values by those of the version's network.

    A repeated job publishes the same bytes. Raises StoreError, ManifestDamaged, RowsDamaged, OSError.
    """
    result = control.JobResult(id=job.id)
    checkpoint, model = layout.checkpoint_folder(job.checkpoint), folders.model
    work = folders.root / f"compaction-{job.version}"
    for left in folders.root.glob("compaction-*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        folders.fetch_own(job.log_of, work)
        for partition, file in folders.sparse_files_in(work):
            path = layout.cube_file(job.version, "base", partition, model.partitions)
            values = work / Path(path).name
            keys = partition_to_sequence_file(file, values, layout_of(model), f"{job.version}-{partition}")
            result.files.append(control.File(**dict(publish_once(store, values, path, keys))))
            rows, packed = _packed(file)
            result.rows[partition] = rows
            entry = publish_once(store, packed, f"{checkpoint}/000/{packed.name}", rows)
            result.files.append(control.File(**dict(entry)))
            for each in {file, values, packed}:
                each.unlink(missing_ok=True)
        if folders.index == 0:
            for file in sorted((work / "001").iterdir()):
                entry = publish_once(store, file, f"{checkpoint}/001/{file.name}", 0)
                result.files.append(control.File(**dict(entry)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return result


def _packed(file: Path) -> tuple[int, Path]:
    """Return the number of rows of a partition, and its gzip file, which may be `file` itself."""
    if file.suffix == ".gz":
        with gzip.open(file, "rb") as lines:
            return sum(block.count(b"\n") for block in _blocks(lines)), file
    packed = file.with_name(f"{file.name}.gz")
    rows = 0
    # The header has no name and no time, so a repeated attempt writes the same bytes.
    with file.open("rb") as lines, packed.open("wb") as out, gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) as text:
        for block in _blocks(lines):
            rows += block.count(b"\n")
            text.write(block)
    return rows, packed


def _blocks(lines: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    while block := lines.read(4 << 20):
        yield block
