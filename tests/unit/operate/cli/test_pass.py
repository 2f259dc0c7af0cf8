import base64
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, saying
from elastic_ctr.operate.cli.main import build
from operate.cli.fake_kubectl import FakeKubectl


def call(*words: object) -> Result:
    return CliRunner().invoke(build("pass"), ["pass", *map(str, words)])


def test_a_stopped_pass_is_retried_in_a_release_and_in_a_run(kubectl: FakeKubectl, tmp_path: Path) -> None:
    told: list[Any] = []
    credentials: list[str | None] = []
    (tmp_path / "token").write_text("ann her-own")
    kubectl.say(secrets={"ctr-auth": {"operate": base64.b64encode(b"ann s3cret").decode()}})

    def master(method: str, path: str, body: Any) -> Said:
        told.append((method, path, body))
        return (200, body) if body == {"pass": "20251103/12"} else (409, {"error": "pass 20251103/13 is not stopped"})

    with saying(master, credentials) as address:
        kubectl.say(forward={"ctr-master-0:8701": int(address.partition(":")[2])})
        in_release = call("retry", "20251103/12", "-n", "ns")
        in_run = call("retry", "20251103/12", "--address", address, "--token-file", tmp_path / "token")
        refused = call("retry", "20251103/13", "--address", address)

    assert [each.exit_code for each in (in_release, in_run, refused)] == [0, 0, 2]
    assert told[:2] == [("POST", "/retry", {"pass": "20251103/12"})] * 2
    assert credentials == ["Bearer s3cret", "Bearer her-own", None]
    assert in_run.stdout.startswith("pass 20251103/12 is looked at again")
    assert "pass 20251103/13 is not stopped" in refused.stderr


def test_records_are_skipped_by_file_and_offset(tmp_path: Path) -> None:
    told: list[Any] = []

    def master(method: str, path: str, body: Any) -> Said:
        told.append((method, path, body))
        return 200, body

    with saying(master) as address:
        skips = ("--skip", "a:b/part-0:17", "--skip", "topic/3:9")
        done = call("retry", "7", *skips, "--address", address)
        wrong = [call("retry", "7", "--skip", word, "--address", address) for word in ("17", "part:", ":1", "part:-1")]

    assert done.exit_code == 0
    skipped = [{"path": "a:b/part-0", "offset": 17}, {"path": "topic/3", "offset": 9}]
    assert told == [("POST", "/retry", {"pass": "7", "skip": skipped})]
    assert {each.exit_code for each in wrong} == {2}
    assert "--skip 17 is not FILE:OFFSET" in wrong[0].stderr


@pytest.mark.parametrize("words", [("retry",), ("20251103/12",)])
def test_a_missing_argument_is_exit_code_2(words: tuple[str, ...]) -> None:
    assert call(*words).exit_code == 2
