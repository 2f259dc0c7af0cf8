"""The input of a task: parts of files, or a range of offsets of a stream."""

from collections.abc import Iterator
from typing import NamedTuple

from elastic_ctr.sources.streams.interface import Lines, Stream
from elastic_ctr.store.source import Source
from elastic_ctr.training.control import control_pb2 as control

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
