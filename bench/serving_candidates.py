"""One user and 300 candidates: requests with a shared part beside the same as full rows, by the same serving process in turn.

    python -m bench.serving_candidates [--quick] [--only "deepfm"] [--values 40000]

26 features, of which 14 are the user's: in JSON columns of text, in binary tensors feasigns. Networks: the default one (deepfm), and 400 x 3.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from bench import network
from bench import table as tables
from bench.features import TEXTS
from bench.loadgen import HTTP, Expected, Load
from bench.method import FOLDER, Plan, Results, Side, compare, show, timed
from bench.processes import ask, cube_server, one_core
from bench.serving import INFER, SLOTS, Ours, our_serving, publish_files
from bench.serving_rows import PATH, begun, table_of, text_of
from bench.table import Made
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.client import JSON_LENGTH, prediction_of, tensor_request

CANDIDATES, USERS, CONNECTIONS, REQUESTS = 300, 14, 8, 48
GOALS = {"deepfm": 2.5, "slot-dnn": 1.5}
NAMES = {"deepfm": "deepfm, the default network", "slot-dnn": "400 x 3"}
DOCUMENT = FeatureDocument(features=Features.model_validate({name: {"type": "categorical"} for name in TEXTS}))
TRANSFORMER = DOCUMENT.transformer()
TOLERANCE = 1e-6
_SAMPLES = 16
_SCORES = """
import sys
from pathlib import Path
import numpy as np
from elastic_ctr.serving.batching.predictor import DenseNetwork
pooled = np.load(sys.argv[2])
np.save(sys.argv[2], DenseNetwork(Path(sys.argv[1]), pooled.shape[1]).predict(pooled))
"""


def places(values: int, requests: int = REQUESTS) -> Iterator[NDArray[np.int64]]:
    """By request the values of each feature: i64 [CANDIDATES, 26], in which the user's are the same in all rows."""
    dice = np.random.default_rng(7)
    for _ in range(requests):
        drawn = tables.zipf(values, CANDIDATES * len(TEXTS), dice).reshape(CANDIDATES, len(TEXTS))
        drawn[:, :USERS] = drawn[0, :USERS]
        yield drawn


def json_bodies(drawn: NDArray[np.int64]) -> tuple[bytes, bytes]:
    """The request with a shared part, and that of full rows."""
    rows = [{name: text_of(place) for name, place in zip(TEXTS, row, strict=True)} for row in drawn.tolist()]
    shared = {name: rows[0][name] for name in TEXTS[:USERS]}
    candidates = [{name: row[name] for name in TEXTS[USERS:]} for row in rows]
    return orjson.dumps({"shared": shared, "candidates": candidates}), orjson.dumps({"instances": rows})


def tensor_bodies(table: Made, drawn: NDArray[np.int64]) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """As `json_bodies`, with the length of the JSON of each."""
    keys = np.asarray(table.keys)[drawn]
    lengths = np.ones(drawn.shape, np.int64)
    own = np.concatenate((keys[0, :USERS], keys[:, USERS:].reshape(-1)))
    of_user = np.arange(len(SLOTS)) < USERS
    counts = np.concatenate((of_user[None], np.tile(~of_user, (CANDIDATES, 1)))).astype(np.int64)
    slots = SlotList(SLOTS)
    return tensor_request(own, counts, slots, first_is_shared=True), tensor_request(keys.reshape(-1), lengths, slots)


def post(path: str, body: bytes, json_length: int = 0) -> bytes:
    more = f"{JSON_LENGTH}: {json_length}\r\n" if json_length else "content-type: application/json\r\n"
    return f"POST {path} HTTP/1.1\r\nhost: bench\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


def scores_of(exported: Path, pooled: NDArray[np.float32], folder: Path) -> NDArray[np.float64]:
    """The network's answers, computed by a process of its own."""
    file = folder / "pooled.npy"
    np.save(file, pooled)
    subprocess.run([sys.executable, "-c", _SCORES, str(exported), str(file)], check=True)
    answers: NDArray[np.float64] = np.load(file).astype(np.float64)
    return answers


