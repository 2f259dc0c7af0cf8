"""The chart as objects: whole charts only, rendered by Helm's own library, each set of values once."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "elastic-ctr"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
Values = dict[str, Any]

# The least that a user must say: what is trained on.
SMALLEST: Values = {
    "data": {
        "source": {"url": "hdfs://namenode:9000", "user": "root"},
        "path": "/train_data",
        "start": "20200401/00",
        "end": "20200401/03",
        "slots": ["0", "1", "2", "3"],
    }
}
# What a rendering without a cluster needs, too.
TOKENS: Values = {"auth": {"existingSecret": "ctr-auth"}}
# The same in C, where PyYAML was built with it: most of the time goes into reading what was rendered.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def merged(below: Values, above: Values) -> dict[str, Any]:
    """As Helm lays one values file over another: maps key by key, everything else whole."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


@dataclass(frozen=True)
class Container:
    """One container of a pod, an init container as well."""

    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def image(self) -> str:
        return str(self.raw["image"])

    @property
    def args(self) -> list[str]:
        return list(self.raw.get("args", []))

    @property
    def env(self) -> dict[str, Any]:
        """Value, or where it comes from, by name."""
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in self.raw.get("env", [])}

    @property
    def ports(self) -> dict[str, int]:
        return {each["name"]: int(each["containerPort"]) for each in self.raw.get("ports", [])}

    @property
    def mounts(self) -> dict[str, dict[str, Any]]:
        """By path."""
        return {each["mountPath"]: each for each in self.raw.get("volumeMounts", [])}


@dataclass(frozen=True)
class Pod:
    """What pods are made from: a pod template, or a Pod itself. `owner` is `Kind/name`, of a Volcano task `…/task`."""

    owner: str
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.metadata.get("labels", {}))

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def init_containers(self) -> list[Container]:
        return [Container(each) for each in self.spec.get("initContainers", [])]

    @property
    def containers(self) -> list[Container]:
        return [Container(each) for each in self.spec["containers"]]

    def container(self, name: str) -> Container:
        [found] = [each for each in self.containers if each.name == name]
        return found

    @property
    def volumes(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.spec.get("volumes", [])}


@dataclass(frozen=True)
class Object:
    """One rendered object."""

    raw: dict[str, Any]
    template: str

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def api_version(self) -> str:
        return str(self.raw["apiVersion"])

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.raw["metadata"].get("labels", {}))

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.raw["metadata"].get("annotations", {}))

    @property
    def component(self) -> str | None:
        return self.labels.get("app.kubernetes.io/component")

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.raw["spec"])

    @property
    def replicas(self) -> int:
        return int(self.spec["replicas"])

    @property
    def is_test(self) -> bool:
        return "helm.sh/hook" in self.annotations

    @property
    def selector(self) -> dict[str, str]:
        """Of a Service, of a workload, of a budget."""
        selector = self.spec["podSelector"] if self.kind == "NetworkPolicy" else self.spec["selector"]
        return dict(selector.get("matchLabels", selector))

    @property
    def is_volcano(self) -> bool:
        return self.api_version.startswith("batch.volcano.sh/")

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Of a Volcano Job, by name."""
        return {task["name"]: task for task in self.spec["tasks"]}

    @cached_property
    def pods(self) -> list[Pod]:
        """What this object makes pods from."""
        owner = f"{self.kind}/{self.name}"
        if self.kind == "Pod":
            return [Pod(owner, self.raw["metadata"], self.spec)]
        if self.is_volcano:
            return [self._templated(f"{owner}/{name}", task["template"]) for name, task in self.tasks.items()]
        if self.kind == "CronJob":
            return [self._templated(owner, self.spec["jobTemplate"]["spec"]["template"])]
        if "template" in self.raw.get("spec", {}):
            return [self._templated(owner, self.spec["template"])]
        return []

    @staticmethod
    def _templated(owner: str, template: dict[str, Any]) -> Pod:
        return Pod(owner, template.get("metadata", {}), template["spec"])

    @property
    def pod(self) -> Pod:
        [pod] = self.pods
        return pod


class Rendered:
    """The objects of one release."""

    def __init__(self, texts: Mapping[str, str], namespace: str) -> None:
        self.texts = {name.partition("/")[2]: text for name, text in texts.items()}
        self.namespace = namespace
        self.notes = self.texts.get("templates/NOTES.txt", "")

    @cached_property
    def objects(self) -> list[Object]:
        return [
            Object(document, name)
            for name, text in sorted(self.texts.items())
            if name.endswith(".yaml")
            for document in yaml.load_all(text, Loader=_LOADER)
            if document
        ]

    @cached_property
    def pods(self) -> list[Pod]:
        return [pod for each in self.objects for pod in each.pods]

    def all(self, kind: str, *, component: str | None = None, name: str | None = None) -> list[Object]:
        return [
            each
            for each in self.objects
            if each.kind == kind and component in (None, each.component) and name in (None, each.name)
        ]

    def one(self, kind: str, *, component: str | None = None, name: str | None = None) -> Object:
        [found] = self.all(kind, component=component, name=name)
        return found

    def pod_of(self, component: str) -> Pod:
        """What the pods of a component are made from; where several objects make them, all the same, the first."""
        return next(pod for pod in self.pods if pod.component == component and not pod.owner.startswith("Pod/"))

    def configs(self) -> Iterator[tuple[str, str]]:
        """(where, text) of every role's file."""
        for each in self.all("ConfigMap"):
            for key, text in each.raw.get("data", {}).items():
                if key.endswith(".config.yaml"):
                    yield f"{each.name}/{key}", text


class Refused(Exception):
    """What Helm said instead of rendering."""


class Renderer:
    """Renders the chart; the same values are rendered once."""

    def __init__(self, chart: Path = CHART) -> None:
        self._chart = helm_python.Chart.load(chart)
        self._done: dict[str, Rendered] = {}

    def __call__(
        self,
        *,
        below: Values = SMALLEST,
        release: str = "ctr",
        namespace: str = "ads",
        upgrade: bool = False,
        **values: Any,
    ) -> Rendered:
        """`values` laid over `below`, and both over TOKENS. Raises Refused."""
        given = merged(TOKENS, merged(below, values))
        key = json.dumps([given, release, namespace, upgrade])
        if key not in self._done:
            try:
                texts = self._chart.render(
                    given, name=release, namespace=namespace, is_install=not upgrade, is_upgrade=upgrade
                )
            except helm_python.HelmError as refused:
                raise Refused(str(refused)) from refused
            self._done[key] = Rendered(texts, namespace)
        return self._done[key]

    def refusal(self, *, below: Values = SMALLEST, **values: Any) -> str:
        """The words with which an install is refused; fails where it is not."""
        try:
            self(below=below, **values)
        except Refused as refused:
            return str(refused)
        raise AssertionError(f"rendered in spite of {values}")

    def close(self) -> None:
        self._chart.close()


def read(path: Path) -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
    return given


def on_top_of_smallest(example: Values) -> Values:
    """An example that names no data of its own stands on the smallest file."""
    return example if "data" in example else merged(SMALLEST, example)
