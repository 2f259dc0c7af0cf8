"""What is lost comes back; meanwhile predictions go on wherever there are two of a thing, and training ends right."""

import time
from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import CUBE_IMAGE, SEED
from cluster.faults import can_kill, delete, in_some_order, kill, recovered
from cluster.hadoop import ClickLogs
from cluster.kube import Kube, Object, name_of
from cluster.load import Load, all_right, asked
from cluster.release import Release, ledger_adds_up

pytestmark = pytest.mark.chaos


@pytest.fixture
def load(doubled: Release, workers: list[str]) -> Iterator[Load]:
    with asked(doubled, CUBE_IMAGE, workers[-1]) as asking:
        yield asking


@pytest.mark.timeout(600)
def test_a_pserver_is_lost_in_mid_pass_and_training_goes_back_to_its_checkpoint(
    doubled: Release, clicks: ClickLogs, kube: Kube, tell: Callable[..., None]
) -> None:
    before = doubled.training()
    hour, records = clicks.publish_after(before, 600_000, files=24)

    doubled.wait_under_way(hour, "training")
    pserver = doubled.pod("pserver")
    start = time.monotonic()
    delete(kube)(pserver)
    status, trained = doubled.wait_trained(hour)

    recovery = status["recoveries"][-1]
    tell(recovery=recovery, secondsToDone=round(time.monotonic() - start, 1), ledger=status["ledger"])
    assert len(status["recoveries"]) > len(before["recoveries"])
    assert trained["records"] == records
    ledger_adds_up(status)


def every_role_once(
    release: Release, clicks: ClickLogs, load: Load, tell: Callable[..., None], harm: Callable[[Object], None]
) -> None:
    """A pass is trained meanwhile, and ends right."""
    hour, records = clicks.publish_after(release.training(), 120_000, files=6)

    seconds: dict[str, float] = {}
    for component in in_some_order(SEED):
        seconds[component] = recovered(release, component, harm, seed=SEED)
        release.wait_live()
    status, trained = release.wait_trained(hour)
    totals = load.stop()

    recoveries = [{key: each[key] for key in ("role", "seconds", "reason")} for each in status["recoveries"][-8:]]
    tell(recoverySeconds=seconds, recoveries=recoveries, ledger=status["ledger"], totals=totals)
    assert trained["records"] == records
    ledger_adds_up(status)
    all_right(totals, retries=True)


# tests/pipeline/test_recovery.py kills every role in turn, and the first test here deletes a pserver's pod.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_pod_of_each_role_is_deleted_in_turn(
    doubled: Release, load: Load, clicks: ClickLogs, kube: Kube, tell: Callable[..., None]
) -> None:
    every_role_once(doubled, clicks, load, tell, delete(kube))


# tests/pipeline/test_recovery.py kills every role in turn with its child.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_process_of_each_role_is_killed_in_turn(
    doubled: Release, load: Load, clicks: ClickLogs, workers: list[str], tell: Callable[..., None]
) -> None:
    if not can_kill(workers):
        pytest.skip("killing what has pid 1 takes nodes that are containers of this machine (kind)")

    every_role_once(doubled, clicks, load, tell, kill)


# The budgets that a drain obeys are in tests/chart/test_disruption.py; test_reshard.py moves shards and replicas under load.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_node_is_drained_and_comes_back(
    doubled: Release, load: Load, clicks: ClickLogs, kube: Kube, workers: list[str], tell: Callable[..., None]
) -> None:
    node = workers[0]
    there = [name_of(each) for each in doubled.pods() if each["spec"].get("nodeName") == node]
    start = time.monotonic()
    try:
        kube.run(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s", timeout=300
        )
        drained = round(time.monotonic() - start, 1)
        # What has its volume on the node waits for it. If that is the store, a new pod has nothing to fetch from: those
        # on the other node answer alone.
        time.sleep(20)
    finally:
        kube.run("uncordon", node)
    doubled.wait_rolled_out()
    doubled.wait_settled()
    hour, _ = clicks.publish_after(doubled.training(), 20_000)
    status, _ = doubled.wait_trained(hour)
    totals = load.stop()

    tell(onTheNode=there, drainSeconds=drained, totals=totals)
    ledger_adds_up(status)
    all_right(totals, retries=True)
