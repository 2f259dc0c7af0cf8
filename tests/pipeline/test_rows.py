"""Rows of columns, from raw files to predictions: one definition of the features for training and for every door of serving."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from elastic_ctr.operate.local.endpoints import ask, explain, predict_rows
from elastic_ctr.serving import open_inference_pb2 as messages
from pipeline.running import Run, values_for
from raw_rows import FEATURES, Row, random_row, write_hour


def over_grpc(address: str, rows: list[Row]) -> list[float]:
    """One tensor a column; a row that lacks a value has an empty text."""
    request = messages.ModelInferRequest(model_name="ctr")
    for name in ("user", "item", "tags", "title"):
        texts = [row.get(name, "") for row in rows]
        values = ["|".join(text) if isinstance(text, list) else str(text) for text in texts]
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(rows)])
        tensor.contents.bytes_contents.extend(value.encode() for value in values)
    for name in ("price", "age"):
        tensor = request.inputs.add(name=name, datatype="FP64", shape=[len(rows)])
        tensor.contents.fp64_contents.extend(float(row[name]) for row in rows)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        return list(call(request, timeout=60).outputs[0].contents.fp32_contents)


@pytest.mark.timeout(240)
def test_raw_rows_are_trained_and_answered_by_one_definition(tmp_path: Path, start: Callable[..., Run]) -> None:
    dice = random.Random(7)
    data = tmp_path / "data"
    for hour in range(2):
        write_hour(data / "20200401" / f"{hour:02d}", [random_row(dice) for _ in range(4000)], dice)
    small = {"model": {"network": "deepfm"}, "trainer": {"replicas": 1, "config": {"batchSize": 32, "epochs": 4}}}
    values = values_for(data, None, "20200401/00", "20200401/01", **small, pserver={"replicas": 1})
    values["data"] |= {"format": "csv", "label": "clicked"}
    values["master"]["config"]["samples"] = 1000
    values["features"] = FEATURES
    run = start(values)

    report = run.finish(200)

    assert [(each["records"], each["refused"]) for each in report["passes"]] == [(4000, 0)] * 2
    # The first version may have been replaced before anybody asked it.
    assert report["passes"][-1]["samplesServed"] == 1000
    assert report["parity"]["maxAbsDiff"] < 1e-5
    assert report["passes"][-1]["auc"] > 0.7
    store = run.places.folder / "store" / "output"
    documents = {file.read_bytes() for file in (store / "ctr_model").glob("*/features.json")}
    assert len(list((store / "ctr_model").glob("*/features.json"))) == 2
    assert len(documents) == 1, "both versions have the features and the statistics of the first pass"
    assert json.loads(documents.pop())["statistics"]["numbers"]["price"]["rows"] == 4000

    # The trainer's own scores of rows that it read from the file, asked again over every door.
    [last] = store.glob(f"ctr_model/{report['live']}/sample.jsonl")
    samples = [json.loads(line) for line in last.read_text().splitlines()]
    trained = np.array([sample["published"] for sample in samples])
    rows = [json.loads(sample["line"]) for sample in samples]
    assert len(rows) == 1000
    served, versions = predict_rows(run.places.serving, "ctr", rows)
    assert set(versions) == {report["live"]}
    assert np.abs(np.array(served) - trained).max() < 1e-5

    fresh = [row for row in (random_row(dice) for _ in range(400)) if {"price", "age"} <= row.keys()]
    as_json, _ = predict_rows(run.places.serving, "ctr", fresh)
    grpc_port = values["serving"]["config"]["grpcPort"]
    assert over_grpc(f"127.0.0.1:{grpc_port}", fresh) == pytest.approx(as_json, abs=1e-6)
    page = (Path(__file__).parents[2] / "docs" / "serving-protocols.md").read_text()
    answers = [json.loads(each) for each in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    [said] = (each for each in answers if each.keys() == {"predictions", "model_version"})
    asked = ask(f"http://{run.places.serving}/v1/models/ctr:predict", {"instances": [{"user": "u1"}]})
    assert asked.keys() == said.keys()
    [said] = (each for each in answers if "explanations" in each)
    whole = {"user": "u1", "item": 3, "price": 7.5, "age": 40, "tags": ["a", "b"], "title": "Red shoe"}
    [probability, without_title], _ = predict_rows(
        run.places.serving, "ctr", [whole, {name: value for name, value in whole.items() if name != "title"}]
    )
    explained = explain(run.places.serving, "ctr", whole)
    assert explained.keys() - {"version"} == said["explanations"][0].keys()
    features = {each["feature"]: each for each in explained["features"]}
    assert features.keys() == FEATURES.keys()
    assert {tuple(each) for each in features.values()} == {tuple(each) for each in said["explanations"][0]["features"]}
    assert explained["probability"] == pytest.approx(probability, abs=1e-6)
    assert features["title"]["without"] == pytest.approx(without_title, abs=1e-6)
    assert all(key["known"] for key in features["tags"]["keys"])
    described = ask(f"http://{run.places.serving}/v2/models/ctr")["inputs"]
    assert {each["name"]: each["datatype"] for each in described} == {
        "age": "FP64", "item": "BYTES", "price": "FP64", "tags": "BYTES", "title": "BYTES", "user": "BYTES",
    }  # fmt: skip
    inputs = [
        {"name": "user", "datatype": "BYTES", "shape": [2], "data": ["u1", "u2"]},
        {"name": "price", "datatype": "FP32", "shape": [2], "data": [1, 2]},
    ]
    answer = ask(f"http://{run.places.serving}/v2/models/ctr/infer", {"inputs": inputs})
    some, _ = predict_rows(run.places.serving, "ctr", [{"user": "u1", "price": 1}, {"user": "u2", "price": 2}])
    assert answer["outputs"][0]["data"] == pytest.approx(some, abs=1e-6)
