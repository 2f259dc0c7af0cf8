"""`serving`: the parent process. It owns the ports, the workers and the admin frontend; it answers no predictions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from elastic_ctr.cube.release import ReaderReport, ReleaseDocument
from elastic_ctr.cube.release_client import ReleaseClient
from elastic_ctr.runtime.http import HttpServer, application
from elastic_ctr.runtime.lifecycle import PortInUse, reserve, stop_on_signal_async, wait_event
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.serving.rollout import Rollout, tell
from elastic_ctr.serving.worker_counters import Counters
from elastic_ctr.serving.worker_pool import Worker, Workers
from elastic_ctr.serving.worker_process import Settings
from elastic_ctr.store import Store
from elastic_ctr.versions.manifest import freshness_seconds

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Serving:
    """Everything the role is told. Port 0 takes a free one; a frontend without a port stays closed. `token` goes with the
    reports to transfer.
    """

    store: Store
    transfer_url: str
    pod: str
    scratch: Path
    host: str = "127.0.0.1"
    port: int = 8400
    admin_port: int = 8401
    grpc_port: int | None = 8402
    workers: int = 1
    model_name: str = "ctr"
    max_instances: int = 100_000
    max_body_bytes: int = 64 << 20
    max_batch_rows: int = 8192
    max_abs_diff: float = 1e-5
    lookup_timeout_ms: float = 200
    lookup_deadline_ms: float = 5000
    hedge_ms: float | None = 20
    grace_seconds: float = 20.0
    token: str | None = None


class ServingProcess:
    """Wires the parts. All ports are known once made. Raises PortInUse, OSError."""

    def __init__(self, told: Serving) -> None:
        self.told = told
        self._reserved: list[socket.socket] = []
        self.port = self._frontend("port", told.port)
        self.grpc_port = None if told.grpc_port is None else self._frontend("grpcPort", told.grpc_port)
        scratch = told.scratch
        scratch.mkdir(parents=True, exist_ok=True)
        # What an earlier process fetched may be half there. The folder itself may be a mount.
        for old in (*scratch.glob("version-*"), *scratch.glob("worker-*")):
            shutil.rmtree(old, ignore_errors=True)
        self.releases = Rollout(told.store, scratch)
        settings = Settings(
            told.host, self.port, self.grpc_port, told.model_name, told.max_instances, told.max_body_bytes, told.max_batch_rows,
            told.max_abs_diff, told.lookup_timeout_ms, told.lookup_deadline_ms, told.hedge_ms,
        )  # fmt: skip
        self.workers = Workers(told.workers, settings, scratch, self.releases.started, self._heard)
        self.release_client = ReleaseClient(told.transfer_url, told.token, self._follow)
        metrics = Metrics("serving")
        metrics.registry.register(ServingMetrics(self))
        app = application([], ready=lambda: self.releases.ready(self.workers), status=self.status, metrics=metrics)
        self.admin = HttpServer(app, told.host, told.admin_port)
        self._helping: set[asyncio.Task[None]] = set()

    def _frontend(self, key: str, port: int) -> int:
        try:
            reserved = _reserved(self.told.host, port, key)
        except PortInUse:
            for other in self._reserved:
                other.close()
            raise
        self._reserved.append(reserved)
        return int(reserved.getsockname()[1])

    @property
    def admin_port(self) -> int:
        return self.admin.port

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop; then finish what has been asked, and return."""
        await self.admin.start()
        self.workers.start()
        tasks = [
            asyncio.create_task(each)
            for each in (self.release_client.run(), self.releases.run(self.workers), self._report(), stop.wait())
        ]
        log.info(
            "predictions on %s:%d (HTTP), %s (gRPC), admin on port %d",
            self.told.host, self.port, self.grpc_port or "no port", self.admin_port,
        )  # fmt: skip
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Until the last answer: holders of its version may change meanwhile, and transfer must know that it is read.
        await self.workers.stop(self.told.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.release_client.close()
        await self.admin.stop()
        for reserved in self._reserved:
            reserved.close()
        for task in done:
            # Only stop ends without an error.
            task.result()

    def _follow(self, document: ReleaseDocument) -> None:
        self.releases.take(document, self.workers)

    def _heard(self, worker: Worker, event: dict[str, Any]) -> None:
        if event["event"] == "not-held":
            task = asyncio.create_task(self._help(worker))
            self._helping.add(task)
            task.add_done_callback(self._helping.discard)

    async def _help(self, worker: Worker) -> None:
        """A worker's version is no longer held: give it the newest document, whatever is new in it."""
        await self.release_client.refresh()
        if self.releases.document is not None:
            tell(worker, self.releases.document)

    async def _report(self) -> None:
        """Every second, and at once when something has changed."""
        changed = self.releases.on_change
        while True:
            changed.clear()
            await self.release_client.report(self.report())
            await wait_event(changed, REPORT_SECONDS)

    def report(self) -> ReaderReport:
        releases = self.releases
        return ReaderReport(
            pod=self.told.pod,
            validated=tuple(sorted(releases.passed)),
            refused=releases.refused,
            pinned=tuple(sorted({each.pinned for each in self.workers.running.values() if each.pinned is not None})),
            max_abs_diff={**releases.passed, **releases.differences},
            document=releases.document,
        )

    def status(self) -> dict[str, Any]:
        releases, counted = self.releases, self.workers.counted()
        ready, why = releases.ready(self.workers)
        seconds = counted.histograms["request_seconds"]
        return {
            "ready": ready,
            "stage": why,
            "version": releases.serving,
            "live": None if releases.document is None else releases.document.live,
            "candidate": None if releases.document is None else releases.document.candidate,
            "eventTimeMax": self.event_time_max(),
            "freshnessSeconds": self.freshness_seconds(),
            "validated": {str(version): difference for version, difference in sorted(releases.passed.items())},
            "refused": {str(version): why for version, why in sorted(releases.refused.items())},
            "lastRefusal": releases.last_refusal,
            "transfer": {"url": self.release_client.url, "error": self.release_client.error},
            "requests": sum(counted.requests.values()),
            "rows": counted.totals["rows"],
            # Upper bounds of the histogram's buckets.
            "p50Seconds": seconds.quantile(0.5),
            "p99Seconds": seconds.quantile(0.99),
            "workers": [
                {"pid": each.process.pid, "version": each.pinned, "listening": each.answering}
                for each in self.workers.in_order()
            ],
            "workerRestarts": self.workers.restarts,
            "address": f"{self.told.host}:{self.port}",
            "grpcAddress": None if self.grpc_port is None else f"{self.told.host}:{self.grpc_port}",
        }

    def event_time_max(self) -> int | None:
        version = self.releases.serving
        manifest = None if version is None else self.releases.manifests.get(version)
        return None if manifest is None else manifest.event_time_max

    def freshness_seconds(self) -> float | None:
        newest = self.event_time_max()
        return None if newest is None else freshness_seconds(newest, time.time())


class ServingMetrics(Collector):
    """Sums over workers, at the moment they are asked for."""

    def __init__(self, process: ServingProcess) -> None:
        self._process = process

    def collect(self) -> Iterable[Metric]:
        process = self._process
        counted = process.workers.counted()
        requests = CounterMetricFamily(
            "elastic_ctr_serving_requests", "Answers of the prediction ports.", labels=["endpoint", "code"]
        )
        for (endpoint, code), count in sorted(counted.requests.items()):
            requests.add_metric([endpoint, str(code)], count)
        yield requests
        for name, what in _TOTALS.items():
            yield CounterMetricFamily(f"elastic_ctr_serving_{name}", what, value=counted.totals[name])
        yield from _histograms(counted)
        releases = process.releases
        gauges = {
            "version": ("The version that is answered with; 0 before the first.", releases.serving or 0),
            "workers_ready": (
                "Workers that accept requests.",
                sum(w.answering for w in process.workers.running.values()),
            ),
            "refused_versions": ("Versions that were refused here.", len(releases.refused)),
        }
        age = process.freshness_seconds()
        if age is not None:
            gauges["freshness_seconds"] = (
                "Seconds since the newest event that the answering version has learned.",
                age,
            )  # type: ignore[assignment]
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(f"elastic_ctr_serving_{name}", what, value=value)
        yield CounterMetricFamily(
            "elastic_ctr_serving_worker_restarts",
            "Workers started again after they ended.",
            value=process.workers.restarts,
        )


_TOTALS = {
    "rows": "Instances answered.",
    "batches": "Batches: one lookup and one call of the network each.",
    "keys": "UniqueKeys keys looked up.",
    "missing_keys": "Of these, keys that the version does not know.",
    "ignored_features": "Features of slots that the model has not, in lines; training ignores them, too.",
    "switches": "Changes of the version that a worker answers with.",
    "retried_batches": "Batches asked again at live because cube no longer held their version.",
}
_HISTOGRAMS = {
    "request_seconds": "From a parsed prediction request to its answer.",
    "lookup_seconds": "Lookups of a batch.",
    "predict_seconds": "Pooling and network of a batch.",
    "batch_rows": "Instances in a batch.",
}


def _histograms(counted: Counters) -> Iterable[Metric]:
    for name, what in _HISTOGRAMS.items():
        histogram = counted.histograms[name]
        buckets, seen = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), seen))
        yield HistogramMetricFamily(f"elastic_ctr_serving_{name}", what, buckets=buckets, sum_value=histogram.sum)


def run_serving(told: Serving) -> None:
    """The role, until SIGTERM or SIGINT. Raises PortInUse, OSError."""

    async def until_stopped() -> None:
        async with contextlib.AsyncExitStack() as stack:
            stop = stack.enter_context(stop_on_signal_async())
            await ServingProcess(told).run(stop)

    asyncio.run(until_stopped())


def _reserved(host: str, port: int, key: str) -> socket.socket:
    """A hot port, which the workers share."""
    try:
        return reserve(host, port)
    except OSError as failed:
        raise PortInUse(
            failed.errno,
            f"{host}:{port} cannot be used ({failed.strerror}); set serving.config.{key} to a free one",
        ) from failed
