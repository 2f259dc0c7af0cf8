"""The Python clients against a serving process whose model takes rows of columns, with a real cube-server behind it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import serving_world
from contract.serving_world import (
    FIRST,
    SLOTS,
    TOLERANCE,
    Cube,
    Exported,
    Transfer,
    of_columns,
    put_version,
    serving,
)
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
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


async def test_both_clients_ask_a_model_of_columns_for_the_probabilities_of_its_rows(
    exports: dict[int, Exported], started_cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    known, expected = of_columns(exports[FIRST], FEATURES, TEXTS, VERSION)
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
