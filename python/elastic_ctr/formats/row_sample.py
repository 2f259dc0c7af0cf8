"""A bounded sample of the rows of a part of the data: every k-th row."""

from __future__ import annotations

import numpy as np

from elastic_ctr.formats.cells import Cells, joined_cells
from elastic_ctr.formats.copied_cells import copied

# In a task of 32 MB (132,000 rows of 39 columns) their statistics take 23 % of the conversion's time; those of 8,192 rows take 31 %.
MOST = 1 << 12


class RowSample:
    """Between half of `most` and `most` rows, or all if there are fewer. The same rows give the same sample in any batches."""

    def __init__(self, most: int = MOST) -> None:
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
