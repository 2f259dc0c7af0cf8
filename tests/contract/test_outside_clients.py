"""Clients that others wrote, with their defaults, against one real serving process: they get what our own requests get."""

import asyncio
import base64
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from contract import serving_world
from contract.serving_world import (
    FEATURES,
    FIRST,
    Cube,
    Exported,
    Transfer,
    expected,
    line_of,
    probabilities,
    put_version,
    serving,
)
from elastic_ctr.serving.frontends.grpc import HEALTH, SERVICE
from elastic_ctr.store.backends import FileStore
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube

ROOT = Path(__file__).parents[2]
LINES = [line_of(each) for each in FEATURES]
BODY = {"inputs": [{"name": "line", "shape": [len(LINES)], "datatype": "BYTES", "data": LINES}]}
SLOTS = {"instances": [{"slots": [{"slot_name": s, "feasigns": [f]} for f, s in each]} for each in FEATURES]}
INFER = "/v2/models/ctr/infer"


class Doors(NamedTuple):
    http: str
    grpc: str
    ours: list[float]
    folder: Path


@pytest.fixture(scope="module")
def doors(
    exports: dict[int, Exported], started_cube: Cube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Doors]:
    """Serving, started once, with the answer of a request of our own."""
    folder = tmp_path_factory.mktemp("doors")
    told: queue.Queue[tuple[str, str] | BaseException] = queue.Queue()
    ends = threading.Event()

    async def stand() -> None:
        store = FileStore(folder / "store")
        put_version(store, exports[FIRST])
        started_cube.load(exports[FIRST])
        transfer = await Transfer().start()
        await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: started_cube.holders()})
        async with serving(store, transfer, folder / "scratch", grpc_port=free_port()) as running:
            await running.until_version(FIRST)
            await running.until(lambda: all(each.listening for each in running.process.workers.in_order()))
            told.put((f"127.0.0.1:{running.port}", f"127.0.0.1:{running.grpc_port}"))
            await asyncio.to_thread(ends.wait)
        await transfer.stop()

    def run() -> None:
        try:
            asyncio.run(stand())
        except BaseException as failed:
            told.put(failed)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        stands = told.get(timeout=300)
        assert not isinstance(stands, BaseException), stands
        source = f"http://{stands[0]}/ElasticCTRPredictionService/inference"
        ours = probabilities(httpx.post(source, json=SLOTS, trust_env=False))
        assert ours == expected(exports[FIRST])
        yield Doors(*stands, ours, folder)
    finally:
        ends.set()
        thread.join()
        started_cube.unload(FIRST)


def answered(ours: list[float]) -> Any:
    """JSON and text may round a float32."""
    return pytest.approx(ours, rel=1e-6)


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, input=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: tools/get {name}")
    return found


def python_of(name: str) -> str:
    """The interpreter that has a client's package; its tree of dependencies is none of ours."""
    python = ROOT / "build" / "tools" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs {name}: tools/get {name}")
    return str(python)


TRITON = """
import json, sys
import numpy as np
import tritonclient.{kind} as triton

address, lines = sys.argv[1], json.loads(sys.argv[2])
client = triton.InferenceServerClient(address)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("ctr")
given = triton.InferInput("line", [len(lines)], "BYTES")
given.set_data_from_numpy(np.array([line.encode() for line in lines], dtype=object))
answer = client.infer("ctr", [given])
print(json.dumps(answer.as_numpy("probability").tolist()))
"""


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_with_its_defaults(doors: Doors, kind: str) -> None:
    address = doors.http if kind == "http" else doors.grpc
    answer = run(python_of("tritonclient"), "-c", TRITON.format(kind=kind), address, json.dumps(LINES))

    assert json.loads(answer) == answered(doors.ours)


