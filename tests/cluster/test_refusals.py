"""What cannot work is refused at install, by a sentence that names the key and the way out."""

import pytest

from cluster.conftest import BUILD
from cluster.kube import Kube
from cluster.release import RESTRICTED, HelmFailed, Release, Values, merged

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-refused"

CASES: dict[str, tuple[Values, tuple[str, ...]]] = {
    "no shards": ({"cube": {"config": {"shards": 0}}}, ("shards",)),
    "a misspelt key": ({"cube": {"config": {"shrads": 3}}}, ("shrads",)),
    "bytes as nobody writes them": ({"serving": {"resources": {"memory": "4GB"}}}, ("memory",)),
    "no slots": ({"data": {"slots": []}}, ("slots",)),
    "an ingress for no name": ({"serving": {"ingress": {"enabled": True}}}, ("serving.ingress.hosts",)),
}  # fmt: skip


# What the check in a pod refuses, before there is any other pod.
EARLY: dict[str, tuple[Values, str]] = {
    "more shards than partitions": ({"cube": {"config": {"shards": 61}}}, "cube.config.shards 61 is above"),
    "fewer trainers than the least": ({"trainer": {"replicas": 1, "minReplicas": 2}}, "minReplicas 2 is above replicas 1"),
    "an end before the start": (
        {"data": {"start": "20200401/05", "end": "20200401/03"}}, "end 20200401/03 is before start 20200401/05",
    ),
}  # fmt: skip


# tests/chart/test_refusals.py has each rule of the early check, which is one Job for all of them.
SELDOM = [pytest.param(case, marks=pytest.mark.nightly) for case in [*EARLY][1:]]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", [next(iter(EARLY)), *SELDOM])
def test_an_install_ends_before_its_first_pod_with(case: str, kube: Kube, base_values: Values) -> None:
    changes, words = EARLY[case]
    kube.namespace(NAMESPACE, RESTRICTED)
    release = Release(kube, "refused", NAMESPACE, BUILD / "values")

    try:
        with pytest.raises(HelmFailed, match="refused-check-values"):
            release.upgrade(merged(base_values, changes))
        assert words in kube.logs(NAMESPACE, "refused-check-values")
        assert {pod["metadata"]["name"] for pod in release.pods()} == {"refused-check-values"}
        left = release.status()
        assert left is not None
        assert left["info"]["status"] == "failed"
    finally:
        release.uninstall()
        kube.delete("pod", "refused-check-values", NAMESPACE)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CASES)
def test_an_install_is_refused_that_has(case: str, kube: Kube, base_values: Values) -> None:
    changes, keys = CASES[case]
    kube.namespace(NAMESPACE, RESTRICTED)
    release = Release(kube, "refused", NAMESPACE, BUILD / "values")

    with pytest.raises(HelmFailed) as refused:
        release.upgrade(merged(base_values, changes))

    print(f"\n{case}: {refused.value}")
    assert all(key in str(refused.value).replace("/", ".") for key in keys)
    assert release.status() is None
