"""`local up` or its runner killed (-9) while it starts: no process of the run is left."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml
from _pytest.mark import ParameterSet

from elastic_ctr.operate.local.run_folder import RunFolder, still_running
from pipeline.running import values_for
from pipeline.test_bad_input import below
from pipeline.test_whole_run import COMMAND


def started(folder: Path, processes: int) -> "tuple[subprocess.Popen[bytes], list[psutil.Process]]":
    """`local up` at the moment when so many of its processes are there."""
    (folder / "data").mkdir()
    values = values_for(folder / "data", ["0"], "20200401/00", "20200401/00")
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    up = subprocess.Popen(
        [COMMAND, "local", "up", "-f", folder / "values.yaml", "--dir", folder / "run"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    ends = time.monotonic() + 120
    while len(found := psutil.Process(up.pid).children(recursive=True)) < processes:
        assert time.monotonic() < ends
        assert up.poll() is None
        time.sleep(0.005)
    return up, found


def nothing_is_left(folder: Path, seen: list[psutil.Process]) -> None:
    ends = time.monotonic() + 90
    while still_running(seen) or below(folder / "run"):
        assert time.monotonic() < ends, (still_running(seen), below(folder / "run"))
        time.sleep(0.1)
    assert RunFolder(folder / "run").runner() is None


def at(processes: int) -> ParameterSet:
    """`nightly`: other moments of the same start. test_operating.py kills the runner of a system that stands, too."""
    return pytest.param(processes, marks=pytest.mark.nightly)


@pytest.mark.parametrize("processes", [at(2), 6, at(9), at(13)])
def test_a_runner_killed_while_it_starts_leaves_no_process(tmp_path: Path, processes: int) -> None:
    up, seen = started(tmp_path, processes)
    try:
        seen[0].kill()
        nothing_is_left(tmp_path, seen)
        assert up.wait(60) == 2
    finally:
        up.kill()
        up.wait()


@pytest.mark.parametrize("processes", [at(1), 5])
def test_up_killed_while_it_starts_leaves_no_process(tmp_path: Path, processes: int) -> None:
    up, seen = started(tmp_path, processes)
    up.kill()
    up.wait()

    nothing_is_left(tmp_path, seen)