KSERVE = """
import asyncio, json, sys
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

kind, address, lines = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
given = InferInput("line", [len(lines)], "BYTES", data=lines)

async def rest():
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    base = f"http://{address}"
    assert await client.is_server_ready(base) and await client.is_model_ready(base, "ctr")
    return await client.infer(base, InferRequest(model_name="ctr", infer_inputs=[given]), model_name="ctr")

async def grpc():
    client = InferenceGRPCClient(address)
    assert await client.is_server_ready() and await client.is_model_ready("ctr")
    return await client.infer(InferRequest(model_name="ctr", infer_inputs=[given]))

answer = asyncio.run({"rest": rest, "grpc": grpc}[kind]())
print(json.dumps([float(each) for each in answer.outputs[0].data]))
"""


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_the_sdk_of_kserve(doors: Doors, kind: str) -> None:
    address = doors.http if kind == "rest" else doors.grpc
    answer = run(python_of("kserve"), "-c", KSERVE, kind, address, json.dumps(LINES))

    assert json.loads(answer.splitlines()[-1]) == answered(doors.ours)


JAVA = """
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;

public class Ask {
    public static void main(String[] given) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int i = 0; i < 3; i++) {
            var request = HttpRequest.newBuilder(URI.create(given[0]))
                .POST(HttpRequest.BodyPublishers.ofFile(Path.of(given[1]))).build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) throw new Exception(answer.statusCode() + " " + answer.body());
            System.out.println(answer.body());
        }
    }
}
"""


def outputs(body: str) -> list[float]:
    values: list[float] = json.loads(body)["outputs"][0]["data"]
    return values


def test_the_http_client_of_java_with_its_defaults(doors: Doors) -> None:
    """It offers h2c with every request."""
    source, body = doors.folder / "Ask.java", doors.folder / "body.json"
    source.write_text(JAVA)
    body.write_text(json.dumps(BODY))

    answers = run(program("java"), str(source), f"http://{doors.http}{INFER}", str(body)).splitlines()

    assert [outputs(answer) for answer in answers] == [answered(doors.ours)] * 3


def test_curl_that_offers_http_2(doors: Doors) -> None:
    url = f"http://{doors.http}{INFER}"
    answer = run(program("curl"), "-sS", "--noproxy", "*", "--fail", "--http2", "--data-binary", "@-", url, given=json.dumps(BODY))  # fmt: skip

    assert outputs(answer) == answered(doors.ours)


def test_ab_with_connections_that_are_kept(doors: Doors) -> None:
    """It speaks HTTP/1.0, and waits for the end of the connection where it is not told that it is kept."""
    body = doors.folder / "ab.json"
    body.write_text(json.dumps(BODY))
    answer = run(
        program("ab"), "-k", "-n", "20", "-c", "2", "-v", "2", "-p", str(body), "-T", "application/json",
        f"http://{doors.http}{INFER}",
    )  # fmt: skip

    figures = {name: value.split()[0] for name, _, value in (line.partition(":") for line in answer.splitlines()) if value.split()}  # fmt: skip
    assert {name: figures.get(name) for name in ("Complete requests", "Failed requests", "Keep-Alive requests")} == {
        "Complete requests": "20", "Failed requests": "0", "Keep-Alive requests": "20",
    }  # fmt: skip
    assert "Non-2xx responses" not in figures


def test_grpcurl_finds_the_methods_and_calls_them(doors: Doors) -> None:
    grpcurl = program("grpcurl")
    line = {
        "name": "line",
        "datatype": "BYTES",
        "shape": [len(LINES)],
        "contents": {"bytes_contents": [base64.b64encode(each.encode()).decode() for each in LINES]},
    }
    listed = run(grpcurl, "-plaintext", doors.grpc, "list").split()
    health = json.loads(run(grpcurl, "-plaintext", doors.grpc, f"{HEALTH}/List"))
    asked = json.dumps({"model_name": "ctr", "inputs": [line]})
    answer = json.loads(run(grpcurl, "-plaintext", "-d", "@", doors.grpc, f"{SERVICE}/ModelInfer", given=asked))

    assert {SERVICE, HEALTH} <= set(listed)
    assert health["statuses"][""] == {"status": "SERVING"}
    # Its name for fp32_contents depends on grpcurl's version.
    [values] = answer["outputs"][0]["contents"].values()
    assert values == answered(doors.ours)
