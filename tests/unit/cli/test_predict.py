from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, saying
from cli.fake_kubectl import FakeKubectl
from cli.test_check_serving import metadata
from elastic_ctr.cli.main import build


def call(*words: object, given: str) -> Result:
    return CliRunner().invoke(build("predict"), ["predict", *map(str, words)], input=given)


def answering(method: str, path: str, body: Any) -> Said:
    if not path.endswith("/infer"):
        return 200, metadata(7)
    lines = body["inputs"][0]["data"]
    return 200, {
        "outputs": [
            {"name": "probability", "data": [0.25] * len(lines)},
            {"name": "version", "data": [7] * len(lines)},
        ]
    }


def test_predictions_of_a_release_come_through_kubectl(kubectl: FakeKubectl) -> None:
    with saying(answering) as address:
        kubectl.say(forward={"ctr-serving-7c4d-x1:8400": int(address.partition(":")[2])})
        done = call("-", "--namespace", "ns", given="1 0 5:0\n4 1 6:7\n")

    assert (done.exit_code, done.stdout) == (0, "0.25\n0.25\n")
    assert "2 lines, 5 shows, 1 clicks" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-n", "ns", "--address", "x:1"], "say either --namespace, or --address: not both"),
        (["--release", "other"], "--release and --context say which release of a --namespace is meant"),
        (["-n", "ns"], "kubectl port-forward to ctr-serving-7c4d-x1: error: nobody forwards"),
    ],
)
def test_who_cannot_be_asked_is_said(words: list[str], reason: str, kubectl: FakeKubectl) -> None:
    done = call("-", *words, given="1 0 5:0\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr


def test_whoever_else_answers_is_said() -> None:
    with saying(lambda *_: (200, {})) as address:
        done = call("-", "--address", address, given="1 0 5:0\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{address} does not answer as the Open Inference Protocol says" in done.stderr
