import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_ctr.operate.cli.audit import line_in
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from elastic_ctr.runtime.audit import AuditLog
from operate.cli.fake_kubectl import FakeKubectl, pod


def call(*words: object) -> Result:
    return CliRunner().invoke(build("audit"), ["audit", *map(str, words)])


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.path.mkdir()
    found.write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "clicks"))
    for role, at in (("master", 2e9), ("cube-transfer", 1e9)):
        log = AuditLog(role, found.path / "state" / role, lambda at=at: at)  # type: ignore[misc]
        log.change("ann", "rollback", f"version of {role}", "done")
        log.refused("-", "POST /rollback", "from 127.0.0.1", "refused: no token")
    return found


def test_the_lines_of_all_roles_of_a_run_are_printed_in_their_order(run: RunFolder) -> None:
    table, newest, as_json = (
        call("--dir", run.path),
        call("--dir", run.path, "--tail", 1),
        call("--dir", run.path, "--json"),
    )

    assert [each.exit_code for each in (table, newest, as_json)] == [0, 0, 0]
    head, *lines = table.stdout.splitlines()
    assert head.split() == ["time", "role", "token", "call", "on", "result"]
    assert lines[0].startswith(
        "2001-09-09 01:46:40Z  cube-transfer  ann    rollback        version of cube-transfer  done"
    )
    assert [line.split()[2] for line in lines] == ["cube-transfer", "cube-transfer", "master", "master"]
    assert len(newest.stdout.splitlines()) == 2
    first = json.loads(as_json.stdout.splitlines()[0])
    assert (first["at"], first["token"], first["result"]) == (1e9, "ann", "done")


def test_a_run_without_lines_says_so_and_an_absent_run_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    absent = call("--dir", run.path)
    run.write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "clicks"))

    assert (absent.exit_code, call("--dir", run.path).stdout) == (2, "nothing was changed, and no call was refused\n")
    assert "no run was ever started there" in absent.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_audit_lines_are_found_in_the_logs_of_pods(as_json: bool) -> None:
    line = '{"at": 5.0, "role": "master", "token": "ann", "call": "pass retry", "on": "pass x", "result": "done"}'
    logged = (
        json.dumps({"time": "t", "level": "INFO", "role": "master", "message": f"audit {line}"})
        if as_json
        else f"2026-11-29T20:00:00.000Z INFO    master audit {line}"
    )

    found = line_in(logged + "\n")

    assert found is not None
    assert (found.at, found.token, found.on) == (5.0, "ann", "pass x")
    assert line_in("2026-11-29T20:00:00.000Z INFO    master an audit of something") is None


def test_a_cluster_that_refuses_is_a_sentence(kubectl: FakeKubectl) -> None:
    kubectl.say(pods=[pod("other-master-0", "master", release="other")])

    refused = call("-n", "ns")

    assert refused.exit_code == 2
    assert "has no pods of release ctr" in refused.stderr
