"""What an import wrote: the product takes the values, trainers take each row, and requests agree with them."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from elastic_ctr.config.feature_program import measured_inputs, transformer_of
from elastic_ctr.config.load import read_yaml
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.statistics.collector import Collector, merged, part_name
from elastic_ctr.formats.cells import Cells, without_words
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.readers.batches import Format, Kind, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.serving.batching.instances import joined
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.rows_json import parse_rows


def check(out: Path) -> None:
    """Assert that the product takes the values, that trainers take each row, and that requests agree with them."""
    written = read_yaml(out / "values.yaml")
    values = Values.model_validate({**written, "data": {**written["data"], "source": {"url": f"file://{out}"}}})
    data, features = values.data, values.features
    assert features is not None
    assert data.format in {"csv", "tsv", "jsonl"}
    form = Format(cast("Kind", data.format), data.columns)
    parts = [path for path in sorted(out.glob("2*/*/part-*")) if path.stat().st_size]
    measured, series = measured_inputs(features, data.missing_words)
    collector = Collector(measured, 8)
    for batch in _batches(parts, form, Wanted(_read_alone(measured, series.numbers), data.label)):
        cells = without_words(batch.cells, data.missing_words.texts)
        collector.add(Cells(cells.data, cells.begins, cells.ends, series.of(cells.numbers)))
    statistics = merged({part_name("part", 0): collector.to_bytes()})
    transformer = transformer_of(features, statistics, data.missing_words)
    schema = Schema(transformer.slots, transformer, "d" * 64)
    for path in parts:
        trained: list[tuple[Any, Any, Any]] = []
        for batch in _batches([path], form, Wanted(transformer.inputs, data.label)):
            found = transformer.transform(batch.cells)
            trained.append((found.keys, found.lengths, found.numbers))
        rows = list(_requests(path, form, transformer.inputs))
        asked = joined([parse_rows(orjson.dumps({"instances": [row]}), schema, 1) for row in rows])
        assert asked.numbers is not None
        due: tuple[Any, Any, Any] = (asked.feasigns, asked.lengths, asked.numbers)
        for place, theirs in enumerate(due):
            ours = np.concatenate([each[place] for each in trained])
            assert ours.tobytes() == theirs.tobytes(), (rows, ours, theirs)


def _read_alone(measured: InputColumns, sources: Any) -> InputColumns:
    """The columns of the inputs that statistics are of, without numbers after steps."""
    return InputColumns(measured.texts, measured.numbers[: int(sources.max(initial=-1)) + 1], measured.missing)


def _batches(parts: Sequence[Path], form: Format, wanted: Wanted) -> Iterator[RowBatch]:
    for path in parts:
        with path.open("rb") as stream:
            for batch in rows_in_range(stream, path.name, form, wanted):
                assert not batch.refused, batch.refused
                yield batch


def _requests(path: Path, form: Format, inputs: InputColumns) -> Iterator[dict[str, object]]:
    """The rows of a file as a program would send them that has read it."""
    if form.kind == "jsonl":
        for line in path.read_bytes().splitlines():
            yield {column: value for column, value in orjson.loads(line).items() if column in inputs.columns}
        return
    # A row is a line, and a carriage return within it is text.
    lines = path.read_bytes().decode().split("\n")[:-1]
    table = [
        line.split("\t")
        if form.kind == "tsv"
        else [cell.replace("\v", "\r") for cell in next(csv.reader([line.replace("\r", "\v")], strict=True))]
        for line in (line.removesuffix("\r") for line in lines)
    ]
    names = list(form.columns) if form.columns is not None else table.pop(0)
    for cells in table:
        row: dict[str, object] = {}
        for each in inputs.texts:
            row[each.column] = cells[names.index(each.column)]
        for column in inputs.numbers:
            text = cells[names.index(column)]
            if text in inputs.missing.numbers:
                row[column] = text
            elif text:
                row[column] = float(text)
        yield row
