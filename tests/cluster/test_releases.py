"""Two releases in one cluster do not touch each other; one that goes leaves what its values say, and nothing else."""

from collections.abc import Callable

import pytest

from cluster.conftest import BUILD, small_values
from cluster.hadoop import ClickLogs, Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.release import RESTRICTED, Release, ledger_adds_up, merged

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-other"
KINDS = (
    "pods,services,statefulsets,deployments,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,"
    "horizontalpodautoscalers,persistentvolumeclaims,jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh"
)
# Kubernetes' own, in every namespace.
ALWAYS = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}


@pytest.mark.timeout(600)
def test_a_second_release_trains_to_its_end_and_goes_without_a_trace_in_the_first(
    settled: Release, hadoop: Hadoop, kube: Kube, tell: Callable[..., None]
) -> None:
    logs = ClickLogs(hadoop, "/other", BUILD / "other")
    records = logs.publish("20200401/00", 20_000)
    before = {name_of(each): each["metadata"]["uid"] for each in settled.pods()}
    live = settled.document().live
    changes = {
        "data": {"end": "20200401/00"},
        "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
        "fileServer": {"persistence": {"keep": True}},
    }
    kube.namespace(NAMESPACE, RESTRICTED)
    other = Release(kube, "ctr", NAMESPACE, BUILD / "values")

    other.upgrade(merged(small_values(hadoop, "/other"), changes))
    other.wait_live()
    status = other.training()
    job = eventually("the Job is completed", lambda: _completed(other), 180)
    mine = {
        namespace: _endpoints(kube, namespace) for namespace in (settled.namespace, other.namespace)
    }  # fmt: skip
    other.uninstall()
    left = eventually("all but what is kept has gone", lambda: _left(kube), 180)

    tell(passes=len(status["passes"]), job=job, left=sorted(left))
    assert status["passes"][0]["records"] == records
    ledger_adds_up(status)
    assert not mine[settled.namespace] & mine[other.namespace]
    assert left == {("PersistentVolumeClaim", "data-ctr-file-server-0")}
    assert {name_of(each): each["metadata"]["uid"] for each in settled.pods()} == before
    assert settled.document().live == live
    kube.delete("namespace", NAMESPACE, wait=False)


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
