"""Freshness: seconds from a click's arrival in a stream to the first answer that has learned from it.

    .venv/bin/python -m bench.stream [--rate 2000] [--keys 1000000] [--slots 8] [--minutes 5]

`elastic-ctr local`'s own processes train a followed folder, to which clicks are appended at the rate. The table is filled before: each
key once. All the while predictions are asked for one after the other. A version is known to have learned a click by the offsets in its
manifest. Every answer is compared with the scores of the version's own sample, as they were published: an answer of two versions, or
of other scores, counts as wrong. Exit code 1 if one is, or if the backlog grows.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from rich.console import Console
from rich.table import Table

from bench.method import Results, Row, ending
from bench.processes import engine_of
from bench.stream_log import ClickLog, click_log
from bench.stream_prober import PROBES, Prober
from bench.stream_stages import ReleaseWatcher, click_stages, summary
from elastic_ctr.config.load import settings
from elastic_ctr.config.micro_pass import MicroPass
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.synthetic import DrawnLines, Preset, Truth
from elastic_ctr.operate.local.endpoints import role_status
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.session import Session, find_ports_free
from elastic_ctr.runtime.lifecycle import PortInUse
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.store.backends import NotInStore, open_store
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.store.versions.published_files import published_versions, read_version

TICK = 0.02
SECONDS = 600.0
_LOOK_SECONDS = 5.0
_LOSS_SECONDS = 60.0
FIRST_PORT, LAST_PORT, PORTS = 8300, 28_000, 1000
# Seconds of freshness, by clicks a second, keys and slots.
GOALS = {(2000, 1_000_000, 8): {"p50": 1.2, "p99": 4.0}, (10_000, 1_000_000, 8): {"p99": 6.0}}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
Floats = npt.NDArray[np.float64]


@dataclass
class Producer:
    """Appends clicks at a rate, and notes what was there when: (offset behind it, unix seconds, clicks) of each append."""

    truth: Truth
    log: ClickLog
    rate: int
    noted: list[tuple[float, float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> None:
        began, sent, pool = time.time(), 0, list[bytes]()
        dice = np.random.default_rng(11)
        while (now := time.time()) < began + seconds and not self._stop.is_set():
            due = int((now - began) * self.rate) - sent
            if due > len(pool):
                pool += self.truth.text(self.truth.draw(max(self.rate, due), dice)).splitlines(keepends=True)
            taken, pool = pool[:due], pool[due:]
            self.log.append(taken)
            sent += due
            self.noted.append((self.log.offset, time.time(), due))
            time.sleep(TICK)

    def stop(self) -> None:
        self._stop.set()


def at_free_ports(folder: Path, given: dict[str, Any]) -> RunPlaces:
    """Beside other runs of this machine. Raises PortInUse where there is no room."""
    *others, last = range(FIRST_PORT, LAST_PORT, PORTS)
    for base in others:
        places = RunPlaces(folder, settings(Values, {**given, "local": {"portBase": base}}, "stream"))
        with suppress(PortInUse):
            find_ports_free(places)
            return places
    return RunPlaces(folder, settings(Values, {**given, "local": {"portBase": last}}, "stream"))


class Stream:
    """A run over a log of clicks."""

    def __init__(
        self, folder: Path, log: ClickLog, truth: Truth, stream: dict[str, Any], master: dict[str, Any],
        model: dict[str, Any] | None = None, store: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        given = {
            "data": {
                "source": {"url": log.url}, "start": "earliest", "slots": truth.slots.names,
                "stream": stream,
            },
            "trainer": {"replicas": 1}, "pserver": {"replicas": 1}, "master": {"config": master}, "cube": {"config": {"shards": 1}},
            "model": model or {}, "store": {"config": store or {}},
        }  # fmt: skip
        self.session = Session(at_free_ports(folder / "run", given))
        self.store = open_store(self.session.places.store)

    def fill(self, truth: Truth) -> int:
        """Each key once; how many lines that is."""
        keys = np.arange(truth.preset.keys)
        indices = np.repeat(keys[:, None], truth.preset.slots, axis=1)
        clicks = np.random.default_rng(5).random(len(keys)) < 0.2
        self.log.append(truth.text(DrawnLines(indices, np.zeros(len(keys)), clicks)).splitlines(keepends=True))
        return len(keys)

    def status(self) -> dict[str, Any]:
        self.session.look()
        return {} if self.session.status is None else self.session.status.to_dict()

    def lag(self) -> int:
        return int(self.status().get("stream", {}).get("lag", 0))

    def until(self, condition: Any, what: str) -> None:
        ends = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > ends:
                raise TimeoutError(f"{what}: not within {SECONDS:g} s; logs in {self.session.places.folder}/logs")
            time.sleep(0.5)

    def answers_up_to(self, offset: int) -> bool:
        self.session.look()
        live = self.session.live
        with suppress(NotInStore):
            return live is not None and read_version(self.store, live).offsets[self.log.partition][1] >= offset
        return False

    def logged(self, sentence: str) -> int:
        """How often the master has logged it since the start."""
        return (self.session.places.folder / "logs" / "ctr-master-0.log").read_text().count(sentence)

    def knows(self, known: Collection[int] = ()) -> dict[int, tuple[int, int]]:
        """The offsets of each version that is still there, but for those that are known."""
        found = {}
        for version in set(published_versions(self.store)) - set(known):
            with suppress(NotInStore, ManifestDamaged, KeyError):
                found[version] = read_version(self.store, version).offsets[self.log.partition]
        return found


def freshness(
    producer: Producer, first: dict[int, float], knows: dict[int, tuple[int, int]], *, so_far: bool = False
) -> tuple[Floats, Floats]:
    """Seconds of each append until an answer knew it, and how many clicks it had; `so_far`: of those that are known.

    Raises ValueError for one never known.
    """
    ends, times, counts = np.array(producer.noted[:], float).reshape(-1, 3).T
    order = sorted((first[version], stop) for version, (_, stop) in knows.items() if version in first)
    at = np.array([each for each, _ in order], float)
    known = np.maximum.accumulate(np.array([stop for _, stop in order], float))
    places = np.searchsorted(known, ends)
    there = places < len(known)
    if not so_far and not there.all():
        raise ValueError("some clicks were in no version that answered")
    return at[places[there]] - times[there], counts[there]


def quantiles(seconds: Floats, weights: Floats) -> dict[str, float]:
    """Empty without any."""
    if not len(seconds):
        return {}
    order = np.argsort(seconds)
    ordered, share = seconds[order], np.cumsum(weights[order]) / weights.sum()
    places = {name: min(int(np.searchsorted(share, at)), len(ordered) - 1) for name, at in QUANTILES.items()}
    return {name: round(float(ordered[place]), 3) for name, place in places.items()}


def stages(passes: list[dict[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Median and p90 of what each took, of the passes that the status still has."""
    taken: dict[str, list[float]] = {}
    for each in passes:
        for name, seconds in each.get("seconds", {}).items():
            taken.setdefault(name, []).append(seconds)
    for name, seconds in taken.items():
        yield name, float(np.quantile(seconds, 0.5)), float(np.quantile(seconds, 0.9))


