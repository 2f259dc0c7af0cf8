"""Hadoop's SequenceFile, version 6: header, sync marker and record layout.

Source of the format: `org.apache.hadoop.io.SequenceFile` and `BytesWritable` of Hadoop 3.5.0. Integers of the container
are big-endian. Inside, a key is 8 bytes, a u64 little-endian; a value is dim float32 little-endian.

    header:  "SEQ" 6 | key class | value class | compressed? | by block? | [codec class] | metadata | 16 bytes of sync
    record:  i32 key and value bytes | i32 key bytes | key | value
    escape:  i32 -1 | the sync marker, so that a reader can begin in the middle of a file

`BytesWritable` begins with its own i32 length, which is part of key and value ("inner length"). The old cube builder
leaves it out; Hadoop cannot read such a file.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

MAGIC = b"SEQ\x06"
SYNC_BYTES = 16
ESCAPE = b"\xff\xff\xff\xff"
SYNC_INTERVAL = 5 * 1024 * (SYNC_BYTES + len(ESCAPE))
"""Bytes between two sync markers: the default of Hadoop 3."""

BYTES_WRITABLE = "org.apache.hadoop.io.BytesWritable"
DEFLATE_CODECS = ("org.apache.hadoop.io.compress.DefaultCodec", "org.apache.hadoop.io.compress.DeflateCodec")


class Compression(str, enum.Enum):
    """The compression of a file's records."""

    NONE = "none"
    RECORD = "record"
    BLOCK = "block"


class SequenceFileDamaged(ValueError):
    """A file is cut off, altered, or of an unsupported kind; the sentence names file, byte offset and reason."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(f"{name} is damaged at byte {offset}: {reason}")
        self.name = name
        self.offset = offset
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SequenceFileHeader:
    key_class: str
    value_class: str
    compression: Compression
    codec: str | None
    sync: bytes  # the 16 that follow each escape
    body: int  # offset of the first record
    metadata: dict[str, str] = field(default_factory=dict)


def sync_marker(seed: bytes) -> bytes:
    """Return a sync marker. The same seed gives the same marker, so that the same records make the same file.

    The seed should differ from file to file, because a reader that begins in the middle relies on that.
    """
    return xxhash.xxh3_128_digest(seed)


def header_bytes(sync: bytes) -> bytes:
    """Return the header of an uncompressed file of BytesWritable pairs."""
    if len(sync) != SYNC_BYTES:
        raise ValueError(f"a sync marker has {SYNC_BYTES} bytes, this one has {len(sync)}.")
    name = bytes([len(BYTES_WRITABLE)]) + BYTES_WRITABLE.encode()  # a VInt below 128 is its byte
    return MAGIC + name + name + b"\x00\x00" + b"\x00\x00\x00\x00" + sync


def read_vint(take: Callable[[int], bytes]) -> int:
    """Read an integer as `WritableUtils.readVLong` does; `take(n)` returns the next n bytes or raises."""
    first = int.from_bytes(take(1), "big", signed=True)
    if first >= -112:
        return first
    negative = first < -120
    magnitude = int.from_bytes(take(-120 - first if negative else -112 - first), "big")
    return ~magnitude if negative else magnitude


def record_dtype(dim: int, *, inner_lengths: bool = True) -> np.dtype[np.void]:
    """Return the dtype of an uncompressed record of a u64 key and `dim` float32, packed as in the file, to copy many at once.

    Without `inner_lengths` the layout is that of the old cube builder.
    """
    if dim < 1:
        raise ValueError(f"a value has at least one float, not {dim}.")
    outer: list[Any] = [("record_bytes", ">i4"), ("key_bytes", ">i4")]
    key, value = ("key", "<u8"), ("value", "<f4", (dim,))
    if not inner_lengths:
        return np.dtype([*outer, key, value])
    return np.dtype([*outer, ("key_length", ">i4"), key, ("value_length", ">i4"), value])
