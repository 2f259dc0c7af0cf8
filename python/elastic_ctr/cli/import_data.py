"""`elastic-ctr import`: click logs of other systems as hours that can be trained on."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from elastic_ctr.cli.entrypoint import reason_of, refuse
from elastic_ctr.cli.shared_options import grouped
from elastic_ctr.features.hours import VALUES, HoursRefused, HourTree, parse_hour
from elastic_ctr.features.importers import (
    CRITEO,
    EPOCH,
    ISO,
    CsvFormat,
    ImportRefused,
    LibfmFormat,
    Rows,
    columns_of,
    import_files,
)
from elastic_ctr.features.slots import SlotList

_REPORT_ROWS = 100_000

app = typer.Typer(
    name="import",
    no_args_is_help=True,
    help="Turn click logs of other systems into hours that can be trained on: OUT/YYYYMMDD/HH/part-00000, a donefile "
    "in each hour, and OUT/slot.conf.",
)

Files = Annotated[list[Path], typer.Argument(help="Files to read, in this order; .gz is unzipped.", exists=True)]
Out = Annotated[Path, typer.Argument(help="The folder to write; it must be empty or absent.")]


@dataclass(frozen=True)
class Writing:
    """Options of every importer: which hours, and what becomes of a folder that is there."""

    rows_per_hour: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that make an hour, for rows without a time; all are in one if it is not given."),
    ] = None
    start: Annotated[str, typer.Option(metavar="YYYYMMDD/HH", help="The first hour, for rows without a time.")] = (
        "20200401/00"
    )
    max_refused_share: Annotated[
        float, typer.Option(min=0, max=1, help="Refused rows among all: above this nothing is written.")
    ] = 0.01
    append: Annotated[
        bool, typer.Option("--append", help="Add hours after those in OUT; the slots must be the same.")
    ] = False
    force: Annotated[
        bool, typer.Option("--force", help="Delete the hours, slot.conf and values.yaml in OUT, and write new ones.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False


@dataclass(frozen=True)
class Csv:
    """How a CSV file is written, and which of its columns are what."""

    fields: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns that become slots, with commas between.")
    ] = None
    without: Annotated[
        str | None,
        typer.Option("--except", metavar="A,B,…", help="Instead of --fields: every column but these, label and time."),
    ] = None
    label: Annotated[
        str | None, typer.Option(help="Column of the label: 1 or true is a click, 0, -1 and false are none.")
    ] = None
    show: Annotated[str | None, typer.Option(help="Column of show, instead of a label; goes with --click.")] = None
    click: Annotated[str | None, typer.Option(help="Column of click, instead of a label; goes with --show.")] = None
    time: Annotated[
        str | None, typer.Option(help="Column of the time; rows go to their own hours, whatever their order.")
    ] = None
    time_format: Annotated[
        str,
        typer.Option(
            help=f"Of the time column: {ISO} (ISO 8601; without an offset it is UTC), {EPOCH} (seconds since 1970), or as in "
            "Python's strptime."
        ),
    ] = ISO
    max_hours: Annotated[
        int, typer.Option(min=1, help="More hours between the first and the last row are refused as a mistake.")
    ] = 24 * 366
    delimiter: Annotated[str, typer.Option(help="One character between columns, or tab.")] = ","
    quote: Annotated[
        str | None,
        typer.Option(
            help='One character around values that hold delimiters, or none; if it is not given, " is, and none between tabs.'
        ),
    ] = None
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line of each file names its columns.")
    ] = True
    columns: Annotated[
        str, typer.Option(metavar="A,B,…", help="Names for files without header; else columns are called 0, 1, 2, …")
    ] = ""

    @property
    def between(self) -> str:
        return "\t" if self.delimiter in {"tab", "\\t"} else self.delimiter

    @property
    def around(self) -> str | None:
        """Files with tabs between hold quotes as they are, as Criteo's do."""
        if self.quote is None:
            return None if self.between == "\t" else '"'
        return None if self.quote == "none" else self.quote


