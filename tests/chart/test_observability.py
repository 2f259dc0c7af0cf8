"""What Prometheus reads, and whether alerts and dashboard speak of what the program measures."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from chart.cases import CLICKS_BY_HTTP
from chart.edges import INTAKE, METRICS
from chart.rendering import CHART, ROOT, Object, Refused, Rendered, Renderer, merged

ALL_ON: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "interval": "7s", "labels": {"release": "stack"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "stack"}},
        "dashboard": {"enabled": True},
    }
}
ALERTS = (CHART / "files" / "alerts.yaml").read_text()
DASHBOARD = (CHART / "files" / "dashboards" / "elastic-ctr.json").read_text()
ROLES = ("cube_transfer", "cube_builder", "cube", "master", "trainer", "pserver", "serving", "intake")


@pytest.fixture(scope="module")
def rendered(render: Renderer) -> Rendered:
    return render(**ALL_ON)


def selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def read_by(monitor: Object, rendered: Rendered) -> Iterator[tuple[str, int]]:
    """(component, port) of everything that a monitor makes Prometheus read."""
    names = [each["port"] for each in monitor.spec.get("endpoints", []) + monitor.spec.get("podMetricsEndpoints", [])]
    if monitor.kind == "ServiceMonitor":
        for service in rendered.all("Service"):
            if selected(monitor.spec["selector"], service.labels) and service.component:
                pod = rendered.pod_of(service.component)
                ports = {name: port for each in pod.containers for name, port in each.ports.items()}
                yield from (
                    (pod.component, ports[each["targetPort"]])
                    for each in service.spec["ports"]
                    if each["name"] in names
                )
    else:
        for pod in {pod.component: pod for pod in rendered.pods}.values():
            if selected(monitor.spec["selector"], pod.labels):
                ports = {name: port for each in pod.containers for name, port in each.ports.items()}
                yield from ((pod.component, port) for name, port in ports.items() if name in names)


def test_every_endpoint_with_metrics_is_scraped_once(rendered: Rendered) -> None:
    monitors = [*rendered.all("ServiceMonitor"), *rendered.all("PodMonitor")]

    assert Counter(each for monitor in monitors for each in read_by(monitor, rendered)) == Counter(METRICS)


def test_an_intake_is_read_once(render: Renderer) -> None:
    rendered = render(**ALL_ON, **CLICKS_BY_HTTP)
    monitors = [*rendered.all("ServiceMonitor"), *rendered.all("PodMonitor")]

    assert Counter(each for monitor in monitors for each in read_by(monitor, rendered)) == Counter(
        METRICS | {("intake", INTAKE)}
    )


def test_the_operator_finds_what_it_reads_by_the_labels_of_the_values(rendered: Rendered) -> None:
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert rendered.one(kind).labels["release"] == "stack"


def test_metrics_have_the_labels_of_their_release_and_component(rendered: Rendered) -> None:
    labels = {"app.kubernetes.io/instance", "app.kubernetes.io/component"}

    assert set(rendered.one("ServiceMonitor").spec["targetLabels"]) == labels
    assert set(rendered.one("PodMonitor").spec["podTargetLabels"]) == labels


def test_objects_for_prometheus_are_absent_by_default(render: Renderer) -> None:
    assert {"ServiceMonitor", "PodMonitor", "PrometheusRule"} & {each.kind for each in render().objects} == set()


@cache
def words_of_the_program() -> frozenset[str]:
    """Every text in the roles' code: the names of metrics are among them."""
    found = set()
    for room in ("cube", "training", "serving", "sources/intake"):
        for file in (ROOT / "python" / "elastic_ctr" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value.lower())
    return frozenset(found)


def named(text: str) -> set[str]:
    return set(re.findall(r"\belastic_ctr_[a-z0-9_]+", text))


