"""KEDA's ScaledObjects: what they scale, by which metric of the program, and where they stand in the way."""

import re
from typing import Any

import pytest

from chart.api_server import KEDA, install
from chart.rendering import SMALLEST, Refused, Renderer, merged
from chart.test_disruption import found_in_cluster
from chart.test_observability import words_of_the_program

SCALED: dict[str, Any] = {
    "metrics": {"prometheusUrl": "http://prometheus:9090"},
    "serving": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 6, "requestsInFlight": 12.5}},
    "trainer": {"autoscaling": {"enabled": True, "maxReplicas": 5, "lag": 1000001}},
    "cube": {
        "replicasPerShard": 2,
        "autoscaling": {
            "enabled": True,
            "maxReplicas": 7,
            "keysPerSecond": 3000001,
            "scaleDownStabilizationSeconds": 60,
        },
    },
    "training": {"scheduler": "none"},
    "data": {"source": {"url": "kafka://broker:9092/clicks"}, "path": None, "end": None},
}


def test_each_scales_its_workload_by_a_metric_of_this_release(render: Renderer) -> None:
    rendered = render(**SCALED)
    found = {each.name: each for each in rendered.all("ScaledObject")}

    kinds = {"ctr-serving": "Deployment", "ctr-trainer": "Deployment"}
    kinds |= {"ctr-cube-s0": "StatefulSet", "ctr-cube-s1": "StatefulSet"}
    assert {name: each.spec["scaleTargetRef"] for name, each in found.items()} == {
        name: {"kind": kind, "name": name} for name, kind in kinds.items()
    }
    assert rendered.all("HorizontalPodAutoscaler") == []
    for name, each in found.items():
        assert "replicas" not in rendered.one(kinds[name], name=name).spec
        # An upgrade looks for the autoscaler by this name before it sets a count.
        assert each.spec["advanced"]["horizontalPodAutoscalerConfig"]["name"] == name
        [trigger] = each.spec["triggers"]
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
        query = trigger["metadata"]["query"]
        assert '{namespace="ads",app_kubernetes_io_instance="ctr"' in query
        metric = re.findall(r"elastic_ctr_(?:serving|master|cube)_(\w+?)(?:_sum|_total)?\{", query)[0]
        assert metric in words_of_the_program()
    bounds = {name: (each.spec["minReplicaCount"], each.spec["maxReplicaCount"]) for name, each in found.items()}
    assert bounds == {"ctr-serving": (2, 6), "ctr-trainer": (1, 5), "ctr-cube-s0": (2, 7), "ctr-cube-s1": (2, 7)}
    thresholds = {name: each.spec["triggers"][0]["metadata"]["threshold"] for name, each in found.items()}
    assert thresholds == dict(
        zip(
            ("ctr-serving", "ctr-trainer", "ctr-cube-s0", "ctr-cube-s1"),
            ("12.5", "1000001", "3000001", "3000001"),
            strict=True,
        )
    )


def test_a_shard_is_scaled_by_the_keys_of_its_own_pods(render: Renderer) -> None:
    rendered = render(**merged(SCALED, {"cube": {"config": {"shards": 12}}}))
    queries = {
        each.name: each.spec["triggers"][0]["metadata"]["query"]
        for each in rendered.all("ScaledObject", component="cube")
    }

    assert len(queries) == 12
    for name, query in queries.items():
        # Prometheus matches a whole label.
        pods = re.compile(re.findall(r'pod=~"([^"]*)"', query)[0])
        assert {other for other in queries if pods.fullmatch(f"{other}-0") and pods.fullmatch(f"{other}-11")} == {name}


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "ctr-trainer"), ("StatefulSet", "ctr-cube-s1")])
def test_a_workload_that_is_scaled_keeps_its_count_in_an_upgrade(kind: str, name: str) -> None:
    running = found_in_cluster("apps/v1", kind, name, spec={"replicas": 4})
    scaler = found_in_cluster("autoscaling/v2", "HorizontalPodAutoscaler", name, spec={})

    assert "replicas" not in install(objects=[running, scaler], **SCALED).one(kind, name=name).spec
    assert install(objects=[running], **SCALED).one(kind, name=name).replicas == 4


def test_the_release_counts_on_the_least_replicas_of_a_shard_and_pods_know_of_none(render: Renderer) -> None:
    """cube-transfer's file would restart it with each step of the autoscaler, and a pod's template all pods of cube."""
    scaled, plain = render(**SCALED), render(**merged(SCALED, {"cube": {"autoscaling": {"enabled": False}}}))

    for name in ("ctr-cube", "ctr-cube-transfer"):
        assert scaled.one("ConfigMap", name=name).raw["data"] == plain.one("ConfigMap", name=name).raw["data"]
    assert (
        "replicasPerShard: 2"
        in scaled.one("ConfigMap", name="ctr-cube-transfer").raw["data"]["cube-transfer.config.yaml"]
    )
    assert scaled.pod_of("cube").spec == plain.pod_of("cube").spec


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"prometheusUrl": ""}}, "reads metrics from Prometheus, and metrics.prometheusUrl is empty"),
        ({"training": {"scheduler": "volcano"}}, "trainer.autoscaling.enabled needs trainers in a Deployment"),
        ({"trainer": {"minReplicas": 6}}, "trainer.minReplicas 6 is above trainer.autoscaling.maxReplicas 5"),
        ({"cube": {"replicasPerShard": 8}}, "cube.replicasPerShard 8 is above cube.autoscaling.maxReplicas 7"),
        (
            {"data": {"source": {"url": "hdfs://namenode:9000"}}},
            "lag of a stream, and data.source.url hdfs://namenode:9000 is none",
        ),
    ],
    ids=["no Prometheus", "a Volcano Job", "more trainers at least than at most", "more replicas of a shard", "hours"],
)
def test_an_autoscaler_that_cannot_work_is_refused(render: Renderer, changes: dict[str, Any], words: str) -> None:
    assert words in render.refusal(below=merged(SMALLEST, SCALED), **changes)


def test_a_cluster_without_keda_is_named_in_the_refusal() -> None:
    with pytest.raises(Refused) as refused:
        install(without=[KEDA], **SCALED)

    for block in ("trainer", "cube", "serving"):
        assert f"{block}.autoscaling.enabled needs the kinds of keda.sh/v1alpha1" in str(refused.value)
