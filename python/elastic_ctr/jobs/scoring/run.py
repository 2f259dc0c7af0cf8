"""A scoring job on this machine: begin or resume it, fetch its version, run its tasks in processes, sum the outcomes."""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from elastic_ctr.config.data import Data
from elastic_ctr.config.roles import StoreConfig
from elastic_ctr.jobs.scoring.leases import LEASE_SECONDS
from elastic_ctr.jobs.scoring.listing import Listing
from elastic_ctr.jobs.scoring.quality import ScoringReport, total
from elastic_ctr.jobs.scoring.records import reader_of
from elastic_ctr.jobs.scoring.scoring_job import Job, JobFolder, Options, Outcome, digest_of, tasks_of
from elastic_ctr.jobs.scoring.version import VersionUnusable, fetch_version, find_version
from elastic_ctr.jobs.scoring.worker import Done, Failed, Place, Work, run_worker
from elastic_ctr.runtime.lifecycle import children_without_interrupts
from elastic_ctr.serving.batching.schema import schema_of
from elastic_ctr.store import NotInStore, Store
from elastic_ctr.store.versions.manifest import VersionManifest, read_version
from elastic_ctr.training.master.calendar.schedule import ranges

# The settings below `data` that decide how a row is read.
_OF_ROWS = {"path", "format", "reader", "label", "shows", "columns", "slots", "max_line_bytes"}
# The job fails after so many lost processes in all.
_MOST_LOST = 3
_LOOK_SECONDS = 1.0


class JobFailed(RuntimeError):
    """Some tasks cannot be scored, or processes crash; the text has the reason and the way out. Finished tasks stay done."""


@dataclass(frozen=True)
class Given:
    """The inputs of a job. `models` is the store with versions, `folder` the place through which processes share the job.

    `listing` finds the files when the job begins; `live` returns the live version, and is called only for `--version live`.
    """

    options: Options
    data: Data
    models: Place
    folder: Place
    source: Place
    listing: Callable[[], Listing]
    live: Callable[[], int | None]
    processes: int
    scratch: Path
    lease_seconds: float = LEASE_SECONDS


class Progress:
    """An observer of a job's progress."""

    def begun(self, job: Job, done: set[int], *, again: bool) -> None: ...

    def done(self, job: Job, tasks: set[int]) -> None: ...

    def noted(self, sentence: str) -> None: ...


def how_read(data: Data) -> str:
    """Return the digest of the settings that decide how rows are read."""
    return digest_of(data.model_dump(mode="json", include=_OF_ROWS))


def run_job(given: Given, progress: Progress) -> ScoringReport:
    """Score the tasks of a job that are not done yet, and return the report of all.

    Raises VersionUnusable, OutputRefused, NothingToRead, ManifestDamaged, BuildFailed, JobFailed, StoreError, OSError, ValueError.
    """
    with closing(given.folder.open()) as shared, closing(given.models.open()) as models:
        folder = JobFolder(shared)
        job, manifest = _begun(given, folder, models)
        for changed in folder.changed(job) if folder.is_finished() else ():
            progress.noted(f"{job.tasks[changed].output} is not as it was written; it is scored again")
            folder.reopen(job, changed)
        done = folder.done()
        progress.begun(job, done, again=manifest is None)
        if left := len(job.tasks) - len(done):
            # The version is read only for open tasks, because retention may have deleted it since.
            manifest = manifest or _version_of(job, folder, models, left)
            config = StoreConfig(url=given.models.url, user=given.models.user)
            files = fetch_version(models, manifest, given.scratch, config, given.models.tokens, given.processes)
            # An error is raised once here, not by every process.
            schema = schema_of(manifest, files.folder)
            options = job.options
            reader_of(schema, given.data, manifest.sparse_dim, options.copied, no_clicks=options.no_clicks)
            work = Work(job, given.folder, given.source, given.data, files, given.scratch, given.lease_seconds)
            processes = min(given.processes, left)
            _Processes(work, folder, progress, done).run(processes)
        outcomes = [folder.outcome(task) for task in range(len(job.tasks))]
        folder.finish(job.tasks)
    by_split: dict[str, list[Outcome]] = {}
    for task, outcome in zip(job.tasks, outcomes, strict=True):
        by_split.setdefault(task.split, []).append(outcome)
    splits = {split: total(those) for split, those in by_split.items()}
    return ScoringReport(job.version, splits, total(outcomes), given.data.max_refused_share)


