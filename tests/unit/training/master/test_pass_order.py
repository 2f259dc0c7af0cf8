"""Which passes a master takes up: after stops, restarts and changed ends."""

from pathlib import Path

import pytest

from elastic_ctr.training.control import control_pb2 as control
from training.master.world import LEASE, Trainer, World, data_of, world


def test_an_hour_without_records_makes_a_pass_and_no_version(tmp_path: Path) -> None:
    one = world(tmp_path, records={"20200401/00/one": 0, "20200401/00/two": 0})

    one.finish()

    assert [each.version is None for each in one.ledger.passes.all()] == [True, False]


def test_a_pass_stopped_for_its_lines_is_looked_at_again_after_a_restart(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/00/one": 3})
    one.until_state("stopped")
    one.refused.clear()

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.coordinator.generation == 1


def test_a_pass_stopped_in_training_is_taken_up_from_the_last_checkpoint(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    failing = one.until_phase(control.TRAIN)
    failing.work()
    failing.report(error="killed")
    assert "killed" in one.reason()

    one.start_master()
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


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


def test_an_end_before_the_hour_that_is_waited_for_ends_the_training(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()
    one.data = data_of(end="20200401/02")
    one.start_master()
    waited_for = one.coordinator.found.wants_hours()
    assert waited_for is not None

    one.data = data_of(end="20200401/01")
    one.start_master()

    assert waited_for.id == "20200401/02"
    assert one.coordinator.finished
    assert [each.id for each in one.ledger.passes.all()] == ["20200401/00", "20200401/01"]
    assert all(pserver.sync().leave for pserver in one.pservers)


def test_an_end_before_the_hour_that_is_trained_lets_it_be_trained_to_its_end(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()
    one.data = data_of(end="20200401/03")
    for pserver in one.pservers:
        pserver.restart()
    for trainer in one.trainers:
        trainer.start()
    one.start_master()
    one.until_phase(control.TRAIN)

    one.data = data_of(end="20200401/01")
    one.start_master()
    one.finish()

    assert [each.id for each in one.ledger.passes.all()][2:] == ["20200401/02"]
    assert set(one.trained().values()) == {1}


def test_when_all_is_trained_every_trainer_and_pserver_is_ordered_to_leave(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()
    one.turn()
    one.turn()

    assert all(trainer.gone for trainer in one.trainers)
    assert all(pserver.sync().leave for pserver in one.pservers)


def until_scoring_is_given_up(one: World) -> None:
    """The pass is stopped after its checkpoint was committed."""
    for _ in range(3):
        one.until_phase(control.SCORE).start()
        one.now += LEASE
        one.coordinator.tick()
    assert "lost its trainer 3 times" in one.reason()


def test_a_pass_that_was_stopped_behind_its_checkpoint_is_not_trained_again(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_lost_leases": 3})
    del one.trainers[1]
    one.until(lambda: (current := one.ledger.passes.current()) is not None and current.ordinal == 2)
    until_scoring_is_given_up(one)
    assert [row["pass"] for row in one.ledger.saves.checkpoints()] == [1, 2]

    one.start_master()
    one.finish()

    assert len(one.trained()) == 4
    assert set(one.trained().values()) == {1}
    assert [(v["kind"], v["pass"], v["state"]) for v in one.ledger.saves.versions()] == [
        ("base", 1, "published"),
        ("delta", 2, "published"),
    ]


def test_no_hour_is_left_out_behind_a_last_pass_that_was_short(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02", splitsPerPass=2))
    one.finish()
    for pserver in one.pservers:
        pserver.restart()
    for trainer in one.trainers:
        trainer.start()

    one.data = data_of(end="20200401/05", splitsPerPass=2)
    one.start_master()
    one.finish()

    hours = [split for each in one.ledger.passes.all() for split in each.splits]
    assert hours == [f"20200401/{hour:02}" for hour in range(6)]
    assert set(one.trained().values()) == {1}


@pytest.mark.parametrize(("end", "splits"), [("03", ("02", "03")), ("05", ("02", "03")), ("02", ("02",))])
def test_a_pass_that_is_waited_for_has_the_splits_that_the_end_leaves_it(
    tmp_path: Path, end: str, splits: tuple[str, ...]
) -> None:
    before = "02" if end != "02" else "03"
    one = world(tmp_path, data=data_of(end="20200401/01", splitsPerPass=2))
    one.finish()
    one.data = data_of(end=f"20200401/{before}", splitsPerPass=2)
    one.start_master()
    assert one.coordinator.found.wants_hours() is not None

    one.data = data_of(end=f"20200401/{end}", splitsPerPass=2)
    one.start_master()
    wanted = one.coordinator.found.wants_hours()

    assert wanted is not None
    assert wanted.splits == tuple(f"20200401/{split}" for split in splits)
    assert wanted.id == wanted.splits[-1]


def test_a_stopped_pass_behind_the_new_end_is_dropped_with_what_was_found_in_it(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/01/one": 10}, data=data_of(end="20200401/01", maxRefusedShare=0.1))
    one.until_state("stopped")

    one.data = data_of(end="20200401/00", maxRefusedShare=0.1)
    one.start_master()

    assert one.coordinator.finished
    counts = one.ledger.passes.counted()
    assert (counts["files"], counts["records"], counts["trained"], counts["refused"]) == (2, 20, 20, 0)


def stopped_in_mid_ledger(tmp_path: Path, later: str) -> World:
    """Its second pass, [02], was the last one once; a third has begun behind it, all of which a recovery has forgotten since; and
    now the second is stopped.
    """
    config = {"checkpoint_per_pass": 6, "delta_per_pass": 6, "max_failures": 1}
    one = world(tmp_path, config=config, data=data_of(end="20200401/02", splitsPerPass=2))
    one.until(lambda: (at := one.ledger.passes.current()) is not None and (at.ordinal, at.state) == (2, "training"))
    one.data = data_of(end=f"20200401/{later}", splitsPerPass=2)
    one.start_master()
    one.until(lambda: (at := one.ledger.passes.current()) is not None and (at.ordinal, at.state) == (3, "training"))
    one.pservers[0].restart()

    def trains() -> Trainer | None:
        return next((each for each in one.trainers if each.task is not None and each.task.phase == control.TRAIN), None)

    one.until(lambda: one.coordinator.generation == 2 and trains())
    trainer = trains()
    assert trainer is not None
    trainer.report(error="the file was changed")
    assert one.reason()
    return one


@pytest.mark.parametrize("later", ["03", "04"])
@pytest.mark.parametrize("end", [None, "01"])
def test_a_short_pass_that_others_have_begun_behind_stays_as_it_is(tmp_path: Path, later: str, end: str | None) -> None:
    one = stopped_in_mid_ledger(tmp_path, later)
    if end is not None:
        one.data = data_of(end=f"20200401/{end}", splitsPerPass=2)

    one.start_master()
    one.finish()

    hours = [split for each in one.ledger.passes.all() for split in each.splits]
    assert hours == [f"20200401/{hour:02}" for hour in range(int(later) + 1)]
    assert len(one.trained()) == 2 * len(hours)
    assert set(one.trained().values()) == {1}


@pytest.mark.parametrize(("end", "hours"), [("04", 5), ("03", 4)])
def test_a_stopped_pass_has_the_splits_that_a_new_end_leaves_it_though_earlier_ones_are_trained_again(
    tmp_path: Path, end: str, hours: int
) -> None:
    config = {"checkpoint_per_pass": 6, "delta_per_pass": 6, "max_failures": 1}
    one = world(tmp_path, config=config, data=data_of(end="20200401/05", splitsPerPass=2))
    one.until(lambda: (at := one.ledger.passes.current()) is not None and (at.ordinal, at.state) == (3, "training"))
    one.until_phase(control.TRAIN).report(error="the file was changed")

    one.data = data_of(end=f"20200401/{end}", splitsPerPass=2)
    one.start_master()
    one.finish()

    assert [split for each in one.ledger.passes.all() for split in each.splits] == [
        f"20200401/{hour:02}" for hour in range(hours)
    ]
    assert len(one.trained()) == 2 * hours
    assert set(one.trained().values()) == {1}


def test_a_begun_pass_is_trained_after_a_recovery_forgot_it_and_the_end_was_moved_before_it(
    tmp_path: Path,
) -> None:
    one = world(tmp_path, config={"checkpoint_per_pass": 6, "delta_per_pass": 6}, data=data_of(end="20200401/05"))
    one.until(lambda: (at := one.ledger.passes.current()) is not None and (at.ordinal, at.state) == (4, "training"))
    one.pservers[0].restart()
    one.until(lambda: one.coordinator.generation == 2)

    one.data = data_of(end="20200401/01")
    one.start_master()
    one.finish()

    counts = one.ledger.passes.counted()
    assert counts["records"] == counts["trained"] == 80
    assert one.ledger.saves.versions()[-1]["pass"] == 4, "what the last pass has learned is published"
