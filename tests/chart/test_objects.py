"""What is installed: the whole set of objects, and whether the API server would take each of them."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest

from chart.api_server import install
from chart.cases import CLICKS_BY_HTTP
from chart.rendering import CHART, EXAMPLES, TOKENS, Object, Rendered, Renderer, merged, on_top_of_smallest, read
from chart.schemas import FOREIGN, VERSIONS, why_no_volcano, wrong_for_kubernetes, wrong_for_volcano


def test_a_default_install_is_just_these_objects(render: Renderer) -> None:
    [job] = render().all("Job")

    assert job.name.startswith("ctr-train-")
    assert {(each.kind, each.name) for each in render().objects} == {
        ("ConfigMap", "ctr-check-values"),
        ("ConfigMap", "ctr-cube"),
        ("ConfigMap", "ctr-cube-transfer"),
        ("ConfigMap", "ctr-file-server"),
        ("ConfigMap", "ctr-master"),
        ("ConfigMap", "ctr-scoring"),
        ("ConfigMap", "ctr-serving"),
        ("ConfigMap", job.name),
        ("CronJob", "ctr-scoring"),
        ("Deployment", "ctr-serving"),
        ("Job", job.name),
        ("NetworkPolicy", "ctr-client"),
        ("NetworkPolicy", "ctr"),
        ("NetworkPolicy", "ctr-cube"),
        ("NetworkPolicy", "ctr-cube-transfer"),
        ("NetworkPolicy", "ctr-file-server"),
        ("NetworkPolicy", "ctr-master"),
        ("NetworkPolicy", "ctr-pserver"),
        ("NetworkPolicy", "ctr-scoring"),
        ("NetworkPolicy", "ctr-serving"),
        ("NetworkPolicy", "ctr-trainer"),
        ("Pod", "ctr-check-values"),
        ("Pod", "ctr-test-cube-seek"),
        ("Pod", "ctr-test-serving-predict"),
        ("PodDisruptionBudget", "ctr-cube-s0"),
        ("PodDisruptionBudget", "ctr-cube-s1"),
        ("PodDisruptionBudget", "ctr-serving"),
        ("Service", "ctr-cube"),
        ("Service", "ctr-cube-transfer"),
        ("Service", "ctr-file-server"),
        ("Service", "ctr-master"),
        ("Service", "ctr-pserver"),
        ("Service", "ctr-serving"),
        ("ServiceAccount", "ctr"),
        ("ServiceAccount", "ctr-check-values"),
        ("StatefulSet", "ctr-cube-s0"),
        ("StatefulSet", "ctr-cube-s1"),
        ("StatefulSet", "ctr-cube-transfer"),
        ("StatefulSet", "ctr-file-server"),
        ("StatefulSet", "ctr-master"),
    }


def test_an_intake_is_these_objects_more(render: Renderer) -> None:
    def names(of: Rendered) -> set[tuple[str, str]]:
        return {(each.kind, each.name) for each in of.objects if "train-" not in each.name}

    assert names(render(**CLICKS_BY_HTTP)) - names(render()) == {
        (kind, "ctr-intake") for kind in ("ConfigMap", "NetworkPolicy", "Service", "StatefulSet")
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kubernetes_takes_every_object(rendered: Rendered, version: str) -> None:
    own = [each for each in rendered.objects if each.api_version not in FOREIGN]

    assert {each.name: wrong for each in own if (wrong := wrong_for_kubernetes(each.raw, version))} == {}


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_the_objects_for_a_version_of_kubernetes_fit_its_schemas(version: str) -> None:
    sent = [each for each in install(version=f"{version}.0", tracking={"enabled": True}).objects if each.kind != "Job"]

    assert {each.name: wrong for each in sent if (wrong := wrong_for_kubernetes(each.raw, version))} == {}


def test_volcano_takes_its_job(rendered: Rendered) -> None:
    if reason := why_no_volcano():
        pytest.skip(reason)

    assert [wrong_for_volcano(each.raw) for each in rendered.objects if each.is_volcano] in ([], [[]])


def test_no_object_has_a_null(rendered: Rendered) -> None:
    def nulls(tree: Any, where: str) -> Iterator[str]:
        below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
        if tree is None:
            yield where
        for key, each in below:
            yield from nulls(each, f"{where}.{key}")

    assert [where for each in rendered.objects for where in nulls(each.raw, f"{each.kind}/{each.name}")] == []


def test_no_two_objects_are_one(rendered: Rendered) -> None:
    counted = Counter((each.api_version, each.kind, each.name) for each in rendered.objects)

    assert [each for each, times in counted.items() if times > 1] == []


def test_every_object_has_the_recommended_labels(rendered: Rendered) -> None:
    for each in rendered.objects:
        assert {
            "app.kubernetes.io/name": "elastic-ctr",
            "app.kubernetes.io/instance": "ctr",
            "app.kubernetes.io/part-of": "elastic-ctr",
            "app.kubernetes.io/managed-by": "Helm",
        }.items() <= each.labels.items(), each.name
        assert each.labels["app.kubernetes.io/version"]


def test_no_object_names_another_namespace(rendered: Rendered) -> None:
    assert {each.raw["metadata"].get("namespace", "ads") for each in rendered.objects} == {"ads"}


def test_names_are_short_enough_for_what_is_made_of_them(render: Renderer) -> None:
    long = render(release="r" * 34, cube={"config": {"shards": 60}})

    # A pod of a Volcano task, a pod of a StatefulSet and the label with its revision all are at most 63.
    for each in long.objects:
        assert len(each.name) <= (52 if each.kind in ("StatefulSet", "Job", "Deployment") else 63), each.name


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_every_service_finds_the_pods_of_its_component_and_no_other(rendered: Rendered) -> None:
    for service in rendered.all("Service"):
        found = {pod.component for pod in rendered.pods if selects(service.selector, pod.labels)}
        assert found == {service.component}, service.name


def test_every_workload_selects_its_own_pods_alone(rendered: Rendered) -> None:
    for each in rendered.objects:
        if each.kind in ("StatefulSet", "Deployment"):
            owners = {pod.owner for pod in rendered.pods if selects(each.selector, pod.labels)}
            assert owners == {f"{each.kind}/{each.name}"}


def test_every_port_of_a_service_is_a_port_of_its_pods(rendered: Rendered) -> None:
    for service in rendered.all("Service"):
        assert service.component is not None
        pod = rendered.pod_of(service.component)
        named = {name: port for each in pod.containers for name, port in each.ports.items()}
        for port in service.spec["ports"]:
            assert port["targetPort"] in (named if isinstance(port["targetPort"], str) else named.values())


def test_selectors_do_not_change_with_the_version(rendered: Rendered) -> None:
    allowed = {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/component",
        "elastic-ctr/shard",
        "elastic-ctr/training",
    }
    for each in rendered.objects:
        if each.kind in ("StatefulSet", "Deployment", "Service", "PodDisruptionBudget"):
            assert each.selector.keys() <= allowed, each.name


def test_two_releases_in_one_namespace_share_nothing(render: Renderer) -> None:
    def names(of: Rendered) -> set[tuple[str, str]]:
        return {(each.kind, each.name) for each in of.objects}

    other = render(release="second")
    assert names(render()) & names(other) == set()
    for service in render().all("Service"):
        assert not any(selects(service.selector, pod.labels) for pod in other.pods)


def test_cluster_wide_names_carry_namespace_and_release(render: Renderer) -> None:
    [*found] = render(priorityClasses={"enabled": True}).all("PriorityClass")

    assert {each.name for each in found} == {"elastic-ctr.ads.ctr.pserver", "elastic-ctr.ads.ctr.trainer"}


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_two_renderings_of_the_same_values_are_the_same_bytes(example: Path | None) -> None:
    values = merged(TOKENS, on_top_of_smallest(read(example) if example else {}))

    with helm_python.Chart.load(CHART) as chart:
        found = {json.dumps(chart.render(values, name="ctr", namespace="ads"), sort_keys=True) for _ in range(2)}

    assert len(found) == 1


def hooks(of: Rendered) -> list[Object]:
    return [each for each in of.objects if "helm.sh/hook" in each.annotations]


def test_the_only_hooks_are_tests_and_the_check_of_the_values(rendered: Rendered) -> None:
    before = [each for each in hooks(rendered) if each.annotations["helm.sh/hook"] != "test"]

    assert {each.annotations["helm.sh/hook"] for each in before} == {"pre-install,pre-upgrade"}
    # What the pod needs is there before it, and a failed pod stays for its log.
    in_order = sorted(before, key=lambda each: (int(each.annotations.get("helm.sh/hook-weight", 0)), each.kind))
    assert [each.kind for each in in_order] == ["ConfigMap", "ServiceAccount", "Pod"]
    assert {each.component for each in before} == {"check-values"}
    assert {each.annotations["helm.sh/hook-delete-policy"] for each in before} == {
        "before-hook-creation,hook-succeeded"
    }
    assert {each.kind for each in hooks(rendered) if each not in before} <= {"Pod"}


def test_priority_classes_of_two_releases_have_two_names(render: Renderer) -> None:
    pairs = [("a", "b-c"), ("a-b", "c"), ("system-a", "b")]
    names = [
        {
            each.name
            for each in render(namespace=namespace, release=release, priorityClasses={"enabled": True}).all(
                "PriorityClass"
            )
        }
        for namespace, release in pairs
    ]

    assert len(set.union(*names)) == 2 * len(pairs)
    # Kubernetes keeps such names for itself.
    assert [name for each in names for name in each if name.startswith("system-")] == []
