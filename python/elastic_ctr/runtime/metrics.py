"""Prometheus metrics of one role, in a separate registry, so that two roles in one process do not mix."""

import platform
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from elastic_ctr import __version__


class Metrics:
    """Metrics of a role, named `elastic_ctr_<role>_<name>`; each is created once.

    Every role has `elastic_ctr_build_info` and the usual `process_*` besides.
    """

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._prefix = f"elastic_ctr_{role.replace('-', '_')}"
        ProcessCollector(registry=self.registry)
        build = Info("elastic_ctr_build", "Version of elastic-ctr and of Python.", registry=self.registry)
        build.info({"role": role, "version": __version__, "python": platform.python_version()})

    def counter_of(self, name: str, what: str, count: Callable[[], float]) -> None:
        """Register a counter whose value is kept elsewhere; each scrape calls `count`."""
        self.computed(lambda: [CounterMetricFamily(f"{self._prefix}_{name}", what, value=count())])

    def computed(self, compute: Callable[[], Iterable[Metric]]) -> None:
        """Register metrics that `compute` returns at each scrape."""
        self.registry.register(_Computed(compute))

    def gauge(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", what, labels, registry=self.registry)

    def histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{self._prefix}_{name}", what, registry=self.registry, buckets=buckets)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return body and content type: OpenMetrics if `accept` allows it, else Prometheus' text format."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _Computed(Collector):
    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._compute()
