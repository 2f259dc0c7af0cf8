"""Heads of everyday requests: what httptools has read once is known by its bytes from then on, but for the length.

A program sends the same head again and again, and only the number in its `content-length` changes. So a head that
httptools found to be an everyday one is kept in two pieces, before and after that number; another with the same pieces means
the same. Nothing else is understood here: every other head is for the door in Python.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple

import httptools
import numpy as np
from numpy.typing import NDArray

HEAD_END = b"\r\n\r\n"
LONGEST_HEAD = 2048
# Headers that make more of a request than its head and its body.
UNUSUAL = frozenset([b"expect", b"content-encoding", b"transfer-encoding", b"upgrade"])
# Before and after the number, of one line of a head that httptools has understood.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]{0,8})(?=[ \t]*\r\n)", re.IGNORECASE)
_KEPT = 64
_SEEN = 65_536
_PADDING = 8


class HeadTable(NamedTuple):
    """Known heads, as machine code reads them."""

    pieces: NDArray[
        np.uint8
    ]  # [kept, LONGEST_HEAD and padding]: what stands before the number, then what stands after it
    sizes: NDArray[np.int64]  # [kept, 2] bytes of both; 0 where none is kept


class _Reading:
    """What httptools says of a head."""

    def __init__(self) -> None:
        self.url = b""
        self.names: list[bytes] = []
        self.lengths: list[bytes] = []
        self.done = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.names.append(name.lower())
        if self.names[-1] == b"content-length":
            self.lengths.append(value)

    def on_headers_complete(self) -> None:
        self.done = True


def pieces_of(head: bytes, path: str, max_headers: int) -> tuple[bytes, bytes] | None:
    """What stands before and after the length in the head of a POST to `path` that keeps the connection; None of others."""
    # A line end of its own kind, or a blank line before the request, is for the door in Python to judge.
    if not head[:1].isalpha() or head.count(b"\n") != head.count(b"\r\n") or len(head) > LONGEST_HEAD:
        return None
    reading = _Reading()
    parser: Any = httptools.HttpRequestParser(reading)
    try:
        parser.feed_data(head)
        path_read = httptools.parse_url(reading.url).path if reading.done else None
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, httptools.HttpParserInvalidURLError):
        return None
    lengths = list(_LENGTH.finditer(head))
    everyday = (
        path_read == path.encode("ascii")
        and parser.get_method() == b"POST"
        and parser.get_http_version() == "1.1"
        and parser.should_keep_alive()
        and len(reading.names) <= max_headers
        and UNUSUAL.isdisjoint(reading.names)
        and [found[1] for found in lengths] == reading.lengths
        and len(lengths) == 1
    )
    return (head[: lengths[0].start(1)], head[lengths[0].end(1) :]) if everyday else None


class Learned(Enum):
    """What came of it."""

    NOT = 0
    NEW = 1
    AGAIN = 2


class Heads:
    """The heads known to a door; when there are too many the oldest is forgotten."""

    def __init__(self, path: str, max_headers: int) -> None:
        self.table = HeadTable(np.zeros((_KEPT, LONGEST_HEAD + _PADDING), np.uint8), np.zeros((_KEPT, 2), np.int64))
        self._path = path
        self._max_headers = max_headers
        self._known: list[tuple[bytes, bytes] | None] = [None] * _KEPT
        # Hashes, of those that were forgotten too.
        self._seen: set[int] = set()
        self._next = 0

    def learn(self, head: bytes) -> Learned:
        """An everyday one is known from now on."""
        pieces = pieces_of(head, self._path, self._max_headers)
        if pieces is None:
            return Learned.NOT
        if pieces in self._known:
            # Many connections may have been read before the first of them was looked at.
            return Learned.AGAIN
        both = b"".join(pieces)
        self.table.pieces[self._next, : len(both)] = np.frombuffer(both, np.uint8)
        self.table.sizes[self._next] = [len(piece) for piece in pieces]
        self._known[self._next] = pieces
        self._next = (self._next + 1) % _KEPT
        mark = hash(pieces)
        if mark in self._seen:
            return Learned.AGAIN
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return Learned.NEW
