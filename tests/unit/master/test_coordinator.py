from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.coordinator import VERIFY
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import published_versions, read_checkpoint, read_version
from master.world import RECORDS, World, data_of

LEASE = 10.5


def world(folder: Path, **given: Any) -> World:
    config = given.pop("config", {})
    made = World(folder, **given)
    made.config = made.config.model_copy(update=config)
    made.start_master()
    return made


def test_two_passes_go_from_their_hours_to_two_versions(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()

    states = [(each.id, each.state) for each in one.ledger.passes()]
    assert states == [("20200401/00", "done"), ("20200401/01", "done")]
    assert [v["kind"] for v in one.ledger.versions()] == ["base", "delta"]
    assert published_versions(one.store) == [v["id"] for v in one.ledger.versions()]
    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted() == {
        "files": 4,
        "records": 4 * RECORDS,
        "trained": 4 * RECORDS,
        "refused": 0,
        "parked": 0,
        "repeated": 0,
        "rolledBack": 0,
    }


def test_when_all_is_done_everybody_is_told_to_leave(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()
    one.turn()
    one.turn()

    assert all(trainer.gone for trainer in one.trainers)
    assert all(pserver.sync().leave for pserver in one.pservers)


def test_no_task_is_trained_before_every_task_of_the_pass_is_checked(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/00"))

    one.finish()

    phases = [phase for task, phase in one.leases if not task.startswith("save:")]
    assert phases == [control.CHECK] * 2 + [control.TRAIN] * 2 + [control.EVALUATE] * 2


def test_each_epoch_is_a_round_over_the_whole_pass(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=3, config={"evaluate": False}, data=data_of(end="20200401/00"))

    one.finish()

    trained = [task for task, phase in one.leases if phase == control.TRAIN]
    assert [sorted(trained[i : i + 2]) for i in (0, 2, 4)] == [sorted(set(trained))] * 3
    assert set(one.trained().values()) == {3}
    assert one.coordinator.counted()["trained"] == 2 * RECORDS


def test_a_file_without_records_is_checked_and_never_trained(tmp_path: Path) -> None:
    one = world(tmp_path, records={"20200401/00/one": 0})

    one.finish()

    assert len(one.trained()) == 3
    assert one.coordinator.counted()["trained"] == 3 * RECORDS


def test_an_hour_without_records_makes_a_pass_and_no_version(tmp_path: Path) -> None:
    one = world(tmp_path, records={"20200401/00/one": 0, "20200401/00/two": 0})

    one.finish()

    assert [each.version is None for each in one.ledger.passes()] == [True, False]


# -- leases ------------------------------------------------------------------------------------------------------------


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
    assert one.coordinator.counted()["repeated"] == RECORDS
    assert one.coordinator.counted()["trained"] == 4 * RECORDS
    assert one.ledger.recoveries()[0]["role"] == "trainer"


def test_a_lost_task_that_was_not_running_yet_is_not_counted_as_repeated(tmp_path: Path) -> None:
    one = world(tmp_path)
    lost = one.until_phase(control.TRAIN)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted()["repeated"] == 0


def test_a_task_lost_while_it_was_checked_is_not_counted_as_repeated(tmp_path: Path) -> None:
    one = world(tmp_path)
    lost = one.until_phase(control.CHECK)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.coordinator.counted()["repeated"] == 0


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


def test_a_trainer_that_leaves_in_order_gives_its_task_back_without_a_failure(tmp_path: Path) -> None:
    one = world(tmp_path)
    leaver = one.until_phase(control.TRAIN)
    assert leaver.task is not None

    one.coordinator.leave(leaver.member())

    task = next(t for t in one.ledger.tasks(1) if t.id == leaver.task.id)
    assert (task.state, task.attempts) == ("todo", 0)
    assert len(one.coordinator.trainers()) == 1


def test_a_task_is_given_to_the_trainer_that_has_it_converted(tmp_path: Path) -> None:
    one = world(tmp_path, files=["one", "two", "three"])
    one.until_phase(control.TRAIN)
    asking = one.trainers[1]
    one.until(lambda: asking.joined and asking.task is None)
    todo = [task.id for task in one.ledger.tasks(1, "todo")]

    reply = one.coordinator.lease(
        control.LeaseRequest(trainer_id=asking.id, generation=asking.generation, converted=[todo[-1]])
    )

    assert reply.task.id == todo[-1]


def test_no_check_and_no_save_is_given_ahead(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_state("checking")
    one.until(lambda: one.trainers[0].joined)

    reply = one.trainers[0].lease(ahead=True)

    assert reply.verdict == control.LeaseReply.WAIT


# -- stops -------------------------------------------------------------------------------------------------------------


def test_a_task_that_fails_too_often_is_parked_and_stops_the_pass_with_a_sentence(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_attempts": 2})
    for _ in range(2):
        failing = one.until_phase(control.CHECK)
        failing.report(error="the file is damaged")
        one.until(lambda: one.coordinator.initialised)
    one.until_state("stopped")

    reason = one.reason()

    assert "failed 2 times, the last time: the file is damaged" in reason
    assert "restart the master" in reason
    assert [task.state for task in one.ledger.tasks(1)].count("parked") == 1


def test_more_refused_lines_than_allowed_stop_the_pass_before_any_training(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/00/one": 3})

    one.until_state("stopped")

    assert control.TRAIN not in [phase for _, phase in one.leases]
    assert one.trained() == {}
    assert "3 of 23 lines were refused" in one.reason()
    assert 'no_colon 3 (first: "1 0 17")' in one.reason()


def test_refused_lines_below_the_limit_are_counted_and_the_pass_goes_on(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(maxRefusedShare=0.2), refused={"20200401/00/one": 3})

    one.finish()

    counted = one.coordinator.counted()
    assert counted["refused"] == 3
    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def test_a_pass_stopped_for_its_lines_is_looked_at_again_after_a_restart(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/00/one": 3})
    one.until_state("stopped")
    one.refused.clear()

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.coordinator.generation == 1


# -- joining -----------------------------------------------------------------------------------------------------------


def test_a_trainer_waits_for_the_pservers_by_name(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.pservers[0].sync()

    reply = one.trainers[0].join()

    assert reply.verdict == control.JoinReply.WAIT
    assert reply.reason == "waits for pserver 0, 1 of 2"


def test_exactly_one_trainer_initialises(tmp_path: Path) -> None:
    one = world(tmp_path)
    for _ in range(3):
        for pserver in one.pservers:
            pserver.sync()

    verdicts = [trainer.join().verdict for trainer in one.trainers]

    assert verdicts == [control.JoinReply.INITIALISE, control.JoinReply.WAIT]


def test_an_initializer_that_misses_its_lease_is_replaced_within_the_generation(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    late = one.trainers[0]
    one.now += LEASE
    one.coordinator.tick()

    verdict = one.trainers[1].join().verdict
    answer = one.coordinator.initialised_by(late.member())

    assert verdict == control.JoinReply.INITIALISE
    assert answer.rejoin
    assert one.coordinator.generation == 1


def test_an_initializer_that_wakes_after_the_gate_has_opened_is_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    late = one.trainers[0].member()
    one.now += LEASE
    one.coordinator.tick()
    one.trainers[1].join()
    one.coordinator.initialised_by(one.trainers[1].member())
    again = one.coordinator.initialised_by(one.trainers[1].member())

    renewed = one.coordinator.renew(control.RenewRequest(trainer_id=late.trainer_id, generation=late.generation))
    answer = one.coordinator.initialised_by(late)

    assert not again.rejoin, "the same report twice is one"
    assert renewed.rejoin
    assert answer.rejoin
    assert one.coordinator.generation == 2, "what it wrote lies over what was learned"


def test_an_initializer_that_renews_is_not_replaced(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    for _ in range(4):
        one.now += 5
        one.trainers[0].renew()
        one.coordinator.tick()

    assert one.trainers[1].join().verdict == control.JoinReply.WAIT


def test_an_unknown_trainer_is_told_to_rejoin(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.coordinator.initialised)

    reply = one.coordinator.lease(control.LeaseRequest(trainer_id=99, generation=1))

    assert reply.verdict == control.LeaseReply.REJOIN
    assert "never given out" in reply.reason


# -- recovery ----------------------------------------------------------------------------------------------------------


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


def test_a_checkpoint_names_the_version_that_the_next_delta_changes(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))

    one.finish()

    versions = [v["id"] for v in one.ledger.versions()]
    follows = [read_checkpoint(one.store, row["name"]).follows_version for row in one.ledger.checkpoints()]
    # The base's own, then the one taken just before a delta; older ones are deleted.
    assert follows == [versions[0], versions[1]]


def test_a_saver_lost_halfway_is_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    saver = one.until_phase(control.SAVE)

    one.trainers.remove(saver)
    one.now += LEASE
    one.turn()

    assert one.coordinator.generation == 2
    assert "lost while it saved" in one.ledger.recoveries()[-1]["reason"]
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_trainer_lost_while_it_scores_is_replaced_without_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: any(t.task is not None and t.task.phase == control.SCORE for t in one.trainers))
    lost = next(t for t in one.trainers if t.task is not None)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.coordinator.generation == 1


def test_a_failed_save_is_a_recovery_and_the_third_in_a_row_stops_the_pass(tmp_path: Path) -> None:
    one = world(tmp_path)
    for number in range(3):
        one.until(lambda: any(t.task is not None and t.task.phase == control.SAVE for t in one.trainers))
        assert one.coordinator.generation == number + 1
        next(t for t in one.trainers if t.task is not None).report(error="no space left")

    assert one.reason() == "saving failed 3 times, the last time: no space left"


def test_a_checkpoint_that_did_not_load_whole_is_tried_again_and_stops_the_pass_at_the_third_time(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
    one.pservers[0].restart()
    one.pservers[0].sync()

    for number in range(3):
        one.until(lambda: VERIFY in one.pservers[0].saved)
        assert one.coordinator.generation == 2 + number
        one.pservers[0].saved[VERIFY] = {}
        one.until(lambda: one.reason() != "" or VERIFY not in one.pservers[0].saved)

    assert "did not load whole: partition 0 holds 0 rows of 2, 3 times" in one.reason()


def test_a_master_that_restarts_keeps_generation_leases_and_saver(tmp_path: Path) -> None:
    one = world(tmp_path)
    worker = one.until_phase(control.TRAIN)
    one.now += 9
    one.start_master()
    one.now += 9
    one.coordinator.tick()

    assert not worker.report().rejoin
    one.until(lambda: any(t.task is not None and t.task.phase == control.SAVE for t in one.trainers))
    saver = next(t for t in one.trainers if t.task is not None)
    saver.work()
    one.start_master()
    assert not saver.report().rejoin
    one.finish()
    assert one.coordinator.generation == 1
    assert set(one.trained().values()) == {1}
    assert one.coordinator.counted()["repeated"] == 0


@pytest.mark.parametrize("rounds", range(1, 30, 2))
def test_a_master_restarted_at_any_moment_finishes_the_same_work(tmp_path: Path, rounds: int) -> None:
    one = world(tmp_path)
    for _ in range(rounds):
        one.turn()

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}
    assert [v["state"] for v in one.ledger.versions()] == ["published", "published"]
    assert one.coordinator.generation == 1


def test_a_silent_pserver_is_named_and_lost_once_the_master_has_looked(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_phase(control.TRAIN)
    one.now += 6
    one.pservers[0].sync()

    assert one.coordinator.silent_pservers() == [(1, "127.0.0.1", 1)]
    one.coordinator.declare_lost(1, "it is silent")
    assert one.coordinator.generation == 2


def test_a_report_of_an_unreachable_endpoint_names_the_parent_to_ask(tmp_path: Path) -> None:
    one = world(tmp_path)
    trainer = one.until_phase(control.TRAIN)
    endpoint = one.coordinator.pservers.endpoints(1)[1]

    report = control.UnreachableReport(trainer_id=trainer.id, generation=1, endpoint=endpoint, reason="timed out")

    assert one.coordinator.unreachable(report) == (1, "127.0.0.1", 1)
    report.generation = 7
    assert one.coordinator.unreachable(report) is None


def test_a_master_restarted_while_a_load_is_verified_has_it_loaded_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
    del one.trainers[1]
    one.pservers[0].restart()
    one.pservers[0].sync()
    one.until(lambda: VERIFY in one.pservers[0].saved)

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}


def test_a_master_restarted_after_one_of_two_exports_still_hears_of_the_first(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: (save := one.ledger.save_of(1)) is not None and save.stage == "saved")
    for _ in range(2):
        one.pservers[0].sync()
    assert not one.pservers[0].saved

    one.start_master()
    one.finish()

    assert one.coordinator.generation == 1


def test_a_recovery_while_a_checkpoint_is_committed_wins(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
    one.until(lambda: (save := one.ledger.save_of(2)) is not None and save.stage == "written")
    put_bytes = one.store.put_bytes

    def lose_a_pserver(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        if path.startswith("checkpoints/") and one.coordinator.generation == 1:
            one.pservers[0].restart()
            one.pservers[0].sync()

    one.store.put_bytes = lose_a_pserver  # type: ignore[method-assign]
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


def test_a_recovery_between_a_base_and_its_checkpoint_leaves_one_story(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))
    put_bytes = one.store.put_bytes

    def lose_a_pserver(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        if path.startswith("checkpoints/") and one.coordinator.generation == 1:
            one.pservers[0].restart()
            one.pservers[0].sync()

    one.store.put_bytes = lose_a_pserver  # type: ignore[method-assign]
    one.finish()

    versions = {v["id"]: v for v in one.ledger.versions() if v["state"] == "published"}
    for row in one.ledger.checkpoints():
        assert row["follows"] in versions
    assert all(v["parent"] in versions for v in versions.values() if v["kind"] == "delta")
    assert set(one.trained().values()) == {1}


def test_a_day_that_ends_with_an_empty_hour_has_its_base_checked_with_the_lines_before(tmp_path: Path) -> None:
    one = world(
        tmp_path,
        data=data_of(start="20200401/22", end="20200401/23"),
        records={"20200401/23/one": 0, "20200401/23/two": 0},
    )

    one.until(lambda: len(one.ledger.passes()) == 2)
    one.until(lambda: any(t.task is not None and t.task.phase == control.SAVE for t in one.trainers))

    saver = next(t for t in one.trainers if t.task is not None)
    assert saver.task is not None
    assert len(saver.task.save.samples) == 2 * len(range(8))


def test_an_empty_last_hour_saves_what_the_hours_before_it_left_unsaved(tmp_path: Path) -> None:
    one = world(
        tmp_path,
        data=data_of(end="20200401/02"),
        config={"checkpoint_per_pass": 5, "delta_per_pass": 5},
        records={"20200401/02/one": 0, "20200401/02/two": 0},
    )

    one.finish()

    assert [(v["kind"], v["pass"]) for v in one.ledger.versions()] == [("base", 1), ("delta", 3)]
    assert [row["pass"] for row in one.ledger.checkpoints()] == [1, 3]


def test_an_empty_last_hour_after_a_version_of_everything_makes_none(tmp_path: Path) -> None:
    one = world(
        tmp_path,
        data=data_of(end="20200401/02"),
        records={"20200401/02/one": 0, "20200401/02/two": 0},
    )

    one.finish()

    assert [v["pass"] for v in one.ledger.versions()] == [1, 2]


def test_hours_added_after_the_end_are_trained_on_what_was_learned(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()
    for pserver in one.pservers:
        pserver.restart()
    for trainer in one.trainers:
        trainer.start()

    one.data = data_of(end="20200401/02")
    one.start_master()
    one.finish()

    assert len(one.trained()) == 6
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


def test_a_pass_stopped_in_training_is_taken_up_from_the_last_checkpoint(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_attempts": 1})
    failing = one.until_phase(control.TRAIN)
    failing.work()
    failing.report(error="killed")
    assert "killed" in one.reason()

    one.start_master()
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


def test_a_pass_taken_up_again_gives_each_task_all_its_attempts(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_attempts": 2})
    for _ in range(2):
        one.until_phase(control.TRAIN).report(error="killed")
    one.start_master()

    one.until_phase(control.TRAIN).report(error="killed")

    assert one.reason() == ""


def test_a_record_of_a_task_parked_in_its_second_round_is_trained_and_not_parked(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=2, config={"max_attempts": 1})
    one.until(lambda: (current := one.ledger.current_pass()) is not None and current.epoch == 2)
    one.until_phase(control.TRAIN).report(error="killed")

    counted = one.coordinator.counted()

    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def test_a_task_finished_after_the_pass_was_stopped_is_counted_all_the_same(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_attempts": 1})
    one.until(lambda: all(t.task is not None and t.task.phase == control.TRAIN for t in one.trainers))
    one.trainers[0].report(error="killed")

    one.trainers[1].report()

    counted = one.coordinator.counted()
    assert counted["trained"] == RECORDS
    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def test_a_store_that_is_away_while_a_save_is_ordered_costs_no_result(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_state("evaluating")
    listed = one.store.list
    away = True

    def list_(folder: str) -> list[str]:
        if away:
            raise StoreError("the store is away")
        return listed(folder)

    one.store.list = list_  # type: ignore[method-assign]
    one.until_state("saving")
    away = False
    one.finish()

    assert one.coordinator.generation == 1
    assert set(one.trained().values()) == {1}


def test_a_checkpoint_whose_manifest_cannot_be_read_yet_is_verified_once_it_can(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
    one.pservers[0].restart()
    one.pservers[0].sync()
    one.until(lambda: VERIFY in one.pservers[0].saved)
    get_bytes = one.store.get_bytes

    def away(path: str) -> bytes:
        raise StoreError("the store is away")

    one.store.get_bytes = away  # type: ignore[method-assign]
    for _ in range(2):
        for pserver in one.pservers:
            pserver.sync()
    one.store.get_bytes = get_bytes  # type: ignore[method-assign]
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}