def measure(
    given: argparse.Namespace, folder: Path, log: ClickLog, store: dict[str, Any] | None = None
) -> dict[str, Any]:
    console = Console(stderr=True, highlight=False)
    truth = Truth(Preset(slots=given.slots, keys=max(2, given.keys // given.slots)), seed=7)
    stream = {
        "windowMs": given.window_ms, "checkpointSeconds": given.checkpoint_seconds, "compactVersions": given.compact_versions,
    }  # fmt: skip
    run = Stream(folder, log, truth, stream, {"evaluate": given.evaluate}, store=store)
    lines = run.fill(truth)
    size = log.offset
    with run.session.running():
        began = time.monotonic()
        run.until(lambda: run.answers_up_to(size), "the table is filled")
        console.print(
            f"{given.keys:,} keys in {lines:,} lines are trained and live after {time.monotonic() - began:.0f} s"
        )
        probes = [
            line.decode().split(" ", 2)[2]
            for line in truth.text(truth.draw(PROBES, np.random.default_rng(1))).splitlines()
        ]
        prober = Prober(run.session.places.serving, run.session.places.store_url, probes)
        producer = Producer(truth, log, given.rate)
        asking = threading.Thread(target=prober.run)
        asking.start()
        watcher = ReleaseWatcher(run.session.places.transfer, run.store)
        watching = threading.Thread(target=watcher.run)
        try:
            run.until(lambda: prober.asked, "the first prediction")
            time.sleep(given.quiet)
            watching.start()
            quiet_ends, before = time.time(), cpu_seconds(run.session)
            producing = threading.Thread(target=producer.run, args=(given.minutes * 60,))
            producing.start()
            knows: dict[int, tuple[int, int]] = {}
            lags: list[int] = []
            losses: dict[int, tuple[float, float, float]] = {}
            shown = 0.0
            killed = 0.0
            while producing.is_alive():
                # The status of a long stream is work for the master, and a look has the samples of a version answered.
                time.sleep(_LOOK_SECONDS)
                if given.kill_pserver and not killed and time.time() - quiet_ends > given.minutes * 30:
                    engine_of(run.session.supervisor.pids()["ctr-pserver-0"]).kill()
                    killed = time.time()
                    console.print("the server process of the pserver is killed")
                lags.append(run.lag())
                losses |= window_losses(run.status())
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    knows |= run.knows()
                    console.print(
                        f"{len(prober.first)} versions answered, {lags[-1]:,} bytes behind, load {os.getloadavg()[0]:.1f}"
                    )
            ended, after = time.time(), cpu_seconds(run.session)
            run.until(lambda: run.answers_up_to(log.offset), "what was appended is live")
            time.sleep(1)
            knows |= run.knows()
            status = run.status()
            compactions, archived = run.logged(" are compacted, in "), run.logged(" is archived in ")
            serving = role_status(ServingStatus, run.session.places.info.serving_admin).to_dict()
        finally:
            for each, thread in ((prober, asking), (watcher, watching)):
                each.stop()
                if thread.is_alive():
                    thread.join()
        passes = status["passes"]
    cores = {pod: (spent - before.get(pod, 0)) / (ended - quiet_ends) for pod, spent in after.items()}
    seconds, counts = freshness(producer, prober.first, knows)
    per_second = size / lines * given.rate
    quiet = [took * 1000 for at, took in prober.latencies if at < quiet_ends]
    busy = [took * 1000 for at, took in prober.latencies if quiet_ends <= at < ended]
    return {
        "freshness": quantiles(seconds, counts),
        "clicks": int(counts.sum()), "rate": given.rate, "keys": given.keys, "slots": given.slots,
        "versions": len(prober.first), "asked": prober.asked, "wrong": len(prober.wrong), "firstWrong": prober.wrong[:3],
        "refused": len(prober.refused), "firstRefused": prober.refused[:3],
        "worstDiff": prober.worst, "lagSeconds": {"median": float(np.median(lags)) / per_second, "last": lags[-1] / per_second,
        "max": max(lags) / per_second},
        "predictionMs": {"quiet": {q: float(np.quantile(quiet, x)) for q, x in (("p50", 0.5), ("p99", 0.99))} if quiet else {},
        "streaming": {q: float(np.quantile(busy, x)) for q, x in (("p50", 0.5), ("p99", 0.99))}},
        "clickStages": summary(*click_stages(producer.noted, prober.first, knows, watcher.times())),
        "stages": {name: {"p50": median, "p90": ninety} for name, median, ninety in stages(passes)},
        # As the serving pod counts it, evenly between two looks of the master at the stream.
        "servingFreshness": serving["clickFreshness"],
        "recovery": recovery(status, producer, seconds, killed, losses) if killed else None,
        "compactions": compactions, "archived": archived, "compactVersions": given.compact_versions,
        "cores": cores, "load": os.getloadavg(), "trained": status["ledger"]["trained"], "checkpointSeconds": given.checkpoint_seconds,
    }  # fmt: skip


def window_losses(status: dict[str, Any]) -> dict[int, tuple[float, float, float]]:
    """Of the passes that the status has: unix seconds at which each was trained, shows, and logloss of a record before it was learned."""
    return {
        each["ordinal"]: (each["trainedAt"], each["quality"]["before"]["shows"], each["quality"]["before"]["logloss"])
        for each in status.get("passes", [])
        if each["trainedAt"] and each["quality"]["before"]
    }


def mean_loss(losses: dict[int, tuple[float, float, float]], after: float, until: float) -> float:
    """Of the records trained between the two; nan without any."""
    within = [(shows, loss) for at, shows, loss in losses.values() if after <= at < until]
    return sum(shows * loss for shows, loss in within) / sum(shows for shows, _ in within) if within else math.nan


def recovery(
    status: dict[str, Any], producer: Producer, seconds: Floats, killed: float, losses: dict[int, tuple[float, float, float]]
) -> dict[str, float]:  # fmt: skip
    """Seconds until the table was whole, and until what was appended was fresher than 10 s for good; records trained again; logloss of
    the minute before, and of the minute after the table was whole, whose rows have older moments.
    """
    [last] = status["recoveries"][-1:]
    late = [
        at + each
        for (_, at, _), each in zip(producer.noted, seconds.tolist(), strict=True)
        if at > killed and each > 10
    ]
    again = status["ledger"]["rolledBack"] + status["ledger"]["repeated"]
    whole = killed + last["seconds"]
    return {
        "ready": last["seconds"], "freshAgain": max(late, default=killed) - killed, "trainedAgain": again,
        "loglossBefore": mean_loss(losses, killed - _LOSS_SECONDS, killed), "loglossAfter": mean_loss(losses, whole, whole + _LOSS_SECONDS),
    }  # fmt: skip


def cpu_seconds(session: Session) -> dict[str, float]:
    """Of each role's processes so far, and of this one, which asks and appends."""
    found = {"bench": sum(psutil.Process().cpu_times()[:2])}
    for name, pid in session.supervisor.pids().items():
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            found[name] = sum(sum(each.cpu_times()[:2]) for each in (parent, *parent.children(recursive=True)))
    return found


def show(found: dict[str, Any]) -> None:
    table = Table(
        "what",
        "p50",
        "p90",
        "p99",
        "max",
        title=f"{found['rate']:,} clicks/s, {found['slots']} slots, {found['keys']:,} keys",
    )
    table.add_row("freshness, s", *(f"{found['freshness'][name]:.2f}" for name in QUANTILES))
    if counted := found["servingFreshness"]:
        table.add_row("as serving counts it, s", *(f"{counted[name]:.2f}" for name in QUANTILES))
    for kind, each in found["predictionMs"].items():
        if each:
            table.add_row(f"prediction, ms, {kind}", f"{each['p50']:.1f}", "", f"{each['p99']:.1f}", "")
    for name, each in found["stages"].items():
        table.add_row(f"stage {name}, s", f"{each['p50']:.3f}", f"{each['p90']:.3f}", "", "")
    if lost := found["recovery"]:
        table.add_row("the table is whole again, s", f"{lost['ready']:.1f}", "", "", "")
        table.add_row("fresher than 10 s again, s", f"{lost['freshAgain']:.1f}", "", "", "")
        table.add_row("records trained again", f"{lost['trainedAgain']:,}", "", "", "")
        table.add_row("logloss of the minute before", f"{lost['loglossBefore']:.4f}", "", "", "")
        table.add_row("logloss of a minute after", f"{lost['loglossAfter']:.4f}", "", "", "")
    for name, each in sorted(found["cores"].items(), key=lambda item: -item[1]):
        table.add_row(f"cores of {name}", f"{each:.2f}", "", "", "")
    console = Console(highlight=False)
    console.print(table)
    waits = Table("from the stage before", "mean of all clicks, s", "of the slowest hundredth, s")
    for name, each in found["clickStages"].items():
        waits.add_row(name, f"{each['mean']:.2f}", f"{each['slowest']:.2f}")
    console.print(waits)
    console.print(
        f"{found['clicks']:,} clicks, {found['versions']} versions answered {found['asked']:,} requests, {found['wrong']} wrong, "
        f"{found['refused']} refused; "
        f"{found['compactions']} compactions of the log; "
        f"worst difference {found['worstDiff']:.1e}; behind by {found['lagSeconds']['median']:.2f} s, at most {found['lagSeconds']['max']:.1f} s"
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2000, help="clicks a second")
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows of the table before")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--window-ms", type=int, default=300)
    defaults = MicroPass()
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=defaults.checkpoint_seconds,
        help="from one save of the table to the next",
    )
    parser.add_argument(
        "--compact-versions",
        type=int,
        default=defaults.compact_versions,
        help="from one compaction of the log to the next",
    )
    parser.add_argument(
        "--evaluate", action="store_true", help="with the product's default of an evaluation before training"
    )
    parser.add_argument("--quiet", type=float, default=30, help="seconds of predictions without a stream, before")
    parser.add_argument("--kill-pserver", action="store_true", help="kill -9 its server process at half time")
    parser.add_argument("--quick", action="store_true", help="half a minute on a small table")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the whole document on stdout")
    return parser


def main() -> int:
    given = options().parse_args()
    if given.quick:
        given.keys, given.minutes = min(given.keys, 10_000), min(given.minutes, 0.5)
    with tempfile.TemporaryDirectory(prefix="stream-") as folder, click_log("folder", Path(folder)) as log:
        found = measure(given, Path(folder), log)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    fresh = found["freshness"]
    goals = GOALS.get((given.rate, given.keys, given.slots), {})
    name = f"{given.rate:,} clicks/s, {given.slots} slots, {given.keys:,} keys"
    if found["recovery"]:
        return 1 if found["wrong"] or found["refused"] else 0
    for which in ("p50", "p99"):
        row = Row(
            f"stream: freshness {which} s, {name}",
            fresh[which],
            fresh["p50"],
            fresh["max"],
            goals.get(which),
            "",
            "at most",
        )
        Results(quick=given.quick).put(row, found)
    return 1 if found["wrong"] or found["refused"] else 0


if __name__ == "__main__":
    sys.exit(ending(main))
