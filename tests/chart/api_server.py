"""An API server as Helm sees one while it renders for a cluster: kinds, a version, and the objects a test gives it.

It stores nothing and checks nothing. What `lookup` and `.Capabilities` do can be seen with it; what a cluster makes of
the objects is for tests/cluster.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import helm_python

from chart.rendering import CHART, SMALLEST, Refused, Rendered, Values, merged

VOLCANO = "batch.volcano.sh/v1alpha1"
PROMETHEUS = "monitoring.coreos.com/v1"
KEDA = "keda.sh/v1alpha1"
GATEWAY = "gateway.networking.k8s.io/v1"
# (kind, plural) of what a chart may hold, by group and version.
KINDS: Mapping[str, Mapping[str, str]] = {
    "v1": {
        "ConfigMap": "configmaps",
        "Namespace": "namespaces",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "batch/v1": {"CronJob": "cronjobs", "Job": "jobs"},
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "scheduling.k8s.io/v1": {"PriorityClass": "priorityclasses"},
    "apiextensions.k8s.io/v1": {"CustomResourceDefinition": "customresourcedefinitions"},
    VOLCANO: {"Job": "jobs"},
    KEDA: {"ScaledObject": "scaledobjects"},
    GATEWAY: {"HTTPRoute": "httproutes", "GRPCRoute": "grpcroutes"},
    PROMETHEUS: {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
}
# In every namespace.
ROOT_CA = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": "ads"}}
_CLUSTER_WIDE = {"Namespace", "PriorityClass", "CustomResourceDefinition"}


def _path(raw: Mapping[str, Any]) -> str:
    api_version, kind, metadata = raw["apiVersion"], raw["kind"], raw["metadata"]
    root = f"/api/{api_version}" if api_version == "v1" else f"/apis/{api_version}"
    space = "" if kind in _CLUSTER_WIDE else f"/namespaces/{metadata['namespace']}"
    return f"{root}{space}/{KINDS[api_version][kind]}/{metadata['name']}"


def _answers(groups: Iterable[str], objects: Iterable[Mapping[str, Any]], version: str) -> dict[str, Any]:
    """What stands at each path."""
    known = list(groups)
    named = [
        {
            "name": each.partition("/")[0],
            "versions": [{"groupVersion": each, "version": each.partition("/")[2]}],
            "preferredVersion": {"groupVersion": each, "version": each.partition("/")[2]},
        }
        for each in known
        if each != "v1"
    ]
    major, minor = version.split(".")[:2]
    found: dict[str, Any] = {
        "/version": {"major": major, "minor": minor, "gitVersion": f"v{version}"},
        "/api": {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": named},
    }
    for each in known:
        resources = [
            {
                "name": plural,
                "singularName": "",
                "namespaced": kind not in _CLUSTER_WIDE,
                "kind": kind,
                "verbs": ["get"],
            }
            for kind, plural in KINDS[each].items()
        ]
        found["/api/v1" if each == "v1" else f"/apis/{each}"] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": each,
            "resources": resources,
        }
    return {**found, **{_path(each): each for each in objects}}


class _Handler(BaseHTTPRequestHandler):
    answers: Mapping[str, Any] = {}

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name it has there)
        """Nothing: a test fails with Helm's words, not with requests."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/openapi/v2":
            # An empty document: Helm then leaves the checking of fields to the server.
            self._answer(200, b"", "application/octet-stream")
        elif path in self.answers:
            self._answer(200, json.dumps(self.answers[path]).encode(), "application/json")
        else:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self._answer(404, json.dumps(status).encode(), "application/json")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    # Helm asks for all groups at once; a connection that finds no room here is tried again a second later.
    request_queue_size = 128


@contextmanager
def _serving(answers: Mapping[str, Any]) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"answers": answers}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def install(
    *,
    objects: Iterable[Mapping[str, Any]] = (),
    in_every_namespace: Iterable[Mapping[str, Any]] = (ROOT_CA,),
    without: Iterable[str] = (),
    version: str = "1.34.3",
    below: Values = SMALLEST,
    chart: Path = CHART,
    **values: Any,
) -> Rendered:
    """What `helm install ctr --namespace ads` would send to a cluster that holds `objects`, and knows every group but
    `without`. Raises Refused."""
    groups = [each for each in KINDS if each not in without]
    with _serving(_answers(groups, [*in_every_namespace, *objects], version)) as address:
        cluster = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": address}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        # Unhurried as Helm is by itself, it would wait between its questions.
        with helm_python.Config(
            storage_driver="memory",
            namespace="ads",
            kubeconfig_content=json.dumps(cluster),
            qps=1000,
            burst_limit=1000,
        ) as config:
            try:
                release = config.install(chart, "ctr", merged(below, values), dry_run="server", timeout=20)
            except helm_python.HelmError as refused:
                raise Refused(str(refused)) from refused
    texts = {"elastic-ctr/templates/NOTES.txt": release.get("notes", "")}
    for document in release["manifest"].split("---\n# Source: ")[1:]:
        name, _, text = document.partition("\n")
        texts[name] = f"{texts.get(name, '')}---\n{text}"
    return Rendered(texts, "ads")
