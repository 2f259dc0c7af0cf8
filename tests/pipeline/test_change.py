"""A model is changed without starting from zero: a feature more, a feature less, another network, in the same store."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.change import BEFORE, HOURS, NOW, row, write_hour

from elastic_ctr.operate.local.endpoints import predict_rows
from pipeline.running import Run, values_for

ROWS = 6000


def values_of(data: Path, hours: Sequence[str], features: dict[str, Any], **model: Any) -> dict[str, Any]:
    return values_for(
        data,
        None,
        hours[0],
        hours[-1],
        data={"format": "csv", "label": "clicked"},
        features=features,
        model=model,
        trainer={"replicas": 1, "config": {"batchSize": 64, "epochs": 3}},
        pserver={"replicas": 2},
        # Callers send the columns of both models.
        serving={"config": {"ignoreUnknown": True}},
    )


# tests/contract/test_start_from.py has another model's checkpoint in the real engine, tests/unit/training/master/test_publishing_hold.py a
# changed model that is worse, and test_operating.py the rollback.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_model_with_a_feature_more_and_one_less_goes_on_where_the_old_one_stood(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    dice = random.Random(11)
    data = tmp_path / "data"
    for hour in HOURS:
        write_hour(data / hour, [row(dice) for _ in range(ROWS)], dice)
    asked = [row(dice) for _ in range(100)]
    old = Run(tmp_path / "run", values_of(data, HOURS, BEFORE))
    with old.session.running():
        before = old.finish(400)
        answers, _ = predict_rows(old.places.serving, "ctr", asked)
    first_version, last_version = (each["version"] for each in before["passes"])

    # The same store and cube; the ledger alone begins anew, with the second hour.
    shutil.rmtree(tmp_path / "run" / "state" / "master")
    start_from = {"version": first_version}
    new = start(values_of(data, HOURS[1:], NOW, startFrom=start_from), "run")
    after = new.finish(400)

    [changed], unchanged = after["passes"], before["passes"][1]
    print(
        f"old {unchanged['aucBefore']:.4f} {unchanged['auc']:.4f}, new {changed['aucBefore']:.4f} {changed['auc']:.4f}"
    )
    assert changed["aucBefore"] > unchanged["aucBefore"] - 0.003
    assert changed["auc"] > unchanged["auc"] - 0.003
    assert after["ledger"]["trained"] == ROWS
    assert changed["kind"] == "base"
    assert changed["maxAbsDiff"] < 1e-5
    _, versions = predict_rows(new.places.serving, "ctr", asked)
    assert set(versions) == {after["live"]}
    assert after["live"] > last_version
    started = new.status.started_from
    assert started is not None
    assert started.version == first_version
    assert "parameters" in started.network

    # The old model, with its own features, network and statistics, is served by the new pods.
    arguments = ("--transfer", new.places.transfer, "--token-file", str(new.places.folder / "tokens" / "operate"))
    done = subprocess.run(
        [sys.executable, "-m", "elastic_ctr", "rollback", str(last_version), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    new.until(lambda: new.session.live == last_version, 120, "the old version is live")
    new.until(
        lambda: set(predict_rows(new.places.serving, "ctr", asked)[1]) == {last_version}, 120, "it answers predictions"
    )
    assert np.allclose(predict_rows(new.places.serving, "ctr", asked)[0], answers, rtol=0, atol=1e-6)
