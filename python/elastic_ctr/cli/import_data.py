"""`elastic-ctr import`: click logs of other systems as hours that can be trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from elastic_ctr.features.hours import HoursRefused, HourTree, parse_hour
from elastic_ctr.features.importers import (
    DEFAULT_TIME_FORMAT,
    EPOCH,
    CsvFormat,
    ImportRefused,
    LibfmFormat,
    Rows,
    Summary,
    criteo_rows,
    criteo_slots,
    import_files,
)
from elastic_ctr.features.slots import SlotList

app = typer.Typer(
    name="import",
    no_args_is_help=True,
    help="Turn click logs of other systems into hours that can be trained on: OUT/YYYYMMDD/HH/part-00000, a donefile "
    "in each hour, and OUT/slot.conf.",
)

Files = Annotated[list[Path], typer.Argument(help="Files to read, in this order; .gz is unzipped.", exists=True)]
Out = Annotated[Path, typer.Argument(help="The folder to write; it must be empty or absent.")]
Start = Annotated[str, typer.Option(metavar="YYYYMMDD/HH", help="The first hour, for rows without a time.")]
RowsPerHour = Annotated[
    int | None,
    typer.Option(min=1, help="Rows that make an hour, for rows without a time; all are in one if it is not given."),
]
MaxRefusedShare = Annotated[
    float, typer.Option(min=0, max=1, help="Refused rows among all: above this nothing is written.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the hours and slot.conf that are in OUT.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]

_START = "20200401/00"


@app.command("csv")
def csv_files(
    files: Files,
    out: Out,
    fields: Annotated[str, typer.Option(metavar="A,B,…", help="Columns that become slots, with commas between.")],
    label: Annotated[str | None, typer.Option(help="Column of the label: 1 is a click, 0 and -1 are none.")] = None,
    show: Annotated[str | None, typer.Option(help="Column of show, instead of a label; goes with --click.")] = None,
    click: Annotated[str | None, typer.Option(help="Column of click, instead of a label; goes with --show.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Column of the time; rows go to their own hours, whatever their order.")
    ] = None,
    time_format: Annotated[
        str, typer.Option(help=f"Of the time column, as in Python's strptime, or {EPOCH} for seconds since 1970.")
    ] = DEFAULT_TIME_FORMAT,
    rows_per_hour: RowsPerHour = None,
    start: Start = _START,
    delimiter: Annotated[str, typer.Option(help="One character between columns, or tab.")] = ",",
    quote: Annotated[
        str | None,
        typer.Option(
            help='One character around values that hold delimiters, or none; if it is not given, " is, and none between tabs.'
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line of each file names its columns.")
    ] = True,
    columns: Annotated[
        str, typer.Option(metavar="A,B,…", help="Names for files without header; else columns are called 0, 1, 2, …")
    ] = "",
    max_hours: Annotated[
        int, typer.Option(min=1, help="More hours between the first and the last row are refused as a mistake.")
    ] = 24 * 366,
    max_refused_share: MaxRefusedShare = 0.01,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """CSV files with a label, or with show and click; every other column may become a slot of the same name.

    Example: elastic-ctr import csv clicks.csv --label is_attributed --fields ip,app,os --time click_time hours
    """
    with _refusals():
        if time is not None and rows_per_hour is not None:
            raise ImportRefused("--time and --rows-per-hour exclude each other; give one of them.")
        between = "\t" if delimiter in {"tab", "\\t"} else delimiter
        kind = CsvFormat(
            fields=_names(fields),
            label=label,
            show=show,
            click=click,
            time=time,
            time_format=time_format,
            delimiter=between,
            quote=_quote(quote, between),
            header=header,
            columns=_names(columns),
        )
        _import(
            files,
            kind.rows,
            kind.slots(),
            out,
            start=start,
            rows_per_hour=rows_per_hour,
            max_hours=max_hours,
            max_refused_share=max_refused_share,
            force=force,
            as_json=as_json,
        )


@app.command()
def criteo(
    files: Files,
    out: Out,
    rows_per_hour: RowsPerHour = None,
    start: Start = _START,
    max_refused_share: MaxRefusedShare = 0.01,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Criteo's display advertising data: tabs between, no header, label, 13 counts, 26 categories.

    Gives 39 slots, I1 to I13 and C1 to C26. A count above 2 becomes the square of its logarithm, rounded down; what is
    empty gives its slot no feature.
    """
    with _refusals():
        _import(
            files,
            criteo_rows,
            criteo_slots(),
            out,
            start=start,
            rows_per_hour=rows_per_hour,
            max_refused_share=max_refused_share,
            force=force,
            as_json=as_json,
        )


@app.command()
def libfm(
    files: Files,
    out: Out,
    fields: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Features of a line, if the n-th is always of the n-th field: each field is a slot then. "
            "Otherwise all are in one slot, `features`.",
        ),
    ] = None,
    rows_per_hour: RowsPerHour = None,
    start: Start = _START,
    max_refused_share: MaxRefusedShare = 0.01,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Files of libFM and libSVM: `label index:value …`, with labels 1 and 0 or 1 and -1."""
    with _refusals():
        kind = LibfmFormat(fields)
        _import(
            files,
            kind.rows,
            kind.slots(),
            out,
            start=start,
            rows_per_hour=rows_per_hour,
            max_refused_share=max_refused_share,
            force=force,
            as_json=as_json,
        )


def _import(
    files: list[Path],
    rows: Callable[[TextIO, str], Rows],
    slots: SlotList,
    out: Path,
    *,
    start: str,
    rows_per_hour: int | None,
    max_refused_share: float,
    force: bool,
    as_json: bool,
    max_hours: int = 24 * 366 * 10,
) -> None:
    first = parse_hour(start)
    with HourTree(out, force=force) as tree:
        summary = import_files(
            files,
            rows,
            slots,
            tree,
            start=first,
            rows_per_hour=rows_per_hour,
            max_hours=max_hours,
            max_refused_share=max_refused_share,
        )
    typer.echo(json.dumps(summary.as_dict()) if as_json else _told(summary, out))


def _told(summary: Summary, out: Path) -> str:
    lines = [
        f"{summary.records} of {summary.rows} rows are in {summary.hours} hours, {summary.start} to {summary.end}, of {out}:",
        f"  {summary.shows} shows, {summary.clicks} clicks, {summary.slots} slots (slot.conf)",
    ]
    if summary.refused:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.refused.most_common())
        lines.append(f"  {summary.refused.total()} rows were refused: {reasons}. First:")
        lines += [f"    {example}" for example in summary.examples]
    return "\n".join(lines)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _quote(given: str | None, delimiter: str) -> str | None:
    """Files with tabs between hold quotes as they are, as Criteo's do."""
    if given is None:
        return None if delimiter == "\t" else '"'
    return None if given == "none" else given


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ImportRefused, HoursRefused, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