def _begun(given: Given, folder: JobFolder, models: Store) -> tuple[Job, VersionManifest | None]:
    """Return the job, and its version unless the job was begun before."""
    job = folder.job()
    if job is None:
        manifest = find_version(models, given.options.version, given.live)
        job = folder.begin(_cut(given, manifest))
        if job.version == manifest.version and job.manifest == digest_of_manifest(manifest):
            return job, manifest
    folder.check(job, given.options)
    return job, None


def _version_of(job: Job, folder: JobFolder, models: Store, left: int) -> VersionManifest:
    """Return the version with which a job was begun. Raises VersionUnusable, ManifestDamaged, StoreError."""
    try:
        manifest = read_version(models, job.version)
    except NotInStore as gone:
        raise VersionUnusable(
            f"version {job.version}, which {folder.store.url} was begun with, is no longer in the store {models.url}, and {left} of "
            f"{len(job.tasks)} tasks are not scored; give another folder, or delete this one"
        ) from gone
    if digest_of_manifest(manifest) != job.manifest:
        raise VersionUnusable(
            f"version {job.version} in {models.url} is another one than {folder.store.url} was begun with; give another folder"
        )
    return manifest


def _cut(given: Given, manifest: VersionManifest) -> Job:
    found = given.listing()
    parts = ranges(found.files, given.data.task_bytes)
    tasks = tasks_of(parts, found.files, found.splits, found.names, given.options.form)
    return Job(options=given.options, version=manifest.version, manifest=digest_of_manifest(manifest), tasks=tasks)


def digest_of_manifest(manifest: VersionManifest) -> str:
    return sha256(manifest.to_json()).hexdigest()


class _Processes:
    """The processes of a job on this machine, each of which ends once no task is left."""

    def __init__(self, work: Work, folder: JobFolder, progress: Progress, done: set[int]) -> None:
        self._work = work
        self._folder = folder
        self._progress = progress
        self._done = done
        self._failed: dict[int, str] = {}
        self._useless: str | None = None
        self._lost = 0
        self._started = 0
        self._looked = time.monotonic()
        self._running: dict[Connection, SpawnProcess] = {}

    def run(self, processes: int) -> None:
        """Run until all processes have ended. Raises JobFailed, StoreError."""
        try:
            for _ in range(processes):
                self._start()
            while self._running:
                for told in wait(list(self._running), _LOOK_SECONDS):
                    assert isinstance(told, Connection)
                    self._hear(told)
                if time.monotonic() - self._looked > _LOOK_SECONDS:
                    self._look()
            self._look()
        finally:
            for process in self._running.values():
                process.kill()
            for process in self._running.values():
                process.join()
        self._raise_for_failures()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        told, telling = context.Pipe(duplex=False)
        process = context.Process(target=run_worker, args=(self._work, self._started, telling, os.getpid()))
        with children_without_interrupts():
            process.start()
        # The parent closes its writing end, so that the pipe ends with the process.
        telling.close()
        self._started += 1
        self._running[told] = process

    def _hear(self, told: Connection) -> None:
        try:
            message = told.recv()
        except EOFError:
            self._end(told)
            return
        if isinstance(message, Done):
            self._failed.pop(message.task, None)
        elif isinstance(message, Failed) and message.task is None:
            self._useless = message.sentence
        elif isinstance(message, Failed) and message.task not in self._failed:
            assert message.task is not None
            self._failed[message.task] = message.sentence
            self._progress.noted(message.sentence)

    def _end(self, told: Connection) -> None:
        process = self._running.pop(told)
        process.join()
        told.close()
        code = process.exitcode or 0
        if not code:
            return
        self._lost += 1
        ended = f"with signal {-code}" if code < 0 else f"with code {code}"
        if self._lost > _MOST_LOST:
            self._useless = (
                f"a process that scored has ended {ended}, for the {self._lost}th time; is there too little memory? Give fewer "
                "--processes. What is done is kept: the same command goes on"
            )
            return
        self._progress.noted(f"a process that scored has ended {ended}; another one takes its place")
        self._start()

    def _look(self) -> None:
        """Report tasks that were done here or elsewhere."""
        now = self._folder.done()
        self._progress.done(self._work.job, now - self._done)
        self._done |= now
        self._looked = time.monotonic()

    def _raise_for_failures(self) -> None:
        left = len(self._work.job.tasks) - len(self._done)
        if not left:
            return
        if self._useless is not None:
            raise JobFailed(self._useless)
        sentences = [sentence for task, sentence in self._failed.items() if task not in self._done]
        raise JobFailed(
            "\n".join(dict.fromkeys(sentences))
            + f"\n{left} of {len(self._work.job.tasks)} tasks are not scored; once the cause is mended, the same command goes on"
        )
