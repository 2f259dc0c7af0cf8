"""Statistics of a task's rows: over all rows in an analysis, and over a sample in a check."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from elastic_ctr.features.statistics.collector import Collector
from elastic_ctr.features.transforms.row_loop import Series
from elastic_ctr.formats.cells import Cells, RowSample, without_words
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers.batches import Format, RowBatch, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.sources.streams.interface import Lines, Stream
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import MAX_RESULT
from elastic_ctr.training.trainer.refusals import Quarantined, Refusals, RefusedAt, refused_rows
from elastic_ctr.training.trainer.task_lines import pieces_of

# The most bytes of statistics; histograms, samples and refusals are in the same message.
MOST_BYTES = MAX_RESULT // 4 * 3


class StatisticsTooLarge(ValueError):
    """The statistics of a task do not fit into its result."""


@dataclass(frozen=True)
class Measurement:
    """The inputs of the statistics: text columns, and numbers after the steps that precede a scaling."""

    inputs: InputColumns
    series: Series

    def beyond(self, cells: Cells) -> dict[int, str]:
        """Return the rows that `Transformer.transform` will refuse for too large a number, with the reason. Statistics leave them out."""
        numbers = self.series.of(cells.numbers)
        rows, series = np.nonzero(np.abs(numbers) > self.series.limits)
        found: dict[int, str] = {}
        for row, place in zip(rows.tolist(), series.tolist(), strict=True):
            number, limit = numbers[row, place], self.series.limits[place]
            detail = f"the column {self.inputs.numbers[place]!r} is {number:g}; it has a size of at most {limit:g}."
            found.setdefault(row, detail)
        return found

    def collected(self, rows: Iterable[Cells]) -> bytes:
        """Return the collected part of these rows, which `features.statistics.collector.part_of` reads. Raises StatisticsTooLarge."""
        collector = Collector(self.inputs)
        for given in rows:
            cells = without_words(given, self.inputs.missing.texts)
            collector.add(Cells(cells.data, cells.begins, cells.ends, self.series.of(cells.numbers)))
        found = collector.to_bytes()
        if len(found) > MOST_BYTES:
            raise StatisticsTooLarge(
                f"the statistics of {len(self.inputs.texts)} texts and {len(self.inputs.numbers)} numbers have {len(found)} "
                f"bytes, and a task's may have {MOST_BYTES}; leave features out, or lower data.taskBytes"
            )
        return found


class RowReader:
    """Reads the rows of a task for their statistics. The features need no statistics for that."""

    def __init__(self, form: Format, wanted: Wanted, max_line_bytes: int, measurement: Measurement) -> None:
        self._format = form
        self._wanted = wanted
        self._max_line_bytes = max_line_bytes
        self._measurement = measurement

    def analyze(self, source: Source | Stream, task: control.Task) -> tuple[control.TaskResult, Quarantined]:
        """Return counts, refusals and statistics of all rows, and the refused rows to quarantine.

        Raises StoreError, OSError and ValueError if the task cannot be read.
        """
        result, refusals = control.TaskResult(), Refusals()

        def rows() -> Iterator[Cells]:
            for path, lines in pieces_of(source, task):
                with lines.raw:
                    for batch in self._batches(lines, path):
                        beyond = self._measurement.beyond(batch.cells)
                        result.records += len(batch.cells) - len(beyond)
                        refusals.add(path, refused_rows(batch), lines.offset_of)
                        too_large = (
                            RefusedAt(int(batch.places[row]), Reason.NUMBER_TOO_LARGE, detail, b"", is_row=True)
                            for row, detail in beyond.items()
                        )
                        refusals.add(path, too_large, lines.offset_of)
                        yield (
                            batch.cells.only(np.delete(np.arange(len(batch.cells)), [*beyond]))
                            if beyond
                            else batch.cells
                        )

        result.statistics = self._measurement.collected(rows())
        refusals.report(result)
        return result, refusals.quarantined

    def of_sample(self, sample: RowSample) -> bytes:
        """Return the statistics of a sample of rows, b"" if there is none. Raises StatisticsTooLarge."""
        rows = sample.rows()
        return b"" if rows is None else self._measurement.collected([rows])

    def _batches(self, lines: Lines, path: str) -> Iterator[RowBatch]:
        return rows_in_range(lines.raw, path, self._format, self._wanted, lines.start, lines.stop, self._max_line_bytes)
