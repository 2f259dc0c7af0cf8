"""The input of a task: parts of files or a range of offsets of a stream, and the records that the task leaves out.

Left out are the records that an operator skips, and those that the model cannot predict because their numbers are too large. Suspects
are predicted separately before their task is trained, so that a single row does not end the training. If the prediction of any other
record is not a number, the training has diverged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.line import Reason
from elastic_ctr.sources.streams.interface import Lines, Stream
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.converted_files import on_scratch

Places = npt.NDArray[np.int64]

SKIPPED = "an operator skips it, by `elastic-ctr pass retry --skip`."


@dataclass(frozen=True)
class LeftOut:
    """The records to leave out of a file's lines: those that begin in these rising ranges of positions, each with its reason."""

    begins: Places
    ends: Places
    reasons: Sequence[Reason]

    def __bool__(self) -> bool:
        return len(self.begins) > 0

    def find(self, places: Places) -> Places:
        """Return the index of the range that includes each position, or -1."""
        if not self:
            return np.full(len(places), -1, np.int64)
        at = np.searchsorted(self.begins, places, side="right").astype(np.int64) - 1
        return np.where((at >= 0) & (places < self.ends[at]), at, -1)


NOTHING = LeftOut(np.zeros(0, np.int64), np.zeros(0, np.int64), ())


def left_out_of(task: control.Task, path: str, lines: Lines) -> LeftOut:
    """Return the records of these lines that the task leaves out."""
    found = sorted(
        (*lines.range_of(offset), each.reason) for each in task.left_out if each.path == path for offset in each.offsets
    )
    if not found:
        return NOTHING
    begins, ends, reasons = zip(*found, strict=True)
    return LeftOut(np.array(begins, np.int64), np.array(ends, np.int64), [Reason(each) for each in reasons])


# Bytes of a stream in one piece, which is in memory while it is converted; a range may have gigabytes.
_PIECE_BYTES = 32 << 20


class TaskPiece(NamedTuple):
    """Lines of a file, or of a partition of a stream."""

    path: str
    lines: Lines


def parts_of_task(task: control.Task) -> list[control.Part]:
    return [control.Part(path=task.path, start=task.start, end=task.end), *task.further]


def pieces_of(source: Source | Stream, task: control.Task) -> Iterator[TaskPiece]:
    """Yield the task's lines in pieces, each read only after the one before is consumed. Raises StoreError."""
    if isinstance(source, Source):
        for part in parts_of_task(task):
            yield TaskPiece(part.path, Lines(source.open(part.path), part.start, part.end or None))
        return
    place = task.start
    while place < task.end:
        lines = source.read(task.file or task.path, place, task.end, _PIECE_BYTES)
        place = task.end if lines.following is None else lines.following
        yield TaskPiece(task.path, lines)


# Only `transform: []` lets larger numbers through, up to the bound of `Transformer.transform`. A network that multiplies numbers, or
# whose weights have grown, may not predict them. Half as much would make usual prices suspects, which are predicted twice.
ORDINARY = 1e3
# The most unpredictable records of a task, so that the result fits into a message.
_MOST_FOUND = 100_000
# A record's index is written as show and click in base 2^20, both of which float32 represents exactly.
_PART = 1 << 20


class Suspect(NamedTuple):
    """A record of the engine's text, and the byte position of its source."""

    place: int
    line: bytes


class TooManyUnpredictable(ValueError):
    """A task has so many unpredictable records that the data must be corrected."""


class Suspects:
    """The suspects of one task, and a file of them for the engine in which shows and clicks encode each record's index."""

    def __init__(self, file: Path) -> None:
        """The first suspect creates the file."""
        self.file = file
        self._places: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, path: str, suspects: Iterable[tuple[int, Suspect]]) -> None:
        """Add suspects, each with its offset in the file or stream. Raises ScratchFailed."""
        lines, mode = [], "ab" if self._places else "wb"
        for offset, suspect in suspects:
            number = len(self._places)
            self._places.append((path, offset))
            _, _, _, _, rest = suspect.line.split(b" ", 4)
            lines.append(b"1 %d 1 %d %b" % (number % _PART, number // _PART, rest))
        if lines:
            with on_scratch(self.file), self.file.open(mode) as out:
                out.writelines(lines)

    def left_out(self, found: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]) -> list[control.LeftOut]:
        """Return the suspects to leave out: those with these shows and clicks are unpredictable. Raises TooManyUnpredictable."""
        shows, clicks = found
        numbers = sorted((clicks * _PART + shows).astype(np.int64).tolist())
        if len(numbers) > _MOST_FOUND:
            raise TooManyUnpredictable(
                f"the model cannot predict {len(numbers)} rows of the task, because their numbers are too large: give the "
                "features `standardize`, `log1p` or `clip`"
            )
        by_path: dict[str, list[int]] = {}
        for number in numbers:
            path, offset = self._places[number]
            by_path.setdefault(path, []).append(offset)
        reason = Reason.UNPREDICTABLE.value
        return [control.LeftOut(path=path, offsets=offsets, reason=reason) for path, offsets in by_path.items()]
