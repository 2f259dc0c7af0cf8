"""Keys a second of one core through the lookup, beside the machine's own limit: random cache lines asked for in time.

    python -m bench.cube_kernel [--quick] [--keys 10000000]

Uniform keys miss the cache, zipf keys (1.05) are what readers ask. The limit is read over memory of the size of the table's
records, in huge pages, by the same kind of loop: one prefetched line of 64 bytes an item and nothing done with it. A record of
9 floats touches 1.5 lines on average, so the share of the limit is that of lines: those of the records that are looked
up. Beside the kernel, which writes into memory that is there already, stand the ways to it: the call that a reader makes,
one through an overlay, and small calls. All answers are asserted equal before
anything is timed.
"""

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench import table as tables
from bench.method import Plan, Results, Row, Sample, Side, arguments, compare, median_rate, plan_of, rate, show, summary
from bench.table import LATER, VERSION, Made
from elastic_ctr.cube.dictionary import table as dictionary
from elastic_ctr.cube.dictionary.format import Keys, stride_for
from elastic_ctr.cube.dictionary.kernel import SCRATCH, mix
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.machine_code.compiled import compiled_making_arrays
from elastic_ctr.machine_code.intrinsics import high64, load_u64, prefetch

N = 13_312
DISTRIBUTIONS = {"uniform": 28.0, "zipf": 40.0}  # million keys a second
SHARE = 0.55
_BLOCK = 64
_LINES_A_CALL = 1 << 16
_HUGE = 2 << 20
_64 = np.uint64(64)


@compiled_making_arrays
def read_lines(address: Any, lines: Any, start: Any, count: Any) -> Any:
    """Read the first word of `count` random lines of 64 bytes, 64 of them on their way at a time."""
    total = np.uint64(0)
    places = np.empty(_BLOCK, np.uint64)
    for block in range(0, count, _BLOCK):
        for i in range(_BLOCK):
            places[i] = address + high64(mix(np.uint64(start + block + i)), lines) * _64
            prefetch(places[i])
        for i in range(_BLOCK):
            total += load_u64(places[i])
    return total


