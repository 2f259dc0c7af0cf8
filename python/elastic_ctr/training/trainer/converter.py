"""Converts a task's lines or rows into the engine's input, and picks the samples of a task."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.record_text import Counts, record_text, shuffled_lines
from elastic_ctr.features.transforms.transformer import Transformed, Transformer
from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.cells import Cells, RowSample
from elastic_ctr.formats.convert import EXCERPT_BYTES, Converted, Converter
from elastic_ctr.formats.json_rows import cells_of_json, json_of_row
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.line import MAX_LINE_BYTES, Reason
from elastic_ctr.formats.readers.batches import Format, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.record_arrays import record_arrays
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.sources.streams.interface import Lines, Stream
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.converted_files import on_scratch
from elastic_ctr.training.trainer.refusals import Quarantined, Refusals, RefusedAt, refused_rows
from elastic_ctr.training.trainer.task_lines import (
    NOTHING,
    ORDINARY,
    SKIPPED,
    LeftOut,
    Suspect,
    Suspects,
    left_out_of,
    pieces_of,
)

Floats = npt.NDArray[np.float32]
_SAMPLE_KEYS = 4096


@dataclass(frozen=True, slots=True)
class ConvertedBlock:
    """A converted part of a task. `offer(n)` returns at most n samples of it; `cells` are its rows, unless it is of click lines;
    `suspects` are records that the model may not be able to predict.
    """

    text: bytes
    records: int
    shows: int
    clicks: int
    ignored: int
    padding: int
    refused: Iterable[RefusedAt]
    offer: Callable[[int], list[control.Sample]]
    cells: Cells | None = None
    suspects: Sequence[Suspect] = ()


@dataclass(frozen=True)
class SampleKeys:
    """The keys and numbers of samples. `keys` are unique.

    For every key of every sample, `positions` has its index in `keys`, and `segments` the sample's index times `slots` plus the slot.
    `numbers` is float32 [samples, numbers]; `averaged` is bool [slots], the slots whose sums are divided by their count of keys.
    """

    keys: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    numbers: Floats
    averaged: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, flat: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64], numbers: Floats, averaged: Sequence[bool]
    ) -> "SampleKeys":
        unique, positions = np.unique(flat, return_inverse=True)
        segments = np.repeat(np.arange(len(lengths)), lengths)
        return cls(unique, positions.astype(np.int64), segments, numbers, np.array(averaged, np.bool_))

    def pooled(self, values: Floats) -> Floats:
        """Pool values [unique, dim] -> [samples, slots * dim]; a slot without keys is zeros."""
        rows, slots = len(self.numbers), len(self.averaged)
        sums = np.zeros((rows * slots, values.shape[1]), np.float32)
        np.add.at(sums, self.segments, values[self.positions])
        counts = np.bincount(self.segments, minlength=rows * slots).astype(np.float32)
        divided = np.maximum(np.where(np.tile(self.averaged, rows), counts, 1), 1)
        # Both sizes are explicit, because reshape cannot infer one without samples or keys.
        found: Floats = (sums / divided[:, None]).astype(np.float32).reshape(rows, slots * values.shape[1])
        return found


class Conversion(Protocol):
    """The conversion of a file's records into the engine's text."""

    def blocks(self, lines: Lines, path: str, left_out: LeftOut = NOTHING) -> Iterator[ConvertedBlock]:
        """Yield converted blocks. `refused` has byte positions in `lines.raw`, and includes the records of `left_out`."""

    def sample(self, lines: Sequence[str]) -> SampleKeys:
        """Return the keys, without the padding key, and the numbers of samples by `ConvertedBlock.offer`."""


class ClickConversion:
    """Lines of `show click feasign:slot …`. A sample is a line without show and click."""

    def __init__(
        self, slots: SlotList, sparse_dim: int | None, max_line_bytes: int, *, late_clicks: bool = False
    ) -> None:
        self._slots = slots
        self._sparse_dim = sparse_dim
        self._converter = Converter(slots, sparse_dim, max_line_bytes, late_clicks=late_clicks)

    def blocks(self, lines: Lines, path: str, left_out: LeftOut = NOTHING) -> Iterator[ConvertedBlock]:
        text = open_lines(lines.raw, path)
        for offset, block in lines_in_range(text, lines.start, lines.stop, self._converter.max_line_bytes):
            yield from self._kept(offset, block, left_out) if left_out else [self._block(offset, block)]

    def _kept(self, offset: int, block: bytes, left_out: LeftOut) -> Iterator[ConvertedBlock]:
        """Yield the lines between those that are left out, and these as refused."""
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")).astype(np.int64) + 1
        edges = np.unique(np.concatenate([np.zeros(1, np.int64), ends, np.array([len(block)])]))
        which, kept_from = left_out.find(edges[:-1] + offset), 0
        for line in np.flatnonzero(which >= 0).tolist():
            begin, end = int(edges[line]), int(edges[line + 1])
            if begin > kept_from:
                yield self._block(offset + kept_from, block[kept_from:begin])
            reason, excerpt = left_out.reasons[which[line]], block[begin:end].rstrip(b"\n")[:EXCERPT_BYTES]
            yield ConvertedBlock(
                b"", 0, 0, 0, 0, 0, [RefusedAt(offset + begin, reason, SKIPPED, excerpt)], lambda _: []
            )
            kept_from = end
        if kept_from < len(block):
            yield self._block(offset + kept_from, block[kept_from:])

    def _block(self, offset: int, block: bytes) -> ConvertedBlock:
        found, no_keys = self._converter.convert(block), self._converter.no_keys
        refused = (RefusedAt(offset + each.offset, each.reason, each.detail, each.excerpt) for each in found.refused)
        counts = found.records, found.shows, found.clicks, found.ignored, found.padding
        return ConvertedBlock(found.text, *counts, refused, lambda wanted: _offer_lines(block, found, no_keys, wanted))

    def sample(self, lines: Sequence[str]) -> SampleKeys:
        found = self._converter.convert("".join(f"1 0 {line}\n" for line in lines).encode("ascii"))
        if found.records != len(lines):
            raise ValueError(f"{len(lines) - found.records} of {len(lines)} sample lines are none")
        keys, lengths, *_ = record_arrays(found.text, found.records, len(self._slots))
        known = keys != PADDING_KEY
        # An empty slot has only the padding key, and no other slot has it.
        lengths -= np.bincount(np.repeat(np.arange(len(lengths)), lengths)[~known], minlength=len(lengths))
        numbers = np.zeros((len(lines), 0), np.float32)
        return SampleKeys.of(keys[known], lengths, numbers, [False] * len(self._slots))


class RowConversion:
    """Rows of columns. A sample is a row as JSON, which serving reads like a request."""

    def __init__(
        self, transformer: Transformer, averaged: Sequence[str], form: Format, wanted: Wanted, max_line_bytes: int
    ) -> None:
        self._transformer = transformer
        self._averaged = [slot in averaged for slot in transformer.slots]
        self._format = form
        self._wanted = wanted
        self._max_line_bytes = max_line_bytes

    def blocks(self, lines: Lines, path: str, left_out: LeftOut = NOTHING) -> Iterator[ConvertedBlock]:
        batches = rows_in_range(
            lines.raw, path, self._format, self._wanted, lines.start, lines.stop, self._max_line_bytes
        )
        for batch in batches:
            refused = batch.refused
            for some, rows in self._transformer.in_pieces(batch.cells):
                cells = batch.cells.part(some.start, some.stop)
                piece = RowBatch(cells, batch.shows[some], batch.clicks[some], batch.places[some], refused)
                yield self._block(piece, rows, left_out)
                refused = []

    def _block(self, batch: RowBatch, rows: Transformed, left_out: LeftOut) -> ConvertedBlock:
        refused = [*refused_rows(batch), *self._left_out(batch, rows, left_out)]
        shows, clicks, cells, places = batch.shows, batch.clicks, batch.cells, batch.places
        out = np.flatnonzero(left_out.find(places) >= 0)
        refused += [
            RefusedAt(int(places[row]), reason, detail, b"", is_row=True)
            for row, reason, detail in self._transformer.refusals(cells, rows)
            if row not in out
        ]
        if len(out) or len(rows.refused):
            kept = np.setdiff1d(rows.kept, out)
            shows, clicks, cells, places = shows[kept], clicks[kept], cells.only(kept), places[kept]
            rows = self._transformer.transform(cells)
        text, ends = record_text(rows, shows, clicks)
        lengths = rows.lengths.reshape(len(cells), len(self._transformer.slots)).sum(axis=1)
        counts = len(cells), int(shows.sum()), int(clicks.sum()), 0, 0

        def offer(wanted: int) -> list[control.Sample]:
            return self._offer_rows(cells, shows, clicks, lengths, wanted)

        largest = np.abs(rows.numbers).max(axis=1, initial=0)
        suspects = [
            Suspect(int(places[row]), text[ends[row] : ends[row + 1]]) for row in np.flatnonzero(~(largest <= ORDINARY))
        ]
        return ConvertedBlock(text, *counts, refused, offer, cells, suspects)

    def _left_out(self, batch: RowBatch, rows: Transformed, left_out: LeftOut) -> Iterator[RefusedAt]:
        which = left_out.find(batch.places)
        for row in np.flatnonzero(which >= 0).tolist():
            reason, detail = left_out.reasons[which[row]], SKIPPED
            if reason is Reason.UNPREDICTABLE:
                number = int(np.abs(rows.numbers[row]).argmax())
                detail = (
                    f"{self._transformer.numbers[number]} is {rows.numbers[row, number]:g}, of which the model has no prediction; give "
                    "the feature `standardize`, `log1p` or `clip`."
                )
            excerpt = json_of_row(batch.cells, row, self._transformer.inputs)[:EXCERPT_BYTES]
            yield RefusedAt(int(batch.places[row]), reason, detail, excerpt, is_row=True)

    def _offer_rows(
        self, cells: Cells, shows: Counts, clicks: Counts, lengths: Counts, wanted: int
    ) -> list[control.Sample]:
        """Return the first row of each stretch with a key and at most 4096 keys: every validation looks up all samples."""
        found: list[control.Sample] = []
        if not wanted or not len(cells):
            return found
        edges = np.linspace(0, len(cells), min(wanted, len(cells)) + 1).astype(np.int64)
        for first, last in pairwise(edges.tolist()):
            for row in range(first, last):
                if not 0 < lengths[row] <= _SAMPLE_KEYS:
                    continue
                line = json_of_row(cells, row, self._transformer.inputs)
                if len(line) <= MAX_LINE_BYTES:
                    found.append(control.Sample(line=line.decode(), show=int(shows[row]), click=int(clicks[row])))
                    break
        return found

    def sample(self, lines: Sequence[str]) -> SampleKeys:
        cells = cells_of_json([line.encode() for line in lines], self._transformer.inputs)
        pieces = [rows for _, rows in self._transformer.in_pieces(cells)]
        keys, lengths, numbers = (
            np.concatenate([getattr(rows, name) for rows in pieces]) for name in ("keys", "lengths", "numbers")
        )
        return SampleKeys.of(keys, lengths, numbers, self._averaged)


def convert_task(
    source: Source | Stream,
    task: control.Task,
    conversion: Conversion,
    target: Path,
    sample: RowSample | None = None,
    suspects: Suspects | None = None,
) -> tuple[control.TaskResult, Quarantined]:
    """Convert the records of a task into one file for the engine, which appears when it is complete. Also add rows to `sample`,
    and records that the model may not be able to predict to `suspects`.

    Return counts, refusals and samples, and the refused records to quarantine. Raises ScratchFailed if the file cannot be
    written, StoreError, OSError and ValueError if the task cannot be read.
    """
    temporary = target.with_suffix(".part")
    with on_scratch(temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        out = temporary.open("wb")
    try:
        result, quarantined = _convert_pieces(source, task, conversion, out, sample, suspects)
        with on_scratch(temporary):
            out.close()
            if task.shuffle_seed:
                shuffle_lines(temporary, task.shuffle_seed)
            temporary.replace(target)
    except BaseException:
        with on_scratch(temporary):
            # A partial file would fill the disk for the next attempt.
            temporary.unlink(missing_ok=True)
            out.close()
        raise
    return result, quarantined


def shuffle_lines(file: Path, seed: int) -> None:
    """Shuffle the lines of a file by a seed."""
    if not file.stat().st_size:
        return
    target = file.with_suffix(".shuffled")
    try:
        with target.open("wb") as out:
            out.writelines(shuffled_lines(np.asarray(np.memmap(file, np.uint8, "r")), seed))
        target.replace(file)
    finally:
        target.unlink(missing_ok=True)


def _convert_pieces(
    source: Source | Stream,
    task: control.Task,
    conversion: Conversion,
    out: BinaryIO,
    sample: RowSample | None,
    suspects: Suspects | None,
) -> tuple[control.TaskResult, Quarantined]:
    result, refusals = control.TaskResult(), Refusals()
    samples: list[control.Sample] = []
    for path, lines in pieces_of(source, task):
        result.gone += lines.gone
        with lines.raw:
            for block in conversion.blocks(lines, path, left_out_of(task, path, lines)):
                with on_scratch(Path(out.name)):
                    out.write(block.text)
                for name in ("records", "shows", "clicks", "ignored", "padding"):
                    setattr(result, name, getattr(result, name) + getattr(block, name))
                refusals.add(path, block.refused, lines.offset_of)
                if suspects is not None and block.suspects:
                    suspects.add(path, [(lines.offset_of(each.place), each) for each in block.suspects])
                if sample is not None and block.cells is not None:
                    sample.add(block.cells)
                samples.extend(block.offer(task.samples))
    refusals.report(result)
    # Spread evenly over the task.
    kept = min(task.samples, len(samples))
    result.samples.extend(samples[position * len(samples) // kept] for position in range(kept))
    return result, refusals.quarantined


def _offer_lines(block: bytes, converted: Converted, no_keys: bytes, wanted: int) -> list[control.Sample]:
    """Return some accepted lines of a block as features, show and click: the first line with a key of each stretch.

    A line without a key, or longer than serving accepts, is trained but is no sample.
    """
    if not wanted or not converted.records:
        return []
    cuts = np.append(0, np.flatnonzero(np.frombuffer(converted.text, np.uint8) == ord("\n")) + 1)
    edges = np.linspace(0, converted.records, min(wanted, converted.records) + 1).astype(np.int64)
    found = []
    for first, last in pairwise(edges.tolist()):
        for record in range(first, last):
            text = converted.text[cuts[record] : cuts[record + 1]]
            if text.endswith(no_keys):
                continue
            start = int(converted.offsets[record])
            end = block.find(b"\n", start)
            features = block[start : len(block) if end < 0 else end].split(None, 2)[2].strip()
            if len(features) <= MAX_LINE_BYTES:
                # `1 show 1 click …`, without the leading zeros that the line may have.
                _, show, _, click, _ = text.split(b" ", 4)
                found.append(control.Sample(line=features.decode("ascii"), show=int(show), click=int(click)))
                break
    return found
