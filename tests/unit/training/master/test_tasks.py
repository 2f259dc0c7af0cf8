from pathlib import Path

import pytest

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.members import Lease
from training.master.world import LEASE, RECORDS, Trainer, World, data_of, world


def test_a_lease_is_over_once_its_end_has_passed() -> None:
    lease = Lease(1, "save:1", began=0.0, ends=100.0, longest=1000.0)

    assert [lease.over(now) for now in (99.0, 100.0, 100.1)] == [False, False, True]
    assert not lease.overdue(100.1)


def test_a_lease_that_is_renewed_for_ever_is_over_after_the_longest_time() -> None:
    lease = Lease(1, "save:1", began=0.0, ends=1e9, longest=1000.0)

    assert [lease.over(now) for now in (1000.0, 1000.1)] == [False, True]
    assert lease.overdue(1000.1)


def test_the_task_of_a_lost_trainer_goes_to_another_and_counts_as_repeated_once_it_was_running(tmp_path: Path) -> None:
    one = world(tmp_path)
    lost = one.until_phase(control.TRAIN)
    assert lost.task is not None
    task = lost.task.id
    lost.work()

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.trained()[task] == 2
    assert one.ledger.passes.counted()["repeated"] == RECORDS
    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS
    assert one.ledger.recoveries()[0]["role"] == "trainer"


def test_a_lost_task_that_was_not_running_yet_is_not_counted_as_repeated(tmp_path: Path) -> None:
    one = world(tmp_path)
    lost = one.until_phase(control.TRAIN)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["repeated"] == 0


def test_a_task_lost_while_it_was_checked_is_not_counted_as_repeated(tmp_path: Path) -> None:
    one = world(tmp_path)
    lost = one.until_phase(control.CHECK)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.ledger.passes.counted()["repeated"] == 0


def test_a_renewed_lease_outlives_its_time(tmp_path: Path) -> None:
    one = world(tmp_path)
    holder = one.until_phase(control.TRAIN)

    for _ in range(5):
        one.now += 5
        assert not holder.renew().rejoin
        one.coordinator.tick()

    assert not holder.report().rejoin


def test_a_trainer_whose_lease_ran_out_is_told_to_rejoin_and_its_result_is_not_taken(tmp_path: Path) -> None:
    one = world(tmp_path)
    slow = one.until_phase(control.TRAIN)
    slow.work()
    one.now += LEASE
    one.coordinator.tick()

    answer = slow.report()

    assert answer.rejoin
    assert "lease" in answer.reason


def test_a_task_of_a_killed_trainer_is_open_again_when_its_pod_has_another_process(tmp_path: Path) -> None:
    one = world(tmp_path)
    killed = one.until_phase(control.TRAIN)
    assert killed.task is not None
    lost, before, began = killed.task.id, killed.id, one.now
    killed.renew(running=True)

    killed.start()
    killed.join()

    [task] = [each for each in one.ledger.tasks.of(1) if each.id == lost]
    assert (task.state, task.lost_leases, one.now) == ("todo", 1, began)
    assert one.ledger.recoveries()[-1]["reason"] == f"trainer {before} lost task {lost}"
    assert one.ledger.passes.counted()["repeated"] == task.records
    assert before not in one.coordinator.trainers()
    one.finish()
    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS


def test_a_task_that_is_renewed_for_ever_is_taken_away_after_the_longest_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"task_timeout_seconds": 60.0})
    stuck = one.until_phase(control.TRAIN)

    answers = []
    for _ in range(14):
        one.now += 5
        answers.append(stuck.renew().rejoin)
        one.coordinator.tick()
        if answers[-1]:
            break

    assert answers.index(True) * 5 >= 60


def test_the_absence_of_the_master_does_not_count_for_a_task(tmp_path: Path) -> None:
    one = world(tmp_path, config={"task_timeout_seconds": 60.0})
    trainer = one.until_phase(control.TRAIN)
    one.hang(trainer, 50)
    one.now += 3600
    one.start_master()
    one.coordinator.tick()

    answer = trainer.report()

    assert not answer.rejoin
    one.finish()
    assert [task.failures for task in one.ledger.tasks.of(1)] == [0, 0]
    assert set(one.trained().values()) == {1}


def test_a_restart_of_the_master_gives_a_task_that_hangs_no_more_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"task_timeout_seconds": 60.0})
    stuck = one.until_phase(control.TRAIN)
    one.hang(stuck, 50)
    one.start_master()

    assert one.hang(stuck, 20).rejoin


def held(one: World, trainer: Trainer, *tasks: control.Task, running: str = "") -> bool:
    """Renewals over 50 s; whether all are still held after them."""
    for _ in range(10):
        one.now += 5
        request = control.RenewRequest(
            trainer_id=trainer.id, generation=trainer.generation, attempts=[t.attempt for t in tasks], running=running
        )
        answer = one.coordinator.renew(request)
        one.coordinator.tick()
        if answer.rejoin:
            return False
    return True


