"""Cells: the columns of many rows as features read them, from any file or request.

A cell is read in one of two ways. A *text* cell is UTF-8: a whole number in decimal, a truth value as `true` or `false`, a list as
its values with the input's separator between. An empty text is missing, and so is a word of `Inputs.missing`. A *number* cell is a
float64; NaN is missing, and infinities do not occur. Readers of files and of requests fill cells by these rules only, and the same
cells give the same keys and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.inputs import Inputs
from elastic_ctr.formats.word_cells import empty_texts, word_table

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


def cells_of(rows: Sequence[tuple[Sequence[bytes], Sequence[float]]], inputs: Inputs) -> Cells:
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
