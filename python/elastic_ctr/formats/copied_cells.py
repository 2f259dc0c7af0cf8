"""Copies of rows that outlive the block of the file that they were read from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.cells import Cells, Places
from elastic_ctr.machine_code.compiled import compiled


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
