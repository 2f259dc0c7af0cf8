"""Load from inside the cluster: two pods that ask without pause, one for predictions, one for raw lookups."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.kube import Kube, Object, eventually
from cluster.release import Release

SCRIPT = Path(__file__).with_name("asking.py")
RATES = {"predict": 40, "lookup": 40}


@dataclass
class Span:
    """What happened between two moments, to one kind of request."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> "Span":
        span = cls()
        for line in lines:
            span.counts.update({key: value for key, value in line.items() if type(value) is int})
            span.errors.update(line["errors"])
            span.ms += line["ms"]
        return span

    def percentile(self, share: float) -> float:
        if not self.ms:
            return math.nan
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def as_dict(self) -> dict[str, Any]:
        shown = {"p50": round(self.percentile(0.5), 2), "p99": round(self.percentile(0.99), 2)}
        return {**self.counts, "errors": dict(self.errors), **shown}


class Load:
    """The two pods of one release; a reader of their logs."""

    def __init__(self, release: Release, image: str, node: str, rates: Mapping[str, int] = RATES) -> None:
        self.rates = rates
        self.release = release
        self.kube: Kube = release.kube
        self._image = image
        self._node = node
        self._names = {what: f"{release.name}-load-{what}" for what in rates}

    def start(self) -> "Load":
        release = self.release
        self.remove()
        name = f"{release.name}-load"
        script = {"asking.py": SCRIPT.read_text()}
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": release.namespace},
            "data": script,
        }
        self.kube.apply(config, *_reads_store(release), *(self._pod(what) for what in self.rates))
        for what in self.rates:
            eventually(f"the {what} load has answers", lambda what=what: self._asks(what), 120)  # type: ignore[misc]
        return self

    def _asks(self, what: str) -> bool:
        return any(line.get("right") for line in self._read(what))

    def _read(self, what: str) -> list[dict[str, Any]]:
        text = self.kube.logs(self.release.namespace, self._names[what])
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def spans(self, start: float, end: float) -> dict[str, Span]:
        """By kind; a line belongs to the second that it ends."""
        return {
            what: Span.of(line for line in self._read(what) if "at" in line and start < line["at"] <= end)
            for what in self.rates
        }

    def steady(self, seconds: float = 15) -> dict[str, Span]:
        """How it is while nothing changes."""
        start = time.time()
        time.sleep(seconds)
        return self.spans(start, time.time())

    def stop(self) -> dict[str, dict[str, Any]]:
        """The totals; the pods are gone afterwards."""
        totals: dict[str, dict[str, Any]] = {}
        for name in self._names.values():
            # Told to end while its log can still be read.
            self.kube.exec(self.release.namespace, name, "load", "sh", "-c", "kill -TERM 1")
        for what in self.rates:
            totals[what] = eventually(f"the {what} load has ended", lambda what=what: self._total(what), 60)  # type: ignore[misc]
        self.remove()
        return totals

    def _total(self, what: str) -> dict[str, Any] | None:
        return next((line["total"] for line in self._read(what) if "total" in line), None)

    def remove(self) -> None:
        for name in self._names.values():
            self.kube.delete("pod", name, self.release.namespace, grace=1)

    def _pod(self, what: str) -> Object:
        release = self.release
        serving = f"http://{release.name}-serving:8400"
        transfer = f"http://{release.name}-cube-transfer:8300"
        store = f"http://{release.name}-file-server:8080"
        python = ["/opt/elastic-ctr/bin/python", "-u", "/load/asking.py"]
        container = {
            "name": "load",
            "image": self._image,
            "command": [*python, what, str(self.rates[what]), serving, transfer, store],
            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "volumeMounts": [{"name": "load", "mountPath": "/load"}, {"name": "tmp", "mountPath": "/tmp"}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self._names[what],
                "namespace": release.namespace,
                "labels": {
                    "app.kubernetes.io/name": "elastic-ctr",
                    "app.kubernetes.io/instance": release.name,
                    "app.kubernetes.io/component": "client",
                    "reads-store": "true",
                },
            },
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self._node},
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                "volumes": [
                    {"name": "load", "configMap": {"name": f"{release.name}-load"}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
        }


def _reads_store(release: Release) -> list[Object]:
    """The load compares with what is published, so it may read the store; a client otherwise may not."""
    ports = [{"port": 8080, "protocol": "TCP"}]
    load = {"podSelector": {"matchLabels": {"reads-store": "true"}}}
    store = {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/instance": release.name,
                "app.kubernetes.io/component": "file-server",
            }
        }
    }
    specs = {
        "load-to-store": {**load, "policyTypes": ["Egress"], "egress": [{"to": [store], "ports": ports}]},
        "store-from-load": {**store, "policyTypes": ["Ingress"], "ingress": [{"from": [load], "ports": ports}]},
    }
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": release.namespace},
            "spec": spec,
        }
        for name, spec in specs.items()
    ]


@contextmanager
def asked(release: Release, image: str, node: str) -> Iterator[Load]:
    """Both pods ask from here to the end of the block."""
    load = Load(release, image, node)
    try:
        yield load.start()
    finally:
        load.remove()


def all_right(totals: Mapping[str, Mapping[str, Any]], *, retries: bool = False) -> None:
    """Every request was answered, every answer was right."""
    for what, total in totals.items():
        told = f"{what}: {json.dumps(total)}"
        assert total["sent"] == total["answered"] == total["right"] > 0, told
        assert total.get("wrong", 0) == 0, told
        assert total.get("unjudged", 0) == 0, told
        if not retries:
            assert total.get("retried", 0) == 0, told
