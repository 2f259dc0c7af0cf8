"""Instances of a request as two arrays, the form in which every frontend submits them to the batcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import Keys
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

Lengths = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

FEASIGN_END = 1 << 64
MAX_FEASIGNS = 8 << 20
"""Of one request; more are refused. A body of short numbers could hold four times as many, and each takes memory."""

SIGNED_LOW = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Instances:
    """Feasigns of `rows` instances over the slots of a model, before `sparseDim`.

    `feasigns`: u64, by row, then by slot in the slot list's order. `lengths`: i64 [rows * slots], the number of feasigns
    in each slot of each row. `ignored` counts features of slots that the model does not have.
    `numbers`: f32 [rows, numbers] for the network; None if it takes none.
    `known`: a list, if the request wants it, to which batches append i64 [rows], the feasigns that the version has of each row.
    """

    feasigns: Keys
    lengths: Lengths
    rows: int
    ignored: int = 0
    known: list[Lengths] | None = None
    numbers: Floats | None = None

    def parts(self, max_rows: int, max_feasigns: int) -> Iterator[Instances]:
        """Cut into parts of at most `max_rows` rows, and at most `max_feasigns` feasigns unless one row alone has more."""
        ends = np.cumsum(self.lengths.reshape(self.rows, -1).sum(axis=1))
        begin = 0
        while begin < self.rows:
            before = int(ends[begin - 1]) if begin else 0
            fitting = int(np.searchsorted(ends, before + max_feasigns, "right"))
            end = min(max(begin + 1, fitting), begin + max_rows, self.rows)
            yield self.part(begin, end)
            begin = end

    def cut(self, rows: Sequence[int]) -> Iterator[Instances]:
        """Cut at these rows, of which the first is 0 and the last the number of rows; without a copy."""
        slots = len(self.lengths) // self.rows
        ends = np.concatenate(([0], np.cumsum(self.lengths.reshape(self.rows, slots).sum(axis=1)))).tolist()
        for begin, end in pairwise(rows):
            yield Instances(
                self.feasigns[ends[begin] : ends[end]],
                self.lengths[begin * slots : end * slots],
                end - begin,
                known=self.known,
                numbers=None if self.numbers is None else self.numbers[begin:end],
            )

    def only(self, rows: npt.NDArray[np.bool_]) -> Instances:
        """Return a copy of the instances at which `rows`, bool [rows], is true."""
        lengths = self.lengths.reshape(self.rows, -1)
        of_row = np.repeat(rows, lengths.sum(axis=1))
        numbers = None if self.numbers is None else self.numbers[rows]
        return Instances(
            self.feasigns[of_row], lengths[rows].reshape(-1), int(rows.sum()), known=self.known, numbers=numbers
        )

    def part(self, begin: int, end: int) -> Instances:
        """Return rows `begin` to `end` as views."""
        slots = len(self.lengths) // self.rows if self.rows else 0
        lengths = self.lengths[begin * slots : end * slots]
        first = int(self.lengths[: begin * slots].sum())
        feasigns = self.feasigns[first : first + int(lengths.sum())]
        numbers = None if self.numbers is None else self.numbers[begin:end]
        return Instances(feasigns, lengths, end - begin, known=self.known, numbers=numbers)


def joined(parts: Sequence[Instances]) -> Instances:
    """Concatenate instances of one schema."""
    if len(parts) == 1:
        return parts[0]
    numbers = [part.numbers for part in parts if part.numbers is not None]
    return Instances(
        np.concatenate([part.feasigns for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        sum(part.rows for part in parts),
        known=[] if any(part.known is not None for part in parts) else None,
        numbers=np.concatenate(numbers) if numbers else None,
    )


def instances_of(rows: Sequence[Sequence[Sequence[int]]], slots: int) -> Instances:
    """Return instances of feasigns by row and slot, each in 0 … 2^64-1."""
    feasigns = [feasign for row in rows for slot in row for feasign in slot]
    lengths = [len(slot) for row in rows for slot in row]
    assert len(lengths) == len(rows) * slots
    return Instances(np.array(feasigns, dtype=np.uint64), np.array(lengths, dtype=np.int64), len(rows))


def too_many_feasigns(given: int) -> RequestError:
    return RequestError(413, f"the request has {given} feasigns; {MAX_FEASIGNS} are allowed, send several")


def feasign_array(values: list[Any], where: Callable[[int], str]) -> Keys:
    """Return the feasigns of a JSON request as u64.

    Each is a number or a decimal string in 0 … 2^64-1. A negative number down to -2^63 is accepted as the same 64 bits of
    a signed field (the source's proto has `int64 feasigns`).

    Raises:
        RequestError: naming `where(index)` for the first other value.
    """
    if not values:
        return np.empty(0, dtype=np.uint64)
    if len(values) > MAX_FEASIGNS:
        raise too_many_feasigns(len(values))
    # bool is a subclass of int and no feasign; a comparison of types rejects it.
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) < FEASIGN_END:
        return np.array(values, dtype=np.uint64)
    return np.array([_feasign(value, index, where) for index, value in enumerate(values)], dtype=np.uint64)


def _feasign(value: object, index: int, where: Callable[[int], str]) -> int:
    if type(value) is int and SIGNED_LOW <= value < FEASIGN_END:
        return value % FEASIGN_END
    if type(value) is str and value.isascii() and 0 < len(value) <= 64:
        digits = value.removeprefix("-")
        if digits.isdigit() and SIGNED_LOW <= (number := int(value)) < FEASIGN_END:
            return number % FEASIGN_END
    raise BadRequest(
        f"{where(index)} is {short_repr(value)}; a feasign is a whole number below 2^64, as a number or as text of decimal "
        "digits"
    )
