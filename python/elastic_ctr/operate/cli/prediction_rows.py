"""Rows of a file as `elastic-ctr predict` sends them: read as by trainers, and written as JSON."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from pathlib import PurePath
from typing import Annotated, BinaryIO, NamedTuple, get_args

import typer

from elastic_ctr.config.data import Data
from elastic_ctr.formats.blocks import open_lines
from elastic_ctr.formats.cells import Cells
from elastic_ctr.formats.inputs import USUAL_WORDS, InputColumns, MissingWords, TextInput
from elastic_ctr.formats.json_rows import json_of_row
from elastic_ctr.formats.readers.batches import Format, Kind, Wanted
from elastic_ctr.formats.readers.files import rows_in_range

_KINDS = tuple(each for each in get_args(Kind) if each != "reader")
# Separates the values of a list internally: serving has the real separators, and accepts lists.
_SEPARATOR = "\x1f"


class Sample(NamedTuple):
    """A line or row of the file, counted from 1. `text` is sent to serving; a bad one has None and a `reason`."""

    number: int
    show: int
    click: int
    text: str | None
    reason: str = ""


@dataclass(frozen=True)
class RowOptions:
    """Options of files of rows."""

    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Of rows: {', '.join(_KINDS)}. By default it is what the file's name ends in, or else that of the run.",
        ),
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            help="Of rows: the column of the label, 0 or 1, for AUC and logloss. By default that of the run, if it is there."
        ),
    ] = None
    shows: Annotated[
        str | None, typer.Option(help="Of rows: the column of impressions; --label is that of clicks then.")
    ] = None
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Of csv and tsv without a header: the names of the columns.")
    ] = None

    def format_of(self, name: str) -> Format:
        """Return the format of a file. Raises ValueError."""
        kind = self.file_format
        if kind is None:
            stem = name.removesuffix(".gz").removesuffix(".zst")
            kind = PurePath(stem).suffix.removeprefix(".")
            if kind not in _KINDS:
                raise ValueError(f"{name} does not end in .{', .'.join(_KINDS)}; say --format")
        known: Kind | None = next((each for each in get_args(Kind) if each == kind and kind in _KINDS), None)
        if known is None:
            raise ValueError(f"--format {kind} is none of {', '.join(_KINDS)}")
        if self.columns is not None and known not in {"csv", "tsv"}:
            raise ValueError(f"--columns is for csv and tsv; the columns of {known} have names already")
        return Format(known, None if self.columns is None else tuple(self.columns.split(",")))

    def given(self) -> str | None:
        """Return the name of an option that was given, or None."""
        given = {"--format": self.file_format, "--label": self.label, "--shows": self.shows, "--columns": self.columns}
        return next((option for option, value in given.items() if value is not None), None)

    def completed(self, data: Data, name: str) -> "RowOptions":
        """Return the options, completed by the format and the columns of a run where options and file name do not give them."""
        if data.format not in _KINDS:
            return self
        stem = name.removesuffix(".gz").removesuffix(".zst")
        named = PurePath(stem).suffix.removeprefix(".")
        kind = self.file_format or (named if named in _KINDS else data.format)
        columns = self.columns
        if columns is None and data.columns is not None and kind == data.format:
            columns = ",".join(data.columns)
        return replace(self, file_format=kind, columns=columns)

    def labelled(self, data: Data, names: Sequence[str]) -> "RowOptions":
        """Return the options with the label and shows of a run, if no label is named and the file has these columns."""
        wanted = [column for column in (data.label, data.shows) if column is not None]
        if self.label is not None or self.shows is not None or not wanted or not set(wanted) <= set(names):
            return self
        return replace(self, label=data.label, shows=data.shows)


def names_of(stream: BinaryIO, name: str, form: Format) -> list[str]:
    """Return the columns at the beginning of a file, which stays unread; empty if there are none. Raises DamagedFile."""
    if form.columns is not None:
        return list(form.columns)
    if form.kind == "parquet":
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(stream).names)
        except (OSError, ValueError):
            # The file is refused when its rows are read.
            return []
        finally:
            stream.seek(0)
    first = _first_line(stream, name).decode(errors="replace").strip("\ufeff\r\n")
    if form.kind == "tsv":
        return first.split("\t")
    try:
        return list(json.loads(first)) if form.kind == "jsonl" else next(csv.reader([first]), [])
    except (ValueError, TypeError, csv.Error, RecursionError):
        return []


def _first_line(stream: BinaryIO, name: str) -> bytes:
    if stream.seekable():
        try:
            return open_lines(stream, name).readline(1 << 20)
        finally:
            stream.seek(0)
    # From a pipe, take the bytes that have arrived, without consuming them.
    head = stream.peek(1 << 16) if isinstance(stream, io.BufferedReader) else b""
    return head.partition(b"\n")[0]


def samples_of_rows(
    stream: BinaryIO, name: str, columns: Mapping[str, str], options: RowOptions, words: MissingWords = USUAL_WORDS
) -> Iterator[Sample]:
    """Yield the rows of a file in order, refused ones included.

    Args:
        stream: the file as it is stored.
        name: its name, for sentences.
        columns: serving's columns, with their datatypes.
        options: the options of the command.
        words: the data's words for a missing number; serving has those for texts.

    Raises:
        ColumnsRefused: the file lacks a column, or has one that cannot be read.
        DamagedFile: the file is cut off.
        ValueError: the options do not fit the file.
    """
    form = options.format_of(name)
    lists = _SEPARATOR if form.kind in {"parquet", "jsonl"} else ""
    texts = tuple(TextInput(column, lists) for column, datatype in columns.items() if datatype != "FP64")
    numbers = tuple(column for column, datatype in columns.items() if datatype != "BYTES")
    wanted = Wanted(InputColumns(texts, numbers, MissingWords(numbers=words.numbers)), options.label, options.shows)
    number = 0
    for batch in rows_in_range(stream, name, form, wanted):
        kept = zip(batch.places.tolist(), range(len(batch.cells)), strict=True)
        bad = ((each.place, -1 - place) for place, each in enumerate(batch.refused))
        for _, row in merge(kept, bad):
            number += 1
            if row < 0:
                yield Sample(number, 0, 0, None, batch.refused[-1 - row].detail)
                continue
            text = _json_text(batch.cells, row, wanted.inputs, lists=bool(lists))
            yield Sample(number, int(batch.shows[row]), int(batch.clicks[row]), text)


def _json_text(cells: Cells, row: int, inputs: InputColumns, *, lists: bool) -> str:
    text = json_of_row(cells, row, inputs).decode()
    if not lists or "\\u001f" not in text:
        return text
    return json.dumps({column: _listed(value) for column, value in json.loads(text).items()})


def _listed(value: object) -> object:
    return value.split(_SEPARATOR) if isinstance(value, str) and _SEPARATOR in value else value
