"""Decay and expiry over simulated days on the real engine: what the table holds and publishes, beside the formulas.

    .venv/bin/python -m bench.days [--days 30]

Two passes a day go through `elastic-ctr local`'s own processes. After each pass the rows, new and expired ones that the status names
for each pserver are compared with the formulas of docs/architecture.md, after each day end every row of the checkpoint and every key
of the base. Nothing of a save may be left in a pserver's scratch; rows, their bytes in the checkpoint, the memory of the pservers and
the store may not grow once the first keys have expired. cube-transfer deletes old versions once a minute, so the store is looked at on
the first of these days and on the last. Exit code 1 if anything differs.
"""

import argparse
import contextlib
import gzip
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from bench.method import ending
from elastic_ctr.config.load import settings
from elastic_ctr.config.model import Table
from elastic_ctr.config.values_file import Values
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.session import Session
from elastic_ctr.runtime.status.master_status import LineCounts, TrainingStatus
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from elastic_ctr.training.pserver.folders import owned

SLOTS = ("steady", "today", "rare")
STEADY, OF_A_PASS, RARE = 400, 600, 200
FIRST = date(2026, 4, 1)
SPLITS = ("00", "12")
KEEP_VERSIONS = 2
# Keys of a day expire two days later, so that rows, files and versions are as many as they will ever be.
PLATEAU = 3
GROWTH = 1.1
Answer = dict[str, Any]
SECONDS = 240.0
TABLE = {
    "baseThreshold": 0.5,
    "deltaKeepDays": 0,
    "showClickDecayRate": 0.5,
    "deleteThreshold": 0.15,
    "deleteAfterUnseenDays": 1,
}


@dataclass
class FormulaRow:
    """What decides about a row of the sparse table."""

    show: float = 0.0
    click: float = 0.0
    unseen_days: int = 0
    delta_score: float = 0.0


