"""What a task reads: a part of a file, or a range of offsets of a stream."""

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.store.source import Source
from elastic_ctr.streams.interface import Lines, Stream


def lines_of(source: Source | Stream, task: control.Task) -> Lines:
    """Raises StoreError."""
    if isinstance(source, Source):
        return Lines(source.open(task.path), task.start, task.end or None)
    return source.read(task.path, task.start, task.end)
