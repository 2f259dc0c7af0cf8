"""Training from a real HDFS: hours that come late or half, daemons that end in mid read, a user who may not read."""

import time
from collections.abc import Callable

import pytest

from cluster.conftest import BUILD
from cluster.hadoop import ClickLogs, Hadoop, hour_after
from cluster.kube import Kube, eventually
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged, released

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-denied"


# tests/unit/training/master/test_server.py waits for a donefile; test_smoke.py trains hours of HDFS.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_an_hour_is_waited_for_until_its_donefile_is_there(
    settled: Release, clicks: ClickLogs, tell: Callable[..., None]
) -> None:
    before = settled.training()
    hour = hour_after(before)
    records = clicks.publish(hour, 20_000, donefile=False)
    time.sleep(6)
    half = settled.training()
    start = time.monotonic()

    clicks.finish(hour)
    status, trained = settled.wait_trained(hour)

    tell(waitedFor=half["waitsFor"], secondsAfterDonefile=round(time.monotonic() - start, 1))
    assert half["ledger"] == before["ledger"]
    assert hour in str(half["waitsFor"])
    assert trained["records"] == records
    ledger_adds_up(status)


# tests/contract/test_store_hdfs.py kills a DataNode in the middle of reads, and starts a NameNode again.
@pytest.mark.nightly
@pytest.mark.timeout(420)
@pytest.mark.parametrize("daemon", ["datanode", "namenode"])
def test_a_daemon_that_ends_in_mid_read_costs_time_and_no_record(
    daemon: str, settled: Release, clicks: ClickLogs, hadoop: Hadoop, tell: Callable[..., None]
) -> None:
    before = settled.training()
    hour = hour_after(before)
    records = clicks.publish(hour, 150_000, files=4)

    settled.wait_under_way(hour, "checking", "training")
    start = time.monotonic()
    hadoop.end(daemon)
    hadoop.wait()
    back = round(time.monotonic() - start, 1)
    status, trained = settled.wait_trained(hour)

    tell(secondsAway=back, secondsToDone=round(time.monotonic() - start, 1), ledger=status["ledger"])
    assert trained["records"] == records
    assert len(status["recoveries"]) == len(before["recoveries"])
    ledger_adds_up(status)


# tests/contract/test_store_hdfs.py has the sentence of a real HDFS that refuses a user.
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_user_who_may_not_read_is_refused_with_a_sentence(
    kube: Kube, hadoop: Hadoop, base_values: Values, tell: Callable[..., None]
) -> None:
    ClickLogs(hadoop, "/private", BUILD / "private").publish("20200401/00", 1_000)
    hadoop.chmod("/private", "700")
    kube.namespace(NAMESPACE, RESTRICTED)
    off = {"enabled": False}
    changes = {
        "data": {"source": {"user": "alice"}, "path": "/private"},
        "serving": {**off, "service": {"type": "ClusterIP", "nodePort": None}},
        "cube": off,
    }

    with released(Release(kube, "denied", NAMESPACE, BUILD / "values"), merged(base_values, changes)) as release:
        sentence = eventually("the master says why", lambda: _refusal(release), 120)

    tell(sentence=sentence)
    assert "alice" in sentence
    assert "/private" in sentence


def _refusal(release: Release) -> str | None:
    return release.training()["error"] or None
