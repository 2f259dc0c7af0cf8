"""What serving needs around it, for real: versions in a store, a cube-server that holds them, a release document."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cube.running import PROCESS
from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.feature_document import FILE as FEATURES_FILE
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import ServingFile
from elastic_ctr.config.serving_settings import ServingConfig
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.part import PartIdentity, build_full
from elastic_ctr.cube.release import Holder, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.runtime.http import HttpServer, RequestRefused, application, read_record
from elastic_ctr.serving.app import ServingProcess
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish
from ports import free_port

SLOTS = ("0", "1", "2", "7")
DIM = 9
PARTITIONS = 6
KEYS = 400

Floats = npt.NDArray[np.float32]


class Exported(NamedTuple):
    """One version: its embeddings, its dense network in numpy, and where Paddle's files are."""

    version: int
    keys: npt.NDArray[np.uint64]
    values: Floats
    dense: dict[str, Floats]
    folder: Path

    def probability(self, features: list[tuple[int, str]]) -> float:
        """The oracle: plain Python and float64."""
        table = dict(zip(self.keys.tolist(), self.values.astype(np.float64), strict=True))
        pooled = np.zeros((len(SLOTS), DIM))
        for feasign, slot in features:
            if slot in SLOTS and feasign in table and feasign != 0:
                pooled[SLOTS.index(slot)] += table[feasign]
        hidden = np.maximum(pooled.reshape(-1) @ self.dense["w1"] + self.dense["b1"], 0)
        logit = float((hidden @ self.dense["w2"] + self.dense["b2"])[0])
        return 1 / (1 + float(np.exp(-logit)))


EXPORT = """
import sys, zlib
import numpy as np
import paddle
from paddle import static

arrays, prefix, width = dict(np.load(sys.argv[1])), sys.argv[2], int(sys.argv[3])
paddle.enable_static()
program, start = static.Program(), static.Program()
with static.program_guard(program, start):
    pooled = static.data("pooled", [None, width], "float32")
    def parameter(name):
        return static.create_parameter(arrays[name].shape, "float32", name=name,
            default_initializer=paddle.nn.initializer.Assign(arrays[name]))
    hidden = paddle.nn.functional.relu(paddle.matmul(pooled, parameter("w1")) + parameter("b1"))
    answer = paddle.nn.functional.sigmoid(paddle.matmul(hidden, parameter("w2")) + parameter("b2"))
executor = static.Executor(paddle.CPUPlace())
executor.run(start)
static.save_inference_model(prefix, [pooled], [answer], executor, program=program)
"""


