"""Ways in from outside, logs on a volume, and objects of one's own."""

from typing import Any

import pytest
import yaml

from chart.cases import CLICKS_BY_HTTP, CLICKS_JOINED
from chart.rendering import SMALLEST, Renderer, merged
from elastic_ctr.operate.cli.values import File, Sizes, translate

SERVICES = {
    "serving": "ctr-serving",
    "master": "ctr-master",
    "cubeTransfer": "ctr-cube-transfer",
    "fileServer": "ctr-file-server",
    "intake": "ctr-intake",
}


def test_services_stay_inside_unless_asked_for(render: Renderer) -> None:
    assert {each.spec.get("type", "ClusterIP") for each in render(tracking={"enabled": True}).all("Service")} == {
        "ClusterIP"
    }


@pytest.mark.parametrize(("block", "name"), SERVICES.items())
@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_service_may_be_opened_to_the_outside(render: Renderer, block: str, name: str, kind: str) -> None:
    given: dict[str, Any] = {block: {"service": {"type": kind, "nodePort": 31234, "annotations": {"a": "b"}}}}
    on = CLICKS_BY_HTTP if block == "intake" else {}
    service = render(**merged(on, given)).one("Service", name=name)

    assert service.spec["type"] == kind
    assert [port["nodePort"] for port in service.spec["ports"] if "nodePort" in port] == [31234]
    assert service.annotations["a"] == "b"


def test_a_port_on_nodes_is_left_out_where_there_is_none(render: Renderer) -> None:
    ports = render(serving={"service": {"nodePort": 31234}}).one("Service", component="serving").spec["ports"]

    assert [port["name"] for port in ports] == ["predict", "grpc"]
    assert not any("nodePort" in port for port in ports)


def test_the_ingress_leads_to_predictions(render: Renderer) -> None:
    given = {
        "enabled": True,
        "hosts": ["ctr.example.org", "*.ads.example.org"],
        "path": "/p",
        "className": "nginx",
        "tlsSecretName": "cert",
    }
    rendered = render(serving={"ingress": given})
    ingress = rendered.one("Ingress")
    rule, other = ingress.spec["rules"]
    [path] = rule["http"]["paths"]

    assert (rule["host"], path["path"], ingress.spec["ingressClassName"]) == ("ctr.example.org", "/p", "nginx")
    assert other == {**rule, "host": "*.ads.example.org"}
    assert ingress.spec["tls"] == [{"hosts": ["ctr.example.org", "*.ads.example.org"], "secretName": "cert"}]
    backend = path["backend"]["service"]
    service = rendered.one("Service", name=backend["name"])
    assert backend["port"]["name"] in {port["name"] for port in service.spec["ports"]}


LOGS: dict[str, Any] = {
    "data": {"source": {"url": "file:///data/clicks"}},
    "dataVolume": {"existingClaim": "clicks", "mountPath": "/data"},
}


@pytest.mark.parametrize("scheduler", ["volcano", "none"])
def test_logs_on_a_volume_are_mounted_where_they_are_read_and_nowhere_else(render: Renderer, scheduler: str) -> None:
    rendered = render(training={"scheduler": scheduler}, **LOGS)
    having = {}
    for pod in rendered.pods:
        for name, volume in pod.volumes.items():
            if volume.get("persistentVolumeClaim", {}).get("claimName") == "clicks":
                [container] = pod.containers
                having[pod.component] = next(each for each in container.mounts.values() if each["name"] == name)

    assert having.keys() == {"master", "trainer", "scoring"}
    assert all((mount["mountPath"], mount["readOnly"]) == ("/data", True) for mount in having.values())


@pytest.mark.parametrize("joined", [True, False])
def test_the_secret_of_a_topic_is_mounted_by_who_reads_it_alone(render: Renderer, joined: bool) -> None:
    data = CLICKS_JOINED["data"] if joined else {**CLICKS_JOINED["data"], "stream": {"lateClicks": True}}
    rendered = render(below={**CLICKS_JOINED, "data": data, "intake": {"enabled": joined}})
    having = {
        pod.component
        for pod in rendered.pods
        for volume in pod.volumes.values()
        if volume.get("secret", {}).get("secretName") == "reader"
    }

    assert having == ({"intake"} if joined else {"master", "trainer"})


