"""A bad hour and a damaged checkpoint stop nothing for good: real processes, and none of them is restarted."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_checkpoint
from pipeline.running import Run, values_for
from pipeline.test_recovery import adds_up
from pipeline.test_whole_run import COMMAND, synthetic


def pids(run: Run) -> dict[str, int]:
    return run.session.supervisor.pids()


@pytest.mark.timeout(400)
def test_a_bad_hour_is_retried_and_a_damaged_checkpoint_is_passed_by(tmp_path: Path, start: Callable[..., Run]) -> None:
    slots = synthetic(tmp_path / "data", 4, 12_000)
    hours = tmp_path / "data" / "20200401"
    third, fourth = (hours / name / "donefile" for name in ("02", "03"))
    for each in (third, fourth):
        each.unlink()
    bad = next(file for file in sorted((hours / "02").iterdir()) if file.name.startswith("part"))
    lines = bad.read_bytes()
    bad.write_bytes(b"1 0 broken\n" * 500)
    third.touch()
    values = values_for(
        tmp_path / "data", slots, "20200401/00", "20200401/03",
        data={"sleepSeconds": 5}, trainer={"replicas": 1}, pserver={"replicas": 1},
    )  # fmt: skip
    run = start(values)

    run.until(lambda: run.state() == "20200401/02 stopped", 150, "the bad hour is stopped")
    run.until(lambda: run.session.live is not None, 90, "a version is live")
    before = pids(run)
    current = run.status.current
    assert current is not None
    reason = current.reason
    assert f"20200401/02/{bad.name}" in reason
    assert f"500 of {3_000 - len(lines.splitlines()) + 500} lines were refused" in reason
    assert "no_colon 500" in reason
    assert "1 0 broken" in reason
    assert run.trained() == 6_000, "nothing of the bad hour is trained"
    bad.write_bytes(lines)
    retried = subprocess.run(
        [
            COMMAND, "pass", "retry", "20200401/02", "--address", run.places.info.master,
            "--token-file", str(run.places.folder / "tokens" / "operate"),
        ],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert retried.returncode == 0, retried.stderr
    run.until(lambda: run.state() == "20200401/03 waiting", 120, "the mended hour is trained")
    assert pids(run) == before

    damaged = damage_the_newest_checkpoint(run)
    run.engine("ctr-pserver-0").kill()
    fourth.touch()
    report = run.finish(200)

    adds_up(report, 12_000)
    assert report["ledger"]["rolledBack"] > 0
    assert [each.name for each in run.status.damaged_checkpoints] in ([damaged], [])
    assert any(damaged in each["reason"] and each["role"] == "store" for each in report["recoveries"])
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    assert pids(run) == {name: pid for name, pid in before.items() if name in pids(run)}


def damage_the_newest_checkpoint(run: Run) -> str:
    """One byte of its table becomes another, as on a disk that fails."""
    store = open_store(run.places.store)
    names = [name.rstrip("/") for name in store.list(layout.CHECKPOINTS)]
    newest = max(names, key=lambda name: read_checkpoint(store, name).created_at)
    entry = next(each for each in read_checkpoint(store, newest).files if each.bytes > 100)
    file = store.local_path(entry.path)
    assert file is not None
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)
    return newest