class Formula:
    """The sparse table's rows by Paddle's formulas (`SparseAccessor`), without weights: what `docs/architecture.md` says."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.rows: dict[int, FormulaRow] = {}

    def _score(self, show: float, click: float) -> float:
        return self._table.nonclk_coeff * (show - click) + self._table.click_coeff * click

    def push(self, key: int, show: int, click: int) -> None:
        row = self.rows.setdefault(key, FormulaRow())
        row.show += show
        row.click += click
        row.delta_score += self._score(show, click)
        row.unseen_days = 0

    def shrink(self) -> None:
        for key, row in list(self.rows.items()):
            row.show *= self._table.show_click_decay_rate
            row.click *= self._table.show_click_decay_rate
            low = self._score(row.show, row.click) < self._table.delete_threshold
            if low or row.unseen_days > self._table.delete_after_unseen_days:
                del self.rows[key]

    def save(self, mode: str) -> set[int]:
        """The keys that a save of this mode writes."""
        saved = set(self.rows) if mode in ("checkpoint", "batch") else set(self._published(mode))
        for key in saved:
            if mode == "batch":
                self.rows[key].unseen_days += 1
            elif mode != "checkpoint":
                self.rows[key].delta_score = 0.0
        return saved

    def _published(self, mode: str) -> Iterator[int]:
        table = self._table
        for key, row in self.rows.items():
            grown = mode == "base" or row.delta_score >= table.delta_threshold
            if (
                self._score(row.show, row.click) >= table.base_threshold
                and grown
                and row.unseen_days <= table.delta_keep_days
            ):
                yield key


@dataclass
class Day:
    """What was found after a day end, and what the formulas say. `new` and `expired` are of both passes, by the status."""

    seconds: float
    new: int
    expired: int
    checkpoint: int
    memory: int
    rows: int
    rows_by_formula: int
    shows: float
    shows_by_formula: float
    published: int
    published_by_formula: int
    scratch: int
    store: int | None
    differs: list[str]


def write_pass(folder: Path, split: str, seed: int, formula: Formula) -> None:
    """Clicks of half a day: keys that come every time, keys of this pass alone, and keys too rare to stay."""
    rng = random.Random(seed)
    lines = []
    for number in range(OF_A_PASS * 2):
        show = rng.randint(1, 6)
        click = rng.randint(0, show)
        keys = [1 + number % STEADY, (seed << 32) + number // 2 + 1]
        if number < RARE:
            show, click = 1, 0
            keys = [(seed << 48) + number + 1]
        slots = SLOTS[2:] if number < RARE else SLOTS[:2]
        lines.append(f"{show} {click} " + " ".join(f"{key}:{slot}" for key, slot in zip(keys, slots, strict=True)))
        for key in keys:
            formula.push(key, show, click)
    target = folder / split
    target.mkdir(parents=True)
    (target / "part-00000").write_text("".join(f"{line}\n" for line in lines))
    (target / "donefile").touch()


def rows_of(store: Any, checkpoint: str) -> dict[int, tuple[float, float, float]]:
    """Unseen days, shows and clicks by key."""
    found = {}
    for entry in read_checkpoint(store, checkpoint).files:
        if "/000/" in entry.path:
            for line in gzip.decompress(store.get_bytes(entry.path)).decode().splitlines():
                key, _, unseen, _, show, click, *_ = line.split()
                found[int(key)] = (float(unseen), float(show), float(click))
    return found


def bytes_of(store: Any, checkpoint: str) -> int:
    """Of the sparse table in a checkpoint."""
    return sum(entry.bytes for entry in read_checkpoint(store, checkpoint).files if "/000/" in entry.path)


def keys_of(store: Any, version: int) -> set[int]:
    keys: set[int] = set()
    for entry in read_version(store, version).cube_files:
        with contextlib.closing(SequenceFileReader(store.local_path(entry.path))) as blocks:
            for block, _ in blocks:
                keys.update(block.tolist())
    return keys


def bytes_in(folder: Path, pattern: str = "**/*") -> int:
    total = 0
    for file in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def grown(plateau: Day, found: Day) -> list[str]:
    """What a later day has more of than the day from which on as many keys expire as come."""
    measured = {
        "table": (plateau.rows, found.rows, "rows"),
        "checkpoint": (plateau.checkpoint, found.checkpoint, "bytes"),
        "memory of the pservers": (plateau.memory, found.memory, "bytes"),
        "store": (plateau.store or 0, found.store or 0, "bytes"),
    }
    return [
        f"the {name} has grown from {before} to {now} {unit}"
        for name, (before, now, unit) in measured.items()
        if now > GROWTH * before
    ]


class Days:
    """A run that is given one pass after the other."""

    def __init__(self, folder: Path, days: int, values: dict[str, Any]) -> None:
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        splits = [f"{FIRST + timedelta(day):%Y%m%d}/{hour}" for day in range(days) for hour in SPLITS]
        self._passes = list(enumerate(splits, 1))
        given = {
            **values,
            "data": {
                "source": {"url": f"file://{self._data}"}, "path": "/", "start": splits[0], "end": splits[-1],
                "splitInterval": 720, "slots": list(SLOTS), "sleepSeconds": 0.5,
            },
            "model": {"partitions": 4, "network": {"name": "slot-dnn", "layers": [8]}, "embeddingDim": 9, "table": TABLE},
        }  # fmt: skip
        self.session = Session(RunPlaces(folder / "run", settings(Values, given, "days")))
        self.store = open_store(self.session.places.store)
        self.formula = Formula(self.session.places.values.model.table)
        self._saved_keys: set[int] = set()
        self._memory = 0

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        ends = time.monotonic() + SECONDS
        while not (found := condition()):
            if time.monotonic() > ends:
                raise TimeoutError(f"{what}: not within {SECONDS:g} s; logs in {self.session.places.folder}/logs")
            self.session.look()
            time.sleep(0.1)
        return found

    def run(self, at_day_end: Callable[[int], None] = lambda _: None) -> Iterator[Day]:
        """One day after the other. `at_day_end` is called with the day once the files of its last pass are there."""
        plateau: Day | None = None
        last = len(self._passes) // len(SPLITS)
        of_day: list[Answer] = []
        differs: list[str] = []
        began = time.monotonic()
        for number, split in self._passes:
            write_pass(self._data, split, number, self.formula)
            ends_day, day = split.endswith(SPLITS[-1]), number // len(SPLITS)
            if ends_day:
                at_day_end(day)
            done = self.until(partial(self._done, split), f"pass {split}")
            trained = set(self.formula.rows)
            written = self._saved(done["kind"], ends_day=ends_day)
            of_day += done["table"]
            differs += self._told(done["table"], trained)
            if ends_day:
                found = self._compare(done, written, of_day, settled=day in (PLATEAU, last))
                found.differs += differs
                found.seconds = time.monotonic() - began
                plateau = found if day == PLATEAU else plateau
                if plateau is not None:
                    found.differs += grown(plateau, found)
                of_day, differs, began = [], [], time.monotonic()
                yield found

    @property
    def status(self) -> TrainingStatus:
        """The master's last answer; an empty one before the first."""
        return self.session.status or TrainingStatus(pservers=(), passes=(), ledger=LineCounts())

    def _done(self, split: str) -> Answer | None:
        status = self.status.to_dict()
        # After the last pass the server processes are ended.
        self._memory = sum(each["memoryBytes"] or 0 for each in status["pservers"]) or self._memory
        passes = status["passes"]
        return next((each for each in passes if each["pass"] == split and each["state"] == "done"), None)

    def _saved(self, kind: str, *, ends_day: bool) -> set[int]:
        if ends_day:
            self.formula.shrink()
        written = self.formula.save(kind)
        if ends_day:
            self.formula.save("batch")
        return written

    def _told(self, table: list[Answer], trained: set[int]) -> list[str]:
        """What the status names otherwise than the formulas, by whose rows training left those of the keys `trained`."""
        before, after = self._saved_keys, set(self.formula.rows)
        self._saved_keys = after
        partitions = self.session.places.values.model.partitions
        differs = []
        for index, part in enumerate(table):
            mine = owned(index, len(table), partitions)
            sets = {"rows": after, "new": trained - before, "expired": trained - after}
            expected = {name: sum(key % partitions in mine for key in keys) for name, keys in sets.items()}
            if any(part[name] != expected[name] for name in expected):
                differs.append(f"pserver {index} has {part} by the status, by formula {expected}")
        return differs

    def _compare(self, done: Answer, written: set[int], of_day: list[Answer], *, settled: bool) -> Day:
        """`settled`: with the bytes of the store, once old versions are deleted."""
        places, formula = self.session.places, self.formula.rows
        self.until(lambda: self.session.live == done["version"], f"version {done['version']} goes live")
        if settled:
            self.until(lambda: len(published_versions(self.store)) <= KEEP_VERSIONS + 1, "old versions are deleted")
        name = done["pass"].replace("/", "-")
        checkpoint = max(each.rstrip("/") for each in self.store.list("checkpoints") if each.startswith(name))
        rows = rows_of(self.store, checkpoint)
        published = keys_of(self.store, done["version"])
        scratch = Path(places.scratch("pserver-0")).parent
        left = sum(bytes_in(scratch, f"pserver-*/*/{each}/**/*") for each in ("save", "export-*"))
        differs = []
        if rows.keys() != formula.keys():
            differs.append(f"the rows of {len(rows.keys() ^ formula.keys())} keys are there or missing")
        for key in rows.keys() & formula.keys():
            expected = (formula[key].unseen_days, formula[key].show, formula[key].click)
            if not all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(rows[key], expected, strict=True)):
                differs.append(f"key {key} has unseen days, shows and clicks {rows[key]}, by formula {expected}")
        if published != written:
            differs.append(f"{len(published ^ written)} keys are published or missing")
        if left:
            differs.append(f"{left} bytes of saves are left in the pservers' scratch")
        size = sum(part["bytes"] for part in done["table"])
        if size != (stored := bytes_of(self.store, checkpoint)):
            differs.append(f"the checkpoint has {size} bytes by the status and {stored} in the store")
        sampled = range(1, 6)
        return Day(
            0.0,
            sum(part["new"] for part in of_day),
            sum(part["expired"] for part in of_day),
            size,
            self._memory,
            len(rows),
            len(formula),
            sum(rows[key][1] for key in sampled if key in rows),
            sum(formula[key].show for key in sampled if key in formula),
            len(published),
            len(written),
            bytes_in(scratch, "pserver-*/**/*"),
            bytes_in(places.folder / "store") if settled else None,
            differs,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    given = parser.parse_args()
    values = {
        # A few hundred clicks at random have no AUC to lose.
        "master": {"config": {"keepCheckpoints": 1, "maxPublishLoss": 1}},
        # The formulas count each record once.
        "trainer": {"replicas": 1, "config": {"epochs": 1}},
        "cube": {"config": {"shards": 1}},
        "cubeTransfer": {"config": {"keepVersions": KEEP_VERSIONS}},
    }
    print(
        "day   rows  formula    new  expired  checkpoint B  memory MB  shows of 5 keys    formula  published  formula  scratch B   store B      s"
    )
    differs = 0
    found: list[Day] = []
    with tempfile.TemporaryDirectory() as folder:
        days = Days(Path(folder), given.days, values)
        with days.session.running():
            for number, day in enumerate(days.run(), 1):
                print(
                    f"{number:3} {day.rows:6} {day.rows_by_formula:8} {day.new:6} {day.expired:8} {day.checkpoint:13} "
                    f"{day.memory / 1e6:10.1f} {day.shows:16.3f} {day.shows_by_formula:10.3f} {day.published:10} "
                    f"{day.published_by_formula:8} {day.scratch:10} {day.store or '-':>9} {day.seconds:6.1f}",
                    flush=True,
                )
                for difference in day.differs[:5]:
                    print(f"    DIFFERS: {difference}")
                differs += len(day.differs)
                found.append(day)
    stable = found[PLATEAU - 1 :]
    print(
        f"{len(found)} days: {sum(day.new for day in found)} rows came, {sum(day.expired for day in found)} expired, {found[-1].rows} are there; "
        + (
            f"from day {PLATEAU} on {min(day.rows for day in stable)} to {max(day.rows for day in stable)}; "
            if stable
            else ""
        )
        + f"{differs} differences"
    )
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(ending(main))
