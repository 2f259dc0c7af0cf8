"""Containers, labels and addresses of an operator's own, of all pods, Services and objects or of one component's."""

from typing import Any

import pytest

from chart.api_server import GATEWAY, install
from chart.cases import CLICKS_BY_HTTP
from chart.rendering import Object, Refused, Rendered, Renderer, merged

ALL_ROLES: dict[str, Any] = {**CLICKS_BY_HTTP, "tracking": {"enabled": True}}
SIDECAR = {"image": "example.org/mesh:1", "restartPolicy": "Always", "securityContext": {"runAsUser": 7}}


@pytest.fixture(scope="module", params=["volcano", "none"])
def rendered(render: Renderer, request: pytest.FixtureRequest) -> Rendered:
    options = {
        "initContainers": {"mesh": SIDECAR, "first": {"image": "example.org/first:1"}},
        "extraContainers": {"logs": {"image": "example.org/logs:1"}},
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["namenode"]}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        "runtimeClassName": "gvisor",
        "revisionHistoryLimit": 2,
    }
    own = {"master": {"runtimeClassName": "kata", "lifecycle": {"postStart": None}, "revisionHistoryLimit": 0}}
    return render(**merged(ALL_ROLES, {"training": {"scheduler": request.param}, "podDefaults": options, **own}))


def test_every_pod_has_the_addresses_and_the_runtime_of_all_pods_or_its_own(rendered: Rendered) -> None:
    for pod in rendered.pods:
        assert pod.spec["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["namenode"]}], pod.owner
        assert pod.spec["dnsConfig"] == {"options": [{"name": "ndots", "value": "2"}]}
        assert pod.spec["runtimeClassName"] == ("kata" if pod.component == "master" else "gvisor")


def test_the_pods_of_roles_have_more_containers_with_the_security_context_of_theirs(rendered: Rendered) -> None:
    for pod in rendered.pods:
        if pod.owner.startswith("Pod/"):
            assert (pod.init_containers, len(pod.containers)) == ([], 1)
            continue
        first, mesh = pod.init_containers
        assert (first.name, first.image, mesh.name) == ("first", "example.org/first:1", "mesh"), pod.owner
        ours, *_, logs = pod.containers
        assert logs.name == "logs"
        assert first.raw["securityContext"] == logs.raw["securityContext"] == ours.raw["securityContext"]
        assert mesh.raw["securityContext"] == {**ours.raw["securityContext"], "runAsUser": 7}
        assert mesh.raw["restartPolicy"] == "Always"
        handlers = {} if pod.component == "master" else {"postStart": {"exec": {"command": ["true"]}}}
        if pod.component == "serving":
            handlers["preStop"] = {"exec": {"command": ["sleep", "15"]}}
        assert ours.raw.get("lifecycle", {}) == handlers, pod.owner


def test_every_workload_keeps_so_many_former_versions(rendered: Rendered) -> None:
    for each in (*rendered.all("StatefulSet"), *rendered.all("Deployment")):
        assert each.spec["revisionHistoryLimit"] == (0 if each.component == "master" else 2), each.name


def test_a_prestop_of_its_own_replaces_servings_wait(render: Renderer) -> None:
    own = {"preStop": {"httpGet": {"path": "/drain", "port": "admin"}}}

    assert render(serving={"lifecycle": own}).pod_of("serving").containers[0].raw["lifecycle"] == own


def ours(of: Rendered) -> list[Object]:
    return [each for each in of.objects if each.component]


def test_every_object_has_the_common_labels_and_annotations_and_pods_do_not_change(render: Renderer) -> None:
    common = {"commonLabels": {"team": "ads", "helm.sh/chart": "x"}, "commonAnnotations": {"owner": "ads"}}
    rendered = render(**merged(ALL_ROLES, common))

    for each in ours(rendered):
        assert each.labels["team"] == "ads", each.name
        assert each.labels["helm.sh/chart"].startswith("elastic-ctr-")
        assert each.annotations["owner"] == "ads", each.name
    before = {pod.owner: pod.labels for pod in render(**ALL_ROLES).pods if not pod.owner.startswith("Pod/")}
    assert {pod.owner: pod.labels for pod in rendered.pods if not pod.owner.startswith("Pod/")} == before


def test_another_name_is_in_every_label_and_every_selector(render: Renderer) -> None:
    rendered = render(**merged(ALL_ROLES, {"nameOverride": "ctr-of-ads"}))

    assert {each.labels["app.kubernetes.io/name"] for each in ours(rendered)} == {"ctr-of-ads"}
    assert {pod.labels["app.kubernetes.io/name"] for pod in rendered.pods} == {"ctr-of-ads"}
    # By which `elastic-ctr --namespace` finds them.
    labels = [*(each.labels for each in ours(rendered)), *(pod.labels for pod in rendered.pods)]
    assert {each["app.kubernetes.io/part-of"] for each in labels} == {"elastic-ctr"}
    assert not any("'elastic-ctr'" in str(each.raw.get("spec", {}).get("selector")) for each in ours(rendered))


def test_services_have_the_fields_of_all_services_where_their_type_takes_them(render: Renderer) -> None:
    everywhere: dict[str, Any] = {
        "labels": {"team": "ads"}, "annotations": {"a": "b"}, "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv6", "IPv4"], "loadBalancerClass": "example.org/nlb", "externalTrafficPolicy": "Local",
    }  # fmt: skip
    own: dict[str, Any] = {
        "serving": {"service": {"type": "LoadBalancer", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}}
    }
    own["master"] = {"service": {"type": "NodePort", "annotations": {"a": "c"}}}
    services = {
        each.component: each
        for each in render(**merged(ALL_ROLES, {"serviceDefaults": everywhere, **own})).all("Service")
    }

    assert len(services) == 8
    for name, each in services.items():
        assert (each.labels["team"], each.annotations["a"]) == ("ads", "c" if name == "master" else "b"), name
        assert each.spec["ipFamilyPolicy"] == ("SingleStack" if name == "serving" else "PreferDualStack")
        assert each.spec["ipFamilies"] == (["IPv6"] if name == "serving" else ["IPv6", "IPv4"])
    classes = {
        name: each.spec["loadBalancerClass"] for name, each in services.items() if "loadBalancerClass" in each.spec
    }
    assert classes == {"serving": "example.org/nlb"}
    assert {name for name, each in services.items() if "externalTrafficPolicy" in each.spec} == {"serving", "master"}


