"""Rows of columns, from raw files to predictions: one definition of the features for training and for every door of serving."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from elastic_ctr.local.endpoints import ask, predict_rows
from elastic_ctr.serving import open_inference_pb2 as messages
from pipeline.running import Run, values_for

COLUMNS = ("clicked", "user", "item", "price", "age", "tags", "title", "unread")
FEATURES: dict[str, Any] = {
    "user": {"type": "categorical"},
    "item": {"type": "categorical", "vocabulary": {"top": 20}},
    "pair": {"type": "crossed", "of": ["user", "age"], "hash": 1000},
    "price": {"type": "numeric", "transform": ["log1p", "standardize"]},
    "dear": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 8}},
    "age": {"type": "bucketized", "boundaries": [18, 30, 65]},
    "years": {"type": "numeric", "column": "age", "transform": [{"clip": [0, 100]}, "minMax"], "missing": 0.5},
    "tags": {"type": "categorical", "separator": "|", "pooling": "mean"},
    "title": {"type": "text", "ngrams": [1, 2]},
}
WORDS = ("Red", "blue", "größe", "XL", "shoe", "中文", "sale!")
Row = dict[str, Any]


def random_row(dice: random.Random) -> Row:
    """A row as a request has it: a column that is missing is left out."""
    row: Row = {
        "user": f"u{dice.randrange(200)}",
        "item": dice.randrange(40),
        "price": round(dice.lognormvariate(1, 2), 3),
        "age": dice.randrange(10, 90),
        "tags": [dice.choice("abcdef") for _ in range(dice.randrange(1, 5))],
        "title": " ".join(dice.choices(WORDS, k=dice.randrange(1, 5))),
    }
    return {name: value for name, value in row.items() if dice.random() > 0.1}


def click_of(row: Row, dice: random.Random) -> int:
    dear = float(row.get("price", 3)) > 5
    return int(dice.random() < (0.6 if dear else 0.1) + (0.2 if "a" in row.get("tags", ()) else 0))


def write_hour(folder: Path, rows: list[Row], dice: random.Random) -> None:
    folder.mkdir(parents=True)
    with (folder / "part-0.csv").open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            cells = {**row, "clicked": click_of(row, dice), "tags": "|".join(row.get("tags", [])), "unread": "x"}
            writer.writerow([cells.get(name, "") for name in COLUMNS])
    (folder / "donefile").touch()


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
    values = values_for(data, [], "20200401/00", "20200401/01", **small, pserver={"replicas": 1})
    del values["data"]["slots"]
    values["data"] |= {"format": "csv", "label": "clicked"}
    values["master"]["config"]["samples"] = 1000
    values["features"] = FEATURES
    run = start(values)

    report = run.finish(200)

    assert [(each["records"], each["refused"]) for each in report["passes"]] == [(4000, 0)] * 2
    assert all(each["maxAbsDiff"] < 1e-5 for each in report["passes"])
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
