"""The options of jobs that score: on this machine with the values file, in a cluster with pods, and never both."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.operate.cli import kubernetes_job
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.cli.predict_stored import StoredOptions
from operate.cli.fake_kubectl import FakeKubectl


def call(command: str, *words: object) -> Result:
    return CliRunner().invoke(build(command), [command, *map(str, words)])


@pytest.fixture
def values(tmp_path: Path) -> Path:
    data = {
        "source": {"url": (tmp_path / "data").as_uri()},
        "start": "20200401/00",
        "end": "20200401/01",
        "slots": ["0", "1"],
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"data": data}))
    return file


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--version", "7", "x"], "--version is for a version in the store: say -f VALUES"),
        (["--copy", "a", "x"], "--copy is for a version in the store: say -f VALUES"),
        ([], "name a FILE, the folder of an hour, or - alone for standard input; all hours are for -f VALUES"),
        (["a", "-"], "name a FILE"),
        (["-f", "V", "--address", "x:1"], "--address is for a running serving, and -f or --pods for a version in the store"),
        (["-f", "V", "--label", "click"], "--label is for a running serving"),
        (["-f", "V"], "say --output DIR: with -f the predictions are files"),
        (["-f", "V", "-o", "out", "-"], "standard input cannot be cut into tasks and read again"),
        (["-f", "V", "-o", "out", "--output-format", "xml"], "--output-format xml is neither csv nor parquet"),
        (["-f", "V", "-o", "out", "--copy", "a,reason"], "'reason' is empty, named twice, or a column of the predictions' own"),
        (["-f", "V", "-o", "out", "--dump", "keys,all"], "'all' is neither keys nor pooled, or is named twice"),
        (["-f", "V", "-o", "out", "--dump", "keys", "--dump", "keys"], "'keys' is neither keys nor pooled, or is named twice"),
        (["-f", "V", "-o", "out", "--from", "20200401/00", "x"], "name either files, or hours by --from and --to"),
        (["-f", "V", "-o", "out", "--from", "2020"], "'2020' is not YYYYMMDD/HH"),
        (["-f", "V", "-o", "out", "--from", "20200402/00"], "end 20200401/01 is before start 20200402/00"),
        (["-f", "V", "-o", "out", "--version", "new"], "--version 'new' is neither the id of a version nor latest nor live"),
        (["-f", "V", "-o", "out"], "no version is in the store file://"),
        (["-f", "V", "-o", "out", "--version", "17"], "version 17 is not in the store file://"),
        (["-f", "V", "-o", "out", "--pods", "2"], "-f is for this machine, and --pods for a cluster: leave one out"),
        (["-o", "out", "--pods", "2"], "--pods needs --namespace"),
        (["-o", "out", "--pods", "2", "-n", "ns", "x"], "pods do not see the files of this machine"),
        (["-o", "out", "--pods", "2", "-n", "ns", "--processes", "2"], "--processes is for this machine, and --pods for a cluster"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused_by_a_sentence(
    words: list[str], reason: str, values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: FakeKubectl
) -> None:
    monkeypatch.chdir(tmp_path)

    done = call("predict", *(str(values) if word == "V" else word for word in words))

    assert done.exit_code == 2, done.output
    assert reason in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
    assert kubectl.calls == []


def test_an_evaluation_needs_the_values_file_or_pods() -> None:
    done = call("evaluate")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "say -f VALUES, the values file of the training" in done.stderr


TOTAL = {"rows": 1000, "refused": 0, "shows": 1000, "clicks": 10, "observedCtr": 0.01, "predictedCtr": 0.011, "calibration": 1.1,
         "auc": 0.75, "logloss": 0.05, "mae": 0.02, "rmse": 0.1, "refusedByReason": {}, "refusedExamples": {}}  # fmt: skip
REPORT = {"version": 7, "maxRefusedShare": 0.01, "splits": {"20200401/00": TOTAL}, "total": TOTAL}
TEMPLATE: dict[str, Any] = {
    "metadata": {"name": "ctr-scoring"},
    "spec": {
        "jobTemplate": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": "scoring", "args": ["scoring"]}], "restartPolicy": "Never"}
                }
            },
        }
    },
}
COMPLETE = {"succeeded": 3, "conditions": [{"type": "Complete", "status": "True"}]}


@pytest.fixture
def cluster(kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """With the template, and a Job that is complete at the third look."""
    monkeypatch.setattr(kubernetes_job, "_LOOK_SECONDS", 0)
    logs = ["INFO 3 of 3 tasks are done", '{"level": "INFO", "message": "done"}', json.dumps(REPORT)]
    pods = [{"metadata": {"name": f"x-{phase}"}, "status": {"phase": phase}} for phase in ("Succeeded", "Failed")]
    kubectl.say(job_pods=pods)
    kubectl.say(cronjobs=[TEMPLATE], job=[{}, {"active": 3, "succeeded": 1}, COMPLETE], logs=logs)
    return kubectl


def test_pods_of_the_release_evaluate_and_their_report_is_printed(cluster: FakeKubectl) -> None:
    done = call("evaluate", "-n", "ns", "--pods", 3, "--from", "20200401/00", "--version", "live", "--json")

    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == REPORT
    job = cluster.created
    assert (job["kind"], job["spec"]["parallelism"], job["spec"]["completions"]) == ("Job", 3, 3)
    assert job["metadata"]["labels"] == {"a": "b"}
    name = job["metadata"]["name"]
    assert name.startswith("ctr-scoring-")
    [container] = job["spec"]["template"]["spec"]["containers"]
    order = Order.model_validate_json(container["args"][2])
    assert order == Order(deed="evaluate", output=f"scores/{name}", version="live", first="20200401/00", pods=3)
    assert f"Job {name} of 3 pods; its work stands in scores/{name} of the store" in done.stderr
    assert "1 of 3 pods have ended, 3 run" in done.stderr
    assert next(words for words in cluster.calls if "logs" in words)[2:4] == ["logs", "x-Succeeded"]


def test_pods_predict_into_the_store(cluster: FakeKubectl) -> None:
    done = call("predict", "-n", "ns", "--pods", 2, "-o", "scores/day", "--output-format", "parquet", "--copy", "user")

    assert done.exit_code == 0, done.stderr
    assert "1,000 rows with version 7, 1,000 shows, 10 clicks: AUC 0.750000, logloss 0.050000" in done.stderr
    [container] = cluster.created["spec"]["template"]["spec"]["containers"]
    order = Order.model_validate_json(container["args"][2])
    assert order == Order(deed="predict", output="scores/day", form="parquet", copied=("user",), pods=2)


_AWAY = "Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: connection refused"


def test_an_api_server_that_is_away_for_a_moment_does_not_end_the_watch_of_a_job(cluster: FakeKubectl) -> None:
    cluster.say(job=[{}, _AWAY, _AWAY, {"active": 3, "succeeded": 1}, _AWAY, COMPLETE])

    done = call("evaluate", "-n", "ns", "--pods", 3, "--json")

    assert (done.exit_code, json.loads(done.stdout)) == (0, REPORT), done.stderr
    assert done.stderr.count("connection refused") == 2, "once each time that it goes"


def test_a_job_that_was_deleted_ends_the_watch_at_once(cluster: FakeKubectl) -> None:
    cluster.say(job=[{}, 'Error from server (NotFound): jobs.batch "ctr-scoring-1" not found'])

    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be watched any more" in done.stderr
    assert "asking again" not in done.stderr


def test_an_api_server_that_stays_away_ends_the_watch_and_says_that_the_job_goes_on(
    cluster: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_job, "_AWAY_SECONDS", 0)
    cluster.say(job=[{}, _AWAY])

    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be watched any more, and goes on where it is there" in done.stderr
    assert "connection refused" in done.stderr


def test_a_failed_job_whose_pods_are_gone_says_why_it_failed(cluster: FakeKubectl) -> None:
    failed = [{"type": "Failed", "status": "True", "message": "Job was active longer than specified deadline"}]
    cluster.say(job=[{"conditions": failed}], job_pods=[])

    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "has failed (Job was active longer than specified deadline)" in done.stderr
    assert "its words are lost" in done.stderr


def test_a_table_is_printed_without_json(cluster: FakeKubectl) -> None:
    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert done.exit_code == 0, done.stderr
    assert "0.750000" in done.stdout
    assert "20200401/00" in done.stdout


def test_a_job_that_fails_is_reported_with_the_log_of_a_pod(cluster: FakeKubectl) -> None:
    failed = [{"type": "Failed", "status": "True", "message": "Container scoring failed with exit code 2"}]
    cluster.say(job=[{"conditions": failed}], logs=["version 17 is not in the store http://x; there are 7"])

    done = call("evaluate", "-n", "ns", "--pods", 3, "--version", 17)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "has failed (Container scoring failed with exit code 2); a pod of it said:" in done.stderr
    assert "version 17 is not in the store http://x; there are 7" in done.stderr


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"cronjobs": []}, "release ctr has no CronJob of scoring; is scoring.enabled false, or the chart older?"),
        ({"cronjobs": [], "pods": []}, "namespace ns has no pods of release ctr"),
        ({"cronjobs": [{"metadata": {"name": "x"}, "spec": {}}]}, "CronJob x is not the one of this chart"),
        ({"job_pods": []}, "has no pod that is Succeeded any more, so its words are lost"),
        ({"logs": ["nothing"]}, "is complete, and the log of its pod holds no report"),
        ({"fail": "error: Forbidden"}, "kubectl get cronjobs: error: Forbidden"),
    ],
)  # fmt: skip
def test_a_cluster_that_lacks_a_part_of_the_job_is_exit_code_1_with_a_reason(
    cluster: FakeKubectl, world: dict[str, Any], reason: str
) -> None:
    cluster.say(**world)

    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert (done.exit_code, done.stdout) == (1, "")
    assert reason in done.stderr


def test_more_refused_rows_than_a_training_takes_are_an_error_after_the_report(cluster: FakeKubectl) -> None:
    total = {
        **TOTAL,
        "refused": 20,
        "refusedByReason": {"empty": 20},
        "refusedExamples": {"empty": "the line holds nothing."},
    }
    cluster.say(logs=[json.dumps({**REPORT, "total": total})])

    done = call("evaluate", "-n", "ns", "--pods", 3)

    assert done.exit_code == 1
    assert "20 of 1,000 rows were refused: empty 20 (such as the line holds nothing.)" in done.stderr
    assert "more rows were refused than data.maxRefusedShare 0.01 of them" in done.stderr
    assert "0.750000" in done.stdout


def test_each_dump_that_is_named_is_made() -> None:
    assert (
        StoredOptions(dump=["keys", "pooled"]).dumps()
        == StoredOptions(dump=["keys,pooled"]).dumps()
        == ("keys", "pooled")
    )
