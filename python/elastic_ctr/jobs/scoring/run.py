"""A scoring job on this machine: begin or resume it, fetch its version, run its tasks in processes, sum the outcomes."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from elastic_ctr.config.data import Data
from elastic_ctr.jobs.scoring.listing import Listing
from elastic_ctr.jobs.scoring.quality import ScoringReport, total
from elastic_ctr.jobs.scoring.records import reader_of
from elastic_ctr.jobs.scoring.scoring_job import Job, JobFolder, Options, Outcome, Share, digest_of, order_of, tasks_of
from elastic_ctr.jobs.scoring.version import VersionUnusable, fetch_version, find_version
from elastic_ctr.jobs.scoring.worker import NoWorker, Place, Work, begin, score_task
from elastic_ctr.runtime.child_process import children_without_interrupts, end_pool
from elastic_ctr.serving.batching.schema import schema_of
from elastic_ctr.store.backends import NotInStore, Store
from elastic_ctr.store.backends.address import Location
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import read_version
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
    """The inputs of a job. `models` is the store with versions, `folder` the place through which machines share the job.

    `listing` finds the files when the job begins; `live` returns the live version, and is called only for `--version live`.
    `share` is this pod's, if pods of a Job share the tasks.
    """

    options: Options
    data: Data
    models: Place
    folder: Place
    source: Location
    listing: Callable[[], Listing]
    live: Callable[[], int | None]
    processes: int
    scratch: Path
    share: Share | None = None


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
            at, tokens = given.models
            files = fetch_version(models, manifest, given.scratch, at, tokens, given.processes)
            # An error is raised once here, not by every process.
            schema = schema_of(manifest, files.folder)
            options = job.options
            reader_of(schema, given.data, manifest.sparse_dim, options.copied, no_clicks=options.no_clicks)
            work = Work(job, given.folder, given.source, given.data, files, given.scratch)
            _Scoring(work, folder, progress, done).run(order_of(len(job.tasks), given.share), given.processes)
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


class _Scoring:
    """The tasks that are left, in processes of this machine."""

    def __init__(self, work: Work, folder: JobFolder, progress: Progress, done: set[int]) -> None:
        self._work = work
        self._folder = folder
        self._progress = progress
        self._done = done
        self._failed: dict[int, str] = {}

    def run(self, order: Sequence[int], processes: int) -> None:
        """Run until each task is done, here or elsewhere, or has failed here. Raises JobFailed, StoreError."""
        lost = 0
        while left := [task for task in order if task not in self._done and task not in self._failed]:
            try:
                self._score(left, min(processes, len(left)))
            except NoWorker as useless:
                raise JobFailed(str(useless)) from useless
            except BrokenProcessPool as broken:
                lost += 1
                if lost > _MOST_LOST:
                    raise JobFailed(
                        f"a process that scored has ended for the {lost}th time; is there too little memory? Give fewer --processes. "
                        "What is done is kept: the same command goes on"
                    ) from broken
                self._progress.noted(
                    "a process that scored has ended, and those beside it with it; new ones take their place"
                )
            self._look()
        if open_tasks := len(self._work.job.tasks) - len(self._done):
            sentences = [sentence for task, sentence in self._failed.items() if task not in self._done]
            raise JobFailed(
                "\n".join(dict.fromkeys(sentences))
                + f"\n{open_tasks} of {len(self._work.job.tasks)} tasks are not scored; once the cause is mended, the same command goes on"
            )

    def _score(self, tasks: Sequence[int], processes: int) -> None:
        """Score tasks until all are done, here or elsewhere, or have failed. Raises NoWorker, BrokenProcessPool, StoreError."""
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, spawn, begin, (self._work, os.getpid()))
        try:
            with children_without_interrupts():
                scoring = {pool.submit(score_task, task): task for task in tasks}
            while scoring and len(self._done) < len(self._work.job.tasks):
                for each in wait(scoring, _LOOK_SECONDS).done:
                    self._take(scoring.pop(each), each)
                self._look()
        finally:
            # At once, because Paddle's threads may fail in a regular exit.
            end_pool(pool)

    def _take(self, task: int, scored: Future[str | None]) -> None:
        # A process that scores a task for the second time may lose its files at the end of the job.
        if (sentence := scored.result()) is not None and not self._folder.is_done(task):
            self._failed[task] = sentence
            self._progress.noted(sentence)

    def _look(self) -> None:
        """Report tasks that were done here or elsewhere."""
        now = self._folder.done()
        self._progress.done(self._work.job, now - self._done)
        self._done |= now
