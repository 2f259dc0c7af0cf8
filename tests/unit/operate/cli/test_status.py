import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, pages, saying
from elastic_ctr.operate.cli import status as module
from elastic_ctr.operate.cli.main import build
from operate.cli.answers import DELTA, answers, snapshot
from operate.cli.fake_kubectl import SERVICES, FakeKubectl, environment, pod

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
DOORS = {"master": "ctr-master-0:8701", "transfer": "ctr-cube-transfer-0:8300", "serving": "ctr-serving-7c4d-x1:8401"}


def call(*words: object) -> Result:
    return CliRunner().invoke(build("status"), ["status", *map(str, words)])


@contextmanager
def roles(**changes: Any) -> Iterator[dict[str, str]]:
    """Addresses of the three roles, each answering /status."""
    found = {**answers(), **changes}
    with (
        saying(pages({"/status": found["master"]})) as master,
        saying(pages({"/status": found["transfer"]})) as transfer,
        saying(pages({"/status": found["serving"]})) as serving,
    ):
        yield {"master": master, "transfer": transfer, "serving": serving}


@pytest.fixture
def release(kubectl: FakeKubectl) -> Iterator[FakeKubectl]:
    """A release whose doors are forwarded."""
    with roles() as at:
        kubectl.say(forward={door: int(at[role].partition(":")[2]) for role, door in DOORS.items()})
        yield kubectl


def test_the_status_by_addresses_and_that_of_a_cluster_look_the_same(release: FakeKubectl) -> None:
    with roles() as at:
        by_address = call("--address", at["master"], "--transfer", at["transfer"], "--serving", at["serving"])
    in_cluster = call("--namespace", "ns")

    assert (by_address.exit_code, in_cluster.exit_code) == (0, 0)
    [pods] = [line for line in in_cluster.stdout.splitlines() if line.startswith("pods ")]
    assert pods.split() == ["pods", "cube", "1/1,", "cube-transfer", "1/1,", "master", "1/1,", "serving", "1/1"]
    assert in_cluster.stdout.replace(f"{pods}\n", "") == by_address.stdout
    assert by_address.stdout.startswith(f"live       version {DELTA}")


def test_json_is_the_roles_own_answers_and_the_pods(release: FakeKubectl) -> None:
    asked = call("-n", "ns", "--json", "--context", "kind")

    said = json.loads(asked.stdout)
    assert asked.exit_code == 0
    assert {role: said[role] for role in answers()} == answers()
    assert said["errors"] == {}
    assert said["pods"][2] == {
        "pod": "ctr-master-0", "component": "master", "state": "Running", "ready": True, "terminating": False,
        "restarts": 0,
    }  # fmt: skip
    assert all(words[:4] == ["--context", "kind", "--namespace", "ns"] for words in release.calls)


