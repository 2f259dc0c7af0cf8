"""Each network of the catalog: the pipeline beside the same network in plain Paddle, and beside the bare engine; two trainers beside one.

bench/training.py runs it. Lines have 26 slots with one key each, of 10,000; the batch is that of `auto` on all sides. What the peer
may know and use is in bench/rivals/plain_paddle.py: all keys beforehand, both cores, and of its two ways to be fed the faster one.
Its reading, converting and numbering of keys are before its clock, and so is the reading of the bare engine. The pipeline's training
phase reads the converted records of a task while the task before it is trained.

A process of the bare engine: python -m bench.training_networks SPEC.json, SPEC: {"model", "batchSize", "data", "rows"}.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from bench.engine_beside_server import engine_beside_server, without_paddles_output
from bench.method import Plan, Results, server_cpu, summary
from bench.rivals.plain_paddle import FEEDS
from bench.training_pipeline import between, pipeline
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.networks import DEFAULT, NETWORKS
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.features.synthetic import DrawnLines, Preset, Truth
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.hours import HourTree, hour_name, parse_hour
from elastic_ctr.training.master.passes.learning import batch_size
from elastic_ctr.training.model.evaluation import auc_of_histogram

PRESET = Preset(slots=26, keys=10_000, spread=0.3)
ROWS, QUICK_ROWS, HELD = 1_600_000, 50_000, 50_000
HOUR = "20200401/00"
SEED = 1
TWO = f"two trainers ÷ one, {DEFAULT}, {PRESET.slots} slots"
# The peer's AUC may be lower by so much; else it does not do the same work.
_UNFAIR = 0.02
# Share of the cores that the peer uses on a machine without other work. With other work our many threads get more of the cores than its few.
_BUSY = 0.75


def against_peer(name: str) -> str:
    return f"training {name} of {PRESET.slots} slots in the pipeline ÷ plain Paddle"


def against_engine(name: str) -> str:
    return f"training {name} of {PRESET.slots} slots in the pipeline ÷ the bare engine"


def measure_networks(plan: Plan, results: Results, rows: int) -> None:
    """Puts two rows for each network, and the one of two trainers. Those that fail do not keep the others; SystemExit names them."""
    wanted = [name for name in NETWORKS if plan.wants(against_peer(name)) or plan.wants(against_engine(name))]
    if not wanted and not plan.wants(TWO):
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, rows)
        failed = []
        for name in wanted:
            try:
                measure_network(name, folder, rows, plan, results)
            except RuntimeError as error:  # noqa: PERF203 (the others are measured all the same)
                print(error, file=sys.stderr)
                failed.append(name)
        if plan.wants(TWO):
            measure_trainers(folder, rows, 1 if plan.quick else plan.repetitions, results)
    if failed:
        raise SystemExit(f"these were not measured: {', '.join(failed)}; the reasons are above")


def measure_network(name: str, folder: Path, rows: int, plan: Plan, results: Results) -> None:
    """Puts the wanted rows of one network. Raises RuntimeError where they cannot be measured."""
    sides = Sides(name, folder, rows)
    sides.run(1 if plan.quick else plan.repetitions, anyhow=plan.quick)
    for row, theirs, goal, note in (
        (against_peer(name), sides.peers, 1.0 if name == DEFAULT else None, sides.note_of_peer()),
        (against_engine(name), sides.bares, 0.85, sides.note_of_bare()),
    ):
        if plan.wants(row):
            ratios = between(sides.pipelines, [each["recordsPerSecond"] for each in theirs])
            results.put(summary(row, ratios, goal, note=note), sides.details())


def measure_trainers(folder: Path, rows: int, repetitions: int, results: Results) -> None:
    ones, twos = [pipeline(folder / "hours", rows, folder)], []
    for _ in range(repetitions):
        twos.append(pipeline(folder / "hours", rows, folder, trainers=2))
        ones.append(pipeline(folder / "hours", rows, folder))
    note = (
        f"{statistics.median(twos):,.0f} to {statistics.median(ones):,.0f} records a second, {rows:,} of them in four tasks; "
        "trainers and the one pserver share two cores"
    )
    results.put(summary(TWO, between(twos, ones), None, note=note), {"one": ones, "two": twos})


def write(folder: Path, rows: int, held: int = HELD) -> None:
    """The same lines as an hour in `hours`, as the engine's text, and with numbered keys for the peer."""
    truth = Truth(PRESET, SEED)
    converter = Converter(truth.slots, None)
    for name, count, seed in (("train", rows, 1), ("held", held, 2)):
        lines = truth.draw(count, np.random.default_rng([SEED, seed]))
        text = truth.text(lines)
        (folder / f"{name}.txt").write_bytes(converter.convert(text).text)
        _write_numbered(folder, name, lines)
        if name == "train":
            with HourTree(folder / "hours") as tree:
                hour = parse_hour(HOUR)
                tree.append(f"{HOUR}/part-00000", text)
                tree.publish(truth.slots, hour, hour, truth.values(hour_name(hour), hour_name(hour)))


