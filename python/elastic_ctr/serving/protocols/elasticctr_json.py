"""`POST /ElasticCTRPredictionService/inference`: the JSON of ElasticCTR's own prediction service (source 000).

    {"instances": [{"slots": [{"slot_name": "0", "feasigns": [17241709254077376921]}, …]}, …]}
    {"predictions": [{"prob0": 0.9, "prob1": 0.1}, …], "err_code": 0}

`prob1` is the probability of a click. Unlike the source: slots may come in any order, be absent, or come twice (their
feasigns are concatenated), instances may differ in their slots, and a feasign may be a number or decimal text. The proto's
field is int64, so a negative feasign is the same 64 bits as a u64. A refusal has err_code -1, err_msg, and a 4xx status.

Instances with slots in common are written with a shared part and candidates, of which `top` selects the best ones, as in `rows_json`:

    {"shared": {"slots": […]}, "candidates": [{"slots": […]}, …], "top": 20}
    {"predictions": [{"prob0": 0.9, "prob1": 0.1}, …], "places": [17, …], "err_code": 0}

`scan` reads the everyday request in machine code, straight from the body's bytes to instances: these keys in this order,
blanks anywhere between, slots of an instance in the order of the slot list, feasigns as whole numbers or decimal text.
`parse_inference` reads or refuses everything else. It returns the same instances for every request that `scan` reads, so
it is the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import load_u64, trailing_zeros
from elastic_ctr.serving.batching.instances import (
    MAX_FEASIGNS,
    Instances,
    Lengths,
    SharedFeasigns,
    feasign_array,
    with_shared,
)
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.protocols.json_fields import COUNT_END, fields, given_rows, items, json_object, text
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr
from elastic_ctr.training.model.probability import complement

_INSTANCES, _SHARED, _CANDIDATES, _TOP = (
    np.frombuffer(name, np.uint8) for name in (b'"instances"', b'"shared"', b'"candidates"', b'"top"')
)
_SLOTS = np.frombuffer(b'"slots"', np.uint8)
_NAME = np.frombuffer(b'"slot_name"', np.uint8)
_FEASIGNS = np.frombuffer(b'"feasigns"', np.uint8)
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BEGIN, _END, _ZERO, _NINE = (np.uint8(ord(sign)) for sign in '",:[]{}09')
_NOT_READ = -1
_KEPT = 256 << 10
SHORTEST_INSTANCE = len('{"slots":[]},')
SHORTEST_FEASIGN = len("1,")
# The largest u64 without its last digit, and that digit.
_TENTH, _LAST_DIGIT = map(np.uint64, divmod(2**64 - 1, 10))
_LARGEST = np.uint64(2**64 - 1)
_ZEROS = np.uint64(0x3030303030303030)
_TENS = 10 ** np.arange(5, dtype=np.uint64)
_SAFE_DIGITS = 19  # a number of this many digits cannot overflow
_TOP_END = np.uint64(COUNT_END)

Bytes = npt.NDArray[np.uint8]


def _ends(text: bytes) -> tuple[np.uint64, np.uint64]:
    """Return the first and the last eight of 14 bytes as little-endian words."""
    assert len(text) == 14
    return np.uint64(int.from_bytes(text[:8], "little")), np.uint64(int.from_bytes(text[6:], "little"))


# The form that most programs write; with blanks it is read piece by piece.
_TO_NAME_FIRST, _TO_NAME_LAST = _ends(b'{"slot_name":"')
_TO_FEASIGNS_FIRST, _TO_FEASIGNS_LAST = _ends(b'","feasigns":[')


def parse_inference(body: bytes, slots: SlotList, max_instances: int) -> Instances:
    """Read a body. Raises RequestError for anything but the requests above."""
    given = given_rows(json_object(body), max_instances)
    own = _instances_of(given.rows, [f"{given.name}[{number}]" for number in range(len(given.rows))], slots)
    if not given.has_shared:
        return own
    return replace(with_shared(own, _instances_of([given.shared], ["shared"], slots), slots.names), top=given.top)


def _instances_of(instances: list[Any], places: list[str], slots: SlotList) -> Instances:
    """Return instances with their places in the request. Raises RequestError."""
    feasigns: list[Any] = []
    lengths: list[int] = []
    for instance, place in zip(instances, places, strict=True):
        by_slot: list[list[Any]] = [[]] * len(slots)
        for index, _, values in _slots_of(instance, place, slots):
            by_slot[index] = by_slot[index] + values if by_slot[index] else values
        for values in by_slot:
            lengths.append(len(values))
            feasigns += values
    where = partial(_place_of, instances, places, slots)
    return Instances(feasign_array(feasigns, where), np.array(lengths, np.int64), len(instances))


def inference_answer(probabilities: Floats, places: Lengths | None = None) -> bytes:
    clicks = np.asarray(probabilities, np.float64)
    pairs = zip(complement(clicks).tolist(), clicks.tolist(), strict=True)
    predictions = [{"prob0": without, "prob1": click} for without, click in pairs]
    of_places = {} if places is None else {"places": places}
    return orjson.dumps({"predictions": predictions, **of_places, "err_code": 0}, option=orjson.OPT_SERIALIZE_NUMPY)


def inference_refusal(refusal: RequestError) -> bytes:
    return orjson.dumps({"predictions": [], "err_code": -1, "err_msg": refusal.sentence, "error": refusal.sentence})


def _slots_of(instance: Any, where: str, slots: SlotList) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield slot index, place in the instance and feasigns of each slot of an instance, in the request's order."""
    given = items(fields(instance, where, ("slots",))["slots"], f"{where}.slots")
    for place, slot in enumerate(given):
        # The text of a place is made only when it is needed: a request with 100,000 instances spends its time in this loop.
        if type(slot) is dict and len(slot) == 2:
            name, values = slot.get("slot_name"), slot.get("feasigns")
            if type(name) is str and type(values) is list and name in slots:
                yield slots.index(name), place, values
                continue
        here = f"{where}.slots[{place}]"
        checked = fields(slot, here, ("slot_name",), ("feasigns",))
        name = text(checked["slot_name"], f"{here}.slot_name")
        if name not in slots:
            raise BadRequest(f"{here}.slot_name {short_repr(name)} is not a slot of the model; it has {named(slots)}")
        yield slots.index(name), place, items(checked.get("feasigns", []), f"{here}.feasigns")