def test_the_page_of_status_documents_has_the_keys_of_json(release: FakeKubectl, tmp_path: Path) -> None:
    in_cluster = json.loads(call("-n", "ns", "--json").stdout)
    seen = snapshot(answers())
    seen.folder = str(tmp_path)
    page = (Path(__file__).parents[4] / "docs" / "status.md").read_text()
    rows = [line.split(" | ") for line in page.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    described = {key: meaning for keys, meaning in rows for key in re.findall("`(\\w+)`", keys)}

    assert described.keys() == in_cluster.keys() | seen.to_dict().keys()
    assert re.findall("`(\\w+)`", described["pods"]) == list(in_cluster["pods"][0])
    assert re.findall("`(\\w+)`", described["run"]) == list(seen.to_dict()["run"])


def test_a_role_that_does_not_answer_is_named_and_the_others_are_shown(release: FakeKubectl) -> None:
    release.say(pods=[each for each in release.world["pods"] if each["metadata"]["name"] != "ctr-master-0"])

    partly = call("-n", "ns")

    assert partly.exit_code == 1
    assert "no pod of master runs in namespace ns: there is none" in partly.stdout
    assert f"{DELTA} is live" in partly.stdout


def test_a_role_that_is_switched_off_is_no_error_of_the_status(release: FakeKubectl) -> None:
    pods = [each for each in release.world["pods"] if each["metadata"]["name"] != "ctr-master-0"]
    release.say(pods=pods, services=[each for each in SERVICES if each != "master"])

    without = call("-n", "ns", "--json")

    said = json.loads(without.stdout)
    assert without.exit_code == 0
    assert said["errors"] == {}
    assert said.keys() == {"pods", "transfer", "serving", "errors"}


def test_a_pod_that_does_not_answer_is_named_by_its_role(release: FakeKubectl) -> None:
    release.say(forward={**release.world["forward"], "ctr-master-0:8701": 1})

    partly = call("-n", "ns", "--json")

    assert partly.exit_code == 1
    assert json.loads(partly.stdout)["errors"] == {
        "master": "master: http://127.0.0.1:1/status does not answer: Connection refused"
    }


@pytest.mark.parametrize("other", [{}, [], "hello", {"live": None}])
def test_an_address_of_another_program_is_reported_in_a_sentence(other: Any) -> None:
    with saying(pages({"/status": other})) as wrong, roles() as at:
        done = call("--address", wrong, "--transfer", wrong, "--serving", at["serving"])

    assert done.exit_code == 1
    assert f"http://{wrong}/status is not master's; give the address of its status endpoint" in done.stdout
    assert f"http://{wrong}/status is not transfer's" in done.stdout


def test_a_cluster_that_cannot_be_read_is_exit_code_2(kubectl: FakeKubectl) -> None:
    kubectl.say(fail="error: You must be logged in to the server (Unauthorized)")
    unauthorized = call("-n", "ns")
    kubectl.say(fail="", pods=[])
    empty = call("-n", "ns", "--release", "other")
    both = call("-n", "ns", "--address", "x:1")

    assert [each.exit_code for each in (unauthorized, empty, both)] == [2, 2, 2]
    assert "kubectl get pods: error: You must be logged in to the server (Unauthorized)" in unauthorized.output
    assert "namespace ns has no pods of release other" in empty.output
    assert "say either --namespace, or --address: not both" in both.stderr


def test_pods_of_helm_test_are_left_out_of_the_status(release: FakeKubectl) -> None:
    release.say(pods=[*release.world["pods"], pod("ctr-test-cube-seek", "client", phase="Failed")])

    assert "ctr-test-cube-seek" not in call("-n", "ns").stdout


def test_watching_looks_again_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.01)
    asked: list[str] = []

    def until_the_third(method: str, path: str, body: Any) -> Said:
        asked.append(path)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return 200, answers()["master"]

    with saying(until_the_third) as master:
        watched = call(
            "--address", master, "--transfer", "127.0.0.1:1", "--serving", "127.0.0.1:1", "--watch", "--json"
        )

    assert watched.exit_code == 0
    assert len(watched.stdout.splitlines()) >= 2
    assert all(json.loads(line)["master"]["generation"] == 2 for line in watched.stdout.splitlines())


def watching(kubectl: FakeKubectl, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [COMMAND, "status", "-n", "ns", "--watch", *words],
        env=environment(kubectl), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_watch_that_is_ended_leaves_no_kubectl_behind(
    signum: signal.Signals, code: int, release: FakeKubectl
) -> None:
    watch = watching(release, "--json")
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    assert len(release.running()) == 3

    watch.send_signal(signum)
    _, said = watch.communicate(timeout=60)

    assert first["errors"] == {}
    assert (watch.returncode, said) == (code, "")
    assert release.running() == []


def test_a_watch_without_a_terminal_prints_look_after_look(
    release: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watching(release)
    assert watch.stdout is not None
    said = [watch.stdout.readline() for _ in range(3)]
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=60)

    assert said[0].startswith("live ")
    assert said[1].startswith("freshness ")


def test_a_watch_on_a_terminal_redraws(release: FakeKubectl) -> None:
    terminal, its_end = os.openpty()
    watch = subprocess.Popen(
        [COMMAND, "status", "-n", "ns", "--watch"],
        env={**environment(release), "TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
        stdin=its_end, stdout=its_end, stderr=its_end,
    )  # fmt: skip
    os.close(its_end)
    seen = b""
    while seen.count(b"freshness") < 2:
        seen += os.read(terminal, 1 << 16)
    watch.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(terminal, 1 << 16):
            seen += chunk
    except OSError:
        # What a terminal says when the last program on it has ended.
        pass
    os.close(terminal)

    assert watch.wait(60) == 0
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?1049l" in seen
