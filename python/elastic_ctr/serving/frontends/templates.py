"""Templates of request heads: a head that `runtime.http_reader` has read once is recognized later with other lengths and other values.

A program sends the same headers repeatedly. Only the number in `content-length` changes, and the values that proxies and tracers
write: traces, addresses, dates. So a template keeps the pieces of an everyday head, with holes between them: one for the length, one
for the value of each header that no frontend reads. Another head with the same pieces has the same meaning. The JSON in front of
binary tensors has templates, too. A connection with any other head moves to the fallback frontend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import load_u64
from elastic_ctr.runtime.http_reader import read_head
from elastic_ctr.serving.frontends.fallback_http import Limits, request_head
from elastic_ctr.serving.protocols.json_fields import json_object
from elastic_ctr.serving.protocols.open_inference import FIRST_IS_SHARED
from elastic_ctr.serving.request_error import RequestError

LONGEST_HEAD = 2048
HEAD_END = b"\r\n\r\n"
# Headers that change how a request is read or answered; a head with one is not an everyday head.
UNUSUAL = frozenset([b"expect", b"content-encoding", b"transfer-encoding", b"upgrade"])
# Headers whose values are checked: their values are part of the template.
_TELLING = frozenset([b"connection", b"host"])
# The blanks around a hole belong to the pieces. All HTTP parsers accept these characters of a value alike.
_VALUE = re.compile(rb"()[\t\x20-\x7e]*()")
_LENGTH = re.compile(rb"([ \t]*)[1-9][0-9]{0,8}([ \t]*)")
# A piece is followed by nothing, by any value, or by a number. Numbers of a head, and of the JSON in front of binary tensors:
END, VALUE = -2, -1
LENGTH, JSON_LENGTH = range(2)
FEASIGN_COUNT, ROWS, FEASIGN_BYTES, LENGTH_BYTES = range(4)
_MOST_NUMBERS = 4
_NUMBERS = {b"content-length": LENGTH, b"inference-header-content-length": JSON_LENGTH}
# Kinds of heads: the source's JSON, binary tensors, and rows of columns in JSON. The kind of a JSON is the number of bytes of a
# length, and SHARED if its first row is shared; negative if lengths come before feasigns.
SOURCE, TENSORS, COLUMNS = range(3)
WIDTH, SHARED = 7, 8
MOST_PIECES = 64
_KEPT = 64
_MOST_DIGITS = 9
_SEEN = 65_536
_PADDING = 8
_NONE = -1
_TAB, _SPACE, _TILDE, _ZERO, _NINE = (np.uint8(ord(sign)) for sign in "\t ~09")


class Template(NamedTuple):
    """The fixed pieces, and the kind of hole after each; END after the last."""

    pieces: tuple[bytes, ...]
    holes: tuple[int, ...]
    kind: int


class TemplateTable(NamedTuple):
    """Known forms in arrays for machine code. A piece has at least one byte."""

    pieces: NDArray[np.uint8]  # [kept, LONGEST_HEAD and padding]: the pieces of each form, concatenated
    sizes: NDArray[np.int64]  # [kept, MOST_PIECES] bytes of each piece; the first is 0 in an unused row
    holes: NDArray[np.int64]  # [kept, MOST_PIECES]
    kinds: NDArray[np.int64]  # [kept]
    numbers: NDArray[np.int64]  # [_MOST_NUMBERS] numbers of the last text that matched


def head_template(head: bytes, paths: Mapping[str, int], limits: Limits) -> Template | None:
    """Return the form of a POST's head that keeps the connection, to one of `paths`, which map to kinds; None for other heads."""
    read = read_head(head, limits) if len(head) <= LONGEST_HEAD else None
    if read is None or read.method != b"POST" or read.http_version != b"1.1":
        return None
    try:
        meant = request_head("POST", read.target, read.headers)
    except RequestError:
        return None
    names = [name for name, _ in read.headers]
    kind = paths.get(meant.path)
    if (
        kind is None
        or meant.length == 0
        or any(name == b"connection" and b"close" in value.lower() for name, value in read.headers)
        or not UNUSUAL.isdisjoint(names)
        or (meant.json_length is not None) != (kind == TENSORS)
    ):
        return None
    line, *lines = head.removesuffix(HEAD_END).split(b"\r\n")
    # h11 may have dropped a header that is there twice.
    if [each.partition(b":")[0].lower() for each in lines] != names:
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
        found = (_LENGTH if name in _NUMBERS else _VALUE).fullmatch(value)
        if found is None:
            return None
        pieces.append(piece + found[1])
        holes.append(_NUMBERS.get(name, VALUE))
        piece = found[2]
    pieces.append(piece + HEAD_END)
    holes.append(END)
    return Template(tuple(pieces), tuple(holes), kind) if len(pieces) <= MOST_PIECES else None


