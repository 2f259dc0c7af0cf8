"""A training is replaced in mid pass by one with another number of pservers, as an upgrade does it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_ctr.config.load import dump, settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.plan import RunPlaces, roles
from elastic_ctr.operate.local.processes import Supervisor
from pipeline.running import Run, merged, values_for
from pipeline.test_recovery import adds_up, has_ended
from pipeline.test_whole_run import synthetic
from ports import free_ports

GRACE_SECONDS = 60
MASTER = "ctr-master-0"


def of_training(run: Run) -> list[str]:
    return [role.name for role in run.session.supervisor.roles if role.command in ("pserver", "trainer")]


def tell_master(run: Run, **changed: object) -> None:
    """Settings of the master that starts next."""
    every = run.session.supervisor.roles
    every[:] = [
        replace(role, file=role.file.model_copy(update=changed)) if role.name == MASTER else role for role in every
    ]
    [master] = [role for role in every if role.name == MASTER]
    file = run.places.config_file(master)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump(master.file))


@contextlib.contextmanager
def replaced(run: Run, values: dict[str, object], training: str, pservers: int) -> Iterator[Supervisor]:
    """The old pods are told to end, the master begins with other settings, the new pods with them."""
    port = free_ports(100)
    others = {
        "pserver": {"replicas": pservers, "config": {"port": port, "adminPort": port + 80}},
        "trainer": {"config": {"adminPort": port + 90}},
    }
    places = RunPlaces(run.places.folder / training, settings(Values, merged(values, others), "values.yaml"))
    shared = {"store": run.places.store, "training": training}
    new = Supervisor(
        places,
        [
            replace(role, file=role.file.model_copy(update={"auth": run.places.auth(type(role.file)), **shared}))
            for role in roles(places)
            if role.command in ("pserver", "trainer")
        ],
    )
    for role in new.roles:
        file = places.config_file(role)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump(role.file))
    tell_master(run, training=training, pservers=pservers)
    os.kill(run.pid(MASTER), signal.SIGTERM)
    for name in of_training(run):
        # What is deleted is not started again.
        run.session.supervisor._all[name].done = True
        os.kill(run.pid(name), signal.SIGTERM)
    new.start()
    try:
        yield new
    finally:
        new.stop()


# tests/unit/training/master/test_handover.py replaces a training in mid pass, tests/cluster/test_upgrade.py in a cluster, and
# tests/contract/test_trainer_ends.py ends a trainer that has tasks.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_trainer_that_is_told_to_end_and_a_training_that_is_replaced_in_mid_pass_lose_nothing(
    tmp_path: Path,
) -> None:
    slots = synthetic(tmp_path / "data", 3, 90_000)
    values = values_for(tmp_path / "data", slots, "20200401/00", "20200401/02", data={"taskBytes": 150_000})
    # Members of the old training must be heard within a lease, on however busy a machine.
    values["master"]["config"]["leaseSeconds"] = 15
    run = Run(tmp_path / "run", values)
    tell_master(run, handover_seconds=GRACE_SECONDS - 10)
    with run.session.running():
        run.until(lambda: run.state() == "20200401/00 training" and run.trained() > 0, 90, "the first hour is trained")
        ending = run.engine("ctr-trainer-0")
        os.kill(run.pid("ctr-trainer-0"), signal.SIGTERM)
        run.until(lambda: has_ended(ending), 60, "the trainer has given its tasks back")
        run.until(
            lambda: run.state() == "20200401/01 training" and run.trained() > 33_000,
            120,
            "some of the second hour is trained",
        )
        trained = run.trained()
        old = {name: run.session.supervisor._all[name].process for name in of_training(run)}

        with replaced(run, values, "ctr-train-b", 3):
            run.until(
                lambda: all(each is not None and each.poll() is not None for each in old.values()),
                GRACE_SECONDS,
                "the old pods have left within their grace",
            )
            assert run.until(lambda: run.generation() == 2 and run.trained(), 30, "the new training begins") >= trained
            assert run.state() == "20200401/01 training"
            report = run.finish(150)

    adds_up(report, 90_000)
    assert report["ledger"]["rolledBack"] == 0
    assert report["ledger"]["repeated"] == 0
    assert not [each["reason"] for each in report["recoveries"] if "lost task" in each["reason"]]
    assert [each["reason"] for each in report["recoveries"] if each["role"] == "training"] == [
        "training local was replaced by ctr-train-b"
    ]
    assert {name: each.returncode for name, each in old.items() if each is not None} == dict.fromkeys(old, 143)
    log = (run.places.folder / "logs" / f"{MASTER}.log").read_text()
    assert "checkpoint 20200401-01-g1 is committed" in log
    assert "checkpoint 20200401-01-g1 is loaded" in log
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    assert report["live"] == max(each["version"] for each in report["passes"])
