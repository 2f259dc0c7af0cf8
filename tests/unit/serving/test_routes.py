import asyncio
import gc
import json
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.cube.client.reader import CubeUnavailable
from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.http_connection import JSON_TYPE
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.fallback_http import Request
from elastic_ctr.serving.routes import SOURCE_PATH, Routes
from elastic_ctr.serving.worker_counters import Counters

INFER = "/v2/models/ctr/infer"


class Cube:
    down = False

    async def lookup(self, _version: int, keys: Keys, /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        if self.down:
            raise CubeUnavailable("nobody answers")
        return np.full((len(keys), 1), 0.125, np.float32), np.zeros(len(keys), np.bool_)


class Sum:
    row_seconds = 0.0
    broken = False

    def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
        if self.broken:
            raise RuntimeError("/secret/path is broken")
        answer: Floats = pooled.sum(axis=1)
        return answer

    def close(self) -> None: ...


class SubmittedBatch:
    def __init__(self, service: Routes, batcher: Batcher, counters: Counters, cube: Cube, network: Sum) -> None:
        self.service = service
        self.batcher = batcher
        self.counters = counters
        self.cube = cube
        self.network = network

    async def ask(self, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer, _ = await self.request(Request(method, path, sent))
        return status, json.loads(answer)

    async def request(self, request: Request) -> tuple[int, bytes, bytes]:
        """Status, body and headers."""
        answered: asyncio.Future[tuple[int, bytes, bytes]] = asyncio.get_running_loop().create_future()

        def reply(status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None:
            answered.set_result((status, body, headers))

        self.service.handle(request, reply)
        return await answered


@asynccontextmanager
async def service(*, live: bool = True, max_instances: int = 100) -> AsyncIterator[SubmittedBatch]:
    async def nothing() -> None:
        return None

    counters, cube, network = Counters(), Cube(), Sum()
    with InlineExecutor("paddle") as paddle, ThreadPoolExecutor(1) as parser:
        batcher = Batcher(paddle, nothing, counters)
        task = asyncio.create_task(batcher.run())
        if live:
            batcher.add(ModelVersion(7, Schema(SlotList(("0", "1"))), None, 1, network, cube))
            batcher.pin(7)
        made = Routes(batcher, counters, parser, model_name="ctr", version="1.2", max_instances=max_instances)
        try:
            yield SubmittedBatch(made, batcher, counters, cube, network)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def instances(count: int) -> dict[str, Any]:
    return {"instances": [{"slots": [{"slot_name": "0", "feasigns": [5, 6]}]}] * count}


async def test_the_sources_path_answers_with_the_sources_json() -> None:
    async with service() as it:
        answer = await it.ask("POST", SOURCE_PATH, instances(1))

    assert answer == (200, {"predictions": [{"prob0": 0.75, "prob1": 0.25}], "err_code": 0})
    assert it.counters.requests == {("elastic_ctr", 200): 1}


async def test_a_large_body_is_answered_as_a_small_one() -> None:
    async with service(max_instances=10_000) as it:
        status, answer = await it.ask("POST", SOURCE_PATH, instances(10_000))
        wrong = await it.ask("POST", SOURCE_PATH, b" " * 200_000)

    assert status == 200
    assert len(answer["predictions"]) == 10_000
    assert wrong[0] == 400


async def test_more_instances_than_are_allowed_are_refused_with_413() -> None:
    async with service(max_instances=10_000) as it:
        status, answer = await it.ask("POST", SOURCE_PATH, {"instances": [{"slots": []}] * 10_001})

    assert status == 413
    assert answer["err_code"] == -1
    assert "10001 instances; 10000 are allowed" in answer["err_msg"]


async def test_open_inference_answers_with_the_version() -> None:
    tensor = {"name": "line", "shape": [1], "datatype": "BYTES", "data": ["5:0 6:1"]}
    async with service() as it:
        status, answer = await it.ask("POST", INFER, {"inputs": [tensor]})

    assert status == 200
    assert answer["model_version"] == "7"
    assert [each["data"] for each in answer["outputs"]] == [[0.25], [7]]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", SOURCE_PATH, 405),
        ("DELETE", INFER, 405),
        ("GET", "/docs", 404),
        ("GET", "/v2/models/x", 404),
        ("PUT", "/v2", 405),
    ],
)
async def test_other_paths_and_methods_are_refused_in_a_sentence(method: str, path: str, status: int) -> None:
    async with service() as it:
        answered, answer = await it.ask(method, path)

    assert answered == status
    assert answer["error"]


async def test_a_browser_at_the_address_sees_the_paths_and_the_live_version() -> None:
    async with service() as it:
        status, body, headers = await it.request(Request("GET", "/", b""))

    assert (status, headers) == (200, b"content-type: text/plain; charset=utf-8\r\n")
    assert b"version 7 is live" in body
    assert b"POST /v1/models/ctr:predict" in body.splitlines()


async def test_before_the_first_version_predictions_and_readiness_are_503_and_liveness_is_not() -> None:
    async with service(live=False) as it:
        it.batcher.stage = "training hour 1 of 4"
        answers = [await it.ask("POST", path, b"nonsense") for path in (SOURCE_PATH, INFER)]
        ready, live = await it.ask("GET", "/v2/health/ready"), await it.ask("GET", "/v2/health/live")
        metadata = await it.ask("GET", "/v2/models/ctr")

    assert [status for status, _ in answers] == [503, 503]
    assert {answer["error"] for _, answer in answers} == {"no version is live yet: training hour 1 of 4"}
    assert (ready[0], live[0], metadata[0]) == (503, 200, 200)


async def test_an_unreachable_cube_is_503_and_a_broken_network_500_without_details() -> None:
    async with service() as it:
        it.cube.down = True
        unreachable = await it.ask("POST", SOURCE_PATH, instances(1))
        it.cube.down = False
        it.network.broken = True
        broken = await it.ask("POST", SOURCE_PATH, instances(1))
        it.network.broken = False
        after = await it.ask("POST", SOURCE_PATH, instances(1))

    assert unreachable[0] == 503
    assert "nobody answers" in unreachable[1]["error"]
    assert broken[0] == 500
    assert "secret" not in json.dumps(broken[1])
    assert after[0] == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
async def test_a_compressed_body_is_read_and_one_that_unpacks_to_too_much_is_refused(encoding: str) -> None:
    def packed(data: bytes) -> bytes:
        packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15, "raw": -15}[encoding])
        return packer.compress(data) + packer.flush()

    def request(body: bytes) -> Request:
        return Request("POST", SOURCE_PATH, body, None, "gzip" if encoding == "gzip" else "deflate")

    small = json.dumps(instances(1)).encode()
    async with service() as it:
        answered, _, _ = await it.request(request(packed(small)))
        cut, _, _ = await it.request(request(packed(small)[:-5]))
        none, _, _ = await it.request(request(b""))
        bomb, _, _ = await it.request(request(packed(bytes(65 << 20))))
        dense, sentence, _ = await it.request(request(packed(bytes(4 << 20))))

    assert (answered, cut, none, bomb, dense) == (200, 400, 400, 413, 413)
    assert b"when it is unpacked (100 times its packed size)" in sentence