def test_an_ingress_of_grpc_leads_to_its_port(render: Renderer) -> None:
    rendered = render(
        serving={"grpcIngress": {"enabled": True, "hosts": ["grpc.example.org"], "annotations": {"a": "GRPC"}}}
    )
    ingress = rendered.one("Ingress", name="ctr-serving-grpc")

    [rule] = ingress.spec["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend) == ("grpc.example.org", {"name": "ctr-serving", "port": {"name": "grpc"}})
    assert ingress.annotations == {"a": "GRPC"}


def test_routes_of_the_gateway_api_lead_to_the_ports_of_serving(render: Renderer) -> None:
    gateway = [{"name": "public", "namespace": "gateways"}]
    routes = {
        "httpRoute": {"enabled": True, "parentRefs": gateway, "hosts": ["a.example.org"], "path": "/ctr"},
        "grpcRoute": {"enabled": True, "parentRefs": gateway},
    }
    http, grpc = (render(serving=routes).one(kind) for kind in ("HTTPRoute", "GRPCRoute"))

    assert {each.api_version for each in (http, grpc)} == {"gateway.networking.k8s.io/v1"}
    assert http.spec == {
        "parentRefs": gateway,
        "hostnames": ["a.example.org"],
        "rules": [
            {
                "backendRefs": [{"name": "ctr-serving", "port": 8400}],
                "matches": [{"path": {"type": "PathPrefix", "value": "/ctr"}}],
            }
        ],
    }
    assert grpc.spec == {"parentRefs": gateway, "rules": [{"backendRefs": [{"name": "ctr-serving", "port": 8402}]}]}


def test_a_cluster_without_the_gateway_api_is_named_in_the_refusal() -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}]}

    assert install(serving={"httpRoute": route}).one("HTTPRoute").name == "ctr-serving"
    with pytest.raises(
        Refused, match=r"serving\.httpRoute\.enabled needs the kinds of gateway\.networking\.k8s\.io/v1"
    ):
        install(without=[GATEWAY], serving={"httpRoute": route})


def test_both_monitors_have_the_rules_of_relabeling(render: Renderer) -> None:
    node, drop = {"targetLabel": "node"}, {"regex": "python_gc_.*", "action": "drop"}
    monitor = {"enabled": True, "relabelings": [node], "metricRelabelings": [drop]}
    rendered = render(metrics={"serviceMonitor": monitor})

    for each in (*rendered.all("ServiceMonitor"), *rendered.all("PodMonitor")):
        for endpoint in each.spec.get("endpoints", []) + each.spec.get("podMetricsEndpoints", []):
            assert (endpoint["relabelings"], endpoint["metricRelabelings"]) == ([node], [drop])
