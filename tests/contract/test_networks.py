"""Every network as Paddle computes it, beside numpy."""

import json
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from contract.engine_world import Clicks, engine
from elastic_ctr.config.model import WITHOUT_LAYERS, Model, NetworkName

DRIVER = Path(__file__).with_name("network_driver.py")
SLOTS, DIM, LAYERS = 4, 3, [6, 5]
CASES: list[dict[str, Any]] = [
    {
        "model": {"network": network, "embeddingDim": DIM, "layers": LAYERS, "output": output},
        "slots": SLOTS,
        "numbers": numbers,
    }
    for network, output, numbers in product(get_args(NetworkName), ("sigmoid", "softmax"), (0, 2))
    if output == "sigmoid" or network not in WITHOUT_LAYERS
]

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """What Paddle computed, a case each."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "cases.json").write_text(json.dumps(CASES))
    command = (sys.executable, DRIVER, folder / "cases.json", folder)
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = []
    for place in range(len(CASES)):
        with np.load(folder / f"{place}.npz") as arrays:
            found.append({name: arrays[name].astype(np.float64) for name in arrays})
    return found


def tower(row: Array, w: Weights) -> float:
    for number in range(len(LAYERS)):
        row = np.maximum(row @ w[f"fc{number}.w"] + w[f"fc{number}.b"], 0)
    classes = row @ w["out.w"] + w["out.b"]
    return float(classes[1] - classes[0] if len(classes) == 2 else classes[0])


def first_order(values: Array, numbers: Array, w: Weights) -> float:
    weights = w["numbers.w"][:, 0] if len(numbers) else ()
    return float(sum(values[:, 0]) + sum(x * weight for x, weight in zip(numbers, weights, strict=True)))


def pairs(values: Array, numbers: Array, w: Weights) -> float:
    """Each pair by itself."""
    vectors = [*values[:, 1:], *(x * vector for x, vector in zip(numbers, w.get("numbers.v", ()), strict=True))]
    return float(sum(one @ other for one, other in combinations(vectors, 2)))


def expected(network: str, pooled: Array, numbers: Array, w: Weights) -> float:
    """The logit of a row, by the formula of the network's paper."""
    values = pooled.reshape(SLOTS, DIM)
    deep = [*values[:, 1:].reshape(-1), *numbers]
    if network == "slot-dnn":
        return tower(np.array([*pooled, *numbers]), w)
    if network == "wide-deep":
        return first_order(values, numbers, w) + tower(np.array(deep), w)
    if network == "deepfm":
        return first_order(values, numbers, w) + pairs(values, numbers, w) + tower(np.array(deep), w)
    if network == "lr":
        return first_order(values, numbers, w) + float(w["bias"][0])
    assert network == "fm"
    return first_order(values, numbers, w) + pairs(values, numbers, w) + float(w["bias"][0])


def name_of(case: dict[str, Any]) -> str:
    return f"{case['model']['network']}, {case['model']['output']}, {case['numbers']} numbers"


def logits(case: dict[str, Any], arrays: Weights, pooled: Array) -> Array:
    numbers = arrays.get("numbers", np.zeros((len(pooled), 0)))
    return np.array(
        [expected(case["model"]["network"], row, own, arrays) for row, own in zip(pooled, numbers, strict=True)]
    )


@pytest.mark.parametrize("place", range(len(CASES)), ids=[name_of(case) for case in CASES])
def test_a_logit_is_what_the_formula_says(computed: list[Weights], place: int) -> None:
    arrays = computed[place]

    assert arrays["logit"].shape == (5, 1)
    due = logits(CASES[place], arrays, arrays["pooled"])
    assert np.ptp(due) > 0.1
    assert np.abs(arrays["logit"][:, 0] - due).max() < 1e-5 * max(1.0, np.abs(due).max())


@pytest.mark.parametrize("place", range(len(CASES)), ids=[name_of(case) for case in CASES])
def test_a_value_learns_by_the_slope_of_the_formula(computed: list[Weights], place: int) -> None:
    """By differences of the formula in float64: what goes back to the table is what the network's paper says."""
    arrays, step = computed[place], 1e-6
    for value in range(SLOTS * DIM):
        moved = np.zeros(SLOTS * DIM)
        moved[value] = step
        more, less = (logits(CASES[place], arrays, arrays["pooled"] + sign * moved) for sign in (1, -1))
        assert np.abs(arrays["slopes"][:, value] - (more - less) / (2 * step)).max() < 1e-3


CLICKED, IGNORED = 11, 12


@pytest.mark.parametrize("network", ["lr", "fm", "wide-deep"])
def test_the_parameter_servers_learn_what_a_network_is_shown(tmp_path: Path, network: str) -> None:
    model = Model.model_validate({"network": network, "embeddingDim": DIM, "layers": LAYERS, "partitions": 4})
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
