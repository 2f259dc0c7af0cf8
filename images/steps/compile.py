"""compile.py DIM...: fill numba's cache (`NUMBA_CACHE_DIR`) with every loop that a role runs, for keys of so many floats."""

# ruff: noqa: INP001 (a script of the images, no package)

import sys

from elastic_ctr.cube.server.precompile import warm
from elastic_ctr.export.table_text import RowLayout, parse_rows
from elastic_ctr.features.cells import Inputs, TextInput, cells_of
from elastic_ctr.features.collector import Collector
from elastic_ctr.features.convert import Converter
from elastic_ctr.features.row_sample import RowSample
from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.frontends.native_http import precompile


def compile_all(dims: list[int]) -> None:
    warm(dims)
    precompile()
    Converter(SlotList.parse(["0"]), None).convert(b"1 0 7:0\n")
    inputs = Inputs((TextInput("tags", "|"),), ())
    for batches in (1, 2):  # of bytes that may not be written, and of joined ones
        collector = Collector(inputs)
        for _ in range(batches):
            collector.add(cells_of([([b"a|b"], [])], inputs))
        collector.to_bytes()
    RowSample().add(cells_of([([b"a|b"], [])], inputs))
    parse_rows(b"7 0 0 0.5 1 0 0.1\n", RowLayout.of("naive", "naive", 0))


if __name__ == "__main__":
    compile_all([int(dim) for dim in sys.argv[1:]])
