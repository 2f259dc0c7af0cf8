"""A release is backed up while it trains, its namespace is destroyed, and another release goes on from the backup."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from cluster.conftest import BUILD
from cluster.hadoop import ClickLogs, Hadoop
from cluster.kube import Kube, eventually
from cluster.release import Release, Values, ledger_adds_up, merged, released
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict

# tests/pipeline/test_backup.py has the same on one machine in `make test`, also of a stream: an intake's log stays in its volume.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]
NAMESPACE = "elastic-ctr-backup"
HOURS = [f"20200401/{hour:02d}" for hour in range(4)]
ROWS = 20_000
# Of the hour that is under way while the backup is made.
MANY = 300_000
SMALL: Values = {
    "model": {"partitions": 12},
    "trainer": {"replicas": 1},
    "pserver": {"replicas": 1},
    "cube": {"config": {"shards": 1}},
    "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
}


def answers(release: Release, lines: list[str], version: int) -> list[float]:
    """What serving answers once it does so with this version."""

    def found() -> list[float] | None:
        try:
            with release.kube.forwarded(release.namespace, f"svc/{release.name}-serving", 8400) as address:
                probabilities, versions = predict(address, "ctr", lines)
        except EndpointUnavailable:
            return None
        return probabilities if set(versions) == {version} else None

    return eventually(f"version {version} answers", found, 120)


@pytest.mark.timeout(1200)
def test_a_release_whose_namespace_is_destroyed_answers_equally_from_its_backup_and_trains_each_record_once(
    kube: Kube, hadoop: Hadoop, base_values: Values, tell: Callable[..., None]
) -> None:
    logs = ClickLogs(hadoop, "/backed_up", BUILD / "hours")
    records = [logs.publish(hour, ROWS) for hour in HOURS[:2]]
    text = next((BUILD / f"hours/{ROWS}x2" / HOURS[0]).glob("part-*")).read_text()
    lines = [line.split(maxsplit=2)[2] for line in text.splitlines()[:100]]
    values = merged(merged(base_values, SMALL), {"data": {"path": logs.path, "end": HOURS[-1]}})
    url = f"{hadoop.url}/backups/{int(time.time())}"
    command = [sys.executable, "-m", "elastic_ctr", "backup", "--to", url, "--namespace", NAMESPACE]

    with released(Release(kube, "ctr", NAMESPACE, BUILD / "values"), values) as lost:
        _, trained = lost.wait_trained(HOURS[1])
        live = int(trained["version"])
        eventually("the second hour is live", lambda: lost.document().live == live, 180)
        before = answers(lost, lines, live)
        records.append(logs.publish(HOURS[2], MANY))
        lost.wait_under_way(HOURS[2], "checking", "training")
        start = time.monotonic()
        done = subprocess.run(command, env=kube.env, capture_output=True, text=True, check=False)
        took = time.monotonic() - start
    kube.delete("namespace", NAMESPACE)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"version {live}, with checkpoint 20200401-01-g")
    start = time.monotonic()
    restored = merged(values, {"restore": {"url": url}})
    with released(Release(kube, "ctr", NAMESPACE, BUILD / "values"), restored) as found:
        assert found.wait_live() == live
        after = answers(found, lines, live)
        answering = time.monotonic() - start
        found.wait_trained(HOURS[2])
        records.append(logs.publish(HOURS[3], ROWS))
        status, _ = found.wait_trained(HOURS[3])

    tell(secondsToBackUp=round(took, 1), secondsFromInstallToAnswers=round(answering, 1), ledger=status["ledger"])
    assert after == before
    ledger_adds_up(status)
    assert status["ledger"]["records"] == status["ledger"]["trained"] == sum(records)
