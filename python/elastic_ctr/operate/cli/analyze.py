"""`elastic-ctr analyze`: the statistics of the columns of hours, read without a cluster."""

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_program import measured_inputs
from elastic_ctr.config.features import Features
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.statistics import absent_vocabularies, numbers_out_of_scale, short_vocabularies
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.statistics.collector import merged, part_name
from elastic_ctr.features.statistics.document import Statistics, series_of
from elastic_ctr.formats.imports.cell_texts import note_of_texts
from elastic_ctr.jobs.scoring.listing import at_hours, complete_hours
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, load_values
from elastic_ctr.operate.cli.progress import progress_of
from elastic_ctr.operate.cli.statistics_text import plot, statistics_table
from elastic_ctr.operate.fitted_text import output_console
from elastic_ctr.runtime.child_process import children_without_interrupts, die_with_parent, end_pool
from elastic_ctr.store.backends import StoreError, open_source
from elastic_ctr.store.backends.temporary import appearing
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import ranges
from elastic_ctr.training.trainer.conversions import reader_of

_STOPPED = 130

Part = tuple[str, int, int]  # a file, its first byte and the byte after the last; 0: to the end


class AnalysisRefused(ValueError):
    """The hours cannot be analyzed; the text is a sentence."""


@dataclass
class Analysis:
    """The sums over the rows read so far."""

    parts: dict[str, bytes] = field(default_factory=dict)
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, part: Part, result: control.TaskResult) -> None:
        path, start, _ = part
        self.parts[part_name(path, start)] = result.statistics
        self.records += result.records
        for each in result.refused:
            self.refused[each.reason] += each.lines
            self.examples.setdefault(each.reason, f"{path}: {next(iter(each.examples), '')}")

    def refusals(self) -> str:
        """Return a sentence about refused rows; empty if there are none."""
        if not self.refused:
            return ""
        reasons = ", ".join(
            f"{reason} {count:,} (such as {self.examples[reason]})" for reason, count in self.refused.most_common()
        )
        return f"{self.refused.total():,} of {self.refused.total() + self.records:,} rows were refused: {reasons}"


def analyze(
    values: ValuesFile,
    set_file: SetFile = None,
    hours: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST..LAST",
            help="Such as 20200401/00..20200401/05, or one hour. All between data.start and data.end that are there if it is not "
            "given.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write statistics.json there, for --set-file statistics=FILE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print statistics.json instead of the table.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the columns; it needs matplotlib.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many read at once.", show_default="one a core")
    ] = None,
) -> None:
    """Read hours of rows and print the statistics of every column that a feature reads: no cluster is needed.

    Numeric features without `transform`, and those with standardize, minMax, quantiles or a vocabulary of the most frequent values need them. A training without
    `statistics` makes its own of its first pass; these may be of more hours, and can be looked at before.

    Exit codes: 0 done; 1 the data cannot be read, or has too many refused rows; 2 the values or options are wrong; 130 stopped.
    """
    if picture is not None and find_spec("matplotlib") is None:
        refuse("--plot needs matplotlib, which is not installed: pip install matplotlib, or leave --plot out")
    try:
        given = load_values(values, set_file)
        data = given.data if hours is None else at_hours(given.data, hours, "--hours")
    except ConfigRefused as wrong:
        refuse(str(wrong))
    if given.features is None:
        refuse("there are no features: `data.format: clicks` holds feasigns, whose columns are not known")
    try:
        source = open_source(data.source)
        listing = complete_hours(source, data, chosen=hours is not None)
        for split in listing.waiting:
            typer.echo(f"{split} {data.why_incomplete} and is left out", err=True)
        found = _read(given, listing.files, processes or len(os.sched_getaffinity(0)))
        statistics = _checked(found, data)
        if output is not None:
            with appearing(output) as out:
                out.write(statistics.to_json().encode())
        if picture is not None:
            plot(statistics, picture)
    except (AnalysisRefused, OSError, ValueError) as failed:
        refuse(reason_of(failed), 1)
    except KeyboardInterrupt:
        refuse("stopped; nothing was written", _STOPPED)
    _tell(found, statistics, listing.hours, as_json=as_json)
    for note in _notes(given.features, data, statistics):
        typer.echo(f"note: {note}", err=True)
    if output is not None:
        typer.echo(f"{output} is for --set-file statistics={output}; SHA-256 {statistics.digest}", err=True)


