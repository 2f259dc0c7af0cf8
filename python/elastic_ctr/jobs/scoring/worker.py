"""A process that scores tasks of a job until none is left. It sends the result of each task to its parent."""

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from elastic_ctr.config.data import Data
from elastic_ctr.cube.dictionary.format import DictionaryDamaged
from elastic_ctr.cube.dictionary.table import PartsDoNotFit
from elastic_ctr.jobs.scoring.dumps import dump_names
from elastic_ctr.jobs.scoring.leases import LEASE_SECONDS, Lease, Leases
from elastic_ctr.jobs.scoring.outputs import RowWriter, row_writer, same_rows
from elastic_ctr.jobs.scoring.quality import QualityCounter
from elastic_ctr.jobs.scoring.records import BlockPosition, RecordReader, Records, reader_of, split_unscored
from elastic_ctr.jobs.scoring.scorer import Scorer
from elastic_ctr.jobs.scoring.scoring_job import (
    LEASES,
    Job,
    JobFolder,
    OpenTasks,
    Outcome,
    OutputRefused,
    ScoringTask,
    Written,
)
from elastic_ctr.jobs.scoring.version import VersionFiles
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.lifecycle import die_with_parent
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.predictor import NetworkUnusable
from elastic_ctr.store import AlreadyPublished, RetryPolicy, Store, StoreError, open_source, open_store
from elastic_ctr.store.source import Source
from elastic_ctr.store.versions.manifest import digest_of

_STORE_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_EXAMPLE_CHARACTERS = 200


class Place(NamedTuple):
    """The address of a store, with the user and tokens to write there."""

    url: str
    user: str = "root"
    tokens: Tokens | None = None

    def open(self) -> Store:
        """Open the store. Raises StoreError."""
        patience = RetryPolicy(_STORE_PATIENCE_SECONDS)
        return open_store(self.url, user=self.user, tokens=self.tokens, retry=patience)


@dataclass(frozen=True)
class Work:
    """The inputs that all processes of a job on this machine share. `source` has the rows; `scratch` is for files of a task."""

    job: Job
    folder: Place
    source: Place
    data: Data
    files: VersionFiles
    scratch: Path
    lease_seconds: float = LEASE_SECONDS


class Done(NamedTuple):
    """A task is scored."""

    task: int
    rows: int
    refused: int


class Failed(NamedTuple):
    """A task cannot be scored, or, without a task, none can be; with the sentence."""

    task: int | None
    sentence: str


class InputChanged(OSError):
    """A file has changed since the job was cut into tasks."""