def _write_numbered(folder: Path, name: str, lines: DrawnLines) -> None:
    ids = lines.indices + np.arange(PRESET.slots) * PRESET.keys
    clicks = lines.clicks.astype(np.int64)
    np.save(folder / f"{name}.ids.npy", ids)
    np.save(folder / f"{name}.clicks.npy", clicks)
    with (folder / f"{name}.dense.txt").open("w") as text:
        for row, click in zip(ids.tolist(), clicks.tolist(), strict=True):
            text.write(f"{len(row)} {' '.join(map(str, row))} 1 {click}\n")


@dataclass
class Sides:
    """Runs of one network: bare engine and peer, pipeline, bare engine and peer, pipeline … bare engine and peer."""

    network: str
    folder: Path
    rows: int
    pipelines: list[float] = field(default_factory=list)
    bares: list[dict[str, Any]] = field(default_factory=list)
    peers: list[dict[str, Any]] = field(default_factory=list)
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, repetitions: int, *, anyhow: bool = False) -> None:
        """Raises RuntimeError where the peer learns less or, unless `anyhow`, the machine does other work."""
        # The faster of two runs: it decides how the peer is fed.
        for feed in (*FEEDS, "network"):
            self.feeds[feed] = max((self._peer(feed) for _ in range(2)), key=lambda run: float(run["recordsPerSecond"]))
        self.feed = max(FEEDS, key=lambda feed: float(self.feeds[feed]["recordsPerSecond"]))
        if not anyhow:
            self._require_an_idle_machine(float(self.feeds[self.feed]["cores"]))
        self._neighbours()
        ours, theirs = self.bares[0]["auc"], self.peers[0]["auc"]
        if theirs < ours - _UNFAIR:
            raise RuntimeError(
                f"{self.network}: AUC {ours:.4f}, of the peer {theirs:.4f}; it does not do the same work"
            )
        for _ in range(repetitions):
            self.pipelines.append(
                pipeline(self.folder / "hours", self.rows, self.folder, model={"network": {"name": self.network}})
            )
            self._neighbours()
        if not anyhow:
            self._require_an_idle_machine(_median(self.peers, "cores"))

    def _require_an_idle_machine(self, cores: float) -> None:
        share = cores / (os.cpu_count() or 1)
        if share < _BUSY:
            raise RuntimeError(
                f"{self.network}: the peer had {share:.0%} of the cores, since the machine does other work; nothing is measured so"
            )

    def _neighbours(self) -> None:
        self.bares.append(self._process("bench.training_networks", {"data": str(self.folder)}))
        self.peers.append(self._peer(self.feed))

    def _peer(self, feed: str) -> dict[str, Any]:
        slots, vocabulary = PRESET.slots, PRESET.slots * PRESET.keys
        spec = {"data": str(self.folder), "feed": feed, "slots": slots, "vocabulary": vocabulary}
        return self._process("bench.rivals.plain_paddle", spec)

    def _process(self, module: str, spec: dict[str, Any]) -> dict[str, Any]:
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        file = scratch / "spec.json"
        common = {"model": {"network": {"name": self.network}}, "batchSize": self.batch, "rows": self.rows}
        file.write_text(json.dumps({**common, **spec}))
        done = subprocess.run([sys.executable, "-m", module, str(file)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{module} did not train {self.network}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        records, seconds = found["records"], found["seconds"]
        cpu = found["cpu"] + found.get("pserverCpu", 0.0)
        return {
            **found,
            "recordsPerSecond": records / seconds,
            "cores": cpu / seconds,
            "cpuPerRecord": 1e6 * cpu / records,
        }

    @property
    def batch(self) -> int:
        return batch_size(TrainerConfig(), self.rows, 1, clicks=self.rows)

    def note_of_peer(self) -> str:
        """With how the peer is fed, and what both learned."""
        theirs = _median(self.peers, "recordsPerSecond")
        said = {"dataset": "a dataset with a thread a core", "tensors": "a call a batch with tensors made before"}
        ours, peers = _median(self.bares, "cpuPerRecord"), _median(self.peers, "cpuPerRecord")
        other = next(feed for feed in FEEDS if feed != self.feed)
        return (
            f"{statistics.median(self.pipelines):,.0f} to {theirs:,.0f} records a second, {self.rows:,} in batches of {self.batch}; "
            f"the peer has {said[self.feed]} ({self.feeds[other]['recordsPerSecond']:,.0f} with {said[other]}), no parameter server, "
            f"and {_median(self.peers, 'cores'):.2f} of {os.cpu_count()} cores; µs of CPU a record {ours:.1f} and {peers:.1f}, {peers / ours:.2f} per CPU second; "
            f"AUC of records held out {_median(self.bares, 'auc'):.4f} and {_median(self.peers, 'auc'):.4f}"
        )

    def note_of_bare(self) -> str:
        """With what bounds the engine, in microseconds of CPU a record."""
        trainer, pserver, predict = (
            1e6 * _median(self.bares, key) / self.rows for key in ("cpu", "pserverCpu", "predictCpu")
        )
        network = float(self.feeds["network"]["cpuPerRecord"])
        bound = "the network" if network > (trainer + pserver) / 2 else "the sparse table"
        return (
            f"{statistics.median(self.pipelines):,.0f} to {_median(self.bares, 'recordsPerSecond'):,.0f} records a second; bound by {bound}: "
            f"µs of CPU a record are {trainer:.1f} of the trainer and {pserver:.1f} of the pserver, where the network alone takes {network:.1f} "
            f"and a prediction {predict:.1f} of the trainer's; {_median(self.bares, 'cores'):.2f} of {os.cpu_count()} cores are busy"
        )

    def details(self) -> dict[str, Any]:
        return {"pipeline": self.pipelines, "bare": self.bares, "peer": self.peers, "feeds": self.feeds}


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(each[key] for each in runs))


class Spent(NamedTuple):
    """Seconds: on the clock, and of CPU in this process and in its servers."""

    seconds: float
    own: float
    servers: float


def _timed(work: Callable[[], object], servers: list[int]) -> Spent:
    own, theirs, began = time.process_time(), server_cpu(servers), time.monotonic()
    work()
    return Spent(time.monotonic() - began, time.process_time() - own, server_cpu(servers) - theirs)


def main() -> None:
    """The bare engine: trains, predicts the same records, and predicts those held out."""
    out = without_paddles_output()
    file = Path(sys.argv[1])
    spec = json.loads(file.read_text())
    data, rows, batch = Path(spec["data"]), spec["rows"], spec["batchSize"]
    given = ModelInput(tuple(map(str, range(PRESET.slots))))
    with engine_beside_server(Model.model_validate(spec["model"]), given, file.parent) as engine:
        train = engine.ready(engine.preload(data / "train.txt", batch), rows)
        held = engine.ready(engine.preload(data / "held.txt", batch), len(np.load(data / "held.clicks.npy")))
        servers = [each.pid for each in psutil.Process().children()]
        trained = _timed(lambda: engine.train(train), servers)
        predicted = _timed(lambda: engine.predict(train), servers)
        auc = auc_of_histogram(*engine.predict(held))
    found = {
        "records": rows, "seconds": trained.seconds, "cpu": trained.own, "pserverCpu": trained.servers,
        "predictCpu": predicted.own, "auc": auc,
    }  # fmt: skip
    os.write(out, f"{json.dumps(found)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
