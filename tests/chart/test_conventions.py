"""What Helm's chart-testing, Prometheus and cluster operators expect of every chart."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.cases import CLICKS_BY_HTTP
from chart.rendering import CHART, Rendered, Renderer, read

CI = sorted((CHART / "ci").glob("*-values.yaml"))
ALERTS = CHART.parents[1] / "docs" / "operations" / "alerts.md"
BLOCKS = ("fileServer", "master", "pserver", "trainer", "cubeTransfer", "cube", "serving", "tracking", "intake")


@pytest.mark.parametrize("values", CI, ids=lambda file: file.stem)
def test_the_values_for_chart_testing_render(values: Path, render: Renderer) -> None:
    assert render(below=read(values)).all("StatefulSet")


def test_the_chart_names_a_maintainer() -> None:
    assert [each["name"] for each in yaml.safe_load((CHART / "Chart.yaml").read_text())["maintainers"]] == [
        "elastic-ctr"
    ]


def test_every_object_carries_the_charts_name_and_version_and_no_pod_does(rendered: Rendered) -> None:
    ours = [
        each for each in rendered.objects if "app.kubernetes.io/component" in each.raw["metadata"].get("labels", {})
    ]
    assert ours
    for each in ours:
        assert each.raw["metadata"]["labels"]["helm.sh/chart"] == "elastic-ctr-0.1.0"
        pod = each.raw.get("spec", {}).get("template", {})
        assert "helm.sh/chart" not in pod.get("metadata", {}).get("labels", {})


def test_every_port_of_http_says_so(render: Renderer) -> None:
    ports = {
        (service.component, port["name"]): port.get("appProtocol")
        for service in render(tracking={"enabled": True}).all("Service")
        for port in service.raw["spec"]["ports"]
    }

    named = {port: protocol for (_, port), protocol in ports.items()}
    assert {port for port, protocol in named.items() if protocol == "http"} >= {
        "predict", "status", "release", "tracking", "store",
    }  # fmt: skip


def test_cube_and_serving_ask_for_room_on_their_nodes_disk(render: Renderer) -> None:
    rendered = render()

    for kind, component in (("StatefulSet", "cube"), ("Deployment", "serving")):
        for each in rendered.all(kind, component=component):
            asked = [c["resources"]["requests"] for c in each.raw["spec"]["template"]["spec"]["containers"]]
            assert "1Gi" in [requests.get("ephemeral-storage") for requests in asked]


def test_every_alert_is_in_its_page_and_its_runbook_is_a_heading_there() -> None:
    rules = [r for g in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"] for r in g["rules"]]
    page = ALERTS.read_text()
    headings = {
        re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in re.findall(r"^#+ (.*)", page, re.MULTILINE)
    }

    assert set(re.findall(r"^\| `(ElasticCtr\w+)`", page, re.MULTILINE)) == {rule["alert"] for rule in rules}
    base = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["prometheusRule"]["runbookUrl"]
    assert CHART.parents[1] / base == ALERTS
    for rule in rules:
        mark, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert mark == "<runbook>"
        assert anchor in headings


@pytest.mark.parametrize("block", BLOCKS)
def test_a_blocks_own_key_goes_before_that_of_all_pods_and_maps_are_merged(block: str, render: Renderer) -> None:
    everything: dict[str, Any] = {**CLICKS_BY_HTTP, "tracking": {"enabled": True}, "training": {"scheduler": "none"}}
    own: dict[str, Any] = {
        "nodeSelector": {"disk": "ssd"},
        "podSecurityContext": {"runAsUser": None, "fsGroup": 7},
        "containerSecurityContext": {"readOnlyRootFilesystem": False},
        "tolerations": [],
    }
    common = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "batch", "operator": "Exists"}]}
    component = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", block)
    below: dict[str, Any] = {**everything, "podDefaults": common}
    below[block] = {**everything.get(block, {}), **own}

    pods = {
        each.component: each.raw["spec"]["template"]["spec"]
        for kind in ("StatefulSet", "Deployment")
        for each in render(**below).all(kind)
    }

    mine, other = pods[component], pods["serving" if block != "serving" else "cube"]
    assert mine["nodeSelector"] == {"kubernetes.io/arch": "amd64", "zone": "a", "disk": "ssd"}
    assert other["nodeSelector"] == {"kubernetes.io/arch": "amd64", "zone": "a"}
    assert "batch" not in {each.get("key") for each in mine.get("tolerations", [])}
    assert "batch" in {each.get("key") for each in other["tolerations"]}
    assert mine["securityContext"] == {
        **{k: v for k, v in other["securityContext"].items() if k != "runAsUser"},
        "fsGroup": 7,
    }
    assert mine["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    assert mine["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_comment_in_a_file_of_templates_stands_above_the_template_that_it_describes() -> None:
    for file in sorted((CHART / "templates").rglob("*.tpl")):
        # The first one may describe the file.
        first, *others = re.split(r"^\{\{/\*.*?\*/\}\}\n", file.read_text(), flags=re.MULTILINE | re.DOTALL)[1:]
        assert first.startswith(("{{- define", "\n")), file.name
        assert [each[:80] for each in others if not each.startswith("{{- define")] == [], file.name
