import sqlite3
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import published_versions
from elastic_ctr.store.versions.safeguards import Refusal, read_refusals, write_refusal
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.training_status import status
from training.master.world import LEASE, World, data_of, world


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


@pytest.mark.parametrize(("phase", "generation"), [(control.SAVE, 2), (control.SCORE, 1)])
def test_a_saver_that_leaves_in_order_is_followed_at_once_and_counts_nothing(
    tmp_path: Path, phase: int, generation: int
) -> None:
    one = world(tmp_path, config={"max_lost_leases": 1})
    saver = one.until_phase(phase)
    began = one.now

    one.coordinator.leave(saver.member())
    one.trainers.remove(saver)
    other = one.until_phase(phase)

    assert other is not saver
    assert one.now - began < LEASE
    assert one.coordinator.generation == generation
    one.finish()
    assert one.reason() == ""
    assert set(one.trained().values()) == {1}


FULL = "/scratch/watch.part: No space left on device"


@pytest.mark.parametrize(
    ("phase", "table_unchanged"), [(control.SAVE, False), (control.SAVE, True), (control.SCORE, False)]
)
def test_savers_that_leave_for_their_own_disk_stop_the_pass_at_last_with_the_reason(
    tmp_path: Path, phase: int, table_unchanged: bool
) -> None:
    one = world(tmp_path, config={"max_lost_leases": 4})
    del one.trainers[1]

    for number in range(4):
        assert one.reason() == "", number
        one.until_phase(phase).leave(FULL, table_unchanged=table_unchanged)

    assert one.reason().startswith("saving lost its trainer 4 times in a row, the last time: trainer ")
    assert f"left: {FULL}" in one.reason()
    one.start_master()
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_saver_that_leaves_for_its_own_disk_after_the_first_step_is_a_recovery_that_names_it(tmp_path: Path) -> None:
    one = world(tmp_path)
    saver = one.until_phase(control.SAVE)
    saver.work()

    saver.leave(FULL)

    assert one.coordinator.generation == 2
    assert f"left while it saved ({FULL})" in one.ledger.recoveries()[-1]["reason"]


def test_a_saver_that_leaves_for_its_own_disk_before_the_first_step_takes_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = world(tmp_path)
    number = one.until_phase(control.SAVE).id

    one.trainers[0].leave(FULL, table_unchanged=True)
    one.start_master()
    one.finish()

    assert one.coordinator.generation == 1
    assert len(set(one.saved)) == len(one.saved) == 2
    assert set(one.trained().values()) == {1}
    assert [row["reason"] for row in one.ledger.recoveries()] == [f"trainer {number} left: {FULL}"]
    assert f"trainer {number} leaves: {FULL}" in caplog.text


@pytest.mark.parametrize("phase", [control.SAVE, control.SCORE])
def test_a_save_that_finds_the_store_away_before_its_first_step_is_tried_again_until_it_is_back(
    tmp_path: Path, phase: int
) -> None:
    one = world(tmp_path)

    for _ in range(5):
        one.until_phase(phase).report(error="no answer", table_unchanged=True, store_unavailable=True)
        assert one.coordinator.save_waits == "the save after pass 20200401/00 waits for the store: no answer"
    one.finish()

    assert one.reason() == one.coordinator.save_waits == ""
    assert one.coordinator.generation == 1
    assert len(set(one.saved)) == len(one.saved) == 2
    assert set(one.trained().values()) == {1}


def test_a_save_that_fails_before_its_first_step_takes_nothing_back_and_the_third_in_a_row_stops_the_pass(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)

    for number in range(3):
        assert one.reason() == "", number
        one.until_phase(control.SAVE).report(error="no such host", table_unchanged=True)

    assert one.reason().startswith("saving failed 3 times, the last time: no such host; ")
    assert one.coordinator.generation == 1
    one.start_master()
    one.finish()
    assert len(set(one.saved)) == len(one.saved) == 2


def test_a_save_that_went_well_has_all_its_losses_again(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_lost_leases": 2})
    del one.trainers[1]

    for phase in (control.SAVE, control.SCORE):
        one.until_phase(phase).leave(FULL, table_unchanged=True)
        one.until_phase(phase).report()
    one.finish()

    assert one.reason() == ""


def test_a_trainer_lost_while_it_scores_is_replaced_without_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: any(t.task is not None and t.task.phase == control.SCORE for t in one.trainers))
    lost = next(t for t in one.trainers if t.task is not None)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.coordinator.generation == 1


def test_a_saver_that_has_not_heard_the_answer_is_given_the_same_save_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    saver = one.until_phase(control.SAVE)
    unheard = saver.task
    saver.task = None

    saver.lease()

    assert saver.task == unheard
    one.trainers[1].lease()
    assert one.trainers[1].task is None, "it is somebody's already"
    one.finish()
    assert one.coordinator.generation == 1


