"""A training is replaced in the middle of its work: what it has learned is saved once more, or its last checkpoint holds."""

from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.store.versions.published_files import read_checkpoint
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.work.publisher import CheckpointRetention
from training.master.world import LEASE, RECORDS, World, data_of, world

REPLACED = "training local was replaced by ctr-train-b"


def in_mid_pass(folder: Path, **given: Any) -> World:
    """One task of the second pass is trained, another is under way."""
    one = world(folder, **{"handover_seconds": 60, "files": ("one", "two", "three", "four"), **given})
    one.until(lambda: len(one.ledger.passes.all()) == 2)
    one.until_phase(control.TRAIN).report()
    return one


def handed_over(one: World) -> None:
    one.until(lambda: one.coordinator.handover is None)


def last_reason(one: World) -> str:
    return str(one.ledger.recoveries()[-1]["reason"])


def everything_is_trained_once(one: World, tasks: int = 8, epochs: int = 1) -> None:
    counted = one.ledger.passes.counted()
    assert len(one.trained()) == tasks
    assert set(one.trained().values()) == {epochs}
    assert counted["records"] == counted["trained"] + counted["refused"] == tasks * RECORDS
    assert (counted["parked"], counted["repeated"]) == (0, 0)


@pytest.mark.parametrize("servers", [1, 3])
def test_a_training_replaced_in_mid_pass_loses_nothing(tmp_path: Path, servers: int) -> None:
    one = in_mid_pass(tmp_path)
    old = one.members()
    trained = one.ledger.passes.counted()["trained"]
    assert 4 * RECORDS < trained < 8 * RECORDS

    one.replace("ctr-train-b", servers)
    handed_over(one)

    assert one.coordinator.generation == 2
    # What was under way was still ended and reported.
    assert trained <= one.ledger.passes.counted()["trained"] < 8 * RECORDS
    one.finish()
    assert [each["reason"] for each in one.ledger.recoveries()] == [REPLACED]
    assert one.ledger.passes.counted()["rolledBack"] == 0
    assert all(each.gone for each in old)
    everything_is_trained_once(one)


