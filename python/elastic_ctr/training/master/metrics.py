"""The master's counters and gauges for Prometheus, read from the ledger at each scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from elastic_ctr.features.statistics.drift import Drift
from elastic_ctr.store.versions.manifest import PassQuality
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.figure_table import MOMENTS
from elastic_ctr.training.master.ledger.rows import Tables
from elastic_ctr.training.master.training_status import window_of

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


_OF_LAST = "The last pass that is done, predicted before and after it was trained."
_QUALITY = {
    # field of a Quality, and metric: its text
    "auc": "Area under the ROC curve.",
    "logloss": "Mean negative log likelihood of an impression, in nats.",
    "calibration": "Predicted CTR / observed CTR: above 1, clicks were overestimated.",
    "bucket_error": "Mean relative error of the CTR in groups of scores.",
    "mae": "Mean absolute error of the probability.",
    "rmse": "Root mean squared error of the probability.",
    "gauc": "Mean of the AUCs of the groups by data.group, weighted by impressions.",
    "predicted_ctr": "Mean probability of a click.",
    "observed_ctr": "Clicks / shows.",
}


_DRIFT = {
    # metric: the field of a Drift, its text
    "feature_psi": (
        "psi",
        "Population stability index of a column: its last checked pass against the pinned statistics. Above 0.25 much has changed.",
    ),
    "feature_missing_share": ("missing", "Share of the rows of the last checked pass that have no value in a column."),
    "feature_unseen_share": (
        "unseen",
        "Share of the values of the last checked pass that the pinned list of a column's most frequent values lacks.",
    ),
}

_TABLE = {
    # field of a TablePart: metric, its text
    "rows": ("table_rows", "Rows of a pserver's part of the sparse table after the last save."),
    "new": ("table_new_rows", "Of these and of those expired, rows that training created since the save before."),
    "expired": ("table_expired_rows", "Rows that the shrink of the last save deleted; 0 after a save without one."),
    "bytes": ("table_bytes", "Bytes of a pserver's partitions in the checkpoint of the last save."),
}
_MEMORY = ("pserver_memory_bytes", "Resident memory of a pserver's server process; 0 while there is none.")


_LAG = (
    "stream_lag",
    "Offsets of the stream that no pass has yet: messages of a topic, lines of an intake, bytes of a followed folder.",
)
_WINDOW = {
    # field of the status' window: metric, its text
    "auc": (
        "stream_auc",
        "AUC over the newest passes of a stream, some 10,000 clicks, each predicted before it was learned.",
    ),
    "calibration": ("stream_calibration", "Predicted CTR / observed CTR over the same passes."),
}
_AWAY = ("stream_partitions_away", "Partitions of the stream that nobody can read, while others are read.")
_GONE = ("stream_offsets_gone", "Offsets that the stream had dropped before they were read.")


class MasterMetrics(Collector):
    """`lag` and `away` return the lag and the unavailable partitions of the stream; 0 and none for hours."""

    def __init__(
        self, coordinator: Coordinator, lag: Callable[[], int] = lambda: 0, away: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._coordinator = coordinator
        self._lag = lag
        self._away = away

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that the registration does not read the ledger."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._coordinator.lock.reading() as ledger:
            totals = ledger.passes.totals()
            parked, generation = ledger.passes.counts()["parked"], ledger.facts.generation
            refused, done = ledger.saves.refused_versions(), ledger.passes.last_done()
            drift = ledger.figures.last_drift()
            table = ledger.saves.last_table()
            memory = {index: one.memory_bytes for index, one in self._coordinator.pservers.items()}
            window = None if ledger.facts.stream is None else window_of(ledger)
            finished = ledger.facts.finished
            stream, held = ledger.facts.stream, ledger.facts.hold is not None
            quality = PassQuality() if done is None else ledger.figures.quality(done)
        for key, (name, what) in _TOTALS.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", what, value=totals[key])
        gauges = {
            "records_parked": (parked, "Records of tasks that failed again and again and stopped their pass."),
            "refused_versions": (
                refused,
                "Versions that the master did not publish: other values than trained, or a quality that was lost.",
            ),
            "generation": (generation, "Sets of pserver processes so far."),
            "finished": (
                int(finished),
                "1 once every split up to data.end is trained and saved: no further version comes.",
            ),
            "publishing_held": (
                int(held),
                "1 while no version of a stream is published, because its windows became worse.",
            ),
        }
        for name, (value, what) in gauges.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value=value)
        name, what = _GONE
        yield CounterMetricFamily(f"{_PREFIX}_{name}", what, value=0 if stream is None else stream.gone)
        name, what = _LAG
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value=self._lag())
        name, what = _AWAY
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value=len(self._away()))
        for field, (name, what) in _WINDOW.items():
            yield GaugeMetricFamily(
                f"{_PREFIX}_{name}", what, value=float("nan") if window is None else getattr(window, field)
            )
        yield from self._quality(quality)
        yield from self._table(table, memory)
        yield from self._drift(() if drift is None else drift[1].columns)

    def _quality(self, quality: PassQuality) -> Iterator[Metric]:
        for name, what in _QUALITY.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", f"{what} {_OF_LAST}", labels=["moment"])
            for moment in MOMENTS:
                value = getattr(getattr(quality, moment), name, None)
                gauge.add_metric([moment], float("nan") if value is None else value)
            yield gauge

    def _table(self, parts: Tables, memory: Mapping[int, int]) -> Iterator[Metric]:
        for field, (name, what) in _TABLE.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=["pserver"])
            for index, part in enumerate(parts):
                value = getattr(part, field)
                gauge.add_metric([str(index)], float("nan") if value is None else value)
            yield gauge
        name, what = _MEMORY
        gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=["pserver"])
        for index, found in memory.items():
            gauge.add_metric([str(index)], found)
        yield gauge

    def _drift(self, columns: Iterable[Drift]) -> Iterator[Metric]:
        for name, (of, what) in _DRIFT.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=["column"])
            for each in columns:
                value = getattr(each, of)
                gauge.add_metric([each.column], float("nan") if value is None else value)
            yield gauge