class LearnResult(Enum):
    """The result of `learn`: not everyday, learned, or known before."""

    NOT, NEW, AGAIN = range(3)


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[0-9]+')
_WIDTHS = {"UINT16": 2, "UINT32": 4, "INT32": 4}


def tensors_template(text: bytes, slots: SlotList) -> Template | None:
    """Return the form of the JSON in front of the two tensors of all slots that requests binary probabilities; None for others."""
    try:
        document = json_object(text)
        names = [each["name"] for each in document["inputs"]]
        feasigns, lengths = (document["inputs"][names.index(name)] for name in ("feasigns", "lengths"))
        (count,), (rows, _) = feasigns["shape"], lengths["shape"]
        width = _WIDTHS[lengths["datatype"]]
        parameters = {"slot_list_check": slots.check(), **document.get("parameters", {})}
        shared = SHARED if parameters.get(FIRST_IS_SHARED) is True else 0
        if shared:
            del parameters[FIRST_IS_SHARED]
        due = [
            _described("feasigns", "UINT64", [count], 8 * count),
            _described("lengths", lengths["datatype"], [rows, len(slots)], width * len(slots) * rows),
        ]
        due = due if names[0] == "feasigns" else due[::-1]
    except (RequestError, ValueError, KeyError, TypeError, AttributeError):
        return None
    known = {
        "inputs": due,
        "outputs": [{"name": "probability", "parameters": {"binary_data": True}}],
        "parameters": {"slot_list_check": slots.check()},
    }
    if {**document, "parameters": parameters} != known or "feasigns" in slots:
        return None
    holes = {
        ("inputs", names.index("feasigns"), "shape", 0): FEASIGN_COUNT,
        ("inputs", names.index("feasigns"), "parameters", "binary_data_size"): FEASIGN_BYTES,
        ("inputs", names.index("lengths"), "shape", 0): ROWS,
        ("inputs", names.index("lengths"), "parameters", "binary_data_size"): LENGTH_BYTES,
    }
    kind = width + shared
    return _cut_numbers(text, document, holes, kind if names[0] == "feasigns" else -kind)


