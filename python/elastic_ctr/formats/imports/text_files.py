"""Lines of text files in any encoding and with any line ends, and records of CSV that span several lines."""

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
# Most lines that an unclosed quote can join to a record.
_MOST_JOINED = 200


class _Whole(io.RawIOBase):
    """A stream that begins with bytes already read from it."""

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


def lines_of_file(path: Path, encoding: str | None = None, stored: BinaryIO | None = None) -> Iterator[bytes]:
    """Yield the lines of a file in UTF-8, decompressed, without BOM and line ends. `stored` has its bytes if it is not of this machine.

    UTF-16 with a BOM is recognized, and so are line ends of CR only. Raises ImportRefused for text that is not in its encoding.
    """
    with open_lines(path) if stored is None else open_lines(stored, str(path)) as stream:
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
        # Without a given encoding, bytes that are not UTF-8 are kept here and refused with their row.
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
    """Yield the lines without empty ones at the end of the file, which many programs write."""
    empty = 0
    for line in lines:
        if not line:
            empty += 1
            continue
        yield from [b""] * empty
        empty = 0
        yield line


def records_of(lines: Iterator[bytes], delimiter: bytes, quote: bytes | None) -> Iterator[bytes]:
    """Yield records: the lines of a record whose quoted cells have line breaks are joined by LF.

    A line whose quote is not closed within 200 lines is yielded alone.
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
    """True if the last cell has an unclosed quote. A quote opens a cell only at its beginning."""
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
