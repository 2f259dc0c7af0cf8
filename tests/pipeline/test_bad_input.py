"""What cannot work ends in a sentence that names what and where, and leaves nothing behind."""

import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from elastic_ctr.operate.local.run_folder import RunFolder
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import published_versions
from pipeline.running import Run, merged, values_for
from pipeline.test_recovery import adds_up
from pipeline.test_whole_run import COMMAND, synthetic

GOOD: dict[str, Any] = {
    "data": {"source": {"url": "file:///clicks"}, "start": "20200401/00", "end": "20200401/03", "slots": ["0", "1"]}
}


def local_run(folder: Path, values: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return subprocess.run(
        [COMMAND, "local", "run", "-f", "values.yaml", "--dir", "run"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def below(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in each.cmdline()):
                found.append(each)
        except psutil.Error:  # noqa: PERF203 (each may end while it is looked at)
            continue
    return found


def test_values_that_cannot_be_used_are_named_and_nothing_is_started(tmp_path: Path) -> None:
    """Each rule of values is in tests/unit/config."""
    wrong = {"data": {"slots": []}, "trainer": {"replcas": 3}, "cube": {"config": {"shards": "two"}}}

    refused = local_run(tmp_path, merged(GOOD, wrong))

    assert refused.returncode == 2
    sentences = ["data.slots: ", "trainer.replcas is not a setting; did you mean replicas?", "cube.config.shards: "]
    assert [each for each in sentences if each not in refused.stderr] == []
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken_is_named_with_its_setting_and_nothing_is_left_running(tmp_path: Path) -> None:
    values = values_for(tmp_path, ["0"], "20200401/00", "20200401/00")
    port = values["cubeTransfer"]["config"]["port"]

    with socket.create_server(("127.0.0.1", port)):
        refused = local_run(tmp_path, values)

    assert refused.returncode == 2
    assert f"cubeTransfer.config.port: 127.0.0.1:{port} is used by another process" in refused.stderr
    assert below(tmp_path) == []


def test_a_role_that_cannot_start_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    one = {"replicas": 1}
    values = values_for(tmp_path, ["0"], "20200401/00", "20200401/00", trainer=one, pserver=one)
    (tmp_path / "run" / "scratch").mkdir(parents=True)
    (tmp_path / "run" / "scratch" / "cube-builder").write_text("in the way")

    refused = local_run(tmp_path, values)

    assert refused.returncode == 2
    assert "ctr-cube-builder-0 cannot run: " in refused.stderr
    assert "scratch/cube-builder" in refused.stderr.replace("\n", "")
    assert below(tmp_path) == []


def test_ctrl_c_ends_every_process_with_130(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    values = values_for(tmp_path / "data", ["0"], "20200401/00", "20200401/00", pserver={"replicas": 1})
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    process = subprocess.Popen(
        [COMMAND, "local", "run", "-f", tmp_path / "values.yaml", "--dir", tmp_path / "run"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ends = time.monotonic() + 120
        # A trainer's and a pserver's own child, and the workers, are there: the run is in the middle of its start.
        while time.monotonic() < ends and len(psutil.Process(process.pid).children(recursive=True)) < 11:
            time.sleep(0.1)
        everyone = psutil.Process(process.pid).children(recursive=True)

        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()

    assert code == 130
    assert len(everyone) >= 11
    _, alive = psutil.wait_procs(everyone, timeout=10)
    assert alive == []
    assert RunFolder(tmp_path / "run").runner() is None


@contextmanager
def no_room_for(pids: list[int], size: int) -> Iterator[None]:
    """These processes cannot write a file larger than this: what a full disk is to them."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            if psutil.pid_exists(pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


# test_full_disk.py has the other disks of a whole run, tests/unit/training/trainer/test_process_faults.py a trainer's scratch, and
# tests/unit/training/master/test_checkpointing.py pservers without room.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_trainers_and_pservers_without_room_on_their_own_disks_say_so_and_go_on_once_there_is_room(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 1, 20_000)
    donefile = tmp_path / "data" / "20200401" / "00" / "donefile"
    donefile.rename(tmp_path / "donefile")
    run = start(
        values_for(
            tmp_path / "data", slots, "20200401/00", "20200401/00",
            data={"taskBytes": 100_000},
            # The first failure would stop the pass. A trainer that is not heard for a lease would be started again too early.
            master={"config": {"maxFailures": 1, "leaseSeconds": 15}},
        )
    )  # fmt: skip
    store = open_store(run.places.store)
    names = ("ctr-trainer-0", "ctr-trainer-1")

    def complaints() -> list[str]:
        return [each.error for each in run.status.pservers if each.error]

    run.until(lambda: len(run.status.trainers) == 2, 90, "both trainers have joined")
    with no_room_for([run.engine(name).pid for name in names], 20_000):
        (tmp_path / "donefile").rename(donefile)
        # The next processes have room again.
        run.until(
            lambda: {r.name for r in run.session.supervisor.restarts} >= set(names), 90, "both trainers have ended"
        )
    with no_room_for([run.pid("ctr-pserver-0"), run.pid("ctr-pserver-1")], 20_000):
        [said, *_] = run.until(complaints, 90, "a pserver says that there is no room")
        shown = subprocess.run(
            [COMMAND, "status", "--address", run.places.info.master],
            capture_output=True, text=True, check=False, timeout=60,
        ).stdout  # fmt: skip
        assert run.state() == "20200401/00 saving"
        assert published_versions(store) == []
        assert not store.exists(layout.BASE_DONEFILE)
        # Half-written files are nowhere to be seen.
        assert all(store.size(path) > 0 for path in store.walk("output"))
    report = run.finish(150)

    for name in names:
        told = (run.places.folder / "logs" / f"{name}.log").read_text()
        assert "gives back what it holds and ends" in told
        assert "File too large; the trainer's scratch folder must have room and be writable" in told
        assert "Traceback" not in told
    assert "File too large" in said
    assert "File too large" in shown
    adds_up(report, 20_000)
    assert [each["kind"] for each in report["passes"]] == ["base"]
    assert report["live"] == published_versions(store)[0]
    # No table was taken back: the trainers were started again, the master names why they left, and that is all.
    reasons = {each["reason"] for each in report["recoveries"]}
    left = {reason for reason in reasons if re.fullmatch(r"trainer \d+ left: .* File too large; .*", reason)}
    assert reasons - left == {f"{name} exit code 1" for name in names}
    assert len(left) == 2
    assert report["ledger"]["rolledBack"] == 0
    leftovers = [
        name for _, _, names in os.walk(run.places.folder / "store") for name in names if name.startswith(".part-")
    ]
    assert leftovers == []
