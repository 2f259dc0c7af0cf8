"""Minutes of mixed load with a version published every five seconds: no error, and memory, files and p99 as at first.

    python -m bench.soak [--minutes 10]

The roles are the product's own processes: cube-transfer, cube-builder, cube-server, serving, and a store in a
folder. Versions are published as the master does: a base every minute, deltas in between that change a thousand keys. Three
paced loads run all the time (lookups, predictions over HTTP and in binary tensors), and three readers, one for each,
compare every value and probability they get with what that version was published with.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import psutil
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench import network
from bench.cube_load import our_load
from bench.loadgen import Load
from bench.method import FOLDER, RESULTS, Results, ending, resident_bytes, summary
from bench.network import SLOTS
from bench.processes import COMMAND, answers, ask, free_port, running
from bench.serving import Shape, SubmittedBatch
from bench.table import Made
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.serving.client import ServingClient
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import announce
from elastic_ctr.store.versions.manifest import FileEntry, Kind, VersionManifest
from elastic_ctr.store.versions.published_files import publish

DIM, PARTITIONS, KEYS, CHANGING = 9, 12, 200_000, 1000
MINUTES = 10.0
EVERY_SECONDS, BASE_EVERY = 5.0, 12
_SLICE = 4.0  # seconds of each run of a load
_SAMPLES = 16
Floats = NDArray[np.float32]


class World:
    """What is published: keys, of which the first thousand change with every version, and the store they go to."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(3)
        self.keys = np.unique(random.integers(1, 2**64 - 1, KEYS, dtype=np.uint64))
        random.shuffle(self.keys)
        self._values = random.standard_normal((self.keys.size, DIM), dtype=np.float32)
        self._order = np.argsort(self.keys)
        self._ordered = self.keys[self._order]
        self._folder = folder
        self.store = FileStore(folder / "store")
        self._network = network.export(folder / "network", DIM)
        self.published = 0
        self._version = int(time.time())
        self._base = 0

    def values(self, keys: Keys, version: int) -> Floats:
        """What that version says of known keys."""
        places = self._order[np.searchsorted(self._ordered, keys)]
        values: Floats = self._values[places].copy()
        values[places < CHANGING, 0] += np.float32(version % 101 / 101)
        return values

    def probabilities(self, feasigns: Keys, counts: NDArray[np.int64], version: int) -> NDArray[np.float64]:
        starts = np.cumsum(counts.reshape(-1)) - counts.reshape(-1)
        sums = np.add.reduceat(self.values(feasigns, version).astype(np.float64), starts, axis=0)
        return network.answer(sums.astype(np.float32).reshape(len(counts), -1), DIM)

    def table(self) -> Made:
        """For whoever draws requests: half of the keys asked are of those that change."""
        chosen = np.concatenate([self.keys, np.resize(self.keys[:CHANGING], self.keys.size)])
        return Made(self._folder, chosen, np.empty((chosen.size, DIM), np.float32))

    def publish(self) -> int:
        """One more version, announced; its id."""
        base = self.published % BASE_EVERY == 0
        parent = None if base else self._version
        self._version = max(int(time.time()), self._version + 1)
        self._base = self._version if base else self._base
        keys = self.keys if base else self.keys[:CHANGING]
        kind: Kind = "base" if base else "delta"
        files = tuple(self._part(keys, number, kind) for number in range(PARTITIONS))
        home = layout.model_folder(self._version)
        model = [
            publish(self.store, self._network / name, f"{home}/{name}")
            for name in ("network.pdmodel", "network.pdiparams")
        ]
        model.append(publish(self.store, self._samples(), layout.sample_file(self._version), _SAMPLES))
        manifest = VersionManifest(
            version=self._version, kind=kind, base=self._base, parent=parent, pass_id="soak",
            event_time_max=int(time.time()), created_at=time.time(), partitions=PARTITIONS, dim=DIM, keys=int(keys.size),
            slots=SLOTS, sparse_dim=None, network="slot-dnn", cube_files=files, model_files=tuple(model),
            samples=_SAMPLES, auc_live=None, auc_published=None,
        )  # fmt: skip
        self.store.put_bytes(manifest.to_json(), layout.version_manifest(self._version))
        announce(self.store)
        self.published += 1
        return self._version

    def _part(self, keys: Keys, number: int, kind: Kind) -> FileEntry:
        own = keys[keys % np.uint64(PARTITIONS) == number]
        file = self._folder / "part.seq"
        with SequenceFileWriter(file, seed=f"{self._version}-{number}") as writer:
            writer.write(own, self.values(own, self._version))
        return publish(self.store, file, layout.cube_file(self._version, kind, number, PARTITIONS), int(own.size))

    def _samples(self) -> Path:
        random = np.random.default_rng(self._version)
        rows = random.choice(self.keys[: 2 * CHANGING], (_SAMPLES, len(SLOTS)))
        counts = np.ones((_SAMPLES, len(SLOTS)), np.int64)
        scores = self.probabilities(rows.reshape(-1), counts, self._version).tolist()
        file = self._folder / "sample.jsonl"
        with file.open("wb") as out:
            for row, score in zip(rows.tolist(), scores, strict=True):
                sample = {"line": _line(row), "show": 1, "click": 0, "live": score, "published": score}
                out.write(orjson.dumps(sample) + b"\n")
        return file


