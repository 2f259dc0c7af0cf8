"""Hours scored with a version that was trained and is served: by the commands of docs/scoring.md, beside the served answers."""

import csv
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.operate.local.endpoints import predict_rows
from pipeline.running import Run, values_for
from raw_rows import FEATURES, Row, random_row, write_hour

PAGE = Path(__file__).parents[2] / "docs" / "scoring.md"
ROWS = 3000


def command(folder: Path, line: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=200)
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
    run = start(values, folder="elastic-ctr-local")
    report = run.finish(200)
    transfer = f"127.0.0.1:{values['cubeTransfer']['config']['port']}"
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "values.yaml").write_text((run.places.folder / "values.yaml").read_text())
    predict, evaluate = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0].splitlines()

    done = command(tmp_path, f"{predict} --version live --transfer {transfer} --copy user,item")
    trained = json.loads(command(tmp_path, ".venv/bin/elastic-ctr evaluate -f values.yaml --json").stdout)
    evaluated = json.loads(command(tmp_path, f"{evaluate} --json").stdout)

    assert f"version {report['live']}:" in done.stderr
    served, versions = predict_rows(run.places.serving, "ctr", later)
    assert set(versions) == {report["live"]}
    files = sorted((tmp_path / "scores/20200402/00").iterdir())
    assert len(files) > 1
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    scored = np.array([float(row["probability"]) for row in rows])
    assert np.abs(scored - np.array(served)).max() < 1e-6
    assert np.ptp(scored) > 0.2
    assert [(row["user"], row["item"]) for row in rows] == [
        (each.get("user", ""), str(each.get("item", ""))) for each in later
    ]
    assert (trained["version"], trained["total"]["rows"]) == (report["live"], 2 * ROWS)
    assert list(trained["splits"]) == ["20200401/00", "20200401/01"]
    assert evaluated["total"]["rows"] == 1000
    assert evaluated["total"]["auc"] > 0.6
    assert 0.7 < evaluated["total"]["calibration"] < 1.4
