"""A stream under losses: each role is killed with SIGKILL in turn, while clicks come and predictions are asked for.

    python -m bench.stream_kills --minutes 30 --every 20 --rate 1000 [--broker kafka|folder]

`elastic-ctr local`'s own processes train the stream of bench.stream. Each answer is compared with the scores of the version that it names.
The ledger is read all the while: the offset ranges of its tasks must be all that was appended, each once, and its counts every click. Exit
code 1 if an answer was wrong, or an offset is unaccounted for.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from rich.console import Console
from rich.table import Table

from bench.method import Results, Row, ending, private_bytes
from bench.processes import first_child
from bench.stream import Producer, Stream, freshness, quantiles
from bench.stream_log import ClickLog, TopicLog, click_log, possible_kind
from bench.stream_prober import PROBES, Prober
from elastic_ctr.config.micro_pass import MicroPass
from elastic_ctr.features.synthetic import Preset, Truth

STALE = 10.0
GOAL = 30.0
_MINUTES = 30.0
_LOOK, _WATCH_EVERY, _LEDGER_EVERY = 0.25, 5.0, 20.0
_SETTLE = 90.0
"""Longest time from the last click until all are in a version that answers."""
_MOST_LATE = 15.0
"""Longest time from a kill until the runner sees it."""
_SLACK = {"memory": (10e6, 0.10), "files": (12.0, 0.10), "disk": (20e6, 0.10)}
"""What may be added over the whole run, and which share of it."""
Floats = npt.NDArray[np.float64]
Range = tuple[int, int]


@dataclass(frozen=True)
class Target:
    """What is killed: a role's process, or one of its children."""

    name: str
    role: str
    child: Callable[[int], psutil.Process] | None = None


TARGETS = (
    Target("trainer", "ctr-trainer-0"),
    Target("pserver", "ctr-pserver-0"),
    Target("master", "ctr-master-0"),
    Target("cube-server", "ctr-cube-s0-0"),
    Target("cube-builder", "ctr-cube-builder-0"),
    Target("cube-transfer", "ctr-cube-transfer-0"),
    Target("serving worker", "ctr-serving-0", child=first_child),
    Target("serving", "ctr-serving-0"),
)
BROKER = "broker"


@dataclass
class Kill:
    """`at` is in unix seconds. `again`: records that the ledger has counted as trained again by the next kill."""

    name: str
    at: float
    well: float | None = None
    again: int = 0


def staleness(
    noted: Sequence[tuple[float, float, float]], first: Mapping[int, float], knows: Mapping[int, Range]
) -> Floats:
    """[n, 2] of each answer that knew more than those before it: when, and the arrival of the newest click that it knew."""
    offsets, arrived, _ = np.array(noted, float).reshape(-1, 3).T
    rows: list[tuple[float, float]] = []
    most = -1.0
    for at, stop in sorted((first[version], stop) for version, (_, stop) in knows.items() if version in first):
        place = int(np.searchsorted(offsets, stop, side="right")) - 1
        if stop > most and place >= 0:
            most = stop
            rows.append((at, float(arrived[place])))
    return np.array(rows, float).reshape(-1, 2)


def stale_times(known: Floats, ends: float, limit: float = STALE) -> list[tuple[float, float]]:
    """From when to when the newest click known was older than `limit`; the last one may last until `ends`."""
    found: list[tuple[float, float]] = []
    for (_, arrival), until in zip(known, [*known[1:, 0], ends], strict=True):
        if until - arrival > limit:
            begins = arrival + limit
            # An answer that knows little more does not end it.
            if found and begins <= found[-1][1]:
                begins = found.pop()[0]
            found.append((float(begins), float(until)))
    return found


def fresh_again(kills: Sequence[float], stale: Sequence[tuple[float, float]], ends: float) -> list[float]:
    """Seconds from each kill to the end of what was stale before the next one; 0 where nothing was."""
    found = []
    for at, following in zip(kills, [*kills[1:], ends], strict=True):
        last = max((end for begin, end in stale if end > at and begin < following), default=at)
        found.append(last - at)
    return found


