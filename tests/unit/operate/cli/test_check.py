import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, pages, saying
from elastic_ctr.operate.cli import check
from elastic_ctr.operate.cli.check import Checked, CheckFailed, app, until
from operate.cli.test_check_serving import server

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")


SEEN = Checked("seen", {"version": 7})


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_check_that_passes_says_so_in_one_sentence_and_in_json() -> None:
    with saying(pages(server())) as address:
        done = subprocess.run(
            [COMMAND, "check", "serving", "--address", address], capture_output=True, text=True, check=False
        )
        as_json = call("serving", "--address", address, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"serving at {address} answers a line of 2 slots with 0.25, by version 7\n"
    assert json.loads(as_json.stdout) == {
        "ok": True, "address": address, "model": "ctr", "version": 7, "probability": 0.25, "slots": 2,
    }  # fmt: skip


def test_a_check_that_fails_says_why_in_one_sentence_and_in_json() -> None:
    serving, cube = call("serving", "--address", "127.0.0.1:1"), call("cube", "--transfer", "127.0.0.1:1")
    as_json = call("cube", "--transfer", "127.0.0.1:1", "--json")

    assert [each.exit_code for each in (serving, cube, as_json)] == [1, 1, 1]
    assert serving.stderr.startswith("serving at 127.0.0.1:1: http://127.0.0.1:1/v2/models/ctr/ready does not answer")
    assert cube.stderr.startswith("cube-transfer: http://127.0.0.1:1/release does not answer")
    assert (serving.stderr.count("\n"), cube.stderr.count("\n")) == (1, 1)
    assert json.loads(as_json.stdout) == {"ok": False, "reason": cube.stderr.strip()}


def test_a_live_version_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BETWEEN_LOOKS", 0.01)
    asked = threading.Semaphore(0)
    live = threading.Event()

    def training(method: str, path: str, body: Any) -> Said:
        asked.release()
        if not live.is_set():
            return 503, {"error": "training hour 1 of 4"}
        return pages(server())(method, path, body)

    def publish() -> None:
        for _ in range(3):
            asked.acquire(timeout=60)
        live.set()

    publishing = threading.Thread(target=publish)
    publishing.start()
    with saying(training) as address:
        done = call("serving", "--address", address, "--wait", 60)
    publishing.join()

    assert done.exit_code == 0, done.output
    assert done.stderr.count("waiting: ") == done.stderr.count("answers 503: training hour 1 of 4") == 1


def test_a_failure_that_may_pass_is_checked_again_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BETWEEN_LOOKS", 0)
    looks: list[int] = []

    def look_at(failing: int, *, may_pass: bool) -> Checked:
        looks.append(len(looks))
        if len(looks) <= failing:
            raise CheckFailed("not yet", may_pass=may_pass)
        return SEEN

    assert until(lambda: look_at(3, may_pass=True), wait=0) == SEEN
    assert len(looks) == 4
    looks.clear()
    with pytest.raises(CheckFailed, match="not yet"):
        until(lambda: look_at(3, may_pass=False), wait=0)
    assert len(looks) == 1


def test_a_failure_that_does_not_pass_in_time_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SETTLE_SECONDS", 0)

    def look() -> Checked:
        raise CheckFailed("never", may_pass=True)

    with pytest.raises(CheckFailed, match="never"):
        until(look, wait=0)


def test_values_that_contradict_each_other_are_refused_with_a_sentence_for_each_error(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text('data: {source: {url: "hdfs://namenode:9000"}, start: 20200401/00, slots: ["1"]}\n')
    wrong.write_text(right.read_text() + "trainer: {minReplicas: 3}\nmodel: {table: {embedxThreshold: 1}}\n")

    assert (call("values", "-f", right).exit_code, call("values", "-f", wrong).exit_code) == (0, 2)
    assert [sentence.split(": ")[1] for sentence in call("values", "-f", wrong).stderr.splitlines()] == [
        "model.table",
        "trainer",
    ]


VALUES = "data: {source: {url: 'hdfs://namenode:9000'}, start: 20200401/00}\ncube: {config: {shards: 99}}\n"


def test_values_are_checked_as_helm_is_given_them(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "site.yaml").write_text("cube: {config: {shards: 3}}\n")
    (tmp_path / "slot.conf").write_text("0\n1\n")
    alone = ("values", "-f", tmp_path / "values.yaml", "--set-file", f"data.slots={tmp_path / 'slot.conf'}")

    refused, taken = call(*alone), call(*alone, "-f", tmp_path / "site.yaml")

    assert refused.exit_code == 2
    assert "cube.config.shards 99 is above model.partitions 60" in refused.stderr
    assert (taken.exit_code, taken.stderr) == (0, "")
    assert taken.stdout == (
        f"{tmp_path / 'values.yaml'} + {tmp_path / 'site.yaml'}: every setting of the program is right\n"
    )


def test_values_that_only_this_machine_can_read_are_no_values_of_a_release(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def network(inputs): ...\n")
    (tmp_path / "hours.yaml").write_text('data: {source: {url: "file:logs"}, start: 20200401/00, slots: ["1"]}\n')
    (tmp_path / "net.yaml").write_text(
        'data: {source: {url: "hdfs://n:9000"}, start: 20200401/00, slots: ["1"]}\nmodel: {network: {file: net.py}}\n'
    )

    refused = [call("values", "-f", tmp_path / name) for name in ("hours.yaml", "net.yaml")]

    assert [each.exit_code for each in refused] == [2, 2]
    assert "data.source.url" in refused[0].stderr
    assert "model.network" in refused[1].stderr