def _place_of(instances: list[Any], places: list[str], slots: SlotList, index: int) -> str:
    """Return the path in the request of a feasign, by its index among all of them."""
    for instance, where in zip(instances, places, strict=True):
        by_slot: list[list[str]] = [[] for _ in slots]
        for slot, place, values in _slots_of(instance, where, slots):
            by_slot[slot] += [f"{where}.slots[{place}].feasigns[{each}]" for each in range(len(values))]
        names = list(chain.from_iterable(by_slot))
        if index < len(names):
            return names[index]
        index -= len(names)
    raise IndexError(index)


def named(slots: SlotList) -> str:
    """Return the slot names for a sentence, at most ten."""
    names = list(slots)
    return ", ".join(names[:10]) + (f" … ({len(names)} in all)" if len(names) > 10 else "")


# -- in machine code


@compiled
def _blanks(data: Any, at: Any) -> Any:
    while at < data.size and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@compiled
def _sign(data: Any, at: Any, sign: Any) -> Any:
    """Return the offset after blanks and this sign; -1 if another sign is there, or if `at` is -1 already."""
    if at < 0:
        return at
    at = _blanks(data, at)
    return at + 1 if at < data.size and data[at] == sign else np.int64(_NOT_READ)


@compiled
def _key(data: Any, at: Any, name: Any) -> Any:
    """Return the offset after a field's name, its colon, and the blanks around; -1 as above."""
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
    """After an element of a list, return (the offset after the comma or closing sign, True if it closes); -1 as above."""
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
    """Return (the offset after a name and its quote, the index of that slot, `first` or later); (-1, 0) if there is none."""
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
def _digits(word: Any) -> Any:
    """True if the eight bytes of a little-endian word are decimal digits."""
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    return word & high == _ZEROS and (word + np.uint64(0x0606060606060606)) & high == _ZEROS


@compiled
def _number(word: Any) -> Any:
    """Return the number of eight digits: neighbours are combined to pairs, pairs to fours, fours to the number."""
    word -= _ZEROS
    word = word * np.uint64(10) + (word >> np.uint64(8))
    pairs = np.uint64(0x000000FF000000FF)
    left = (word & pairs) * np.uint64(100 + (1_000_000 << 32))
    right = ((word >> np.uint64(16)) & pairs) * np.uint64(1 + (10_000 << 32))
    return (left + right) >> np.uint64(32)


