"""Requests with a shared part over the sockets of a serving process, with real networks and a real cube-server: the answers of full rows."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest

from contract import serving_world
from contract.serving_world import DIM, FIRST, SLOTS, Cube, Exported, Running, Transfer, put_version, serving
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.client import ServingClient
from elastic_ctr.serving.frontends.grpc import SERVICE
from elastic_ctr.store.backends import FileStore
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube = serving_world.exports, serving_world.started_cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

OWN = """
import paddle
from elastic_ctr.network import tower

def logit(inputs, settings):
    product = paddle.prod(paddle.reshape(inputs.pooled, [-1, inputs.slots, inputs.dim]), axis=1)
    return paddle.sum(product, axis=1, keepdim=True) + tower(inputs.pooled, inputs, [16, 8])
"""
EXPORT = """
import sys
import zlib
import numpy as np
import paddle
from paddle import static
from elastic_ctr.config.model import Model
from elastic_ctr.training.model.networks.by_name import logit_of

slots, dim = int(sys.argv[1]), int(sys.argv[2])
paddle.enable_static()
paddle.seed(3)
for folder in sys.argv[3:]:
    with open(folder + "/own.py") as file:
        source = file.read()
    model = Model.model_validate({"embeddingDim": dim, **({"network": {"source": source}} if source else {})})
    program, start = static.Program(), static.Program()
    with static.program_guard(program, start):
        pooled = static.data("pooled", [None, slots * dim], "float32")
        answer = paddle.nn.functional.sigmoid(logit_of(model, pooled, None))
    executor = static.Executor(paddle.CPUPlace())
    executor.run(start)
    static.save_inference_model(folder + "/network", [pooled], [answer], executor, program=program)
"""
COLUMNS = FeatureDocument(
    features=Features.model_validate(
        {
            "0": {"type": "categorical"},
            "1": {"type": "categorical", "separator": "|"},
            "2": {"type": "bucketized", "boundaries": [3, 9], "column": "price"},
            "7": {"type": "crossed", "of": ["0", "1"]},
        }
    )
)
PER_DOOR = 25
"""Random requests."""


@pytest.fixture(scope="module")
def networks(exports: dict[int, Exported]) -> dict[str, Exported]:
    """The default network, and one of the user's own."""
    known = exports[FIRST]
    folders = {name: known.folder.parent / name for name in ("default", "own")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "own.py").write_text(OWN if name == "own" else "")
    command = [sys.executable, "-c", EXPORT, str(len(SLOTS)), str(DIM), *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=known.folder)
    assert done.returncode == 0, done.stderr[-2000:]
    # Small values, for which the answers of a network with its first weights differ from 0 and 1.
    return {
        name: known._replace(version=3000 + number, folder=folder, values=known.values / 4)
        for number, (name, folder) in enumerate(folders.items())
    }


