"""KEDA's ScaledObjects: which Deployment they scale, by which metric of the program, and where they stand in the way."""

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
    "training": {"scheduler": "none"},
    "data": {"source": {"url": "kafka://broker:9092/clicks"}, "path": None, "end": None},
}


def test_each_scales_a_deployment_by_a_metric_of_this_release(render: Renderer) -> None:
    rendered = render(**SCALED)
    found = {each.name: each for each in rendered.all("ScaledObject")}

    assert found.keys() == {"ctr-serving", "ctr-trainer"}
    assert rendered.all("HorizontalPodAutoscaler") == []
    for name, each in found.items():
        assert rendered.one("Deployment", name=name).name == each.spec["scaleTargetRef"]["name"]
        # An upgrade looks for the autoscaler by this name before it sets a count.
        assert each.spec["advanced"]["horizontalPodAutoscalerConfig"]["name"] == name
        [trigger] = each.spec["triggers"]
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
        query = trigger["metadata"]["query"]
        assert '{namespace="ads",app_kubernetes_io_instance="ctr"}' in query
        metric = re.findall(r"elastic_ctr_(?:serving|master)_(\w+?)(?:_sum)?\{", query)[0]
        assert metric in words_of_the_program()
    bounds = {name: (each.spec["minReplicaCount"], each.spec["maxReplicaCount"]) for name, each in found.items()}
    assert bounds == {"ctr-serving": (2, 6), "ctr-trainer": (1, 5)}
    thresholds = {name: each.spec["triggers"][0]["metadata"]["threshold"] for name, each in found.items()}
    assert thresholds == {"ctr-serving": "12.5", "ctr-trainer": "1000001"}


def test_a_deployment_that_is_scaled_keeps_its_count_in_an_upgrade() -> None:
    running = found_in_cluster("apps/v1", "Deployment", "ctr-trainer", spec={"replicas": 4})
    scaler = found_in_cluster("autoscaling/v2", "HorizontalPodAutoscaler", "ctr-trainer", spec={})

    assert "replicas" not in install(objects=[running, scaler], **SCALED).one("Deployment", component="trainer").spec
    first = install(objects=[running], **SCALED).one("Deployment", component="trainer")
    assert first.replicas == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"prometheusUrl": ""}}, "reads metrics from Prometheus, and metrics.prometheusUrl is empty"),
        ({"training": {"scheduler": "volcano"}}, "trainer.autoscaling.enabled needs trainers in a Deployment"),
        ({"trainer": {"minReplicas": 6}}, "trainer.minReplicas 6 is above trainer.autoscaling.maxReplicas 5"),
        (
            {"data": {"source": {"url": "hdfs://namenode:9000"}}},
            "lag of a stream, and data.source.url hdfs://namenode:9000 is none",
        ),
    ],
    ids=["no Prometheus", "a Volcano Job", "more at least than at most", "hours"],
)
def test_an_autoscaler_that_cannot_work_is_refused(render: Renderer, changes: dict[str, Any], words: str) -> None:
    assert words in render.refusal(below=merged(SMALLEST, SCALED), **changes)


def test_a_cluster_without_keda_is_named_in_the_refusal() -> None:
    with pytest.raises(Refused, match=r"trainer\.autoscaling\.enabled needs the kinds of keda\.sh/v1alpha1"):
        install(without=[KEDA], **SCALED)
