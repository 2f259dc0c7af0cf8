"""How often drift is a false alarm, and how often a change is found.

    python -m bench.drift [--comparisons 2000] [--write]

Columns whose truth is known: texts of 2 to 10,000 values that are equally frequent or follow Zipf's law, and numbers of a normal and of a
lognormal distribution. Pinned and later data have 500 to 50,000 rows each. Without a change, every comparison whose PSI is above 0 is a false
alarm. With one, a tenth of all is taken from the other values in proportion and becomes one new value, the rarest known value, or the number 0:
then 5,000 later rows are compared with 5,000 and 50,000 pinned ones.

--write puts the table into docs/performance.md.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.page import with_table
from elastic_ctr.features.statistics.document import BUCKETS, TOP, NumberStatistics, Statistics, TextStatistics
from elastic_ctr.features.statistics.drift import compared

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SIZES = (500, 5_000, 50_000)
VALUES = (2, 10, 100, 1_000, 10_000)
MOVED = 0.1
FOUND_AT = 5_000  # rows
ALERT = 0.25
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Found(NamedTuple):
    """Of comparisons of one column: their PSI."""

    column: str
    change: str
    pinned: int
    later: int
    psi: Floats

    @property
    def found(self) -> int:
        return int(np.count_nonzero(self.psi))

    @property
    def alerts(self) -> int:
        return int(np.count_nonzero(self.psi > ALERT))


def text_of(counts: Integers) -> Statistics:
    """Of values that occur so often each."""
    [there] = np.nonzero(counts)
    order = there[np.argsort(-counts[there], kind="stable")][:TOP]
    rows = int(counts.sum())
    top = tuple((f"value {value}", int(counts[value])) for value in order.tolist())
    column = TextStatistics.model_construct(
        rows=rows, missing=0, distinct=len(there), values=rows, mean_bytes=8.0, top=top, count_error=0
    )
    return Statistics.model_construct(texts={"x": column}, numbers={})


def number_of(numbers: Floats) -> Statistics:
    quantiles = np.quantile(numbers, np.arange(BUCKETS + 1) / BUCKETS, method="inverted_cdf")
    column = NumberStatistics.model_construct(
        rows=len(numbers), missing=0, distinct=len(numbers), min=float(numbers.min()), max=float(numbers.max()),
        mean=float(numbers.mean()), deviation=float(numbers.std()), quantiles=tuple(quantiles.tolist()),
    )  # fmt: skip
    return Statistics.model_construct(texts={}, numbers={"x": column})


def psi_of(pinned: Statistics, later: Statistics) -> float:
    [found] = compared(pinned, later)
    return found.psi or 0.0


def texts(shares: Floats, dice: np.random.Generator, change: str) -> Callable[[int, bool], Statistics]:
    def drawn(rows: int, moved: bool) -> Statistics:
        # The last place is that of a new value.
        now = np.append(shares, 0.0)
        if moved:
            to = len(shares) if change == "a new value" else len(shares) - 1
            now *= 1 - MOVED / (1 - now[to])
            now[to] = (0.0 if to == len(shares) else shares[to]) + MOVED
        return text_of(dice.multinomial(rows, now / now.sum()))

    return drawn


def numbers(how: str, dice: np.random.Generator) -> Callable[[int, bool], Statistics]:
    def drawn(rows: int, moved: bool) -> Statistics:
        found = dice.normal(size=rows) if how == "normal" else dice.lognormal(size=rows)
        if moved:
            found[dice.random(rows) < MOVED] = 0
        return number_of(found)

    return drawn


def columns(dice: np.random.Generator, change: str) -> Iterator[tuple[str, Callable[[int, bool], Statistics]]]:
    """The columns that a change is of; without one, all."""
    for values in VALUES:
        for name, power in (("equal", 0), ("Zipf", 1)):
            shares = 1 / np.arange(1, values + 1) ** power
            if change != "the number 0":
                yield f"{values:,} values, {name}", texts(shares / shares.sum(), dice, change)
    for how in ("normal", "lognormal"):
        if change in ("none", "the number 0"):
            yield f"numbers, {how}", numbers(how, dice)


def measured(comparisons: int, sizes: tuple[int, ...] = SIZES, seed: int = 1) -> Iterator[Found]:
    dice = np.random.default_rng(seed)
    for change in ("none", "a new value", "the rarest value", "the number 0"):
        for column, drawn in columns(dice, change):
            for pinned in sizes:
                for later in sizes:
                    moved = change != "none"
                    if moved and not pinned >= later == FOUND_AT:
                        continue
                    psi = [psi_of(drawn(pinned, False), drawn(later, moved)) for _ in range(comparisons)]
                    yield Found(column, change, pinned, later, np.array(psi))


def table_of(found: list[Found]) -> list[str]:
    lines = [
        "| change of the later values | comparisons | above chance | PSI above 0.25 | least PSI |",
        "|---|---|---|---|---|",
    ]
    for change in dict.fromkeys(each.change for each in found):
        some = [each for each in found if each.change == change]
        total = sum(len(each.psi) for each in some)
        name = change if change == "none" else f"a tenth becomes {change}"
        lines.append(
            f"| {name} | {total:,} | {sum(each.found for each in some) / total:.3%} | {sum(each.alerts for each in some) / total:.3%} | "
            f"{min(each.psi.min() for each in some):.3f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2000, help="of each column and pair of sizes")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = []
    for each in measured(given.comparisons):
        found.append(each)
        row = {"column": each.column, "change": each.change, "pinned": each.pinned, "later": each.later}
        print(json.dumps(row | {"found": each.found, "alerts": each.alerts, "of": len(each.psi)}), flush=True)
    print("\n".join(table_of(found)))
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), PAGE.name, "drift", table_of(found)))


if __name__ == "__main__":
    main()
