"""Blocks of whole lines from a part of a file, so that every line of a file is read by exactly one task."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from elastic_ctr.formats.line import MAX_LINE_BYTES

# Endings of names whose files `open_lines` decompresses.
COMPRESSED = (".gz", ".zst")
CHUNK_BYTES = 4 << 20
_PAST_END_BYTES = 64 << 10


def lines_in_range(
    stream: BinaryIO,
    start: int = 0,
    end: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    chunk: int = CHUNK_BYTES,
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of the lines that begin in [start, end), each with the offset of its first byte in the stream.

    This is the rule of Hadoop's splits: for any cut points, every line is in exactly one range. A block ends with a LF,
    except for the last line of a file without one. A line that does not fit becomes a block without LF of its first
    `max_line_bytes + 1` bytes, after the BOM if it begins the file. The converter refuses that as too long. The rest of the line is
    read and dropped, so that memory is bounded by `chunk + max_line_bytes`.

    Raises:
        ValueError: `start` is not 0 and the stream cannot seek.
    """
    if stream.seekable():
        stream.seek(max(start - 1, 0))
    elif start:
        raise ValueError(f"the stream cannot seek to byte {start}; read it whole.")
    at, held = start, b""
    if start:
        at, held = _after_line(stream, start - 1, chunk)
    searched = 0
    while end is None or at < end:  # the buffer begins with a line of the range, at the offset `at`
        last = -1
        if end is not None and at + len(held) >= end:
            # The last line of the range contains the byte before its end.
            last = held.find(b"\n", max(searched, end - 1 - at))
        cut = (last if last >= 0 else held.rfind(b"\n", searched)) + 1
        if cut:
            yield at, held[:cut]
            at, held = at + cut, held[cut:]
        if last >= 0:
            return
        most = max_line_bytes + (len(codecs.BOM_UTF8) if at == 0 and held.startswith(codecs.BOM_UTF8) else 0)
        if len(held) > most:
            yield at, held[: most + 1]
            at, held = _after_line(stream, at + len(held), chunk)
            searched = 0
            continue
        searched = len(held)
        rest = chunk if end is None else max(end - at - len(held), 0) + _PAST_END_BYTES
        read = stream.read(min(chunk, rest))
        if not read:
            if held:
                yield at, held
            return
        held += read


class DamagedFile(OSError):
    """A file cannot be read to its end, because it is damaged or cut off; the text is a sentence that names it."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{name} is damaged or cut off ({error}); write it anew.")


def open_lines(source: str | Path | BinaryIO, name: str | None = None) -> BinaryIO:
    """Open a file or stream of lines, decompressed if its name ends in .gz or .zst; such a file can only be read whole.

    Reading raises DamagedFile if the file is damaged or cut off.
    """
    path = Path(source) if isinstance(source, (str, Path)) else None
    name = name or str(path or "")
    if not name.endswith(COMPRESSED):
        return path.open("rb") if path else cast("BinaryIO", source)
    stream = path.open("rb") if path else cast("BinaryIO", source)
    plain: _Decompressed = _Unzstd(stream, name) if name.endswith(".zst") else _Gunzip(stream, name)
    if path:
        plain.opened.append(stream)
    return cast("BinaryIO", io.BufferedReader(plain))


class _Decompressed(io.RawIOBase):
    def __init__(self, name: str, plain: Any, errors: tuple[type[Exception], ...]) -> None:
        self._name = name
        self._plain = plain
        self._errors = errors
        self.opened: list[BinaryIO] = []

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            # Read a piece that fits into the CPU's cache, because it is copied once more.
            return int(self._plain.readinto(memoryview(buffer)[: 128 << 10]))
        except self._errors as error:
            raise DamagedFile(self._name, error) from error

    def close(self) -> None:
        super().close()
        self._plain.close()
        for stream in self.opened:
            stream.close()


class _Gunzip(_Decompressed):
    def __init__(self, stream: BinaryIO, name: str) -> None:
        unzipped = gzip.GzipFile(fileobj=stream, mode="rb")
        super().__init__(name, unzipped, (EOFError, zlib.error, gzip.BadGzipFile))


class _Unzstd(_Decompressed):
    def __init__(self, stream: BinaryIO, name: str) -> None:
        import pyarrow as pa

        self._noting = ReadNoting(stream)
        plain = pa.CompressedInputStream(pa.PythonFile(self._noting, "r"), "zstd")
        super().__init__(name, plain, (OSError,))

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except DamagedFile:
            self._noting.raise_noted()
            raise


class ReadNoting:
    """A stream for pyarrow that keeps the errors of its reads, to distinguish them from an OSError that pyarrow raises over
    the content.
    """

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._raised: BaseException | None = None

    def raise_noted(self) -> None:
        """Raise the error of a read, if there was one."""
        if self._raised is not None:
            raise self._raised

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except BaseException as raised:
            self._raised = raised
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return self._stream.seekable()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Leave the stream open, because pyarrow does not own it."""


def _after_line(stream: BinaryIO, at: int, chunk: int) -> tuple[int, bytes]:
    """Read from the offset `at` past the next LF or to the end. Return the offset of the next line, and its bytes read so far."""
    while read := stream.read(chunk):
        end = read.find(b"\n") + 1
        if end:
            return at + end, read[end:]
        at += len(read)
    return at, b""
