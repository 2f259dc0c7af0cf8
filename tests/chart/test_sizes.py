"""What the pods of a release request in sum, and the clouds' examples."""

import re
from typing import Any

import pytest

from chart.rendering import CHART, ROOT, SMALLEST, Rendered, Renderer, merged, on_top_of_smallest, read

GI = 2**30
UNITS = {"Mi": 2**20, "Gi": GI}
EXAMPLES = CHART / "examples"
# The least that a disk of the cloud has.
CLOUDS = {"eks": "1Gi", "gke": "1Gi", "ack": "20Gi", "cce": "10Gi"}


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def requested(rendered: Rendered) -> int:
    """Bytes of memory of all pods that run at once: not those of the check and of `helm test`, which end, nor of Jobs that are not there."""
    total = 0
    for each in rendered.objects:
        if each.kind in ("Pod", "CronJob"):
            continue
        counts = {name: task["replicas"] for name, task in each.tasks.items()} if each.is_volcano else {}
        for pod in each.pods:
            count = counts.get(pod.owner.rpartition("/")[2], each.raw["spec"].get("replicas", 1))
            total += count * sum(bytes_of(one.raw["resources"]["requests"]["memory"]) for one in pod.containers)
    return total


def test_a_single_node_is_asked_for_two_and_a_half_gibibytes(render: Renderer) -> None:
    rendered = render(below=read(EXAMPLES / "single-node.yaml"))

    assert {each.component for each in rendered.pods} >= {
        "trainer",
        "pserver",
        "master",
        "cube",
        "serving",
        "file-server",
    }
    assert requested(rendered) <= 2.5 * GI


def test_the_page_has_the_sums_of_the_examples(render: Renderer) -> None:
    page = (ROOT / "docs" / "operations" / "sizing.md").read_text()
    written = re.findall(r"^\| (.*?) \| ([0-9.]+) GiB \|$", page, re.MULTILINE)

    sums = [requested(render(below=read(EXAMPLES / "single-node.yaml"))), requested(render())]
    assert [float(figure) for _, figure in written] == [round(each / GI, 1) for each in sums]


def test_the_page_has_the_requests_of_the_single_node_by_container(render: Renderer) -> None:
    page = (ROOT / "docs" / "operations" / "sizing.md").read_text()
    written = re.findall(r"^\| ([\w-]+/[\w-]+) \| (\d+) MiB \| \d+ MiB \|$", page, re.MULTILINE)

    rendered = render(below=read(EXAMPLES / "single-node.yaml"))
    requests = {
        f"{pod.component}/{one.name}": bytes_of(one.raw["resources"]["requests"]["memory"]) // 2**20
        for pod in rendered.pods
        if pod.owner.partition("/")[0] != "Pod"
        for one in pod.containers
    }
    assert {key: int(size) for key, size in written} == requests


@pytest.mark.parametrize("scheduler", ["volcano", "none"])
def test_both_schedulers_request_the_same(render: Renderer, scheduler: str) -> None:
    assert requested(render(training={"scheduler": scheduler})) == requested(render())


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_example_of_a_cloud_has_its_volumes_load_balancer_and_identity(render: Renderer, cloud: str) -> None:
    given: dict[str, Any] = read(EXAMPLES / f"{cloud}.yaml")
    rendered = render(below=on_top_of_smallest(given))

    claims = [claim for each in rendered.all("StatefulSet") for claim in each.spec.get("volumeClaimTemplates", [])]
    assert len(claims) == 3
    assert {claim["spec"].get("storageClassName") for claim in claims} == {
        given["master"]["persistence"]["storageClass"]
    }
    sizes = [bytes_of(claim["spec"]["resources"]["requests"]["storage"]) for claim in claims]
    assert min(sizes) >= bytes_of(CLOUDS[cloud])
    service = rendered.one("Service", component="serving")
    assert service.spec["type"] == "LoadBalancer"
    assert service.annotations.items() >= given["serving"]["service"]["annotations"].items()
    account = rendered.one("ServiceAccount", component="serviceaccount")
    assert account.annotations == given["serviceAccount"].get("annotations", {})
    assert account.name == given["serviceAccount"].get("name", "ctr")


def test_the_examples_of_clouds_stand_on_a_file_with_the_data() -> None:
    for cloud in CLOUDS:
        given = read(EXAMPLES / f"{cloud}.yaml")
        assert merged(SMALLEST, given)["data"] == SMALLEST["data"]