def export(folder: Path, version: int) -> Exported:
    """A small network as the trainer would export it, in a process of its own: Paddle stays out of this one."""
    random = np.random.default_rng(version)
    width = len(SLOTS) * DIM
    dense = {
        "w1": random.normal(0, 0.6, (width, 8)).astype(np.float32),
        "b1": random.normal(0, 0.3, 8).astype(np.float32),
        "w2": random.normal(0, 0.9, (8, 1)).astype(np.float32),
        "b2": random.normal(0, 0.3, 1).astype(np.float32),
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "dense.npz", **dense)
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(folder / "dense.npz"), str(folder / "network"), str(width)],
        cwd=folder,
        env={**os.environ, "GLOG_minloglevel": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    keys = np.array([*range(1, KEYS - 1), 17241709254077376921, 2**64 - 1], dtype=np.uint64)
    values = random.normal(0, 1, (len(keys), DIM)).astype(np.float32)
    return Exported(version, keys, values, dense, folder)


def features_of(number: int) -> list[tuple[int, str]]:
    """A line's features: some slots several times, some never, some keys unknown."""
    random = np.random.default_rng(number)
    features = [(int(random.integers(1, KEYS + 40)), slot) for slot in SLOTS for _ in range(int(random.integers(0, 4)))]
    return features or [(2**64 - 1, "7")]


def line_of(features: list[tuple[int, str]]) -> str:
    return " ".join(f"{feasign}:{slot}" for feasign, slot in features)


def lines_of(features: list[list[tuple[int, str]]]) -> dict[str, Any]:
    """A request of the Open Inference Protocol."""
    data = [line_of(each) for each in features]
    return {"inputs": [{"name": "line", "shape": [len(features)], "datatype": "BYTES", "data": data}]}


def of_columns(
    exported: Exported, columns: FeatureDocument, rows: Sequence[Mapping[str, str]], version: int
) -> tuple[Exported, list[float]]:
    """A version of as many columns as there are slots that knows each key of the rows, and the rows' probabilities."""
    transformer = columns.transformer()
    found = transformer.transform(cells_of([row_of(each, transformer.inputs) for each in rows], transformer.inputs))
    keys = np.unique(found.keys)
    values = np.random.default_rng(5).normal(0, 1, (len(keys), DIM)).astype(np.float32)
    known = exported._replace(version=version, keys=keys, values=values)
    slots = [SLOTS[at % len(SLOTS)] for at, n in enumerate(found.lengths.ravel()) for _ in range(n)]
    ends = np.cumsum(found.lengths.reshape(-1, len(SLOTS)).sum(axis=1)).tolist()
    pairs = list(zip(found.keys.tolist(), slots, strict=True))
    return known, [known.probability(pairs[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def put_version(
    store: FileStore,
    exported: Exported,
    *,
    off: float = 0.0,
    samples: int = 40,
    at: int | None = None,
    columns: FeatureDocument | None = None,
    rows: Sequence[tuple[str, float]] = (),
) -> VersionManifest:
    """Publish a version; `off` is added to the last published probability, `at` is its id if not its own. A model of columns has
    features, which are its slots, and rows with their probabilities as its samples.
    """
    version = at or exported.version
    described = exported.folder / FEATURES_FILE
    if columns is not None:
        described.write_bytes(columns.to_json())
    lines = []
    if not rows:
        found = [features_of(number) for number in range(samples)]
        rows = [(line_of(features), exported.probability(features)) for features in found]
    for number, (line, known) in enumerate(rows):
        probability = known + (off if number == len(rows) - 1 else 0.0)
        lines.append(
            json.dumps({"line": line, "show": 2, "click": number % 2, "live": probability, "published": probability})
        )
    sample = exported.folder / f"sample-{version}.jsonl"
    sample.write_text("".join(f"{line}\n" for line in lines))
    folder = layout.model_folder(version)
    manifest = VersionManifest(
        version=version,
        kind="base",
        base=version,
        parent=None,
        pass_id="20200401/00",
        event_time_max=int(time.time()) - 3600,
        created_at=time.time(),
        partitions=PARTITIONS,
        dim=DIM,
        keys=len(exported.keys),
        slots=SLOTS if columns is None else tuple(columns.transformer().slots.names),
        sparse_dim=None,
        network="slot-dnn",
        cube_files=(),
        model_files=(
            publish(store, exported.folder / "network.pdmodel", f"{folder}/network.pdmodel"),
            publish(store, exported.folder / "network.pdiparams", f"{folder}/network.pdiparams"),
            publish(store, sample, layout.sample_file(version), len(lines)),
            *([] if columns is None else [publish(store, described, f"{folder}/{FEATURES_FILE}")]),
        ),
        features=None if columns is None else columns.digest,
        samples=len(lines),
        auc_live=None,
        auc_published=None,
    )
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))
    return manifest


class Cube:
    """A real cube-server, and the parts it is given."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], port: int, admin_port: int) -> None:
        self.folder = folder
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self._admin = f"http://127.0.0.1:{admin_port}"

    def load(self, exported: Exported, at: int | None = None) -> None:
        version = at or exported.version
        parts = {}
        for partition in range(PARTITIONS):
            mine = exported.keys % np.uint64(PARTITIONS) == partition
            path = self.folder / f"{version}-{partition}.dict"
            build_full(
                [(exported.keys[mine], exported.values[mine])],
                path, PartIdentity(version, partition, PARTITIONS, DIM),
            )  # fmt: skip
            parts[partition] = [str(path)]
        self._order("load", {"version": version, "dim": DIM, "partitions": PARTITIONS, "parts": parts})

    def unload(self, version: int) -> None:
        self._order("unload", {"version": version, "partitions": None})

    def loaded(self) -> dict[str, Any]:
        loaded: dict[str, Any] = httpx.get(f"{self._admin}/loaded", trust_env=False).json()
        return loaded

    def _order(self, verb: str, body: dict[str, Any]) -> None:
        answer = httpx.post(f"{self._admin}/{verb}", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text

    def holders(self) -> dict[str, Holder]:
        return {self.address: Holder(partitions=tuple(range(PARTITIONS)))}


def cube_server(folder: Path) -> Iterator[Cube]:
    process = subprocess.Popen([sys.executable, str(PROCESS), "{}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port, admin_port = map(int, process.stdout.readline().split())
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{admin_port}/readyz", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Cube(folder, process, port, admin_port)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


class Transfer:
    """The release document over HTTP, as transfer serves it; the test says what is in it."""

    def __init__(self) -> None:
        self.document: ReleaseDocument | None = None
        self.reports: list[ReaderReport] = []
        self._news = asyncio.Condition()
        routes = [Route("/release", self._release), Route("/readers", self._readers, methods=["POST"])]
        self._server = HttpServer(application(routes), "127.0.0.1", 0)
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> "Transfer":
        await self._server.start()
        return self

    async def stop(self) -> None:
        async with self._news:
            self._closing = True
            self._news.notify_all()
        await self._server.stop()

    _closing = False

    async def publish(self, **fields: Any) -> ReleaseDocument:
        before = self.document
        document = ReleaseDocument(
            **{
                "generation": 1,
                "revision": 0 if before is None else before.revision + 1,
                "placement": Placement(shards=1),
                **fields,
            }
        )
        async with self._news:
            self.document = document
            self._news.notify_all()
        return document

    async def _release(self, request: Request) -> Response:
        after = request.query_params.get("after")
        wait = float(request.query_params.get("wait", "0"))

        def newer() -> bool:
            return self._closing or (
                self.document is not None and (after is None or self.document.revision > int(after))
            )

        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(newer), max(wait, 0.01))
            except asyncio.TimeoutError:
                return Response(status_code=304)
        if self.document is None:
            raise RequestRefused(503, "no document yet")
        return Response(self.document.to_json(), media_type="application/json")

    async def _readers(self, request: Request) -> Response:
        self.reports.append(await read_record(request, ReaderReport))
        return Response(status_code=204)


class Running:
    """A serving process of this test, and a client of its doors."""

    def __init__(self, process: ServingProcess, client: httpx.AsyncClient, task: "asyncio.Task[None]") -> None:
        self.process = process
        self.port = process.config.serving.port
        self.grpc_port = process.config.serving.grpc_port
        self.task = task
        self._client = client

    async def infer(self, features: list[list[tuple[int, str]]]) -> httpx.Response:
        instances = [
            {"slots": [{"slot_name": slot, "feasigns": [feasign]} for feasign, slot in each]} for each in features
        ]
        return await self._client.post(
            f"http://127.0.0.1:{self.port}/ElasticCTRPredictionService/inference", json={"instances": instances}
        )

    async def until_refused(self, features: list[list[tuple[int, str]]], error: str) -> httpx.Response:
        """Ask until the refusal says so: a worker learns a little after its parent where things stand."""
        for _ in range(600):
            answer = await self.infer(features)
            if answer.status_code != 200 and answer.json()["error"] == error:
                return answer
            await asyncio.sleep(0.1)
        raise AssertionError(f"it never said {error!r} but {answer.text!r}")

    async def lines(self, features: list[list[tuple[int, str]]]) -> httpx.Response:
        return await self.hot("POST", "/v2/models/ctr/infer", json=lines_of(features))

    async def hot(self, method: str, path: str, **what: Any) -> httpx.Response:
        return await self._client.request(method, f"http://127.0.0.1:{self.port}{path}", **what)

    async def admin(self, path: str) -> httpx.Response:
        return await self._client.get(f"http://127.0.0.1:{self.process.config.serving.admin_port}{path}")

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(6000):
            if condition():
                return
            assert not self.task.done(), "serving ended"
            await asyncio.sleep(0.025)
        raise AssertionError(f"it never came to that: {self.process.status()}")

    async def until_version(self, version: int) -> None:
        await self.until(lambda: self.process.rollout.serving == version)


def config_of(store: FileStore, transfer: Transfer, scratch: Path, **what: Any) -> ServingFile:
    """With ports of its own and patient lookups; `what` are settings of serving, or of the whole file."""
    of_file = {name: what.pop(name) for name in ("grace_seconds",) if name in what}
    ports = {"port": free_port(), "admin_port": free_port(), "grpc_port": 0}
    return ServingFile(
        model=Model(),
        store=StoreConfig(url=store.url),
        serving=ServingConfig(**{**ports, "scratch_dir": str(scratch), **what}),
        cube=CubePodConfig(lookup_timeout_ms=5000),
        transfer_address=transfer.url.removeprefix("http://"),
        **of_file,
    )


@asynccontextmanager
async def serving(store: FileStore, transfer: Transfer, scratch: Path, **what: Any) -> AsyncIterator[Running]:
    process = ServingProcess(config_of(store, transfer, scratch, **what), store, "serving-0")
    stop = asyncio.Event()
    task = asyncio.create_task(process.run(stop))
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            yield Running(process, client, task)
    finally:
        stop.set()
        await task


FIRST, SECOND = 1001, 1002
TOLERANCE = 1e-5
FEATURES = [features_of(number) for number in range(60)]


# An export takes 1.4 CPU seconds, most of them for the import of Paddle, and one worker of pytest runs several files that need both.
_exported: dict[int, Exported] = {}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Exported]:
    """Of each module its own folders, to which tests add files."""
    folder = tmp_path_factory.mktemp("exports")
    found = {}
    for version in (FIRST, SECOND):
        if version not in _exported:
            _exported[version] = export(tmp_path_factory.mktemp("exported"), version)
        copy = shutil.copytree(_exported[version].folder, folder / str(version))
        found[version] = _exported[version]._replace(folder=copy)
    return found


@pytest.fixture(scope="module")
def started_cube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cube]:
    yield from cube_server(tmp_path_factory.mktemp("dict"))


@pytest.fixture
def cube(started_cube: Cube, exports: dict[int, Exported]) -> Cube:
    """Holds both versions, whatever an earlier test has taken from it."""
    for version in (FIRST, SECOND):
        if str(version) not in started_cube.loaded()["versions"]:
            started_cube.load(exports[version])
    return started_cube


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
async def transfer() -> AsyncIterator[Transfer]:
    transfer = await Transfer().start()
    yield transfer
    await transfer.stop()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def expected(exported: Exported, features: list[list[tuple[int, str]]] = FEATURES) -> Any:
    return pytest.approx([exported.probability(each) for each in features], abs=TOLERANCE)


def probabilities(answer: Any) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [each["prob1"] for each in answer.json()["predictions"]]
