"""A process of a pool that scores tasks of a job, one after another."""

import os
import signal
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from elastic_ctr.config.data import Data
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.dictionary.format import DictionaryDamaged
from elastic_ctr.cube.dictionary.table import PartsDoNotFit
from elastic_ctr.jobs.scoring.dumps import dump_names
from elastic_ctr.jobs.scoring.outputs import RowWriter, row_writer, same_rows
from elastic_ctr.jobs.scoring.quality import QualityCounter
from elastic_ctr.jobs.scoring.records import BlockPosition, RecordReader, Records, reader_of, split_unscored
from elastic_ctr.jobs.scoring.scorer import Scorer
from elastic_ctr.jobs.scoring.scoring_job import Job, JobFolder, Outcome, OutputRefused, ScoringTask, Written
from elastic_ctr.jobs.scoring.version import VersionFiles
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.predictor import NetworkUnusable
from elastic_ctr.store.backends import AlreadyPublished, RetryPolicy, Store, StoreError, open_source, open_store
from elastic_ctr.store.backends.address import Location
from elastic_ctr.store.versions.manifest import digest_of

_STORE_PATIENCE_SECONDS = 60.0
_EXAMPLE_CHARACTERS = 200


class Place(NamedTuple):
    """The location of a store, with the tokens to write there."""

    at: StoreConfig
    tokens: Tokens | None = None

    def open(self) -> Store:
        """Open the store. Raises StoreError."""
        patience = RetryPolicy(_STORE_PATIENCE_SECONDS)
        return open_store(self.at, tokens=self.tokens, retry=patience)


@dataclass(frozen=True)
class Work:
    """The inputs that all processes of a job on this machine share. `source` has the rows; `scratch` is for files of a task."""

    job: Job
    folder: Place
    source: Location
    data: Data
    files: VersionFiles
    scratch: Path


class NoWorker(RuntimeError):
    """This process can score no task; the text has the reason."""


class InputChanged(OSError):
    """A file has changed since the job was cut into tasks."""


# The inputs of this process, and its worker once the first task has made it.
_work: Work
_worker: "Worker | None" = None


def begin(work: Work, parent: int) -> None:
    """Prepare a process of the pool. The network is loaded with the first task, because a pool loses the reason of a failure here."""
    global _work  # noqa: PLW0603 (a pool's function has no other place for it)
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work


def score_task(task: int) -> str | None:
    """Score a task unless it is done, and return the reason if it cannot be scored. Raises NoWorker."""
    global _worker  # noqa: PLW0603
    try:
        _worker = _worker or Worker(_work)
    except ModuleNotFoundError as absent:
        raise NoWorker(
            f"scoring needs {absent.name}, which is not installed: install elastic-ctr's wheel with [local]"
        ) from None
    except (NetworkUnusable, DictionaryDamaged, PartsDoNotFit, OSError, ValueError) as wrong:
        # Not all of these can be pickled.
        raise NoWorker(str(wrong)) from None
    return _worker.carry_out(task)


class Worker:
    """Scores tasks and writes their outputs."""

    def __init__(self, work: Work) -> None:
        self._job = work.job
        self._folder = JobFolder(work.folder.open())
        self._source = open_source(work.source)
        self._scratch = work.scratch / f"process-{os.getpid()}"
        self._scratch.mkdir(parents=True, exist_ok=True)
        # Paddle writes files to the working directory.
        os.chdir(self._scratch)
        self._scorer = Scorer(work.files)
        options = work.job.options
        self._reader: RecordReader = reader_of(
            self._scorer.schema, work.data, work.files.manifest.sparse_dim, options.copied, no_clicks=options.no_clicks
        )
        self._columns = (*options.copied, *dump_names(options.dumps, self._scorer.schema))

    def carry_out(self, task: int) -> str | None:
        """Score a task unless it is done, here or elsewhere, and return the reason if it cannot be scored."""
        try:
            if not self._folder.is_done(task):
                self._folder.note(task, self._score(self._job.tasks[task]))
        except (StoreError, OSError, ValueError) as wrong:
            path, sentence = self._job.tasks[task].path, str(wrong)
            return sentence if path in sentence else f"{path}: {sentence}"
        return None

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
            # Another process scored the task at the same time, or was lost before it wrote its result: both outputs should be the same.
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
