"""Lines of text files in any encoding and with any line ends, and records of CSV that go over several lines."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from elastic_ctr.formats.blocks import open_lines
from elastic_ctr.formats.imports.importers import ImportRefused

_HEAD_BYTES = 64 << 10
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A quote that is never closed takes no more lines with it.
_MOST_JOINED = 200


class _Whole(io.RawIOBase):
    """What was read of a stream, and the rest of it."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        found = self._head[: len(room)] or self._stream.read(len(room))
        self._head = self._head[len(room) :]
        room[: len(found)] = found
        return len(found)


def lines_of_file(path: Path, encoding: str | None = None) -> Iterator[bytes]:
    """The lines of a file in UTF-8, decompressed, without BOM and line ends.

    UTF-16 with a BOM is known, and so are the line ends CR alone. Raises ImportRefused for text that is not in its encoding.
    """
    with open_lines(path) as stream:
        head = stream.read(_HEAD_BYTES)
        if encoding is None and head.startswith(_UTF_16):
            encoding = "utf-16"
        whole: BinaryIO = io.BufferedReader(_Whole(head, stream))
        if encoding is None and (b"\r" not in head or b"\n" in head):
            for number, line in enumerate(whole):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
                yield text.removesuffix(b"\n").removesuffix(b"\r")
            return
        yield from _decoded(whole, path, encoding)


def _decoded(stream: BinaryIO, path: Path, encoding: str | None) -> Iterator[bytes]:
    try:
        # Bytes that are no UTF-8 are named by the row that has them.
        errors = "strict" if encoding else "surrogateescape"
        text = io.TextIOWrapper(stream, encoding or "utf-8-sig", errors)
    except LookupError:
        raise ImportRefused(
            f"--encoding {encoding} is none that Python knows; write latin-1, cp1252, utf-16 or gb18030."
        ) from None
    with closing(text):
        try:
            for number, line in enumerate(text):
                kept = line.removeprefix("\ufeff") if number == 0 else line
                yield kept.removesuffix("\n").encode("utf-8", errors)
        except UnicodeError as wrong:
            raise ImportRefused(
                f"{path} is not {encoding} ({wrong}); --encoding says how it is written, such as latin-1 or utf-16-le."
            ) from wrong


def without_last_empty(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines but for empty ones at the end of the file, which many programs leave there."""
    empty = 0
    for line in lines:
        if not line:
            empty += 1
            continue
        yield from [b""] * empty
        empty = 0
        yield line


def records_of(lines: Iterator[bytes], delimiter: bytes, quote: bytes | None) -> Iterator[bytes]:
    """The lines; those of a record whose quoted cells have line breaks come as one, with LF between.

    A line whose quote is not closed within 200 lines comes alone.
    """
    waiting: list[bytes] = []
    while True:
        line = waiting.pop(0) if waiting else next(lines, None)
        if line is None:
            return
        if quote is None or not line.count(quote) % 2 or not is_open(line, delimiter, quote):
            yield line
            continue
        waiting += islice(lines, max(_MOST_JOINED - len(waiting), 0))
        record = line
        for number, more in enumerate(waiting, 1):
            record += b"\n" + more
            if more.count(quote) % 2 and not is_open(record, delimiter, quote):
                del waiting[:number]
                break
        else:
            record = line
        yield record


def is_open(record: bytes, delimiter: bytes, quote: bytes) -> bool:
    """Whether the last cell is in quotes that are not closed. A quote opens a cell alone at its beginning."""
    at, size = 0, len(record)
    while at < size:
        if record[at : at + 1] != quote:
            end = record.find(delimiter, at)
            if end < 0:
                return False
            at = end + 1
            continue
        at += 1
        while True:
            end = record.find(quote, at)
            if end < 0:
                return True
            if record[end + 1 : end + 2] != quote:
                break
            at = end + 2
        end = record.find(delimiter, end + 1)
        if end < 0:
            return False
        at = end + 1
    return False
