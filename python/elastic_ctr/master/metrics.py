"""The master's Prometheus metrics, read from its ledger at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from elastic_ctr.master.coordinator import Measured

_PREFIX = "elastic_ctr_master"
_TOTALS = {
    "files": ("files_read", "Files of passes whose hours were complete."),
    "records": (
        "records_read",
        "Lines that were accepted when their pass was checked; a pass that is retried counts again.",
    ),
    "refused": ("lines_refused", "Lines that were refused when their pass was checked."),
    "trained": ("records_trained", "Records that were trained, once a pass, those that a recovery took back included."),
    "repeated": (
        "records_repeated",
        "Records whose gradients may have been applied twice, since their trainer was lost.",
    ),
    "rolled_back": ("records_rolled_back", "Trained records that a recovery took back; they are trained again."),
}


class MasterMetrics(Collector):
    """Six counters and four gauges."""

    def __init__(self, measured: Callable[[], Measured]) -> None:
        self._measured = measured

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are not looked up in the registry, and the ledger is not read to register."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now = self._measured()
        for key, (name, what) in _TOTALS.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", what, value=now.totals[key])
        gauges = {
            "records_parked": (now.parked, "Records of tasks that failed again and again and stopped their pass."),
            "generation": (now.generation, "Sets of pserver processes so far."),
            "auc_before": (now.auc_before, "AUC of the last pass that is done, before it was trained."),
            "auc": (now.auc, "AUC of the last pass that is done, after it was trained."),
        }
        for name, (value, what) in gauges.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value=float("nan") if value is None else value)
