"""Our serving beside a well-made FastAPI service: the same requests, embeddings, network and load generator, in turn.

    python -m bench.serving [--quick] [--only "1 instance"] [--keys 10000000]

Ours: `elastic-ctr serving` with one worker, and `elastic-ctr cube-server` with one for its embeddings. Theirs: uvicorn with
one worker (bench/rivals/fastapi_service.py), and Redis for its embeddings. CPU of both helpers counts. Both get the
same JSON over HTTP/1.1; ours gets the same instances as binary tensors as well. Keys are zipf 1.05 over the table.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import orjson
import yaml
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench import network
from bench import table as tables
from bench.loadgen import HTTP, Expected, Load
from bench.method import FOLDER, Plan, Results, Side, arguments, compare, plan_of, show, timed
from bench.processes import (
    COMMAND,
    Server,
    answers,
    ask,
    cube_server,
    free_port,
    one_core,
    redis_server,
    running,
)
from bench.table import PARTITIONS, VERSION, Made
from elastic_ctr.config.feature_document import FILE as FEATURES_FILE
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.release import Holder, Placement, ReleaseDocument
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.http import HttpThread, application
from elastic_ctr.serving.client import JSON_LENGTH, prediction_of, tensor_request
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish

PATH = "/ElasticCTRPredictionService/inference"
INFER = "/v2/models/ctr/infer"
TENSORS = "binary tensors over HTTP"
SLOTS = network.SLOTS
TOLERANCE = 1e-5
_SAMPLES = 16


@dataclass(frozen=True)
class Shape:
    """Instances a request, keys an instance, connections, requests encoded in advance; goals of JSON and of binary tensors."""

    instances: int
    keys: int
    connections: int
    requests: int
    http: float | None
    binary: float | None

    @property
    def name(self) -> str:
        many = f", {self.keys} keys each" if self.keys != len(SLOTS) else ""
        return f"{self.instances} instance{'s'[: self.instances - 1]}{many} at {self.connections} connections"


SHAPES = (
    Shape(1, 26, 128, 4000, 20, 35),
    Shape(16, 26, 32, 600, 6, 8),
    Shape(128, 26, 16, 160, 4, 4.5),
    Shape(128, 200, 16, 64, None, 12),
)


@dataclass(frozen=True)
class SubmittedBatch:
    """Requests of one shape: feasigns u64 [requests, n] by row and slot, counts i64 [instances, slots] alike for all."""

    shape: Shape
    feasigns: Keys
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, shape: Shape, table: Made) -> "SubmittedBatch":
        feasigns = tables.asked(table, "zipf", shape.requests, shape.instances * shape.keys)
        each, more = divmod(shape.keys, len(SLOTS))
        row = np.array([each + (slot < more) for slot in range(len(SLOTS))], np.int64)
        return cls(shape, feasigns, np.tile(row, (shape.instances, 1)))

    def bodies(self) -> Iterator[bytes]:
        """JSON of the source's protocol."""
        ends = np.cumsum(self.counts.reshape(-1)).tolist()
        starts = [0, *ends[:-1]]
        for row in self.feasigns.tolist():
            pieces = [row[start:end] for start, end in zip(starts, ends, strict=True)]
            instances = [
                {"slots": [{"slot_name": slot, "feasigns": pieces[at + number]} for number, slot in enumerate(SLOTS)]}
                for at in range(0, len(pieces), len(SLOTS))
            ]
            yield orjson.dumps({"instances": instances})

    def over_http(self, port: int, *, traced: bool = False) -> Load:
        """`traced`: each request has a head of its own, with the number of its trace."""
        head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        requests = [
            f"{head}{_trace(number) if traced else ''}content-length: {len(body)}\r\n\r\n".encode() + body
            for number, body in enumerate(self.bodies(), 1)
        ]
        return Load(port, requests, Expected(HTTP), self.shape.connections, work=self.shape.instances)

    def as_tensors(self, port: int) -> Load:
        requests = [_tensors(row, self.counts) for row in self.feasigns]
        return Load(port, requests, Expected(HTTP), self.shape.connections, work=self.shape.instances)