@dataclass
class Roles:
    """The running product: pids by role, and its ports."""

    pids: dict[str, int] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def start(self, stack: ExitStack, folder: Path) -> None:
        names = ("transfer", "builder", "cube", "cubeAdmin", "http", "servingAdmin")
        self.ports = {name: free_port() for name in names}
        ports = self.ports
        store = {"url": f"file://{folder / 'store'}"}
        cube = {
            "port": ports["cube"], "adminPort": ports["cubeAdmin"], "drainSeconds": 10,
            "cacheDir": str(folder / "cache"), "lookupTimeoutMs": 2000,
        }  # fmt: skip
        transfer = {
            "port": ports["transfer"], "builderPort": ports["builder"], "stateDir": str(folder / "state"),
            "scratchDir": str(folder / "builder"), "stateRecoverySeconds": 1, "keepVersions": 2,
        }  # fmt: skip
        serving = {
            "port": ports["http"], "adminPort": ports["servingAdmin"], "grpcPort": 0,
            "scratchDir": str(folder / "serving"),
        }  # fmt: skip
        address = {"transferAddress": f"127.0.0.1:{ports['transfer']}"}
        model = {"embeddingDim": DIM, "partitions": PARTITIONS}
        roles: dict[str, tuple[dict[str, Any], int, str]] = {
            "cube-builder": ({"store": store, "cubeTransfer": transfer}, ports["builder"], "/healthz"),
            "cube-transfer": (
                {"store": store, "cubeTransfer": transfer, "shards": 1, "replicasPerShard": 1},
                ports["transfer"],
                "/healthz",
            ),
            "cube-server": ({"model": model, "store": store, "cube": cube, **address}, ports["cubeAdmin"], "/healthz"),
            "serving": (
                {"model": model, "store": store, "serving": serving, "cube": {"lookupTimeoutMs": 2000}, **address},
                ports["servingAdmin"],
                "/healthz",
            ),
        }
        for role, (config, port, path) in roles.items():
            file = folder / f"{role}.yaml"
            file.write_text(yaml.safe_dump(config))
            log = FOLDER / "logs" / f"soak-{role}.log"
            command = [str(COMMAND), role, "--config", str(file)]
            env = {**os.environ, "POD_NAME": "cube-s0-0" if role == "cube-server" else "serving-0"}
            self.pids[role] = stack.enter_context(running(command, log, _answering(port, path), env=env))

    def live(self) -> int:
        version: int = ask(self.ports["transfer"], "/release")["live"]
        return version

    def processes(self) -> Iterator[tuple[str, int]]:
        """Every process by the name of its role."""
        for role, pid in self.pids.items():
            yield role, pid
            for child in psutil.Process(pid).children(recursive=True):
                yield f"{role}'s", child.pid


def _answering(port: int, path: str) -> Callable[[], bool]:
    return lambda: answers(port, path)


