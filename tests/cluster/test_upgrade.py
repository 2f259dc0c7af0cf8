"""From the chart before to this one, from one pod template to another, back again: answers go on."""

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import BUILD, CUBE_IMAGE, ROOT, TWICE, small_values
from cluster.faults import can_kill, delete, send_signal
from cluster.hadoop import ClickLogs, Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.load import Load, all_right, asked
from cluster.release import CHART, Release, Values, ledger_adds_up, merged, released
from elastic_ctr.training.master.ledger.ledger_file import MIGRATIONS

pytestmark = pytest.mark.upgrade


def _git(*command: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False)
    return done.stdout.strip()


BEFORE = os.environ.get("ELASTIC_CTR_BEFORE", "")
NAMESPACE_BEFORE = "elastic-ctr-before"
HOURS = ("20200401/00", "20200401/01")
LEDGER_SCHEMA = "import sqlite3; print(sqlite3.connect('/var/lib/elastic-ctr/master/ledger.db').execute('pragma user_version').fetchone()[0])"


@pytest.fixture(scope="session")
def chart_before() -> Path:
    """The chart of ELASTIC_CTR_BEFORE, of the last tag before HEAD, or of the commit before the last that touched charts/."""
    tag = _git("describe", "--tags", "--abbrev=0", "HEAD^")
    commit = BEFORE or tag or _git("rev-list", "-1", "--skip=1", "HEAD", "--", "charts")
    if not commit:
        pytest.skip("the history of this checkout has no chart before this one")
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "charts/elastic-ctr"], capture_output=True, check=True
    ).stdout
    folder = BUILD / "before"
    # A template of an earlier extraction would be one of this chart.
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "charts" / "elastic-ctr"


# tests/unit/training/master/test_recovery.py and tests/unit/training/master/test_table_rows.py have another number of pservers.
@pytest.mark.nightly
@pytest.mark.timeout(420)
def test_a_new_number_of_pservers_goes_on_from_the_last_checkpoint(
    settled: Release, clicks: Any, tell: Callable[..., None]
) -> None:
    before = settled.training()
    job = settled.job()
    assert job is not None
    start = time.monotonic()

    settled.change({"pserver": {"replicas": 1}})
    hour, records = clicks.publish_after(before, 20_000)
    status, trained = settled.wait_trained(hour)

    tell(seconds=round(time.monotonic() - start, 1), ledger=status["ledger"])
    assert (settled.job() or {})["metadata"]["name"] != job["metadata"]["name"]
    assert trained["records"] == records
    ledger_adds_up(status)
    # The old ones have left the training by now; their pods may still be going.
    eventually("one pserver stays", lambda: len(settled.pods("pserver")) == 1, 120)


@pytest.mark.timeout(600)
def test_a_training_that_is_replaced_in_mid_pass_saves_once_more_and_nothing_is_trained_again(
    settled: Release, clicks: Any, tell: Callable[..., None]
) -> None:
    before = settled.training()
    hour, records = clicks.publish_after(before, 600_000, files=24)
    settled.wait_under_way(hour, "training")
    eventually("some of it is trained", lambda: settled.training()["passes"][-1]["tasksDone"] >= 3, 120, 0.2)

    settled.change({"pserver": {"replicas": 1}})
    status, trained = settled.wait_trained(hour)

    recovery = status["recoveries"][-1]
    tell(recovery=recovery, rolledBack=status["ledger"]["rolledBack"] - before["ledger"]["rolledBack"])
    assert recovery["role"] == "training"
    assert "was not saved once more" not in recovery["reason"]
    assert status["ledger"]["rolledBack"] == before["ledger"]["rolledBack"]
    assert trained["records"] == records
    ledger_adds_up(status)


# tests/unit/training/master/test_pass_order.py has the end, and a later one.
@pytest.mark.nightly
@pytest.mark.timeout(420)
def test_an_end_ends_the_training_and_a_later_end_goes_on(
    settled: Release, clicks: Any, tell: Callable[..., None]
) -> None:
    before = settled.training()
    last = [each["pass"] for each in before["passes"] if each["state"] == "done"][-1]

    settled.change({"data": {"end": last}})
    first = eventually("the Job with an end is completed", lambda: completed(settled), 180)
    hour, _ = clicks.publish_after(before, 20_000)
    settled.change({"data": {"end": hour}})
    status, _ = settled.wait_trained(hour)
    second = eventually("the Job with a later end is completed", lambda: completed(settled, first), 180)

    tell(first=first, second=second)
    ledger_adds_up(status)


def completed(release: Release, other_than: str = "") -> str | None:
    """The name of the Job, once it is."""
    job = release.job()
    if job is None or job.get("status", {}).get("state", {}).get("phase") != "Completed":
        return None
    name: str = job["metadata"]["name"]
    return name if name != other_than else None


@pytest.fixture
def load(doubled: Release, workers: list[str]) -> Iterator[Load]:
    with asked(doubled, CUBE_IMAGE, workers[-1]) as asking:
        yield asking


