"""`elastic-ctr import`: click logs of other systems as hours that can be trained on."""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from elastic_ctr.config.load import ConfigRefused, read_yaml
from elastic_ctr.formats.hours import DONEFILE, VALUES, HoursRefused, HourTree, folders_of, parse_hour
from elastic_ctr.formats.imports.cell_texts import EPOCH, FORMATS, ISO
from elastic_ctr.formats.imports.delimited_files import CRITEO, CriteoImport, CsvFormat, CsvImport, RecordFormat
from elastic_ctr.formats.imports.importers import Importer, ImportRefused, Summary, import_files
from elastic_ctr.formats.imports.record_files import JsonImport, ParquetImport
from elastic_ctr.formats.imports.sparse_files import SparseFormat, SparseImport
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.import_archive import fetched
from elastic_ctr.operate.cli.next_step import command
from elastic_ctr.operate.cli.shared_options import grouped
from elastic_ctr.store.backends.temporary import appearing

app = typer.Typer(
    name="import",
    no_args_is_help=True,
    help="Cut click logs into hours that can be trained on: OUT/YYYYMMDD/HH/part-00000, a donefile in each hour, and "
    "OUT/values.yaml, with which `elastic-ctr local run` trains them.",
)

Files = Annotated[
    list[Path], typer.Argument(help="Files to read, in this order; .gz and .zst are decompressed.", exists=True)
]
FilesOrNone = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Files to read, in this order; .gz and .zst are decompressed. None: OUT has hours already, and only "
        "OUT/values.yaml is written.",
        exists=True,
        dir_okay=False,
    ),
]
Out = Annotated[Path, typer.Argument(help="The folder to write; it must be empty or absent.")]

Form = TypeVar("Form", bound=RecordFormat)


@dataclass(frozen=True)
class Writing:
    """Options of every importer: the hours, and the handling of an existing folder."""

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
        bool, typer.Option("--append", help="Add hours after those in OUT; the columns must be the same.")
    ] = False
    force: Annotated[
        bool, typer.Option("--force", help="Delete the hours and values.yaml in OUT, and write new ones.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False


Positive = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS", help="Which labels are clicks: words with commas between, or a threshold such as '>=4'."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Of the files, such as latin-1, cp1252 or utf-16-le. By default UTF-8, or UTF-16 with a BOM."),
]


@dataclass(frozen=True)
class ColumnOptions:
    """The roles of columns."""

    fields: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Columns that become features; by default those that seem useful, but label and time."
        ),
    ] = None
    without: Annotated[
        str | None, typer.Option("--except", metavar="A,B,…", help="Columns that do not become features.")
    ] = None
    label: Annotated[
        str | None, typer.Option(help="Column of the label: 1 or true is a click, 0, -1 and false are none.")
    ] = None
    positive: Positive = None
    show: Annotated[str | None, typer.Option(help="Column of show, instead of a label; goes with --click.")] = None
    click: Annotated[str | None, typer.Option(help="Column of click, instead of a label; goes with --show.")] = None
    time: Annotated[
        str | None, typer.Option(help="Column of the time; rows go to their own hours, whatever their order.")
    ] = None
    time_format: Annotated[
        str,
        typer.Option(
            help=f"Of the time column: {ISO} (ISO 8601; without an offset it is UTC), {EPOCH} (since 1970, in a unit that is known by "
            f"its size), {', '.join(FORMATS[2:])}, or as in Python's strptime."
        ),
    ] = ISO
    max_hours: Annotated[
        int, typer.Option(min=1, help="More hours between the first and the last row are refused as a mistake.")
    ] = 24 * 366


