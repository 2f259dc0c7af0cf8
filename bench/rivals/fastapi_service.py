"""What a user would write: FastAPI on uvloop and httptools, orjson, redis.asyncio with hiredis, Paddle's predictor.

It takes the JSON of our own door. Made as well as we can: the body is parsed by orjson without a schema, one MGET a request,
numpy does the rest, and the answer is bytes.
"""
# mypy: ignore-errors
# (its packages are in the environment of `make bench` alone)

import os
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import orjson
import redis.asyncio
from fastapi import FastAPI, Request, Response

from elastic_ctr.serving.predictor import _load as load_predictor

FOLDER, DIM = Path(os.environ["BENCH_NETWORK"]), int(os.environ["BENCH_DIM"])
SLOTS = {name: number for number, name in enumerate(os.environ["BENCH_SLOTS"].split(","))}
ABSENT = bytes(4 * DIM)
STATE = {}


@asynccontextmanager
async def lifespan(_app: FastAPI):
    STATE["redis"] = redis.asyncio.Redis(
        host="127.0.0.1",
        port=int(os.environ["BENCH_REDIS"]),
        max_connections=1024,
    )
    STATE["predictor"] = predictor = load_predictor(FOLDER / "network.pdmodel", FOLDER / "network.pdiparams")
    STATE["input"] = predictor.get_input_handle("pooled")
    STATE["output"] = predictor.get_output_handle(predictor.get_output_names()[0])
    yield
    await STATE["redis"].aclose()


app = FastAPI(lifespan=lifespan)


def predict(pooled):
    """The event loop's own thread: a predictor is not to be used by several."""
    STATE["input"].reshape(pooled.shape)
    STATE["input"].copy_from_cpu(pooled)
    STATE["predictor"].run()
    return STATE["output"].copy_to_cpu().reshape(-1)


@app.post("/ElasticCTRPredictionService/inference")
async def inference(request: Request) -> Response:
    instances = orjson.loads(await request.body())["instances"]
    feasigns, counts = [], np.zeros((len(instances), len(SLOTS)), np.int64)
    for row, instance in enumerate(instances):
        by_slot = sorted((SLOTS[slot["slot_name"]], slot["feasigns"]) for slot in instance["slots"])
        for slot, values in by_slot:
            feasigns += values
            counts[row, slot] = len(values)
    raw = np.array(feasigns, np.uint64).tobytes()
    found = await STATE["redis"].mget([raw[at : at + 8] for at in range(0, len(raw), 8)])
    values = np.frombuffer(b"".join([ABSENT if value is None else value for value in found]), np.float32)
    values = values.reshape(-1, DIM)
    flat = counts.reshape(-1)
    if (flat == 1).all():
        pooled = values.reshape(len(instances), -1)
    else:
        starts = np.cumsum(flat) - flat
        sums = np.add.reduceat(np.vstack([values, np.zeros((1, DIM), np.float32)]), starts, axis=0)
        pooled = np.where((flat > 0)[:, None], sums, np.float32(0)).reshape(len(instances), -1)
    probabilities = predict(np.ascontiguousarray(pooled)).tolist()
    answer = {"predictions": [{"prob0": 1.0 - p, "prob1": p} for p in probabilities], "err_code": 0}
    return Response(orjson.dumps(answer), media_type="application/json")


@app.get("/healthz")
async def healthz() -> Response:
    return Response(b"ok")
