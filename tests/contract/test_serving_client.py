"""The Python clients against a serving process whose model takes rows of columns, with a real cube-server behind it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import serving_world
from contract.serving_world import DIM, FIRST, SLOTS, TOLERANCE, Cube, Exported, Transfer, put_version, serving
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.serving.client import AsyncServingClient, PredictionRefused, ServingClient
from elastic_ctr.store.backends import FileStore
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube = serving_world.exports, serving_world.started_cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

VERSION = 2001
FEATURES = FeatureDocument(features=Features.model_validate({name: {"type": "categorical"} for name in SLOTS}))
# As text, which is what each value becomes: those of 64 bits, too.
TEXTS = [
    {"0": "17241709254077376921", "1": "paris", "2": "größe 🦊"},
    {"0": "9007199254740993", "7": "3"},
    {"0": "9007199254740992", "7": "3"},
    {},
]
ROWS: list[dict[str, Any]] = [
    {"0": 17241709254077376921, "1": "paris", "2": "größe 🦊", "7": None},
    {"0": 9007199254740993, "7": 3},
    {"0": np.uint64(9007199254740992), "7": np.int8(3)},
    {},
]


def of_columns(exported: Exported) -> tuple[Exported, list[float]]:
    """The version that knows each key of the rows, and their probabilities."""
    transformer = FEATURES.transformer()
    found = transformer.transform(cells_of([row_of(each, transformer.inputs) for each in TEXTS], transformer.inputs))
    keys = np.unique(found.keys)
    values = np.random.default_rng(5).normal(0, 1, (len(keys), DIM)).astype(np.float32)
    known = exported._replace(version=VERSION, keys=keys, values=values)
    slots = [transformer.slots.names[at % len(SLOTS)] for at, n in enumerate(found.lengths.ravel()) for _ in range(n)]
    ends = np.cumsum(found.lengths.reshape(-1, len(SLOTS)).sum(axis=1)).tolist()
    pairs = list(zip(found.keys.tolist(), slots, strict=True))
    return known, [known.probability(pairs[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


async def test_both_clients_ask_a_model_of_columns_for_the_probabilities_of_its_rows(
    exports: dict[int, Exported], started_cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    known, expected = of_columns(exports[FIRST])
    started_cube.load(known)
    put_version(store, known, columns=FEATURES, rows=list(zip(map(json.dumps, TEXTS), expected, strict=True)))
    await transfer.publish(live=VERSION, wanted=(VERSION,), holders={VERSION: started_cube.holders()})
    async with serving(store, transfer, scratch, workers=2) as running:
        await running.until_version(VERSION)
        # Nothing listens at the second one.
        addresses = [f"127.0.0.1:{running.port}", f"127.0.0.1:{free_port()}"]

        def ask() -> list[Any]:
            with ServingClient(addresses) as client:
                answers: list[Any] = [client.predict_rows(ROWS) for _ in range(5)]
                answers.append(client.columns())
                for wrong in (lambda: client.predict_rows([{"zero": 1}]), lambda: client.encode([{"0": [1]}])):
                    with pytest.raises(PredictionRefused) as refused:
                        wrong()
                    answers.append(str(refused.value))
                return answers

        *blocking, columns, unknown, other_kind = await asyncio.to_thread(ask)
        async with AsyncServingClient(addresses) as client:
            together = await asyncio.gather(*(client.predict_rows(ROWS) for _ in range(20)))

    assert len(set(expected)) == len(ROWS)
    for each in [*blocking, *together]:
        assert each.version == VERSION
        assert each.probabilities.tolist() == pytest.approx(expected, abs=TOLERANCE)
    assert columns == dict.fromkeys(sorted(SLOTS), "BYTES")
    assert "instances[0] has the column 'zero', which no feature reads" in unknown
    assert "the model takes rows of columns" in other_kind