def test_members_of_the_new_training_wait_and_those_of_the_old_get_nothing_but_the_save(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    begun = len(one.leases)
    one.replace("ctr-train-b", 3)
    new_pserver, new_trainer = one.pservers[-1], one.trainers[-1]

    orders, reply = new_pserver.sync(), new_trainer.join()
    handed_over(one)

    assert (orders.start, orders.generation, orders.leave) == (False, 0, False)
    assert (reply.verdict, reply.reason) == (
        control.JoinReply.WAIT,
        "waits for training local, which is saved once more",
    )
    assert [phase for _, phase in one.leases[begun:]] == [control.SAVE]


def test_an_idle_member_that_is_not_ending_saves_as_well(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)
    for each in one.members():
        each.leaving = False

    one.finish()

    assert one.ledger.passes.counted()["rolledBack"] == 0
    everything_is_trained_once(one)


def test_a_dead_training_holds_the_new_one_up_for_a_lease_and_no_longer(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    done = one.ledger.passes.counted()["trained"]
    one.pservers, one.trainers = [], []
    one.replace("ctr-train-b", 3)
    replaced_at = one.now

    handed_over(one)

    assert one.now - replaced_at < LEASE
    assert last_reason(one) == f"{REPLACED}, and was not saved once more: pserver 0, 1 of 2 is gone"
    assert one.ledger.passes.counted()["rolledBack"] == done - 4 * RECORDS > 0
    one.finish()
    everything_is_trained_once_at_least(one)


def everything_is_trained_once_at_least(one: World) -> None:
    """Also after a task was lost with its trainer: it is trained again."""
    counted = one.ledger.passes.counted()
    assert set(one.trained().values()) == {1}
    assert counted["records"] == counted["trained"] == 8 * RECORDS


def test_without_a_trainer_nothing_is_saved_and_the_new_training_begins_after_a_lease(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.trainers = []
    one.replace("ctr-train-b", 3)
    replaced_at = one.now

    handed_over(one)

    assert one.now - replaced_at < LEASE
    assert last_reason(one) == f"{REPLACED}, and was not saved once more: no trainer is left"
    one.finish()
    everything_is_trained_once_at_least(one)


def test_a_task_that_does_not_end_in_time_ends_the_handover(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path, handover_seconds=20)
    hangs = one.until_phase(control.TRAIN)
    one.trainers.remove(hangs)
    one.replace("ctr-train-b", 3)

    while one.coordinator.handover is not None:
        hangs.renew(running=True)
        one.turn()

    assert last_reason(one) == f"{REPLACED}, and was not saved once more: it was not done within 20 s"
    one.finish()
    everything_is_trained_once_at_least(one)


def test_a_pserver_that_is_lost_meanwhile_ends_the_handover_at_once(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)
    one.pservers[1].restart()

    orders = one.pservers[1].sync()

    assert orders.leave
    assert one.coordinator.handover is None
    assert last_reason(one).startswith(f"{REPLACED}, and was not saved once more: pserver 1 was replaced by")
    one.finish()
    everything_is_trained_once_at_least(one)


def test_a_save_that_fails_ends_the_handover(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)
    saver = next(t for t in one.trainers)
    one.until_phase(control.SAVE)

    saver.report(error="no room on the disk")

    assert last_reason(one).endswith("not saved once more: a save failed halfway: no room on the disk")
    one.finish()
    everything_is_trained_once_at_least(one)


@pytest.mark.parametrize("rounds", range(12))
def test_a_master_that_restarts_meanwhile_goes_on_with_it(tmp_path: Path, rounds: int) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)
    for _ in range(rounds):
        one.turn()

    one.start_master()
    one.finish()

    assert [each["reason"] for each in one.ledger.recoveries()] == [REPLACED]
    assert one.ledger.passes.counted()["rolledBack"] == 0
    everything_is_trained_once(one)


@pytest.mark.parametrize("stage", ["ordered", "begun", "saved", "exported"])
def test_a_pass_that_is_being_saved_ends_its_own_save(tmp_path: Path, stage: str) -> None:
    one = world(tmp_path, handover_seconds=60, data=data_of(end="20200401/02"))
    one.until(
        lambda: (
            len(one.ledger.passes.all()) == 2 and (save := one.ledger.saves.of(2)) is not None and save.stage == stage
        )
    )

    one.replace("ctr-train-b", 3)
    handed_over(one)

    assert [each.state for each in one.ledger.passes.all()][:2] == ["done", "done"]
    assert last_reason(one) == REPLACED
    one.finish()
    assert one.ledger.passes.counted()["rolledBack"] == 0
    # A delta's checkpoint comes before it: as after any recovery, the next one stands on the version that it follows.
    assert [v["state"] for v in one.ledger.saves.versions()] == ["published", "abandoned", "published"]
    everything_is_trained_once(one, tasks=6)


def test_a_loss_of_all_members_after_the_checkpoint_costs_the_version_alone(tmp_path: Path) -> None:
    one = world(tmp_path, handover_seconds=60)
    one.until(
        lambda: (
            len(one.ledger.passes.all()) == 2
            and (save := one.ledger.saves.of(2)) is not None
            and save.stage == "exported"
        )
    )
    one.pservers, one.trainers = [], []
    one.replace("ctr-train-b", 3)

    handed_over(one)

    assert last_reason(one) == REPLACED
    assert one.ledger.passes.counted()["rolledBack"] == 0
    one.finish()
    everything_is_trained_once(one, tasks=4)


def test_a_training_that_is_replaced_again_meanwhile_is_left_at_once(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)

    one.replace("ctr-train-c", 1)

    assert one.coordinator.handover is None
    assert last_reason(one) == "training ctr-train-b was replaced by ctr-train-c"
    one.finish()
    everything_is_trained_once_at_least(one)


def test_a_training_with_nothing_to_lose_is_left_at_once(tmp_path: Path) -> None:
    one = world(tmp_path, handover_seconds=60)
    one.until_phase(control.CHECK)

    one.replace("ctr-train-b", 3)

    assert one.coordinator.handover is None
    assert last_reason(one) == REPLACED


def test_a_pod_that_is_ending_in_a_training_that_goes_on_leaves_at_once(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    trainer, pserver = one.trainers[1], one.pservers[1]
    trainer.leaving = pserver.leaving = True
    if trainer.task is not None:
        trainer.report()

    trainer.step()
    orders = pserver.sync()

    assert trainer.gone
    assert pserver.gone
    assert not orders.leave
    assert orders.leave_timeout_seconds == 30


def test_a_later_loss_goes_back_to_the_middle_of_the_pass_and_keeps_what_was_saved(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path, epochs=2)
    one.until(lambda: (current := one.ledger.passes.current()) is not None and current.epoch == 2)
    one.until_phase(control.TRAIN).report()
    one.replace("ctr-train-b", 3)
    handed_over(one)
    kept = {task.id: (task.state, task.trained) for task in one.ledger.tasks.of(2)}
    counted = one.ledger.passes.counted()
    one.until_state("evaluating")

    one.pservers[-1].restart()
    one.pservers[-1].sync()

    current = one.ledger.passes.current()
    assert current is not None
    assert (current.state, current.epoch) == ("training", 2)
    assert {task.id: (task.state, task.trained) for task in one.ledger.tasks.of(2)} == kept
    assert {state for state, _ in kept.values()} == {"done", "todo"}
    after = one.ledger.passes.counted()
    assert after["trained"] == counted["trained"]
    # A record counts once a task, whatever the rounds.
    assert after["rolledBack"] == RECORDS * sum(state == "todo" for state, _ in kept.values())
    one.finish()
    everything_is_trained_once(one, epochs=2)


def test_the_pass_that_is_over_goes_back_to_its_middle_where_it_made_no_checkpoint(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path, config={"checkpoint_per_pass": 10}, data=data_of(end="20200401/03"))
    one.replace("ctr-train-b", 3)
    one.until(lambda: [p.state for p in one.ledger.passes.all()][:3] == ["done", "done", "training"])
    versions = [v["id"] for v in one.ledger.saves.versions()]

    one.pservers[-1].restart()
    one.pservers[-1].sync()

    assert [p.state for p in one.ledger.passes.all()][1:3] == ["training", "checked"]
    assert [v["state"] for v in one.ledger.saves.versions()] == ["published", "abandoned"]
    one.finish()
    assert [v["parent"] for v in one.ledger.saves.versions()][2] == versions[0]
    everything_is_trained_once(one, tasks=16)


def test_the_next_whole_checkpoint_supersedes_the_one_in_mid_pass(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path, config={"keep_checkpoints": 1}, data=data_of(end="20200401/02"))
    one.replace("ctr-train-b", 3)
    handed_over(one)
    whole, middle = one.ledger.saves.checkpoints()

    assert (whole["mid"], middle["mid"]["state"]) == (None, "training")
    CheckpointRetention(one.coordinator.lock, one.store, 1, lambda: one.now).sweep()
    assert [each["name"] for each in one.ledger.saves.checkpoints()] == [whole["name"], middle["name"]]
    assert read_checkpoint(one.store, middle["name"]).pass_ordinal == 2
    one.until(lambda: len(one.ledger.passes.all()) == 3)
    assert [each["mid"] for each in one.ledger.saves.checkpoints()] == [None]
    assert one.ledger.saves.checkpoints()[0]["name"] not in (whole["name"], middle["name"])


def test_a_stopped_pass_begins_before_the_checkpoint_in_its_middle(tmp_path: Path) -> None:
    one = in_mid_pass(tmp_path)
    one.replace("ctr-train-b", 3)
    handed_over(one)
    worker = one.until_phase(control.TRAIN, trainer=2)
    while not one.reason():
        if worker.task is not None:
            worker.report(error="the disk is full")
        else:
            # A failed task is given out again after a pause.
            one.now += 1
            worker.lease()

    one.start_master()

    assert [each["mid"] for each in one.ledger.saves.checkpoints()] == [None]
    one.finish()
    everything_is_trained_once_at_least(one)