def line_limit(size: int) -> Side:
    """Lines a second over so many bytes of memory of our own."""
    # Private: huge pages for shared memory are a setting of their own, which is off nearly everywhere.
    memory = mmap.mmap(-1, -(-size // _HUGE) * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    region = np.frombuffer(memory, np.uint8)
    region[:] = 1
    address, lines = np.uint64(region.ctypes.data), np.uint64(size // 64)
    at = [0]

    def run(seconds: float, keep: NDArray[np.uint8] = region) -> Sample:  # noqa: ARG001 (keeps the memory)
        def call() -> int:
            at[0] += _LINES_A_CALL
            read_lines(address, lines, at[0], _LINES_A_CALL)
            return _LINES_A_CALL

        return repeated(call, seconds)

    return Side("limit", run)


def repeated(call: Callable[[], int], seconds: float) -> Sample:
    """In CPU seconds of this thread: nothing here waits, and neighbours on the core count less so."""
    done = 0
    began = time.thread_time()
    while (spent := time.thread_time() - began) < seconds:
        done += call()
    return Sample(done, spent)


def calling(lookup: Callable[[Keys], object], asked: Keys) -> Side:
    """Calls with one row of `asked` after the other."""
    at = [0]

    def call() -> int:
        at[0] = (at[0] + 1) % len(asked)
        lookup(asked[at[0]])
        return asked.shape[1]

    return Side("lookup", lambda seconds: repeated(call, seconds))


def kernel_of(table: VersionTable, n: int) -> Callable[[Keys], NDArray[np.uint8]]:
    """The compiled lookup itself, writing the values to one buffer again and again, as a server does."""
    stride = stride_for(table.dim, table.values)
    kernel = dictionary.compiled_lookup(table.dim, stride, values=table.values)
    out, missing = np.empty(n * 4 * table.dim, np.uint8), np.empty(n, np.uint8)
    places = np.arange(n, dtype=np.int64) * (4 * table.dim)
    scratch = np.empty(SCRATCH, np.uint64)

    def lookup(keys: Keys) -> NDArray[np.uint8]:
        kernel(table.rows, table.reciprocal, table.overlays, keys, n, out, places, missing, scratch)
        return out

    return lookup


def assert_equal(made: Made, table: VersionTable, asked: Keys) -> None:
    order = np.argsort(made.keys)
    wanted = np.asarray(made.values)[order[np.searchsorted(np.asarray(made.keys)[order], asked)]]
    values, missing = table.lookup(asked)
    assert values.tobytes() == wanted.tobytes()
    assert not missing.any()
    assert kernel_of(table, asked.size)(asked).tobytes() == wanted.tobytes()


def lines_of(dim: int) -> float:
    """Cache lines that a record touches, on average over where records stand."""
    first = np.arange(64) * stride_for(dim)
    return float(np.mean((first + 8 + 4 * dim - 1) // 64 - first // 64 + 1))


def verdict(name: str, goal: float, dim: int, ours: list[Sample], limit: list[Sample], ratios: list[float]) -> Row:
    """Million keys a second; where that is too few, a share of the limit that is large enough holds as well."""
    rates = [rate(sample) / 1e6 for sample in ours]
    lines = lines_of(dim)
    shares = [lines * ratio for ratio in ratios]
    told = f"{statistics.median(rates):.1f} M keys/s, {lines:g} lines each, of {median_rate(limit) / 1e6:.1f} M random lines/s"
    share = statistics.median(shares)
    note = f"M keys/s per core, {N} a call; {told}: {share:.2f} of them, where {SHARE:g} would do"
    return replace(summary(name, rates, goal, note=note), otherwise=share >= SHARE)


def measure(made: Made, plan: Plan, results: Results) -> Table:
    table, later = (tables.opened(made.folder, made.dim, version) for version in (VERSION, LATER))
    size = sum(pair.full.records.nbytes for pair in table.parts.values())
    limit = line_limit(size)
    seen = Table(title=f"{made.keys.size:,} keys x {made.dim}, {size / 1e9:.2f} GB of records, one core")
    for column in ("", "keys a call", *(f"{name}, M keys/s" for name in DISTRIBUTIONS)):
        seen.add_column(column, justify="right" if column else "left")
    streams = {name: tables.asked(made, name, 2_000_000 // N, N) for name in DISTRIBUTIONS}
    for name, goal in DISTRIBUTIONS.items():
        asked = streams[name]
        assert_equal(made, table, asked[0])
        if plan.wants(f"kernel {name}"):
            found = compare(f"kernel {name}", calling(kernel_of(table, N), asked), limit, plan)
            results.put(verdict(found.name, goal, made.dim, found.ours, found.theirs, found.ratios()), found.details())
    ways: list[tuple[str, Callable[[Keys], object], int]] = [
        ("kernel", kernel_of(table, N), N),
        ("kernel, an overlay of 0.1 %", kernel_of(later, N), N),
        ("VersionTable.lookup", table.lookup, N),
        ("VersionTable.lookup", table.lookup, 300),
        ("VersionTable.lookup", table.lookup, 30),
    ]
    for name, lookup, n in ways:
        rates = []
        for stream in streams.values():
            side = calling(lookup, stream[:, : stream.shape[1] // n * n].reshape(-1, n))
            side.run(0.1)
            rates.append(max(rate(side.run(plan.seconds / 3)) for _ in range(3)) / 1e6)
        seen.add_row(name, f"{n:,}", *(f"{each:.1f}" for each in rates))
    seen.add_row("random lines, the limit", "", f"{max(rate(limit.run(plan.seconds / 3)) for _ in range(3)) / 1e6:.1f}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--keys", type=int, help="of the table; by default 10,000,000, quick 1,000,000")
    parser.add_argument("--dim", type=int, default=tables.DIM)
    given = parser.parse_args()
    plan = plan_of(given)
    other_table = given.keys not in (None, tables.KEYS) or given.dim != tables.DIM
    results = Results(given.results, quick=plan.quick or other_table)
    seen = measure(tables.made(given.keys or (1_000_000 if plan.quick else tables.KEYS), given.dim), plan, results)
    show(results.read())
    Console(width=None if os.isatty(1) else 120).print(seen)


if __name__ == "__main__":
    main()