@dataclass(frozen=True)
class TextOptions:
    """The format of a text file of columns."""

    delimiter: Annotated[str | None, typer.Option(help="One character between columns, or tab.")] = None
    quote: Annotated[
        str | None,
        typer.Option(
            help='One character around values that hold delimiters, or none; by default ", and none between tabs.'
        ),
    ] = None
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line of each file names its columns.")
    ] = True
    columns: Annotated[
        str, typer.Option(metavar="A,B,…", help="Names for files without header; else columns are called 0, 1, 2, …")
    ] = ""

    def form(self, given: ColumnOptions, writing: Writing, encoding: str | None, default: str) -> CsvFormat:
        """Return the format, with the default delimiter of a command. Raises ImportRefused."""
        between = "\t" if self.delimiter in {"tab", "\\t"} else (self.delimiter or default)
        # In files with tabs, such as Criteo's, quotes are ordinary characters.
        around = (None if between == "\t" else '"') if self.quote is None else self.quote
        quote = None if around == "none" else around
        columns = _names(self.columns)
        of_text = {"delimiter": between, "quote": quote, "header": self.header, "columns": columns}
        return _form(CsvFormat, given, writing, encoding, **of_text)


@app.command("csv")
@grouped
def csv_files(
    given: ColumnOptions,
    text: TextOptions,
    writing: Writing,
    files: FilesOrNone = None,
    encoding: Encoding = None,
    *,
    out: Out,
) -> None:
    """CSV files with a label, or with show and click. Rows stay as they are; only labels are written as 0 and 1.

    OUT/values.yaml says what each column is: guessed from the first rows, so read it before you train. With --time rows go
    to their own hours. If OUT has hours already, say only OUT: nothing but OUT/values.yaml is written.

    Example: elastic-ctr import csv clicks.csv --label is_attributed --except attributed_time --time click_time hours
    """
    with _refusals():
        form = text.form(given, writing, encoding, ",")
        _import_rows(files or [], CsvImport(form, _added_to(files, out, writing)), out, writing, given.max_hours)


@app.command("tsv")
@grouped
def tsv_files(
    given: ColumnOptions,
    text: TextOptions,
    writing: Writing,
    files: FilesOrNone = None,
    encoding: Encoding = None,
    *,
    out: Out,
) -> None:
    """Files with tabs between their columns, as `import csv --delimiter tab`."""
    with _refusals():
        form = text.form(given, writing, encoding, "\t")
        _import_rows(files or [], CsvImport(form, _added_to(files, out, writing)), out, writing, given.max_hours)


@app.command()
@grouped
def jsonl(
    given: ColumnOptions, writing: Writing, files: FilesOrNone = None, encoding: Encoding = None, *, out: Out
) -> None:
    """JSON lines: an object on each line, with a value for each column. Lines stay as they are but for their labels.

    The columns are those of the first thousand rows.
    """
    with _refusals():
        form = _form(RecordFormat, given, writing, encoding)
        importer = JsonImport(form, _added_to(files, out, writing))
        _import_rows(files or [], importer, out, writing, given.max_hours)


@app.command()
@grouped
def parquet(files: Files, given: ColumnOptions, writing: Writing, *, out: Out) -> None:
    """Parquet files. Rows become JSON lines: numbers of decimals, texts of dates, a column for each number of a vector."""
    with _refusals():
        importer = ParquetImport(_form(RecordFormat, given, writing, None), _added_to(files, out, writing))
        _import_rows(files, importer, out, writing, given.max_hours)


@app.command()
@grouped
def criteo(writing: Writing, files: FilesOrNone = None, *, out: Out) -> None:
    """Criteo's display advertising data: tabs between, no header, label, 13 counts, 26 categories.

    The counts I1 to I13 are numeric features, the categories C1 to C26 categorical ones.
    """
    with _refusals():
        _import_rows(files or [], CriteoImport(CRITEO, _added_to(files, out, writing)), out, writing)


Binary = Annotated[bool, typer.Option("--binary", help="Take each value but 0 as 1.")]


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
    positive: Positive = None,
    binary: Binary = False,
) -> None:
    """Files of libFM and libSVM: `label index:value …`, with labels 1 and 0 or 1 and -1.

    Where all values are 0 and 1 they become lines of feasigns, and OUT/slot.conf lists their slots. Other values are numbers: rows
    become JSON lines, with a numeric column for each index that has one.
    """
    _import_sparse(files, SparseFormat(fields=fields, binary=binary, positive=positive), out, writing)