def stale_already(kills: Sequence[float], stale: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether the kill met clicks that were stale from before it: it shares their time with another kill."""
    return [any(begin < at < end for begin, end in stale) for at in kills]


def unaccounted(ranges: Iterable[Range], end: int) -> tuple[int, int]:
    """Of the offsets from 0 to `end`: how many are in no range, and how many are in more than one, each time more counted."""
    missing = twice = place = 0
    for start, stop in sorted(ranges):
        missing += max(0, start - place)
        twice += max(0, min(place, stop) - start)
        place = max(place, stop)
    return missing + max(0, end - place), twice


def growth_of(times: Sequence[float], values: Sequence[float] | Floats) -> float:
    """Per minute, from the middle third to the last one, each by what nine tenths of its values are below.

    Of 30 minutes the first third fills the ledger, which keeps 1,000 passes. Files and disk rise for minutes and fall with each compaction, and a
    line through so few teeth of a saw has a slope of its own.
    """
    third = len(values) // 3
    if third < 3:
        return 0.0
    before, now = (float(np.quantile(values[first : first + third], 0.9)) for first in (third, 2 * third))
    return (now - before) / ((times[2 * third] - times[third]) / 60)


def is_flat(kind: str, per_minute: float, minutes: float, values: Sequence[float] | Floats) -> bool:
    added, share = _SLACK[kind]
    return per_minute * minutes <= added + share * float(np.median(values))


@dataclass
class Watch:
    """Memory, open files and disk by role over time."""

    run: Stream
    broker: Callable[[], int | None]
    seen: dict[tuple[str, str], tuple[list[float], list[float]]] = field(default_factory=dict)

    def look(self) -> None:
        now = time.time()
        pids = dict(self.run.session.supervisor.pids())
        if (broker := self.broker()) is not None:
            pids[BROKER] = broker
        for name, pid in pids.items():
            memory = files = 0.0
            with suppress(psutil.NoSuchProcess):
                for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                    with suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
                        memory += private_bytes(process.pid)
                        files += process.num_fds()
            self._note("memory", name, now, memory)
            self._note("files", name, now, files)
        for folder, size in disk_of(self.run.session.places.folder):
            self._note("disk", folder, now, size)

    def _note(self, kind: str, name: str, now: float, value: float) -> None:
        times, values = self.seen.setdefault((kind, name), ([], []))
        times.append(now)
        values.append(value)

    def figures(self, minutes: float) -> Iterator[dict[str, Any]]:
        for (kind, name), (times, values) in sorted(self.seen.items()):
            growth = growth_of(times, values)
            yield {
                "kind": kind, "of": name, "median": float(np.median(values)), "last": values[-1], "max": max(values),
                "perMinute": growth, "flat": is_flat(kind, growth, minutes, values),
                "seconds": [round(each - times[0]) for each in times], "values": [round(each) for each in values],
            }  # fmt: skip


def disk_of(folder: Path) -> Iterator[tuple[str, float]]:
    """Bytes of each part of a run's folder: the store, and the state, scratch and log files of each role."""
    for part in ("store", "logs", "state", "scratch"):
        below = folder / part
        for each in [below] if part in {"store", "logs"} else sorted(below.glob("*")):
            size = 0.0
            for root, _, names in os.walk(each):
                for name in names:
                    with suppress(FileNotFoundError):
                        size += (Path(root) / name).lstat().st_size
            yield str(each.relative_to(folder)), size


class Tasks:
    """The offset ranges of the ledger's tasks, which it keeps for its last thousand passes."""

    def __init__(self, ledger: Path, partition: str) -> None:
        self._ledger = ledger
        self._partition = partition
        self.ranges: dict[str, Range] = {}

    def look(self) -> None:
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{self._ledger}?mode=ro", uri=True)) as db,
        ):
            for task, start, stop in db.execute(
                "select tasks.id, start, stop from tasks join passes on pass = ordinal where path = ? and passes.state = 'done'",
                (self._partition,),
            ):
                self.ranges[task] = (start, stop)