def run_worker(work: Work, number: int, told: Connection, parent: int) -> None:
    """Run the worker in a process of its own."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scratch = work.scratch / f"process-{number}"
    scratch.mkdir(parents=True, exist_ok=True)
    # Paddle writes files to the working directory.
    os.chdir(scratch)
    try:
        with closing(work.folder.open()) as store, closing(open_source(work.source.url, work.source.user)) as source:
            Worker(work, store, source, scratch, told).run(number)
    except ModuleNotFoundError as absent:
        told.send(
            Failed(None, f"scoring needs {absent.name}, which is not installed: pip install 'elastic-ctr[local]'")
        )
    except (NetworkUnusable, DictionaryDamaged, PartsDoNotFit, OSError, ValueError) as wrong:
        told.send(Failed(None, str(wrong)))
    told.close()
    # Exit without Paddle's threads and destructors, which may fail.
    os._exit(0)


class Worker:
    """Takes tasks by leases, and writes their outputs."""

    def __init__(self, work: Work, store: Store, source: Source, scratch: Path, told: Connection) -> None:
        self._job = work.job
        self._folder = JobFolder(store)
        self._leases = Leases(store, LEASES, work.lease_seconds)
        self._source = source
        self._scratch = scratch
        self._told = told
        self._scorer = Scorer(work.files)
        options = work.job.options
        self._reader: RecordReader = reader_of(
            self._scorer.schema, work.data, work.files.manifest.sparse_dim, options.copied, no_clicks=options.no_clicks
        )
        self._columns = (*options.copied, *dump_names(options.dumps, self._scorer.schema))

    def run(self, number: int) -> None:
        """Work until every task is done, here or elsewhere, or has failed here. Raises StoreError."""
        tasks = range(len(self._job.tasks))
        # Each process begins at another task, so that few compete for the same one.
        begin = (os.getpid() + number) % max(len(tasks), 1)
        open_tasks = OpenTasks(self._folder, [*tasks[begin:], *tasks[:begin]])
        while left := open_tasks.left():
            taken = self._leases.take(left)
            if taken is None:
                open_tasks.look_again()
                time.sleep(_LOOK_SECONDS)
                continue
            task, lease = taken
            # A failed task is settled, too, because this process does not try it twice.
            open_tasks.settle(task)
            self._carry_out(task, lease)

    def _carry_out(self, task: int, lease: Lease) -> None:
        try:
            # The task may have been done between the listing and the lease.
            if not self._folder.is_done(task):
                outcome = self._score(self._job.tasks[task])
                self._folder.note(task, outcome)
                self._told.send(Done(task, outcome.rows, sum(outcome.refused.values())))
        except (StoreError, OSError, ValueError) as wrong:
            path, sentence = self._job.tasks[task].path, str(wrong)
            self._told.send(Failed(task, sentence if path in sentence else f"{path}: {sentence}"))
        finally:
            lease.release()

    def _score(self, task: ScoringTask) -> Outcome:
        """Score a task and write its output. Raises InputChanged, OutputRefused, StoreError, OSError, ValueError."""
        if (size := self._source.size(task.path)) != task.size:
            raise InputChanged(
                f"{task.path} has {size} bytes, and had {task.size} when this output was begun: begin another output"
            )
        options = self._job.options
        tally = _Tally(labelled=not options.no_clicks)
        part = self._scratch / "part"
        with ExitStack() as stack:
            stack.callback(part.unlink, missing_ok=True)
            writer: RowWriter | None = None
            with ExitStack() as writing:
                if options.deed == "predict":
                    writer = writing.enter_context(
                        row_writer(part, options.form, self._columns, labelled=not options.no_clicks)
                    )
                with self._source.open(task.path) as raw:
                    for read in self._reader.blocks(raw, task.path, task.start, task.stop):
                        found = self._scorer.probabilities(read.instances)
                        where = BlockPosition(task.path, task.start, tally.rows)
                        records, probabilities = split_unscored(read, found, where, self._scorer.schema)
                        tally.add(records, probabilities)
                        if writer is not None:
                            more = self._scorer.dumped(records.instances, options.dumps)
                            writer.add(replace(records, copied=(*records.copied, *more)), probabilities)
            written = None if writer is None else self._publish(part, task.output)
        return tally.outcome().model_copy(update={"written": written})

    def _publish(self, part: Path, output: str) -> Written:
        """Put the output into the folder, and return size and digest of the file there. Raises OutputRefused, StoreError, OSError."""
        try:
            self._folder.store.put(part, output)
            return _written(part)
        except AlreadyPublished as stands:
            # A slow process was overtaken, or a process was lost before it wrote its result: both outputs should be the same.
            there = self._scratch / "there"
            try:
                self._folder.store.get(output, there)
                if same_rows(part, there, self._job.options.form):
                    return _written(there)
            finally:
                there.unlink(missing_ok=True)
            raise OutputRefused(
                f"{output} in {self._folder.store.url} is of another program or version: its rows are not those of version "
                f"{self._job.version}; delete it, and the same command writes it anew"
            ) from stands


def _written(file: Path) -> Written:
    size, sha256 = digest_of(file)
    return Written(bytes=size, sha256=sha256)


class _Tally:
    def __init__(self, *, labelled: bool) -> None:
        self.rows = self._shows = self._clicks = 0
        self._refused: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._quality = QualityCounter() if labelled else None

    def add(self, records: Records, probabilities: Floats) -> None:
        self.rows += records.rows
        for each in records.refused:
            self._refused[each.reason.value] += 1
            self._examples.setdefault(each.reason.value, each.detail[:_EXAMPLE_CHARACTERS])
        if self._quality is not None:
            self._shows += int(records.shows.sum())
            self._clicks += int(records.clicks.sum())
            self._quality.add(probabilities, records.shows, records.clicks)

    def outcome(self) -> Outcome:
        return Outcome(
            rows=self.rows,
            refused=dict(self._refused),
            examples=self._examples,
            shows=self._shows,
            clicks=self._clicks,
            quality=None if self._quality is None else self._quality.quality(),
        )
