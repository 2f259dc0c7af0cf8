"""Every pod meets Pod Security `restricted`, has no way to the API, and says what it needs and whether it lives."""

from collections.abc import Iterator

import pytest

from chart.rendering import Container, Pod, Rendered, Renderer

# The volume types of the restricted profile that this chart has a use for.
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


@pytest.fixture(scope="session")
def pods(rendered: Rendered) -> list[Pod]:
    return rendered.pods


def containers(pods: list[Pod]) -> Iterator[tuple[str, Pod, Container]]:
    for pod in pods:
        for each in [*pod.init_containers, *pod.containers]:
            yield f"{pod.owner}/{each.name}", pod, each


def test_no_pod_runs_as_root(pods: list[Pod]) -> None:
    for pod in pods:
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.owner
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_no_container_may_become_more_than_it_is(pods: list[Pod]) -> None:
    for where, _, each in containers(pods):
        context = each.raw["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context.keys() <= {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}


def test_no_pod_shares_anything_with_its_node(pods: list[Pod]) -> None:
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.spec.keys(), pod.owner
        for name, volume in pod.volumes.items():
            assert volume.keys() - {"name"} <= VOLUMES, name
        for each in pod.containers:
            assert all("hostPort" not in port for port in each.raw.get("ports", []))


def test_no_pod_has_a_way_to_the_api(pods: list[Pod]) -> None:
    for pod in pods:
        assert pod.spec["automountServiceAccountToken"] is False, pod.owner
        assert pod.spec["enableServiceLinks"] is False, pod.owner
        assert all("serviceAccountToken" not in str(volume) for volume in pod.volumes.values())


def test_the_account_has_no_token_and_no_rights(render: Renderer) -> None:
    assert [each.raw["automountServiceAccountToken"] for each in render().all("ServiceAccount")] == [False, False]
    assert [each.kind for each in render().objects if "Role" in each.kind] == []
    accounts = {pod.spec["serviceAccountName"]: pod.component for pod in render().pods}
    assert accounts.keys() == {"ctr", "ctr-check-values"}
    assert accounts["ctr-check-values"] == "check-values"


@pytest.mark.parametrize(("name", "account"), [("of-the-team", "of-the-team"), ("", "default")])
def test_an_install_that_may_create_no_account_uses_the_one_it_is_given(
    render: Renderer, name: str, account: str
) -> None:
    rendered = render(serviceAccount={"create": False, "name": name})

    assert rendered.all("ServiceAccount") == []
    assert {pod.spec["serviceAccountName"] for pod in rendered.pods} == {account}


def test_every_container_says_what_it_needs_and_is_held_to_its_memory(pods: list[Pod]) -> None:
    for where, _, each in containers(pods):
        resources = each.raw["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}, where
        assert resources["limits"]["memory"] == resources["requests"]["memory"], where
        assert "cpu" not in resources["limits"], where


# What makes pods that end by themselves.
ENDING = ("Pod/", "CronJob/")


def test_every_container_that_stays_says_whether_it_lives(pods: list[Pod]) -> None:
    for where, pod, each in containers(pods):
        if pod.owner.startswith(ENDING) or each in pod.init_containers:
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            [kind] = {"httpGet", "grpc", "tcpSocket", "exec"} & each.raw[probe].keys()
            assert kind == "httpGet", where
            assert each.raw[probe]["httpGet"]["port"] in {*each.ports, *each.ports.values()}, where


def test_a_container_of_ours_is_not_restarted_because_it_waits_for_others(pods: list[Pod]) -> None:
    for where, pod, each in containers(pods):
        if "/elastic-ctr/" in each.image and not pod.owner.startswith(ENDING):
            paths = {kind: each.raw[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
            assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}, where


def test_every_container_has_a_place_for_temporary_files(pods: list[Pod]) -> None:
    for where, pod, each in containers(pods):
        volume = pod.volumes[each.mounts["/tmp"]["name"]]
        assert volume["emptyDir"]["sizeLimit"], where


def test_every_mount_is_of_a_volume_and_every_volume_is_mounted(rendered: Rendered) -> None:
    for each in rendered.objects:
        claims = {claim["metadata"]["name"] for claim in each.raw.get("spec", {}).get("volumeClaimTemplates", [])}
        for pod in each.pods:
            every = [*pod.init_containers, *pod.containers]
            mounted = {mount["name"] for container in every for mount in container.mounts.values()}
            assert mounted == pod.volumes.keys() | claims, pod.owner


def test_secrets_come_as_files_and_never_as_environment(pods: list[Pod]) -> None:
    for where, _, each in containers(pods):
        for name, value in each.env.items():
            assert "secretKeyRef" not in str(value), f"{where} {name}"


def test_the_token_is_mounted_only_where_something_is_changed(render: Renderer) -> None:
    having = {
        pod.component
        for pod in render().pods
        for volume in pod.volumes.values()
        if "ctr-auth" in str(volume) and not pod.owner.startswith("Pod/")
    }

    assert having == {"master", "trainer", "pserver", "cube", "cube-transfer", "serving", "scoring", "file-server"}


def test_a_test_pod_has_no_token(render: Renderer) -> None:
    for pod in render().pods:
        if pod.owner.startswith("Pod/"):
            assert "ctr-auth" not in str(pod.spec)


def test_a_pod_without_a_volume_leaves_a_dead_node_soon(render: Renderer) -> None:
    for each in render().objects:
        for pod in each.pods:
            if each.kind == "Pod":
                continue
            waits = {one["key"]: one["tolerationSeconds"] for one in pod.spec.get("tolerations", [])}
            if each.raw["spec"].get("volumeClaimTemplates"):
                assert waits == {}, pod.owner
            else:
                assert waits == {
                    "node.kubernetes.io/not-ready": 30,
                    "node.kubernetes.io/unreachable": 30,
                }, pod.owner
