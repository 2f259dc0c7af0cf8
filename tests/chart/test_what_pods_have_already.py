"""The user's volumes, mounts and environment beside the chart's own: what clashes is refused, or the user's goes before."""

from typing import Any

import pytest

from chart.cases import CLICKS_BY_HTTP
from chart.rendering import Pod, Rendered, Renderer

BLOCKS = {
    "file-server": "fileServer",
    "master": "master",
    "trainer": "trainer",
    "pserver": "pserver",
    "cube": "cube",
    "cube-transfer": "cubeTransfer",
    "intake": "intake",
    "serving": "serving",
    "tracking": "tracking",
}
EVERY_POD: dict[str, Any] = {
    **CLICKS_BY_HTTP,
    "tracking": {"enabled": True},
    "dataVolume": {"existingClaim": "logs"},
    "dataSecret": {"existingSecret": "reader"},
    "bucketSecret": {"existingSecret": "keys"},
}


@pytest.fixture
def every(render: Renderer) -> Rendered:
    return render(**EVERY_POD)


def volumes(rendered: Rendered, pod: Pod) -> set[str]:
    """Of its own, and those that its StatefulSet claims for it."""
    claimed = {
        claim["metadata"]["name"]
        for each in rendered.all("StatefulSet")
        for claim in each.spec.get("volumeClaimTemplates", [])
        if pod.owner == f"StatefulSet/{each.name}"
    }
    return claimed | set(pod.volumes)


def and_also(block: str, key: str, value: dict[str, Any]) -> dict[str, Any]:
    given = {name: dict(each) for name, each in EVERY_POD.items()}
    given.setdefault(block, {})[key] = value
    return given


@pytest.mark.parametrize("component", BLOCKS)
def test_no_volume_takes_the_name_of_one_that_is_there(render: Renderer, every: Rendered, component: str) -> None:
    block = BLOCKS[component]
    names = volumes(every, every.pod_of(component))

    for name in names:
        told = render.refusal(**and_also(block, "extraVolumes", {name: {"emptyDir": {}}}))
        assert f"{block}.extraVolumes.{name} has the name of a volume" in told
    assert len(names) > 1


@pytest.mark.parametrize("component", BLOCKS)
def test_no_mount_hides_one_that_is_there(render: Renderer, every: Rendered, component: str) -> None:
    block = BLOCKS[component]
    pod = every.pod_of(component)

    for container in pod.containers:
        for path, mount in container.mounts.items():
            told = render.refusal(**and_also(block, "extraVolumeMounts", {f"{path}/": {"name": mount["name"]}}))
            assert f"{block}.extraVolumeMounts {path} is where these pods have" in told


@pytest.mark.parametrize("component", BLOCKS)
def test_a_volume_that_is_there_may_be_mounted_once_more(render: Renderer, every: Rendered, component: str) -> None:
    block = BLOCKS[component]
    names = volumes(every, every.pod_of(component))

    rendered = render(**and_also(block, "extraVolumeMounts", {f"/more/{name}": {"name": name} for name in names}))

    for each in rendered.pod_of(component).containers:
        assert {path: mount["name"] for path, mount in each.mounts.items() if path.startswith("/more/")} == {
            f"/more/{name}": name for name in names
        }


@pytest.mark.parametrize("component", ["master", "serving", "cube"])
def test_a_role_may_log_in_its_own_way(render: Renderer, component: str) -> None:
    values: dict[str, Any] = {BLOCKS[component]: {"extraEnv": {"ELASTIC_CTR_LOG_LEVEL": "DEBUG"}}}

    rendered = render(**values)

    for container in rendered.pod_of(component).containers:
        assert [each for each in container.raw["env"] if each["name"] == "ELASTIC_CTR_LOG_LEVEL"] == [
            {"name": "ELASTIC_CTR_LOG_LEVEL", "value": "DEBUG"}
        ]
        assert container.env["ELASTIC_CTR_LOG_FORMAT"] == "json"


def test_tracking_may_be_called_by_other_names(render: Renderer) -> None:
    hosts = {"MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow.example.org"}
    [container] = render(tracking={"enabled": True, "extraEnv": hosts}).pod_of("tracking").containers

    assert container.env == {"HOME": "/tmp", **hosts}
    assert len(container.raw["env"]) == 2


def test_a_request_may_be_as_high_as_its_limit(render: Renderer) -> None:
    for resources in (
        {"memory": "1Gi", "limits": {"memory": "1024Mi"}},
        {"cpu": "1500m", "limits": {"cpu": 1.5}},
        {
            "requests": {"memory": "1G", "ephemeral-storage": "1Ti"},
            "limits": {"memory": "1Gi", "ephemeral-storage": "1Ei"},
        },
        {"requests": {"cpu": 8}, "limits": {"memory": "1Gi"}},
    ):
        render(serving={"resources": resources})
