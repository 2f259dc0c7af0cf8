"""A run in an MLflow server, by its REST interface 2.0 (mlflow.org/docs/latest/rest-api.html).

The client library of MLflow is larger than everything else in the cube image; five calls of its interface are all that is
needed. What is tracked is an extra: a server that is away costs nothing but its own record.
"""

import time
from collections.abc import Mapping
from typing import Any

import httpx

_TIMEOUT = 5.0
# The most that one call of log-batch takes.
_METRICS, _PARAMS = 1000, 100
_VALUE = 6000
TRAINING = "elastic-ctr.training"


class TrackingAway(RuntimeError):
    """The tracking server could not be asked: its address and why."""


class TrackingServer:
    """One MLflow server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=f"{self.url}/api/2.0/mlflow/", timeout=_TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def run_of(self, training: str, experiment: str, *, begin: bool) -> str | None:
        """The id of the run with this training's name; begun where there is none and `begin` says so. Raises TrackingAway."""
        number = self._experiment(experiment, make=begin)
        if number is None:
            return None
        body = {
            "experiment_ids": [number],
            "filter": f"tags.`{TRAINING}` = '{training}'",
            "max_results": 1,
        }
        found = self._ask("POST", "runs/search", body).get("runs") or []
        if found:
            return str(found[0]["info"]["run_id"])
        if not begin:
            return None
        tags = [{"key": TRAINING, "value": training}, {"key": "mlflow.runName", "value": training}]
        made = self._ask(
            "POST", "runs/create", {"experiment_id": number, "start_time": int(time.time() * 1000), "tags": tags}
        )
        return str(made["run"]["info"]["run_id"])

    def _experiment(self, name: str, *, make: bool) -> str | None:
        try:
            found = self._ask("GET", "experiments/get-by-name", {"experiment_name": name})
            return str(found["experiment"]["experiment_id"])
        except _Absent:
            return str(self._ask("POST", "experiments/create", {"name": name})["experiment_id"]) if make else None

    def log(self, run: str, metrics: Mapping[str, float], step: int, params: Mapping[str, Any] | None = None) -> None:
        """Numbers of one step, and settings, which may be said again but not changed. Raises TrackingAway."""
        now = int(time.time() * 1000)
        given = [{"key": key, "value": float(value), "timestamp": now, "step": step} for key, value in metrics.items()]
        said = [{"key": key, "value": str(value)[:_VALUE]} for key, value in (params or {}).items()]
        for start in range(0, max(len(given), 1), _METRICS):
            self._ask("POST", "runs/log-batch", {"run_id": run, "metrics": given[start : start + _METRICS]})
        for start in range(0, len(said), _PARAMS):
            self._ask("POST", "runs/log-batch", {"run_id": run, "params": said[start : start + _PARAMS]})

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            given: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
            answer = self._client.request(method, path, **given)
            found = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as failed:
            raise TrackingAway(f"tracking at {self.url} does not answer: {type(failed).__name__} {failed}") from failed
        if answer.is_success and isinstance(found, dict):
            return found
        code = found.get("error_code") if isinstance(found, dict) else None
        if code == "RESOURCE_DOES_NOT_EXIST":
            raise _Absent(f"{path}: there is none")
        raise TrackingAway(f"tracking at {self.url} refused {path} with {answer.status_code}: {answer.text[:200]}")


class _Absent(TrackingAway):
    pass
