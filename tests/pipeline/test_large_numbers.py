"""Numbers far from 1: learned by an unedited import, and no version of a model that they have spoilt.

`nightly`: what the engine makes of such numbers. Numbers that are too large are refused in test_intake_streams.py, the proposals of an import
are in tests/unit/operate/cli, and versions without use are refused in tests/unit/training/master/test_pass_quality.py.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.load import read_yaml
from elastic_ctr.training.model.evaluation import weighted_auc
from pipeline.running import TRAINING, Run, values_for
from pipeline.test_import import imported

RATES = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.6)
ROWS = 6000
pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]


def log_of(folder: Path, *damaged: str) -> float:
    """Clicks by `site` alone, beside an `x` of millions, in two hours; some rows of the first have another x. The AUC of the truth."""
    dice = random.Random(1)
    lines, truth, clicks = ["site,x,click"], [], []
    for row in range(ROWS):
        site = dice.randrange(len(RATES))
        truth.append(RATES[site])
        clicks.append(int(dice.random() < RATES[site]))
        x = damaged[row // 100] if row % 100 == 0 and row // 100 < len(damaged) else f"{dice.uniform(1e6, 9e6):.3f}"
        lines.append(f"s{site},{x},{clicks[-1]}")
    (folder / "clicks.csv").write_text("\n".join(lines) + "\n")
    return weighted_auc(truth, clicks, [1] * ROWS) or 0.0


def trained(folder: Path, **feature: Any) -> Run:
    """Two hours of 3,000 rows, as `import csv` proposes them; `feature` changes that of x."""
    imported("csv", folder / "clicks.csv", "--label", "click", "--rows-per-hour", str(ROWS // 2), folder / "hours")
    proposed = read_yaml(folder / "hours" / "values.yaml")
    features = {**proposed["features"], "x": {**proposed["features"]["x"], **feature}}
    given = values_for(
        folder / "hours", None, proposed["data"]["start"], proposed["data"]["end"],
        data={"format": "csv", "label": "click", "maxRefusedShare": 0.01},
        # What the proposal leaves to the defaults.
        model={"network": {"name": "deepfm", "layers": [400, 400, 400]}},
        trainer={"replicas": 1, "config": {"batchSize": "auto"}}, pserver={"replicas": 1}, features=features,
    )  # fmt: skip
    run = Run(folder / "run", given, TRAINING)
    with run.session.running():
        run.until(lambda: bool(run.status.finished), 500, "two hours")
    return run


def test_numbers_of_millions_and_damaged_ones_cost_nothing_of_an_unedited_import(tmp_path: Path) -> None:
    best = log_of(tmp_path, "1e30", "1e12", "1e308", "5e-324", "-0.0", "-1e19")

    run = trained(tmp_path)

    status = run.status
    first, second = status.passes
    assert second.auc_before == pytest.approx(best, abs=0.02)
    assert (second.auc_before or 0) >= 0.77
    assert (first.refused, second.refused) == (2, 0)
    assert [each.state for each in status.versions] == ["published", "published"]
    lines = [
        json.loads(line)
        for file in (tmp_path / "run/store/quarantine").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    details = [f"the column 'x' is {x}; a number has a size of at most 1e+20." for x in ("1e+30", "1e+308")]
    assert sorted(each["detail"] for each in lines) == sorted(details)


def test_a_model_that_raw_numbers_have_spoilt_does_not_go_live_and_says_why(tmp_path: Path) -> None:
    log_of(tmp_path)
    file = tmp_path / "clicks.csv"
    # In sizes that the network takes.
    header, *rows = file.read_text().splitlines()
    smaller = [f"{site},{float(x) / 10:.4f},{click}" for site, x, click in (row.split(",") for row in rows)]
    file.write_text("\n".join([header, *smaller]) + "\n")

    run = trained(tmp_path, transform=[])

    status = run.status
    assert [each.state for each in status.versions] == ["refused", "refused"]
    for each, version in zip(status.passes, status.versions, strict=True):
        assert (each.quality.moments[1].logloss or 0) > 1
        assert "it would rank nothing; look at the scale of the numbers" in version.reason