@compiled
def _long(data: Any, at: Any) -> Any:
    """Return (the offset after a number of 16 to 20 digits that fits, the number); (at, 0) for anything else."""
    nothing = at, np.uint64(0)
    if at + 24 > data.size or data[at] == _ZERO:
        return nothing
    address = np.uint64(data.ctypes.data) + np.uint64(at)
    first, second = load_u64(address), load_u64(address + np.uint64(8))
    if not _digits(first) or not _digits(second):
        return nothing
    value = _number(first) * np.uint64(100_000_000) + _number(second)
    # The last digits, mostly 3 or 4, are read at once: a loop's branch would often be mispredicted.
    rest = load_u64(address + np.uint64(16))
    strange = (rest ^ _ZEROS) | ((rest ^ _ZEROS) + np.uint64(0x7676767676767676))
    digits = trailing_zeros(strange & np.uint64(0x8080808080808080)) >> np.uint64(3)
    if digits > 4 or (digits == 4 and value >= _LARGEST // np.uint64(10_000)):
        return nothing
    if digits > 0:
        below = np.uint64(64) - np.uint64(8) * digits
        # Fill with zeros in front to eight digits.
        value = value * _TENS[digits] + _number((rest << below) | (_ZEROS >> (np.uint64(64) - below)))
    return at + 16 + np.int64(digits), value


@compiled
def _starts(data: Any, at: Any, first: Any, last: Any) -> Any:
    """True if the next 14 bytes begin with the eight bytes `first` and end with the eight bytes `last`."""
    if at < 0 or at + 14 > data.size:
        return False
    address = np.uint64(data.ctypes.data) + np.uint64(at)
    return load_u64(address) == first and load_u64(address + np.uint64(6)) == last


@compiled
def _to_name(data: Any, at: Any) -> Any:
    """Return the offset after the text before a slot's name, its quote included; -1 as above."""
    if _starts(data, at, _TO_NAME_FIRST, _TO_NAME_LAST):
        return at + 14
    return _sign(data, _key(data, _sign(data, at, _BEGIN), _NAME), _QUOTE)


@compiled
def _to_feasigns(data: Any, at: Any) -> Any:
    """Return the offset after the text between a slot's name and its first feasign; -1 as above."""
    if _starts(data, at - 1, _TO_FEASIGNS_FIRST, _TO_FEASIGNS_LAST):
        return at + 13
    return _sign(data, _key(data, _sign(data, at, _COMMA), _FEASIGNS), _OPEN)


@compiled
def _feasign(data: Any, at: Any) -> Any:
    """Return (the offset after a whole number or decimal text, the number); (-1, …) for anything else."""
    at = _blanks(data, at)
    quoted = at < data.size and data[at] == _QUOTE
    if quoted:
        at += 1
    begin = at
    at, value = _long(data, at)
    while at < data.size and _ZERO <= data[at] <= _NINE:
        digit = np.uint64(data[at] - _ZERO)
        if at - begin >= _SAFE_DIGITS and (value > _TENTH or (value == _TENTH and digit > _LAST_DIGIT)):
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


@compiled_inline
def _instance(data: Any, at: Any, names: Any, ends: Any, feasigns: Any, n: Any, lengths: Any, base: Any) -> Any:
    """Read an instance: its lengths from `base` on, its feasigns from `n` on. Return (the offset after it, the end of its feasigns).

    (-1, …) if it is not read, or does not fit.
    """
    slots = ends.size
    at = _sign(data, _key(data, _sign(data, at, _BEGIN), _SLOTS), _OPEN)
    if at < 0 or base + slots > lengths.size:
        return np.int64(_NOT_READ), n
    for slot in range(slots):
        lengths[base + slot] = 0
    last = np.int64(-1)
    empty = _sign(data, at, _CLOSE)
    slots_closed = empty >= 0
    if slots_closed:
        at = empty
    while not slots_closed:
        at, slot = _slot(data, _to_name(data, at), names, ends, last + 1)
        at = _to_feasigns(data, at)
        if at < 0:
            return at, n
        last = slot
        first = n
        none = _sign(data, at, _CLOSE)
        feasigns_closed = none >= 0
        if feasigns_closed:
            at = none
        while not feasigns_closed:
            at, value = _feasign(data, at)
            if at < 0 or n == feasigns.size:
                return np.int64(_NOT_READ), n
            feasigns[n] = value
            n += 1
            at, feasigns_closed = _next(data, at, _CLOSE)
        lengths[base + slot] = n - first
        at, slots_closed = _next(data, _sign(data, at, _END), _CLOSE)
    return _sign(data, at, _END), n


@compiled
def scan(data: Any, names: Any, ends: Any, max_rows: Any, feasigns: Any, lengths: Any) -> Any:
    """Read a body into the two arrays. Return (rows, feasigns); (-1, 0) if it is not the everyday request, or does not fit."""
    rows = np.int64(0)
    n = np.int64(0)
    nothing = np.int64(_NOT_READ), np.int64(0)
    at = _sign(data, _key(data, _sign(data, np.int64(0), _BEGIN), _INSTANCES), _OPEN)
    closed = False
    while not closed:
        if at < 0 or rows == max_rows:
            return nothing
        at, n = _instance(data, at, names, ends, feasigns, n, lengths, rows * ends.size)
        rows += 1
        at, closed = _next(data, at, _CLOSE)
    at = _sign(data, at, _END)
    if at < 0 or _blanks(data, at) != data.size:
        return nothing
    return rows, n


@compiled
def scan_candidates(
    data: Any,
    names: Any,
    ends: Any,
    max_rows: Any,
    feasigns: Any,
    lengths: Any,
    shared_feasigns: Any,
    shared_lengths: Any,
) -> Any:
    """As `scan`, for `{"shared": {…}, "candidates": […], "top": n}`, in this order, of which `top` may be absent.

    Return (rows, feasigns, shared feasigns, top); (-1, …) also if a candidate has feasigns of a shared slot.
    """
    zero = np.int64(0)
    nothing = np.int64(_NOT_READ), zero, zero, zero
    rows, n, top = zero, zero, zero
    at = _key(data, _sign(data, zero, _BEGIN), _SHARED)
    at, shared = _instance(data, at, names, ends, shared_feasigns, zero, shared_lengths, zero)
    at = _sign(data, _key(data, _sign(data, at, _COMMA), _CANDIDATES), _OPEN)
    closed = False
    while not closed:
        if at < 0 or rows == max_rows:
            return nothing
        base = rows * ends.size
        at, n = _instance(data, at, names, ends, feasigns, n, lengths, base)
        if at < 0:
            return nothing
        for slot in range(ends.size):
            if lengths[base + slot] > 0 and shared_lengths[slot] > 0:
                return nothing
        rows += 1
        at, closed = _next(data, at, _CLOSE)
    at, closed = _next(data, at, _END)
    if not closed:
        at = _key(data, at, _TOP)
        at = _blanks(data, at) if at >= 0 else at
        quoted = 0 <= at < data.size and data[at] == _QUOTE
        if at >= 0:
            at, number = _feasign(data, at)
            top = np.int64(number) if number < _TOP_END else zero
        if quoted or top == 0:
            return nothing
        at = _sign(data, at, _END)
    if at < 0 or _blanks(data, at) != data.size:
        return nothing
    return rows, n, shared, top


def slot_names(slots: SlotList | None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the slots for `scan`: their names concatenated as u8, and the end of each as i64; empty for None."""
    names = () if slots is None else slots.names
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return np.frombuffer(bytearray("".join(names), "ascii"), np.uint8), ends


class Scanner:
    """`scan` for one slot list and one thread: the arrays for small bodies are reused."""

    def __init__(self, slots: SlotList, max_instances: int) -> None:
        self._slots = len(slots)
        self._max_instances = max_instances
        self._names, self._ends = slot_names(slots)
        self._feasigns: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._lengths: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def read(self, body: bytes) -> Instances | None:
        """Return the instances, or None if `elasticctr_json.parse_inference` must read or refuse the body."""
        return self._arrays(body, self._instances)

    def read_candidates(self, body: bytes) -> Instances | None:
        """As `read`, for a body with a shared part."""
        return self._arrays(body, self._candidates)

    def _arrays(self, body: bytes, scanned: Callable[[Bytes, Keys, Lengths], Instances | None]) -> Instances | None:
        feasigns = min(len(body) // SHORTEST_FEASIGN, MAX_FEASIGNS)
        rows = min(len(body) // SHORTEST_INSTANCE + 1, self._max_instances)
        into, lengths = self._feasigns, self._lengths
        if into.size < feasigns or lengths.size < rows * self._slots:
            into, lengths = np.empty(feasigns, np.uint64), np.empty(rows * self._slots, np.int64)
            if len(body) <= _KEPT:
                self._feasigns, self._lengths = into, lengths
        return scanned(np.frombuffer(body, np.uint8), into, lengths)

    def _instances(self, data: Bytes, into: Keys, lengths: Lengths) -> Instances | None:
        found, n = scan(data, self._names, self._ends, self._max_instances, into, lengths)
        return None if found < 0 else Instances(into[:n].copy(), lengths[: found * self._slots].copy(), int(found))

    def _candidates(self, data: Bytes, into: Keys, lengths: Lengths) -> Instances | None:
        shared, of_slots = np.empty_like(into), np.empty((1, self._slots), np.int64)
        found, n, common, top = scan_candidates(
            data, self._names, self._ends, self._max_instances, into, lengths, shared, of_slots.reshape(-1)
        )
        if found < 0 or n + common > MAX_FEASIGNS:
            return None
        group = SharedFeasigns(shared[:common].copy(), of_slots, np.zeros(found, np.int64))
        own = into[:n].copy(), lengths[: found * self._slots].copy()
        return Instances(*own, int(found), shared=group, top=int(top))


def warm_scan() -> None:
    """Compile before the first request."""
    instance = b'{"slots":[{"slot_name":"0","feasigns":[1]}]}'
    scanner = Scanner(SlotList(("0",)), 1)
    assert scanner.read(b'{"instances":[%s]}' % instance) is not None
    assert scanner.read_candidates(b'{"shared":%s,"candidates":[{"slots":[]}],"top":1}' % instance) is not None