def column_requests(seed: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Shared columns and candidates, of which some values are missing and some columns absent."""
    dice = np.random.default_rng(seed)
    names = ("0", "1", "price")

    def value(name: str) -> Any:
        if dice.random() < 0.2:
            return None
        number = int(dice.integers(0, 12))
        return number if name == "price" else ["a", "b", str(number)][: number % 4] if name == "1" else f"v{number}"

    def row(columns: list[str]) -> dict[str, Any]:
        return {name: value(name) for name in columns if dice.random() < 0.8}

    found = []
    for _ in range(PER_DOOR):
        in_shared = dice.random(3) < 0.5
        shared = [name for name, is_in in zip(names, in_shared, strict=True) if is_in]
        own = [name for name in names if name not in shared]
        found.append((row(shared), [row(own) for _ in range(dice.integers(1, 30))]))
    return found


def tensors_of(shared: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A tensor for each column of text, in one row or in as many as there are candidates."""
    inputs = []
    for name in ("0", "1"):
        given = [shared] if name in shared else rows
        values = [row.get(name) or "" for row in given]
        texts = ["|".join(each) if isinstance(each, list) else each for each in values]
        inputs.append({"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts})
    return inputs


async def by_grpc(port: int, inputs: list[dict[str, Any]], **parameters: Any) -> messages.ModelInferResponse:
    tensors = []
    for each in inputs:
        if each["datatype"] == "BYTES":
            contents = messages.InferTensorContents(bytes_contents=[text.encode() for text in each["data"]])
        else:
            contents = messages.InferTensorContents(uint64_contents=each["data"]) if each["datatype"] == "UINT64" else messages.InferTensorContents(int_contents=each["data"])  # fmt: skip
        tensors.append({**{name: each[name] for name in ("name", "datatype", "shape")}, "contents": contents})
    given = {
        name: messages.InferParameter(**{"bool_param" if isinstance(value, bool) else "int64_param": value})
        for name, value in parameters.items()
    }
    request = messages.ModelInferRequest(model_name="ctr", inputs=tensors, parameters=given)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        return messages.ModelInferResponse.FromString(await call(request.SerializeToString(), timeout=60))


async def json_of(running: Running, path: str, document: Any) -> Any:
    answer: httpx.Response = await running.hot("POST", path, json=document)
    assert answer.status_code == 200, answer.text
    return answer.json()


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("network", ["default", "own"])
async def test_every_door_answers_candidates_of_columns_as_full_rows(
    network: str, networks: dict[str, Exported], started_cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    requests = column_requests(len(network))
    transformer = COLUMNS.transformer()
    full = [[{**shared, **row} for row in rows] for shared, rows in requests]
    keys = np.unique(
        np.concatenate(
            [
                transformer.transform(
                    cells_of([row_of(row, transformer.inputs) for row in rows], transformer.inputs)
                ).keys
                for rows in full
            ]
        )
    )[::2]
    values = np.random.default_rng(5).normal(0, 0.25, (len(keys), DIM)).astype(np.float32)
    known = networks[network]._replace(keys=keys, values=values)
    started_cube.load(known)
    put_version(store, known, columns=COLUMNS, samples=0)
    await transfer.publish(live=known.version, wanted=(known.version,), holders={known.version: started_cube.holders()})
    async with serving(store, transfer, scratch, workers=1, grpc_port=free_port()) as running:
        await running.until_version(known.version)

        def by_client() -> list[list[float]]:
            with ServingClient(f"127.0.0.1:{running.port}") as client:
                return [client.predict_candidates(*each).probabilities.tolist() for each in requests]

        answers = await asyncio.to_thread(by_client)
        seen = set()
        for (shared, rows), candidates, found in zip(requests, full, answers, strict=True):
            wanted = (await json_of(running, "/v1/models/ctr:predict", {"instances": candidates}))["predictions"]
            near(found, wanted)
            seen |= {round(each, 6) for each in wanted}
            best = await json_of(running, "/v1/models/ctr:predict", {"shared": shared, "candidates": rows, "top": 3})
            near(best["predictions"], sorted(wanted, reverse=True)[:3])
            near(best["predictions"], [wanted[place] for place in best["places"]])
            inputs = tensors_of(shared, rows)
            texts = [{name: each for name, each in row.items() if name != "price"} for row in candidates]
            if max(each["shape"][0] for each in inputs) == len(rows):
                wanted = (await json_of(running, "/v1/models/ctr:predict", {"instances": texts}))["predictions"]
                near((await json_of(running, "/v2/models/ctr/infer", {"inputs": inputs}))["outputs"][0]["data"], wanted)
                near((await by_grpc(running.grpc_port, inputs)).outputs[0].contents.fp32_contents, wanted)
        refused = await running.hot(
            "POST", "/v1/models/ctr:predict", json={"shared": {"0": 1}, "candidates": [{"0": 2}]}
        )
        explained = await json_of(
            running, "/v1/models/ctr:explain", {"shared": {"0": "v1"}, "candidates": [{"1": "a"}]}
        )
        alone = await json_of(running, "/v1/models/ctr:explain", {"instances": [{"0": "v1", "1": "a"}]})

    assert len(seen) > 30
    assert (refused.status_code, refused.json()["error"].partition(";")[0]) == (
        400,
        "candidates[0] has the column '0', which the shared part has, too",
    )
    assert explained == alone


@pytest.mark.parametrize("network", ["default", "own"])
async def test_every_door_answers_candidates_of_feasigns_as_full_instances(
    network: str, networks: dict[str, Exported], started_cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    dice = np.random.default_rng(len(network))
    known = networks[network]
    known = known._replace(version=known.version + 10)
    started_cube.load(known)
    put_version(store, known, samples=0)
    await transfer.publish(live=known.version, wanted=(known.version,), holders={known.version: started_cube.holders()})

    def row(slots: list[str]) -> dict[str, list[int]]:
        return {name: dice.integers(0, 450, dice.integers(0, 4)).tolist() for name in slots if dice.random() < 0.8}

    def slots_of(given: dict[str, list[int]]) -> dict[str, Any]:
        return {"slots": [{"slot_name": name, "feasigns": each} for name, each in sorted(given.items())]}

    async with serving(store, transfer, scratch, workers=1, grpc_port=free_port()) as running:
        await running.until_version(known.version)
        for _ in range(PER_DOOR):
            of_user = dice.random(len(SLOTS)) < 0.5
            shared = row([name for name, is_in in zip(SLOTS, of_user, strict=True) if is_in])
            rows = [row([name for name, is_in in zip(SLOTS, of_user, strict=True) if not is_in]) for _ in range(9)]
            instances = [slots_of({**shared, **each}) for each in rows]
            path = "/ElasticCTRPredictionService/inference"
            wanted = [each["prob1"] for each in (await json_of(running, path, {"instances": instances}))["predictions"]]

            candidates = {"shared": slots_of(shared), "candidates": list(map(slots_of, rows))}
            found = await json_of(running, path, candidates)
            best = await json_of(running, path, {**candidates, "top": 2})

            def by_client(given: list[dict[str, list[int]]]) -> Any:
                with ServingClient(f"127.0.0.1:{running.port}") as client:
                    return client.predict(*client.encode(given), first_is_shared=True).probabilities

            near([each["prob1"] for each in found["predictions"]], wanted)
            near([each["prob1"] for each in best["predictions"]], [wanted[place] for place in best["places"]])
            near(await asyncio.to_thread(by_client, [shared, *rows]), wanted)
            inputs = []
            for name in SLOTS:
                given = [shared] if name in shared else rows
                counts = [len(each.get(name, ())) for each in given]
                feasigns = [key for each in given for key in each.get(name, ())]
                inputs.append({"name": name, "datatype": "UINT64", "shape": [len(feasigns)], "data": feasigns})
                inputs.append({"name": f"{name}/lengths", "datatype": "INT32", "shape": [len(counts)], "data": counts})
            if len(shared) < len(SLOTS):
                near((await json_of(running, "/v2/models/ctr/infer", {"inputs": inputs}))["outputs"][0]["data"], wanted)
                answer = await by_grpc(running.grpc_port, inputs, top=4)
                chosen = list(answer.outputs[2].contents.uint_contents)
                assert [each.name for each in answer.outputs] == ["probability", "version", "places"]
                near(answer.outputs[0].contents.fp32_contents, [wanted[place] for place in chosen])
                assert len(chosen) == 4
