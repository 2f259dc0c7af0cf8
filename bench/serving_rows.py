"""Raw rows of Criteo's shape over HTTP: beside feasigns in our own serving, and beside a well-made FastAPI service with Redis.

    python -m bench.serving_rows [--quick] [--only "1 instance"] [--values 40000]

A row has 13 numbers (`log1p`, `standardize` by constants) and 26 texts. The model of rows has the same network and embeddings as that of
feasigns, and the 13 numbers beside them. Their service gets the same JSON, makes keys with xxhash, and asks Redis and the same network.
It computes the numbers with pandas, in plain Python, or with numpy, which a user reaches for last.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from bench import network
from bench import table as tables
from bench.features import NUMBERS, TEXTS, features, statistics
from bench.loadgen import HTTP, Expected, Load
from bench.method import FOLDER, Plan, Results, Side, arguments, compare, plan_of, show, timed
from bench.processes import Server, ask, cube_server, one_core, redis_server
from bench.serving import TOLERANCE, Ours, Shape, SubmittedBatch, our_serving, publish_files, their_service
from bench.table import Made
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.features.transforms.formulas import Texts, keys_of_texts
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of

PATH = "/v1/models/ctr:predict"
DOCUMENT = FeatureDocument(features=features(), statistics=statistics())
TRANSFORMER = DOCUMENT.transformer()
VALUES = 40_000
_SAMPLES = 16


@dataclass(frozen=True)
class Goal:
    """Of rows ÷ feasigns, and ÷ FastAPI with pandas or in plain Python."""

    shape: Shape
    of_feasigns: float
    of_theirs: float | None


# By what FastAPI computes the numbers, and how that is named.
WAYS = {"pandas": "with pandas", "plain": "in plain Python", "numpy": "with numpy"}


GOALS = (
    Goal(Shape(1, 26, 128, 4000, None, None), 0.7, 20),
    Goal(Shape(16, 26, 32, 600, None, None), 0.7, None),
    Goal(Shape(128, 26, 16, 160, None, None), 0.7, 8),
)


def text_of(place: int) -> str:
    """Value number so many of any column."""
    return f"{place * 2_654_435_761 % 2**32:08x}"


def table_of(values: int) -> Made:
    """The embeddings of so many values of each column."""
    texts = Texts.of([text_of(place).encode() for place in range(values)])
    keys = np.concatenate([keys_of_texts(name, texts) for name in TEXTS])
    return tables.made(len(keys), keys=keys)


def bodies(shape: Shape, values: int) -> Iterator[bytes]:
    dice = np.random.default_rng(shape.instances)
    for _ in range(shape.requests):
        numbers = np.floor(dice.lognormal(3, 2, (shape.instances, len(NUMBERS)))).astype(np.int64).tolist()
        places = tables.zipf(values, shape.instances * len(TEXTS), dice).reshape(shape.instances, -1).tolist()
        rows = [
            {**dict(zip(NUMBERS, row, strict=True)), **{n: text_of(p) for n, p in zip(TEXTS, own, strict=True)}}
            for row, own in zip(numbers, places, strict=True)
        ]
        yield orjson.dumps({"instances": rows})


def load_of(port: int, shape: Shape, values: int) -> Load:
    head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    requests = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies(shape, values)]
    return Load(port, requests, Expected(HTTP), shape.connections, work=shape.instances)


def truth(table: Made, body: bytes) -> NDArray[np.float64]:
    """The answer by `json_rows`, the table itself and the oracle of the network."""
    rows = [row_of(row, TRANSFORMER.inputs) for row in orjson.loads(body)["instances"]]
    found = TRANSFORMER.transform(cells_of(rows, TRANSFORMER.inputs))
    pooled = table.truth(found.keys).reshape(len(rows), -1)
    return network.answer(np.concatenate([pooled, found.numbers], axis=1), table.dim)


def publish_rows(table: Made, folder: Path, values: int) -> None:
    exported = network.export(folder / "network", table.dim, len(NUMBERS))
    [body] = bodies(Shape(_SAMPLES, 26, 1, 1, None, None), values)
    lines = [orjson.dumps(row).decode() for row in orjson.loads(body)["instances"]]
    publish_files(
        table, folder, exported, lines, truth(table, body), TRANSFORMER.slots.names,
        numbers=TRANSFORMER.numbers, features=DOCUMENT,
    )  # fmt: skip


def assert_equal(table: Made, rows: Ours, theirs: dict[str, Server], values: int) -> None:
    for goal in GOALS:
        for body in bodies(Shape(goal.shape.instances, 26, 1, 4, None, None), values):
            due = truth(table, body)
            for door, port in {
                "ours": rows.serving.port,
                **{way: server.port for way, server in theirs.items()},
            }.items():
                answer = httpx.post(f"http://127.0.0.1:{port}{PATH}", content=body, timeout=60, trust_env=False)
                assert answer.status_code == 200, answer.text[:300]
                worst = float(np.abs(np.array(answer.json()["predictions"]) - due).max())
                assert worst < TOLERANCE, f"{door} is {worst:.2g} from the oracle at {goal.shape.name}"


def pids_of(*servers: Server) -> list[int]:
    return [pid for server in servers for pid in server.pids()]


def measure(
    table: Made,
    rows: Ours,
    feasigns: Ours,
    theirs: dict[str, Server],
    redis: Server,
    values: int,
    plan: Plan,
    results: Results,
) -> None:
    for goal in GOALS:
        load = load_of(rows.serving.port, goal.shape, values)
        ours = Side("ours", load.run, rows.pids)
        name = f"raw rows ÷ the same as feasigns, {goal.shape.name}"
        if plan.wants(name):
            other = SubmittedBatch.of(goal.shape, table).over_http(feasigns.serving.port)
            compared = compare(name, ours, Side("theirs", other.run, feasigns.pids), plan)
            results.put(compared.row(goal.of_feasigns), compared.details())
            other.close()
        for way, server in theirs.items():
            name = f"raw rows ÷ FastAPI, the same transforms {WAYS[way]}, + Redis, {goal.shape.name}"
            if plan.wants(name):
                other = load_of(server.port, goal.shape, values)
                side = Side("theirs", other.run, partial(pids_of, server, redis))
                compared = compare(name, ours, side, plan)
                results.put(compared.row(None if way == "numpy" else goal.of_theirs), compared.details())
                other.close()
        load.close()


def begun(description: str | None) -> tuple[int, Plan, Results]:
    """Read the command line of a measurement of rows. Return the number of different values of a column, the plan and the results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--values", type=int, default=VALUES, help="different values of a column")
    given = parser.parse_args()
    return given.values, plan_of(given), Results(given.results, quick=given.quick or given.values != VALUES)


def main() -> None:
    values, plan, results = begun(__doc__)
    logs = FOLDER / "logs"
    with timed("bench.serving_rows"), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-rows-")))
        table = table_of(values)
        redis = stack.enter_context(redis_server(logs / "rows-redis.log"))
        tables.fill_redis(table, redis.port)
        cube = stack.enter_context(cube_server(logs / "rows-cube.log"))
        ask(cube.admin, "/load", table.load_order())
        (folder / "rows").mkdir()
        (folder / "feasigns").mkdir()
        publishing = partial(publish_rows, values=values)
        rows = stack.enter_context(our_serving(table, folder / "rows", cube, publishing))
        feasigns = stack.enter_context(our_serving(table, folder / "feasigns", cube))
        theirs = {
            way: stack.enter_context(their_service(folder / "rows", redis, table.dim, rows_by=way)) for way in WAYS
        }
        assert_equal(table, rows, theirs, values)
        with one_core([*rows.pids(), *feasigns.pids(), *pids_of(redis, *theirs.values())]):
            measure(table, rows, feasigns, theirs, redis, values, plan, results)
    show(results.read())


if __name__ == "__main__":
    main()
