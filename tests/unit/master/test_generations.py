from pathlib import Path

import pytest

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.retention import superseded
from elastic_ctr.versions.manifest import read_version
from master.world import RECORDS, World, data_of, world


def test_a_new_pserver_process_raises_the_generation_and_rolls_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes()) == 2)
    worker = one.until_phase(control.TRAIN)
    worker.report()
    before = one.coordinator.counted()["trained"]

    one.pservers[1].restart()
    one.pservers[1].sync()

    counted = one.coordinator.counted()
    assert one.coordinator.generation == 2
    assert counted["trained"] == 2 * RECORDS
    assert counted["rolledBack"] == before - 2 * RECORDS > 0
    one.finish()
    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted()["trained"] == 4 * RECORDS


def test_the_end_of_a_server_process_is_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_phase(control.TRAIN)

    one.pservers[0].lost = True
    one.pservers[0].sync()

    assert one.coordinator.generation == 2
    assert one.ledger.recoveries()[-1]["reason"] == "the server process of pserver 0 has ended"
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_caller_of_an_old_generation_is_told_to_rejoin(tmp_path: Path) -> None:
    one = world(tmp_path)
    old = one.until_phase(control.TRAIN)
    one.pservers[0].restart()
    one.pservers[0].sync()

    answers = [
        one.coordinator.renew(control.RenewRequest(trainer_id=old.id, generation=1)),
        one.coordinator.initialised_by(old.member()),
        one.coordinator.report(control.TaskResult(trainer_id=old.id, generation=1, attempt=old.task.attempt)),  # type: ignore[union-attr]
    ]

    assert [(each.rejoin, each.reason) for each in answers] == [(True, "generation 1 is over, this is 2")] * 3


def test_a_pserver_replaced_before_anybody_initialised_costs_no_generation(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.pservers[0].sync()

    one.pservers[0].restart()
    one.pservers[0].sync()

    assert one.coordinator.generation == 1


def test_versions_after_the_checkpoint_are_abandoned_and_the_next_delta_stands_on_what_it_follows(
    tmp_path: Path,
) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"), config={"checkpoint_per_pass": 4})
    one.until(lambda: len(one.ledger.versions()) == 3)
    base, *lost = [v["id"] for v in one.ledger.versions()]

    one.pservers[0].restart()
    one.pservers[0].sync()

    states = {v["id"]: v["state"] for v in one.ledger.versions()}
    assert states == {base: "published", **dict.fromkeys(lost, "abandoned")}
    one.finish()
    again = next(v for v in one.ledger.versions() if v["id"] > lost[-1])
    assert again["parent"] == base
    assert read_version(one.store, again["id"]).parent == base
    assert set(one.trained().values()) == {1}


def test_a_pserver_started_again_after_the_end_is_no_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    for _ in range(3):
        one.pservers[0].restart()
        assert one.pservers[0].sync().leave
        one.turn()

    assert one.coordinator.generation == 1
    assert one.ledger.recoveries() == []


def test_a_server_process_that_ends_after_the_end_is_no_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    one.pservers[0].lost = True

    assert one.pservers[0].sync().leave
    assert one.coordinator.generation == 1
    assert one.ledger.recoveries() == []


def replaced(one: World, servers: int) -> None:
    """What an upgrade with another number of pservers does: a master with new settings, new pods, the old ones still there."""
    one.training, one.servers = "ctr-train-b", servers
    one.start_master()
    one.start_training()


@pytest.mark.parametrize("servers", [1, 3])
def test_another_training_takes_over_from_the_last_checkpoint_with_its_own_number_of_pservers(
    tmp_path: Path, servers: int
) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes()) == 2)
    one.until_phase(control.TRAIN).report()
    pservers, trainers = one.pservers, one.trainers

    replaced(one, servers)

    assert one.ledger.recoveries()[-1]["reason"] == "training local was replaced by ctr-train-b"
    one.finish()
    assert one.coordinator.generation == 2
    assert all(each.gone for each in pservers)
    assert all(each.gone for each in trainers)
    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted()["trained"] == 4 * RECORDS


def test_members_of_a_replaced_training_are_told_to_leave_and_change_nothing(tmp_path: Path) -> None:
    one = world(tmp_path)
    old = one.until_phase(control.TRAIN)
    replaced(one, 2)

    orders = one.pservers[0].sync()
    rejoined = one.coordinator.renew(control.RenewRequest(trainer_id=old.id, generation=1))
    reply = one.coordinator.join(old.name, old.id, "local")

    assert (orders.leave, orders.wrong_training) == (True, True)
    assert orders.reason == "training local was replaced by ctr-train-b"
    assert rejoined.rejoin
    assert (reply.verdict, reply.wrong_training) == (control.JoinReply.LEAVE, True)
    assert reply.reason == "training local was replaced by ctr-train-b"
    assert one.coordinator.pservers.get(0) is None


def test_a_training_that_is_over_is_not_repeated_under_another_name(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    replaced(one, 3)

    assert one.coordinator.generation == 1
    assert one.coordinator.finished
    assert one.pservers[-1].sync().leave


def test_sample_lines_that_are_forgotten_are_not_missed_by_a_recovery(tmp_path: Path) -> None:
    quiet = {f"20200401/0{hour}/{name}" for hour in (3, 4, 6) for name in ("one", "two")}
    one = world(tmp_path, data=data_of(end="20200401/07"), keyless=quiet)
    one.until(lambda: len(one.ledger.passes()) == 6)
    for name in superseded(one.ledger.checkpoints(), keep=1):
        one.ledger.remove_checkpoint(name)
    one.until(lambda: len(one.ledger.passes()) == 7)
    one.until_phase(control.TRAIN)
    assert [bool(one.ledger.samples(ordinal)) for ordinal in (1, 2, 3)] == [False, False, True]

    one.pservers[0].restart()
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted()["trained"] == 16 * RECORDS
    assert {version["state"] for version in one.ledger.versions()} <= {"published", "abandoned"}