def test_a_save_that_the_ledger_could_not_record_is_reported_again_and_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(tmp_path)
    saver = one.until_phase(control.SAVE)

    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    task = saver.task
    with monkeypatch.context() as patch:
        patch.setattr(one.ledger.saves, "update", full)
        with pytest.raises(sqlite3.OperationalError):
            saver.report()
    saver.task = task
    saver.report()
    one.finish()

    assert one.coordinator.generation == 1
    assert len(set(one.saved)) == len(one.saved)
    assert set(one.trained().values()) == {1}


def test_files_of_pservers_are_not_lost_when_the_ledger_could_not_record_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(tmp_path)
    one.until(lambda: (save := one.ledger.saves.of(1)) is not None and save.stage == "saved")
    set_save = one.ledger.saves.update

    def full_once(*given: Any, **columns: Any) -> None:
        monkeypatch.setattr(one.ledger.saves, "update", set_save)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(one.ledger.saves, "update", full_once)
    first, second = one.pservers
    first.sync()
    first.sync()
    second.sync()
    with pytest.raises(sqlite3.OperationalError):
        second.sync()
    one.finish()

    assert one.coordinator.generation == 1


def test_a_failed_save_is_a_recovery_and_the_third_in_a_row_stops_the_pass(tmp_path: Path) -> None:
    one = world(tmp_path)
    for number in range(3):
        one.until(lambda: any(t.task is not None and t.task.phase == control.SAVE for t in one.trainers))
        assert one.coordinator.generation == number + 1
        next(t for t in one.trainers if t.task is not None).report(error="no space left")

    assert one.reason().startswith("saving failed 3 times, the last time: no space left; ")


def test_a_scoring_that_fails_three_times_in_a_row_stops_the_pass_and_takes_nothing_back(tmp_path: Path) -> None:
    one = world(tmp_path)
    for number in range(3):
        assert one.reason() == "", number
        one.until_phase(control.SCORE).report(error="no luck")

    assert one.reason().startswith("saving failed 3 times, the last time: no luck; ")
    assert one.coordinator.generation == 1
    one.start_master()
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_scoring_that_fails_and_then_goes_well_has_all_its_tries_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    for _ in range(2):
        for _ in range(2):
            one.until_phase(control.SCORE).report(error="no luck")
        one.until_phase(control.SCORE).report()

    one.finish()

    assert kinds(one) == ["base", "delta"]


