"""Instances of a request as two arrays, the form in which every frontend submits them to the batcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
class SharedFeasigns:
    """Feasigns that several rows have in common. The shared part of one request is a group.

    `feasigns`: u64, by group, then by slot. `lengths`: i64 [groups, slots]. `groups`: i64 [rows], the group of each row, ascending; -1 for
    a row without one. A row has no feasigns of its own in a slot in which its group has some.
    """

    feasigns: Keys
    lengths: Lengths
    groups: Lengths

    def part(self, begin: int, end: int) -> SharedFeasigns | None:
        """Return the groups of rows `begin` to `end` as views; None if they have none."""
        groups = self.groups[begin:end]
        used = groups[groups >= 0]
        if not used.size:
            return None
        first, last = int(used[0]), int(used[-1]) + 1
        before, size = int(self.lengths[:first].sum()), int(self.lengths[first:last].sum())
        return SharedFeasigns(
            self.feasigns[before : before + size], self.lengths[first:last], np.where(groups < 0, -1, groups - first)
        )


@dataclass(frozen=True, slots=True)
class Instances:
    """Feasigns of `rows` instances over the slots of a model, before `sparseDim`.

    `feasigns`: u64, by row, then by slot in the slot list's order. `lengths`: i64 [rows * slots], the number of feasigns
    in each slot of each row. `ignored` counts features of slots that the model does not have.
    `numbers`: f32 [rows, numbers] for the network; None if it takes none.
    `known`: a list, if the request wants it, to which batches append i64 [rows], the feasigns that the version has of each row.
    `shared`: the feasigns that rows have beside those; they are looked up and pooled once for all rows of a group.
    `top`: the number of best rows that the answer has; 0 for all rows in their order.
    """

    feasigns: Keys
    lengths: Lengths
    rows: int
    ignored: int = 0
    known: list[Lengths] | None = None
    numbers: Floats | None = None
    shared: SharedFeasigns | None = None
    top: int = 0

    @property
    def given(self) -> int:
        """The number of feasigns, each shared one counted once."""
        return len(self.feasigns) + (0 if self.shared is None else len(self.shared.feasigns))

    def parts(self, max_rows: int, max_feasigns: int) -> Iterator[Instances]:
        """Cut into parts of at most `max_rows` rows, and at most `max_feasigns` feasigns unless one row alone has more."""
        max_feasigns -= self.given - len(self.feasigns)
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
                shared=None if self.shared is None else self.shared.part(begin, end),
            )

    def only(self, rows: npt.NDArray[np.bool_]) -> Instances:
        """Return a copy of the instances at which `rows`, bool [rows], is true."""
        lengths = self.lengths.reshape(self.rows, -1)
        of_row = np.repeat(rows, lengths.sum(axis=1))
        numbers = None if self.numbers is None else self.numbers[rows]
        shared = None if self.shared is None else replace(self.shared, groups=self.shared.groups[rows])
        return Instances(
            self.feasigns[of_row],
            lengths[rows].reshape(-1),
            int(rows.sum()),
            known=self.known,
            numbers=numbers,
            shared=shared,
        )

    def unshared(self) -> Instances:
        """Return a copy in which each row has its shared feasigns itself."""
        if self.shared is None:
            return self
        groups = self.shared.groups
        # The last group, which has no feasigns, is that of rows without one.
        of_groups = np.concatenate((self.shared.lengths, np.zeros_like(self.shared.lengths[:1])))
        begins = len(self.feasigns) + (np.cumsum(of_groups) - of_groups.reshape(-1)).reshape(of_groups.shape)
        lengths = self.lengths + of_groups[groups].reshape(-1)
        begins = np.where(self.lengths > 0, np.cumsum(self.lengths) - self.lengths, begins[groups].reshape(-1))
        places = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
        feasigns = np.concatenate((self.feasigns, self.shared.feasigns))[places]
        return replace(self, feasigns=feasigns, lengths=lengths, shared=None)

    def part(self, begin: int, end: int) -> Instances:
        """Return rows `begin` to `end` as views."""
        slots = len(self.lengths) // self.rows if self.rows else 0
        lengths = self.lengths[begin * slots : end * slots]
        first = int(self.lengths[: begin * slots].sum())
        feasigns = self.feasigns[first : first + int(lengths.sum())]
        numbers = None if self.numbers is None else self.numbers[begin:end]
        shared = None if self.shared is None else self.shared.part(begin, end)
        return Instances(feasigns, lengths, end - begin, known=self.known, numbers=numbers, shared=shared)


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
        shared=_joined_groups(parts),
    )


def _joined_groups(parts: Sequence[Instances]) -> SharedFeasigns | None:
    shared = [part.shared for part in parts if part.shared is not None]
    if not shared:
        return None
    groups, count = [], 0
    for part in parts:
        if part.shared is None:
            groups.append(np.full(part.rows, -1))
        else:
            groups.append(np.where(part.shared.groups < 0, -1, part.shared.groups + count))
            count += len(part.shared.lengths)
    return SharedFeasigns(
        np.concatenate([each.feasigns for each in shared]),
        np.concatenate([each.lengths for each in shared]),
        np.concatenate(groups),
    )


def with_shared(
    own: Instances, shared: Instances, slots: Sequence[str], where: Callable[[int], str] = "candidates[{}]".format
) -> Instances:
    """Return rows that all have the feasigns of the one row `shared`, too. Raises RequestError if a slot is in both."""
    both = np.argwhere((own.lengths.reshape(own.rows, -1) > 0) & (shared.lengths > 0))
    if len(both):
        row, slot = both[0].tolist()
        raise in_both(f"{where(row)} has feasigns of the slot {short_repr(slots[slot])}", "slot")
    if (given := own.given + shared.given) > MAX_FEASIGNS:
        raise too_many_feasigns(given)
    groups = SharedFeasigns(shared.feasigns, shared.lengths.reshape(1, -1), np.zeros(own.rows, np.int64))
    return replace(own, ignored=own.ignored + shared.ignored, shared=groups)


def in_both(found: str, what: str) -> BadRequest:
    """Return the refusal of a column or slot, `what`, that a candidate and the shared part have."""
    return BadRequest(f"{found}, which the shared part has, too; a {what} is in one of both")


def best_places(probabilities: Floats, top: int) -> Lengths:
    """Return the places of the `top` highest probabilities, or of all if there are fewer, best first; equal ones keep their order."""
    return np.argsort(-probabilities, kind="stable")[:top]


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
