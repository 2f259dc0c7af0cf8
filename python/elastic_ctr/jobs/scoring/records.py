"""Rows of a part of a file as serving's instances, in the order of the file, and the refused rows with their reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.data import Data
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.cells import Cells
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.record_arrays import record_arrays
from elastic_ctr.serving.batching.instances import Instances, joined
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema

Places = npt.NDArray[np.int64]
Texts = tuple[Sequence[str], ...]

_NO_COUNTS = b"1 0 "


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """Row `place` of the block is not scored."""

    place: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Records:
    """A block of `rows` rows. Instances, shows, clicks and copied texts belong to the scored rows, `places` are their indices."""

    rows: int
    instances: Instances
    shows: Places
    clicks: Places
    places: Places
    refused: Sequence[RefusedRecord]
    copied: Texts = ()


class RecordReader(Protocol):
    def blocks(self, raw: BinaryIO, path: str, start: int, stop: int) -> Iterator[Records]:
        """Yield the rows in [start, stop) of a file, where stop 0 is its end. Raises DamagedFile, ColumnsRefused, ValueError."""


def reader_of(
    schema: Schema, data: Data, sparse_dim: int | None, copied: Sequence[str], *, no_clicks: bool
) -> RecordReader:
    """Return a reader for the features of the version and the rows described in `data`. Raises ValueError if they do not fit."""
    if schema.transformer is None:
        if data.format != "clicks":
            raise ValueError(
                f"the version takes lines of feasigns, and data.format is {data.format}; score it with the values file "
                "that it was trained with"
            )
        if copied:
            raise ValueError("--copy is for rows of columns; lines of clicks have none")
        return LineReader(schema, sparse_dim, data.max_line_bytes, no_clicks=no_clicks)
    if data.format == "clicks":
        raise ValueError(
            "the version takes rows of columns, and data.format is clicks; score it with the values file that it was trained with"
        )
    return ScoringRowReader(schema.transformer, data, copied, no_clicks=no_clicks)


class LineReader:
    """Reads lines of `show click feasign:slot …` by the trainers' converter; with `no_clicks` lines have only features."""

    def __init__(self, schema: Schema, sparse_dim: int | None, max_line_bytes: int, *, no_clicks: bool) -> None:
        self._slots = len(schema.slots)
        self._max_line_bytes = max_line_bytes
        self._before = _NO_COUNTS if no_clicks else b""
        self._converter = Converter(schema.slots, sparse_dim, max_line_bytes + len(self._before))

    def blocks(self, raw: BinaryIO, path: str, start: int, stop: int) -> Iterator[Records]:
        lines = open_lines(raw, path)
        for _, block in lines_in_range(lines, start, stop or None, self._max_line_bytes):
            yield self._records(block)

    def _records(self, block: bytes) -> Records:
        if self._before:
            block = self._before + block.removesuffix(b"\n").replace(b"\n", b"\n" + self._before) + b"\n"
        found = self._converter.convert(block)
        refused = list(found.refused)
        places = _ranks(found.offsets, [each.offset for each in refused])
        keys, lengths, shows, clicks = record_arrays(found.text, found.records, self._slots)
        return Records(
            found.records + len(refused),
            Instances(keys, lengths, found.records),
            shows,
            clicks,
            places,
            [RefusedRecord(each.line - 1, each.reason, each.detail) for each in refused],
        )


