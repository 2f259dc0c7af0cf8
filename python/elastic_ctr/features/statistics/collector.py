"""Computes statistics: a `Collector` takes the rows of one part of the data, `merged` joins the results of all parts.

A part is a task: a file, or a range of its bytes. The same rows of a part give the same bytes in any batches, and the same parts
give the same statistics in any order. Parts are merged series by series, one in memory at a time, so that the memory for merging
does not grow with the number of parts. Counts, least and greatest number, mean and deviation are exact and do not depend on how the
data is cut into parts; quantiles, distinct values and the list of frequent values do, within their bounds.
docs/decisions/0011-statistics.md has the reasons for each structure, and the measurements.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import datasketches
import numpy as np
import numpy.typing as npt

from elastic_ctr.features.statistics.document import (
    BUCKETS,
    LONGEST,
    TOP,
    NumberStatistics,
    Statistics,
    TextStatistics,
    series_of,
)
from elastic_ctr.features.statistics.sketches import MOST_NUMBERS, Points, QuantileSketch, Sums, sums_of
from elastic_ctr.features.transforms.formulas import Texts
from elastic_ctr.features.transforms.xxh3 import hashes_of
from elastic_ctr.formats.cells import Cells, copied, joined_cells
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.machine_code.compiled import compiled

CHUNK_ROWS = 1 << 16
CHUNK_BYTES = 32 << 20  # of texts; the row that exceeds it is the last of its chunk
assert CHUNK_ROWS <= MOST_NUMBERS

_MAGIC = b"ectr statistics 2\n"
_DIGEST_BYTES = 32
_LG_REGISTERS = 15
_COUNTERS_OF_EACH = 16
_LG_MERGED_COUNTERS = 20
_MEAN_LISTED_BYTES = 32

Arrays = dict[str, npt.NDArray[Any]]


@compiled
def _write_values(data: Any, begins: Any, ends: Any, separator: Any, out: Any, offsets: Any) -> Any:
    """Split cells into values. Return the number of values, and of rows without one; value i ends at offsets[i + 1] of `out`."""
    values = at = empty = 0
    for row in range(begins.size):
        before = values
        for place in range(begins[row], ends[row]):
            byte = data[place]
            if byte != separator:
                out[at] = byte
                at += 1
            elif at > offsets[values]:
                values += 1
                offsets[values] = at
        if at > offsets[values]:
            values += 1
            offsets[values] = at
        if values == before:
            empty += 1
    return values, empty


def _values_of(cells: Cells, place: int, separator: str) -> tuple[Texts, int]:
    """Return the values of a text input, those of lists separately, without empty ones; and the number of rows without a value."""
    begins, ends = np.ascontiguousarray(cells.begins[:, place]), np.ascontiguousarray(cells.ends[:, place])
    size = int((ends - begins).sum())
    out, offsets = np.empty(size, np.uint8), np.zeros(len(cells) + 1 + (size if separator else 0), np.int64)
    values, empty = _write_values(cells.data, begins, ends, ord(separator) if separator else -1, out, offsets)
    offsets = offsets[: values + 1]
    return Texts(out[: offsets[-1]], offsets), empty


def _each(update: Callable[..., None], *items: Iterable[Any]) -> None:
    deque(map(update, *items), 0)


class _TextColumn:
    """The collected statistics of a text input."""

    def __init__(self, separator: str, top: int) -> None:
        self._separator = separator
        self._listed = 2 * top
        self._rows = self._missing = self._values = self._bytes = 0
        self._distinct = datasketches.hll_sketch(_LG_REGISTERS, datasketches.HLL_8)
        # The sketch uses three quarters of its counters, which must be at least 16 times `top`.
        self._frequent = datasketches.frequent_strings_sketch((_COUNTERS_OF_EACH * top * 4 // 3).bit_length())

    def add(self, cells: Cells, place: int) -> None:
        texts, empty = _values_of(cells, place, self._separator)
        self._rows += len(cells)
        self._missing += empty
        self._values += len(texts)
        self._bytes += len(texts.data)
        keys, first, counts = np.unique(
            hashes_of(b"", texts.data, texts.offsets), return_index=True, return_counts=True
        )
        # The sketch takes numbers below 2^63 five times faster than a full u64.
        _each(self._distinct.update, (keys >> np.uint64(1)).tolist())
        begins, ends = texts.offsets[first], texts.offsets[first + 1]
        short = ends - begins <= LONGEST
        whole, update = texts.data.tobytes(), self._frequent.update
        for begin, end, count in zip(begins[short].tolist(), ends[short].tolist(), counts[short].tolist(), strict=True):
            update(whole[begin:end].decode(), count)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        held, left_out = _most_frequent(self._frequent, self._listed)
        sizes = np.cumsum([len(value.encode()) for value, _ in held], dtype=np.int64)
        listed = int(np.searchsorted(sizes, self._listed * _MEAN_LISTED_BYTES, side="right"))
        if listed < len(held):
            left_out = max(left_out, held[listed][1] + _error(self._frequent))
        facts = {
            "rows": self._rows,
            "missing": self._missing,
            "values": self._values,
            "bytes": self._bytes,
            "leftOut": left_out,
        }
        return facts, {
            "distinct": np.frombuffer(self._distinct.serialize_compact(), np.uint8),
            "listed": np.frombuffer("".join(value for value, _ in held[:listed]).encode(), np.uint8),
            "ends": sizes[:listed],
            "counts": np.array([least for _, least in held[:listed]], np.int64),
        }


class _Numbers:
    """The collected statistics of a number input."""

    def __init__(self) -> None:
        self._rows = 0
        self._least, self._most = np.inf, -np.inf
        self._sums = Sums()
        self._distinct = datasketches.hll_sketch(_LG_REGISTERS, datasketches.HLL_8)
        self._quantiles = QuantileSketch()

    def add(self, cells: Cells, place: int) -> None:
        self._rows += len(cells)
        numbers = cells.numbers[:, place]
        numbers = numbers[~np.isnan(numbers)] + 0.0  # -0.0 becomes 0.0
        if not len(numbers):
            return
        self._sums = self._sums.plus(sums_of(numbers))
        values, counts = np.unique(numbers, return_counts=True)
        self._least, self._most = min(self._least, float(values[0])), max(self._most, float(values[-1]))
        _each(self._distinct.update, values.tolist())
        self._quantiles.add(Points(values, counts))

    def state(self) -> tuple[dict[str, Any], Arrays]:
        points = self._quantiles.points()
        facts = {"rows": self._rows, "sums": self._sums}
        if self._sums.n:
            facts |= {"min": self._least, "max": self._most}
        return facts, {
            "distinct": np.frombuffer(self._distinct.serialize_compact(), np.uint8),
            "values": points.values,
            "weights": points.weights,
        }


class Collector:
    """Collects the statistics of the rows of one part. `top` is the length of the list of most frequent values."""

    def __init__(self, inputs: InputColumns, top: int = TOP) -> None:
        for names in ([*map(series_of, inputs.texts)], inputs.numbers):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"the input {twice!r} is read twice in the same way; give it once")
        self._inputs = inputs
        self._top = top
        self._texts = [_TextColumn(each.separator, top) for each in inputs.texts]
        self._numbers = [_Numbers() for _ in inputs.numbers]
        self._waiting: list[Cells] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, cells: Cells) -> None:
        """Add rows, of which an unfinished chunk is copied. The ends of chunks depend only on the rows, not on their batches."""
        ends = np.cumsum((cells.ends - cells.begins).sum(axis=1))
        begin = taken = 0
        while begin < len(cells):
            full = int(np.searchsorted(ends, taken + CHUNK_BYTES - self._waiting_bytes)) + 1
            end = min(begin + CHUNK_ROWS - self._waiting_rows, full, len(cells))
            self._waiting.append(copied(cells, np.arange(begin, end)))
            self._waiting_rows += end - begin
            self._waiting_bytes += int(ends[end - 1]) - taken
            begin, taken = end, int(ends[end - 1])
            if self._waiting_rows == CHUNK_ROWS or self._waiting_bytes >= CHUNK_BYTES:
                self._take()

    def to_bytes(self) -> bytes:
        """Return the part for `merged`; call this once, after all rows."""
        if self._waiting:
            self._take()
        head = {"texts": [*map(list, self._inputs.texts)], "numbers": list(self._inputs.numbers), "top": self._top}
        series = [_packed(*each.state()) for each in self._texts] + [_packed(*each.state()) for each in self._numbers]
        lines = [json.dumps(head).encode(), json.dumps([len(each) for each in series]).encode()]
        body = b"\n".join([*lines, b"".join(series)])
        return _MAGIC + hashlib.sha256(body).digest() + body

    def _take(self) -> None:
        cells = joined_cells(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        for place, text in enumerate(self._texts):
            text.add(cells, place)
        for place, number in enumerate(self._numbers):
            number.add(cells, place)


def _packed(facts: dict[str, Any], arrays: Arrays) -> bytes:
    """Pack facts and arrays of one series as numpy's npz."""
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
    return packed.getvalue()


