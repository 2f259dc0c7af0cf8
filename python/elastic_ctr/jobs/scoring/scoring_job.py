"""A scoring job: the input and the version, cut into tasks. Its document is written once, and all its processes read it.

All shared state is in the folder of the job, which may be on any store:

    _job/job.json            this document, written by the first process
    _job/done/17.json        its result, written after its output; a task without it is scored again
    20200401/00/part-0.csv   the output of a task
    _SUCCESS                 all tasks are done
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from elastic_ctr.jobs.scoring.dumps import Dump
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import AlreadyPublished, NotInStore, Store
from elastic_ctr.store.versions.manifest import Record, VersionId, Whole

FOLDER = "_job"
DOCUMENT = f"{FOLDER}/job.json"
DONE = f"{FOLDER}/done"
SUCCESS = "_SUCCESS"

OutputFormat = Literal["csv", "parquet"]
Amount = Annotated[float, Field(ge=0)]


class OutputRefused(ValueError):
    """The folder cannot take the output; the text is a sentence."""


class OtherJob(OutputRefused):
    """The folder has another job; the text has the difference and the way out."""


class Options(Record):
    """The options of a run. Runs with the same options share a job.

    `version` is the value of the option. `data` is the digest of how rows are read; `hours` and `files` are the named inputs.
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


# The names of the options in messages, in the order in which they are compared.
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
    """A part of a file: its bytes [start, stop), where stop 0 is the end. `size` is the file's; `split` is its hour or name."""

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
    """`version` is the id to which `options.version` resolved when the job began; `manifest` is the SHA-256 of its manifest."""

    options: Options
    version: VersionId
    manifest: str
    tasks: tuple[ScoringTask, ...]


class QualitySums(Record):
    """Sums over impressions of one task, or of several: `positives` and `negatives` are counts by bucket of the logit.

    `predicted` sums probabilities, `loss` nats, `absolute` and `squared` the distances to 0 or 1.
    """

    predicted: Amount = 0
    loss: Amount = 0
    absolute: Amount = 0
    squared: Amount = 0
    positives: dict[int, Whole] = Field(default_factory=dict)
    negatives: dict[int, Whole] = Field(default_factory=dict)


class Written(Record):
    """Size and digest of an output as it was written."""

    bytes: Whole
    sha256: str


class Outcome(Record):
    """The result of a task: `rows` of its input, `refused` rows by reason, an example of each, the sums of the other rows. `written`
    is absent if the task has no output, and in results of an earlier release.
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
    """Return one task per range of a file. `names` are the files' names in the output, `ending` the ending of outputs.

    Raises OutputRefused if two tasks would have the same output.
    """
    of_file: dict[str, int] = {}
    for path, _, _ in parts:
        of_file[path] = of_file.get(path, 0) + 1
    # A part of a cut file may have the same output as another file.
    by_output: dict[str, ScoringTask] = {}
    number = dict.fromkeys(of_file, 0)
    for path, start, stop in parts:
        number[path] += 1
        which = "" if of_file[path] == 1 else f".{number[path]:05d}-of-{of_file[path]:05d}"
        output = f"{names[path]}{which}.{ending}"
        if output in by_output:
            raise OutputRefused(
                f"{by_output[output].path} and {path} would have the same output {output}; rename one of them, or set another "
                "data.taskBytes"
            )
        by_output[output] = ScoringTask(
            path=path, split=splits[path], output=output, start=start, stop=stop, size=files[path]
        )
    return tuple(by_output.values())


class JobFolder:
    """The folder of a job, through which its processes share it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def job(self) -> Job | None:
        """Return the job of the folder, or None before one was begun. Raises OtherJob, StoreError."""
        try:
            return read_document(Job, self.store.get_bytes(DOCUMENT))
        except NotInStore:
            return None
        except DocumentDamaged as damaged:
            raise OtherJob(
                f"{DOCUMENT} in {self.store.url} is damaged ({damaged}); delete the folder, or give another one"
            ) from damaged

    def begin(self, job: Job) -> Job:
        """Begin this job, unless another process has begun one, and return the folder's. Raises OutputRefused, StoreError."""
        there = self._left_over(job)
        # Another process that began meanwhile may have written the file; then its document is there.
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
        """Return a file that would be mistaken for one of this job, or None."""
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
        """Raises OtherJob unless the folder's job has the same options; its version may also be named by its id."""
        for field, name in _NAMES.items():
            before, now = getattr(found.options, field), getattr(options, field)
            if before != now and not (field == "version" and now == str(found.version)):
                shown = "" if field == "data" else f": {_shown(before)} there, {_shown(now)} now"
                raise OtherJob(
                    f"{self.store.url} was begun by another run, and differs in {name}{shown}; "
                    "give another folder, or delete this one"
                )

    def done(self) -> set[int]:
        """Return the tasks that have a result. Raises StoreError."""
        names = (name.removesuffix(".json") for name in self.store.list(DONE))
        return {int(name) for name in names if name.isdigit()}

    def is_done(self, task: int) -> bool:
        return self.store.exists(f"{DONE}/{task}.json")

    def outcome(self, task: int) -> Outcome:
        """Return the result of a task. Raises NotInStore, OtherJob."""
        try:
            return read_document(Outcome, self.store.get_bytes(f"{DONE}/{task}.json"))
        except DocumentDamaged as damaged:
            raise OtherJob(
                f"{DONE}/{task}.json in {self.store.url} is damaged ({damaged}); delete it, and run the command again"
            ) from damaged

    def is_finished(self) -> bool:
        return self.store.exists(SUCCESS)

    def changed(self, job: Job) -> Iterator[int]:
        """Yield the done tasks whose outputs differ from what was written, by reading all outputs. Raises OtherJob, StoreError."""
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
        """Open a task again. Its result is deleted last, so that after a crash the task is found changed again. Raises StoreError."""
        self.store.delete(SUCCESS)
        self.store.delete(job.tasks[task].output)
        self.store.delete(f"{DONE}/{task}.json")

    def note(self, task: int, outcome: Outcome) -> None:
        """Write the result of a task, unless another process has done so: the first result counts."""
        with suppress(AlreadyPublished):
            self.store.put_bytes(outcome.to_json(), f"{DONE}/{task}.json")

    def finish(self, tasks: Iterable[ScoringTask]) -> None:
        """Delete the files of lost processes, and write the donefile of the folder, once all tasks are done."""
        for folder in sorted({task.output.rpartition("/")[0] or "." for task in tasks} | {DONE, FOLDER}):
            self.store.sweep(folder)
        with suppress(AlreadyPublished):
            self.store.put_bytes(b"", SUCCESS)


class Share(NamedTuple):
    """The share of one of the pods of a job, which are numbered from 0."""

    pod: int
    pods: int


def order_of(tasks: int, share: Share | None) -> list[int]:
    """Return all tasks in the order in which to score them: those of the share, and then the others at random.

    The tasks of a slow or lost pod are scored by the pods that have done their own. No file shows which tasks are being scored: in a random
    order two processes rarely score the same one, and the first result of a task counts.
    """
    own = [] if share is None else [*range(share.pod, tasks, share.pods)]
    others = [*set(range(tasks)).difference(own)]
    random.shuffle(others)
    return [*own, *others]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:3])) + (" …" if len(value) > 3 else "") or "none"
    if isinstance(value, bool):
        return "given" if value else "not given"
    return str(value)