@dataclass
class Watch:
    """What was seen, over time."""

    memory: dict[str, list[float]] = field(default_factory=dict)  # MB by role
    files: dict[str, list[float]] = field(default_factory=dict)
    p99: dict[str, list[float]] = field(default_factory=dict)  # ms by load
    requests: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    switches: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, what: str) -> None:
        with self._lock:
            self.errors.append(what)

    def look(self, roles: Roles) -> None:
        memory: dict[str, float] = {}
        files: dict[str, float] = {}
        for role, pid in roles.processes():
            try:
                memory[role] = memory.get(role, 0) + resident_bytes(pid) / 1e6
                files[role] = files.get(role, 0) + sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            except (FileNotFoundError, psutil.NoSuchProcess):  # noqa: PERF203 (a few processes)
                if role in roles.pids:
                    self.failed(f"{role} (pid {pid}) is gone")
        for seen, now in ((self.memory, memory), (self.files, files)):
            for role, value in now.items():
                seen.setdefault(role, []).append(value)

    def tell(self, load: str, requests: float, p99: float | None = None) -> None:
        with self._lock:
            self.requests[load] = self.requests.get(load, 0) + requests
            if p99 is not None:
                self.p99.setdefault(load, []).append(p99 * 1000)


class Loads:
    """The threads that ask."""

    def __init__(self, world: World, roles: Roles, watch: Watch) -> None:
        self._world, self._roles, self._watch = world, roles, watch
        self._ended = threading.Event()
        table = world.table()
        self._lookups = table.keys[np.random.default_rng(1).integers(0, table.keys.size, (500, 300))]
        small, large = Shape(1, 26, 16, 400, None, None), Shape(16, 26, 8, 100, None, None)
        http, binary = SubmittedBatch.of(small, table).over_http(roles.ports["http"]), SubmittedBatch.of(large, table)
        tensors = binary.as_tensors(roles.ports["http"])
        # Compiled before the clock runs: whoever waits for that asks for a version that is gone.
        http.run(0.2)
        http.rate, tensors.rate = 200, 60
        http.pause = tensors.pause = 1
        self._threads = [
            threading.Thread(target=self._again, args=(name, step), name=name, daemon=True)
            for name, step in (
                ("lookups", self._look_up),
                ("predictions, HTTP", lambda: self._run("predictions, HTTP", http)),
                ("predictions, binary tensors", lambda: self._run("predictions, binary tensors", tensors)),
                ("compared lookups", self._compare_values),
                ("compared predictions, HTTP", self._compare_http),
                ("compared predictions, binary tensors", self._compare_tensors),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _again(self, name: str, step: Callable[[], None]) -> None:
        while not self._ended.is_set():
            try:
                step()
            except Exception as failed:  # noqa: BLE001, PERF203 (each is counted, and ends nothing)
                self._watch.failed(f"{name}: {type(failed).__name__}: {failed}")
                self._ended.wait(1)

    def _run(self, name: str, load: Load) -> None:
        sample = load.run(_SLICE)
        self._watch.tell(name, sample.work / load.work, sample.p99)
        if sample.failed:
            self._watch.failed(f"{name}: {sample.failed} requests were refused")

    def _look_up(self) -> None:
        load = our_load(self._roles.ports["cube"], self._lookups, 16, version=self._roles.live())
        load.rate, load.pause = 1000, 1
        try:
            self._run("lookups", load)
        finally:
            load.close()

    def _compare_values(self) -> None:
        random = np.random.default_rng()
        with BlockingCubeClient([f"127.0.0.1:{self._roles.ports['cube']}"]) as client:
            version = self._roles.live()
            self._watch.switches.add(version)
            for _ in range(50):
                keys = random.choice(self._lookups.reshape(-1), 500)
                values, missing = client.lookup(version, keys)
                if missing.any() or values.tobytes() != self._world.values(keys, version).tobytes():
                    self._watch.failed(f"compared lookups: version {version} is answered wrongly")
                self._watch.tell("compared lookups", 1)
                self._ended.wait(0.02)

    def _compare_tensors(self) -> None:
        with ServingClient(f"127.0.0.1:{self._roles.ports['http']}") as client:

            def predict(keys: Keys) -> tuple[int, Floats]:
                answer = client.predict(keys.reshape(-1), np.ones(keys.shape, np.int64))
                return answer.version, answer.probabilities

            self._compare_probabilities("compared predictions, binary tensors", predict)

    def _compare_http(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self._roles.ports['http']}", trust_env=False) as client:

            def predict(keys: Keys) -> tuple[int, Floats]:
                lines = [_line(row) for row in keys.tolist()]
                asked = {"inputs": [{"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}]}
                answer = client.post("/v2/models/ctr/infer", content=orjson.dumps(asked)).raise_for_status()
                found = {each["name"]: each["data"] for each in orjson.loads(answer.content)["outputs"]}
                return found["version"][0], np.array(found["probability"], np.float32)

            self._compare_probabilities("compared predictions, HTTP", predict)

    def _compare_probabilities(self, name: str, predict: Callable[[Keys], tuple[int, Floats]]) -> None:
        """By keys u64[8, slots], one of each slot: (version, probabilities)."""
        random = np.random.default_rng()
        for _ in range(50):
            keys = random.choice(self._lookups.reshape(-1), (8, len(SLOTS)))
            version, probabilities = predict(keys)
            truth = self._world.probabilities(keys.reshape(-1), np.ones(keys.shape, np.int64), version)
            if np.abs(probabilities - truth).max() > 1e-5:
                self._watch.failed(f"{name}: version {version} is answered wrongly")
            self._watch.tell(name, 1)
            self._ended.wait(0.02)


def _line(row: list[int]) -> str:
    """One feasign of each slot."""
    return " ".join(f"{feasign}:{slot}" for feasign, slot in zip(row, SLOTS, strict=True))


def flat(seen: list[float], slack: float, factor: float) -> tuple[float, float, bool]:
    """Medians of the second and of the last quarter, and whether the last is no higher than allowed."""
    quarter = max(1, len(seen) // 4)
    early, late = statistics.median(seen[quarter : 2 * quarter] or seen), statistics.median(seen[-quarter:])
    return early, late, late <= early * factor + slack


def verdict(watch: Watch, published: int, seconds: float, console: Console) -> int:
    """How many things were wrong: errors, what grew, and versions that hardly went live."""
    table = Table(title=f"{seconds / 60:.1f} minutes, {published} versions published, {len(watch.switches)} seen live")
    for title in ("what", "second quarter", "last quarter", ""):
        table.add_column(title, justify="left" if title == "what" else "right")
    wrong = len(watch.errors) + (len(watch.switches) < published // 3)
    for kind, seen, slack, factor in (
        ("MB of", watch.memory, 10.0, 1.05), ("open files of", watch.files, 12.0, 1.1), ("p99 ms,", watch.p99, 5.0, 1.5),
    ):  # fmt: skip
        for name, values in seen.items():
            # What the builder keeps for one build only comes and goes.
            early, late, fine = flat(values, slack, factor)
            wrong += not fine
            table.add_row(f"{kind} {name}", f"{early:.1f}", f"{late:.1f}", "flat" if fine else "[red]GROWS")
    console.print(table)
    console.print(", ".join(f"{count:,.0f} {name}" for name, count in watch.requests.items()))
    for error in watch.errors[:20]:
        console.print(f"[red]{error}")
    console.print(f"{len(watch.errors)} errors: {'[red]FAILED' if wrong else '[green]PASSED'}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    console = Console(highlight=False, width=None if os.isatty(1) else 120)
    watch = Watch()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-soak-"))).resolve()
        world, roles = World(folder), Roles()
        world.publish()
        roles.start(stack, folder)
        until = time.monotonic() + 120
        while not answers(roles.ports["http"], "/v2/health/ready"):
            if time.monotonic() > until:
                raise RuntimeError(f"no version went live within two minutes; see {FOLDER}/logs/soak-*.log")
            time.sleep(0.2)
        loads = Loads(world, roles, watch)
        loads.start()
        began = time.monotonic()
        while (now := time.monotonic() - began) < given.minutes * 60:
            world.publish()
            watch.look(roles)
            console.print(f"{now:5.0f} s: version {world.published}, live {roles.live()}, {len(watch.errors)} errors")
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began - now)))
        loads.stop()
    wrong = verdict(watch, world.published, time.monotonic() - began, console)
    compared = sum(count for name, count in watch.requests.items() if name.startswith("compared"))
    note = f"{world.published} versions, {sum(watch.requests.values()):,.0f} requests, {compared:,.0f} of them compared"
    row = summary(
        f"soak, {given.minutes:g} minutes: errors, and what grew", [float(wrong)], 0.0, note=note, bound="at most"
    )
    Results(given.results, quick=given.minutes < MINUTES).put(
        row, json.loads(json.dumps({"p99": watch.p99, "memory": watch.memory, "files": watch.files}))
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(ending(main))
