"""Copies of rows that outlive the block of the file that they were read from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.cells import Cells, Places
from elastic_ctr.machine_code.compiled import compiled


def copied(cells: Cells, rows: Places) -> Cells:
    """These rows, by their numbers, with their own texts alone: a block has the bytes of columns that no feature reads, too."""
    begins, ends = cells.begins[rows], cells.ends[rows]
    out: npt.NDArray[np.uint8] = np.empty(int((ends - begins).sum()), np.uint8)
    out_begins, out_ends = np.empty_like(begins), np.empty_like(ends)
    # One type of array, or the loop is compiled once for each.
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
