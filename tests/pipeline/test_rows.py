"""A system trained on rows of columns, which stands for all tests here: one definition of the features for training, for every door of
serving and for scores by the commands of docs/scoring.md. The network has what differs between training and serving: dropout, layerNorm
and an output of two classes.
"""

import csv
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from elastic_ctr.operate.local.endpoints import ask, explain, predict_rows
from elastic_ctr.serving import open_inference_pb2 as messages
from pipeline.running import Run, values_for
from raw_rows import FEATURES, Row, random_row, write_hour

DOCS = Path(__file__).parents[2] / "docs"
ROWS, LATER_ROWS, SAMPLES = 4000, 1000, 1000
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Trained:
    """What has been trained and is served; `later` are the rows of an hour that no pass has read."""

    run: Run
    values: dict[str, Any]
    report: dict[str, Any]
    later: list[Row]

    @property
    def serving(self) -> str:
        return self.run.places.serving

    @property
    def folder(self) -> Path:
        return self.run.places.folder.parent

    def predict(self, rows: list[Row]) -> list[float]:
        """Answers of the last version."""
        probabilities, versions = predict_rows(self.serving, "ctr", rows)
        assert set(versions) == {self.report["live"]}
        return probabilities


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("rows")
    dice = random.Random(7)
    for hour in range(2):
        write_hour(folder / "data/20200401" / f"{hour:02d}", [random_row(dice) for _ in range(ROWS)], dice)
    # Nothing of this hour is in the statistics.
    later = [random_row(dice) for _ in range(LATER_ROWS)]
    write_hour(folder / "data/20200402/00", later, dice)
    values = values_for(
        folder / "data",
        None,
        "20200401/00",
        "20200401/01",
        data={"format": "csv", "label": "clicked", "taskBytes": 20_000},
        features=FEATURES,
        model={"network": {"name": "dcn-v2", "rank": 8, "dropout": 0.1, "layerNorm": True}, "output": "softmax"},
        master={"config": {"samples": SAMPLES}},
        trainer={"replicas": 1, "config": {"batchSize": 32, "epochs": 4}},
        pserver={"replicas": 1},
        # No overlay: scores read the whole table.
        cubeTransfer={"config": {"overlayShare": 1.0}},
    )
    run = Run(folder / "elastic-ctr-local", values)
    with run.session.running():
        yield Trained(run, values, run.finish(300), later)