def test_objects_of_ones_own_are_rendered_with_the_release(render: Renderer) -> None:
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-own"}}
    rendered = render(extraObjects=[own, yaml.safe_dump({**own, "metadata": {"name": "text-{{ .Release.Name }}"}})])

    assert {"ctr-own", "text-ctr"} <= {each.name for each in rendered.all("ConfigMap")}


def test_a_claim_that_is_there_is_used_and_none_is_made(render: Renderer) -> None:
    given = {"persistence": {"existingClaim": "there"}}
    blocks = dict.fromkeys(("master", "cubeTransfer", "fileServer", "intake"), given)
    rendered = render(**merged(CLICKS_BY_HTTP, {**blocks, "tracking": {**given, "enabled": True}}))

    assert rendered.all("PersistentVolumeClaim") == []
    for each in rendered.all("StatefulSet"):
        assert "volumeClaimTemplates" not in each.spec
    for name in ("master", "cube-transfer", "file-server", "intake", "tracking"):
        claims = [
            each["persistentVolumeClaim"]
            for each in rendered.pod_of(name).volumes.values()
            if "persistentVolumeClaim" in each
        ]
        assert [each["claimName"] for each in claims] == ["there"]


def test_without_volumes_nothing_claims_one(render: Renderer) -> None:
    given = {"persistence": {"enabled": False}}
    blocks = dict.fromkeys(("master", "cubeTransfer", "fileServer", "intake"), given)
    rendered = render(**merged(CLICKS_BY_HTTP, {**blocks, "tracking": {**given, "enabled": True}}))

    assert rendered.all("PersistentVolumeClaim") == []
    assert all("volumeClaimTemplates" not in each.spec for each in rendered.all("StatefulSet"))
    assert all("persistentVolumeClaim" not in volume for pod in rendered.pods for volume in pod.volumes.values())


def test_the_chart_takes_what_elastic_ctr_values_writes(render: Renderer) -> None:
    data_config = (
        'export HDFS_ADDRESS="hdfs://namenode:9000"\nexport HDFS_UGI="root,i"\nexport START_DATE_HR=20200401/00\n'
    )
    data_config += 'export END_DATE_HR=20200401/03\nexport DATASET_PATH="/train_data"\nexport SPARSE_DIM="1000001"\n'
    options = Sizes(cpu=4, mem=20, trainer=2, pserver=2, cube=5)
    written = translate(File("data.config", data_config), File("slot.conf", "0\n1\n2\n"), options).values

    rendered = render(below=written)

    assert len(rendered.all("StatefulSet", component="cube")) == 5
    for name in ("trainer", "pserver"):
        [container] = rendered.pod_of(name).containers
        assert container.raw["resources"] == {"requests": {"cpu": 4, "memory": "20Gi"}, "limits": {"memory": "20Gi"}}
    assert any("sparseDim: 1000001\n" in text for _, text in rendered.configs())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpu": 2, "memory": "1Gi"}, {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
        (
            {"cpu": 0.5, "memory": "1Gi", "limits": {"cpu": 1.5}},
            {"requests": {"cpu": "0.5", "memory": "1Gi"}, "limits": {"cpu": "1.5", "memory": "1Gi"}},
        ),
        (
            {"cpu": "500m", "memory": "1Gi", "limits": {"cpu": 2}},
            {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "1Gi"}},
        ),
        (
            {"cpu": None, "memory": None, "requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"memory": "3Gi"}},
            {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"memory": "3Gi"}},
        ),
    ],
    ids=["cpu and memory", "parts of a core, as a Volcano Job takes them", "a limit of cores", "as it is"],
)
def test_cpu_is_asked_for_and_memory_is_asked_for_and_held_to(
    render: Renderer, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    rendered = render(below=merged(SMALLEST, {"serving": {"resources": {"ephemeral-storage": None, **given}}}))

    assert rendered.pod_of("serving").containers[0].raw["resources"] == expected
