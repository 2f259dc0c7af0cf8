"""Keys a second of one core through the lookup kernels, compiled and numpy, on parts built for the purpose.

    python bench/cube_kernel.py --keys 1000000 10000000 --partitions 60 --json

Uniform keys miss the cache, zipf keys (1.05) are what readers ask. Both kernels answer the same keys in turn within each
repetition, and their answers are asserted equal before anything is timed. Beside the result stands what the machine
was doing: numbers of different sessions are not to be compared.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from elastic_ctr.cube.builder.part import build_full
from elastic_ctr.cube.dictionary import table as tables
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.dictionary.table import Paths, VersionTable

CALLS = (30, 300, 13_312)
ASKED = 2_000_000


@contextmanager
def _path(name: str) -> Iterator[None]:
    before = os.environ.get("ELASTIC_CTR_LOOKUP", "")
    os.environ["ELASTIC_CTR_LOOKUP"] = name
    tables.compiled_lookup.cache_clear()
    try:
        yield
    finally:
        os.environ["ELASTIC_CTR_LOOKUP"] = before
        tables.compiled_lookup.cache_clear()


def build(folder: Path, count: int, dim: int, partitions: int) -> tuple[Keys, dict[int, Paths], float]:
    """(keys, parts, seconds per million keys)."""
    random = np.random.default_rng(1)
    keys = np.unique(random.integers(1, 2**64, count, dtype=np.uint64))
    random.shuffle(keys)
    values = random.standard_normal((keys.size, dim), dtype=np.float32)
    paths = {}
    start = time.perf_counter()
    for partition in range(partitions):
        own = keys % np.uint64(partitions) == partition
        part = build_full(
            [(keys[own], values[own])],
            folder / f"{partition}.dict",
            version=1,
            partition=partition,
            partitions=partitions,
            dim=dim,
        )
        paths[partition] = Paths(part.path)
    return keys, paths, (time.perf_counter() - start) / keys.size * 1e6


def zipf(
    count: int, size: int, random: np.random.Generator, a: float = 1.05
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ranks = (1 + random.random(size) * (count ** (1 - a) - 1)) ** (1 / (1 - a))
    chosen: np.ndarray[tuple[int], np.dtype[np.int64]] = np.minimum(ranks.astype(np.int64), count) - 1
    return chosen


def rate(lookup: Callable[[Keys], object], asked: Keys, call: int, seconds: float) -> float:
    """Million keys a second, calls of that many keys, for about that long."""
    at = done = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for _ in range(max(1, 3000 // call)):
            if at + call > asked.size:
                at = 0
            lookup(asked[at : at + call])
            at += call
            done += call
    return done / spent / 1e6


def measure(count: int, dim: int, partitions: int, repetitions: int, seconds: float) -> Iterator[dict[str, object]]:
    random = np.random.default_rng(2)
    with tempfile.TemporaryDirectory(prefix="cube-kernel-") as folder:
        keys, paths, build_seconds = build(Path(folder), count, dim, partitions)
        lookups: dict[str, VersionTable] = {}
        for name in ("numba", "numpy"):
            with _path(name):
                lookups[name] = VersionTable.open(1, dim, partitions, paths, populate=True)
        streams = {
            "uniform": keys[random.integers(0, keys.size, ASKED)],
            "zipf 1.05": keys[zipf(keys.size, ASKED, random)],
        }
        for distribution, asked in streams.items():
            first, second = (table.lookup(asked[:20_000]) for table in lookups.values())
            assert first[0].tobytes() == second[0].tobytes()
            assert not first[1].any()
            for call in CALLS:
                rates: dict[str, list[float]] = {name: [] for name in lookups}
                for _ in range(repetitions):
                    for name, table in lookups.items():
                        rates[name].append(rate(table.lookup, asked, call, seconds))
                for name, seen in rates.items():
                    yield {
                        "kernel": name, "keys": keys.size, "dim": dim, "partitions": partitions,
                        "distribution": distribution, "keysPerCall": call, "minM": round(min(seen), 3),
                        "medianM": round(statistics.median(seen), 3), "maxM": round(max(seen), 3),
                        "buildSecondsPerMKey": round(build_seconds, 3),
                    }  # fmt: skip


def machine() -> dict[str, object]:
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in facts if line.startswith("model name")), "")
    return {
        "cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "numpy": np.__version__, "load": os.getloadavg(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--dim", type=int, default=9)
    parser.add_argument("--partitions", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    about = machine()
    print(json.dumps(about) if given.json else " ".join(f"{name}={value}" for name, value in about.items()))
    for count in given.keys:
        for row in measure(count, given.dim, given.partitions, given.repetitions, given.seconds):
            if given.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{row['keys']:>10} keys {row['distribution']:<10} {row['keysPerCall']:>6} a call "
                    f"{row['kernel']:<6} {row['medianM']:>8} M keys/s ({row['minM']} to {row['maxM']})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
