"""Templates of request heads: a head that `http_syntax` has read once is known from then on with other lengths and other values.

A program sends the same headers again and again. Only the number in `content-length` changes, and the values that proxies and
tracers write: traces, addresses, dates. So a template keeps the pieces of an everyday head, with holes between them: one for the
length, one for the value of each header that no frontend reads. Another head with the same pieces means the same. The JSON in
front of binary tensors has templates, too. Every other head goes to the asyncio frontend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.frontends.http_syntax import HEAD_END, read_head
from elastic_ctr.serving.request_error import RequestError

LONGEST_HEAD = 2048
# Headers that make more of a request than its head and its body.
UNUSUAL = frozenset([b"expect", b"content-encoding", b"transfer-encoding", b"upgrade"])
# Headers whose values are checked: another value is another head.
_TELLING = frozenset([b"connection", b"host"])
# All programs read these characters alike.
_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_LENGTH = re.compile(rb"([ \t]*)([1-9][0-9]{0,8})([ \t]*)")
# After a piece stands nothing more, any value, or a number. Numbers of a head, and of the JSON in front of binary tensors:
END, VALUE = range(2)
LENGTH, JSON_LENGTH = 2, 3
FEASIGN_COUNT, ROWS, FEASIGN_BYTES, LENGTH_BYTES = range(2, 6)
FIRST_NUMBER = 2
MOST_NUMBERS = 4
# Kinds of heads: the source's JSON, and binary tensors. The kind of a JSON is the bytes of a length, negative where lengths stand
# before feasigns.
SOURCE, TENSORS = range(2)
MOST_PIECES = 64
_KEPT = 64
_MOST_DIGITS = 9
_SEEN = 65_536
_PADDING = 8


class Template(NamedTuple):
    """The fixed pieces, and the kind of hole after each; END after the last."""

    pieces: tuple[bytes, ...]
    holes: tuple[int, ...]
    kind: int


class TemplateTable(NamedTuple):
    """Known forms, as machine code reads them. A piece has one byte at least."""

    pieces: NDArray[np.uint8]  # [kept, LONGEST_HEAD and padding]: one behind the other
    sizes: NDArray[np.int64]  # [kept, MOST_PIECES] bytes of each; the first is 0 where none is kept
    holes: NDArray[np.int64]  # [kept, MOST_PIECES]
    kinds: NDArray[np.int64]  # [kept]


def head_template(head: bytes, paths: Mapping[str, int], max_headers: int) -> Template | None:
    """The form of the head of a POST to one of these paths, which say its kind, that keeps the connection; None of others."""
    if len(head) > LONGEST_HEAD:
        return None
    try:
        read = read_head(head, max_headers)
    except RequestError:
        return None
    kind = paths.get(read.path)
    everyday = (
        read.method == "POST"
        and kind is not None
        and read.length > 0
        and not read.last
        and not read.kept_alive
        and UNUSUAL.isdisjoint(read.names)
        and (read.json_length is not None) == (kind == TENSORS)
    )
    return _split_head(head, read.names, kind) if everyday and kind is not None else None


_NUMBERS = {b"content-length": LENGTH, b"inference-header-content-length": JSON_LENGTH}


def _split_head(head: bytes, names: tuple[bytes, ...], kind: int) -> Template | None:
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
        hole = _NUMBERS.get(name, VALUE)
        number = _LENGTH.fullmatch(value) if hole != VALUE else None
        if _VALUE.fullmatch(value) is None or (hole != VALUE and number is None):
            return None
        pieces.append(piece if number is None else piece + number[1])
        holes.append(hole)
        piece = b"" if number is None else number[3]
    pieces.append(piece + HEAD_END)
    holes.append(END)
    return Template(tuple(pieces), tuple(holes), kind) if len(pieces) <= MOST_PIECES else None


class LearnResult(Enum):
    """The result of learning a text."""

    NOT = 0
    NEW = 1
    AGAIN = 2


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[0-9]+')
_WIDTHS = {"UINT16": 2, "UINT32": 4, "INT32": 4}


def tensors_template(text: bytes, slots: SlotList) -> Template | None:
    """The form of the JSON in front of the two tensors of all slots, asked for probabilities in binary; None of others."""
    try:
        document = orjson.loads(text)
        names = [each["name"] for each in document["inputs"]]
        feasigns, lengths = (document["inputs"][names.index(name)] for name in ("feasigns", "lengths"))
        (count,), (rows, _) = feasigns["shape"], lengths["shape"]
        width = _WIDTHS[lengths["datatype"]]
        parameters = {"slot_list_check": slots.check(), **document.get("parameters", {})}
        due = [
            _described("feasigns", "UINT64", [count], 8 * count),
            _described("lengths", lengths["datatype"], [rows, len(slots)], width * len(slots) * rows),
        ]
        due = due if names[0] == "feasigns" else due[::-1]
    except (ValueError, KeyError, TypeError, AttributeError):
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
    return _cut_numbers(text, document, holes, width if names[0] == "feasigns" else -width)


def _described(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def _integers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The whole numbers of a document in their order, and where they stand."""
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
    """The forms known to a frontend; when there are too many the oldest is forgotten. `read` finds the form of a text."""

    def __init__(self, read: Callable[[bytes], Template | None]) -> None:
        self.table = TemplateTable(
            np.zeros((_KEPT, LONGEST_HEAD + _PADDING), np.uint8),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
            np.zeros((_KEPT, MOST_PIECES), np.int64),
            np.zeros(_KEPT, np.int64),
        )
        self.read = read
        self._on_result: list[Template | None] = [None] * _KEPT
        # Hashes, of those that were forgotten too.
        self._seen: set[int] = set()
        self._next = 0

    def learn(self, text: bytes) -> LearnResult:
        """An everyday one is known from now on."""
        form = self.read(text)
        if form is None:
            return LearnResult.NOT
        if form in self._on_result:
            # Many connections may have been read before the first of them was looked at.
            return LearnResult.AGAIN
        self._keep(form)
        mark = hash(form)
        if mark in self._seen:
            return LearnResult.AGAIN
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return LearnResult.NEW

    def _keep(self, form: Template) -> None:
        row, count = self._next, len(form.pieces)
        self._next = (row + 1) % _KEPT
        self._on_result[row] = form
        joined = b"".join(form.pieces)
        self.table.pieces[row, : len(joined)] = np.frombuffer(joined, np.uint8)
        self.table.sizes[row] = 0
        self.table.sizes[row, :count] = [len(piece) for piece in form.pieces]
        self.table.holes[row, :count] = form.holes
        self.table.kinds[row] = form.kind
