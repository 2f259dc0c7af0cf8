"""`serving`: the parent process. It owns the ports, the workers and the admin frontend; it answers no predictions."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from elastic_ctr.config.role_files import ServingFile
from elastic_ctr.config.serving_settings import ServingWorkerConfig
from elastic_ctr.cube.release import ReaderReport
from elastic_ctr.cube.release_client import ReleaseClient
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.http import HttpServer, application
from elastic_ctr.runtime.lifecycle import reserve, stop_on_signal_async, wait_event
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.status.serving_status import ServingStatus, TransferConnection, WorkerStatus
from elastic_ctr.serving.click_freshness import ClickFreshness
from elastic_ctr.serving.rollout import Rollout, send_document
from elastic_ctr.serving.worker_counters import HISTOGRAMS, Histogram
from elastic_ctr.serving.worker_pool import ServingWorker, WorkerPool
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions.manifest import freshness_seconds

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0


class ServingProcess:
    """Wires the parts. The constructor binds all ports. Reports to cube-transfer carry `tokens`. Raises PortInUse, OSError."""

    def __init__(self, config: ServingFile, store: Store, pod: str, tokens: Tokens | None = None) -> None:
        self.config = config
        self._pod = pod
        serving = config.serving
        self._reserved = [reserve(config.host, port) for port in (serving.port, serving.grpc_port) if port]
        scratch = Path(serving.scratch_dir)
        scratch.mkdir(parents=True, exist_ok=True)
        # Files of an earlier process may be incomplete. The folder itself stays, because it may be a mount.
        for old in (*scratch.glob("version-*"), *scratch.glob("worker-*")):
            shutil.rmtree(old, ignore_errors=True)
        self.workers = WorkerPool(
            ServingWorkerConfig(host=config.host, serving=serving, cube=config.cube), self._on_not_held
        )
        self.rollout = Rollout(store, scratch, self.workers)
        self.click_freshness = ClickFreshness()
        self.rollout.switched = lambda version: self.click_freshness.answers(version, time.time())
        self.release_client = ReleaseClient(f"http://{config.transfer_address}", tokens, self.rollout.on_document)
        metrics = Metrics("serving")
        metrics.computed(self._metrics)
        app = application([], ready=self.rollout.ready, status=self.status, metrics=metrics)
        self._admin = HttpServer(app, config.host, serving.admin_port)
        self._refreshing: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then answer the requests that have arrived, and return."""
        await self._admin.start()
        self.workers.start()
        tasks = [
            asyncio.create_task(each)
            for each in (self.release_client.run(), self.rollout.run(), self._report(), stop.wait())
        ]
        serving = self.config.serving
        log.info(
            "predictions on %s:%d (HTTP), %s (gRPC), admin on port %d",
            self.config.host, serving.port, serving.grpc_port or "no port", serving.admin_port,
        )  # fmt: skip
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Follow the document and report until the last answer: holders may change, and cube-transfer must keep the version.
        await self.workers.finish(self.config.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.release_client.close()
        await self._admin.stop()
        for reserved in self._reserved:
            reserved.close()
        for task in done:
            # Every task but `stop` ends only by an error, which is raised here.
            task.result()

    def _on_not_held(self, worker: ServingWorker) -> None:
        """Send a worker the newest document, because cube has unloaded its version."""
        task = asyncio.create_task(self._refresh(worker))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)

    async def _refresh(self, worker: ServingWorker) -> None:
        """Send a worker the newest document, even if it is unchanged."""
        await self.release_client.refresh()
        if self.rollout.document is not None:
            send_document(worker, self.rollout.document)

    async def _report(self) -> None:
        """Report every REPORT_SECONDS, and at once after a change."""
        changed = self.rollout.on_change
        while True:
            changed.clear()
            await self.release_client.report(self.report())
            await wait_event(changed, REPORT_SECONDS)

    def report(self) -> ReaderReport:
        rollout = self.rollout
        return ReaderReport(
            pod=self._pod,
            validated=tuple(sorted(rollout.validated)),
            refused=rollout.refused,
            pinned=tuple(sorted({each.pinned for each in self.workers.in_order() if each.pinned is not None})),
            max_abs_diff={**rollout.validated, **rollout.differences},
            document=rollout.document,
        )

    def status(self) -> ServingStatus:
        rollout, counted = self.rollout, self.workers.counted()
        document, host, serving = rollout.document, self.config.host, self.config.serving
        ready, why = rollout.ready()
        seconds = counted.histograms["request_seconds"]
        return ServingStatus(
            ready=ready,
            stage=why,
            version=rollout.serving,
            live=None if document is None else document.live,
            candidate=None if document is None else document.candidate,
            canary=rollout.canary,
            event_time_max=self.event_time_max(),
            freshness_seconds=self.freshness_seconds(),
            click_freshness=self.click_freshness.recent(time.time()),
            validated=dict(sorted(rollout.validated.items())),
            refused=dict(sorted(rollout.refused.items())),
            last_refusal=rollout.last_refusal,
            transfer=TransferConnection(url=self.release_client.url, error=self.release_client.error),
            requests=sum(counted.requests.values()),
            rows=counted.totals["rows"],
            p50_seconds=seconds.quantile(0.5),
            p99_seconds=seconds.quantile(0.99),
            workers=tuple(
                WorkerStatus(pid=each.process.pid, version=each.pinned, listening=each.answering)
                for each in self.workers.in_order()
            ),
            worker_restarts=self.workers.restarts,
            address=f"{host}:{serving.port}",
            grpc_address=f"{host}:{serving.grpc_port}" if serving.grpc_port else None,
        )

    def event_time_max(self) -> int | None:
        manifest = self.rollout.manifests.get(self.rollout.serving or 0)
        return None if manifest is None else manifest.event_time_max

    def freshness_seconds(self) -> float | None:
        newest = self.event_time_max()
        return None if newest is None else freshness_seconds(newest, time.time())

    def _metrics(self) -> Iterable[Metric]:
        """Yield sums over all workers, computed at each scrape."""
        counted = self.workers.counted()
        counted.totals["worker_restarts"] = self.workers.restarts
        requests = CounterMetricFamily(
            "elastic_ctr_serving_requests", "Answers of the prediction ports.", labels=["endpoint", "code"]
        )
        for (endpoint, code), count in sorted(counted.requests.items()):
            requests.add_metric([endpoint, str(code)], count)
        yield requests
        for name, what in _TOTALS.items():
            yield CounterMetricFamily(f"elastic_ctr_serving_{name}", what, value=counted.totals[name])
        for name, (what, millionths) in _SUMS.items():
            yield CounterMetricFamily(f"elastic_ctr_serving_{name}", what, value=counted.totals[millionths] / 1e6)
        for name, (what, _) in HISTOGRAMS.items():
            yield _histogram(name, what, counted.histograms[name])
        what = "From a stream record's arrival to the first answer of this pod that has learned from it."
        yield _histogram("click_freshness_seconds", what, self.click_freshness.histogram)
        version, age = self.rollout.serving or 0, self.freshness_seconds()
        ready = sum(worker.answering for worker in self.workers.in_order())
        for name, what, value in (
            ("version", "The version that is answered with; 0 before the first.", version),
            ("canary_version", "The candidate that answers its share; 0 when there is none.", self.rollout.canary or 0),
            ("workers_ready", "Workers that accept requests.", ready),
            ("refused_versions", "Versions that were refused here.", len(self.rollout.refused)),
            ("freshness_seconds", "Seconds since the newest event that the answering version has learned.", age),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"elastic_ctr_serving_{name}", what, value=value)


