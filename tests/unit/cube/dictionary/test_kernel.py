"""What is compiled again, with every address checked."""

from pathlib import Path

import numpy as np
import pytest

from cube.parts import write_table
from elastic_ctr.cube.dictionary import kernel
from elastic_ctr.cube.dictionary import table as tables
from elastic_ctr.cube.dictionary.format import stride_for
from elastic_ctr.machine_code.compiled import bounds_checked


@pytest.mark.skipif(not bounds_checked(), reason="only machine code with checks finds this out")
def test_checked_numba_code_refuses_a_place_outside_the_output(tmp_path: Path) -> None:
    keys = np.arange(1, 5, dtype=np.uint64)
    table = write_table(tmp_path, keys)
    lookup = kernel.lookup_kernel(4, stride_for(4))

    with pytest.raises(IndexError, match="outside the output"):
        lookup(
            table.rows, table.reciprocal, False, keys, 4, np.zeros(63, np.uint8), np.arange(4) * 16,
            np.zeros(4, np.uint8), np.zeros(kernel.SCRATCH, np.uint64),
        )  # fmt: skip


def test_a_table_gives_the_kernel_the_scratch_that_it_needs() -> None:
    assert tables._SCRATCH == kernel.SCRATCH