def _answering(release: Release) -> set[str]:
    """The uids of the pods of cube and serving."""
    return {each["metadata"]["uid"] for part in ("cube", "serving") for each in release.pods(part)}


@pytest.mark.timeout(600)
def test_the_chart_goes_back_and_is_upgraded_again_to_new_pods_while_answers_go_on(
    doubled: Release, load: Load, chart_before: Path, tell: Callable[..., None]
) -> None:
    values, token = doubled.values, doubled.token()
    # Two charts may have one pod template; this one is another in any case.
    stamp = {"podAnnotations": {"rolled": str(int(time.time()))}}
    pods = [_answering(doubled)]

    seconds: list[float] = []
    for chart, changes in ((chart_before, {}), (doubled.chart, {"cube": stamp, "serving": stamp})):
        start = time.monotonic()
        doubled.upgrade(merged(values, changes), chart=chart)
        doubled.wait_rolled_out()
        doubled.wait_settled()
        seconds.append(round(time.monotonic() - start, 1))
        pods.append(_answering(doubled))

    totals = load.stop()
    tell(before=str(chart_before), seconds=seconds, totals=totals)
    assert doubled.token() == token
    assert not pods[2] & (pods[0] | pods[1])
    all_right(totals)


# `make test` has tests/unit/training/master/test_ledger.py, with a ledger that an earlier release has written.
@pytest.mark.nightly
@pytest.mark.skipif(
    not BEFORE,
    reason="needs ELASTIC_CTR_BEFORE, a commit whose images are there: make images-before, make kind-load TAG=before",
)
@pytest.mark.timeout(1200)
def test_a_release_of_the_images_before_is_upgraded_and_rolled_back_under_load_and_its_ledger_goes_on(
    kube: Kube, hadoop: Hadoop, chart_before: Path, workers: list[str], tell: Callable[..., None]
) -> None:
    clicks = ClickLogs(hadoop, "/before", BUILD / "hours")
    for hour in HOURS:
        clicks.publish(hour, 20_000)
    service: Values = {"serving": {"service": {"type": "ClusterIP", "nodePort": None}}}
    values = merged(merged(small_values(hadoop.url, clicks.path), TWICE), service)
    with released(
        Release(kube, "ctr", NAMESPACE_BEFORE, BUILD / "values", chart=chart_before),
        merged(values, {"image": {"tag": "before"}}),
    ) as release:
        release.wait_live()
        release.wait_rolled_out()
        release.wait_settled()
        old = release.wait_passes(len(HOURS))
        schema = [_ledger_schema(release)]
        with asked(release, CUBE_IMAGE, workers[-1]) as load:
            release.upgrade(values, chart=CHART)
            release.wait_rolled_out()
            release.wait_settled()
            schema.append(_ledger_schema(release))
            hour, records = clicks.publish_after(old, 20_000)
            new, trained = release.wait_trained(hour)
            release.wait_settled()
            release.helm("rollback", release.name)
            release.wait_rolled_out()
            release.wait_settled()
            totals = load.stop()

    tell(before=BEFORE, schema=schema, totals=totals, ledger=new["ledger"])
    all_right(totals)
    assert schema[0] <= schema[1] == len(MIGRATIONS)
    assert trained["records"] == records
    assert new["ledger"]["trained"] == old["ledger"]["trained"] + records
    assert new["ledger"]["rolledBack"] == old["ledger"]["rolledBack"]
    assert _records_of(old).items() < _records_of(new).items()
    ledger_adds_up(new)


def _records_of(status: Values) -> dict[str, int]:
    return {each["pass"]: each["records"] for each in status["passes"] if each["state"] == "done"}


def _ledger_schema(release: Release) -> int:
    pod = name_of(release.pod("master"))
    return int(release.kube.exec(release.namespace, pod, "master", "/opt/elastic-ctr/bin/python", "-c", LEDGER_SCHEMA))


# The chart that goes back and forth above replaces pods of serving under load, on nodes that hear of it in time (test_upgrade.py).
@pytest.mark.nightly
@pytest.mark.timeout(420)
def test_a_node_that_hears_late_of_a_pods_end_gets_its_answers(
    doubled: Release, load: Load, kube: Kube, workers: list[str], tell: Callable[..., None]
) -> None:
    if not can_kill(workers):
        pytest.skip("stopping a node's proxy takes nodes that are containers of this machine (kind)")
    proxies = kube.all("pods", "kube-system", **{"k8s-app": "kube-proxy"})
    proxy = next(each for each in proxies if each["spec"]["nodeName"] == workers[-1])
    send_signal(proxy, "SIGSTOP")
    try:
        delete(kube)(doubled.pods("serving")[0])
        # As long as a busy machine was seen to take.
        time.sleep(9)
    finally:
        send_signal(proxy, "SIGCONT")
    doubled.wait_rolled_out()

    totals = load.stop()
    tell(totals=totals)
    all_right(totals)