def publish_rows(table: Made, folder: Path, kind: str, values: int) -> None:
    [drawn] = places(values, 1)
    rows = orjson.loads(json_bodies(drawn[:_SAMPLES])[1])["instances"]
    found = TRANSFORMER.transform(cells_of([row_of(row, TRANSFORMER.inputs) for row in rows], TRANSFORMER.inputs))
    exported = network.export(folder / "network", table.dim, kind=kind)
    scores = scores_of(exported, table.truth(found.keys).reshape(len(rows), -1), folder)
    lines = [orjson.dumps(row).decode() for row in rows]
    publish_files(table, folder, exported, lines, scores, TRANSFORMER.slots.names, features=DOCUMENT)


def publish_feasigns(table: Made, folder: Path, kind: str, values: int) -> None:
    [drawn] = places(values, 1)
    keys = np.asarray(table.keys)[drawn[:_SAMPLES]]
    exported = network.export(folder / "network", table.dim, kind=kind)
    scores = scores_of(exported, table.truth(keys.reshape(-1)).reshape(len(keys), -1), folder)
    lines = [" ".join(f"{key}:{slot}" for key, slot in zip(row, SLOTS, strict=True)) for row in keys.tolist()]
    publish_files(table, folder, exported, lines, scores, SLOTS)


def answered(port: int, path: str, body: bytes, json_length: int = 0) -> NDArray[np.float32]:
    headers = {JSON_LENGTH: str(json_length)} if json_length else {}
    answer = httpx.post(f"http://127.0.0.1:{port}{path}", content=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text[:300]
    if json_length:
        return prediction_of(answer.content, int(answer.headers[JSON_LENGTH])).probabilities
    return np.array(answer.json()["predictions"], np.float32)


def measure(name: str, path: str, pairs: list[tuple[tuple[bytes, int], tuple[bytes, int]]], ours: Ours, plan: Plan, results: Results, goal: float) -> None:  # fmt: skip
    """Compare two lists of bodies, each with the length of its JSON or 0, that have the same answers."""
    for shared, full in pairs[:4]:
        found, due = (answered(ours.serving.port, path, *each) for each in (shared, full))
        worst = float(np.abs(found - due).max())
        assert len(found) == CANDIDATES, len(found)
        assert worst <= TOLERANCE, f"{name}: {worst:.2g} from the answers to full rows"
    loads = [
        Load(ours.serving.port, [post(path, *each) for each in bodies], Expected(HTTP), CONNECTIONS, work=CANDIDATES)
        for bodies in zip(*pairs, strict=True)
    ]
    with_shared, without = (
        Side(side, load.run, ours.pids) for side, load in zip(("shared", "full"), loads, strict=True)
    )
    with one_core(ours.pids()):
        compared = compare(name, with_shared, without, plan)
    sizes = [sum(len(each[side][0]) for each in pairs) / len(pairs) for side in (0, 1)]
    note = f"{sizes[0] / 1000:.0f} kB a request to {sizes[1] / 1000:.0f}"
    results.put(compared.row(goal, note=note), compared.details())
    for load in loads:
        load.close()


def main() -> None:
    values, plan, results = begun(__doc__)
    with timed("bench.serving_candidates"), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-candidates-")))
        table = table_of(values)
        cube = stack.enter_context(cube_server(FOLDER / "logs" / "candidates-cube.log"))
        ask(cube.admin, "/load", table.load_order())
        drawn = list(places(values))
        in_json = [tuple((body, 0) for body in json_bodies(each)) for each in drawn]
        in_tensors = [tensor_bodies(table, each) for each in drawn]
        for kind, goal in GOALS.items():
            for door, path, publishing, pairs in (
                ("JSON", PATH, publish_rows, in_json),
                ("binary tensors", INFER, publish_feasigns, in_tensors),
            ):
                name = f"1 user and {CANDIDATES} candidates ÷ as full rows, {door}, {NAMES[kind]}"
                if plan.wants(name):
                    home = folder / f"{kind}-{door.replace(' ', '-')}"
                    home.mkdir()
                    with our_serving(table, home, cube, partial(publishing, kind=kind, values=values)) as ours:
                        measure(name, path, pairs, ours, plan, results, goal)  # type: ignore[arg-type]
    show(results.read())


if __name__ == "__main__":
    main()