def leased_ahead(one: World, phase: int) -> tuple[Trainer, control.Task, control.Task]:
    """The only trainer with a task and the one that it has leased ahead."""
    del one.trainers[1]
    trainer = one.until_phase(phase)
    first = trainer.task
    trainer.lease(prefetch=True)
    following, trainer.task = trainer.task, first
    assert first is not None
    assert following is not None
    assert first.id != following.id
    return trainer, first, following


@pytest.mark.parametrize("phase", [control.TRAIN, control.EVALUATE])
def test_a_task_that_was_leased_ahead_has_its_longest_time_from_its_turn_on(tmp_path: Path, phase: int) -> None:
    one = world(tmp_path, config={"task_timeout_seconds": 60.0})
    trainer, first, following = leased_ahead(one, phase)

    assert held(one, trainer, first, following)
    trainer.report()
    assert held(one, trainer, following), "50 s of 60 are over since its turn came, and 100 s since it was leased"

    assert not held(one, trainer, following)
    assert [task.failures for task in one.ledger.tasks.of(1)] == [0, 1]


def test_the_longest_time_begins_anew_when_a_task_begins_to_be_trained_and_only_then(tmp_path: Path) -> None:
    one = world(tmp_path, config={"task_timeout_seconds": 60.0})
    trainer, first, following = leased_ahead(one, control.TRAIN)

    assert held(one, trainer, first, following)
    assert held(one, trainer, first, following, running=first.attempt)
    assert not held(one, trainer, first, following, running=first.attempt)

    assert [task.failures for task in one.ledger.tasks.of(1)] == [1, 0]


def test_a_trainer_that_leaves_in_order_gives_its_task_back_without_a_failure(tmp_path: Path) -> None:
    one = world(tmp_path)
    leaver = one.until_phase(control.TRAIN)
    assert leaver.task is not None

    one.coordinator.leave(leaver.member())

    task = next(t for t in one.ledger.tasks.of(1) if t.id == leaver.task.id)
    assert (task.state, task.failures) == ("todo", 0)
    assert len(one.coordinator.trainers()) == 1


def test_a_task_is_given_to_the_trainer_that_has_it_converted(tmp_path: Path) -> None:
    one = world(tmp_path, files=["one", "two", "three"])
    one.until_phase(control.TRAIN)
    asking = one.trainers[1]
    one.until(lambda: asking.joined and asking.task is None)
    todo = [task.id for task in one.ledger.tasks.of(1, "todo")]

    reply = one.coordinator.lease(
        control.LeaseRequest(trainer_id=asking.id, generation=asking.generation, converted=[todo[-1]])
    )

    assert reply.task.id == todo[-1]


def test_no_check_and_no_save_is_given_ahead(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_state("checking")
    one.until(lambda: one.trainers[0].joined)

    reply = one.trainers[0].lease(prefetch=True)

    assert reply.verdict == control.LeaseReply.WAIT


def test_a_task_that_fails_too_often_is_parked_and_stops_the_pass_with_a_sentence(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 2})
    for _ in range(2):
        failing = one.until_phase(control.CHECK)
        failing.report(error="the file is damaged")
        one.until(lambda: one.coordinator.initialised)
    one.until_state("stopped")

    reason = one.reason()

    assert "failed 2 times, the last time: the file is damaged" in reason
    assert "run `elastic-ctr pass retry 20200401/00`" in reason
    assert [task.state for task in one.ledger.tasks.of(1)].count("parked") == 1


def test_a_task_that_has_failed_is_given_out_again_after_a_longer_pause_each_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 4})
    del one.trainers[1]
    failing = one.until_phase(control.CHECK)
    assert failing.task is not None
    name, pauses = failing.task.id, []
    for _ in range(3):
        failing.report(error="the broker starts")
        failed_at = one.now
        # Its other tasks are given out meanwhile, and reported.
        while failing.lease().verdict != control.LeaseReply.WORK or failing.task.id != name:
            if failing.task is not None:
                failing.report()
            one.now += 0.1
        pauses.append(round(one.now - failed_at))

    assert pauses == [1, 2, 4]
    assert one.reason() == ""


def test_a_pass_taken_up_again_gives_each_task_all_its_attempts(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 2})
    for _ in range(2):
        one.until_phase(control.TRAIN).report(error="killed")
    one.start_master()

    one.until_phase(control.TRAIN).report(error="killed")

    assert one.reason() == ""