def _histogram(name: str, what: str, given: Histogram) -> HistogramMetricFamily:
    labels = map(floatToGoString, (*given.bounds, float("inf")))
    buckets = list(zip(labels, accumulate(given.counts), strict=True))
    return HistogramMetricFamily(f"elastic_ctr_serving_{name}", what, buckets=buckets, sum_value=given.sum)


_TOTALS = {
    "rows": "Instances answered.",
    "batches": "Batches: one lookup and one call of the network each.",
    "canary_rows": "Of the instances, those answered with the candidate as a canary.",
    "keys": "Distinct keys looked up.",
    "missing_keys": "Of these, keys that the version does not know.",
    "ignored_features": "Features of slots that the model has not, in lines; training ignores them, too.",
    "requests_without_probability": "Requests refused with 500 because a probability was no number.",
    "switches": "Changes of the version that a worker answers with.",
    "retried_batches": "Batches asked again at live because cube no longer held their version.",
    "worker_restarts": "Workers started again after they ended.",
}


_SUMS = {
    "predicted_clicks": (
        "Sum of the answered click probabilities; over the instances it is the predicted click-through rate.",
        "predicted_millionths",
    ),
    "canary_predicted_clicks": (
        "Of this sum, what the candidate has answered as a canary.",
        "canary_predicted_millionths",
    ),
}


def run_serving(config: ServingFile, store: Store, pod: str, tokens: Tokens | None) -> None:
    """Run the role until SIGTERM or SIGINT. Raises PortInUse, OSError."""

    async def until_stopped() -> None:
        with stop_on_signal_async() as stop:
            await ServingProcess(config, store, pod, tokens).run(stop)

    asyncio.run(until_stopped())