@app.command()
@grouped
def libffm(files: Files, out: Out, writing: Writing, positive: Positive = None, binary: Binary = False) -> None:
    """Files of libFFM: `label field:index:value …`. Each field is a slot; values other than 0 and 1 are as of `import libfm`."""
    _import_sparse(files, SparseFormat(with_fields=True, binary=binary, positive=positive), out, writing)


@app.command()
def archive(
    url: Annotated[
        str, typer.Argument(help="http://, https:// or ftp:// address of a .tar, .tar.gz, .tar.bz2 or .tar.xz.")
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make; it must be absent or empty.")],
    sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="The archive's digest; another one is refused.")
    ] = None,
) -> None:
    """Unpack an archive on the web into OUT, whole or not at all: files for the other imports, or hours."""
    with _refusals():
        typer.echo(fetched(url, out, sha256))


_MOST_HOURS = 24 * 366 * 10


def _form(
    kind: Callable[..., Form], given: ColumnOptions, writing: Writing, encoding: str | None, **others: object
) -> Form:
    """Return the format of files with these columns. Raises ImportRefused."""
    if given.time is not None and writing.rows_per_hour is not None:
        raise ImportRefused("--time and --rows-per-hour exclude each other; give one of them.")
    return kind(
        label=given.label,
        show=given.show,
        click=given.click,
        positive=given.positive,
        time=given.time,
        time_format=given.time_format,
        fields=None if given.fields is None else _names(given.fields),
        without=_names(given.without or ""),
        encoding=encoding,
        **others,
    )


def _added_to(files: list[Path] | None, out: Path, writing: Writing) -> Mapping[str, object] | None:
    """Return the values file of the hours to which rows are added; None if there are none."""
    return read_yaml(out / VALUES) if files and writing.append and (out / VALUES).exists() else None


def _import_rows(
    files: list[Path],
    importer: CsvImport | JsonImport | ParquetImport,
    out: Path,
    writing: Writing,
    max_hours: int = _MOST_HOURS,
) -> None:
    if files:
        _import(files, importer, out, writing, max_hours)
    else:
        _write_values(importer, out, writing)
    for note in importer.notes:
        typer.echo(f"note: {note}", err=True)


def _import_sparse(files: list[Path], form: SparseFormat, out: Path, writing: Writing) -> None:
    with _refusals():
        with _progress() as report:
            importer = SparseImport.scanned(form, files, report)
        importer.added_to = _added_to(files, out, writing)
        _import(files, importer, out, writing)
        for note in importer.notes:
            typer.echo(f"note: {note}", err=True)


def _write_values(importer: CsvImport | JsonImport | ParquetImport, out: Path, writing: Writing) -> None:
    """Write the values file of existing hours."""
    if out.is_file():
        raise ImportRefused(f"{out} is a file; name the folder to write behind it, such as hours.")
    folders = folders_of(out)
    if not folders:
        raise ImportRefused(f"{out} has no folder YYYYMMDD/HH; name the files to import before it.")
    if (out / VALUES).exists() and not writing.force:
        raise ImportRefused(f"{out / VALUES} is there; say --force to write it anew.")
    summary = Summary()
    paths = (path for folder in folders for path in sorted(folder.iterdir()) if path.name != DONEFILE)
    for path in paths:
        for row in importer.file_rows(path):
            summary.count(str(path), row)
            if importer.is_guessed:
                break
        if importer.rewritten:
            raise ImportRefused(
                f"{path} has labels other than 0 and 1, other columns than the first file, or other quotes than trainers "
                "read; import the files themselves into another folder, which mends that."
            )
        if importer.is_guessed:
            break
    summary.require_few_refused(writing.max_refused_share)
    if not summary.records:
        raise ImportRefused(f"there is no row in {out}; nothing was written.")
    minutes = [int(each.name[:2]) * 60 + int(each.name[2:] or 0) for each in folders]
    interval = math.gcd(*minutes, 24 * 60) if any(len(each.name) == 4 for each in folders) else 60
    start, end = (f"{each.parent.name}/{each.name}" for each in (folders[0], folders[-1]))
    with appearing(out / VALUES) as stream:
        stream.write(importer.values(start, end, interval, 1).encode())
    open_ones = [each for each in folders if not (each / DONEFILE).exists()]
    if writing.as_json:
        found = {"folders": len(folders), "start": start, "end": end, "features": importer.features}
        typer.echo(json.dumps({**found, "withoutDonefile": len(open_ones)}))
        return
    _tell_columns(importer)
    typer.echo(f"{out / VALUES} trains {len(folders)} folders, {start} to {end}, with {importer.features} features")
    if open_ones:
        typer.echo(f"  {len(open_ones)} of them have no {DONEFILE}: training waits for it, from {open_ones[0]} on")


