"""Serving pods by load: more while it lasts, fewer after it, and never fewer than were there when it was turned on."""

import time
from collections.abc import Callable

import pytest

from cluster.conftest import CUBE_IMAGE
from cluster.kube import Kube, KubectlFailed, eventually, is_ready
from cluster.load import Load, all_right
from cluster.release import Release, Values

# The autoscaler's objects, and the replicas that a release leaves to it, are in tests/chart/test_disruption.py. Only a cluster has load to scale by.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]


def scaling(most: int, least: int = 1) -> Values:
    return {
        "serving": {
            "autoscaling": {
                "enabled": True,
                "minReplicas": least,
                "maxReplicas": most,
                "targetCPUUtilizationPercentage": 60,
                "scaleDownStabilizationSeconds": 15,
            }
        }
    }


def turn_off(release: Release, base_values: Values) -> None:
    """As docs/operations/rescale.md says: the autoscaler remains an owner of the count until another one is forced once."""
    release.upgrade(base_values, "--force-conflicts")
    eventually("the autoscaler has gone", lambda: not release.kube.all("hpa", release.namespace), 60)
    release.change({"serving": {"replicas": 2}}, "--force-conflicts")
    release.upgrade(base_values)


@pytest.fixture(autouse=True)
def metrics_server(kube: Kube) -> None:
    try:
        kube.run("top", "nodes")
    except KubectlFailed as absent:
        pytest.skip(f"no metrics server: {absent}")


@pytest.mark.timeout(420)
def test_serving_grows_under_load_and_shrinks_after_it(
    settled: Release, base_values: Values, workers: list[str], tell: Callable[..., None]
) -> None:
    asking = Load(settled, CUBE_IMAGE, workers[-1], rates={"predict": 150})
    try:
        settled.change(scaling(2))
        asking.start()
        start = time.monotonic()
        eventually("two serving pods answer", lambda: _ready(settled) == 2, 180, 1)
        grown = round(time.monotonic() - start, 1)
        totals = asking.stop()
        start = time.monotonic()
        eventually("one serving pod is left", lambda: _ready(settled) == 1, 180, 1)
        tell(secondsToGrow=grown, secondsToShrink=round(time.monotonic() - start, 1), totals=totals)
        all_right(totals)
    finally:
        asking.remove()
        turn_off(settled, base_values)


@pytest.mark.timeout(300)
def test_turned_on_at_three_it_never_shows_fewer(
    settled: Release, base_values: Values, kube: Kube, tell: Callable[..., None]
) -> None:
    try:
        settled.change({"serving": {"replicas": 3}})
        settled.wait_rolled_out()

        settled.change({"serving": {"replicas": 3, **scaling(4, 3)["serving"]}})
        seen = set()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            deployment = kube.get("deployment", f"{settled.name}-serving", settled.namespace)
            assert deployment is not None
            seen.add(deployment["spec"]["replicas"])
            time.sleep(0.5)
        # And once more, with an autoscaler that is there already.
        settled.change({"serving": {"podAnnotations": {"again": "yes"}}})
        deployment = kube.get("deployment", f"{settled.name}-serving", settled.namespace)
        assert deployment is not None
        tell(seen=sorted(seen))
        assert min(seen) >= 3
        assert deployment["spec"]["replicas"] >= 3
    finally:
        turn_off(settled, base_values)


def _ready(release: Release) -> int:
    return sum(map(is_ready, release.pods("serving")))
