"""All doors of one serving process, as their clients see them: the same answers, of one version."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio

from contract import serving_world
from contract.serving_world import (
    FEATURES,
    FIRST,
    SECOND,
    Cube,
    Exported,
    Running,
    Transfer,
    expected,
    line_of,
    probabilities,
    put_version,
    serving,
)
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.client import Prediction, PredictionRefused, ServingClient, ServingUnavailable
from elastic_ctr.serving.frontends.grpc import SERVICE
from elastic_ctr.store.backends import FileStore
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

SINGLE = ("grpc.enable_http_proxy", 0)


def instances() -> list[dict[str, list[int]]]:
    found = []
    for features in FEATURES:
        slots: dict[str, list[int]] = {}
        for feasign, slot in features:
            slots.setdefault(slot, []).append(feasign)
        found.append(slots)
    return found


def by_tensors(running: Running) -> Prediction:
    with ServingClient(f"127.0.0.1:{running.port}") as client:
        return client.predict(*client.encode(instances()))


async def by_grpc(running: Running) -> "messages.ModelInferResponse":
    tensor = {
        "name": "line",
        "datatype": "BYTES",
        "shape": [len(FEATURES)],
        "contents": messages.InferTensorContents(bytes_contents=[line_of(each).encode() for each in FEATURES]),
    }
    request = messages.ModelInferRequest(model_name="ctr", inputs=[tensor])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc_port}", options=[SINGLE]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        return messages.ModelInferResponse.FromString(await call(request.SerializeToString(), timeout=60))


async def test_every_door_gives_the_same_answer(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch, workers=2, grpc_port=free_port()) as running:
        await running.until_version(FIRST)

        http = await running.infer(FEATURES)
        rpc = await by_grpc(running)
        tensors = await asyncio.to_thread(by_tensors, running)
        await running.until(
            lambda: {"grpc", "open_inference"} <= {door for door, _ in running.process.workers.counted().requests}
        )
        metrics = (await running.admin("/metrics")).text

    assert probabilities(http) == expected(exports[FIRST])
    assert list(rpc.outputs[0].contents.fp32_contents) == expected(exports[FIRST])
    assert tensors.probabilities.tolist() == expected(exports[FIRST])
    assert rpc.model_version == str(FIRST)
    assert tensors.version == FIRST
    assert 'elastic_ctr_serving_requests_total{code="200",endpoint="open_inference"}' in metrics
    assert 'elastic_ctr_serving_requests_total{code="200",endpoint="grpc"}' in metrics


async def test_a_client_that_asks_all_the_time_sees_a_new_version_and_no_failure(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch, grpc_port=free_port()) as running:
        await running.until_version(FIRST)
        seen: list[Prediction] = []

        def ask() -> None:
            with ServingClient(f"127.0.0.1:{running.port}") as client:
                request = client.encode(instances())
                while not seen or seen[-1].version != SECOND:
                    seen.append(client.predict(*request))

        asking = asyncio.create_task(asyncio.to_thread(ask))
        await running.until(lambda: len(seen) > 100)
        holders = {version: cube.holders() for version in (FIRST, SECOND)}
        await transfer.publish(live=SECOND, previous=FIRST, wanted=(FIRST, SECOND), holders=holders)
        await asking

    versions = [each.version for each in seen]
    assert sorted(versions) == versions
    assert set(versions) == {FIRST, SECOND}
    for each in seen:
        assert each.probabilities.tolist() == expected(exports[each.version])


async def test_a_closed_door_is_closed(store: FileStore, transfer: Transfer, scratch: Path) -> None:
    await transfer.publish()
    async with serving(store, transfer, scratch) as running:
        await running.until(lambda: all(each.listening for each in running.process.workers.in_order()))
        await running.until(lambda: bool(running.process.workers.in_order()))
        status = (await running.admin("/status")).json()
        refused = await asyncio.to_thread(refusal, running.port)

    assert status["grpcAddress"] is None
    assert refused.status == 503
    assert str(refused).startswith("no version is live yet")


def refusal(port: int | None) -> PredictionRefused:
    """Ask until a worker listens."""
    while (refused := asked(port)) is None:
        pass
    return refused


def asked(port: int | None) -> PredictionRefused | None:
    try:
        with ServingClient(f"127.0.0.1:{port}") as client:
            client.slots()
    except ServingUnavailable:
        return None
    except PredictionRefused as refused:
        return refused
    raise AssertionError("there was a version")
