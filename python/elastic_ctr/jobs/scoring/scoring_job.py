"""A job of scoring: what is scored, with which version, cut into tasks. Its document is written once, and all its processes read it.

Everything that processes agree on stands in the folder of the job, which may be on any store:

    _job/job.json            this document, by the process that came first
    _job/leases/17.1         the process that works on task 17
    _job/done/17.json        its result, after its output; a task without it is scored again
    20200401/00/part-0.csv   the output of a task
    _SUCCESS                 all tasks are done
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from elastic_ctr.jobs.scoring.dumps import Dump
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store import AlreadyPublished, NotInStore, Store
from elastic_ctr.store.versions.manifest import Record, VersionId, Whole

FOLDER = "_job"
DOCUMENT = f"{FOLDER}/job.json"
LEASES = f"{FOLDER}/leases"
DONE = f"{FOLDER}/done"
SUCCESS = "_SUCCESS"
_LOOK_SECONDS = 5.0

OutputFormat = Literal["csv", "parquet"]
Amount = Annotated[float, Field(ge=0)]


class OutputRefused(ValueError):
    """Nothing is written to this folder: a sentence."""


class OtherJob(OutputRefused):
    """The folder holds another job: what differs, and the way out."""


class Options(Record):
    """The options that were given. Two runs belong together when these are the same.

    `version` is as it was asked for. `data` is the digest of how rows are read; `hours` and `files` are what was named.
    """

    deed: Literal["predict", "evaluate"]
    version: str
    source: str
    data: str
    hours: str
    files: tuple[str, ...] = ()
    no_clicks: bool = False
    form: OutputFormat = "csv"
    copied: tuple[str, ...] = ()
    dumps: tuple[Dump, ...] = ()


# In the order in which a difference is looked for, each as the command calls it.
_NAMES = {
    "deed": "the command",
    "version": "--version",
    "source": "data.source.url",
    "files": "the files",
    "hours": "--from and --to",
    "data": "how rows are read (`data` of the values file)",
    "no_clicks": "--no-clicks",
    "form": "--output-format",
    "copied": "--copy",
    "dumps": "--dump",
}


class ScoringTask(Record):
    """A part of a file: the bytes [start, stop) of it, where 0 is its end. `size` is the file's; `split` is its hour or name."""

    path: str
    split: str
    output: str
    start: Whole
    stop: Whole
    size: Whole

    @property
    def bytes(self) -> int:
        return (self.stop or self.size) - self.start


class Job(Record):
    """`version` is the id that `options.version` was when the job began; `manifest` is the SHA-256 of its manifest."""

    options: Options
    version: VersionId
    manifest: str
    tasks: tuple[ScoringTask, ...]


class QualitySums(Record):
    """Sums over impressions of one task, or of several: `positives` and `negatives` are counts by bucket of the logit.

    `predicted` is of probabilities, `loss` in nats, `absolute` and `squared` of the distance to 0 or 1.
    """

    predicted: Amount = 0
    loss: Amount = 0
    absolute: Amount = 0
    squared: Amount = 0
    positives: dict[int, Whole] = Field(default_factory=dict)
    negatives: dict[int, Whole] = Field(default_factory=dict)


class Written(Record):
    """An output as it was written."""

    bytes: Whole
    sha256: str


class Outcome(Record):
    """The result of a task: `rows` of its input, `refused` of them by reason, an example of each, the sums of the others. `written` is
    absent where a task has no output, and in those of an earlier release.
    """

    rows: Whole
    written: Written | None = None
    refused: dict[str, Whole] = Field(default_factory=dict)
    examples: dict[str, str] = Field(default_factory=dict)
    shows: Whole = 0
    clicks: Whole = 0
    quality: QualitySums | None = None


