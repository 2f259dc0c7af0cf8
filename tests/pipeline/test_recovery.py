"""Every role is lost in turn, in the middle of its work; the result is right and the ledger adds up."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.running import TWO_SHARDS, Run, values_for
from pipeline.test_whole_run import synthetic


def is_up(run: Run, name: str) -> bool:
    return name in run.session.supervisor.pids()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def kill_with_its_child(run: Run, name: str) -> None:
    """Kill a parent; its child must end with it."""
    child = run.child(name)
    run.kill(name)
    ends = time.monotonic() + 10
    while not has_ended(child):
        assert time.monotonic() < ends, f"the child of {name} outlived it"
        time.sleep(0.05)


def adds_up(report: dict[str, Any], records: int) -> None:
    ledger = report["ledger"]
    assert ledger["records"] == records
    assert ledger["trained"] + ledger["refused"] + ledger["parked"] == records
    assert ledger["refused"] == ledger["parked"] == 0


@pytest.mark.timeout(420)
def test_every_role_is_killed_in_turn_with_its_child_and_the_last_version_is_right(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 6, 72_000)
    values = values_for(
        tmp_path / "data", slots, "20200401/00", "20200401/05", data={"taskBytes": 400_000}, cube=TWO_SHARDS
    )
    run = start(values)

    run.until(lambda: run.state() == "20200401/00 training", 90, "the first hour is trained")
    kill_with_its_child(run, "ctr-trainer-0")
    run.until(lambda: run.state().startswith("20200401/01"), 90, "the second hour, with a trainer lost")
    run.kill("ctr-master-0")
    run.until(
        lambda: run.state() == "20200401/02 training" and run.trained() > 24_000,
        120,
        "some of the third hour is trained, with the master lost",
    )
    generation = run.generation()
    assert generation == 1, "a restarted master does not raise the generation"
    sleeper = run.engine("ctr-trainer-1")
    os.kill(sleeper.pid, signal.SIGSTOP)
    kill_with_its_child(run, "ctr-pserver-1")
    run.until(lambda: run.generation() == generation + 1, 60, "a lost pserver is a new generation")
    assert not has_ended(sleeper)
    os.kill(sleeper.pid, signal.SIGCONT)
    run.until(lambda: has_ended(sleeper), 60, "a trainer that slept over the loss ends to rejoin")
    run.until(lambda: run.session.live is not None, 120, "a version goes live")
    for name, kill in (
        ("ctr-cube-s0-0", Run.kill),
        ("ctr-cube-s1-0", kill_with_its_child),
        ("ctr-cube-transfer-0", Run.kill),
        ("ctr-serving-0", kill_with_its_child),
        ("ctr-cube-builder-0", Run.kill),
    ):
        kill(run, name)
        run.until(partial(is_up, run, name), 20, f"{name} is back")
    report = run.finish(200)

    adds_up(report, 72_000)
    assert report["ledger"]["rolledBack"] > 0
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    assert report["live"] == max(each["version"] for each in report["passes"])
    roles = {each["role"] for each in report["recoveries"]}
    assert roles >= {
        "master",
        "trainer",
        "pserver",
        "cube-server",
        "cube-transfer",
        "serving",
        "cube-builder",
    }


# The test before loses a pserver, too, and test_stopped_and_damaged.py loads a checkpoint after one. That calls of an ended generation are
# refused is in tests/unit/training/master.
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_after_a_pservers_loss_the_table_is_the_checkpoints_and_a_sleeping_trainer_changes_nothing(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 3, 60_000)
    run = start(values_for(tmp_path / "data", slots, "20200401/00", "20200401/02", data={"taskBytes": 300_000}))
    run.until(lambda: run.state() == "20200401/01 training", 120, "the second hour is trained")

    sleeper = run.engine("ctr-trainer-0")
    os.kill(sleeper.pid, signal.SIGSTOP)
    server = run.engine("ctr-pserver-0")
    server.kill()
    run.until(lambda: run.generation() == 2, 30, "the loss is declared")
    run.until(lambda: run.status.ready, 60, "the checkpoint is loaded and counted")
    os.kill(sleeper.pid, signal.SIGCONT)
    run.until(lambda: has_ended(sleeper), 60, "the sleeper ends to rejoin")
    report = run.finish(150)

    adds_up(report, 60_000)
    store = open_store(run.places.store)
    log = (run.places.folder / "logs" / "ctr-master-0.log").read_text()
    [loaded] = [line for line in log.splitlines() if "is loaded:" in line]
    name = loaded.split("checkpoint ")[1].split(" ")[0]
    assert f"is loaded: {sum_of_base(store)} rows" in loaded, name
    assert report["parity"]["maxAbsDiff"] <= 1e-5


def sum_of_base(store: object) -> int:
    """Rows of the first hour's base: what the checkpoint after it holds."""
    first = published_versions(store)[0]  # type: ignore[arg-type]
    return read_version(store, first).keys  # type: ignore[arg-type]
