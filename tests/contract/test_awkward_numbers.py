"""Rows that no format refuses and that no model can predict, beside ordinary ones, with the real engine."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.awkward_numbers import COLUMNS, FLOATS, rows

DRIVER = Path(__file__).with_name("awkward_driver.py")
ROOT = DRIVER.parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("awkward")
    command = [sys.executable, str(DRIVER), str(folder)]
    path = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests' / 'unit'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=path, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_there_are_two_hundred_awkward_floats() -> None:
    assert len(FLOATS) >= 200


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_no_row_ends_training_whatever_float_is_in_whatever_column(found: Any, form: str) -> None:
    one, given = found[form], rows()

    assert one["finite"]
    assert one["trained"] == one["records"]
    # Each row is trained, or refused for a reason; so it is when the model has learned.
    assert one["records"] + sum(one["refused"].values()) == len(given) == one["again"]
    assert set(one["refused"]) <= {"unpredictable", "number_too_large"}
    assert one["records"] > len(given) - len(FLOATS)
    assert len(one["quarantine"]) > 20
    for each in one["quarantine"]:
        assert re.search(r"'?\b(raw|scaled)\b", each["detail"])
    if form == "parquet":
        for row in (given[each["offset"]] for each in one["quarantine"]):
            assert abs(float(row["raw"])) > 1e3 or abs(float(row["scaled"])) > 1e20


def test_ordinary_columns_are_never_to_blame(found: Any) -> None:
    refused = {(each["offset"]) for each in found["parquet"]["quarantine"]}

    numbers = {COLUMNS.index("raw"), COLUMNS.index("scaled")}

    assert {(number - 1000) % len(COLUMNS) for number in refused} <= numbers
    assert min(refused) >= 1000


def test_a_batch_that_is_no_number_is_not_pushed_and_is_called_a_divergence(found: Any) -> None:
    assert "a prediction is not a number, so the training has diverged: lower the learning rates" in found["diverged"]
