"""What a user would write: FastAPI on uvloop and httptools, orjson, redis.asyncio with hiredis, Paddle's predictor.

It takes the JSON of our own door: the body is parsed by orjson without a schema, one MGET and one network call a request, numpy
does the rest, and the answer is bytes. With BENCH_GATHERS=1 it does as ours does: all requests that wait are answered by one MGET, in
which no key stands twice, and one network call. With BENCH_ROWS it has a door for rows of columns: xxhash makes the keys, and the numbers
are computed by `pandas`, in `plain` Python or by `numpy`, as it says.
"""
# mypy: ignore-errors
# (its packages are in the environment of `make bench` alone)

import asyncio
import math
import os
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import orjson
import redis.asyncio
import xxhash
from fastapi import FastAPI, Request, Response

from elastic_ctr.serving.batching.predictor import _load as load_predictor

FOLDER, DIM = Path(os.environ["BENCH_NETWORK"]), int(os.environ["BENCH_DIM"])
SLOTS = {name: number for number, name in enumerate(os.environ["BENCH_SLOTS"].split(","))}
ROWS_BY = os.environ.get("BENCH_ROWS", "")
if ROWS_BY == "pandas":
    import pandas as pd
# In the order of the network's inputs, which is that of their names.
NUMBERS = sorted(f"I{place}" for place in range(1, 14))
TEXTS = [(name, f"{name}\0") for name in sorted(f"C{place}" for place in range(1, 27))]
MEAN, DEVIATION = 2.5, 1.5  # those of bench/features.py
ABSENT = bytes(4 * DIM)
GATHERS = os.environ.get("BENCH_GATHERS") == "1"
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
    if ROWS_BY:
        STATE["numbers"] = predictor.get_input_handle("numbers")
    STATE["output"] = predictor.get_output_handle(predictor.get_output_names()[0])
    STATE["waiting"] = asyncio.Queue()
    gathering = asyncio.create_task(answer_together()) if GATHERS else None
    yield
    if gathering is not None:
        gathering.cancel()
    await STATE["redis"].aclose()


app = FastAPI(lifespan=lifespan)


def predict(pooled):
    """The event loop's own thread: a predictor is not to be used by several."""
    STATE["input"].reshape(pooled.shape)
    STATE["input"].copy_from_cpu(pooled)
    STATE["predictor"].run()
    return STATE["output"].copy_to_cpu().reshape(-1)


def read(body):
    """(feasigns u64[n] by row and slot, how many of them i64[rows, slots])."""
    instances = orjson.loads(body)["instances"]
    feasigns, counts = [], np.zeros((len(instances), len(SLOTS)), np.int64)
    for row, instance in enumerate(instances):
        by_slot = sorted((SLOTS[slot["slot_name"]], slot["feasigns"]) for slot in instance["slots"])
        for slot, values in by_slot:
            feasigns += values
            counts[row, slot] = len(values)
    return np.array(feasigns, np.uint64), counts


async def values_of(keys):
    """f32[n, DIM]."""
    raw = keys.tobytes()
    found = await STATE["redis"].mget([raw[at : at + 8] for at in range(0, len(raw), 8)])
    return np.frombuffer(b"".join([ABSENT if value is None else value for value in found]), np.float32).reshape(-1, DIM)


def pool(values, counts):
    """f32[rows, slots * DIM]."""
    flat = counts.reshape(-1)
    if (flat == 1).all():
        return np.ascontiguousarray(values.reshape(len(counts), -1))
    starts = np.cumsum(flat) - flat
    sums = np.add.reduceat(np.vstack([values, np.zeros((1, DIM), np.float32)]), starts, axis=0)
    return np.ascontiguousarray(np.where((flat > 0)[:, None], sums, np.float32(0)).reshape(len(counts), -1))


async def answer_together():
    waiting = STATE["waiting"]
    while True:
        batch = [await waiting.get()]
        while not waiting.empty():
            batch.append(waiting.get_nowait())
        feasigns, counts = (np.concatenate([each[which] for each in batch]) for which in range(2))
        keys, places = np.unique(feasigns, return_inverse=True)
        try:
            probabilities = predict(pool((await values_of(keys))[places], counts))
        except Exception as failed:  # noqa: BLE001 (who waits is told)
            for *_, answered in batch:
                answered.set_exception(failed)
            continue
        at = 0
        for _, rows, answered in batch:
            # Who has hung up meanwhile has no use for it.
            if not answered.done():
                answered.set_result(probabilities[at : at + len(rows)])
            at += len(rows)


@app.post("/ElasticCTRPredictionService/inference")
async def inference(request: Request) -> Response:
    feasigns, counts = read(await request.body())
    if GATHERS:
        answered = asyncio.get_running_loop().create_future()
        STATE["waiting"].put_nowait((feasigns, counts, answered))
        probabilities = (await answered).tolist()
    else:
        probabilities = predict(pool(await values_of(feasigns), counts)).tolist()
    answer = {"predictions": [{"prob0": 1.0 - p, "prob1": p} for p in probabilities], "err_code": 0}
    return Response(orjson.dumps(answer), media_type="application/json")


def key_of(prefix, text):
    return xxhash.xxh3_64_intdigest((prefix + text).encode())


def by_pandas(rows):
    frame = pd.DataFrame(rows)
    numbers = (np.log1p(frame[NUMBERS]) - MEAN) / DEVIATION
    keys = np.array([[key_of(prefix, text) for text in frame[name]] for name, prefix in TEXTS], np.uint64)
    return numbers.to_numpy(np.float32), keys.T.reshape(-1)


def plainly(rows):
    numbers = [[(math.log1p(row[name]) - MEAN) / DEVIATION for name in NUMBERS] for row in rows]
    keys = [key_of(prefix, row[name]) for row in rows for name, prefix in TEXTS]
    return np.array(numbers, np.float32), np.array(keys, np.uint64)


def by_numpy(rows):
    given = np.array([[row[name] for name in NUMBERS] for row in rows], np.float64)
    keys = [key_of(prefix, row[name]) for row in rows for name, prefix in TEXTS]
    return ((np.log1p(given) - MEAN) / DEVIATION).astype(np.float32), np.array(keys, np.uint64)


transform = {"pandas": by_pandas, "plain": plainly}.get(ROWS_BY, by_numpy)


@app.post("/v1/models/ctr:predict")
async def predict_rows(request: Request) -> Response:
    rows = orjson.loads(await request.body())["instances"]
    numbers, keys = transform(rows)
    values = await values_of(keys)
    STATE["numbers"].reshape(numbers.shape)
    STATE["numbers"].copy_from_cpu(np.ascontiguousarray(numbers))
    probabilities = predict(np.ascontiguousarray(values.reshape(len(rows), -1))).tolist()
    return Response(orjson.dumps({"predictions": probabilities, "model_version": "1"}), media_type="application/json")


@app.get("/healthz")
async def healthz() -> Response:
    return Response(b"ok")
