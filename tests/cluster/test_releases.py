"""Two releases in one cluster do not touch each other; one that goes leaves what its values say, and nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cluster.conftest import BUILD, changed, small_values
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.laptop import HOURS, SHARED, Laptop
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged

# tests/chart/test_objects.py compares the objects of two releases, and test_laptop.py a version of the laptop with the cluster's answers.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]
NAMESPACE = "elastic-ctr-other"
KINDS = (
    "pods,services,statefulsets,deployments,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,"
    "horizontalpodautoscalers,persistentvolumeclaims,jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh"
)
# Kubernetes' own, in every namespace.
ALWAYS = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}


@dataclass(frozen=True)
class Trained:
    """The second release when all its hours are trained, and the first one as it was before."""

    release: Release
    status: Values
    live: int
    before: dict[str, str]


def _pods(release: Release) -> dict[str, str]:
    return {name_of(each): each["metadata"]["uid"] for each in release.pods()}


@pytest.fixture(scope="module")
def trained(kube: Kube, hadoop: Hadoop, laptop: Laptop, installed: Release, base_values: Values) -> Iterator[Trained]:
    """Trains the laptop's hours, with the laptop's own values, beside the shared release."""
    for hour in HOURS:
        hadoop.put(laptop.hours / hour, f"/laptop/{hour}")
    with changed(installed, base_values) as first:
        live, before = first.wait_live(), _pods(first)
    changes = {
        "data": {key: laptop.data[key] for key in ("start", "end", "slots")},
        "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
    }
    kube.namespace(NAMESPACE, RESTRICTED)
    other = Release(kube, "ctr", NAMESPACE, BUILD / "values")
    try:
        other.upgrade(merged(merged(small_values(hadoop.url, "/laptop"), SHARED), changes))
        status, _ = other.wait_trained(HOURS[-1])
        yield Trained(other, status, live, before)
    finally:
        other.uninstall()
        kube.delete("namespace", NAMESPACE, wait=False)


@pytest.mark.timeout(600)
def test_a_training_in_the_cluster_is_as_good_as_on_the_laptop(
    trained: Trained, laptop: Laptop, tell: Callable[..., None]
) -> None:
    told = [{key: each[key] for key in ("pass", "records", "aucBefore", "auc")} for each in trained.status["passes"]]

    tell(there=told, here=[{key: each[key] for key in told[0]} for each in laptop.passes])
    ledger_adds_up(trained.status)
    assert [each["records"] for each in told] == [each["records"] for each in laptop.passes]
    assert abs(told[-1]["auc"] - laptop.passes[-1]["auc"]) <= 0.01


@pytest.mark.timeout(600)
def test_a_second_release_trains_to_its_end_and_goes_without_a_trace_in_the_first(
    trained: Trained, installed: Release, kube: Kube, tell: Callable[..., None]
) -> None:
    other = trained.release

    newest = max(each["version"] for each in trained.status["passes"])
    eventually("the last hour is live", lambda: other.document().live == newest, 180)
    job = eventually("the Job is completed", lambda: _completed(other), 180)
    mine = {namespace: _endpoints(kube, namespace) for namespace in (installed.namespace, other.namespace)}
    other.uninstall()
    left = eventually("all but what is kept has gone", lambda: _left(kube), 180)

    tell(passes=len(trained.status["passes"]), job=job, left=sorted(left))
    assert not mine[installed.namespace] & mine[other.namespace]
    claims = {"data-ctr-file-server-0", "state-ctr-cube-transfer-0", "state-ctr-master-0"}
    assert left == {("Secret", "ctr-auth"), *(("PersistentVolumeClaim", name) for name in claims)}
    assert _pods(installed) == trained.before
    assert installed.document().live == trained.live


@pytest.mark.timeout(600)
def test_a_reinstall_answers_with_the_last_version_and_trains_no_hour_again(
    trained: Trained, kube: Kube, tell: Callable[..., None]
) -> None:
    other = trained.release
    newest = max(each["version"] for each in trained.status["passes"])
    before = other.values
    if other.status() is not None:
        other.uninstall()
    eventually("all but what is kept has gone", lambda: _left(kube), 180)

    other.upgrade(before)
    other.wait_live()
    status, _ = other.wait_trained(HOURS[-1])

    tell(live=other.document().live, passes=len(status["passes"]))
    assert other.document().live == newest
    assert [each["version"] for each in status["passes"]] == [each["version"] for each in trained.status["passes"]]
    ledger_adds_up(status)


def _completed(release: Release) -> str | None:
    phase: str = (release.job() or {}).get("status", {}).get("state", {}).get("phase", "")
    return phase if phase == "Completed" else None


def _endpoints(kube: Kube, namespace: str) -> set[str]:
    """Addresses behind all Services of a namespace."""
    found = kube.all("endpointslices.discovery.k8s.io", namespace)
    return {address for each in found for endpoint in each.get("endpoints") or [] for address in endpoint["addresses"]}


def _left(kube: Kube) -> set[tuple[str, str]] | None:
    found = {(each["kind"], name_of(each)) for each in kube.all(KINDS, NAMESPACE)} - ALWAYS
    return found if not any(kind in {"Pod", "Job"} for kind, _ in found) else None
