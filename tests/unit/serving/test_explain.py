"""`:explain` against predictions of instances that are made by hand."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.statistics.document import BUCKETS, NumberStatistics, Statistics, TextStatistics
from elastic_ctr.features.transforms.formulas import Texts, keys_of_texts
from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.usual_values import usual_values
from serving.test_routes import SubmittedBatch, service

EXPLAIN = "/v1/models/ctr:explain"
FEATURES = Features.model_validate(
    {
        "user": {"type": "categorical"},
        "tags": {"type": "categorical", "separator": "|"},
        "pair": {"type": "crossed", "of": ["user", "tags"]},
        "price": {"type": "numeric", "transform": ["log1p"], "missing": 0.5},
    }
)
TRANSFORMER = transformer_of(FEATURES, None)


class Cube:
    """Knows even keys; the value of a key is its last digit / 100."""

    async def lookup(self, _version: int, keys: Keys, /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        missing = keys % np.uint64(2) == 1
        values = (keys % np.uint64(10)).astype(np.float32) / 100
        return np.where(missing, 0, values).astype(np.float32)[:, None], missing


class Together:
    """A network in which features act together."""

    row_seconds = 0.0

    def predict(self, pooled: Floats, numbers: Floats | None = None, /) -> Floats:
        weights = np.arange(1, pooled.shape[1] + 1, dtype=np.float32)
        logit = pooled @ weights + pooled.sum(axis=1) ** 2 - 1
        if numbers is not None:
            logit = logit + numbers.sum(axis=1) * pooled[:, 0]
        return np.asarray(1 / (1 + np.exp(-logit)), np.float32)

    def close(self) -> None: ...


@asynccontextmanager
async def explaining(
    schema: Schema, *, sparse_dim: int | None = None, max_instances: int = 1000
) -> AsyncIterator[SubmittedBatch]:
    async with service(live=False, max_instances=max_instances) as it:
        it.batcher.add(ModelVersion(7, schema, sparse_dim, 1, Together(), Cube()))
        it.batcher.pin(7)
        yield it


LINES = Schema(SlotList(("0", "1", "2")))
ROWS = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64)


async def predicted(it: SubmittedBatch, lines: list[str]) -> list[float]:
    """By the Open Inference Protocol."""
    inputs = [{"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}]
    status, answer = await it.ask("POST", "/v2/models/ctr/infer", {"inputs": inputs})
    assert status == 200
    return list(answer["outputs"][0]["data"])


async def test_a_contribution_is_the_probability_minus_that_without_the_feature() -> None:
    async with explaining(LINES) as it:
        status, answer = await it.ask("POST", EXPLAIN, {"instances": ["14:0 16:0 18:2", "12:1"]})
        full, without_0, without_2, other, nothing = await predicted(
            it, ["14:0 16:0 18:2", "18:2", "14:0 16:0", "12:1", "0:0"]
        )

    assert status == 200
    assert answer["model_version"] == "7"
    first, second = answer["explanations"]
    assert first["probability"] == pytest.approx(full)
    assert [each["feature"] for each in first["features"]] == ["0", "1", "2"]
    assert [each["without"] for each in first["features"]] == pytest.approx([without_0, full, without_2])
    assert [each["contribution"] for each in first["features"]] == pytest.approx(
        [full - without_0, 0, full - without_2]
    )
    assert [each["without"] for each in second["features"]] == pytest.approx([other, nothing, other])
    assert it.counters.requests["explanations", 200] == 1


async def test_each_key_says_whether_the_version_knows_it() -> None:
    async with explaining(LINES) as it:
        _, answer = await it.ask("POST", EXPLAIN, {"instances": ["14:0 15:0 17:1", "18446744073709551614:2"]})

    first, second = answer["explanations"]
    assert [each["keys"] for each in first["features"]] == [
        [{"key": "14", "known": True}, {"key": "15", "known": False}],
        [{"key": "17", "known": False}],
        [],
    ]
    assert second["features"][2]["keys"] == [{"key": "18446744073709551614", "known": True}]


async def test_a_key_is_what_the_table_has_of_a_feasign() -> None:
    async with explaining(LINES, sparse_dim=10) as it:
        _, answer = await it.ask("POST", EXPLAIN, {"instances": ["114:0 115:0"]})

    [found] = answer["explanations"]
    assert found["features"][0]["keys"] == [{"key": "4", "known": True}, {"key": "5", "known": False}]


async def test_of_a_row_each_feature_has_its_contribution_a_cross_and_a_number_too() -> None:
    row = {"user": "u1", "tags": ["a", "b"], "price": 3.0}
    async with explaining(ROWS) as it:
        status, answer = await it.ask("POST", EXPLAIN, {"instances": [row]})
        asked = {"instances": [row, {**row, "price": None}]}
        _, predictions = await it.ask("POST", "/v1/models/ctr:predict", asked)

    assert status == 200
    [found] = answer["explanations"]
    by_name = {each["feature"]: each for each in found["features"]}
    full, without_price = predictions["predictions"]
    assert list(by_name) == ["pair", "tags", "user", "price"]
    assert found["probability"] == pytest.approx(full)
    assert by_name["price"]["without"] == pytest.approx(without_price)
    assert by_name["price"]["number"] == pytest.approx(np.log1p(3.0))
    assert by_name["price"]["missing"] == 0.5
    keys = keys_of_texts("tags", Texts.of([b"a", b"b"]))
    assert [each["key"] for each in by_name["tags"]["keys"]] == [str(key) for key in keys]
    assert [each["known"] for each in by_name["tags"]["keys"]] == [bool(key % np.uint64(2) == 0) for key in keys]
    assert len(by_name["pair"]["keys"]) == 2
    # The cross stays when the user goes: they are two features.
    pair = sum(int(each["key"]) % 10 / 100 for each in by_name["pair"]["keys"] if each["known"])
    tags = sum(int(each["key"]) % 10 / 100 for each in by_name["tags"]["keys"] if each["known"])
    logit = pair + 2 * tags + (tags + pair) ** 2 - 1 + np.log1p(3.0) * pair
    assert by_name["user"]["without"] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)


def statistics_of(users: dict[str, int], missing: int, prices: list[float]) -> Statistics:
    values = sum(users.values())
    texts = TextStatistics(
        rows=values + missing,
        missing=missing,
        distinct=len(users),
        values=values,
        mean_bytes=2,
        top=tuple(users.items()),
        count_error=0,
    )
    quantiles = tuple(np.quantile(prices, np.arange(BUCKETS + 1) / BUCKETS, method="nearest").tolist())
    numbers = NumberStatistics(
        rows=len(prices),
        missing=0,
        distinct=len(prices),
        min=min(prices),
        max=max(prices),
        mean=float(np.mean(prices)),
        deviation=float(np.std(prices)),
        quantiles=quantiles,
    )
    return Statistics(texts={"user": texts}, numbers={"price": numbers})


async def test_a_value_is_held_against_the_usual_values_of_its_feature_by_their_shares() -> None:
    features = Features.model_validate(
        {
            "user": {"type": "categorical"},
            "price": {"type": "numeric", "transform": ["log1p"], "missing": 0},
            "range": {"type": "bucketized", "column": "price", "boundaries": [3, 30]},
        }
    )
    document = FeatureDocument(
        features=features, statistics=statistics_of({"u1": 6, "u2": 2}, 2, [1.0, 7.0, 50.0, 50.0])
    )
    transformer = document.transformer()
    schema = Schema(transformer.slots, transformer, "d" * 64, document=document)
    row = {"user": "u9", "price": 3.0}
    async with explaining(schema) as it:
        _, answer = await it.ask("POST", EXPLAIN, {"instances": [row, {"price": 3.0}]})
        users = [{**row, "user": user} for user in ("u1", "u2", None)]
        _, predictions = await it.ask("POST", "/v1/models/ctr:predict", {"instances": users})

    first, second = ({each["feature"]: each for each in found["features"]} for found in answer["explanations"])
    due = float(np.dot(predictions["predictions"], [0.6, 0.2, 0.2]))
    assert [each["without"] for each in (first["user"], second["user"])] == pytest.approx([due, due], abs=1e-6)
    assert second["user"]["contribution"] == pytest.approx(predictions["predictions"][2] - due, abs=1e-6)
    assert {each["against"] for each in first.values()} == {"usual values"}
    # Of twenty ranks of the order of the prices, 3 are nearest to the first, 7 to the second, 10 to the two last ones.
    values = usual_values(document, transformer)
    by_key: dict[int, float] = {}
    for keys, share in zip(values["range"].keys, values["range"].shares, strict=True):
        by_key[int(keys[0])] = by_key.get(int(keys[0]), 0) + share
    assert sorted(by_key.values()) == pytest.approx([0.15, 0.35, 0.5])
    assert sorted(set(values["price"].numbers)) == pytest.approx(np.log1p([1, 7, 50]))


async def test_an_instance_without_features_has_a_probability_and_no_contributions() -> None:
    async with explaining(LINES) as it:
        status, answer = await it.ask("POST", EXPLAIN, {"instances": ["0:0"]})

    assert status == 200
    assert all(each["contribution"] == 0 for each in answer["explanations"][0]["features"])


async def test_many_instances_are_split_and_each_keeps_its_own() -> None:
    lines = [f"{2 * number}:0 {2 * number + 1}:1" for number in range(1, 60)]
    async with explaining(LINES, max_instances=10_000) as it:
        it.batcher.max_rows = 8
        _, answer = await it.ask("POST", EXPLAIN, {"instances": lines})
        probabilities = await predicted(it, lines)

    assert [each["probability"] for each in answer["explanations"]] == pytest.approx(probabilities)
    for number, each in enumerate(answer["explanations"], 1):
        assert each["features"][0]["keys"] == [{"key": str(2 * number), "known": True}]
        assert each["features"][1]["keys"] == [{"key": str(2 * number + 1), "known": False}]


async def test_an_instance_of_very_many_keys_is_refused_before_it_takes_memory() -> None:
    async with explaining(LINES, max_instances=100_000) as it:
        status, answer = await it.ask("POST", EXPLAIN, {"instances": [" ".join(["1:0"] * 20_000)]})

    assert status == 413
    assert answer["error"].startswith("the explanation takes 20002 instances")
    assert "10000 are allowed" in answer["error"]


@pytest.mark.parametrize(
    ("schema", "body", "status", "reason"),
    [
        (LINES, {"instances": []}, 400, "instances is empty"),
        (LINES, {"instances": [{"a": 1}]}, 400, "instances[0] is an object; it must be text"),
        (LINES, {"instances": ["x"]}, 400, "instances[0] is refused"),
        (LINES, {"instances": ["5:0"] * 300}, 413, "the explanation takes 900 instances"),
        (LINES, {"rows": ["5:0"]}, 400, "rows is not known; the fields here are instances"),
        (LINES, {}, 400, "instances is missing"),
        (ROWS, {"instances": ["5:0"]}, 400, "it must be an object with a value for each column"),
        (ROWS, {"instances": [{"colour": 1}]}, 400, "which no feature reads"),
        (LINES, [], 400, "it must be a JSON object"),
    ],
)
async def test_a_bad_request_gets_a_sentence(schema: Schema, body: Any, status: int, reason: str) -> None:
    async with explaining(schema, max_instances=500) as it:
        found, answer = await it.ask("POST", EXPLAIN, body)

    assert (found, reason in answer["error"]) == (status, True), answer


async def test_it_is_asked_with_post_and_while_a_version_is_live() -> None:
    async with service(live=False) as it:
        wrong, _ = await it.ask("GET", EXPLAIN)
        early, _ = await it.ask("POST", EXPLAIN, json.dumps({"instances": ["5:0"]}).encode())

    assert (wrong, early) == (405, 503)