def test_a_version_that_its_scorer_gives_up_is_refused_with_its_sentence_and_the_next_is_a_base(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))
    one.until(lambda: kinds(one) == ["base"])
    scorer = one.until_phase(control.SCORE)
    fill = one.fill

    def given_up(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        result.save.Clear()
        result.save.refused = "it scores otherwise"

    one.fill = given_up  # type: ignore[method-assign]
    scorer.report()
    one.fill = fill  # type: ignore[method-assign]
    one.finish()

    assert [(v["kind"], v["state"], v["reason"]) for v in one.ledger.saves.versions()] == [
        ("base", "published", ""),
        ("delta", "refused", "it scores otherwise"),
        ("base", "published", ""),
    ]


def test_a_master_restarted_after_one_of_two_exports_still_hears_of_the_first(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: (save := one.ledger.saves.of(1)) is not None and save.stage == "saved")
    for _ in range(2):
        one.pservers[0].sync()
    assert not one.pservers[0].saved

    one.start_master()
    one.finish()

    assert one.coordinator.generation == 1


def test_a_day_that_ends_with_an_empty_hour_has_its_base_checked_with_the_lines_before(tmp_path: Path) -> None:
    one = world(
        tmp_path,
        data=data_of(start="20200401/22", end="20200401/23"),
        records={"20200401/23/one": 0, "20200401/23/two": 0},
    )

    one.until(lambda: len(one.ledger.passes.all()) == 2)
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

    assert [(v["kind"], v["pass"]) for v in one.ledger.saves.versions()] == [("base", 1), ("delta", 3)]
    assert [row["pass"] for row in one.ledger.saves.checkpoints()] == [1, 3]


def test_an_empty_last_hour_after_a_version_of_everything_makes_none(tmp_path: Path) -> None:
    one = world(
        tmp_path,
        data=data_of(end="20200401/02"),
        records={"20200401/02/one": 0, "20200401/02/two": 0},
    )

    one.finish()

    assert [v["pass"] for v in one.ledger.saves.versions()] == [1, 2]


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


def test_a_saver_that_hangs_and_renews_is_lost_after_the_longest_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    saver = one.until_phase(control.SAVE)
    began = one.now

    answer = one.hang(saver, 1000)

    assert answer.rejoin
    assert 60 < one.now - began < 80
    assert one.coordinator.generation == 2
    assert "it took longer than saveTimeoutSeconds 60" in one.ledger.recoveries()[-1]["reason"]
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_trainer_that_hangs_while_it_scores_is_replaced_after_the_longest_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    one.until(lambda: any(t.task is not None and t.task.phase == control.SCORE for t in one.trainers))
    hanging = next(t for t in one.trainers if t.task is not None)

    answer = one.hang(hanging, 1000)

    assert answer.rejoin
    one.finish()
    assert one.coordinator.generation == 1


def test_a_restart_of_the_master_does_not_begin_the_longest_time_anew(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    saver = one.until_phase(control.SAVE)
    one.hang(saver, 50)
    one.start_master()

    answer = one.hang(saver, 20)

    assert answer.rejoin


def test_the_absence_of_the_master_does_not_count_for_a_save(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    saver = one.until_phase(control.SAVE)
    one.hang(saver, 50)
    one.now += 3600
    one.start_master()
    one.coordinator.tick()

    answer = saver.report()

    assert not answer.rejoin
    one.finish()
    assert one.coordinator.generation == 1
    assert set(one.trained().values()) == {1}


def test_a_save_that_is_too_long_three_times_stops_the_pass_and_names_the_setting(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    del one.trainers[1]

    for _ in range(3):
        one.hang(one.until_phase(control.SAVE), 1000)

    assert one.reason().startswith("saving failed 3 times, the last time: it took longer than saveTimeoutSeconds 60; ")


@pytest.mark.parametrize("phase", [control.SAVE, control.SCORE])
def test_a_save_that_ends_every_trainer_that_touches_it_stops_the_pass(tmp_path: Path, phase: int) -> None:
    one = world(tmp_path, config={"max_lost_leases": 4})
    del one.trainers[1]
    for _ in range(4):
        one.until_phase(phase).start()
        one.now += LEASE
        one.coordinator.tick()

    assert "saving lost its trainer 4 times in a row" in one.reason()
    one.start_master()
    one.finish()
    assert set(one.trained().values()) == {1}


def lose_output(one: World) -> None:
    for version in published_versions(one.store):
        one.store.delete(layout.version_manifest(version))


def kinds(one: World) -> list[str]:
    return [version["kind"] for version in one.ledger.saves.versions()]


def test_when_the_base_is_gone_from_the_store_the_next_version_is_a_base(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"))
    one.until(lambda: kinds(one) == ["base", "delta"])
    base = one.ledger.saves.versions()[0]["id"]

    lose_output(one)
    one.finish()

    assert kinds(one) == ["base", "delta", "base", "delta"]
    assert f"version {base} is no longer in the store" in caplog.text
    assert one.coordinator.generation == 1


def test_a_delta_is_no_parent_either_once_it_is_gone_from_the_store(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))
    one.until(lambda: kinds(one) == ["base", "delta"])

    one.store.delete(layout.version_manifest(one.ledger.saves.versions()[-1]["id"]))
    one.finish()

    assert kinds(one) == ["base", "delta", "base"]


def test_a_restarted_master_says_that_the_base_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"), config={"delta_per_pass": 9})
    one.until(lambda: kinds(one) == ["base"])
    lose_output(one)

    one.start_master()
    one.publisher.begin()

    assert "the next version is a base" in caplog.text
    one.finish()
    assert [(v["kind"], v["pass"]) for v in one.ledger.saves.versions()] == [("base", 1), ("base", 2), ("delta", 3)]


@pytest.mark.parametrize("stage", ["ordered", "begun", "saved", "written", "exported"])
def test_a_delta_whose_base_was_lost_with_the_store_is_given_up_when_the_master_starts(
    tmp_path: Path, stage: str
) -> None:
    one = world(tmp_path)
    one.until(lambda: (save := one.ledger.saves.of(2)) is not None and save.stage == stage)
    lose_output(one)

    one.start_master()
    one.publisher.begin()
    one.finish()

    assert one.coordinator.generation == 2
    assert "which the save under way stands on" in one.ledger.recoveries()[-1]["reason"]
    assert kinds(one) == ["base", "base"]
    assert set(one.trained().values()) == {1}


def test_a_store_that_is_away_when_the_master_starts_is_no_lost_base(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: kinds(one) == ["base"])
    listed = one.store.list

    def away(folder: str) -> list[str]:
        raise StoreError("the store is away")

    one.store.list = away  # type: ignore[method-assign]
    one.start_master()
    one.publisher.begin()
    one.store.list = listed  # type: ignore[method-assign]
    one.finish()

    assert kinds(one) == ["base", "delta"]


def test_after_a_refused_version_the_next_one_is_a_base_and_the_status_says_so(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"))
    one.until(lambda: len(one.ledger.saves.versions()) == 2)
    refused = one.ledger.saves.versions()[1]["id"]

    write_refusal(one.store, Refusal(version=refused, reason="a part is damaged", refused_at=1.0))
    one.coordinator.planning.refused_versions(read_refusals(one.store))
    due = status(one.coordinator).base_due
    one.finish()

    assert (
        due
        == f"version {refused} was refused (a part is damaged), and no delta can stand on it; the next version is a base"
    )
    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta", "base", "delta"]
    assert status(one.coordinator).base_due == ""


def test_a_new_refusal_in_the_store_is_found_before_a_delta_is_ordered(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))
    one.until(lambda: len(one.ledger.saves.versions()) == 1)

    write_refusal(one.store, Refusal(version=one.ledger.saves.versions()[0]["id"], reason="x", refused_at=1.0))
    one.finish()

    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "base", "delta"]