class ScoringRowReader:
    """Reads rows of columns by the trainers' readers and the version's features."""

    def __init__(self, transformer: Transformer, data: Data, copied: Sequence[str], *, no_clicks: bool) -> None:
        self._transformer = transformer
        assert data.format != "clicks"
        self._format = Format(data.format, data.columns, data.reader or "", data.partitions_below)
        self._own = len(transformer.inputs.texts)
        self._copied = len(copied)
        # Copied columns come after the features' inputs, whose indices the transformer uses.
        texts = (*transformer.inputs.texts, *(TextInput(column, "") for column in copied))
        inputs = InputColumns(texts, transformer.inputs.numbers, transformer.inputs.missing)
        label, shows = (None, None) if no_clicks else (data.label, data.shows)
        self._wanted = Wanted(inputs, label, shows)
        self._max_line_bytes = data.max_line_bytes

    def blocks(self, raw: BinaryIO, path: str, start: int, stop: int) -> Iterator[Records]:
        batches = rows_in_range(raw, path, self._format, self._wanted, start, stop or None, self._max_line_bytes)
        for batch in batches:
            places = _ranks(batch.places, [each.place for each in batch.refused])
            left = np.delete(np.arange(len(places) + len(batch.refused)), places)
            refused = [
                RefusedRecord(place, each.reason, each.detail)
                for place, each in zip(left.tolist(), batch.refused, strict=True)
            ]
            parts: list[Instances] = []
            scored: list[Places] = []
            for some, found in self._transformer.in_pieces(batch.cells):
                kept = some.start + found.kept
                if len(found.refused):
                    cells = batch.cells.part(some.start, some.stop)
                    refused += [
                        RefusedRecord(int(places[some.start + row]), reason, detail)
                        for row, reason, detail in self._transformer.refusals(cells, found)
                    ]
                taken = self._transformer.transform(batch.cells.only(kept)) if len(found.refused) else found
                scored.append(kept)
                parts.append(Instances(taken.keys, taken.lengths, len(kept), numbers=taken.numbers))
            rows = np.concatenate(scored)
            cells = batch.cells if len(rows) == len(places) else batch.cells.only(rows)
            yield Records(
                len(places) + len(batch.refused),
                joined(parts),
                batch.shows[rows],
                batch.clicks[rows],
                places[rows],
                refused,
                self._texts(cells),
            )

    def _texts(self, cells: Cells) -> Texts:
        return tuple(
            [cells.text(row, self._own + place).decode() for row in range(len(cells))] for place in range(self._copied)
        )


def _ranks(kept: Places, refused: Sequence[int]) -> Places:
    """Return the indices of the kept rows among all rows, which are in the order of their offsets."""
    if not refused:
        return np.arange(len(kept))
    return np.arange(len(kept)) + np.searchsorted(np.array(refused, np.int64), kept)


class BlockPosition(NamedTuple):
    """The position of a block in a file: the rows before it, counted from the byte `start` on."""

    path: str
    start: int
    rows: int


def split_unscored(
    records: Records, probabilities: Floats, where: BlockPosition, schema: Schema
) -> tuple[Records, Floats]:
    """Return the records, of which those without a probability are refused, and the probabilities of the others."""
    scored = ~np.isnan(probabilities)
    if scored.all():
        return records, probabilities
    refused = _refusals(records, scored, where, schema)
    kept = replace(
        records,
        instances=records.instances.only(scored),
        shows=records.shows[scored],
        clicks=records.clicks[scored],
        places=records.places[scored],
        refused=[*records.refused, *refused],
        copied=tuple([text for text, keep in zip(texts, scored, strict=True) if keep] for texts in records.copied),
    )
    return kept, probabilities[scored]


def _refusals(
    records: Records, scored: npt.NDArray[np.bool_], where: BlockPosition, schema: Schema
) -> Iterator[RefusedRecord]:
    behind = f" behind byte {where.start}" if where.start else ""
    for row in np.flatnonzero(~scored).tolist():
        place = int(records.places[row])
        detail = (
            f"row {where.rows + place + 1}{behind} of {where.path} has no probability: the network answers what is no number"
            f"{_largest(records.instances, row, schema)}."
        )
        yield RefusedRecord(place, Reason.NO_PROBABILITY, detail)


def _largest(instances: Instances, row: int, schema: Schema) -> str:
    """Return the largest input of the network as the end of a sentence, because it may be the reason."""
    if instances.numbers is None or schema.transformer is None:
        return "; a value of the version is damaged"
    numbers = instances.numbers[row]
    place = int(np.abs(numbers).argmax())
    return (
        f"; the largest number that it got is {numbers[place]:g}, of the feature {schema.transformer.numbers[place]!r}"
    )