def documented(kind: str, page: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


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


def test_both_hours_are_trained_with_the_statistics_of_the_first(trained: Trained) -> None:
    report, store = trained.report, trained.run.places.folder / "store" / "output"
    documents = [file.read_bytes() for file in (store / "ctr_model").glob("*/features.json")]

    assert [(each["records"], each["refused"]) for each in report["passes"]] == [(ROWS, 0)] * 2
    assert report["passes"][-1]["auc"] > 0.7
    assert len(documents) == 2
    assert documents[0] == documents[1]
    assert json.loads(documents[0])["statistics"]["numbers"]["price"]["rows"] == ROWS


def test_serving_answers_the_samples_as_the_trainer_scored_them(trained: Trained) -> None:
    report = trained.report
    [last] = (trained.run.places.folder / "store/output").glob(f"ctr_model/{report['live']}/sample.jsonl")
    samples = [json.loads(line) for line in last.read_text().splitlines()]
    scores = np.array([sample["published"] for sample in samples])

    served = trained.predict([json.loads(sample["line"]) for sample in samples])

    # The first version may have been replaced before a sample of it was answered.
    assert report["passes"][-1]["samplesServed"] == SAMPLES == len(samples)
    assert report["parity"]["maxAbsDiff"] < 1e-5
    assert np.abs(np.array(served) - scores).max() < 1e-5


def test_rows_are_answered_alike_over_each_protocol(trained: Trained) -> None:
    dice = random.Random(8)
    fresh = [row for row in (random_row(dice) for _ in range(400)) if {"price", "age"} <= row.keys()]
    grpc_port = trained.values["serving"]["config"]["grpcPort"]
    inputs = [
        {"name": "user", "datatype": "BYTES", "shape": [2], "data": ["u1", "u2"]},
        {"name": "price", "datatype": "FP32", "shape": [2], "data": [1, 2]},
    ]

    as_json = trained.predict(fresh)
    described = ask(f"http://{trained.serving}/v2/models/ctr")["inputs"]
    inferred = ask(f"http://{trained.serving}/v2/models/ctr/infer", {"inputs": inputs})

    assert len(set(as_json)) > 100
    assert over_grpc(f"127.0.0.1:{grpc_port}", fresh) == pytest.approx(as_json, abs=1e-6)
    assert {each["name"]: each["datatype"] for each in described} == {
        "age": "FP64", "item": "BYTES", "price": "FP64", "tags": "BYTES", "title": "BYTES", "user": "BYTES",
    }  # fmt: skip
    some = trained.predict([{"user": "u1", "price": 1}, {"user": "u2", "price": 2}])
    assert inferred["outputs"][0]["data"] == pytest.approx(some, abs=1e-6)


def test_predictions_and_explanations_have_the_documented_fields(trained: Trained) -> None:
    answers = [json.loads(each) for each in documented("json", "serving-protocols.md")]
    [prediction] = (each for each in answers if each.keys() == {"predictions", "model_version"})
    [explanation] = (each["explanations"][0] for each in answers if "explanations" in each)
    whole = {"user": "u1", "item": 3, "price": 7.5, "age": 40, "tags": ["a", "b"], "title": "Red shoe"}

    asked = ask(f"http://{trained.serving}/v1/models/ctr:predict", {"instances": [{"user": "u1"}]})
    explained = explain(trained.serving, "ctr", whole)

    assert asked.keys() == prediction.keys()
    assert explained.keys() - {"version"} == explanation.keys()
    features = {each["feature"]: each for each in explained["features"]}
    assert features.keys() == FEATURES.keys()
    assert {tuple(each) for each in features.values()} == {tuple(each) for each in explanation["features"]}
    probability, without_title = trained.predict(
        [whole, {name: value for name, value in whole.items() if name != "title"}]
    )
    assert explained["probability"] == pytest.approx(probability, abs=1e-6)
    assert features["title"]["without"] == pytest.approx(without_title, abs=1e-6)
    assert all(key["known"] for key in features["tags"]["keys"])


def command(folder: Path, line: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def test_rows_are_scored_as_they_are_served(trained: Trained) -> None:
    folder, report, later = trained.folder, trained.report, trained.later
    transfer = f"127.0.0.1:{trained.values['cubeTransfer']['config']['port']}"
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "values.yaml").write_text((trained.run.places.folder / "values.yaml").read_text())
    predict, evaluate = documented("sh", "scoring.md")[0].splitlines()

    done = command(folder, f"{predict} --version live --transfer {transfer} --copy user,item")
    of_trained = json.loads(command(folder, ".venv/bin/elastic-ctr evaluate -f values.yaml --json").stdout)
    evaluated = json.loads(command(folder, f"{evaluate} --json").stdout)

    assert f"version {report['live']}:" in done.stderr
    files = sorted((folder / "scores/20200402/00").iterdir())
    assert len(files) > 1
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    scored = np.array([float(row["probability"]) for row in rows])
    assert np.abs(scored - np.array(trained.predict(later))).max() < 1e-6
    assert np.ptp(scored) > 0.2
    assert [(row["user"], row["item"]) for row in rows] == [
        (each.get("user", ""), str(each.get("item", ""))) for each in later
    ]
    assert (of_trained["version"], of_trained["total"]["rows"]) == (report["live"], 2 * ROWS)
    assert list(of_trained["splits"]) == ["20200401/00", "20200401/01"]
    assert evaluated["total"]["rows"] == LATER_ROWS
    assert evaluated["total"]["auc"] > 0.6
    assert 0.7 < evaluated["total"]["calibration"] < 1.4