async def test_paths_of_the_live_version_are_those_of_the_model_and_others_are_refused() -> None:
    tensor = {"name": "0", "shape": [1], "datatype": "UINT64", "data": [5]}
    model = "/v2/models/ctr"
    async with service() as it:
        for asked, status in (("7", 200), ("8", 404), ("", 404), ("x/y", 404)):
            found = [
                await it.ask("GET", f"{model}/versions/{asked}"),
                await it.ask("GET", f"{model}/versions/{asked}/ready"),
                await it.ask("POST", f"{model}/versions/{asked}/infer", {"inputs": [tensor]}),
            ]
            assert [each[0] for each in found] == [status] * 3, asked
            assert status == 200 or all(each[1]["error"] for each in found)
        ready = await it.ask("GET", f"{model}/ready")

    assert ready == (200, {"name": "ctr", "ready": True})


async def test_binary_tensors_are_answered_with_binary_tensors() -> None:
    head = json.dumps(
        {
            "inputs": [{"name": "0", "shape": [2], "datatype": "UINT64", "parameters": {"binary_data_size": 16}}],
            "outputs": [{"name": "probability", "parameters": {"binary_data": True}}],
        }
    ).encode()
    body = head + np.array([5, 6], "<u8").tobytes()
    async with service() as it:
        status, answer, headers = await it.request(Request("POST", INFER, body, len(head)))

    length = int(dict(line.split(b": ") for line in headers.splitlines())[b"inference-header-content-length"])
    assert status == 200
    assert np.frombuffer(answer[length:], "<f4").tolist() == [0.125, 0.125]
    assert json.loads(answer[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}


async def test_a_large_body_of_many_small_values_is_refused_by_every_path() -> None:
    inputs, rows = (b'{"%s":[' % name + b"{}," * (2 << 20) + b"{}]}" for name in (b"inputs", b"instances"))
    async with service() as it:
        refused = [
            await it.ask("POST", path, body)
            for path, body in ((INFER, inputs), (SOURCE_PATH, rows), ("/v1/models/ctr:explain", rows))
        ]

    assert [status for status, _ in refused] == [413] * 3
    assert all("values, names and brackets; 262144 are the most" in answer["error"] for _, answer in refused)


@pytest.mark.parametrize("path", [INFER, SOURCE_PATH])
async def test_the_values_of_a_refused_body_are_given_back_before_the_collector_comes(path: str) -> None:
    # They once stood in a cycle with their error: hundreds of large bodies waited for the collector, which then held up all callers.
    name = "inputs" if path == INFER else "instances"
    body = b'{"%s":[' % name.encode() + b"[]," * 60_000 + b"[]]}"
    async with service() as asked:
        await asked.ask("POST", path, body)
        gc.collect()
        gc.disable()
        try:
            status, _ = await asked.ask("POST", path, body)
            left = gc.collect()
        finally:
            gc.enable()

    assert status in {400, 413}
    assert left < 1000
