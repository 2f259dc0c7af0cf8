"""Statistics of 26 text and 13 number columns beside pandas, which keeps every value and is exact: seconds and errors.

    python -m bench.column_statistics [--quick] [--rows 2000000]

Times are CPU seconds of one thread each, so that neighbours on the machine count less. The rows lie in cells, as readers give them, in
batches of 8,192 and in four parts; pandas has a Series a column, already made. Text columns have from 10 to 10 million possible
values, rare ones rarer; a tenth of them is missing.
"""

import argparse
import gc
import math
import time
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track

from bench.method import Results, Row, arguments, plan_of
from elastic_ctr.features.statistics.collector import Collector, merged
from elastic_ctr.features.statistics.document import BUCKETS, TOP, Statistics
from elastic_ctr.formats.cells import Cells
from elastic_ctr.formats.inputs import InputColumns, TextInput

TEXTS, NUMBERS = 26, 13
ROWS, QUICK_ROWS = 2_000_000, 200_000
BATCH, PARTS = 8192, 4
DIGITS = 8
VALUES = (10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000)
INPUTS = InputColumns(
    tuple(TextInput(f"C{place}", "") for place in range(1, TEXTS + 1)), tuple(f"I{p}" for p in range(1, NUMBERS + 1))
)
MISSING = np.uint32(2**32 - 1)

Codes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.float64]


def codes(place: int, rows: int) -> Codes:
    """Of a text column; its text is eight hexadecimal digits."""
    dice = np.random.default_rng(place)
    drawn = (dice.random(rows) ** 3 * VALUES[place % len(VALUES)]).astype(np.uint64)
    spread = (drawn * np.uint64(2_654_435_761) % np.uint64(2**32)).astype(np.uint32)
    return np.where((dice.random(rows) < 0.1) | (spread == MISSING), MISSING, spread)


def numbers(place: int, rows: int) -> Numbers:
    dice = np.random.default_rng(100 + place)
    drawn = [
        np.floor(dice.lognormal(3, 2, rows)),
        dice.normal(1e6, 1, rows),
        dice.lognormal(0, 3, rows),
        np.where(dice.random(rows) < 0.6, 0.0, dice.random(rows)),
        np.sort(dice.normal(0, 1, rows)),
    ][place % 5]
    return np.where(dice.random(rows) < 0.2, np.nan, drawn)


def digits(column: Codes) -> npt.NDArray[np.uint8]:
    """u8 [rows, 8]"""
    text = column.astype(">u4").tobytes().hex().encode()
    return np.frombuffer(text, np.uint8).reshape(len(column), DIGITS)


def cells(texts: list[Codes], values: list[Numbers], begin: int, end: int) -> Cells:
    data = np.concatenate([digits(column[begin:end]) for column in texts], axis=1).reshape(-1)
    begins = np.arange((end - begin) * TEXTS, dtype=np.int64).reshape(end - begin, TEXTS) * DIGITS
    given = np.stack([column[begin:end] != MISSING for column in texts], axis=1)
    return Cells(data, begins, begins + DIGITS * given, np.stack([column[begin:end] for column in values], axis=1))


