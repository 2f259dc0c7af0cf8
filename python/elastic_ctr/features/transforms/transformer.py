"""From cells to the keys of slots and the numbers of the network: one compiled loop over rows, the same in trainers and serving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms.row_loop import (
    INPUT,
    KIND,
    LEFT_OUT,
    MOST_KEYS,
    MOST_OF_COLUMN,
    MOST_OF_NETWORK,
    OF_GROUP,
    OF_NUMBERS,
    OF_SLOTS,
    OF_TEXT,
    OF_WORDS,
    OWN,
    PARTS,
    PARTS_END,
    SHORT_TEXT,
    TOO_MANY_KEYS,
    CellArrays,
    Floats,
    GroupArrays,
    Integers,
    KeyScratch,
    Program,
    RowOutput,
    longest_text,
    transform_rows,
)
from elastic_ctr.features.transforms.xxh3 import SECRET
from elastic_ctr.formats.cells import Cells, SharedCells, without_words
from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.slots import SlotList

# Sizes of the arrays that a thread keeps from one batch to the next.
_KEPT_KEYS, _KEPT_TEXT = 1 << 15, 64 << 10

MOST_OF_BATCH = 8 << 20
"""Keys of the rows of one call: a row takes little room beside what crosses make of it."""

_NO_GROUPS = GroupArrays(
    np.empty(0, np.int64),
    np.empty((0, 0), np.uint8),
    np.zeros(1, np.int64),
    np.empty(0, np.uint64),
    np.empty((0, 0), np.bool_),
    np.empty((0, 0), np.float32),
)


class _Workspace:
    """The scratch of one thread, and room for the keys of a small batch, whose allocation would cost more than such a batch."""

    def __init__(self, program: Program) -> None:
        slots = len(program.order)
        self._widest = int(np.diff(program.prefix_ends).max(initial=0))
        self._crossed = 8 * len(program.parts)
        texts = np.zeros((slots, self._widest + SHORT_TEXT), np.uint8)
        for slot, (begin, end) in enumerate(pairwise(program.prefix_ends.tolist())):
            texts[slot, : end - begin] = program.prefixes[begin:end]
        none, no_ends = np.empty(0, np.uint8), np.empty(0, np.int64)
        self._scratch = KeyScratch(
            SECRET,
            np.empty(8, np.uint64),
            texts.reshape(-1),
            texts.shape[1],
            none,
            none,
            no_ends,
            np.empty(MOST_KEYS, np.uint64),
            np.zeros((slots, 2), np.int64),
        )
        self.keys: Keys = np.empty(_KEPT_KEYS, np.uint64)

    def scratch(self, longest: int) -> KeyScratch:
        """Return scratch for texts of at most `longest` bytes."""
        if longest < len(self._scratch.words):
            return self._scratch
        room = max(longest, 1024)
        found = self._scratch._replace(
            long=np.empty(self._widest + max(room, self._crossed), np.uint8),
            words=np.empty(room + 1, np.uint8),
            word_ends=np.empty(room // 2 + 2, np.int64),
        )
        if room <= _KEPT_TEXT:
            self._scratch = found
        return found


Flags = npt.NDArray[np.bool_]


class TooManyKeys(ValueError):
    """The rows have more keys together than one call returns; the caller should pass fewer rows."""

    def __init__(self) -> None:
        super().__init__(f"the rows have more than {MOST_OF_BATCH} keys together; send fewer at a time")


@dataclass(frozen=True, slots=True)
class Transformed:
    """n rows: u64 keys by row, then by slot; i64[n * slots] the number of keys of each; f32[n, numbers]; refused rows, which
    have no keys.
    """

    keys: Keys
    lengths: Integers
    numbers: Floats
    refused: Integers
    codes: Integers  # codes of the refused rows

    @property
    def kept(self) -> Integers:
        """The indices of the rows that are not refused."""
        return np.setdiff1d(np.arange(len(self.numbers)), self.refused)


@dataclass(frozen=True)
class Transformer:
    """Compiled features: columns in, slots and numbers out. Threads may share one transformer."""

    inputs: InputColumns
    slots: SlotList
    numbers: tuple[str, ...]
    program: Program
    _of_thread: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def in_pieces(self, cells: Cells, begin: int = 0) -> Iterator[tuple[slice, Transformed]]:
        """Transform any number of rows in pieces. Yield the slice of rows and the result of each piece."""
        try:
            found = self.transform(cells)
        except TooManyKeys:
            middle = len(cells) // 2
            yield from self.in_pieces(cells.part(0, middle), begin)
            yield from self.in_pieces(cells.part(middle, len(cells)), begin + middle)
        else:
            yield slice(begin, begin + len(cells)), found

    def transform(self, cells: Cells) -> Transformed:
        """Transform rows. Raises TooManyKeys, but never for one row."""
        return self._transform(cells, _NO_GROUPS)

    def transform_sharing(self, cells: Cells, shared: SharedCells) -> tuple[Transformed, Transformed]:
        """Transform rows that have other cells in common. Return the rows, and what is common by group. Raises TooManyKeys.

        A feature is common if all of its columns are. A row has no keys of such a feature; its numbers are complete.
        """
        common, needed = self._common_slots(shared.given)
        has = shared.given[:, len(self.inputs.texts) + self.program.numbers]
        of_groups = GroupArrays(
            np.arange(len(shared.cells)),
            np.where(common, OWN, LEFT_OUT).astype(np.uint8),
            np.zeros(common.size + 1, np.int64),
            np.empty(0, np.uint64),
            np.zeros(has.shape, np.bool_),
            np.empty(has.shape, np.float32),
        )
        groups = self._transform(shared.cells, of_groups)
        of_rows = GroupArrays(
            shared.groups,
            np.where(common, np.where(needed, OF_GROUP, LEFT_OUT), OWN).astype(np.uint8),
            np.concatenate(([0], np.cumsum(groups.lengths))),
            groups.keys,
            np.ascontiguousarray(has),
            groups.numbers,
        )
        return self._transform(cells, of_rows), groups

    @cached_property
    def _cells_of_slots(self) -> Integers:
        """The cell of each slot, numbers after texts; 0 for a cross."""
        kinds, places = self.program.slots[:, KIND], self.program.slots[:, INPUT]
        of_numbers = ~np.isin(kinds, (OF_TEXT, OF_WORDS))
        return np.where(kinds == OF_SLOTS, 0, places + of_numbers * len(self.inputs.texts))

    def _common_slots(self, given: Flags) -> tuple[Flags, Flags]:
        """Return bool [groups, slots] twice: all columns of the slot are `given`; and a cross that has other columns, too, needs it."""
        if not given.shape[1]:
            return np.zeros((len(given), 0), np.bool_), np.zeros((len(given), 0), np.bool_)
        common = given[:, self._cells_of_slots]
        needed = np.zeros_like(common)
        for slot in self.program.order:
            if self.program.slots[slot, KIND] == OF_SLOTS:
                parts = self.program.parts[self.program.slots[slot, PARTS] : self.program.slots[slot, PARTS_END]]
                common[:, slot] = common[:, parts].all(axis=1)
                needed[:, parts] |= ~common[:, [slot]]
        return common, needed

    def _transform(self, cells: Cells, shared: GroupArrays) -> Transformed:
        cells = without_words(cells, self.inputs.missing.texts)
        rows, slots = len(cells), len(self.slots)
        # The array is always writeable, because numba would compile the loop again for read-only arrays.
        data = cells.data if cells.data.flags.writeable else cells.data.copy()
        arrays = CellArrays(data, cells.begins, cells.ends, cells.numbers)
        work: _Workspace | None = self._of_thread.__dict__.get("work")
        if work is None:
            work = self._of_thread.work = _Workspace(self.program)
        scratch = work.scratch(longest_text(cells.begins, cells.ends))
        out = RowOutput(
            np.empty(rows * slots, np.int64),
            np.empty((rows, len(self.numbers)), np.float32),
            np.zeros(rows, np.int64),
        )
        wanted = 2 * rows * slots
        keys = work.keys if wanted <= _KEPT_KEYS else np.empty(wanted, np.uint64)
        row = count = 0
        while True:
            row, count = transform_rows(self.program, arrays, shared, row, count, scratch, keys, out)
            if row == rows:
                found = keys[:count].copy() if keys is work.keys else keys[:count]
                refused = np.flatnonzero(out.codes)
                return Transformed(found, out.lengths, out.numbers, refused, out.codes[refused])
            if count > MOST_OF_BATCH:
                raise TooManyKeys
            keys = np.concatenate((keys[:count], np.empty(max(count, MOST_KEYS) * 2, np.uint64)))

    def refusals(self, cells: Cells, found: Transformed) -> Iterator[tuple[int, Reason, str]]:
        """Yield the rows that `transform` refused, each with its reason and a sentence, the same in training, scoring and serving."""
        for row, code in zip(found.refused.tolist(), found.codes.tolist(), strict=True):
            if code == TOO_MANY_KEYS:
                detail = f"the row has more than {MOST_KEYS} keys; shorten its lists, or cross fewer of them."
                yield row, Reason.TOO_MANY_KEYS, detail
                continue
            place, after_steps = divmod(code - OF_NUMBERS, 2)
            at = int(self.program.numbers[place])
            detail = f"the column {self.inputs.numbers[at]!r} is {cells.numbers[row, at]:g}"
            if after_steps:
                detail += (
                    f", of which the feature {self.numbers[place]!r} makes {found.numbers[row, place]:g}; the network takes sizes up to "
                    f"{MOST_OF_NETWORK:g}, so clip or standardize it."
                )
            else:
                detail += f"; a number has a size of at most {MOST_OF_COLUMN:g}."
            yield row, Reason.NUMBER_TOO_LARGE, detail
