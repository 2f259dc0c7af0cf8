"""What other people's linters of Kubernetes objects say, where they are installed."""

import json
import subprocess

import pytest
import yaml

from chart.rendering import EXAMPLES, Renderer, on_top_of_smallest, read
from needs import program

# What kube-score finds and we mean.
MEANT = {
    "container-ephemeral-storage-request-and-limit": "folders have size limits of their own; logs go to stdout",
    "container-image-pull-policy": "tags are versions, and an image that is there starts without its registry",
    "container-resources": "a limit on CPU makes latency; memory has its limit",
    "deployment-has-poddisruptionbudget": "training recovers by itself and holds up no drain; see test_disruption",
    "networkpolicy-targets-pod": "pods of a Volcano Job are seen by Volcano alone",
    "pod-probes-identical": "MLflow has one address for both",
    "service-targets-pod": "pods of a Volcano Job are seen by Volcano alone",
    "statefulset-has-poddisruptionbudget": "training recovers by itself and holds up no drain; see test_disruption",
    "statefulset-has-servicename": "a role of one pod is reached by its Service, not by its pod's name",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_kube_score_finds_nothing_critical_that_is_not_meant(example: object, render: Renderer) -> None:
    rendered = render(below=on_top_of_smallest(read(example)))  # type: ignore[arg-type]
    known = [each.raw for each in rendered.objects if each.raw["apiVersion"] != "batch.volcano.sh/v1alpha1"]

    command = [program("kube-score"), "score", "--output-format", "json", "-"]
    done = subprocess.run(command, input=yaml.safe_dump_all(known), capture_output=True, text=True, check=False)

    assert done.stdout, done.stderr
    critical = {
        (check["check"]["id"], of["object_meta"]["name"])
        for of in json.loads(done.stdout)
        for check in of["checks"]
        if not check["skipped"] and check["grade"] == 1
    }
    assert {(check, name) for check, name in critical if check not in MEANT} == set()
