"""A process of `elastic-ctr network check`: python -m elastic_ctr.operate.local.network_trial train|serve SPEC.json

`train` inspects the network, trains one batch and then more beside a parameter server, exports it and scores rows. `serve` loads the
export as serving does and scores the same rows, in its own process as in a pod. SPEC: {"model": …, "input": {…}, "scratch": "…",
"batchSize": 512}. The server's socket is in the folder `server` of the scratch folder, and the answer is `answer.json` there.
"""

import json
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.serving.batching.predictor import DenseNetwork, NetworkUnusable
from elastic_ctr.training.control.server_sockets import address_on_this_machine, link_sockets, socket_name
from elastic_ctr.training.model.networks.inspection import inspect_own
from elastic_ctr.training.model.networks.own import NetworkRefused
from elastic_ctr.training.model.program import prepare_environment, start_paddle
from elastic_ctr.training.trainer.engine import Engine

ANSWER, SCORED, EXPORT, SERVER = "answer.json", "scored.npz", "export", "server"
_TIMED_VALUES = 400_000
_TIMED_RECORDS = 20_000
_DRAWN_ROWS = 64
_KEYS = 1000
Floats = npt.NDArray[np.float32]


def trained(spec: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Train, export and return the facts of the network. Raises NetworkRefused, RuntimeError."""
    model, given = Model.model_validate(spec["model"]), ModelInput(**spec["input"])
    start_paddle(model)
    # Prints of the user's file are shown once, those of Paddle never.
    with os.fdopen(os.dup(spec["prints"]), "w") as shown, redirect_stdout(shown):
        parameters = inspect_own(model, given)
    link_sockets([address_on_this_machine((scratch / SERVER / socket_name(0)).absolute())], Path())
    engine = Engine(model, given, 1, threads=1)
    engine.connect(1)
    engine.initialise()
    first = {name: engine.dense_value(name) for name in engine.dense_names}
    dice = np.random.default_rng(1)
    # The vectors of new keys are zeros in their first batch, so most parameters begin to learn in the second.
    keys, _ = _train(engine, given, spec["batchSize"], dice, scratch)
    timed = max(2 * spec["batchSize"], min(_TIMED_RECORDS, _TIMED_VALUES // max(len(given.slots), 1)))
    _, seconds = _train(engine, given, timed, dice, scratch, spec["batchSize"])
    engine.flush()
    engine.pull_dense()
    unchanged = [name for name, value in first.items() if np.array_equal(engine.dense_value(name), value)]
    pooled, numbers = _rows(engine, model, given, keys, dice)
    scores = engine.score(pooled, numbers)
    if not np.isfinite(scores).all():
        raise NetworkRefused(
            f"it predicts {scores[~np.isfinite(scores)][0]} after {spec['batchSize'] + timed} records of training"
        )
    engine.export_dense(scratch / EXPORT)
    np.savez(scratch / SCORED, pooled=pooled, numbers=numbers, scores=scores)
    return {
        "parameters": [{"name": each.name, "shape": each.shape, "values": each.values} for each in parameters],
        "unchanged": unchanged,
        "records": spec["batchSize"] + timed,
        "trainingMicroseconds": seconds / timed * 1e6,
    }


def _train(
    engine: Engine,
    given: ModelInput,
    count: int,
    dice: np.random.Generator,
    scratch: Path,
    batch_size: int | None = None,
) -> tuple[npt.NDArray[np.uint64], float]:
    """Train random records with one key per slot. Return their keys [count, slots], and the seconds."""
    keys = dice.integers(1, _KEYS + 1, (count, len(given.slots))).astype(np.uint64)
    numbers = dice.standard_normal((count, len(given.numbers)))
    clicks = dice.integers(0, 2, count)
    file = scratch / "records.txt"
    with file.open("w") as out:
        for click, row, own in zip(clicks.tolist(), keys.tolist(), numbers.tolist(), strict=True):
            dense = f" {len(own)} {' '.join(f'{each:.6f}' for each in own)}" if own else ""
            out.write(f"1 1 1 {click}{dense} {' '.join(f'1 {key}' for key in row)}\n")
    dataset = engine.ready(engine.preload(file, batch_size or count), count)
    began = time.perf_counter()
    engine.train(dataset)
    seconds = time.perf_counter() - began
    dataset.release_memory()
    return keys, seconds


def _rows(
    engine: Engine, model: Model, given: ModelInput, keys: npt.NDArray[np.uint64], dice: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return rows of trained keys, and random rows: fresh values are near 0, where every network is nearly linear."""
    some = keys[:_DRAWN_ROWS]
    width = len(given.slots) * model.embedding_dim
    known = engine.pull(some.reshape(-1)).reshape(len(some), width)
    pooled = np.concatenate([known, dice.standard_normal((_DRAWN_ROWS, width)).astype(np.float32)])
    return pooled, dice.standard_normal((len(pooled), len(given.numbers))).astype(np.float32)


def served(spec: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Return the difference between serving's and the trainer's scores. Raises NetworkRefused."""
    given = ModelInput(**spec["input"])
    with np.load(scratch / SCORED) as arrays:
        pooled, numbers, due = arrays["pooled"], arrays["numbers"], arrays["scores"]
    try:
        network = DenseNetwork(scratch / EXPORT, pooled.shape[1], len(given.numbers))
        found = network.predict(pooled, numbers)
        alone = network.predict(pooled[:1], numbers[:1])
    except NetworkUnusable as unusable:
        raise NetworkRefused(f"serving cannot run it: {unusable}") from unusable
    together = np.abs(found - due)
    return {
        "maxAbsDiff": float(max(together.max(), np.abs(alone - due[:1]).max())),
        "predictionMicroseconds": network.row_seconds * 1e6,
    }


def main() -> None:
    work = {"train": trained, "serve": served}[sys.argv[1]]
    spec = json.loads(Path(sys.argv[2]).read_text())
    spec["prints"] = os.dup(1)
    # Discard stdout, because Paddle prints its settings.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    scratch = Path(spec["scratch"])
    prepare_environment(scratch / sys.argv[1])
    try:
        answer = work(spec, scratch)
    except NetworkRefused as refused:
        answer = {"refused": str(refused)}
    (scratch / ANSWER).write_text(json.dumps(answer))
    # Exit at once, because Paddle's threads crash in a regular interpreter shutdown.
    os._exit(0)


if __name__ == "__main__":
    main()