def _tensors(feasigns: Keys, counts: NDArray[np.int64]) -> bytes:
    body, length = tensor_request(feasigns, counts, SlotList(SLOTS))
    head = f"POST {INFER} HTTP/1.1\r\nhost: bench\r\n{JSON_LENGTH}: {length}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _trace(number: int) -> str:
    """A line of a head, of the form that W3C's Trace Context gives it."""
    return f"traceparent: 00-{number:032x}-{number:016x}-01\r\n"


def pooled(table: Made, feasigns: Keys, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """[rows, slots * dim] of one request, from the table itself."""
    starts = np.cumsum(counts.reshape(-1)) - counts.reshape(-1)
    sums: NDArray[np.float64] = np.add.reduceat(table.truth(feasigns).astype(np.float64), starts, axis=0)
    return sums.astype(np.float32).reshape(len(counts), -1)


def publish_version(table: Made, folder: Path) -> FileStore:
    """A store with the version: the network, samples with their scores, the manifest. The table is cube's already."""
    exported = network.export(folder / "network", table.dim)
    asked = SubmittedBatch.of(Shape(_SAMPLES, len(SLOTS), 1, 1, None, None), table)
    scores = network.answer(pooled(table, asked.feasigns[0], asked.counts), table.dim)
    rows = asked.feasigns.reshape(_SAMPLES, -1).tolist()
    lines = [" ".join(f"{key}:{slot}" for key, slot in zip(row, SLOTS, strict=True)) for row in rows]
    return publish_files(table, folder, exported, lines, scores, SLOTS)


def publish_files(
    table: Made,
    folder: Path,
    exported: Path,
    lines: Sequence[str],
    scores: NDArray[np.float64],
    slots: tuple[str, ...],
    *,
    numbers: tuple[str, ...] = (),
    features: FeatureDocument | None = None,
) -> FileStore:
    """As `publish_version`, of a network and of samples that are there."""
    store = FileStore(folder / "store")
    samples = folder / "sample.jsonl"
    with samples.open("wb") as out:
        for line, score in zip(lines, scores.tolist(), strict=True):
            out.write(orjson.dumps({"line": line, "show": 1, "click": 0, "live": score, "published": score}) + b"\n")
    home = layout.model_folder(VERSION)
    files = [
        publish(store, exported / "network.pdmodel", f"{home}/network.pdmodel"),
        publish(store, exported / "network.pdiparams", f"{home}/network.pdiparams"),
        publish(store, samples, layout.sample_file(VERSION), len(lines)),
    ]
    if features is not None:
        (folder / FEATURES_FILE).write_bytes(features.to_json())
        files.append(publish(store, folder / FEATURES_FILE, f"{home}/{FEATURES_FILE}"))
    now = time.time()
    manifest = VersionManifest(
        version=VERSION,
        kind="base",
        base=VERSION,
        parent=None,
        pass_id="20200401/00",
        event_time_max=int(now),
        created_at=now,
        partitions=PARTITIONS,
        dim=table.dim,
        keys=int(table.keys.size),
        slots=slots,
        numbers=numbers,
        features=None if features is None else features.digest,
        sparse_dim=None,
        network="slot-dnn",
        cube_files=(),
        model_files=tuple(files),
        samples=len(lines),
        auc_live=None,
        auc_published=None,
    )
    store.put_bytes(manifest.to_json(), layout.version_manifest(VERSION))
    return store


@contextmanager
def transfer(cube: Server) -> Iterator[int]:
    """The release document, which stays as it is; the port it is read at."""
    holders = {VERSION: {f"127.0.0.1:{cube.port}": Holder(partitions=tuple(range(PARTITIONS)))}}
    document = ReleaseDocument(
        generation=1, revision=1, placement=Placement(shards=1), wanted=(VERSION,), live=VERSION, holders=holders
    )

    async def release(request: Request) -> Response:
        if "after" in request.query_params:
            await asyncio.sleep(min(1.0, float(request.query_params.get("wait", "0"))))
            return Response(status_code=304)
        return Response(document.to_json(), media_type="application/json")

    async def readers(_: Request) -> Response:
        return Response(status_code=204)

    routes = [Route("/release", release), Route("/readers", readers, methods=["POST"])]
    door = HttpThread(application(routes), "127.0.0.1", 0).start()
    try:
        yield door.port
    finally:
        door.stop()


@dataclass(frozen=True)
class Ours:
    """The serving process, and the cube-server it asks."""

    serving: Server
    cube: Server

    def pids(self) -> list[int]:
        return [*self.serving.pids(), *self.cube.pids()]


@contextmanager
def our_serving(
    table: Made, folder: Path, cube: Server, publishing: Callable[[Made, Path], object] = publish_version
) -> Iterator[Ours]:
    """Ready when it answers predictions."""
    publishing(table, folder)
    port, admin = free_port(), free_port()
    with transfer(cube) as release:
        config = {
            "model": {"embeddingDim": table.dim},
            "store": {"url": f"file://{(folder / 'store').resolve()}"},
            "transferAddress": f"127.0.0.1:{release}",
            "serving": {
                "port": port, "adminPort": admin, "grpcPort": 0, "workers": 1,
                "scratchDir": str((folder / "scratch").resolve()),
            },
            "cube": {"lookupTimeoutMs": 2000},
        }  # fmt: skip
        file = folder / "serving.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [str(COMMAND), "serving", "--config", str(file)]
        log = FOLDER / "logs" / "serving.log"
        with running(command, log, lambda: answers(port, "/v2/health/ready")) as pid:
            yield Ours(Server(pid, port, admin), cube)


@contextmanager
def their_service(
    folder: Path, redis: Server, dim: int, *, gathers: bool = False, rows_by: str = ""
) -> Iterator[Server]:
    """`gathers`: it answers all requests that wait together, as ours does. `rows_by`: it takes rows of columns, and makes numbers of them that way."""
    port = free_port()
    env = {
        **os.environ,
        "BENCH_NETWORK": str(folder / "network"),
        "BENCH_DIM": str(dim),
        "BENCH_SLOTS": ",".join(SLOTS),
        "BENCH_REDIS": str(redis.port),
        "BENCH_GATHERS": str(int(gathers)),
        "BENCH_ROWS": rows_by,
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
    }
    command = [
        sys.executable, "-m", "uvicorn", "bench.rivals.fastapi_service:app", "--host", "127.0.0.1", "--port", str(port),
        "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "600",
    ]  # fmt: skip
    with running(
        command,
        FOLDER / "logs" / f"fastapi{'-gathers' if gathers else ''}{rows_by and f'-{rows_by}'}.log",
        lambda: answers(port, "/healthz"),
        env=env,
    ) as pid:
        yield Server(pid, port)


def assert_equal(table: Made, ours: Ours, theirs: Server, gatherer: Server) -> float:
    """Every shape's first request through all doors and the oracle; the spread of the probabilities."""
    spread = 1.0
    for shape in SHAPES:
        asked = SubmittedBatch.of(Shape(shape.instances, shape.keys, 1, 8, None, None), table)
        for row, body in zip(asked.feasigns, asked.bodies(), strict=True):
            truth = network.answer(pooled(table, row, asked.counts), table.dim)
            answers_by_door = {"the oracle": truth, "our HTTP door": _over_http(ours.serving.port, body)}
            answers_by_door["theirs"] = _over_http(theirs.port, body)
            answers_by_door["theirs that gathers"] = _over_http(gatherer.port, body)
            answers_by_door["our binary tensors"] = _in_tensors(ours.serving.port, row, asked.counts)
            for door, answer in answers_by_door.items():
                worst = float(np.abs(answer - truth).max())
                assert worst < TOLERANCE, f"{door} is {worst:.2g} from the oracle at {shape.name}"
            if shape.instances > 8:
                spread = min(spread, float(truth.std()))
    assert spread > 0.1, f"the probabilities hardly differ (deviation {spread:.3f}): equality would prove nothing"
    return spread


def _over_http(port: int, body: bytes) -> NDArray[np.float64]:
    answer = httpx.post(f"http://127.0.0.1:{port}{PATH}", content=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text[:300]
    return np.array([each["prob1"] for each in answer.json()["predictions"]])


def _in_tensors(port: int, feasigns: Keys, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    body, length = tensor_request(feasigns, counts, SlotList(SLOTS))
    url = f"http://127.0.0.1:{port}{INFER}"
    answer = httpx.post(url, content=body, headers={JSON_LENGTH: str(length)}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text[:300]
    return prediction_of(answer.content, int(answer.headers[JSON_LENGTH])).probabilities.astype(np.float64)


def measure(
    table: Made, ours: Ours, theirs: Server, redis: Server, plan: Plan, results: Results, spread: float
) -> None:
    note = f"26 slots x {table.dim}, no dense inputs on either side; outputs equal, deviation {spread:.2f}"
    for shape in SHAPES:
        doors = {"HTTP + JSON": shape.http, TENSORS: shape.binary}
        names = {door: f"serving ÷ FastAPI + Redis, {door}, {shape.name}" for door in doors}
        if not any(map(plan.wants, names.values())):
            continue
        asked = SubmittedBatch.of(shape, table)
        their_load = asked.over_http(theirs.port)
        b = Side("theirs", their_load.run, lambda: [*theirs.pids(), *redis.pids()])
        for door, goal in doors.items():
            if not plan.wants(names[door]):
                continue
            load = (asked.as_tensors if door == TENSORS else asked.over_http)(ours.serving.port)
            compared = compare(names[door], Side("ours", load.run, ours.pids), b, plan)
            results.put(compared.row(goal, note=note), compared.details())
            load.close()
        their_load.close()


def _pids_of(*servers: Server) -> list[int]:
    return [pid for server in servers for pid in server.pids()]


def measure_told(
    table: Made, ours: Ours, theirs: Server, gatherer: Server, redis: Server, plan: Plan, results: Results
) -> None:
    """What is told beside the goals, over HTTP: their service when it gathers requests, and heads that differ."""
    what = [
        (f"FastAPI that gathers requests + Redis, HTTP + JSON, {shape.name}", shape, gatherer, False)
        for shape in SHAPES
    ]
    told = "HTTP + JSON, a traceparent of its own in each request"
    what.append((f"FastAPI + Redis, {told}, {SHAPES[0].name}", SHAPES[0], theirs, True))
    for rival, shape, service, traced in what:
        name = f"serving ÷ {rival}"
        if not plan.wants(name):
            continue
        asked = SubmittedBatch.of(shape, table)
        our_load, their_load = (asked.over_http(port, traced=traced) for port in (ours.serving.port, service.port))
        their_pids = partial(_pids_of, service, redis)
        compared = compare(
            name, Side("ours", our_load.run, ours.pids), Side("theirs", their_load.run, their_pids), plan
        )
        results.put(compared.row(None), compared.details())
        our_load.close()
        their_load.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--keys", type=int, default=tables.KEYS)
    given = parser.parse_args()
    plan, results = plan_of(given), Results(given.results, quick=given.quick or given.keys != tables.KEYS)
    logs = FOLDER / "logs"
    with timed("bench.serving"), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-serving-")))
        table = tables.made(given.keys)
        redis = stack.enter_context(redis_server(logs / "serving-redis.log"))
        tables.fill_redis(table, redis.port)
        cube = stack.enter_context(cube_server(logs / "serving-cube.log"))
        ask(cube.admin, "/load", table.load_order())
        ours = stack.enter_context(our_serving(table, folder, cube))
        theirs = stack.enter_context(their_service(folder, redis, table.dim))
        gatherer = stack.enter_context(their_service(folder, redis, table.dim, gathers=True))
        spread = assert_equal(table, ours, theirs, gatherer)
        with one_core([*ours.pids(), *theirs.pids(), *gatherer.pids(), *redis.pids()]):
            measure(table, ours, theirs, redis, plan, results, spread)
            measure_told(table, ours, theirs, gatherer, redis, plan, results)
    show(results.read())


if __name__ == "__main__":
    main()