class StatisticsPart(NamedTuple):
    """A part made by a collector. `head` encodes the inputs, with equal bytes for equal inputs; each has a series, texts first."""

    head: bytes
    series: tuple[memoryview, ...]


def part_name(path: str, start: int) -> str:
    """Return the name of a part that begins at a byte of a file: stable over listings, and sorted in the order of bytes."""
    return f"{path} from byte {start:015d}"


def part_of(name: str, data: bytes) -> StatisticsPart:
    """Read a packed part without a copy. Raises ValueError if the bytes are damaged."""
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(data)[begin:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise ValueError(
            f"the statistics of {name} are damaged, or of another release; let the columns of {name} be counted again"
        )
    head = data.index(b"\n", begin)
    sizes = data.index(b"\n", head + 1)
    ends = accumulate(json.loads(data[head + 1 : sizes]), initial=sizes + 1)
    whole = memoryview(data)
    return StatisticsPart(data[begin:head], tuple(whole[first:last] for first, last in pairwise(ends)))


class _Series:
    """The series of one input in one part; each array is unpacked when it is used."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._arrays = np.load(io.BytesIO(data), allow_pickle=False)
        self.facts: dict[str, Any] = json.loads(self._arrays["facts"].tobytes())

    def array(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._arrays[name]
        return found


def merged(parts: Mapping[str, bytes]) -> Statistics:
    """Return the statistics of all parts, given by name (`part_name`).

    Raises:
        ValueError: bytes are damaged, the parts have different inputs, or there is no part.
    """
    split = {name: part_of(name, data) for name, data in parts.items()}
    return merged_series(
        {name: part.head for name, part in split.items()}, lambda name, place: split[name].series[place]
    )


def merged_series(heads: Mapping[str, bytes], read: Callable[[str, int], bytes | memoryview]) -> Statistics:
    """As `merged`, for parts outside of memory: `read` returns a part's series by index, and one series is in memory at a time.

    Raises:
        ValueError: the parts have different inputs, or there is no part. Errors of `read` are passed on.
    """
    # Parts are merged in one fixed order, because estimates depend on the order.
    names = sorted(heads)
    if not names:
        raise ValueError("there is no part of the data to make statistics of; give at least one file")
    if other := next((name for name in names if heads[name] != heads[names[0]]), None):
        raise ValueError(
            f"the statistics of {other} are of other columns than those of {names[0]}; make both with the same features"
        )
    head = json.loads(heads[names[0]])

    def series(place: int) -> Iterator[_Series]:
        return (_Series(read(name, place)) for name in names)

    texts = [series_of(TextInput(column, separator)) for column, separator in head["texts"]]
    return Statistics(
        texts={name: _text(series(place), head["top"]) for place, name in enumerate(texts)},
        numbers={name: _number(series(place)) for place, name in enumerate(head["numbers"], len(texts))},
    )


def _text(parts: Iterable[_Series], top: int) -> TextStatistics:
    frequent, distinct = datasketches.frequent_strings_sketch(_LG_MERGED_COUNTERS), _Distinct()
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part.facts)
        distinct.add(part)
        _each(frequent.update, _listed(part), part.array("counts").tolist())
    held, _ = _most_frequent(frequent, top)
    return TextStatistics(
        rows=sums["rows"],
        missing=sums["missing"],
        distinct=distinct.of(sums["values"]),
        values=sums["values"],
        mean_bytes=sums["bytes"] / max(sums["values"], 1),
        top=tuple(held),
        count_error=_error(frequent) + sums["leftOut"],
    )


def _listed(part: _Series) -> Iterator[str]:
    whole, ends = part.array("listed").tobytes(), part.array("ends").tolist()
    return (whole[begin:end].decode() for begin, end in pairwise([0, *ends]))


def _most_frequent(frequent: Any, most: int) -> tuple[list[tuple[str, int]], int]:
    """Return at most `most` values with their lower bounds of counts, falling; and a count that no other value exceeds."""
    # Each item is (value, estimate, lower bound, upper bound).
    held = [each for each in frequent.get_frequent_items(datasketches.NO_FALSE_NEGATIVES) if each[2] > 0]
    error = left_out = _error(frequent)
    if len(held) > most:
        # Among the values of the last count, the first ones by their text are kept; the others need no order here.
        counts = np.array([least for _, _, least, _ in held], np.int64)
        last = int(np.partition(counts, -most)[-most])
        above = np.flatnonzero(counts > last).tolist()
        equal = sorted(held[place] for place in np.flatnonzero(counts == last).tolist())
        held = [*(held[place] for place in above), *equal[: most - len(above)]]
        left_out = last + error
    return sorted(((value, least) for value, _, least, _ in held), key=lambda each: (-each[1], each[0])), left_out


def _error(frequent: Any) -> int:
    """Return by how much a count may exceed its lower bound: the upper bound of the empty text, which never occurs."""
    error: int = frequent.get_upper_bound("")
    return error


def _number(parts: Iterable[_Series]) -> NumberStatistics:
    rows, sums, distinct, quantiles = 0, Sums(), _Distinct(), QuantileSketch()
    least, most = np.inf, -np.inf
    for part in parts:
        rows += part.facts["rows"]
        sums = sums.plus(Sums(*part.facts["sums"]))
        distinct.add(part)
        if "min" in part.facts:
            least, most = min(least, part.facts["min"]), max(most, part.facts["max"])
            quantiles.add(Points(part.array("values"), part.array("weights")))
    if not sums.n:
        return NumberStatistics(
            rows=rows, missing=rows, distinct=0, min=None, max=None, mean=None, deviation=None, quantiles=()
        )
    # The number at rank q of n numbers is the ceil(q n)-th, as in numpy's `inverted_cdf`.
    ranks = np.array([-(-sums.n * i // BUCKETS) - 1 for i in range(1, BUCKETS)], np.int64)
    return NumberStatistics(
        rows=rows,
        missing=rows - sums.n,
        distinct=distinct.of(sums.n),
        min=least,
        max=most,
        mean=sums.mean,
        deviation=sums.deviation,
        quantiles=(least, *quantiles.all_points().at(ranks).tolist(), most),
    )


class _Distinct:
    """The number of different values in all parts."""

    def __init__(self) -> None:
        self._union = datasketches.hll_union(_LG_REGISTERS)

    def add(self, part: _Series) -> None:
        self._union.update(datasketches.hll_sketch.deserialize(part.array("distinct").tobytes()))

    def of(self, values: int) -> int:
        """Return the estimate, at most the number of all values."""
        estimate: float = self._union.get_estimate()
        return min(round(estimate), values)
