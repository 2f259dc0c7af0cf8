"""The same values on one machine and in the cluster: its versions answer the same there, its training is as good."""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.conftest import BUILD, small_values
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged, released
from elastic_ctr.cli.local import load_values
from elastic_ctr.local.endpoints import EndpointUnavailable, predict
from elastic_ctr.local.plan import Places
from elastic_ctr.local.session import Session

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-laptop"
# As many hours and clicks as `make demo` has: with fewer, which trainer pushed first decides more than 0.01 of AUC.
HOURS = tuple(f"20200401/{hour:02d}" for hour in range(4))
ROWS = 200_000
# What is the program's is the same there as here.
SHARED: Values = {
    "model": {"partitions": 12, "embeddingDim": 9, "layers": [64, 32]},
    "trainer": {"replicas": 2},
    "pserver": {"replicas": 2},
}


@dataclass(frozen=True)
class Laptop:
    """What a whole local run leaves: its hours and their values, its store, what its serving answers, its passes."""

    hours: Path
    data: Values
    store: Path
    version: int
    lines: list[str]
    probabilities: list[float]
    passes: list[dict[str, Any]]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    folder = tmp_path_factory.mktemp("laptop")
    hours = folder / "hours"
    synth = ["synth", "--hours", str(len(HOURS)), "--rows", str(ROWS), "--seed", "1", "--force", str(hours)]
    subprocess.run([sys.executable, "-m", "elastic_ctr", *synth], check=True, capture_output=True)
    shared = folder / "shared.yaml"
    shared.write_text(yaml.safe_dump(merged(SHARED, {"data": {"sleepSeconds": 1}})))
    places = Places(folder / "run", load_values([hours / "values.yaml", shared], None))
    with Session(places).running() as session:

        def live() -> int | None:
            session.look()
            done = [each for each in (session.status or {}).get("passes", []) if each["state"] == "done"]
            newest = max((each["version"] for each in done), default=None)
            return newest if len(done) == len(HOURS) and session.live == newest else None

        version = eventually("the last version is live on this machine", live, 300, 0.2)
        assert session.status is not None
        passes = list(session.status["passes"])
        store = Path(places.store_url.removeprefix("file://"))
        samples = (store / "output" / "ctr_model" / str(version) / "sample.jsonl").read_text().splitlines()
        lines = [json.loads(line)["line"] for line in samples]

        def answered() -> list[float] | None:
            session.look()
            try:
                probabilities, versions = predict(places.serving, "ctr", lines)
            except EndpointUnavailable:
                return None
            return probabilities if set(versions) == {version} else None

        probabilities = eventually("serving answers on this machine", answered, 60)
    data: Values = yaml.safe_load((hours / "values.yaml").read_text())["data"]
    return Laptop(hours, data, store, version, lines, probabilities, passes)


@pytest.mark.timeout(600)
def test_a_version_of_the_laptop_answers_the_same_in_the_cluster(
    kube: Kube, hadoop: Hadoop, laptop: Laptop, tell: Callable[..., None]
) -> None:
    kube.namespace(NAMESPACE, RESTRICTED)
    off: Values = {"serving": {"service": {"type": "ClusterIP", "nodePort": None}}, "training": {"enabled": False}}
    values = merged(merged(small_values(hadoop, "/none"), SHARED), off)

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


@pytest.mark.timeout(420)
def test_a_training_in_the_cluster_is_as_good_as_on_the_laptop(
    kube: Kube, hadoop: Hadoop, laptop: Laptop, tell: Callable[..., None]
) -> None:
    for hour in HOURS:
        hadoop.put(laptop.hours / hour, f"/laptop/{hour}")
    kube.namespace(NAMESPACE, RESTRICTED)
    data = {key: laptop.data[key] for key in ("start", "end", "slots")}
    off: Values = {"serving": {"enabled": False, "service": {"type": "ClusterIP", "nodePort": None}}}
    values = merged(merged(small_values(hadoop, "/laptop"), SHARED), {**off, "cube": {"enabled": False}, "data": data})

    with released(Release(kube, "trained", NAMESPACE, BUILD / "values"), values) as release:
        status, _ = release.wait_trained(HOURS[-1])

    told = [{key: each[key] for key in ("pass", "records", "aucBefore", "auc")} for each in status["passes"]]
    tell(there=told, here=[{key: each[key] for key in told[0]} for each in laptop.passes])
    ledger_adds_up(status)
    assert [each["records"] for each in told] == [each["records"] for each in laptop.passes]
    assert abs(told[-1]["auc"] - laptop.passes[-1]["auc"]) <= 0.01


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
