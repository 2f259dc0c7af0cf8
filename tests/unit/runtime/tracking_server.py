"""MLflow's REST interface as version 3.17 answers it, deleted experiments and runs included; tests/images meets the real one."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from elastic_ctr.runtime.http import HttpThread, application
from elastic_ctr.runtime.mlflow import TRAINING, TrackingServer


class Server:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.params: list[dict[str, Any]] = []
        self.logged = 0
        self.refuses = False
        self.full = False
        self.artifact_root = "mlflow-artifacts:/1"
        self.artifacts: dict[str, str] = {}
        self.put = 0
        routes = [
            Route(f"/api/2.0/mlflow/{path}", self._answer(answer), methods=["GET", "POST"])
            for path, answer in {
                "experiments/get-by-name": self.experiment,
                "experiments/create": self.make_experiment,
                "experiments/restore": self.restore_experiment,
                "metrics/get-history": self.history,
                "runs/get": self.run,
                "runs/search": self.search,
                "runs/create": self.make_run,
                "runs/update": self.update,
                "runs/log-batch": self.log,
            }.items()
        ]
        routes.append(Route("/api/2.0/mlflow-artifacts/artifacts/{path:path}", self.put_artifact, methods=["PUT"]))
        self._door = HttpThread(application(routes), "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._door.port}"
        self._clients: list[TrackingServer] = []

    def client(self) -> TrackingServer:
        """Closed with this server."""
        self._clients.append(TrackingServer(self.url))
        return self._clients[-1]

    def status(self) -> str:
        """Of the newest run."""
        return str(self.runs[-1]["info"]["status"])

    def delete_experiment(self) -> None:
        """As the page of MLflow does, with its runs."""
        self.experiments = dict.fromkeys(self.experiments, "deleted")

    def delete_runs(self) -> None:
        for run in self.runs:
            run["info"]["lifecycle_stage"] = "deleted"

    def _answer(self, answer: Callable[[dict[str, Any]], JSONResponse]) -> Any:
        async def endpoint(request: Request) -> JSONResponse:
            if self.refuses:
                return JSONResponse({"error_code": "INTERNAL_ERROR", "message": "disk full"}, 500)
            body = dict(request.query_params) if request.method == "GET" else await request.json()
            return answer(body)

        return endpoint

    def experiment(self, body: dict[str, Any]) -> JSONResponse:
        if body["experiment_name"] not in self.experiments:
            return JSONResponse({"error_code": "RESOURCE_DOES_NOT_EXIST"}, 404)
        stage = self.experiments[body["experiment_name"]]
        return JSONResponse({"experiment": {"experiment_id": "1", "lifecycle_stage": stage}})

    def make_experiment(self, body: dict[str, Any]) -> JSONResponse:
        self.experiments[body["name"]] = "active"
        return JSONResponse({"experiment_id": "1"})

    def restore_experiment(self, body: dict[str, Any]) -> JSONResponse:
        assert body == {"experiment_id": "1"}
        self.experiments = dict.fromkeys(self.experiments, "active")
        return JSONResponse({})

    def _inactive(self, run_id: str | None = None) -> JSONResponse | None:
        deleted = "deleted" in self.experiments.values()
        if run_id is not None:
            [run] = [each for each in self.runs if each["info"]["run_id"] == run_id]
            deleted = deleted or run["info"]["lifecycle_stage"] == "deleted"
        if not deleted:
            return None
        return JSONResponse({"error_code": "INVALID_PARAMETER_VALUE", "message": "must be in the 'active' state"}, 400)

    def history(self, body: dict[str, Any]) -> JSONResponse:
        mine = [each for each in self.metrics if (each["run"], each["key"]) == (body["run_id"], body["metric_key"])]
        return JSONResponse({"metrics": mine} if mine else {})

    def search(self, body: dict[str, Any]) -> JSONResponse:
        assert body["filter"] == f"tags.`{TRAINING}` = 'ctr-train-1'"
        active = [each for each in self.runs if each["info"]["lifecycle_stage"] == "active"]
        return JSONResponse({} if self._inactive() or not active else {"runs": active[:1]})

    def make_run(self, body: dict[str, Any]) -> JSONResponse:
        assert {"key": TRAINING, "value": "ctr-train-1"} in body["tags"]
        info = {"run_id": f"run-{len(self.runs)}", "status": "RUNNING", "lifecycle_stage": "active"}
        return self._inactive() or self._added({"info": info})

    def _added(self, run: dict[str, Any]) -> JSONResponse:
        self.runs.append(run)
        return JSONResponse({"run": run})

    def run(self, body: dict[str, Any]) -> JSONResponse:
        run_id = body["run_id"]
        return JSONResponse({"run": {"info": {"artifact_uri": f"{self.artifact_root}/{run_id}/artifacts"}}})

    async def put_artifact(self, request: Request) -> JSONResponse:
        if self.full:
            return JSONResponse({"error_code": "INTERNAL_ERROR", "message": "disk full"}, 500)
        assert request.headers["content-type"] == "image/svg+xml"
        self.artifacts[request.path_params["path"]] = (await request.body()).decode()
        self.put += 1
        return JSONResponse({})

    def update(self, body: dict[str, Any]) -> JSONResponse:
        if refused := self._inactive(body["run_id"]):
            return refused
        [run] = [each for each in self.runs if each["info"]["run_id"] == body["run_id"]]
        assert body["status"] in {"RUNNING", "FINISHED", "FAILED", "KILLED"}
        assert ("end_time" in body) == (body["status"] != "RUNNING")
        run["info"]["status"] = body["status"]
        return JSONResponse({"run_info": run["info"]})

    def log(self, body: dict[str, Any]) -> JSONResponse:
        if refused := self._inactive(body["run_id"]):
            return refused
        for each in body.get("metrics", []):
            self.logged += 1
            if (kept := {**each, "run": body["run_id"]}) not in self.metrics:
                self.metrics.append(kept)
        self.params += body.get("params", [])
        return JSONResponse({})

    def close(self) -> None:
        for each in self._clients:
            each.close()
        self._door.stop()
