"""Cells: the columns of many rows as features read them, from any file or request.

A cell is read in one of two ways. A *text* cell is UTF-8: a whole number in decimal, a truth value as `true` or `false`, a list as
its values with the input's separator between. An empty text is missing, and so is a word of `InputColumns.missing`. A *number* cell is a
float64; NaN is missing, and infinities do not occur. Readers of files and of requests fill cells by these rules only, and the same
cells give the same keys and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.machine_code.compiled import compiled, compiled_inline


class WordTable(NamedTuple):
    """Words as arrays: word i is `data[ends[i]:ends[i + 1]]`, with at most `longest` bytes."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    longest: int


@lru_cache(maxsize=16)
def word_table(words: tuple[str, ...]) -> WordTable:
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return WordTable(np.frombuffer(bytearray(b"".join(encoded)), np.uint8), ends, max(map(len, encoded), default=0))


@compiled_inline
def _is_word(data: Any, begin: Any, end: Any, words: Any) -> Any:
    for word in range(words.ends.size - 1):
        first = words.ends[word]
        if words.ends[word + 1] - first == end - begin:
            same = True
            for place in range(end - begin):
                if data[begin + place] != words.data[first + place]:
                    same = False
                    break
            if same:
                return True
    return False


@compiled
def empty_texts(data: Any, begins: Any, ends: Any, words: Any) -> None:
    """Make each text empty that is a word of a WordTable."""
    for row in range(begins.shape[0]):
        for place in range(begins.shape[1]):
            size = ends[row, place] - begins[row, place]
            if 0 < size <= words.longest and _is_word(data, begins[row, place], ends[row, place], words):
                ends[row, place] = begins[row, place]


@compiled
def accept_numbers(data: Any, spans: Any, cells: Any, words: Any, bad: Any, fine: Any) -> None:
    """Give the code `fine` to each cell with the code `bad` whose text is a word; its number is NaN already.

    Args:
        data: u8
        spans: i64[rows, numbers, 2], begin and end of each text in data.
        cells: u8[rows, numbers], their codes.
        words: a WordTable.
        bad: the code of a text that is no number.
        fine: the code of a number, and of a missing one.
    """
    for row in range(cells.shape[0]):
        for place in range(cells.shape[1]):
            if cells[row, place] == bad and _is_word(data, spans[row, place, 0], spans[row, place, 1], words):
                cells[row, place] = fine


Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cells:
    """n rows: text cell t of row i is the UTF-8 `data[begins[i, t]:ends[i, t]]`, number cell m is `numbers[i, m]`.

    `data` is u8, `begins` and `ends` are i64 [n, texts], `numbers` is f64 [n, numbers]; all are C-contiguous.
    """

    data: Bytes
    begins: Places
    ends: Places
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.begins)

    def part(self, begin: int, end: int) -> Cells:
        """Return rows `begin` to `end` as views."""
        return Cells(self.data, self.begins[begin:end], self.ends[begin:end], self.numbers[begin:end])

    def only(self, rows: Places) -> Cells:
        """Return a copy of the rows with these numbers."""
        return Cells(self.data, self.begins[rows], self.ends[rows], self.numbers[rows])

    def text(self, row: int, place: int) -> bytes:
        return self.data[self.begins[row, place] : self.ends[row, place]].tobytes()


class SharedCells(NamedTuple):
    """Cells that several rows have in common; the shared part of one request is a group.

    `cells` has a row for each group. `given`: bool [groups, texts + numbers], true for a cell whose column is in the shared part.
    `groups`: i64 [rows], the group of each row, ascending; -1 for a row without one.
    """

    cells: Cells
    given: npt.NDArray[np.bool_]
    groups: Places


def cells_of(rows: Sequence[tuple[Sequence[bytes], Sequence[float]]], inputs: InputColumns) -> Cells:
    """Return cells of few rows, each given as its texts and its numbers: for tests and requests that are read row by row."""
    texts = [text for row, _ in rows for text in row]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64).reshape(len(rows), len(inputs.texts))
    sizes = np.array([len(text) for text in texts], np.int64).reshape(ends.shape)
    numbers = np.array([numbers for _, numbers in rows], np.float64).reshape(len(rows), len(inputs.numbers))
    return Cells(np.frombuffer(b"".join(texts), np.uint8), ends - sizes, ends, numbers)


def without_words(cells: Cells, missing: tuple[str, ...]) -> Cells:
    """Return the cells, in which texts that are words for a missing value are empty."""
    if not missing or not cells.begins.size:
        return cells
    ends = cells.ends.copy()
    # The array is always writeable, because numba would compile the loop again for read-only arrays.
    data = cells.data if cells.data.flags.writeable else cells.data.copy()
    empty_texts(data, cells.begins, ends, word_table(missing))
    return Cells(data, cells.begins, ends, cells.numbers)


def joined_cells(parts: Sequence[Cells]) -> Cells:
    """Concatenate cells of the same inputs."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Cells(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.begins + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.ends + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.numbers for part in parts]),
    )


def copied(cells: Cells, rows: Places) -> Cells:
    """Return the rows with these numbers, with only their own texts: a block also has the bytes of columns that no feature reads."""
    begins, ends = cells.begins[rows], cells.ends[rows]
    out: npt.NDArray[np.uint8] = np.empty(int((ends - begins).sum()), np.uint8)
    out_begins, out_ends = np.empty_like(begins), np.empty_like(ends)
    # The array is always read-only, because numba would compile the loop again for writeable arrays.
    data = cells.data.view()
    data.flags.writeable = False
    _copy_texts(data, begins, ends, out, out_begins, out_ends)
    return Cells(out, out_begins, out_ends, cells.numbers[rows])


@compiled
def _copy_texts(data: Any, begins: Any, ends: Any, out: Any, out_begins: Any, out_ends: Any) -> None:
    at = 0
    for row in range(begins.shape[0]):
        for text in range(begins.shape[1]):
            out_begins[row, text] = at
            for place in range(begins[row, text], ends[row, text]):
                out[at] = data[place]
                at += 1
            out_ends[row, text] = at


# In a task of 32 MB (132,000 rows of 39 columns) their statistics take 23 % of the conversion's time; those of 8,192 rows take 31 %.
_SAMPLED_ROWS = 1 << 12


class RowSample:
    """Between half of `most` and `most` rows, or all if there are fewer. The same rows give the same sample in any batches."""

    def __init__(self, most: int = _SAMPLED_ROWS) -> None:
        self._most = most
        self._step = 1
        self._seen = 0
        self._parts: list[Cells] = []
        self._kept = 0

    def add(self, cells: Cells) -> None:
        """Add rows, and copy those that are kept."""
        while True:
            rows = np.arange(-self._seen % self._step, len(cells), self._step, dtype=np.int64)
            if self._kept + len(rows) <= self._most:
                break
            self._step *= 2
            if self._kept:
                kept = joined_cells(self._parts)
                self._parts = [copied(kept, np.arange(0, len(kept), 2, dtype=np.int64))]
                self._kept = len(self._parts[0])
        self._seen += len(cells)
        if len(rows):
            self._parts.append(copied(cells, rows))
            self._kept += len(rows)

    def rows(self) -> Cells | None:
        """Return the kept rows, in order; None if there was no row."""
        return joined_cells(self._parts) if self._parts else None
