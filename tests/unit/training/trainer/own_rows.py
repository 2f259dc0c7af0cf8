"""A reader of the user's own, as a package in a trainer's image would have it."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa


def rows(file: BinaryIO, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
    """Of text with a blank between label and user; a range is the whole file here."""
    assert (start, end) == (0, None)
    pairs = [line.split() for line in file.read().decode().splitlines()]
    yield pa.record_batch({"label": [int(label) for label, _ in pairs], "user": [user for _, user in pairs]})