def collected(texts: list[Codes], values: list[Numbers], rows: int) -> tuple[Statistics, float, list[int]]:
    """With the seconds, and the bytes of each part."""
    parts = {}
    seconds = 0.0
    cuts = np.linspace(0, rows, PARTS + 1).astype(int).tolist()
    for part in range(PARTS):
        collector = Collector(INPUTS)
        for begin in track(range(cuts[part], cuts[part + 1], BATCH), f"part {part}", transient=True):
            batch = cells(texts, values, begin, min(begin + BATCH, cuts[part + 1]))
            began = time.thread_time()
            collector.add(batch)
            seconds += time.thread_time() - began
        began = time.thread_time()
        parts[str(part)] = collector.to_bytes()
        seconds += time.thread_time() - began
    began = time.thread_time()
    found = merged(parts)
    return found, seconds + time.thread_time() - began, [len(part) for part in parts.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parser.parse_args()
    rows = QUICK_ROWS if plan_of(given).quick else given.rows
    # By name: only the environment of `make bench` has it.
    pandas: Any = import_module("pandas")

    warm = Collector(INPUTS)
    texts, values = [codes(p, rows) for p in range(TEXTS)], [numbers(p, rows) for p in range(NUMBERS)]
    for begin in (0, 100):
        warm.add(cells(texts, values, begin, begin + 100))
    warm.to_bytes()
    found, ours, sizes = collected(texts, values, rows)

    theirs = 0.0
    distinct_errors, rank_errors, moment_errors, unlisted = [], [], [], []
    grid = np.arange(BUCKETS + 1) / BUCKETS
    for place in track(range(TEXTS), "texts of pandas", transient=True):
        text = found.texts[f"C{place + 1}"]
        flat = digits(texts[place]).tobytes().decode()
        series = pandas.Series([flat[at : at + DIGITS] for at in range(0, len(flat), DIGITS)])
        series[texts[place] == MISSING] = None
        began = time.thread_time()
        counts = series.value_counts()
        missing = int(series.isna().sum())
        theirs += time.thread_time() - began
        assert (text.rows, text.missing, text.values) == (rows, missing, rows - missing)
        distinct_errors.append(abs(text.distinct / len(counts) - 1))
        exact = dict(counts)
        assert all(count <= exact[value] <= count + text.count_error for value, count in text.top)
        first = counts[counts > text.top[-1][1] + text.count_error].index
        assert set(first) <= {value for value, _ in text.top}
        thousandth = counts.iloc[min(1000, len(counts)) - 1]
        unlisted.append(1 - sum(exact[value] >= thousandth for value, _ in text.top) / (counts >= thousandth).sum())
        del series, counts, exact
        gc.collect()
    for place in track(range(NUMBERS), "numbers of pandas", transient=True):
        number = found.numbers[f"I{place + 1}"]
        series = pandas.Series(values[place])
        began = time.thread_time()
        facts = series.min(), series.max(), series.mean(), series.std(ddof=0), series.nunique(), series.isna().sum()
        series.quantile(grid)
        theirs += time.thread_time() - began
        assert (number.min, number.max, number.missing) == (facts[0], facts[1], facts[5])
        distinct_errors.append(abs(number.distinct / facts[4] - 1))
        ordered = np.sort(values[place][~np.isnan(values[place])])
        mean = math.fsum(ordered) / len(ordered)
        deviation = math.sqrt(math.fsum((ordered - mean) ** 2) / len(ordered))
        moment_errors += [abs((number.mean or 0) / mean - 1), abs((number.deviation or 0) / deviation - 1)]
        kept = np.array(number.quantiles)
        low, high = (np.searchsorted(ordered, kept, side=side) / len(ordered) for side in ("left", "right"))
        rank_errors.append(float(np.maximum(low - grid, grid - high).max()))

    results = Results(given.results, quick=rows != ROWS)
    size = f"{rows:,} rows in {PARTS} parts"

    def put(name: str, value: float, goal: float | None, note: str, bound: str = "at most") -> None:
        if plan_of(given).wants(name):
            results.put(Row(name, value, value, value, goal, f"{size}; {note}" if note else size, bound))

    put(
        "statistics: thousand rows a second", rows / ours / 1e3, None,
        f"{ours:.1f} s on one core; a part has at most {max(sizes):,} bytes, the file {len(found.to_json()):,}",
    )  # fmt: skip
    put(
        "statistics: pandas' seconds ÷ ours", theirs / ours, None,
        f"{theirs:.1f} s of one core; pandas {pandas.__version__} with every value in memory",
    )  # fmt: skip
    put(
        "statistics: largest error of a rank, %",
        100 * max(rank_errors),
        1,
        f"{BUCKETS + 1} quantiles of {NUMBERS} columns",
    )
    put("statistics: largest error of distinct values, %", 100 * max(distinct_errors), 3, f"{TEXTS + NUMBERS} columns")
    put("statistics: largest error of mean and deviation", max(moment_errors), 1e-12, "relative, beside exact sums")
    put(
        "statistics: of the 1,000 most frequent values unlisted, %", 100 * max(unlisted), None,
        f"the list has {TOP:,}; all counts within their bounds",
    )  # fmt: skip


if __name__ == "__main__":
    main()
