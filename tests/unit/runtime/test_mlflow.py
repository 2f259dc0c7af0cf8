"""The calls as MLflow 3 takes and answers them; a test of its image meets the real server."""

from collections.abc import Iterator
from typing import Any

import pytest

from elastic_ctr.runtime.mlflow import TrackingServer, TrackingUnavailable
from elastic_ctr.runtime.status.master_status import PassStatus, TrainingStatus
from elastic_ctr.training.master.tracking import Tracking, numbers_of, settings_of
from elastic_ctr.training.trainer.supervisor import HostMetrics
from runtime.tracking_server import Server

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
    "quality": {"before": {"auc": None, "logloss": 0.5}, "after": {"auc": 0.6}},
    "seconds": {"checkpoint": 1.5},
}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def status_of(passes: list[dict[str, Any]], *, finished: bool = False, state: str = "waiting") -> TrainingStatus:
    current = None if finished else {"pass": "20200401/01", "state": state}
    return TrainingStatus.model_validate(
        {"passes": passes, "curves": curves_of(passes), "finished": finished, "current": current, "ledger": {}}
    )


def curves_of(passes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    deciles = [{"predictedCtr": 0.1, "observedCtr": 0.2}] * 10
    curve = {"roc": [at / 100 for at in range(101)], "deciles": deciles}
    return [{"pass": each["pass"], "before": None, "after": curve} for each in passes if each["state"] == "done"]


def trained_to(auc: float) -> dict[str, Any]:
    return {"auc": auc, "quality": {"before": None, "after": {"auc": auc}}}


def tracking(server: Server, passes: list[dict[str, Any]], **given: Any) -> Tracking:
    settings = {"model": {"network": {"layers": [4]}}}
    return Tracking(server.client(), "ctr-train-1", "clicks", settings, lambda: status_of(passes, **given))


def aucs(server: Server) -> list[float]:
    return [each["value"] for each in server.metrics if each["key"] == "auc/after"]


def test_settings_are_told_once_and_each_pass_when_it_is_done(server: Server) -> None:
    one = tracking(server, [PASS, {**PASS, "pass": "20200401/01", "ordinal": 2, "state": "training"}])

    one.round()
    one.round()

    assert server.params == [{"key": "model.network.layers", "value": "[4]"}]
    assert {(each["key"], each["value"], each["step"], each["timestamp"]) for each in server.metrics} == {
        ("records", 10.0, 1, 7000), ("refused", 0.0, 1, 7000), ("keys", 5.0, 1, 7000), ("auc/after", 0.6, 1, 7000),
        ("logloss/before", 0.5, 1, 7000), ("seconds_checkpoint", 1.5, 1, 7000),
    }  # fmt: skip
    assert server.logged == 6


def test_a_restarted_master_goes_on_in_its_run_and_logs_no_pass_again(server: Server) -> None:
    tracking(server, [PASS]).start().stop()
    assert server.status() == "KILLED"
    second = {**PASS, "pass": "20200401/01", "ordinal": 2, "doneAt": 8.0, **trained_to(0.7)}

    tracking(server, [PASS, second]).round()

    assert aucs(server) == [0.6, 0.7]
    assert server.logged == 11
    assert len(server.runs) == 1
    assert server.status() == "RUNNING"


def test_a_pass_that_is_trained_again_is_logged_again(server: Server) -> None:
    tracking(server, [PASS]).round()

    tracking(server, [{**PASS, "doneAt": 9.0, **trained_to(0.7)}]).round()

    assert aucs(server) == [0.6, 0.7]


@pytest.mark.parametrize(("state", "word"), [("stopped", "FAILED"), ("training", "KILLED")])
def test_a_run_ends_with_its_master(server: Server, state: str, word: str) -> None:
    one = tracking(server, [PASS], state=state)
    one.round()
    assert server.status() == "RUNNING"

    one.start().stop()

    assert server.status() == word


def test_a_run_is_finished_with_its_last_pass_and_runs_again_when_there_are_more(server: Server) -> None:
    finished = True
    status = lambda: status_of([PASS], finished=finished)  # noqa: E731 (what it closes over changes)
    one = Tracking(server.client(), "ctr-train-1", "clicks", {}, status)
    one.round()
    assert server.status() == "FINISHED"

    finished = False
    one.round()

    assert server.status() == "RUNNING"
    assert server.logged == 6


@pytest.mark.parametrize("what", ["experiment", "run"])
def test_tracking_goes_on_after_its_experiment_or_its_run_was_deleted(server: Server, what: str) -> None:
    passes = [PASS]
    one = tracking(server, passes)
    host = HostMetrics(server.client(), "ctr-trainer-0", "ctr-train-1", "clicks")
    one.round()
    host.round()
    server.delete_experiment() if what == "experiment" else server.delete_runs()
    passes.append({**PASS, "pass": "20200401/01", "ordinal": 2, "doneAt": 8.0, **trained_to(0.7)})

    for _ in range(2):
        one.round()
        host.round()
    host.round()

    run = server.runs[-1]["info"]["run_id"]
    assert [each["value"] for each in server.metrics if (each["key"], each["run"]) == ("auc/after", run)] == [0.6, 0.7]
    assert [each for each in server.metrics if each["key"].startswith("host/") and each["run"] == run]
    assert len(server.runs) == (1 if what == "experiment" else 2)


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
    assert len(server.metrics) == 6


def test_no_server_at_all_is_a_sentence() -> None:
    away = TrackingServer("http://127.0.0.1:9")

    with pytest.raises(TrackingUnavailable, match=r"tracking at http://127\.0\.0\.1:9 does not answer"):
        away.run_of("t", "e", begin=True)
    away.close()


def test_a_host_waits_for_the_masters_run_and_then_tells_its_load(server: Server) -> None:
    host = HostMetrics(server.client(), "ctr-trainer-0", "ctr-train-1", "clicks")

    host.round()
    assert server.metrics == []
    tracking(server, []).round()
    host.round()

    assert [each["key"] for each in server.metrics] == [
        "host/ctr-trainer-0/cpu_percent",
        "host/ctr-trainer-0/memory_bytes",
    ]
    assert server.metrics[1]["value"] > 1e6


def test_a_stopped_tracking_logs_what_is_left_and_reads_nothing_afterwards(server: Server) -> None:
    closed = False

    def status() -> TrainingStatus:
        assert not closed
        return status_of([PASS])

    one = Tracking(server.client(), "ctr-train-1", "clicks", {}, status).start()

    one.stop()
    closed = True
    one.round()

    assert len(server.metrics) == 6


def test_the_pictures_of_the_last_pass_take_the_place_of_those_before(server: Server) -> None:
    passes = [PASS]
    one = tracking(server, passes)
    one.round()
    one.round()
    first = dict(server.artifacts)
    passes.append({**PASS, "pass": "20200401/01", "ordinal": 2, "doneAt": 8.0})

    one.round()

    assert server.put == 6
    assert sorted(first) == [f"1/run-0/artifacts/{name}.svg" for name in ("auc", "calibration", "roc")]
    assert "ROC of pass 20200401/00" in first["1/run-0/artifacts/roc.svg"]
    assert "ROC of pass 20200401/01" in server.artifacts["1/run-0/artifacts/roc.svg"]


def test_pictures_that_the_server_did_not_take_are_sent_again(server: Server) -> None:
    one = tracking(server, [PASS])
    server.full = True
    one.round()
    assert not server.artifacts
    assert len(server.metrics) == 6

    server.full = False
    one.round()

    assert len(server.artifacts) == 3


def test_a_run_whose_artifacts_are_elsewhere_has_numbers_and_no_pictures(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.artifact_root = "s3://bucket/1"
    caplog.set_level("INFO")

    tracking(server, [PASS], finished=True).round()

    assert len(server.metrics) == 6
    assert server.status() == "FINISHED"
    assert not server.artifacts
    assert len([record for record in caplog.records if "pictures are left out" in record.getMessage()]) == 1


def test_numbers_and_settings_are_flat() -> None:
    assert numbers_of(PassStatus.model_validate(PASS))["auc/after"] == 0.6
    assert numbers_of(PassStatus.model_validate(PASS))["logloss/before"] == 0.5
    assert "auc/before" not in numbers_of(PassStatus.model_validate(PASS))
    assert settings_of({"a": {"b": {"c": 1}}, "d": None}) == {"a.b.c": 1, "d": None}
