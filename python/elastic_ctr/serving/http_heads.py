"""Heads of everyday requests: a head that `request_head` has read once is known from then on, whatever its length and its other values.

A program sends the same headers again and again, and only the number in `content-length` changes, and what whoever passes a request
on writes into it: the numbers of traces, addresses, dates. So an everyday head is kept in pieces
with holes between them: one for the length, one for the value of each header that no door looks at. Another with the same pieces
means the same. Nothing else is understood here: every other head is for the door in Python.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.serving.refusal import Refusal
from elastic_ctr.serving.request_head import HEAD_END, read_head

LONGEST_HEAD = 2048
# Headers that make more of a request than its head and its body.
UNUSUAL = frozenset(
    [b"expect", b"content-encoding", b"transfer-encoding", b"upgrade", b"inference-header-content-length"]
)
# Headers whose values are checked: another value is another head.
_TELLING = frozenset([b"connection", b"host"])
# What a value may have in it: everybody reads these alike.
_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_LENGTH = re.compile(rb"([ \t]*)([1-9][0-9]{0,8})([ \t]*)")
# What follows a piece: nothing more, a length, a value.
END, LENGTH, VALUE = range(3)
MOST_PIECES = 64
_KEPT = 64
_SEEN = 65_536
_PADDING = 8


class Form(NamedTuple):
    """A head: what always stands there, and what comes after each of these pieces, the last time END."""

    pieces: tuple[bytes, ...]
    holes: tuple[int, ...]


class HeadTable(NamedTuple):
    """Known heads, as machine code reads them. A piece has one byte at least."""

    pieces: NDArray[np.uint8]  # [kept, LONGEST_HEAD and padding]: one behind the other
    sizes: NDArray[np.int64]  # [kept, MOST_PIECES] bytes of each; the first is 0 where none is kept
    holes: NDArray[np.int64]  # [kept, MOST_PIECES]


def form_of(head: bytes, path: str, max_headers: int) -> Form | None:
    """The form of the head of a POST to `path` that keeps the connection; None of others."""
    if len(head) > LONGEST_HEAD:
        return None
    try:
        read = read_head(head, max_headers)
    except Refusal:
        return None
    everyday = (
        (read.method, read.path) == ("POST", path)
        and read.length > 0
        and not read.last
        and not read.kept_alive
        and UNUSUAL.isdisjoint(read.names)
    )
    return _cut(head, read.names) if everyday else None


def _cut(head: bytes, names: tuple[bytes, ...]) -> Form | None:
    """The form of a head in which httptools has found headers of these names; None where its lines are others."""
    line, *lines = head.removesuffix(HEAD_END).split(b"\r\n")
    if tuple(each.partition(b":")[0].lower() for each in lines) != names:
        return None
    pieces: list[bytes] = []
    holes: list[int] = []
    piece = line
    for name, each in zip(names, lines, strict=True):
        begin, colon, value = each.partition(b":")
        piece += b"\r\n" + begin + colon
        if name in _TELLING:
            piece += value
            continue
        length = _LENGTH.fullmatch(value) if name == b"content-length" else None
        if _VALUE.fullmatch(value) is None or (name == b"content-length" and length is None):
            return None
        pieces.append(piece if length is None else piece + length[1])
        holes.append(VALUE if length is None else LENGTH)
        piece = b"" if length is None else length[3]
    pieces.append(piece + HEAD_END)
    holes.append(END)
    return Form(tuple(pieces), tuple(holes)) if len(pieces) <= MOST_PIECES else None


class Learned(Enum):
    """What came of it."""

    NOT = 0
    NEW = 1
    AGAIN = 2


class Heads:
    """The heads known to a door; when there are too many the oldest is forgotten."""

    def __init__(self, path: str, max_headers: int) -> None:
        self.table = HeadTable(
            np.zeros((_KEPT, LONGEST_HEAD + _PADDING), np.uint8),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
        )
        self._path = path
        self._max_headers = max_headers
        self._known: list[Form | None] = [None] * _KEPT
        # Hashes, of those that were forgotten too.
        self._seen: set[int] = set()
        self._next = 0

    def learn(self, head: bytes) -> Learned:
        """An everyday one is known from now on."""
        form = form_of(head, self._path, self._max_headers)
        if form is None:
            return Learned.NOT
        if form in self._known:
            # Many connections may have been read before the first of them was looked at.
            return Learned.AGAIN
        self._keep(form)
        mark = hash(form)
        if mark in self._seen:
            return Learned.AGAIN
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return Learned.NEW

    def _keep(self, form: Form) -> None:
        row, count = self._next, len(form.pieces)
        self._next = (row + 1) % _KEPT
        self._known[row] = form
        joined = b"".join(form.pieces)
        self.table.pieces[row, : len(joined)] = np.frombuffer(joined, np.uint8)
        self.table.sizes[row] = 0
        self.table.sizes[row, :count] = [len(piece) for piece in form.pieces]
        self.table.holes[row, :count] = form.holes
