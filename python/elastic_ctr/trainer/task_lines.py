"""What a task reads: a part of a file, or a range of offsets of a stream."""

from collections.abc import Iterator

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.store.source import Source
from elastic_ctr.streams.interface import Lines, Stream

# Of a stream, whose messages are in memory while they are converted: a range may have gigabytes.
_PIECE_BYTES = 32 << 20


def pieces_of(source: Source | Stream, task: control.Task) -> Iterator[Lines]:
    """Its lines, piece by piece; each is read once the one before is done with. Raises StoreError."""
    if isinstance(source, Source):
        yield Lines(source.open(task.path), task.start, task.end or None)
        return
    place = task.start
    while place < task.end:
        lines = source.read(task.file or task.path, place, task.end, _PIECE_BYTES)
        place = task.end if lines.following is None else lines.following
        yield lines
