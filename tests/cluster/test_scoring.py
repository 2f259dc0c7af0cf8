"""Jobs of pods that score hours with a version in the store, beside what serving answers. Not run yet: it was written without a cluster."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from cluster.kube import Kube
from cluster.release import Release

pytestmark = pytest.mark.functional


def command(kube: Kube, *words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "elastic_ctr", *words],
        env=kube.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(480)
def test_pods_evaluate_the_hours_that_were_trained(kube: Kube, settled: Release, tell: Callable[..., None]) -> None:
    status = settled.wait_passes(1)
    live = settled.wait_live()
    first = status["passes"][0]
    where = ("--namespace", settled.namespace, "--release", settled.name, "--pods", "2")

    done = command(
        kube, "evaluate", *where, "--version", "live", "--from", first["pass"], "--to", first["pass"], "--json"
    )
    again = command(kube, "predict", *where, "--version", str(live), "--from", first["pass"], "--to", first["pass"],
                    "--output", "scores/cluster-test")  # fmt: skip

    report = json.loads(done.stdout)
    tell(report=report["total"])
    assert report["version"] == live
    assert report["total"]["rows"] == first["records"] + first["refused"]
    assert report["total"]["auc"] is not None
    assert f"{report['total']['rows']:,} rows with version {live}" in again.stderr