def _tell(found: Analysis, statistics: Statistics, hours: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(statistics.to_json())
    else:
        output_console().print(statistics_table(statistics))
    typer.echo(f"{found.records:,} rows of {len(hours)} hours, {hours[0]} to {hours[-1]}", err=True)
    if refusals := found.refusals():
        typer.echo(refusals, err=True)


def _read(values: Values, files: dict[str, int], processes: int) -> Analysis:
    parts = ranges(files, values.data.task_bytes)
    sizes = {(path, start, stop): (stop or files[path]) - start for path, start, stop in parts}
    found = Analysis()
    with progress_of(sum(sizes.values()), "the first rows are read") as report:
        for part, result in _results(values, parts, min(processes, max(len(parts), 1))):
            found.add(part, result)
            report(sizes[part], f"{found.records:,} rows, {found.refused.total():,} refused")
    return found


@dataclass(frozen=True)
class FirstRows:
    """The beginning of the first file as training reads it: rows, refused ones, and `why` they are."""

    path: str
    records: int
    refused: int
    why: str


def first_rows(values: Values, files: dict[str, int]) -> FirstRows:
    """Read the first task of the files as a trainer does. Raises AnalysisRefused."""
    [first, *_] = ranges(files, values.data.task_bytes)
    found = Analysis()
    found.add(first, _result_of(PartReader(values).read(first)))
    return FirstRows(first[0], found.records, found.refused.total(), found.refusals())


def _results(values: Values, parts: Sequence[Part], processes: int) -> Iterator[tuple[Part, control.TaskResult]]:
    """Yield the results of parts in any order. Raises AnalysisRefused."""
    if processes == 1:
        reader = PartReader(values)
        for part in parts:
            yield part, _result_of(reader.read(part))
        return
    # Spawn, because a fork of a process with threads may hang.
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawned, _begin, (values.model_dump_json(by_alias=True), os.getpid()))
    try:
        # The pool starts its processes during the submits.
        with children_without_interrupts():
            running = {pool.submit(_read_part, part): part for part in parts}
        for done in as_completed(running):
            yield running.pop(done), _result_of(done.result())
    except BrokenProcessPool as lost:
        raise AnalysisRefused(
            "a process that read was ended; is there too little memory? Give fewer --processes"
        ) from lost
    finally:
        end_pool(pool)


def _result_of(answer: bytes | str) -> control.TaskResult:
    if isinstance(answer, str):
        raise AnalysisRefused(answer)
    return control.TaskResult.FromString(answer)


class PartReader:
    """Reads parts of files as a trainer does."""

    def __init__(self, values: Values) -> None:
        if values.features is None:
            raise AssertionError("there is nothing to read")
        self._source = open_source(values.data.source)
        self._reader = reader_of(values.data, values.features)

    def read(self, part: Part) -> bytes | str:
        """Return a serialized TaskResult, or the sentence of a failure, because not all errors of libraries can be pickled."""
        path, start, stop = part
        try:
            result, _ = self._reader.analyze(self._source, control.Task(path=path, start=start, end=stop))
        except (StoreError, OSError, ValueError) as failed:
            sentence = reason_of(failed)
            return sentence if path in sentence else f"{path}: {sentence}"
        return bytes(result.SerializeToString())


_reader: PartReader | None = None


def _begin(values: str, parent: int) -> None:
    """Set up a process of the pool."""
    die_with_parent(parent)
    global _reader  # noqa: PLW0603 (a pool hands nothing from its initializer to its calls)
    _reader = PartReader(Values.model_validate(json.loads(values)))


def _read_part(part: Part) -> bytes | str:
    if _reader is None:
        raise AssertionError("the process has not begun")
    return _reader.read(part)


def _checked(found: Analysis, data: Data) -> Statistics:
    """Raises AnalysisRefused."""
    rows = found.records + found.refused.total()
    if rows and found.refused.total() / rows > data.max_refused_share:
        raise AnalysisRefused(
            f"{found.refusals()}. That is more than data.maxRefusedShare {data.max_refused_share:g}, so a training would stop: mend "
            "the rows or raise the share"
        )
    if not found.records and rows:
        raise AnalysisRefused(
            f"every row was refused, so there is nothing to make statistics of: {found.refusals()}; mend the rows"
        )
    if not found.records:
        raise AnalysisRefused("the hours have no row; there is nothing to make statistics of")
    return merged(found.parts)


def _notes(features: Features, data: Data, statistics: Statistics) -> Iterator[str]:
    # Programs write some texts differently in JSON; other formats have types themselves.
    for text in measured_inputs(features)[0].texts if data.format in {"csv", "tsv"} else ():
        note = note_of_texts(text.column, (value for value, _ in statistics.texts[series_of(text)].top))
        if note is not None:
            yield note
    yield from short_vocabularies(features, statistics)
    yield from absent_vocabularies(features, statistics)
    yield from numbers_out_of_scale(features, statistics)