def test_a_record_of_a_task_parked_in_its_second_round_is_trained_and_not_parked(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=2, config={"max_failures": 1})
    one.until(lambda: (current := one.ledger.passes.current()) is not None and current.epoch == 2)
    one.until_phase(control.TRAIN).report(error="killed")

    counted = one.ledger.passes.counted()

    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def test_a_task_finished_after_the_pass_was_stopped_is_counted_all_the_same(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    one.until(lambda: all(t.task is not None and t.task.phase == control.TRAIN for t in one.trainers))
    one.trainers[0].report(error="killed")

    one.trainers[1].report()

    counted = one.ledger.passes.counted()
    assert counted["trained"] == RECORDS
    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def lose(one: World, phase: int, *, train: bool = False) -> str:
    """The first trainer dies without a word over a task, and comes back. Which task."""
    killed = one.until_phase(phase)
    assert killed.task is not None
    task = killed.task.id
    if train:
        killed.work()
    killed.start()
    one.now += LEASE
    one.coordinator.tick()
    return task


def test_a_task_outlives_more_lost_trainers_than_it_may_fail(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 2, "max_lost_leases": 4})
    del one.trainers[1]

    for phase in (control.CHECK, control.EVALUATE):
        lost = [lose(one, phase) for _ in range(3)]
        assert len(set(lost)) == 1
    one.finish()

    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS
    assert set(one.trained().values()) == {1}


def test_a_task_that_ends_every_trainer_that_touches_it_is_parked_with_a_sentence(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_lost_leases": 4})
    del one.trainers[1]

    lost = [lose(one, control.TRAIN, train=True) for _ in range(4)]

    assert len(set(lost)) == 1
    assert f"task {lost[0]} (20200401/00/one) lost its trainer 4 times in a row" in one.reason()
    assert "elastic-ctr pass retry" in one.reason()
    assert [task.state for task in one.ledger.tasks.of(1)] == ["parked", "todo"]


def test_a_task_that_was_done_once_has_all_its_losses_again(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=2, config={"max_lost_leases": 2, "evaluate": False}, data=data_of(end="20200401/00"))
    del one.trainers[1]

    lose(one, control.TRAIN)
    one.until(lambda: (current := one.ledger.passes.current()) is not None and current.epoch == 2)
    lose(one, control.TRAIN)
    one.finish()

    assert one.reason() == ""


def test_losses_and_failures_are_counted_apart(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 2, "max_lost_leases": 2})
    del one.trainers[1]

    lose(one, control.CHECK)
    one.until_phase(control.CHECK).report(error="no luck")

    [task, _] = one.ledger.tasks.of(1)
    assert (task.state, task.failures, task.lost_leases) == ("todo", 1, 1)


def test_trainers_that_leave_in_order_and_recoveries_count_nothing(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1, "max_lost_leases": 1})
    del one.trainers[1]
    for _ in range(3):
        leaver = one.until_phase(control.CHECK)
        one.coordinator.leave(leaver.member())
        leaver.start()
        one.until_phase(control.CHECK)
        one.pservers[0].restart()
        one.pservers[0].sync()

    one.finish()

    assert one.coordinator.generation == 4
    assert set(one.trained().values()) == {1}


FULL = "/scratch/tasks/x.part: No space left on device"


def test_a_task_that_every_trainer_gives_back_for_its_own_disk_stops_the_pass_with_the_reason(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1, "max_lost_leases": 3})
    del one.trainers[1]

    for number in range(3):
        assert one.reason() == "", number
        left = one.until_phase(control.CHECK)
        trainer, task = left.id, left.task
        left.leave(FULL)

    assert task is not None
    assert one.reason().startswith(
        f"task {task.id} (20200401/00/one) lost its trainer 3 times in a row, the last time: trainer {trainer} left: {FULL}; "
    )
    assert "mend that; then run `elastic-ctr pass retry 20200401/00`" in one.reason()
    assert one.ledger.recoveries()[-1]["reason"] == f"trainer {trainer} left: {FULL}"


def test_a_task_given_back_for_a_full_disk_is_done_by_another_trainer_and_counts_no_failure(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1, "max_lost_leases": 2})
    full = one.until_phase(control.TRAIN)
    full.work()

    full.leave(FULL)
    one.trainers.remove(full)
    one.finish()

    assert one.reason() == ""
    assert one.coordinator.generation == 1
    assert one.ledger.passes.counted()["repeated"] == RECORDS
    assert all(each["seconds"] is not None for each in one.ledger.recoveries())


def test_the_first_reason_of_a_stopped_pass_stands(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    one.until(lambda: all(t.task is not None and t.task.phase == control.CHECK for t in one.trainers))
    one.trainers[0].report(error="the first")

    one.trainers[1].report(error="the second")

    assert "the first" in one.reason()


def test_a_task_that_finds_the_store_away_waits_for_it_and_has_not_failed(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1, "max_lost_leases": 1})
    trainer = one.until_phase(control.CHECK)
    trainer.report(error="no space left in the store", store_unavailable=True)

    assert one.coordinator.save_waits.endswith("waits for its source or the store: no space left in the store")
    one.finish()

    assert one.coordinator.save_waits == ""
    assert set(one.trained().values()) == {1}