def digest_of(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def tasks_of(
    parts: list[tuple[str, int, int]], files: dict[str, int], splits: dict[str, str], names: dict[str, str], ending: str
) -> tuple[ScoringTask, ...]:
    """One task a range of a file. `names` are those of the files in the output, `ending` is that of outputs.

    Raises OutputRefused where two tasks would have one output.
    """
    of_file: dict[str, int] = {}
    for path, _, _ in parts:
        of_file[path] = of_file.get(path, 0) + 1
    found, number = [], dict.fromkeys(of_file, 0)
    for path, start, stop in parts:
        number[path] += 1
        which = "" if of_file[path] == 1 else f".{number[path]:05d}-of-{of_file[path]:05d}"
        output = f"{names[path]}{which}.{ending}"
        found.append(
            ScoringTask(path=path, split=splits[path], output=output, start=start, stop=stop, size=files[path])
        )
    _refuse_collisions(found)
    return tuple(found)


def _refuse_collisions(tasks: Iterable[ScoringTask]) -> None:
    """A part of a cut file is called as a whole file may be."""
    by_output: dict[str, ScoringTask] = {}
    for task in tasks:
        other = by_output.setdefault(task.output, task)
        if other is not task:
            raise OutputRefused(
                f"{other.path} and {task.path} would have the same output {task.output}; rename one of them, or set another "
                "data.taskBytes"
            )


class JobFolder:
    """A job where its processes share it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def job(self) -> Job | None:
        """None before any was begun. Raises OtherJob, StoreError."""
        try:
            return read_document(Job, self.store.get_bytes(DOCUMENT))
        except NotInStore:
            return None
        except DocumentDamaged as damaged:
            raise OtherJob(
                f"{DOCUMENT} in {self.store.url} is damaged ({damaged}); delete the folder, or give another one"
            ) from damaged

    def begin(self, job: Job) -> Job:
        """The job of this folder: this one, or the one that another process has begun. Raises OutputRefused, StoreError."""
        there = self._left_over(job)
        # Another process that has begun meanwhile may have written that; its document came first.
        if there is not None and self.job() is None:
            raise OutputRefused(
                f"{there} is in {self.store.url} already, and there is no {DOCUMENT} that tells which run wrote it; give another "
                "folder, or delete this one"
            )
        with suppress(AlreadyPublished):
            self.store.put_bytes(job.to_json(), DOCUMENT)
        found = self.job()
        if found is None:
            raise OtherJob(f"{DOCUMENT} was deleted from {self.store.url} meanwhile; run the command again")
        self.check(found, job.options)
        return found

    def _left_over(self, job: Job) -> str | None:
        """A file that would pass for one of this job."""
        if self.store.exists(SUCCESS):
            return SUCCESS
        if names := self.store.list(DONE):
            return f"{DONE}/{names[0]}"
        if job.options.deed != "predict":
            return None
        by_folder: dict[str, set[str]] = {}
        for task in job.tasks:
            folder, _, name = task.output.rpartition("/")
            by_folder.setdefault(folder, set()).add(name)
        for folder, wanted in sorted(by_folder.items()):
            if names := sorted(wanted & {name.rstrip("/") for name in self.store.list(folder or ".")}):
                return f"{folder}/{names[0]}".lstrip("/")
        return None

    def check(self, found: Job, options: Options) -> None:
        """Raises OtherJob unless the job in the folder was asked for with the same options; its version may be named by its id."""
        for field, name in _NAMES.items():
            before, now = getattr(found.options, field), getattr(options, field)
            if before != now and not (field == "version" and now == str(found.version)):
                shown = "" if field == "data" else f": {_shown(before)} there, {_shown(now)} now"
                raise OtherJob(
                    f"{self.store.url} was begun by another run, and differs in {name}{shown}; "
                    "give another folder, or delete this one"
                )

    def done(self) -> set[int]:
        """Raises StoreError."""
        names = (name.removesuffix(".json") for name in self.store.list(DONE))
        return {int(name) for name in names if name.isdigit()}

    def is_done(self, task: int) -> bool:
        return self.store.exists(f"{DONE}/{task}.json")

    def outcome(self, task: int) -> Outcome:
        """Raises NotInStore, OtherJob."""
        try:
            return read_document(Outcome, self.store.get_bytes(f"{DONE}/{task}.json"))
        except DocumentDamaged as damaged:
            raise OtherJob(
                f"{DONE}/{task}.json in {self.store.url} is damaged ({damaged}); delete it, and run the command again"
            ) from damaged

    def is_finished(self) -> bool:
        return self.store.exists(SUCCESS)

    def changed(self, job: Job) -> Iterator[int]:
        """The done tasks whose outputs are no longer as they were written. Reads all of them. Raises OtherJob, StoreError."""
        for task in sorted(self.done()):
            written = self.outcome(task).written
            if written is not None and not self._stands(job.tasks[task].output, written):
                yield task

    def _stands(self, output: str, written: Written) -> bool:
        digest, size = hashlib.sha256(), 0
        with suppress(NotInStore):
            if self.store.size(output) != written.bytes:
                return False
            for block in self.store.read_from(output):
                digest.update(block)
                size += len(block)
        return (size, digest.hexdigest()) == (written.bytes, written.sha256)

    def reopen(self, job: Job, task: int) -> None:
        """The task is to be done again: its result goes last, so that a look after a crash finds the same. Raises StoreError."""
        self.store.delete(SUCCESS)
        self.store.delete(job.tasks[task].output)
        self.store.delete(f"{DONE}/{task}.json")

    def note(self, task: int, outcome: Outcome) -> None:
        """The task is done. Another process may have said so already: the first one counts."""
        with suppress(AlreadyPublished):
            self.store.put_bytes(outcome.to_json(), f"{DONE}/{task}.json")

    def finish(self, tasks: Iterable[ScoringTask]) -> None:
        """All tasks are done: what lost processes have left goes, and the donefile of the folder comes."""
        self.store.delete(LEASES)
        for folder in sorted({task.output.rpartition("/")[0] or "." for task in tasks} | {DONE, FOLDER}):
            self.store.sweep(folder)
        with suppress(AlreadyPublished):
            self.store.put_bytes(b"", SUCCESS)


class OpenTasks:
    """The tasks that one process may still take, in its order. The folder is listed once in a while, not for each task: a listing is
    as long as the job.
    """

    def __init__(self, folder: JobFolder, order: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._open = list(order)
        self._clock = clock
        self._next = clock()

    def left(self) -> list[int]:
        """Some may have been done elsewhere meanwhile; none is left only if the folder says so. Raises StoreError."""
        if self._clock() >= self._next or not self._open:
            done = self._folder.done()
            self._open = [task for task in self._open if task not in done]
            self._next = self._clock() + _LOOK_SECONDS
        return self._open

    def look_again(self) -> None:
        """All are held by others: look at the folder next time."""
        self._next = self._clock()

    def settle(self, task: int) -> None:
        """This process takes it, and never again."""
        self._open.remove(task)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:3])) + (" …" if len(value) > 3 else "") or "none"
    if isinstance(value, bool):
        return "given" if value else "not given"
    return str(value)
