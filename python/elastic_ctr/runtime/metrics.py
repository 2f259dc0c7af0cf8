"""Prometheus metrics of one process: a registry of its own, so that two roles in one process never mix."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Metrics of a role, named `elastic_ctr_<role>_<name>`; made once each, kept by their name."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._prefix = f"elastic_ctr_{role.replace('-', '_')}"

    def counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{self._prefix}_{name}", what, labels, registry=self.registry)

    def gauge(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", what, labels, registry=self.registry)

    def histogram(
        self, name: str, what: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = Histogram.DEFAULT_BUCKETS
    ) -> Histogram:
        return Histogram(f"{self._prefix}_{name}", what, labels, buckets=buckets, registry=self.registry)

    def render(self) -> bytes:
        """The text that Prometheus reads; its content type is CONTENT_TYPE."""
        return generate_latest(self.registry)
