"""A version that one machine trained and published answers the same in the cluster."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import BUILD, small_values
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.laptop import SHARED, Laptop, run_on_laptop
from cluster.release import RESTRICTED, Release, Values, merged, released
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-laptop"


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    """A base and a delta: how well they were trained is compared in test_releases.py."""
    return run_on_laptop(tmp_path, count=2, rows=20_000)


@pytest.mark.timeout(600)
def test_a_version_of_the_laptop_answers_the_same_in_the_cluster(
    kube: Kube, hadoop: Hadoop, laptop: Laptop, tell: Callable[..., None]
) -> None:
    kube.namespace(NAMESPACE, RESTRICTED)
    off: Values = {"serving": {"service": {"type": "ClusterIP", "nodePort": None}}, "training": {"enabled": False}}
    values = merged(merged(small_values(hadoop.url, "/none"), SHARED), off)

    with released(Release(kube, "laptop", NAMESPACE, BUILD / "values"), values) as release:
        server = name_of(eventually("the store is up", lambda: _pod(release), 120))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(laptop.store / "output", arcname="output")
        kube.exec(NAMESPACE, server, "file-server", "tar", "-xf", "-", "-C", "/data/store", stdin=packed.getvalue())
        assert release.wait_live() == laptop.version
        # Until it is ready nobody listens, and kubectl gives up over the first connection that is refused.
        release.wait_rolled_out()
        with kube.forwarded(NAMESPACE, "svc/laptop-serving", 8400) as address:
            there, versions = eventually("serving answers there", lambda: _ask(address, laptop.lines), 60)

    worst = max(abs(a - b) for a, b in zip(laptop.probabilities, there, strict=True))
    tell(lines=len(laptop.lines), maxAbsDiff=worst)
    assert set(versions) == {laptop.version}
    assert worst <= 1e-6


def _pod(release: Release) -> dict[str, Any] | None:
    try:
        return release.pod("file-server")
    except LookupError:
        return None


def _ask(address: str, lines: list[str]) -> tuple[list[float], list[int]] | None:
    try:
        return predict(address, "ctr", lines)
    except EndpointUnavailable:
        return None
