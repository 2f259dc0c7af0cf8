import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner, Result

from elastic_ctr.operate.cli.logs import LogSource, component_of
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from operate.cli.fake_kubectl import FakeKubectl, environment

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
LINES = ["[pod/ctr-master-0/master] pass 20200401/00 is found", "[pod/ctr-cube-s0-0/cube-server] ]odd", "error: gone"]
ALL = "app.kubernetes.io/part-of=elastic-ctr,app.kubernetes.io/instance=ctr"


def call(*words: object) -> Result:
    return CliRunner().invoke(build("logs"), ["logs", *map(str, words)])


@pytest.fixture
def release(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.say(logs=LINES)
    return kubectl


def test_the_last_lines_of_all_pods_are_printed_with_their_names(release: FakeKubectl) -> None:
    done = subprocess.run(
        [COMMAND, "logs", "-n", "ns"], env=environment(release), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, LINES)
    assert release.calls[-1] == [
        "--namespace", "ns", "logs", "--selector", ALL, "--prefix", "--ignore-errors", "--tail=100", "--all-containers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["master"], ["--selector", f"{ALL},app.kubernetes.io/component=master", "--all-containers", "--tail=100"]),
        (["cube"], ["--selector", f"{ALL},app.kubernetes.io/component=cube", "--all-containers"]),
        (["cube-server"], [f"{ALL},app.kubernetes.io/component=cube", "--container", "cube-server"]),
        (["cube-builder"], [f"{ALL},app.kubernetes.io/component=cube-transfer", "--container", "cube-builder"]),
        (["cube-transfer"], [f"{ALL},app.kubernetes.io/component=cube-transfer", "--container", "cube-transfer"]),
        (["--since", "10m"], ["--since=10m", "--tail=-1"]),
        (["--since", "10m", "--tail", "5"], ["--since=10m", "--tail=5"]),
        (["--context", "kind"], ["--context", "kind"]),
    ],
)
def test_one_role_or_one_container_or_a_time_may_be_meant(
    words: list[str], expected: list[str], release: FakeKubectl
) -> None:
    done = call(*words, "-n", "ns", "--json")

    assert done.exit_code == 0
    assert set(expected) <= set(release.calls[-1])


def test_json_has_pod_container_and_line(release: FakeKubectl) -> None:
    said = [json.loads(line) for line in call("-n", "ns", "--json").stdout.splitlines()]

    assert said == [
        {"pod": "ctr-master-0", "container": "master", "line": "pass 20200401/00 is found"},
        {"pod": "ctr-cube-s0-0", "container": "cube-server", "line": "]odd"},
        {"pod": None, "container": None, "line": "error: gone"},
    ]


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_following_goes_on_until_it_is_ended_and_leaves_no_kubectl(
    words: list[str], signum: signal.Signals, code: int, release: FakeKubectl
) -> None:
    following = subprocess.Popen(
        [COMMAND, "logs", "-n", "ns", "--follow", *words],
        env=environment(release), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert following.stdout is not None
    assert "20200401/00 is found" in following.stdout.readline()

    following.send_signal(signum)
    _, said = following.communicate(timeout=60)

    assert (following.returncode, said) == (code, "")
    assert release.running() == []
    assert {"--follow", "--max-log-requests=1000"} <= set(release.calls[-1])


def test_logs_of_an_absent_run_or_role_are_refused(release: FakeKubectl) -> None:
    nowhere, nobody, unknown = call(), call("-n", "ns", "tracking"), call("-n", "ns", "nonsense")

    assert [each.exit_code for each in (nowhere, nobody, unknown)] == [2, 2, 2]
    assert "elastic-ctr-local/logs has no log of a run; --dir names another run" in nowhere.stderr
    assert nobody.stderr == "release ctr has no pod of tracking just now\n"


def test_the_logs_of_a_run_on_this_machine_are_its_files(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    run.write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "ctr"))
    for name in ("ctr-cube-s0-0", "ctr-cube-s1-0", "ctr-cube-transfer-0", "ctr-cube-builder-0", "local"):
        (run.logs / f"{name}.log").write_text(f"first of {name}\nlast of {name}\n")
    # Of a release whose cube pods were two processes.
    (run.logs / "ctr-cube-s0-0.agent.log").write_text("of long ago\n")

    server = call("--dir", tmp_path, "cube-server", "--tail", 1)
    cube = call("--dir", tmp_path, "cube", "--tail", 1)
    builder = call("--dir", tmp_path, "cube-builder", "--json", "--tail", 1)
    absent = call("--dir", tmp_path, "serving")

    assert (
        server.stdout
        == cube.stdout
        == ("[ctr-cube-s0-0] last of ctr-cube-s0-0\n[ctr-cube-s1-0] last of ctr-cube-s1-0\n")
    )
    assert json.loads(builder.stdout) == {
        "pod": "ctr-cube-builder-0", "container": None, "line": "last of ctr-cube-builder-0",
    }  # fmt: skip
    assert len(call("--dir", tmp_path).stdout.splitlines()) == 10
    assert absent.exit_code == 2
    assert "has no log of serving" in absent.stderr


def test_a_log_file_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    (run.logs / "ctr-master-0.log").mkdir(parents=True)
    (run.logs / "ctr-trainer-0.log").write_text("joined\n")
    run.write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "ctr"))

    broken, other = call("--dir", tmp_path), call("--dir", tmp_path, "trainer")

    assert (broken.exit_code, broken.stdout) == (2, "")
    assert broken.stderr == (
        f"{run.logs}/ctr-master-0.log cannot be read: Is a directory; name a role whose log can be\n"
    )
    assert (other.exit_code, other.stdout) == (0, "[ctr-trainer-0] joined\n")


def test_a_refusal_of_kubectl_is_exit_code_2(release: FakeKubectl) -> None:
    release.path.write_text(release.path.read_text().replace('elif "logs" in words:', 'elif "never" in words:'))

    assert call("-n", "ns", "--json").exit_code == 2


def test_every_role_has_a_component() -> None:
    assert {component_of(each) for each in get_args(LogSource)} == {
        "master", "trainer", "pserver", "file-server", "cube", "cube-transfer", "intake", "serving", "scoring", "tracking",
    }  # fmt: skip
