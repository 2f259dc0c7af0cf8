"""`elastic-ctr propose`: the features of a values file that has none, from the first rows of the files that it names."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml

from elastic_ctr.config.data import Data
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import Values
from elastic_ctr.formats.imports.delimited_files import CsvFormat, CsvImport, RecordFormat
from elastic_ctr.formats.imports.importers import ImportRefused, Summary
from elastic_ctr.formats.imports.proposal import Proposed, names_of_features, yaml_text
from elastic_ctr.formats.imports.record_files import JsonImport, ParquetImport
from elastic_ctr.formats.imports.written_values import features_text
from elastic_ctr.formats.readers.partitions import partition_values
from elastic_ctr.jobs.scoring.listing import NothingToRead, complete_hours
from elastic_ctr.operate.cli.analyze import AnalysisRefused, FirstRows, first_rows
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, read_values
from elastic_ctr.store.backends import StoreError, open_source
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.master.calendar.split_files import SplitFiles, missing_folder, splits_there
from elastic_ctr.training.trainer.conversions import format_of

_STOPPED = 130


class DataBlock(Section):
    """`data:` of a values file, whatever else is in the file."""

    data: Data


@dataclass(frozen=True)
class FirstSplit:
    """The first complete split: its name, its files by their paths in the source with their bytes, and the columns in the names of folders
    with their values; `of_path` are those of `data.path`, which have one value.
    """

    name: str
    files: dict[str, int]
    folders: dict[str, set[str]]
    of_path: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """The columns that a user names: `fields` become features, None: those that seem useful; `without` do not."""

    fields: tuple[str, ...] | None
    without: tuple[str, ...]

    @classmethod
    def of(cls, fields: str | None, without: str) -> "Chosen":
        return cls(None if fields is None else _names(fields), _names(without))

    def in_files(self, split: FirstSplit) -> "Chosen":
        """Without the columns in the names of folders, which files lack. `fields` may be empty then."""
        fields = self.fields and tuple(each for each in self.fields if each not in split.folders)
        return Chosen(fields, tuple(each for each in self.without if each not in split.folders))

    def has(self, column: str) -> bool:
        return column not in self.without if self.fields is None else column in self.fields


def propose(
    values: ValuesFile,
    set_file: SetFile = None,
    fields: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns that become features; by default those that seem useful."),
    ] = None,
    without: Annotated[
        str, typer.Option("--except", metavar="A,B,…", help="Columns that do not become features.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print features, columns and rows as JSON.")] = False,
) -> None:
    """Read the first rows of the first complete hour, and print `features:` for a values file that has none yet.

    Logs are read where they are: in folders, HDFS or a bucket. Notes on columns go to standard error. So this adds the features to the
    file, which you then read before you train:  elastic-ctr propose -f values.yaml >> values.yaml

    Exit codes: 0 printed; 1 the data cannot be read; 2 the values or options are wrong; 130 stopped.
    """
    name = " + ".join(map(str, values))
    try:
        given, parts = read_values(values, set_file)
        data = settings(DataBlock, {"data": given.get("data", {})}, name, parts).data
        _require_rows(data, given, name)
        found = _found(data, given, name, Chosen.of(fields, without))
    except ConfigRefused as wrong:
        refuse(str(wrong))
    except (AnalysisRefused, ImportRefused, NothingToRead, StoreError, OSError, ValueError) as failed:
        refuse(reason_of(failed), 1)
    except KeyboardInterrupt:
        refuse("stopped", _STOPPED)
    if as_json:
        columns = [asdict(each) for each in found.columns]
        told = {"split": found.split, "rows": found.rows, "refused": found.checked.refused}
        typer.echo(json.dumps({"features": yaml.safe_load(found.text)["features"], "columns": columns, **told}))
    else:
        typer.echo(found.text, nl=False)
    for column in found.columns:
        typer.echo(f"  {column}", err=True)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    refused = f"; {found.checked.why}" if found.checked.refused else ""
    typer.echo(f"training reads {found.checked.path}: {found.checked.records:,} rows{refused}", err=True)


@dataclass(frozen=True)
class SourceProposal:
    """The proposal for each column as `text` of a values file, of so many `rows`; and the first rows as training reads them."""

    columns: list[Proposed]
    notes: list[str]
    text: str
    split: str
    rows: int
    checked: FirstRows


def _found(data: Data, given: Mapping[str, object], name: str, columns: Chosen) -> SourceProposal:
    """Raises AnalysisRefused, ConfigRefused, ImportRefused, NothingToRead, StoreError, OSError."""
    source = open_source(data.source)
    split = _first_split(source, data)
    chosen = columns.in_files(split)
    importer = _importer(data, chosen)
    summary = _read(source, split, importer)
    of_folders = list(_of_folders(split, columns, importer.proposal.samples))
    features, proposed, notes = {each.feature: each.settings for each in of_folders}, of_folders, []
    if chosen.fields != ():
        features = importer.proposal.features() | features
        proposed, notes = [*importer.proposal.columns(), *of_folders], importer.proposal.notes()
    if not features:
        raise ImportRefused("no column is left to learn from; --fields names those that become features")
    text = features_text(features, summary.rows)
    # The reader of training has the last word on what can be read.
    checked = first_rows(settings(Values, {**given, **yaml.safe_load(text)}, name), split.files)
    if not checked.records:
        raise AnalysisRefused(f"training would read no row of {checked.path}: {checked.why}")
    notes += [
        f"the column {each!r} is of data.path, and left out: each request would need it." for each in split.of_path
    ]
    return SourceProposal(proposed, notes, text, split.name, summary.rows, checked)


def _require_rows(data: Data, given: Mapping[str, object], name: str) -> None:
    """Raises ConfigRefused."""
    if given.get("features"):
        raise ConfigRefused(f"{name}: there are features already; take them out of the file for a proposal")
    if data.is_stream:
        raise ConfigRefused(f"{data.source.url} is a stream; `elastic-ctr import` proposes features from a file of it")
    if data.format in {"clicks", "reader"}:
        raise ConfigRefused(
            f"format {data.format} has no columns to propose features for; csv, tsv, jsonl and parquet have"
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _importer(data: Data, columns: Chosen) -> CsvImport | JsonImport | ParquetImport:
    """Return what reads rows and proposes. Raises ImportRefused."""
    label, show, click = (data.label, None, None) if data.shows is None else (None, data.shows, data.label)
    if data.format in {"csv", "tsv"}:
        tabs = data.format == "tsv"
        form = CsvFormat(
            label=label,
            show=show,
            click=click,
            fields=columns.fields or None,
            without=columns.without,
            delimiter="\t" if tabs else ",",
            quote=None if tabs else '"',
            header=data.columns is None,
            columns=data.columns or (),
        )
        return CsvImport(form)
    kind = JsonImport if data.format == "jsonl" else ParquetImport
    rows = RecordFormat(label=label, show=show, click=click, fields=columns.fields or None, without=columns.without)
    return kind(rows, whole_vectors=True)


def _first_split(source: Source, data: Data) -> FirstSplit:
    """Return the first complete split with files, or the rows of a table. Raises NothingToRead, StoreError."""
    if data.is_table:
        listing = complete_hours(source, data, chosen=False)
        return _split_of(listing.hours[0], listing.files, data)
    if reason := missing_folder(source, data):
        raise NothingToRead(reason)
    looks = SplitFiles(source, data, at_once=True)
    for split in splits_there(source, data):
        if files := looks.look((split,)).files:
            return _split_of(split, files, data)
    complete = f"with a {data.donefile}" if data.settle_seconds is None else "once it has settled"
    raise NothingToRead(
        f"{source.url.rstrip('/')}/{data.template.root} has no complete folder with files from {data.start} on; a folder is complete "
        f"{complete}; are data.path and data.start right?"
    )


def _split_of(name: str, files: dict[str, int], data: Data) -> FirstSplit:
    root = format_of(data).root
    folders: dict[str, set[str]] = {}
    for path in files:
        for key, value in partition_values(path, root).items():
            folders.setdefault(key, set()).add(value)
    of_path = () if data.is_table else tuple(partition_values(f"{data.folder_of(name)}/", root))
    return FirstSplit(name, files, folders, of_path)


def _read(source: Source, split: FirstSplit, importer: CsvImport | JsonImport | ParquetImport) -> Summary:
    """Read rows until the proposal no longer changes. Raises ImportRefused, StoreError, OSError."""
    summary = Summary()
    for path in split.files:
        with source.open(path) as stored:
            for row in importer.file_rows(Path(path), stored):
                summary.count(path, row)
                if importer.is_guessed:
                    return summary
    if not summary.records:
        found = f", such as {summary.examples[0]}" if summary.examples else ""
        raise ImportRefused(f"the files of {split.name} have no row that can be read{found}")
    return summary


def _of_folders(split: FirstSplit, columns: Chosen, in_files: Iterable[str]) -> Iterator[Proposed]:
    """Yield the columns that are in the names of folders alone."""
    known = list(in_files)
    keys = [each for each in split.folders if each not in known and each not in split.of_path and columns.has(each)]
    for key, name in zip(keys, names_of_features([*known, *keys])[len(known) :], strict=True):
        of = "" if key == name else f", column: {yaml_text(key)}"
        why = f"{len(split.folders[key]):,} different values in the names of folders"
        yield Proposed(key, name, f"{{type: categorical{of}}}", why)
