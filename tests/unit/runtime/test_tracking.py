"""The calls as MLflow 3 takes and answers them; a cluster test meets the real server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from elastic_ctr.master.tracking import Tracking, numbers_of, settings_of
from elastic_ctr.runtime.http import HttpThread, application
from elastic_ctr.runtime.tracking import TRAINING, TrackingAway, TrackingServer
from elastic_ctr.trainer.host import HostTracking

PASS = {
    "pass": "20200401/00",
    "ordinal": 1,
    "state": "done",
    "doneAt": 7.0,
    "records": 10,
    "refused": 0,
    "keys": 5,
    "aucBefore": None,
    "auc": 0.6,
    "seconds": {"checkpoint": 1.5},
}


class Server:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.params: list[dict[str, Any]] = []
        self.refuses = False
        routes = [
            Route(f"/api/2.0/mlflow/{path}", self._answer(answer), methods=["GET", "POST"])
            for path, answer in {
                "experiments/get-by-name": self.experiment,
                "experiments/create": self.make_experiment,
                "runs/search": self.search,
                "runs/create": self.make_run,
                "runs/log-batch": self.log,
            }.items()
        ]
        self._door = HttpThread(application(routes), "127.0.0.1", 0).start()
        self._clients: list[TrackingServer] = []

    def client(self) -> TrackingServer:
        """Closed with this server."""
        self._clients.append(TrackingServer(f"http://127.0.0.1:{self._door.port}"))
        return self._clients[-1]

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
        return JSONResponse({"experiment": {"experiment_id": "1"}})

    def make_experiment(self, body: dict[str, Any]) -> JSONResponse:
        self.experiments.append(body["name"])
        return JSONResponse({"experiment_id": "1"})

    def search(self, body: dict[str, Any]) -> JSONResponse:
        assert body["filter"] == f"tags.`{TRAINING}` = 'ctr-train-1'"
        return JSONResponse({"runs": self.runs})

    def make_run(self, body: dict[str, Any]) -> JSONResponse:
        assert {"key": TRAINING, "value": "ctr-train-1"} in body["tags"]
        self.runs.append({"info": {"run_id": "abc"}})
        return JSONResponse({"run": self.runs[-1]})

    def log(self, body: dict[str, Any]) -> JSONResponse:
        assert body["run_id"] == "abc"
        self.metrics += body.get("metrics", [])
        self.params += body.get("params", [])
        return JSONResponse({})

    def close(self) -> None:
        for each in self._clients:
            each.close()
        self._door.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def tracking(server: Server, passes: list[dict[str, Any]]) -> Tracking:
    return Tracking(server.client(), "ctr-train-1", "clicks", {"model": {"layers": [4]}}, lambda: passes)


def test_settings_are_told_once_and_each_pass_when_it_is_done(server: Server) -> None:
    one = tracking(server, [PASS, {**PASS, "pass": "20200401/01", "ordinal": 2, "state": "training"}])

    one.round()
    one.round()

    assert server.params == [{"key": "model.layers", "value": "[4]"}]
    assert {(each["key"], each["value"], each["step"]) for each in server.metrics} == {
        ("records", 10.0, 1), ("refused", 0.0, 1), ("keys", 5.0, 1), ("auc", 0.6, 1), ("seconds_checkpoint", 1.5, 1),
    }  # fmt: skip
    assert len(server.metrics) == 5


def test_a_pass_that_is_trained_again_is_told_again_and_a_restarted_master_goes_on_in_its_run(server: Server) -> None:
    tracking(server, [PASS]).round()

    tracking(server, [{**PASS, "doneAt": 9.0, "auc": 0.7}]).round()

    assert [each["value"] for each in server.metrics if each["key"] == "auc"] == [0.6, 0.7]
    assert len(server.runs) == 1


def test_a_server_that_is_away_or_refuses_is_said_once_and_caught_up_with(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    one = tracking(server, [PASS])
    server.refuses = True

    one.round()
    one.round()
    server.refuses = False
    one.round()

    [said] = [record.getMessage() for record in caplog.records if "tracking at" in record.getMessage()]
    assert "disk full" in said
    assert said.endswith("training goes on without it")
    assert len(server.metrics) == 5


def test_no_server_at_all_is_a_sentence() -> None:
    away = TrackingServer("http://127.0.0.1:9")

    with pytest.raises(TrackingAway, match=r"tracking at http://127\.0\.0\.1:9 does not answer"):
        away.run_of("t", "e", begin=True)
    away.close()


def test_a_host_waits_for_the_masters_run_and_then_tells_its_load(server: Server) -> None:
    host = HostTracking(server.client(), "ctr-trainer-0", "ctr-train-1", "clicks")

    host.round()
    assert server.metrics == []
    tracking(server, []).round()
    host.round()

    assert [each["key"] for each in server.metrics] == [
        "host/ctr-trainer-0/cpu_percent",
        "host/ctr-trainer-0/memory_bytes",
    ]
    assert server.metrics[1]["value"] > 1e6


def test_a_stopped_tracking_tells_what_is_left(server: Server) -> None:
    one = tracking(server, [PASS]).start()

    one.stop()

    assert len(server.metrics) == 5


def test_numbers_and_settings_are_flat() -> None:
    assert numbers_of(PASS)["auc"] == 0.6
    assert "auc_before" not in numbers_of(PASS)
    assert settings_of({"a": {"b": {"c": 1}}, "d": None}) == {"a.b.c": 1, "d": None}