def _described(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def _integers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield the paths and the texts of a document's whole numbers in their order."""
    if type(value) is int:
        yield path, b"%d" % value
    for step, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from _integers(each, (*path, step))


def _cut_numbers(text: bytes, document: Any, holes: dict[tuple[Any, ...], int], kind: int) -> Template | None:
    tokens = [token for token in _TOKEN.finditer(text) if not token[0].startswith(b'"')]
    integers = list(_integers(document))
    if len(text) > LONGEST_HEAD or [number for _, number in integers] != [token[0] for token in tokens]:
        return None
    pieces: list[bytes] = []
    kinds: list[int] = []
    begin = 0
    for (path, number), token in zip(integers, tokens, strict=True):
        if path in holes:
            if number == b"0" or len(number) > _MOST_DIGITS:
                return None
            pieces.append(text[begin : token.start()])
            kinds.append(holes[path])
            begin = token.end()
    return Template((*pieces, text[begin:]), (*kinds, END), kind) if len(pieces) == len(holes) else None


class Templates:
    """The forms known to a frontend; a new one replaces the oldest if the table is full. `read` finds the form of a text."""

    def __init__(self, read: Callable[[bytes], Template | None]) -> None:
        self.table = TemplateTable(
            np.zeros((_KEPT, LONGEST_HEAD + _PADDING), np.uint8),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
            np.zeros(_KEPT, np.int64),
            np.zeros(_MOST_NUMBERS, np.int64),
        )
        self.read = read
        self._forms: list[Template | None] = [None] * _KEPT
        # Hashes of all learned forms, those that were replaced included.
        self._seen: set[int] = set()
        self._next = 0

    def learn(self, text: bytes) -> LearnResult:
        """Add the form of an everyday text to the table."""
        form = self.read(text)
        if form is None:
            return LearnResult.NOT
        if form in self._forms:
            # Several connections with the same new head may have been set aside in one batch.
            return LearnResult.AGAIN
        row, count = self._next, len(form.pieces)
        self._next = (row + 1) % _KEPT
        self._forms[row] = form
        joined = b"".join(form.pieces)
        self.table.pieces[row, : len(joined)] = np.frombuffer(joined, np.uint8)
        self.table.sizes[row] = 0
        self.table.sizes[row, :count] = [len(piece) for piece in form.pieces]
        self.table.holes[row, :count] = form.holes
        self.table.kinds[row] = form.kind
        mark = hash(form)
        if mark in self._seen:
            return LearnResult.AGAIN
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return LearnResult.NEW


@compiled
def _same(data: Any, at: Any, pieces: Any, number: Any, from_: Any, size: Any) -> Any:
    """True if the `size` bytes at `at` of the input equal those at `from_` of a form; both arrays are longer than that."""
    one = np.uint64(data.ctypes.data) + np.uint64(at)
    other = np.uint64(pieces.ctypes.data) + np.uint64(number * pieces.shape[1] + from_)
    words = size // 8
    for word in range(words):
        step = np.uint64(8 * word)
        if load_u64(one + step) != load_u64(other + step):
            return False
    i = 8 * words
    while i < size and data[at + i] == pieces[number, from_ + i]:
        i += 1
    return i >= size


@compiled
def _known(data: Any, at: Any, have: Any, exact: Any, table: Any, number: Any) -> Any:
    """Return the length of the text at `at` if it has the numbered form, else -1. Its numbers are written to the table.

    `exact`: the text must have all of the `have` bytes.
    """
    whole = have
    # No text is longer, so the search for the end of a value stops there.
    have = min(have, LONGEST_HEAD)
    place, from_ = np.int64(0), np.int64(0)
    for piece in range(table.sizes.shape[1]):
        size = table.sizes[number, piece]
        if size == 0 or have - place < size or not _same(data, at + place, table.pieces, number, from_, size):
            return np.int64(_NONE)
        place += size
        from_ += size
        hole = table.holes[number, piece]
        if hole == END:
            return place if not exact or place == whole else np.int64(_NONE)
        begin = place
        if hole >= 0:
            value = np.int64(0)
            while place < have and place - begin < _MOST_DIGITS and _ZERO <= data[at + place] <= _NINE:
                value = value * 10 + np.int64(data[at + place] - _ZERO)
                place += 1
            if place == begin or data[at + begin] == _ZERO:
                return np.int64(_NONE)
            table.numbers[hole] = value
        else:
            while place < have and (_SPACE <= data[at + place] <= _TILDE or data[at + place] == _TAB):
                place += 1
    return np.int64(_NONE)


@compiled
def find_form(data: Any, at: Any, have: Any, exact: Any, table: Any, row: Any, last: Any) -> Any:
    """As `_known`, for any form; the connection's last form, which is in column `last` of its row, is tried first."""
    size = _known(data, at, have, exact, table, row[last])
    number = np.int64(0)
    while size < 0 and number < table.sizes.shape[0]:
        size = _known(data, at, have, exact, table, number)
        if size >= 0:
            row[last] = number
        number += 1
    return size
