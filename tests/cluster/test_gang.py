"""Volcano: all that a training needs starts together or not at all; trainers come and go while it runs."""

import json
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import BUILD, CUBE_IMAGE
from cluster.hadoop import ClickLogs, hour_after
from cluster.kube import Kube, Object, eventually, is_ready, name_of, restarts
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged, released

# tests/chart/test_training.py has the fields by which Volcano starts, shrinks and preempts the Job, and tests/pipeline/test_handover.py a
# trainer that goes in mid pass.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]
# What master, file-server and transfer of the gang's release ask for.
BESIDE = 0.25
SIZE = 0.3
GANG = "elastic-ctr-gang-"


def cpu(quantity: str) -> float:
    """In cores."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def free_cpu(kube: Kube, node: str) -> float:
    """What pods may still ask for on a node."""
    found = kube.get("node", node)
    assert found is not None
    taken = 0.0
    for pod in kube.all("pods", "*"):
        if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            requests = [each.get("resources", {}).get("requests", {}) for each in pod["spec"]["containers"]]
            taken += sum(cpu(each.get("cpu", "0")) for each in requests)
    return cpu(found["status"]["allocatable"]["cpu"]) - taken


def blocker(namespace: str, node: str, cores: float) -> Object:
    """A pod that does nothing but ask for room on one node."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "blocker",
        "image": CUBE_IMAGE,
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": f"{int(cores * 1000)}m"}},
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"blocker-{node}", "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


@pytest.fixture
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """One of each test's own: a namespace takes its time to go."""
    name = f"{GANG}{zlib.crc32(request.node.name.encode()) % 1000}"
    kube.namespace(name, RESTRICTED)
    yield name
    kube.delete("namespace", name, wait=False)


@pytest.fixture
def room(namespace: str, kube: Kube, workers: list[str]) -> Callable[[int], None]:
    """On each node, room for so many pods of SIZE and for what else the release has."""

    def others() -> list[str]:
        gangs = [each for each in kube.all("pods", "*") if each["metadata"]["namespace"].startswith(GANG)]
        return [name_of(each) for each in gangs if each["metadata"]["namespace"] != namespace]

    def leave(pods: int) -> None:
        # Members of a training ask a master that has gone for a while before they go.
        eventually("the gang before has left", lambda: not others(), 90)
        for node in workers:
            kube.delete("pod", f"blocker-{node}", namespace)
            kube.apply(blocker(namespace, node, free_cpu(kube, node) - pods * SIZE - BESIDE))

    return leave


@pytest.fixture
def gang_values(base_values: Values) -> Values:
    """A release that only trains: two pservers and, at least, one trainer."""
    asked = {"resources": {"cpu": SIZE, "memory": "1Gi"}}
    only = {"trainer": {**asked, "replicas": 1}, "pserver": asked, "cube": {"enabled": False}}
    door = {"enabled": False, "service": {"type": "ClusterIP", "nodePort": None}}
    return merged(base_values, {**only, "serving": door, "priorityClasses": {"enabled": True}})


@pytest.mark.timeout(420)
def test_a_gang_that_does_not_fit_as_a_whole_does_not_start(
    kube: Kube,
    namespace: str,
    gang_values: Values,
    room: Callable[[int], None],
    workers: list[str],
    tell: Callable[..., None],
) -> None:
    # Two of the three would fit.
    room(1)

    with released(Release(kube, "gang", namespace, BUILD / "values"), gang_values) as release:
        eventually("the gang's master runs", lambda: any(map(is_ready, release.pods("master"))), 120)
        eventually("Volcano has seen that it does not fit", lambda: _unschedulable(kube, namespace), 90)
        until = time.monotonic() + 15
        while time.monotonic() < until:
            running = [name_of(each) for each in _members(release) if each["spec"].get("nodeName")]
            assert running == []
            time.sleep(1)

        start = time.monotonic()
        for node in workers:
            kube.delete("pod", f"blocker-{node}", namespace)
        eventually("all of the gang run", lambda: sum(map(is_ready, _members(release))) == 3, 120)
        tell(secondsToStart=round(time.monotonic() - start, 1))


@pytest.fixture
def preempting(kube: Kube) -> Iterator[None]:
    """Volcano takes room from others only when it is told to; its gang plugin then keeps every job's least."""
    before = kube.get("configmap", "volcano-scheduler-configmap", "volcano-system")
    assert before is not None
    text: str = before["data"]["volcano-scheduler.conf"]
    changed = text.replace("allocate, backfill", "allocate, preempt, backfill").replace(
        "- name: gang\n    enablePreemptable: false", "- name: gang"
    )
    for each in (changed, text):
        patch = json.dumps({"data": {"volcano-scheduler.conf": each}})
        kube.run(
            "patch", "configmap", "volcano-scheduler-configmap", "-n", "volcano-system", "--type=merge", "-p", patch
        )
        kube.run("rollout", "restart", "deployment/volcano-scheduler", "-n", "volcano-system")
        kube.run("rollout", "status", "deployment/volcano-scheduler", "-n", "volcano-system", "--timeout=90s")
        if each is changed:
            yield


