"""Each network from raw rows to predictions.

`make test` has one of each kind elsewhere: deepfm (every test of clicks; of rows test_readme.py and test_statistics.py), dcn-v2 with
dropout, layerNorm and softmax (test_rows.py), and one of the user's own (test_own_network.py). Formulas of all networks are in
tests/contract/test_networks.py, and the release gate compares served samples of every published version.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.operate.local.endpoints import predict_rows
from pipeline.running import Run, values_for
from raw_rows import FEATURES, random_row, write_hour

ROWS = 3000
pytestmark = pytest.mark.nightly


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "model",
    [
        {"network": "slot-dnn"},
        {"network": "lr"},
        {"network": "fm"},
        {"network": "wide-deep", "dense": {"l2": 1e-6}, "table": {"embeddingL2": 1e-6}},
        {"network": {"name": "dcn"}, "output": "softmax"},
        {"network": {"name": "dcn-v2", "rank": 8, "dropout": 0.3, "layerNorm": True}},
        {"network": {"name": "xdeepfm", "cinLayers": [8, 8]}},
        {"network": {"name": "autoint", "attentionLayers": 2, "headDim": 8}},
        {"network": {"name": "final-mlp", "secondLayers": [32], "gating": True, "dropout": 0.2}},
    ],
    ids=lambda model: model["network"] if isinstance(model["network"], str) else model["network"]["name"],
)
def test_the_answers_of_serving_are_those_of_the_trained_network(
    tmp_path: Path, start: Callable[..., Run], model: dict[str, Any]
) -> None:
    dice = random.Random(7)
    data = tmp_path / "data"
    write_hour(data / "20200401" / "00", [random_row(dice) for _ in range(ROWS)], dice)
    values = values_for(
        data,
        None,
        "20200401/00",
        "20200401/00",
        data={"format": "csv", "label": "clicked"},
        features=FEATURES,
        model=model,
        trainer={"replicas": 1, "config": {"batchSize": 32, "epochs": 4}},
        pserver={"replicas": 1},
    )
    run = start(values)

    report = run.finish(200)

    [done] = report["passes"]
    assert (done["records"], done["refused"]) == (ROWS, 0)
    assert done["maxAbsDiff"] < 1e-5
    assert done["auc"] > 0.65
    probabilities, versions = predict_rows(run.places.serving, "ctr", [random_row(dice) for _ in range(200)])
    assert set(versions) == {report["live"]}
    assert len(set(probabilities)) > 100
