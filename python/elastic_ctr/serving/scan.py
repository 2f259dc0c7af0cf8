"""The everyday request of the source's protocol, read in machine code: straight from the body's bytes to instances.

It takes what programs write: `{"instances": [{"slots": [{"slot_name": "0", "feasigns": [17, "18"]}, …]}, …]}` with these
keys in this order, blanks anywhere between, slots of an instance rising in the order of the slot list, feasigns as whole
numbers or decimal text. Whatever else comes, a wrong request above all, is left to `source_protocol`, which says the same
of everything that is read here: it is the oracle of the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.slots import SlotList
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.serving.instances import MAX_FEASIGNS, Instances

_INSTANCES = np.frombuffer(b'"instances"', np.uint8)
_SLOTS = np.frombuffer(b'"slots"', np.uint8)
_NAME = np.frombuffer(b'"slot_name"', np.uint8)
_FEASIGNS = np.frombuffer(b'"feasigns"', np.uint8)
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BEGIN, _END = (np.uint8(ord(sign)) for sign in '",:[]{}')
_ZERO, _NINE = np.uint8(ord("0")), np.uint8(ord("9"))
_NOT_READ = -1
_KEPT = 256 << 10
_SHORTEST_INSTANCE = len('{"slots":[]},')
_SHORTEST_FEASIGN = len("1,")
# Ten times what one value before the last digit of a u64 may be.
_TENTH = np.uint64((2**64 - 1) // 10)
_LAST_DIGIT = np.uint64((2**64 - 1) % 10)


@compiled
def _blanks(data: Any, at: Any) -> Any:
    while at < data.size and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@compiled
def _sign(data: Any, at: Any, sign: Any) -> Any:
    """Past the sign and the blanks before it; -1 when something else is there, or before."""
    if at < 0:
        return at
    at = _blanks(data, at)
    return at + 1 if at < data.size and data[at] == sign else np.int64(_NOT_READ)


@compiled
def _key(data: Any, at: Any, name: Any) -> Any:
    """Past the name of a field, its colon, and the blanks around; -1 as above."""
    if at < 0:
        return at
    at = _blanks(data, at)
    if at + name.size > data.size:
        return np.int64(_NOT_READ)
    for i in range(name.size):
        if data[at + i] != name[i]:
            return np.int64(_NOT_READ)
    return _sign(data, at + name.size, _COLON)


@compiled
def _next(data: Any, at: Any, close: Any) -> Any:
    """After an element of a list: (past the comma or the closing sign, whether it is closed); -1 as above."""
    if at < 0:
        return at, True
    at = _blanks(data, at)
    if at < data.size and data[at] == _COMMA:
        return at + 1, False
    if at < data.size and data[at] == close:
        return at + 1, True
    return np.int64(_NOT_READ), True


@compiled
def _slot(data: Any, at: Any, names: Any, ends: Any, first: Any) -> Any:
    """(Past a quoted name, the index of that slot, `first` or later); (-1, 0) when there is none."""
    at = _sign(data, at, _QUOTE)
    if at < 0:
        return at, np.int64(0)
    for slot in range(first, ends.size):
        begin = ends[slot - 1] if slot > 0 else np.int64(0)
        length = ends[slot] - begin
        if at + length < data.size and data[at + length] == _QUOTE:
            same = True
            for i in range(length):
                if data[at + i] != names[begin + i]:
                    same = False
                    break
            if same:
                return at + length + 1, np.int64(slot)
    return np.int64(_NOT_READ), np.int64(0)


@compiled
def _feasign(data: Any, at: Any) -> Any:
    """(Past a whole number or decimal text, the number); (-1, 0) when it is anything else."""
    at = _blanks(data, at)
    quoted = at < data.size and data[at] == _QUOTE
    if quoted:
        at += 1
    begin = at
    value = np.uint64(0)
    while at < data.size and _ZERO <= data[at] <= _NINE:
        digit = np.uint64(data[at] - _ZERO)
        if value > _TENTH or (value == _TENTH and digit > _LAST_DIGIT):
            return np.int64(_NOT_READ), value
        value = value * np.uint64(10) + digit
        at += 1
    # JSON's numbers have no leading zeros; a point or an exponent ends the list in _next.
    if at == begin or (data[begin] == _ZERO and at - begin > 1):
        return np.int64(_NOT_READ), value
    if quoted:
        if at >= data.size or data[at] != _QUOTE:
            return np.int64(_NOT_READ), value
        at += 1
    return at, value


@compiled
def scan(data: Any, names: Any, ends: Any, max_rows: Any, feasigns: Any, lengths: Any) -> Any:
    """(Rows, feasigns) read into the two arrays; (-1, 0) when the body is not the everyday one, or does not fit."""
    slots = ends.size
    rows = np.int64(0)
    n = np.int64(0)
    nothing = np.int64(_NOT_READ), np.int64(0)
    at = _sign(data, _key(data, _sign(data, np.int64(0), _BEGIN), _INSTANCES), _OPEN)
    closed = False
    while not closed:
        at = _sign(data, _key(data, _sign(data, at, _BEGIN), _SLOTS), _OPEN)
        if at < 0 or rows == max_rows or (rows + 1) * slots > lengths.size:
            return nothing
        base = rows * slots
        for slot in range(slots):
            lengths[base + slot] = 0
        last = np.int64(-1)
        empty = _sign(data, at, _CLOSE)
        slots_closed = empty >= 0
        if slots_closed:
            at = empty
        while not slots_closed:
            at = _key(data, _sign(data, at, _BEGIN), _NAME)
            at, slot = _slot(data, at, names, ends, last + 1)
            at = _sign(data, _key(data, _sign(data, at, _COMMA), _FEASIGNS), _OPEN)
            if at < 0:
                return nothing
            last = slot
            first = n
            none = _sign(data, at, _CLOSE)
            feasigns_closed = none >= 0
            if feasigns_closed:
                at = none
            while not feasigns_closed:
                at, value = _feasign(data, at)
                if at < 0 or n == feasigns.size:
                    return nothing
                feasigns[n] = value
                n += 1
                at, feasigns_closed = _next(data, at, _CLOSE)
            lengths[base + slot] = n - first
            at, slots_closed = _next(data, _sign(data, at, _END), _CLOSE)
        at = _sign(data, at, _END)
        rows += 1
        at, closed = _next(data, at, _CLOSE)
    at = _sign(data, at, _END)
    if at < 0 or _blanks(data, at) != data.size:
        return nothing
    return rows, n


class Scanner:
    """For one slot list and one thread: what it reads small bodies into is used again."""

    def __init__(self, slots: SlotList, max_instances: int) -> None:
        self._slots = len(slots)
        self._max_instances = max_instances
        self._names = np.frombuffer("".join(slots).encode("ascii"), np.uint8)
        self._ends = np.cumsum([len(name) for name in slots], dtype=np.int64)
        self._feasigns: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._lengths: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def read(self, body: bytes) -> Instances | None:
        """None: it is for `source_protocol.parse_inference` to read or to refuse."""
        feasigns = min(len(body) // _SHORTEST_FEASIGN, MAX_FEASIGNS)
        rows = min(len(body) // _SHORTEST_INSTANCE + 1, self._max_instances)
        into, lengths = self._feasigns, self._lengths
        if into.size < feasigns or lengths.size < rows * self._slots:
            into, lengths = np.empty(feasigns, np.uint64), np.empty(rows * self._slots, np.int64)
            if len(body) <= _KEPT:
                self._feasigns, self._lengths = into, lengths
        found, n = scan(np.frombuffer(body, np.uint8), self._names, self._ends, self._max_instances, into, lengths)
        if found < 0:
            return None
        return Instances(into[:n].copy(), lengths[: found * self._slots].copy(), int(found))


def warm_scan() -> None:
    """Compile now, not under the first request."""
    assert (
        Scanner(SlotList(("0",)), 1).read(b'{"instances":[{"slots":[{"slot_name":"0","feasigns":[1]}]}]}') is not None
    )
