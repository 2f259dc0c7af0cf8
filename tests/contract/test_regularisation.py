"""Dropout and L2 as the engine, the parameter servers and an exported network have them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.engine_world import Clicks, engine
from contract.network_formulas import FORMULAS, Array, Row
from elastic_ctr.config.model import Model
from elastic_ctr.training.model.evaluation import bucket_of as bucket_of_logits

# tests/pipeline/test_rows.py trains with dropout, and its answers are the scores of training. The formulas of L2 are tested here alone.
pytestmark = pytest.mark.nightly

DIM = 3
LINE: Clicks = (1, 0, {"a": [11], "b": [5]})
STEPS = 50
NETWORK: dict[str, Any] = {"name": "deepfm", "layers": [32, 32], "dropout": 0.5}
# Large vectors make large logits, and training moves nothing.
STILL = {"learningRate": 1e-12, "initialRange": 3.0}
SERVED = """
import sys
from pathlib import Path
import numpy as np
from elastic_ctr.serving.batching.predictor import DenseNetwork
pooled = np.load(sys.argv[2])
np.save(sys.argv[3], [DenseNetwork(Path(sys.argv[1]), pooled.shape[1]).predict(pooled.copy()) for _ in range(3)])
"""


def model_of(**settings: Any) -> Model:
    return Model.model_validate({"embeddingDim": DIM, "partitions": 4, **settings})


def logit_of(pooled: Array, parameters: dict[str, Any]) -> float:
    weights = {name: np.array(values) for name, values in parameters.items()}
    return FORMULAS["deepfm"](Row(pooled.reshape(2, DIM), np.zeros(0), weights, NETWORK))


def bucket_of(logit: float) -> int:
    return int(bucket_of_logits(np.array([logit]))[0])


def test_training_drops_outputs_and_predictions_scores_and_exports_use_all(tmp_path: Path) -> None:
    model = model_of(
        network=NETWORK, table={"embedx": STILL, "embed": {"learningRate": 1e-12}}, dense={"learningRate": 1e-12}
    )
    with engine(tmp_path, model) as started:
        [trainer] = started.trainers
        trained = trainer.train([LINE] * 200)
        predicted = trainer.predict([LINE] * 200)
        pooled = np.array(trainer.pull([11, 5])).reshape(1, -1)
        parameters = trainer.parameters()
        scores = [trainer.score(pooled.tolist()) for _ in range(3)]
        trainer.export(tmp_path / "exported")
    np.save(tmp_path / "pooled.npy", pooled.astype(np.float32))
    command = [sys.executable, "-c", SERVED, tmp_path / "exported", tmp_path / "pooled.npy", tmp_path / "answers.npy"]
    subprocess.run([*map(str, command)], check=True, capture_output=True)

    due = logit_of(pooled[0], parameters)
    assert sum(trained.values()) == sum(predicted.values()) == 200
    # With a half of 64 outputs gone each time, equal lines get many scores.
    assert len(trained) > 50
    [bucket] = predicted
    assert abs(bucket - bucket_of(due)) <= 1
    assert np.abs(np.array(scores) - 1 / (1 + np.exp(-due))).max() < 1e-5
    assert np.abs(np.load(tmp_path / "answers.npy") - 1 / (1 + np.exp(-due))).max() < 1e-5


def test_the_mean_of_what_training_drops_is_what_predictions_use(tmp_path: Path) -> None:
    """One layer after the dropout is linear in its outputs, so the mean of many trainings is the prediction."""
    network = {"name": "wide-deep", "layers": [64], "dropout": 0.25}
    model = model_of(
        network=network, table={"embedx": STILL, "embed": {"learningRate": 1e-12}}, dense={"learningRate": 1e-12}
    )
    with engine(tmp_path, model) as started:
        [trainer] = started.trainers
        trained = trainer.train([LINE] * 4000)
        [predicted] = trainer.predict([LINE])

    buckets, counts = np.array([*trained]), np.array([*trained.values()])
    mean = (buckets * counts).sum() / counts.sum()
    deviation = np.sqrt(((buckets - mean) ** 2 * counts).sum() / counts.sum())
    assert deviation > 5
    assert abs(mean - predicted) < 5 * deviation / np.sqrt(4000) + 1


def test_l2_of_embeddings_shrinks_the_values_of_an_impression_by_its_formula(tmp_path: Path) -> None:
    """Plain gradient steps: of lr a vector has no other slope than that of its square."""
    rate, decay = 0.1, 0.5
    rule = {"name": "naive", "learningRate": rate}
    model = model_of(network="lr", table={"embeddingL2": decay, "embed": rule, "embedx": {**rule, "initialRange": 1.0}})
    steps: list[Clicks] = [(4, 1, {"a": [11], "b": [5]})]
    with engine(tmp_path, model) as started:
        [trainer] = started.trainers
        trainer.train(steps)
        before = np.array(trainer.pull([11, 5]))
        [chance] = trainer.score([before.reshape(-1).tolist()])
        trainer.train(steps)
        after = np.array(trainer.pull([11, 5]))

    assert np.abs(before[:, 1:]).min() > 1e-3
    assert np.abs(after[:, 1:] - before[:, 1:] * (1 - rate * decay)).max() < 1e-5
    # A quarter of four impressions was clicked.
    assert np.abs(after[:, 0] - (before[:, 0] - rate * (chance - 0.25 + decay * before[:, 0]))).max() < 1e-5


def test_l2_of_the_dense_network_shrinks_its_weights_and_changes_no_histogram(tmp_path: Path) -> None:
    left = {}
    for decay in (0.0, 1.0):
        network = {**NETWORK, "dropout": 0}
        model = model_of(
            network=network,
            table={"embedx": STILL, "embed": {"learningRate": 1e-12}},
            dense={"l2": decay, "learningRate": 0.02},
        )
        with engine(tmp_path / str(decay), model) as started:
            [trainer] = started.trainers
            # A key gets its vector with its first gradient.
            trainer.train([LINE])
            first = trainer.parameters()
            [trained] = trainer.train([LINE])
            pooled = np.array(trainer.pull([11, 5])).reshape(-1)
            assert abs(trained - bucket_of(logit_of(pooled, first))) <= 1
            [predicted] = trainer.predict([LINE])
            assert abs(predicted - bucket_of(logit_of(pooled, trainer.parameters()))) <= 1
            # How many batches' gradients the client merges into a step is a matter of its threads' pace, but the end
            # of a pass sends what is left: one batch is one step.
            for _ in range(STEPS):
                trainer.train([(2, 1, LINE[2])])
            last = trainer.parameters()
        matrices = [name for name in first if name.endswith(".w")]
        squares = [sum(float((np.array(each[name]) ** 2).sum()) for name in matrices) for each in (first, last)]
        left[decay] = squares[1] / squares[0]

    print(left)
    assert left[1.0] < 0.2, left
    assert left[0.0] > 0.6, left