def _import(files: list[Path], importer: Importer, out: Path, writing: Writing, max_hours: int = _MOST_HOURS) -> None:
    start = parse_hour(writing.start)
    if writing.append and writing.force:
        raise ImportRefused("--append and --force exclude each other; give one of them.")
    minutes = _interval_of(out) if writing.append else None
    with HourTree(out, force=writing.force, append=writing.append, minutes=minutes) as tree, _progress() as report:
        summary = import_files(
            files,
            importer,
            tree,
            start=start,
            rows_per_hour=writing.rows_per_hour,
            max_hours=max_hours,
            max_refused_share=writing.max_refused_share,
            report=report,
        )
    if writing.as_json:
        columns = [asdict(each) for each in importer.columns]
        typer.echo(json.dumps({**summary.as_dict(), "deletedHours": tree.deleted, "columns": columns}))
        return
    folders = "hours" if summary.split_interval == 60 else f"folders of {summary.split_interval // 60} hours"
    typer.echo(
        f"{summary.records} of {summary.rows} rows are in {summary.hours} {folders}, {summary.start} to {summary.end}, of {out}:"
    )
    typer.echo(f"  {summary.shows} shows, {summary.clicks} clicks, {summary.features} features ({VALUES})")
    if summary.refused:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.refused.most_common())
        typer.echo(f"  {summary.refused.total()} rows were refused: {reasons}. First:")
        for example in summary.examples:
            typer.echo(f"    {example}")
    if tree.deleted:
        typer.echo(f"  deleted before: {len(tree.deleted)} hours, {tree.deleted[0]} to {tree.deleted[-1]}")
    _tell_columns(importer)
    values, train = shlex.quote(str(out / VALUES)), command("local", "up", "-f", out / VALUES)
    if writing.append:
        typer.echo(f"  {out / VALUES} is as it was; training goes on when its data.end is {summary.end}")
        typer.echo(f"next: sed -i 's|^  end: .*|  end: {summary.end}|' {values} && {train}")
        return
    passes = "pass" if summary.passes == 1 else "passes"
    rows = round(summary.records / summary.passes)
    typer.echo(f"  training makes {summary.passes:,} {passes} of about {rows:,} rows: {_passes_of(summary)}")
    typer.echo(f"next: {train}")


def _passes_of(summary: Summary) -> str:
    if summary.splits_per_pass == 1:
        return "each folder is one"
    interval = f"splitInterval {summary.split_interval}, " if summary.split_interval != 60 else ""
    return f"{interval}splitsPerPass {summary.splits_per_pass} in {VALUES}; fewer folders a pass give more versions"


def _tell_columns(importer: Importer) -> None:
    for column in importer.columns:
        typer.echo(f"  {column}")


def _interval_of(out: Path) -> int:
    """Return the minutes of the existing folders. Raises ImportRefused unless they are whole hours that divide a day."""
    data = read_yaml(out / VALUES).get("data") if (out / VALUES).exists() else None
    interval = data.get("splitInterval", 60) if isinstance(data, dict) else 60
    if not isinstance(interval, int) or interval < 60 or interval % 60 or (24 * 60) % interval:
        raise ImportRefused(
            f"{out / VALUES} has data.splitInterval {interval}, and an import writes whole hours that divide a day; import into another folder."
        )
    return interval


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a callback that shows reports: on a terminal in one changing line, elsewhere in a line each."""
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
    except (ImportRefused, HoursRefused, ConfigRefused, OSError, ValueError) as error:
        refuse(reason_of(error), 1)
