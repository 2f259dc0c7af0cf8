"""A client of MLflow's REST API 2.0 (mlflow.org/docs/latest/rest-api.html) for the run of a training.

MLflow's client library is larger than everything else in the cube image, and few calls of the API are needed.
Tracking is optional: training goes on while the server is unavailable, and the report is completed later.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
from typing_extensions import Self

log = logging.getLogger(__name__)

# The most entries that one call of log-batch accepts.
_METRICS, _PARAMS = 1000, 100
_VALUE = 6000
TRAINING = "elastic-ctr.training"


class TrackingUnavailable(RuntimeError):
    """A call to the tracking server failed. The message has its address and the reason."""


class TrackingServer:
    """One MLflow server."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=f"{self.url}/api/2.0/mlflow/", timeout=timeout, trust_env=False)
        self._told = False

    def close(self) -> None:
        self._client.close()

    def run_of(self, training: str, experiment: str, *, begin: bool) -> str | None:
        """Return the id of the run with this training's name, or None. With `begin`, a missing run is created, and an ended one is
        set to RUNNING. Raises TrackingUnavailable.
        """
        number = self._experiment(experiment, make=begin)
        if number is None:
            return None
        of_training = {"experiment_ids": [number], "filter": f"tags.`{TRAINING}` = '{training}'", "max_results": 1}
        if found := self._ask("POST", "runs/search", of_training).get("runs"):
            run = str(found[0]["info"]["run_id"])
            if begin and found[0]["info"].get("status") != "RUNNING":
                self._ask("POST", "runs/update", {"run_id": run, "status": "RUNNING"})
            return run
        if not begin:
            return None
        tags = [{"key": key, "value": training} for key in (TRAINING, "mlflow.runName")]
        start = {"experiment_id": number, "start_time": int(1000 * time.time()), "tags": tags}
        return str(self._ask("POST", "runs/create", start)["run"]["info"]["run_id"])

    def _experiment(self, name: str, *, make: bool) -> str | None:
        try:
            found = self._ask("GET", "experiments/get-by-name", {"experiment_name": name})["experiment"]
        except _Absent:
            return str(self._ask("POST", "experiments/create", {"name": name})["experiment_id"]) if make else None
        number = str(found["experiment_id"])
        if make and found.get("lifecycle_stage") == "deleted":
            # MLflow keeps the names of deleted experiments, so another one cannot be created under this name.
            log.warning("experiment %s was deleted and is restored: this training still reports to it", name)
            self._ask("POST", "experiments/restore", {"experiment_id": number})
        return number

    def log(
        self,
        run: str,
        metrics: Mapping[str, float],
        step: int,
        params: Mapping[str, Any] | None = None,
        *,
        at: float | None = None,
    ) -> None:
        """Log metrics of one step at time `at` (Unix seconds; default: now), and parameters, which may be repeated but not changed.
        MLflow keeps one copy of a metric with the same key, step, value and time. Raises TrackingUnavailable.
        """
        stamp = int(1000 * (time.time() if at is None else at))
        values = [
            {"key": key, "value": float(value), "timestamp": stamp, "step": step} for key, value in metrics.items()
        ]
        said = [{"key": key, "value": str(value)[:_VALUE]} for key, value in (params or {}).items()]
        for kind, given, most in (("metrics", values, _METRICS), ("params", said, _PARAMS)):
            for start in range(0, len(given), most):
                self._ask("POST", "runs/log-batch", {"run_id": run, kind: given[start : start + most]})

    def history(self, run: str, metric: str) -> set[tuple[int, int]]:
        """Return (step, timestamp in milliseconds) of every value of a metric. Raises TrackingUnavailable."""
        found = self._ask("GET", "metrics/get-history", {"run_id": run, "metric_key": metric}).get("metrics") or []
        return {(int(each.get("step", 0)), int(each["timestamp"])) for each in found}

    def put_artifact(self, run: str, name: str, content: bytes, kind: str) -> None:
        """Upload a file of a run, replacing one of the same name; `kind` is its media type. If the server does not proxy artifacts to
        their store, nothing is uploaded. Raises TrackingUnavailable.
        """
        found = self._ask("GET", "runs/get", {"run_id": run})
        scheme, _, path = str(found["run"]["info"]["artifact_uri"]).partition(":")
        if scheme != "mlflow-artifacts":
            if not self._told:
                log.info(
                    "tracking at %s keeps artifacts at %s:, not in the server: pictures are left out", self.url, scheme
                )
            self._told = True
            return
        # The host in mlflow-artifacts://host/1/… is dropped, as MLflow's own client does.
        folder = urlsplit(f"mlflow-artifacts:{path}").path.strip("/")
        self._send(
            "PUT",
            f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{folder}/{name}",
            content=content,
            headers={"content-type": kind},
        )

    def end(self, run: str, status: str) -> None:
        """`status` is FINISHED, FAILED or KILLED. Raises TrackingUnavailable."""
        self._ask("POST", "runs/update", {"run_id": run, "status": status, "end_time": int(1000 * time.time())})

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
        return self._send(method, path, **given)

    def _send(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **given)
            found = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as failed:
            raise TrackingUnavailable(
                f"tracking at {self.url} does not answer: {type(failed).__name__} {failed}"
            ) from failed
        if answer.is_success and isinstance(found, dict):
            return found
        if isinstance(found, dict) and found.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            raise _Absent(f"tracking at {self.url} does not know what {path} asks for")
        raise TrackingUnavailable(
            f"tracking at {self.url} refused {path} with {answer.status_code}: {answer.text[:200]}"
        )


class _Absent(TrackingUnavailable):
    pass


class Reporter:
    """A thread that calls `report` every `period` seconds and once more at the end; the role waits for it only in `stop`, 10 s at most."""

    def __init__(self, period: float, report: Callable[[], None], server: TrackingServer) -> None:
        self._period = period
        self._report = report
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tracking", daemon=True)
        self._error = ""

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._server.close()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def _loop(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(self._period)
            self.round()

    def round(self) -> None:
        try:
            self._report()
            self._error = ""
        except TrackingUnavailable as unavailable:
            if str(unavailable) != self._error:
                log.warning("%s; training goes on without it", unavailable)
            self._error = str(unavailable)
