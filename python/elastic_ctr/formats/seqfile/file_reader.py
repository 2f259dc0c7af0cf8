"""Reads SequenceFiles of BytesWritable pairs: as arrays of keys and vectors, or any pairs as bytes.

Uncompressed, record-compressed and block-compressed files (DefaultCodec, that is zlib). Every length is checked before
it is used, and memory is bounded by the largest allowed record or block.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.seqfile.file_format import (
    BYTES_WRITABLE,
    DEFLATE_CODECS,
    ESCAPE,
    MAGIC,
    SYNC_BYTES,
    Compression,
    SequenceFileDamaged,
    SequenceFileHeader,
    read_vint,
    record_dtype,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Arrays = tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]

_CHUNK_BYTES = 4 << 20
_MAX_NAME_BYTES = 4096
_MAX_METADATA = 1024
_MAX_RECORD_BYTES = 64 << 20
_MAX_BLOCK_BYTES = 256 << 20
_GATHERED_RECORDS = 1 << 16


class SequenceFileReader:
    """Reads a file once, from its beginning: either iterate for arrays, or take `records()`.

    Another number than `expected_records` is damage: a file that was cut off between two records looks whole. Files of
    the old cube builder omit BytesWritable's own lengths: `inner_lengths` is False for them. Errors name the file
    `name`, by default its path; a stream is left open. The constructor and all methods raise SequenceFileDamaged.
    """

    def __init__(
        self,
        source: str | Path | BinaryIO,
        *,
        name: str | None = None,
        inner_lengths: bool = True,
        expected_records: int | None = None,
    ) -> None:
        self._owned = Path(source).open("rb") if isinstance(source, (str, Path)) else None  # noqa: SIM115 - see close
        stream: BinaryIO = self._owned if self._owned is not None else source  # type: ignore[assignment]
        shown = name or (str(source) if self._owned is not None else str(getattr(source, "name", "the stream")))
        self._from = _Source(stream, shown)
        self._inner = inner_lengths
        self._expected = expected_records
        try:
            self.header = _read_header(self._from)
        except BaseException:
            self.close()
            raise
        self._escape = ESCAPE + self.header.sync

    def __iter__(self) -> Iterator[Arrays]:
        """Yield blocks of (keys u64[n], values f32[n, dim]), n above 0.

        A key that does not have 8 bytes is damage, too, as is a value of another dim than the others.
        """
        count = 0
        for keys, values in self._fixed() if self.header.compression is Compression.NONE else self._gathered():
            count += len(keys)
            yield keys, values
        self._check_count(count)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each record, without their inner lengths."""
        count = 0
        for _, key, value in self._raw():
            count += 1
            yield key, value
        self._check_count(count)

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_count(self, count: int) -> None:
        if self._expected is not None and count != self._expected:
            raise self._from.damaged(f"it holds {count} records, {self._expected} were expected.")

    def _fixed(self) -> Iterator[Arrays]:
        source = self._from
        dim = 0
        dtype = np.dtype([])
        while self._at_record():
            start = source.offset
            record, key = source.peek_int(0), source.peek_int(4)
            floats = self._dim_of(record, key, start)
            if not dim:
                dim, dtype = floats, record_dtype(floats, inner_lengths=self._inner)
            if floats != dim:
                raise source.damaged(f"the value of the record has {floats} floats, those before it {dim}.", start)
            source.fill(max(_CHUNK_BYTES, dtype.itemsize))
            block = np.frombuffer(source.held(), dtype=dtype, count=source.available // dtype.itemsize)
            if not len(block):
                source.take(dtype.itemsize)  # raises the error about the missing bytes
            same = (block["record_bytes"] == record) & (block["key_bytes"] == key)
            if self._inner:
                same &= (block["key_length"] == 8) & (block["value_length"] == 4 * dim)
            whole = len(block) if same.all() else int(same.argmin())
            if not whole:
                raise source.damaged("the inner lengths of the record do not fit its outer ones.", start)
            yield block["key"][:whole].astype(np.uint64), block["value"][:whole].astype(np.float32)
            source.skip(whole * dtype.itemsize)

    def _dim_of(self, record: int, key: int, start: int) -> int:
        key_bytes, value_extra = (12, 4) if self._inner else (8, 0)
        if key != key_bytes:
            way_out = "is it of the old cube builder, without inner lengths?" if (key, self._inner) == (8, True) else ""
            raise self._from.damaged(f"the key of the record has {key} bytes, not {key_bytes}; {way_out}", start)
        value = record - key - value_extra
        if value < 4 or value % 4 or record > _MAX_RECORD_BYTES:
            raise self._from.damaged(f"a record of {record} bytes does not hold a vector of float32.", start)
        return value // 4

    def _gathered(self) -> Iterator[Arrays]:
        records = self._sized()
        while some := list(itertools.islice(records, _GATHERED_RECORDS)):
            keys = np.frombuffer(b"".join(key for key, _ in some), dtype="<u8")
            values = np.frombuffer(b"".join(value for _, value in some), dtype="<f4")
            yield keys.astype(np.uint64), values.astype(np.float32).reshape(len(some), -1)

    def _sized(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield records of the first one's size. A record of another size is damage, raised before more records are buffered."""
        size = 0
        for start, key, value in self._raw():
            size = size or len(value)
            if len(key) != 8 or len(value) != size or not size or size % 4:
                raise self._from.damaged(
                    f"a record of {len(key)} and {len(value)} bytes is not a u64 and {size // 4} floats.", start
                )
            yield key, value

    def _raw(self) -> Iterator[tuple[int, bytes, bytes]]:
        if self.header.compression is Compression.BLOCK:
            while self._at_record(block=True):
                yield from self._block()
            return
        while self._at_record():
            start = self._from.offset
            record, key = self._from.peek_int(0), self._from.peek_int(4)
            if not 0 <= key <= record <= _MAX_RECORD_BYTES:
                raise self._from.damaged(f"a record of {record} bytes cannot have a key of {key}.", start)
            self._from.take(8)
            key_data = self._from.take(key)
            value_data = self._from.take(record - key)
            if self.header.compression is Compression.RECORD:
                value_data = self._inflated(value_data, _MAX_RECORD_BYTES, start)
            yield start, self._unwrapped(key_data, start), self._unwrapped(value_data, start)

    def _block(self) -> Iterator[tuple[int, bytes, bytes]]:
        start = self._from.offset
        count = read_vint(self._from.take)
        parts = []
        for _ in ("key lengths", "keys", "value lengths", "values"):
            size = read_vint(self._from.take)
            if not 0 <= size <= _MAX_BLOCK_BYTES:
                raise self._from.damaged(f"a block cannot hold {size} bytes.", start)
            parts.append(self._inflated(self._from.take(size), _MAX_BLOCK_BYTES, start))
        keys = self._split(parts[0], parts[1], count, start)
        values = self._split(parts[2], parts[3], count, start)
        for key, value in zip(keys, values, strict=True):
            yield start, self._unwrapped(key, start), self._unwrapped(value, start)

    def _split(self, lengths: bytes, data: bytes, count: int, start: int) -> list[bytes]:
        at = 0

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            if at > len(lengths):
                raise self._from.damaged(f"the block has fewer lengths than its {count} records.", start)
            return lengths[at - size : at]

        if not 0 <= count <= len(lengths):
            raise self._from.damaged(f"a block cannot hold {count} records in {len(lengths)} bytes of lengths.", start)
        pieces: list[bytes] = []
        done = 0
        for _ in range(count):
            size = read_vint(take)
            if not 0 <= size <= len(data) - done:
                raise self._from.damaged(f"a length of {size} does not fit into the block.", start)
            pieces.append(data[done : done + size])
            done += size
        if at != len(lengths) or done != len(data):
            raise self._from.damaged("the block holds more than its records.", start)
        return pieces

    def _at_record(self, *, block: bool = False) -> bool:
        """Skip the sync marker, which each block has and some records have. Return False at the end of the file."""
        while True:
            have = self._from.fill(4)
            if have == 0:
                return False
            if have < 4:
                raise self._from.damaged(f"the file ends after {have} of the 4 bytes of a record's length.")
            if self._from.peek_int(0) != -1:
                if block:
                    raise self._from.damaged("a block does not begin with a sync marker.")
                if self._from.fill(8) < 8:
                    raise self._from.damaged("the file ends within the lengths of a record.")
                return True
            start = self._from.offset
            if self._from.take(len(self._escape)) != self._escape:
                raise self._from.damaged("the sync marker is not that of the header.", start)
            if block:
                return True

    def _inflated(self, data: bytes, limit: int, start: int) -> bytes:
        inflate = zlib.decompressobj()
        try:
            inflated = inflate.decompress(data, limit)
        except zlib.error as error:
            raise self._from.damaged(f"its data cannot be decompressed ({error}).", start) from error
        if not inflate.eof or inflate.unused_data:
            raise self._from.damaged("its compressed data is cut off or too long.", start)
        return inflated

    def _unwrapped(self, data: bytes, start: int) -> bytes:
        if not self._inner:
            return data
        if len(data) < 4 or int.from_bytes(data[:4], "big") != len(data) - 4:
            raise self._from.damaged(f"the inner length of {len(data)} bytes of key or value is wrong.", start)
        return data[4:]


class _Source:
    """A buffered stream with look-ahead and its offset."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._held = b""
        self._at = 0
        self.offset = 0

    @property
    def available(self) -> int:
        return len(self._held) - self._at

    def held(self) -> memoryview:
        return memoryview(self._held)[self._at :]

    def fill(self, size: int) -> int:
        """Buffer `size` bytes, or all that are left. Return how many are buffered."""
        if self.available < size:
            pieces = [self._held[self._at :]]
            have = len(pieces[0])
            while have < size and (read := self._stream.read(max(size - have, _CHUNK_BYTES))):
                pieces.append(read)
                have += len(read)
            self._held, self._at = b"".join(pieces), 0
        return self.available

    def peek_int(self, at: int) -> int:
        return int.from_bytes(self._held[self._at + at : self._at + at + 4], "big", signed=True)

    def take(self, size: int) -> bytes:
        if self.fill(size) < size:
            raise self.damaged(f"the file ends after {self.available} of the {size} bytes that follow here.")
        taken = self._held[self._at : self._at + size]
        self.skip(size)
        return taken

    def skip(self, size: int) -> None:
        self._at += size
        self.offset += size

    def damaged(self, reason: str, offset: int | None = None) -> SequenceFileDamaged:
        return SequenceFileDamaged(self._name, self.offset if offset is None else offset, reason)


def _read_header(source: _Source) -> SequenceFileHeader:
    magic = source.take(len(MAGIC))
    if magic[:3] != MAGIC[:3]:
        raise source.damaged("it is not a SequenceFile.", 0)
    if magic != MAGIC:
        raise source.damaged(f"it is a SequenceFile of version {magic[3]}; only version 6 is read.", 3)
    names = (_text(source), _text(source))
    if names != (BYTES_WRITABLE, BYTES_WRITABLE):
        raise source.damaged(f"it holds {names[0]} and {names[1]}, not BytesWritable pairs.", len(MAGIC))
    flags = source.take(2)
    if flags not in {b"\x00\x00", b"\x01\x00", b"\x01\x01"}:
        raise source.damaged(f"its compression flags are {flags.hex()}.", source.offset - 2)
    compression = (Compression.NONE, Compression.RECORD, Compression.BLOCK)[sum(flags)]
    codec = None
    if compression is not Compression.NONE:
        codec = _text(source)
        if codec not in DEFLATE_CODECS:
            raise source.damaged(f"its codec is {codec}; write it with DefaultCodec or without compression.")
    entries = int.from_bytes(source.take(4), "big", signed=True)
    if not 0 <= entries <= _MAX_METADATA:
        raise source.damaged(f"it claims {entries} metadata entries.", source.offset - 4)
    metadata = {_text(source): _text(source) for _ in range(entries)}
    sync = source.take(SYNC_BYTES)
    return SequenceFileHeader(names[0], names[1], compression, codec, sync, source.offset, metadata)


def _text(source: _Source) -> str:
    start = source.offset
    size = read_vint(source.take)
    if not 0 <= size <= _MAX_NAME_BYTES:
        raise source.damaged(f"a name of {size} bytes is too long.", start)
    try:
        return source.take(size).decode()
    except UnicodeDecodeError as error:
        raise source.damaged("a name is not UTF-8.", start) from error
