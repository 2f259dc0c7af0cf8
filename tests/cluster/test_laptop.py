"""A version made on one machine answers the same in the cluster, from the same values."""

import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.conftest import BUILD, small_values
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.release import RESTRICTED, Release, Values, merged, released
from elastic_ctr.config.load import settings
from elastic_ctr.config.values import Values as LocalValues
from elastic_ctr.local.doors import DoorClosed, predict
from elastic_ctr.local.plan import Places
from elastic_ctr.local.session import Session

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-laptop"
# What is the program's is the same there as here.
SHARED: Values = {"model": {"partitions": 12, "embeddingDim": 9, "layers": [64, 32]}}


def published(folder: Path) -> tuple[Path, int, list[str], list[float]]:
    """A whole local run of one hour: its store, its version, and what its own serving answers to lines."""
    import subprocess

    hours = folder / "hours"
    synth = ["synth", "--hours", "1", "--rows", "10000", "--seed", "5", "--force", str(hours)]
    subprocess.run([sys.executable, "-m", "elastic_ctr", *synth], check=True, capture_output=True)
    data: Values = yaml.safe_load((hours / "values.yaml").read_text())
    values = merged(merged(data, SHARED), {"data": {"sleepSeconds": 1}})
    places = Places(folder / "run", settings(LocalValues, values, "values"))
    with Session(places).running() as session:

        def live() -> int | None:
            session.look()
            return session.live

        version = eventually("the version is live on this machine", live, 240, 0.2)
        store = Path(places.store_url.removeprefix("file://"))
        samples = (store / "output" / "ctr_model" / str(version) / "sample.jsonl").read_text().splitlines()
        lines = [json.loads(line)["line"] for line in samples]

        def answered() -> tuple[list[float], list[int]] | None:
            session.look()
            try:
                return predict(places.serving, "ctr", lines)
            except DoorClosed:
                return None

        probabilities, versions = eventually("serving answers on this machine", answered, 60)
    assert set(versions) == {version}
    return store, version, lines, probabilities


@pytest.mark.timeout(600)
def test_a_version_of_the_laptop_answers_the_same_in_the_cluster(
    kube: Kube, hadoop: Hadoop, tmp_path: Path, tell: Callable[..., None]
) -> None:
    store, version, lines, here = published(tmp_path)
    kube.namespace(NAMESPACE, RESTRICTED)
    off: Values = {"serving": {"service": {"type": "ClusterIP", "nodePort": None}}, "training": {"enabled": False}}
    values = merged(merged(small_values(hadoop, "/none"), SHARED), off)

    with released(Release(kube, "laptop", NAMESPACE, BUILD / "values"), values) as release:
        server = name_of(eventually("the store is up", lambda: _pod(release), 120))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(store / "output", arcname="output")
        kube.exec(NAMESPACE, server, "file-server", "tar", "-xf", "-", "-C", "/data/store", stdin=packed.getvalue())
        assert release.wait_live() == version
        with kube.forwarded(NAMESPACE, "svc/laptop-serving", 8400) as address:
            there, versions = eventually("serving answers there", lambda: _ask(address, lines), 60)

    worst = max(abs(a - b) for a, b in zip(here, there, strict=True))
    tell(lines=len(lines), maxAbsDiff=worst)
    assert set(versions) == {version}
    assert worst <= 1e-6


def _pod(release: Release) -> dict[str, Any] | None:
    try:
        return release.pod("file-server")
    except LookupError:
        return None


def _ask(address: str, lines: list[str]) -> tuple[list[float], list[int]] | None:
    try:
        return predict(address, "ctr", lines)
    except DoorClosed:
        return None
