"""Hours scored with a version that was trained and is served: by the commands, beside the served answers."""

import csv
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.local.endpoints import predict_rows
from pipeline.running import Run, values_for
from raw_rows import FEATURES, Row, random_row, write_hour

ROWS = 3000


def command(*words: object) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "elastic_ctr", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(280)
def test_rows_are_scored_as_they_are_served(tmp_path: Path, start: Callable[..., Run]) -> None:
    dice = random.Random(7)
    data = tmp_path / "data"
    for hour in range(2):
        write_hour(data / "20200401" / f"{hour:02d}", [random_row(dice) for _ in range(ROWS)], dice)
    # Of an hour that the training has not seen: nothing of it is in the statistics.
    later: list[Row] = [random_row(dice) for _ in range(1000)]
    write_hour(data / "20200402" / "00", later, dice)
    values = values_for(
        data,
        None,
        "20200401/00",
        "20200401/01",
        data={"format": "csv", "label": "clicked", "taskBytes": 20_000},
        features=FEATURES,
        model={"network": "deepfm"},
        trainer={"replicas": 1, "config": {"batchSize": 32, "epochs": 4}},
        pserver={"replicas": 1},
        cubeTransfer={"config": {"overlayShare": 1.0}},
    )
    run = start(values)
    report = run.finish(200)
    transfer = f"127.0.0.1:{values['cubeTransfer']['config']['port']}"
    given = ("-f", run.places.folder / "values.yaml", "--store", run.places.folder / "store")
    hours = ("--from", "20200402/00", "--to", "20200402/00")

    done = command(
        "predict", *given, *hours, "--version", "live", "--transfer", transfer, "-o", tmp_path / "out", "--copy", "user,item"
    )  # fmt: skip
    evaluated = json.loads(command("evaluate", *given, "--json").stdout)
    later_evaluated = json.loads(command("evaluate", *given, *hours, "--json").stdout)

    assert f"version {report['live']}" in done.stderr
    served, versions = predict_rows(run.places.serving, "ctr", later)
    assert set(versions) == {report["live"]}
    files = sorted((tmp_path / "out/20200402/00").iterdir())
    assert len(files) > 1
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    scored = np.array([float(row["probability"]) for row in rows])
    assert np.abs(scored - np.array(served)).max() < 1e-6
    assert np.ptp(scored) > 0.2
    assert [(row["user"], row["item"]) for row in rows] == [
        (each.get("user", ""), str(each.get("item", ""))) for each in later
    ]
    assert (evaluated["version"], evaluated["total"]["rows"]) == (report["live"], 2 * ROWS)
    assert list(evaluated["splits"]) == ["20200401/00", "20200401/01"]
    assert later_evaluated["total"]["rows"] == 1000
    assert later_evaluated["total"]["auc"] > 0.6
    assert 0.7 < later_evaluated["total"]["calibration"] < 1.4
