"""The compiled converter beside the bare Python loop that it replaces (no validation, no counts), same bytes out.

    python bench/convert.py [--rows 20000] [--repeat 7] [--json]

Rows have 26 slots of one 64-bit feasign each, two of them with a second one. Repetitions alternate between the two;
time is the thread's CPU time, so that neighbours on the machine count less.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable

from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.slots import SlotList


def bare_loop(src: Iterable[str], out: io.StringIO, slots: list[str]) -> None:
    """The tight loop to beat: split, group by slot, join."""
    n = len(slots)
    ix = {s: i for i, s in enumerate(slots)}
    buf: list[str] = []
    for line in src:
        show, click, *fs = line.split()
        d: list[list[str] | None] = [None] * n
        for f in fs:
            v, _, s = f.partition(":")
            i = ix.get(s)
            if i is not None:
                d[i] = [v] if d[i] is None else d[i] + [v]  # type: ignore[operator]
        p = ["1 " + show + " 1 " + click]
        for x in d:
            p.append(  # noqa: PERF401
                "1 0" if x is None else "1 " + x[0] if len(x) == 1 else str(len(x)) + " " + " ".join(x)
            )
        buf.append(" ".join(p))
        if len(buf) >= 2000:
            out.write("\n".join(buf) + "\n")
            buf = []
    if buf:
        out.write("\n".join(buf) + "\n")


def sample(rows: int, slots: list[str]) -> bytes:
    dice = random.Random(7)
    lines = []
    for _ in range(rows):
        wide = [*slots, slots[3], slots[9]]
        features = " ".join(f"{dice.getrandbits(64) or 1}:{slot}" for slot in wide)
        lines.append(f"1 {int(dice.random() < 0.2)} {features}\n")
    return "".join(lines).encode()


def timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    slots = [str(number) for number in range(26)]
    data = sample(given.rows, slots)
    converter = Converter(SlotList.parse(slots), None)

    def bare() -> str:
        out = io.StringIO()
        bare_loop(io.TextIOWrapper(io.BytesIO(data), "ascii"), out, slots)
        return out.getvalue()

    first_use = timed(lambda: converter.convert(data[:1000]))
    assert converter.convert(data).text == bare().encode(), "the two do not write the same"

    seconds: dict[str, list[float]] = {"bare": [], "compiled": []}
    for _ in range(max(given.repeat, 5)):
        seconds["bare"].append(timed(bare))
        seconds["compiled"].append(timed(lambda: converter.convert(data)))
    speeds = {name: sorted(given.rows / second for second in taken) for name, taken in seconds.items()}
    ratios = sorted(bare / compiled for bare, compiled in zip(seconds["bare"], seconds["compiled"], strict=True))
    found = {
        "rows": given.rows,
        "bytesPerRow": round(len(data) / given.rows),
        "rowsPerSecond": {name: _spread(values) for name, values in speeds.items()},
        "ratio": _spread(ratios),
        "firstUseSeconds": first_use,
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]},
    }
    if given.json:
        print(json.dumps(found))
        return
    print(
        f"{given.rows} rows of {found['bytesPerRow']} bytes, {len(ratios)} alternating repetitions: min / median / max"
    )
    for name, values in speeds.items():
        print(f"  {name:9} {values[0]:>10,.0f} {statistics.median(values):>10,.0f} {values[-1]:>10,.0f} rows/s")
    print(f"  ratio     {ratios[0]:>10.2f} {statistics.median(ratios):>10.2f} {ratios[-1]:>10.2f}")


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": values[0], "median": statistics.median(values), "max": values[-1]}


if __name__ == "__main__":
    main()
