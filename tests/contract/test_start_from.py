"""What the engine makes of another model's checkpoint: its table under other slots and another network, and what fits of its network."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from contract.engine_world import Clicks, Row, StartedEngine, Trainer, engine
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.master.work.start_from import trained_model

DIM = 5
BEFORE, NOW = ("a", "b", "c"), ("c", "d", "a")
LINES: list[Clicks] = [
    (2, 2 * (key % 3 == 0), {"a": [key], "b": [100 + key % 4], "c": [200 + key % 5]}) for key in range(1, 60)
]


def model_of(network: Any, **changes: Any) -> Model:
    return Model.model_validate({"embeddingDim": DIM, "partitions": 6, "network": network, **changes})


class Other(NamedTuple):
    """A trained model: its checkpoint's files by name, rows, exported network and scores of pooled values."""

    files: dict[str, bytes]
    dense: dict[str, bytes]
    rows: dict[int, Row]
    folder: Path
    pooled: dict[str, list[list[float]]]
    scores: list[float]


def trained(scratch: Path, network: Any) -> Other:
    with engine(scratch, model_of(network), BEFORE, pservers=2) as other:
        trainer = other.trainers[0]
        for _ in range(3):
            trainer.train(LINES)
        trainer.save("checkpoint", "checkpoint")
        files = {f"000/{file.name}": file.read_bytes() for file in other.files("checkpoint")}
        dense = {f"001/{file.name}": file.read_bytes() for file in other.dense_files("checkpoint")}
        trainer.export(scratch / "export")
        pooled = {slot: trainer.pull([line[2][slot][0] for line in LINES]) for slot in BEFORE}
        # Slots that only one of the two models has are absent.
        pooled["b"] = pooled["d"] = [[0.0] * DIM for _ in LINES]
        scores = trainer.score(rows_of(pooled, BEFORE))
        return Other(files, dense, other.rows("checkpoint"), scratch / "export" / "network", pooled, scores)


def rows_of(pooled: dict[str, list[list[float]]], slots: tuple[str, ...]) -> list[list[float]]:
    return np.concatenate([pooled[slot] for slot in slots], axis=1).tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def deepfm(tmp_path_factory: pytest.TempPathFactory) -> Other:
    return trained(tmp_path_factory.mktemp("deepfm"), {"name": "deepfm", "layers": [8, 4]})


def begun(started: StartedEngine, other: Other) -> tuple[Trainer, str]:
    for name, content in other.files.items():
        started.give("load", name, content)
    trainer = started.trainers[0]
    trainer.load_tables("load")
    return trainer, trainer.initialise_from(other.folder, BEFORE)


@pytest.mark.parametrize("pservers", [1, 3])
def test_a_table_is_loaded_under_other_slots_and_by_any_number_of_servers(
    tmp_path: Path, deepfm: Other, pservers: int
) -> None:
    with engine(tmp_path, model_of({"name": "dcn-v2", "layers": [4]}), NOW, pservers=pservers) as started:
        trainer, _ = begun(started, deepfm)

        assert started.saved() == deepfm.rows
        trainer.train([(1, 1, {"c": [7]})])
        after = started.saved()

    # Key 7 was one of slot a: the row goes on, whatever the slot that it comes in.
    assert after[7].show == deepfm.rows[7].show + 1
    assert {key: row for key, row in after.items() if key != 7} == {k: r for k, r in deepfm.rows.items() if k != 7}


NETWORKS = [
    {"name": "deepfm", "layers": [8, 4]},
    {"name": "wide-deep", "layers": [20]},  # as many as the places of the inputs after a slot is exchanged
]
OTHERS = [
    {"name": "slot-dnn", "layers": [8]},
    {"name": "dcn-v2", "layers": [8], "crossLayers": 2},
    {"name": "deepfm", "layers": [8], "layerNorm": True},
]
# tests/contract/test_start_from.py has the first two in every run.
SELDOM = [pytest.param(each, marks=pytest.mark.nightly) for each in OTHERS]


@pytest.mark.parametrize(
    "network", [*NETWORKS, *SELDOM], ids=lambda each: each["name"] + ("-norm" if "layerNorm" in each else "")
)
def test_the_network_answers_as_before_where_the_slots_that_only_one_has_are_absent(
    tmp_path: Path, network: dict[str, Any]
) -> None:
    other = trained(tmp_path / "other", network)
    with engine(tmp_path / "now", model_of(network), NOW, pservers=1) as started:
        first = started.trainers[0].score(rows_of(other.pooled, NOW))
        trainer, sentence = begun(started, other)
        scores = trainer.score(rows_of(other.pooled, NOW))

        assert np.abs(np.array(scores) - other.scores).max() < 1e-5, sentence
        assert np.abs(np.array(first) - other.scores).max() > 1e-3, "any values would have answered so"
        trainer.train(LINES)
        assert trainer.score(rows_of(other.pooled, NOW)) != scores


def test_another_network_begins_anew_where_its_answers_would_be_no_nearer(tmp_path: Path, deepfm: Other) -> None:
    with engine(tmp_path, model_of({"name": "lr"}), NOW, pservers=1) as started:
        first = started.trainers[0].parameters()
        trainer, sentence = begun(started, deepfm)

        assert trainer.parameters() == first
    assert sentence.startswith("nothing")


def test_equal_networks_have_one_digest_whatever_the_learning_rate() -> None:
    one, other = model_of({"name": "fm"}), model_of({"name": "fm"}, dense={"learningRate": 0.1})
    given = ModelInput(("a", "b"))

    assert trained_model(one, given) == trained_model(other, given)
    assert trained_model(one, given) != trained_model(one, ModelInput(("b", "a")))
    assert trained_model(one, given) != trained_model(model_of({"name": "deepfm"}), given)