@app.command("csv")
@grouped
def csv_files(files: Files, out: Out, given: Csv, writing: Writing) -> None:
    """CSV files with a label, or with show and click; every other column may become a slot of the same name.

    Example: elastic-ctr import csv clicks.csv --label is_attributed --fields ip,app,os --time click_time hours
    """
    with _refusals():
        if given.time is not None and writing.rows_per_hour is not None:
            raise ImportRefused("--time and --rows-per-hour exclude each other; give one of them.")
        if (given.fields is None) == (given.without is None):
            raise ImportRefused("say either --fields, or --except for every other column.")
        kind = CsvFormat(
            fields=_names(given.fields or "") or _others(files[0], given),
            label=given.label,
            show=given.show,
            click=given.click,
            time=given.time,
            time_format=given.time_format,
            delimiter=given.between,
            quote=given.around,
            header=given.header,
            columns=_names(given.columns),
        )
        _import(files, kind.rows, kind.slots(), out, writing, given.max_hours)


def _others(file: Path, given: Csv) -> tuple[str, ...]:
    """Every column but those of --except, the label and the time."""
    if given.without is None:
        return ()
    first = columns_of(file, given.between, given.around)
    names = first if given.header else list(_names(given.columns)) or [str(number) for number in range(len(first))]
    left_out = _names(given.without)
    if unknown := [name for name in left_out if name not in names]:
        raise ImportRefused(f"{file} has no column {unknown[0]!r}; its columns are: {', '.join(names[:100])}.")
    return tuple(name for name in names if name not in {*left_out, given.label, given.show, given.click, given.time})


@app.command()
@grouped
def criteo(files: Files, out: Out, writing: Writing) -> None:
    """Criteo's display advertising data: tabs between, no header, label, 13 counts, 26 categories.

    Gives 39 slots, I1 to I13 and C1 to C26. A count above 2 becomes the square of its logarithm, rounded down; what is
    empty gives its slot no feature.
    """
    with _refusals():
        _import(files, CRITEO.rows, CRITEO.slots(), out, writing)


@app.command()
@grouped
def libfm(
    files: Files,
    out: Out,
    writing: Writing,
    fields: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Features of a line, if the n-th is always of the n-th field: each field is a slot then. "
            "Otherwise all are in one slot, `features`.",
        ),
    ] = None,
) -> None:
    """Files of libFM and libSVM: `label index:value …`, with labels 1 and 0 or 1 and -1."""
    with _refusals():
        kind = LibfmFormat(fields)
        _import(files, kind.rows, kind.slots(), out, writing)


def _import(
    files: list[Path],
    rows: Callable[[TextIO, str], Rows],
    slots: SlotList,
    out: Path,
    writing: Writing,
    max_hours: int = 24 * 366 * 10,
) -> None:
    start = parse_hour(writing.start)
    if writing.append and writing.force:
        raise ImportRefused("--append and --force exclude each other; give one of them.")
    with HourTree(out, force=writing.force, append=writing.append) as tree, _progress() as report:
        summary = import_files(
            files,
            lambda stream, name: _reported(rows(stream, name), name, report),
            slots,
            tree,
            start=start,
            rows_per_hour=writing.rows_per_hour,
            max_hours=max_hours,
            max_refused_share=writing.max_refused_share,
        )
    if writing.as_json:
        typer.echo(json.dumps({**summary.as_dict(), "deletedHours": tree.deleted}))
        return
    typer.echo(
        f"{summary.records} of {summary.rows} rows are in {summary.hours} hours, {summary.start} to {summary.end}, of {out}:"
    )
    typer.echo(f"  {summary.shows} shows, {summary.clicks} clicks, {summary.slots} slots (slot.conf)")
    if summary.refused:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.refused.most_common())
        typer.echo(f"  {summary.refused.total()} rows were refused: {reasons}. First:")
        for example in summary.examples:
            typer.echo(f"    {example}")
    if tree.deleted:
        typer.echo(f"  deleted before: {len(tree.deleted)} hours, {tree.deleted[0]} to {tree.deleted[-1]}")
    if writing.append:
        typer.echo(
            f"  {out / VALUES} is as it was: training goes on to {summary.end} if its data.end does, or is left out"
        )


def _reported(rows: Rows, name: str, report: Callable[[str], None]) -> Rows:
    for number, row in enumerate(rows, 1):
        if number % _REPORT_ROWS == 0:
            report(f"{number:,} rows of {name} are read")
        yield row


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """On a terminal a line that changes, elsewhere a line for each report."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda sentence: typer.echo(sentence, err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("rows are read")
        yield lambda sentence: shown.update(task, description=sentence)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ImportRefused, HoursRefused, OSError) as error:
        refuse(reason_of(error), 1)
