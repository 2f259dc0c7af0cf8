"""Every network as Paddle computes it, beside numpy."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.engine_world import Clicks, engine
from contract.network_formulas import FORMULAS, Array, Row, Weights
from elastic_ctr.config.model import Model
from elastic_ctr.config.networks import NETWORKS, WITHOUT_LAYERS

DRIVER = Path(__file__).with_name("network_driver.py")
SLOTS, DIM = 4, 3
VARIANTS: list[dict[str, Any]] = [
    {"name": "slot-dnn", "layers": [6, 5]},
    {"name": "lr"},
    {"name": "fm"},
    {"name": "wide-deep", "layers": [6, 5]},
    {"name": "deepfm", "layers": [6, 5]},
    {"name": "deepfm", "layers": [6, 5], "layerNorm": True},
    {"name": "dcn", "crossLayers": 2, "layers": [6, 5]},
    {"name": "dcn", "crossLayers": 2, "layers": []},
    {"name": "dcn-v2", "crossLayers": 2, "layers": [6, 5]},
    {"name": "dcn-v2", "crossLayers": 2, "layers": [], "rank": 2},
    {"name": "dcn-v2", "crossLayers": 2, "layers": [6, 5], "rank": 2, "structure": "stacked"},
    {"name": "xdeepfm", "cinLayers": [3, 2], "layers": [6, 5]},
    {"name": "xdeepfm", "cinLayers": [3], "layers": []},
    {"name": "autoint", "attentionLayers": 2, "heads": 2, "headDim": 3, "layers": []},
    {"name": "autoint", "attentionLayers": 1, "heads": 3, "headDim": 2, "layers": [6, 5]},
    {"name": "final-mlp", "layers": [6, 4], "secondLayers": [8], "heads": 2},
    {
        "name": "final-mlp",
        "layers": [4],
        "secondLayers": [6],
        "heads": 2,
        "gating": True,
        "gateLayers": [3],
        "layerNorm": True,
    },
]
# Dropout is set and must change nothing here: this is how networks are exported.
CASES: list[dict[str, Any]] = [
    {
        "model": {
            "network": network if network["name"] in WITHOUT_LAYERS else {**network, "dropout": 0.5},
            "embeddingDim": DIM,
            "output": output,
        },
        "slots": SLOTS,
        "numbers": numbers,
    }
    for network, output, numbers in product(VARIANTS, ("sigmoid", "softmax"), (0, 2))
    if output == "sigmoid" or network["name"] not in WITHOUT_LAYERS
]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """What Paddle computed, a case each."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "cases.json").write_text(json.dumps(CASES))
    command = (sys.executable, DRIVER, folder / "cases.json", folder)
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = []
    for place in range(len(CASES)):
        with np.load(folder / f"{place}.npz") as arrays:
            found.append({name: arrays[name].astype(np.float64) for name in arrays})
    return found


def name_of(case: dict[str, Any]) -> str:
    network = {key: value for key, value in case["model"]["network"].items() if key not in ("name", "dropout")}
    own = ", ".join(f"{key} {value}" for key, value in network.items())
    return f"{case['model']['network']['name']}, {own}, {case['model']['output']}, {case['numbers']} numbers"


def logits(case: dict[str, Any], arrays: Weights) -> Array:
    network, pooled = case["model"]["network"], arrays["pooled"]
    numbers = arrays.get("numbers", np.zeros((len(pooled), 0)))
    formula = FORMULAS[network["name"]]
    return np.array(
        [formula(Row(row.reshape(SLOTS, DIM), own, arrays, network)) for row, own in zip(pooled, numbers, strict=True)]
    )


def test_every_network_there_is_is_compared() -> None:
    assert {each["name"] for each in VARIANTS} == NETWORKS.keys()


@pytest.mark.parametrize("place", range(len(CASES)), ids=[name_of(case) for case in CASES])
def test_a_logit_is_what_the_formula_says(computed: list[Weights], place: int) -> None:
    arrays = computed[place]

    assert arrays["logit"].shape == (5, 1)
    due = logits(CASES[place], arrays)
    assert np.ptp(due) > 0.1
    assert np.abs(arrays["logit"][:, 0] - due).max() < 1e-5 * max(1.0, np.abs(due).max())


@pytest.mark.parametrize("place", range(len(CASES)), ids=[name_of(case) for case in CASES])
def test_values_and_parameters_learn_by_the_slopes_of_the_formula(computed: list[Weights], place: int) -> None:
    """By differences of the formula in float64, a few entries of each: what is pushed is what the network's paper says."""
    arrays, step = computed[place], 1e-6
    dice = np.random.default_rng(place)
    learned = [name.removeprefix("slope of ") for name in arrays if name.startswith("slope of ")]
    assert "pooled" in learned
    for name in learned:
        for entry in dice.permutation(arrays[name].size)[:6].tolist():
            moved = np.zeros(arrays[name].size)
            moved[entry] = step
            more, less = (
                logits(CASES[place], {**arrays, name: arrays[name] + sign * moved.reshape(arrays[name].shape)}).sum()
                for sign in (1, -1)
            )
            due = (more - less) / (2 * step)
            found = arrays[f"slope of {name}"].reshape(-1)[entry]
            assert abs(found - due) < 1e-3 * max(1.0, abs(due)), (name, entry)


CLICKED, IGNORED = 11, 12


# tests/contract/test_networks.py has wide-deep in every run, and the slopes of each network above.
SELDOM = [pytest.param(each, marks=pytest.mark.nightly) for each in ("lr", "fm")]


@pytest.mark.parametrize("network", [*SELDOM, "wide-deep"])
def test_the_parameter_servers_learn_what_a_network_is_shown(tmp_path: Path, network: str) -> None:
    model = Model.model_validate({"network": network, "embeddingDim": DIM, "partitions": 4})
    lines: list[Clicks] = [(1, 1, {"a": [CLICKED], "b": [5]}), (1, 0, {"a": [IGNORED], "b": [5]})]
    with engine(tmp_path, model) as started:
        [trainer] = started.trainers
        trainer.train(lines * 20)
        rows = started.saved()

    assert {key: (row.show, row.click) for key, row in rows.items()} == {
        CLICKED: (20, 20),
        IGNORED: (20, 0),
        5: (40, 20),
    }
    assert rows[CLICKED].rest[0] > 0 > rows[IGNORED].rest[0]