class Killer:
    """Kills one target after the other."""

    def __init__(self, run: Stream, log: ClickLog) -> None:
        self._run = run
        self._broker = log.broker if isinstance(log, TopicLog) else None
        targets = (*TARGETS, *([Target(BROKER, "")] if self._broker else []))
        self._next = cycle(targets)
        self.kills: list[Kill] = []

    def broker_pid(self) -> int | None:
        return self._broker.pid if self._broker is not None and self._broker.runs else None

    def kill(self) -> Kill | None:
        """The next target that runs. None where it does not run just now."""
        target = next(self._next)
        if target.name == BROKER:
            assert self._broker is not None
            self._broker.kill()
            self.kills.append(Kill(BROKER, time.time()))
            # It is started again at once, as a role is.
            self._broker.begin()
            return self.kills[-1]
        pid = self._run.session.supervisor.pids().get(target.role)
        with suppress(psutil.NoSuchProcess, ProcessLookupError, LookupError):
            if pid is not None:
                pid = target.child(pid).pid if target.child else pid
                os.kill(pid, signal.SIGKILL)
                self.kills.append(Kill(target.name, time.time()))
                return self.kills[-1]
        return None


def again_of(status: Mapping[str, Any]) -> int:
    ledger = status.get("ledger", {})
    return int(ledger.get("repeated", 0)) + int(ledger.get("rolledBack", 0))