@pytest.mark.parametrize("metric", sorted(named(ALERTS + DASHBOARD)))
def test_alerts_and_dashboard_speak_of_metrics_that_there_are(metric: str) -> None:
    bare = re.sub(r"_(total|bucket|sum|count)$", "", metric)
    role = next(each for each in ROLES if bare.startswith(f"elastic_ctr_{each}_"))
    name = bare.removeprefix(f"elastic_ctr_{role}_")

    assert {name, bare} & words_of_the_program()


def rules(rendered: Rendered) -> list[dict[str, Any]]:
    return [rule for group in rendered.one("PrometheusRule").spec["groups"] for rule in group["rules"]]


def test_every_alert_is_of_this_release_and_says_what_to_do(rendered: Rendered) -> None:
    assert len(rules(rendered)) >= 8
    for rule in rules(rendered):
        assert re.match(r"ElasticCtr[A-Z]", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() >= {"summary", "description"}
        for metric in re.findall(r"elastic_ctr_\w+(\{[^}]*\})?", rule["expr"]):
            assert 'namespace="ads"' in metric, rule["alert"]
            assert 'app_kubernetes_io_instance="ctr"' in metric, rule["alert"]
        assert "<" not in re.sub(r"\s<=?\s", "", rule["expr"]), rule["alert"]


def test_templates_in_the_annotations_of_alerts_are_left_to_prometheus(rendered: Rendered) -> None:
    raw = yaml.safe_load(ALERTS)
    texts = {text for group in raw["groups"] for rule in group["rules"] for text in rule["annotations"].values()}
    templated = {text for text in texts if "{{" in text}

    assert templated
    assert templated <= {text for rule in rules(rendered) for text in rule["annotations"].values()}


def test_the_dashboard_is_one_and_arrives_whole(rendered: Rendered) -> None:
    [config] = [each for each in rendered.all("ConfigMap") if each.name.endswith("-dashboard")]
    [text] = config.raw["data"].values()

    assert json.loads(text) == json.loads(DASHBOARD)
    assert config.labels["grafana_dashboard"] == "1"


def test_every_panel_has_a_title_and_queries_metrics_of_the_program() -> None:
    board = json.loads(DASHBOARD)
    panels = [each for each in board["panels"] if each["type"] != "row"]

    assert len(panels) >= 10
    for panel in panels:
        assert panel["title"]
        assert panel["targets"]
        assert all(named(target["expr"]) for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize(
    ("window", "canary", "limit"),
    [
        (300, {}, "11.5"),
        (1000, {"share": 0.0, "minutes": 7}, "15"),
        (1000, {"share": 0.1}, "+Inf"),
        (60_000, {}, "310"),
    ],
)
def test_the_limit_of_stale_clicks_follows_the_window_and_the_canary(
    render: Renderer, window: int, canary: dict[str, float], limit: str
) -> None:
    values = {"data": {"stream": {"windowMs": window}}, "serving": {"config": {"canary": canary}}}
    [stale] = [rule for rule in rules(render(**merged(ALL_ON, values))) if rule["alert"] == "ElasticCtrClicksStale"]

    assert stale["expr"].endswith(f"> {limit}")


ALERT_NAMES = [rule["alert"] for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
WITH_THRESHOLD = [
    rule["alert"] for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"] if "threshold" in rule
]


def of_alerts(**values: Any) -> dict[str, Any]:
    return merged(ALL_ON, {"metrics": {"prometheusRule": values}})


def test_every_alert_takes_its_settings_from_the_values(render: Renderer) -> None:
    own = {"severity": "page", "for": "7m", "labels": {"tier": "one"}}
    usual = {rule["alert"]: rule for rule in rules(render(**ALL_ON))}

    found = rules(
        render(
            **of_alerts(
                runbookUrl="https://wiki.example/ctr",
                alertLabels={"team": "ads"},
                alerts={name: own | ({"threshold": 12.5} if name in WITH_THRESHOLD else {}) for name in ALERT_NAMES},
            )
        )
    )

    assert [rule["alert"] for rule in found] == ALERT_NAMES
    for rule in found:
        assert rule["labels"] == {"severity": "page", "team": "ads", "tier": "one"}
        assert rule["for"] == "7m"
        assert rule["annotations"]["runbook_url"] == "https://wiki.example/ctr#alerts"
        assert ("> 12.5" in rule["expr"]) == (rule["alert"] in WITH_THRESHOLD)
        assert "threshold" not in rule
        assert ("threshold>" in str(rule)) is False
        if rule["alert"] not in WITH_THRESHOLD:
            assert rule["expr"] == usual[rule["alert"]]["expr"]


def test_an_alert_can_be_left_out(render: Renderer) -> None:
    found = rules(render(**of_alerts(alerts={"ElasticCtrFeatureDrift": {"enabled": False}})))

    assert [rule["alert"] for rule in found] == [name for name in ALERT_NAMES if name != "ElasticCtrFeatureDrift"]


@pytest.mark.parametrize(
    ("alerts", "told"),
    [
        ({"ElasticCtrDrift": {}}, "has ElasticCtrDrift, which is no alert: there are ElasticCtrAgentFails, "),
        ({"ElasticCtrNoLiveVersion": {"threshold": 1}}, "compares nothing with a threshold: leave it out"),
        ({"ElasticCtrFeatureDrift": {"treshold": 1}}, "'treshold'"),
        ({"ElasticCtrFeatureDrift": {"for": "soon"}}, "'soon' does not match pattern"),
    ],
    ids=str,
)
def test_settings_of_alerts_that_would_do_nothing_are_refused(
    render: Renderer, alerts: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        render(**of_alerts(alerts=alerts))


def test_a_training_that_has_reached_its_end_is_not_stale(rendered: Rendered) -> None:
    [stale] = [rule for rule in rules(rendered) if rule["alert"] == "ElasticCtrLiveVersionStale"]

    assert re.sub(r"\{[^}]*\}", "", stale["expr"]) == (
        "elastic_ctr_cube_transfer_overdue_intervals > 3 unless on (namespace, app_kubernetes_io_instance) elastic_ctr_master_finished == 1"
    )


def test_the_drift_of_the_last_pass_ends_with_its_training(rendered: Rendered) -> None:
    [drift] = [rule for rule in rules(rendered) if rule["alert"] == "ElasticCtrFeatureDrift"]

    assert re.sub(r"\{[^}]*\}", "", drift["expr"]) == (
        "elastic_ctr_master_feature_psi > 0.25 unless on (namespace, app_kubernetes_io_instance) elastic_ctr_master_finished == 1"
    )


def test_every_comparison_with_a_number_has_a_threshold() -> None:
    """Except of a growth, and of a version that differs by any number."""
    found = {
        rule["alert"]
        for group in yaml.safe_load(ALERTS)["groups"]
        for rule in group["rules"]
        if re.search(r"> [0-9]", re.sub(r"deriv\([^)]*\) > 0", "", rule["expr"]))
    }

    assert found == {"ElasticCtrServingBehind"}


def test_rates_on_the_dashboard_follow_the_scrape_interval_and_numbers_are_read_at_a_glance() -> None:
    panels = {panel["title"]: panel for panel in json.loads(DASHBOARD)["panels"] if panel["type"] != "row"}

    expressions = [target["expr"] for panel in panels.values() for target in panel["targets"]]
    assert {
        window for each in expressions for window in re.findall(r"\[([^\]]*)\]", re.sub(r"\{[^}]*\}", "", each))
    } == {"$__rate_interval"}
    stats = [panel for panel in panels.values() if panel["type"] == "stat"]
    assert all("thresholds" in panel["fieldConfig"]["defaults"] for panel in stats if panel["title"] != "Live version")
    for title in ("Live version", "Versions"):
        assert panels[title]["fieldConfig"]["defaults"]["unit"] == "dateTimeAsIso"
    [none] = panels["Problems"]["fieldConfig"]["defaults"]["mappings"]
    assert none["options"]["0"] == {"text": "none", "color": "green", "index": 0}
