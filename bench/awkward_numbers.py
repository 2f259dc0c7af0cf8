"""Awkward numbers in the rows of a stream: what became of them, and how fresh the model is meanwhile.

    .venv/bin/python -m bench.awkward_numbers [--rate 1000] [--seconds 60] [--rows 1]

`elastic-ctr local`'s own processes learn rows of JSON from a followed folder: two columns of categories, a number that is standardised, and
the same one as it is. In the middle of it each of NUMBERS comes in `--rows` rows at once. Freshness is the time from a row's append to the
first moment at which the live version has learned it. Exit code 1 where learning stopped, a row above the bounds was trained or another one
was not, or freshness was not back under 2 s within 10 s.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bench.stream import at_free_ports
from bench.stream_log import FolderLog
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, release_document
from elastic_ctr.operate.local.session import Session
from elastic_ctr.store.backends import NotInStore, open_store
from elastic_ctr.store.versions.published_files import read_version

NUMBERS = (1e6, 1e12, 1e30, 1e308, -0.0, 5e-324)
# The bounds of features.md: of a number that is standardised, and of one that is trained as it is.
BOUND, RAW_BOUND = 1e20, 1e6
FRESH_SECONDS, BACK_SECONDS = 2.0, 10.0
_TICK, _START_SECONDS = 0.1, 120.0


def values(url: str) -> dict[str, Any]:
    return {
        "data": {
            "source": {"url": url}, "start": "earliest", "format": "jsonl", "label": "click",
            "stream": {"windowMs": 500, "checkpointSeconds": 20},
        },
        "features": {
            "user": {"type": "categorical"}, "item": {"type": "categorical"},
            "price": {"type": "numeric"}, "raw": {"type": "numeric", "transform": [], "missing": 0},
        },
        "trainer": {"replicas": 1}, "pserver": {"replicas": 1}, "cube": {"config": {"shards": 1}},
    }  # fmt: skip


def row(dice: np.random.Generator, **given: float) -> bytes:
    user, item = (int(each) for each in dice.integers(0, 200, 2))
    price, raw = float(dice.lognormal(3, 1)), float(dice.normal())
    click = bool(dice.random() < (0.6 if (user + item) % 3 == 0 else 0.2))
    return json.dumps({"user": f"u{user}", "item": f"i{item}", "price": price, "raw": raw, "click": int(click), **given}).encode() + b"\n"  # fmt: skip


class Watched:
    """The run, and the offset that its live version has learned at each look."""

    def __init__(self, folder: Path, log: FolderLog) -> None:
        self.log = log
        self.session = Session(at_free_ports(folder / "run", values(log.url)))
        self.store = open_store(self.session.places.store)
        self.learned: list[tuple[float, int]] = []
        self.appended: list[tuple[float, int]] = []

    def append(self, rows: list[bytes]) -> None:
        self.log.append(rows)
        self.appended.append((time.time(), self.log.offset))

    def look(self) -> int:
        """The offset behind the last row that the live version has learned."""
        with suppress(EndpointUnavailable, NotInStore):
            live = release_document(self.session.places.transfer).live
            if live is not None:
                self.learned.append((time.time(), read_version(self.store, live).offsets[self.log.partition][1]))
        return self.learned[-1][1] if self.learned else 0

    def until_learned(self, seconds: float) -> bool:
        ends = time.monotonic() + seconds
        while self.look() < self.log.offset and time.monotonic() < ends:
            self.session.look()
            time.sleep(_TICK)
        return self.look() >= self.log.offset

    def freshness(self) -> list[tuple[float, float]]:
        """Of each append: when it was, and the seconds until it was learned; infinite if never."""
        looks, place, found = sorted(self.learned), 0, []
        for at, offset in self.appended:
            while place < len(looks) and looks[place][1] < offset:
                place += 1
            found.append((at, looks[place][0] - at if place < len(looks) else float("inf")))
        return found


def measure(given: argparse.Namespace, folder: Path, log: FolderLog) -> dict[str, Any]:
    run, dice = Watched(folder, log), np.random.default_rng(7)
    with run.session.running():
        run.append([row(dice) for _ in range(5000)])
        if not run.until_learned(_START_SECONDS):
            raise TimeoutError(f"no version within {_START_SECONDS:g} s; logs in {run.session.places.folder}/logs")
        began, sent, poisoned = time.time(), 0, 0.0
        run.appended.clear()
        while (now := time.time()) < began + given.seconds:
            due = int((now - began) * given.rate) - sent
            rows, sent = [row(dice) for _ in range(due)], sent + due
            if not poisoned and now > began + given.seconds / 2:
                poisoned = now
                rows += [
                    row(dice, **{name: each})
                    for each in NUMBERS
                    for name in ("price", "raw")
                    for _ in range(given.rows)
                ]
            run.append(rows)
            run.look()
            time.sleep(max(0.0, _TICK - (time.time() - now)))
        ended = run.until_learned(_START_SECONDS)
        run.session.look()
        status = {} if run.session.status is None else run.session.status.to_dict()
    files = (run.session.places.folder / "store" / "quarantine").rglob("*.jsonl")
    refused = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    fresh = run.freshness()
    before = [took for at, took in fresh if at < poisoned - FRESH_SECONDS]
    late = [at + took for at, took in fresh if at >= poisoned - FRESH_SECONDS and took > FRESH_SECONDS]
    wanted = given.rows * (sum(abs(each) > BOUND for each in NUMBERS) + sum(abs(each) > RAW_BOUND for each in NUMBERS))
    return {
        "learnedAll": ended, "rows": sent + 5000 + len(NUMBERS) * 2 * given.rows,
        "trained": status["ledger"]["trained"], "refused": status["ledger"]["refused"], "refusedWanted": wanted,
        "named": dict(Counter(each["reason"] for each in refused)), "firstNamed": refused[:1],
        "freshness": {"before": quantiles(before), "after": quantiles([took for at, took in fresh if at >= poisoned])},
        "backSeconds": max(late, default=poisoned) - poisoned, "load": os.getloadavg(),
    }  # fmt: skip


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: round(float(np.quantile(seconds, at)), 2) for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, default=1000, help="rows a second")
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long rows come; the awkward ones in the middle of it"
    )
    parser.add_argument("--rows", type=int, default=1, help="of each number, in each of the two columns")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="awkward-") as name:
        log = FolderLog(Path(name) / "log")
        try:
            found = measure(given, Path(name), log)
        finally:
            log.close()
    print(json.dumps(found, indent=2))
    right = found["learnedAll"] and found["refused"] == found["refusedWanted"] == sum(found["named"].values())
    right = right and found["trained"] + found["refused"] == found["rows"] and found["backSeconds"] <= BACK_SECONDS
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