def measure(given: argparse.Namespace, folder: Path, log: ClickLog) -> dict[str, Any]:
    console = Console(stderr=True, highlight=False)
    truth = Truth(Preset(slots=given.slots, keys=max(2, given.keys // given.slots)), seed=7)
    run = Stream(folder, log, truth, {"windowMs": 300, "checkpointSeconds": given.checkpoint_seconds}, {})
    lines, size = run.fill(truth), log.offset
    killer = Killer(run, log)
    watch = Watch(run, killer.broker_pid)
    tasks = Tasks(run.session.places.folder / "state" / "master" / "ledger.db", log.partition)
    with run.session.running():
        run.until(lambda: run.answers_up_to(size), "the table is filled")
        drawn = truth.text(truth.draw(PROBES, np.random.default_rng(1)))
        prober = Prober(
            run.session.places.serving,
            run.session.places.store_url,
            [line.decode().split(" ", 2)[2] for line in drawn.splitlines()],
        )
        producer = Producer(truth, log, given.rate)
        threads = [
            threading.Thread(target=prober.run),
            threading.Thread(target=producer.run, args=(given.minutes * 60,)),
        ]
        knows: dict[int, Range] = {}
        began = time.time()
        for each in threads:
            each.start()
        try:
            watch_at = ledger_at = began
            kill_at = began + given.every
            while threads[1].is_alive():
                time.sleep(_LOOK)
                status = run.status()
                knows |= run.knows(knows)
                now = time.time()
                if now >= watch_at:
                    watch.look()
                    watch_at = now + _WATCH_EVERY
                if now >= ledger_at:
                    tasks.look()
                    ledger_at = now + _LEDGER_EVERY
                # The last one has its time, too.
                if now >= kill_at and now < began + given.minutes * 60 - given.every / 2:
                    kill_at = now + given.every
                    before = again_of(status)
                    if killer.kills:
                        killer.kills[-1].again = before - sum(each.again for each in killer.kills[:-1])
                    if (kill := killer.kill()) is not None:
                        console.print(
                            f"{now - began:5.0f} s: {kill.name} is killed; {len(prober.first)} versions answered, {len(prober.wrong)} "
                            f"wrong, {len(prober.refused) + len(prober.unanswered)} failed, {run.lag():,} {log.unit} behind"
                        )
            ended = time.time()
            log.finish()
            settled = run_until(run, lambda: run.answers_up_to(log.offset), knows, _SETTLE)
            time.sleep(1)
            knows |= run.knows(knows)
            tasks.look()
            status = run.status()
        finally:
            producer.stop()
            prober.stop()
            for each in threads:
                each.join()
        restarts = list(run.session.supervisor.restarts)
    if killer.kills:
        killer.kills[-1].again = again_of(status) - sum(each.again for each in killer.kills[:-1])
    clicks = lines + int(sum(count for _, _, count in producer.noted))
    ledger = status["ledger"]
    missing, twice = unaccounted(tasks.ranges.values(), log.offset)
    stale = stale_times(staleness(producer.noted, prober.first, knows), ended)
    times = [each.at for each in killer.kills]
    again, already = fresh_again(times, stale, ended), stale_already(times, stale)
    role_of = {each.name: each.role for each in TARGETS}
    for kill in killer.kills:
        own = [each for each in restarts if each.name == role_of.get(kill.name) and abs(each.at - kill.at) < _MOST_LATE]
        kill.well = own[0].seconds if own else None
    failed = sorted([*prober.refused, *prober.unanswered])
    edges = [*times, ended + _SETTLE]
    seconds, counts = freshness(producer, prober.first, knows, so_far=True)
    return {
        "source": log.kind, "rate": given.rate, "minutes": given.minutes, "every": given.every, "keys": given.keys,
        "checkpointSeconds": given.checkpoint_seconds,
        "kills": [
            {
                "what": kill.name, "at": kill.at - began, "wellSeconds": kill.well, "freshAgainSeconds": fresh, "staleAlready": before,
                "trainedAgain": kill.again, "failedAnswers": sum(1 for at, _ in failed if kill.at <= at < until),
            }
            for kill, fresh, before, until in zip(killer.kills, again, already, edges[1:], strict=True)
        ],
        "asked": prober.asked, "wrong": len(prober.wrong), "firstWrong": prober.wrong[:5], "worstDiff": prober.worst,
        "failed": len(failed), "firstFailed": [what for _, what in failed[:5]], "versions": len(prober.first),
        "freshness": quantiles(seconds, counts), "settled": settled, "lag": run.lag(), "unit": log.unit,
        "offsets": {
            "appended": log.offset, "missing": missing, "twice": twice, "gone": status.get("streamGone", 0),
            "clicks": clicks, "ledger": ledger, "uncounted": abs(clicks - ledger["trained"] - ledger["refused"]),
        },
        "resources": list(watch.figures(given.minutes)),
        "restarts": [[each.name, each.at - began, each.reason, each.seconds] for each in restarts],
        "problems": run.session.supervisor.problems(), "load": os.getloadavg(),
    }  # fmt: skip


def run_until(run: Stream, condition: Callable[[], bool], knows: dict[int, Range], seconds: float) -> bool:
    """Whether the condition came to hold."""
    ends = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < ends:
        knows |= run.knows(knows)
        time.sleep(_LOOK)
    return holds


def faults(found: Mapping[str, Any]) -> list[str]:
    """What must not be, a sentence each."""
    offsets, unit = found["offsets"], found["unit"]
    sentences = {
        f"{found['wrong']} answers were wrong: {found['firstWrong'][:1]}": found["wrong"],
        f"{offsets['missing']:,} {unit} are in no task": offsets["missing"],
        f"{offsets['twice']:,} {unit} are in two tasks": offsets["twice"],
        f"{offsets['gone']:,} {unit} were dropped before they were read": offsets["gone"],
        f"the ledger counts {offsets['uncounted']:,} clicks more or less than were appended": offsets["uncounted"],
        f"{_SETTLE:g} s after the last click not all were in a version": not found["settled"],
    }
    return [sentence for sentence, wrong in sentences.items() if wrong]


def show(found: Mapping[str, Any]) -> None:
    console = Console(highlight=False, width=None if os.isatty(1) else 140)
    table = Table("killed", "at, s", "well again, s", "fresh again, s", "trained again", "failed answers")
    table.title = f"{found['minutes']:g} minutes, {found['rate']:,} clicks/s from {found['source']}"
    for each in found["kills"]:
        well = "-" if each["wellSeconds"] is None else f"{each['wellSeconds']:.1f}"
        table.add_row(
            each["what"], f"{each['at']:.0f}", well, f"{each['freshAgainSeconds']:.1f}{' *' * each['staleAlready']}", f"{each['trainedAgain']:,}",
            str(each["failedAnswers"]),
        )  # fmt: skip
    console.print(table)
    if any(each["staleAlready"] for each in found["kills"]):
        console.print("* from a kill before it on")
    table = Table("what", "median", "most", "a minute", "")
    for each in found["resources"]:
        unit = 1e6 if each["kind"] in {"memory", "disk"} else 1
        name = f"{each['kind']}{', MB' if unit > 1 else ''} of {each['of']}"
        figures = (f"{each[key] / unit:.1f}" for key in ("median", "max"))
        table.add_row(name, *figures, f"{each['perMinute'] / unit:+.2f}", "flat" if each["flat"] else "[red]GROWS")
    console.print(table)
    offsets, ledger = found["offsets"], found["offsets"]["ledger"]
    console.print(
        f"{found['asked']:,} answers of {found['versions']} versions, {found['wrong']} wrong, {found['failed']} failed; freshness "
        f"{found['freshness']}; {offsets['clicks']:,} clicks appended, {ledger['trained']:,} trained, {ledger['repeated']:,} repeated, "
        f"{ledger['rolledBack']:,} trained anew after a checkpoint; of {offsets['appended']:,} {found['unit']} {offsets['missing']} "
        f"missing and {offsets['twice']} twice"
    )
    for sentence in faults(found):
        console.print(f"[red]{sentence}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="of clicks")
    parser.add_argument("--every", type=float, default=20, help="seconds from one kill to the next")
    parser.add_argument("--rate", type=int, default=1000, help="clicks a second")
    parser.add_argument("--broker", choices=["kafka", "folder"], help="absent: kafka where it can be started")
    parser.add_argument("--keys", type=int, default=20_000, help="rows of the table before")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=MicroPass().checkpoint_seconds,
        help="from one save of the table to the next",
    )
    parser.add_argument("--keep", type=Path, help="a new folder for the run, which is kept; absent: one that goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stream-kills-") as scratch:
        folder = Path(scratch) if given.keep is None else given.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with click_log(given.broker or possible_kind(), folder) as log:
            found = measure(given, folder, log)
    show(found)
    results = Results(quick=given.minutes < _MINUTES)
    name = f"stream kills, {found['rate']:,} clicks/s from {found['source']}"
    longest = [each["freshAgainSeconds"] for each in found["kills"]] or [0.0]
    shared = sum(each["staleAlready"] for each in found["kills"])
    note = f"{len(longest)} kills, {shared} of them while clicks were stale from one before; {found['failed']} of {found['asked']:,} answers failed"
    middle = float(np.median(longest))
    results.put(
        Row(
            f"{name}: longest s until fresh",
            max(longest),
            min(longest),
            max(longest),
            GOAL,
            f"{note}; median {middle:.1f}",
            "at most",
        ),
        json.loads(json.dumps(found)),
    )
    wrong = float(len(faults(found)))
    results.put(Row(f"{name}: faults", wrong, wrong, wrong, 0, "; ".join(faults(found)) or note, "at most"))
    return 1 if faults(found) else 0


if __name__ == "__main__":
    sys.exit(ending(main))