@pytest.mark.timeout(420)
@pytest.mark.usefixtures("preempting")
def test_a_pod_of_higher_priority_takes_an_elastic_trainer_and_never_the_least(
    kube: Kube,
    namespace: str,
    gang_values: Values,
    room: Callable[[int], None],
    workers: list[str],
    tell: Callable[..., None],
) -> None:
    # For two pservers and two trainers, and nobody else.
    room(2)
    values = merged(gang_values, {"trainer": {"replicas": 2}})

    with released(Release(kube, "gang", namespace, BUILD / "values"), values) as release:
        eventually("both trainers run", lambda: sum(map(is_ready, _members(release))) == 4, 180)
        # Those of the release that stands may be taken as well.
        eventually("all trainings run", lambda: all(map(is_ready, _trainings(kube))), 120)
        before = _that_train(kube)
        start = time.monotonic()
        urgent = merged(blocker(namespace, workers[0], SIZE), {"metadata": {"name": "urgent"}})
        del urgent["spec"]["nodeSelector"]
        important = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "elastic-ctr-urgent"},
            "value": 100_000_000,
        }
        urgent["spec"] |= {"schedulerName": "volcano", "priorityClassName": "elastic-ctr-urgent"}
        kube.apply(important, urgent)
        try:
            eventually(
                "the urgent pod runs", lambda: is_ready(kube.get("pod", "urgent", namespace) or {"metadata": {}}), 120
            )
            seconds = round(time.monotonic() - start, 1)
            now = _that_train(kube)
            taken = {uid: name for uid, name in before.items() if uid not in now}
            start = time.monotonic()
            kube.delete("pod", "urgent", namespace)
            eventually("the trainer is back", lambda: len(_that_train(kube)) >= len(before), 120)
        finally:
            kube.delete("priorityclass", "elastic-ctr-urgent")

        tell(secondsToTake=seconds, secondsToComeBack=round(time.monotonic() - start, 1), taken=taken)
        assert len(taken) == 1
        assert "-trainer-" in min(taken.values())


def _trainings(kube: Kube) -> list[Object]:
    """Pservers and trainers of any release."""
    pods = kube.all("pods", "*", **{"app.kubernetes.io/name": "elastic-ctr"})
    return [
        each for each in pods if each["metadata"]["labels"]["app.kubernetes.io/component"] in {"pserver", "trainer"}
    ]


def _that_train(kube: Kube) -> dict[str, str]:
    """Those of them that are ready: uid to namespace and name."""
    return {
        each["metadata"]["uid"]: f"{each['metadata']['namespace']}/{name_of(each)}"
        for each in _trainings(kube)
        if is_ready(each)
    }


def _members(release: Release) -> list[Object]:
    return [*release.pods("pserver"), *release.pods("trainer")]


def _unschedulable(kube: Kube, namespace: str) -> bool:
    groups = kube.all("podgroups.scheduling.volcano.sh", namespace)
    conditions = [each for group in groups for each in group.get("status", {}).get("conditions", [])]
    return any(each["type"] == "Unschedulable" for each in conditions)


@pytest.mark.timeout(600)
def test_trainers_come_and_go_during_a_pass_and_no_other_pod_is_restarted(
    settled: Release, clicks: ClickLogs, tell: Callable[..., None]
) -> None:
    before = settled.training()
    hour = hour_after(before)
    records = clicks.publish(hour, 600_000, files=24)
    job = settled.job()
    assert job is not None
    others = _others(settled)

    settled.wait_under_way(hour, "training")
    steps: list[tuple[int, float]] = []
    for trainers in (4, 1):
        start = time.monotonic()
        settled.change({"trainer": {"replicas": trainers}})
        eventually(f"{trainers} trainers", lambda trainers=trainers: _trainers(settled, trainers), 120)  # type: ignore[misc]
        steps.append((trainers, round(time.monotonic() - start, 1)))
    still = (settled.training()["current"] or {}).get("pass") == hour
    status, trained = settled.wait_trained(hour)

    tell(secondsTo=steps, trainedAllAlong=still, ledger=status["ledger"])
    assert _others(settled) == others
    assert (settled.job() or {})["metadata"]["uid"] == job["metadata"]["uid"]
    assert trained["records"] == records
    assert len(status["recoveries"]) == len(before["recoveries"])
    ledger_adds_up(status)


@pytest.mark.timeout(420)
def test_the_job_survives_five_shrinks(settled: Release, tell: Callable[..., None]) -> None:
    job = settled.job()
    assert job is not None
    others = _others(settled)

    for trainers in (3, 1) * 5:
        settled.change({"trainer": {"replicas": trainers}})
        eventually(f"{trainers} trainers", lambda trainers=trainers: _trainers(settled, trainers), 120)  # type: ignore[misc]

    now = eventually("the Job runs", lambda: _running(settled), 60)
    tell(retries=now["status"].get("retryCount", 0))
    assert now["metadata"]["uid"] == job["metadata"]["uid"]
    assert _others(settled) == others


def _running(release: Release) -> Object | None:
    """Its Job, once it is; each pod that goes takes it through other phases."""
    job = release.job()
    return job if job is not None and job["status"]["state"]["phase"] == "Running" else None


def _trainers(release: Release, count: int) -> bool:
    pods = release.pods("trainer")
    return len(pods) == count and all(map(is_ready, pods))


def _others(release: Release) -> dict[str, tuple[str, int]]:
    """Who must not notice: every pod but the trainers above the first."""
    return {
        name_of(each): (each["metadata"]["uid"], restarts(each))
        for each in release.pods()
        if not (name_of(each).rpartition("-trainer-")[2].isdigit() and not name_of(each).endswith("-trainer-0"))
    }
