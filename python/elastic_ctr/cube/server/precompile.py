"""`python -m elastic_ctr.cube.server.precompile DIM...`: compile lookups when an image is built, not when a pod starts."""

import sys
from functools import partial

import numpy as np

from elastic_ctr.cube.builder.quantise import stored_rows
from elastic_ctr.cube.dictionary.format import stride_for
from elastic_ctr.cube.dictionary.perfect_hash import place
from elastic_ctr.cube.dictionary.table import compiled_lookup
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.event_loop import serve_loop
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.formats.value_kind import VALUE_KINDS
from elastic_ctr.machine_code.compiled import anew_if_stale


def warm(dims: list[int]) -> None:
    """Fill numba's cache (`NUMBA_CACHE_DIR`) with the loop, the lookups and the builder for these dims and every kind of values."""
    place(np.arange(3, dtype=np.uint64), 4, 1)
    stored_rows(np.zeros((1, 2), np.float32), "int8")
    for dim in dims:
        loop = LookupLoop(counters.private(), 1)
        for values in VALUE_KINDS:
            compiled_lookup(dim, stride_for(dim, values), values=values)
            loop.try_out(serve_loop(dim, values), dim)
        loop.try_out(serve_loop(dim, None), dim)
        loop.stop()


if __name__ == "__main__":
    anew_if_stale(partial(warm, [int(dim) for dim in sys.argv[1:]] or [9]))
