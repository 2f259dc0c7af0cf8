"""A spare network with the parameters of another version answers as that version loaded anew."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.test_networks import CASES as SMALL
from contract.test_networks import DIM, SLOTS, name_of

DRIVER = Path(__file__).with_name("spare_networks_driver.py")
CASES = [*SMALL, "doubled"]
# What must be refused, or is noticed by a trial.
# Of a matrix of multiples of 128 Paddle keeps a padded copy, whose name counts those of the process.
WIDE = {
    "model": {"network": {"name": "slot-dnn", "layers": [128, 128]}, "embeddingDim": DIM, "output": "sigmoid"},
    "slots": SLOTS,
    "numbers": 0,
}
NOT_RENEWED = [WIDE, "whole_numbers", "constant", "folded"]


def name(case: Any) -> str:
    return case if isinstance(case, str) else name_of(case)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("spare")
    (folder / "cases.json").write_text(json.dumps([*CASES, *NOT_RENEWED]))
    command = (sys.executable, DRIVER, folder / "cases.json", folder)
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads((folder / "answers.json").read_text())
    return found


@pytest.mark.parametrize("place", range(len(CASES)), ids=map(name, CASES))
def test_each_network_is_used_again_and_answers_as_one_loaded_anew(answers: list[dict[str, Any]], place: int) -> None:
    answer = answers[place]

    assert answer["again"]
    assert answer["wrong"] <= 1e-6
    assert answer["apart"] > 0.01


@pytest.mark.parametrize("place", range(len(NOT_RENEWED)), ids=map(name, NOT_RENEWED))
def test_a_program_of_which_paddle_may_keep_results_is_loaded_anew(answers: list[dict[str, Any]], place: int) -> None:
    answer = answers[len(CASES) + place]

    assert not answer["again"]
    assert answer["wrong"] == 0
    assert answer["apart"] > 0.01
