from pathlib import Path

from elastic_ctr.control import control_pb2 as control
from master.world import data_of, world


def test_an_hour_without_records_makes_a_pass_and_no_version(tmp_path: Path) -> None:
    one = world(tmp_path, records={"20200401/00/one": 0, "20200401/00/two": 0})

    one.finish()

    assert [each.version is None for each in one.ledger.passes()] == [True, False]


def test_a_pass_stopped_for_its_lines_is_looked_at_again_after_a_restart(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/00/one": 3})
    one.until_state("stopped")
    one.refused.clear()

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.coordinator.generation == 1


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
    waited_for = one.coordinator.wants_hours()
    assert waited_for is not None

    one.data = data_of(end="20200401/01")
    one.start_master()

    assert waited_for.id == "20200401/02"
    assert one.coordinator.finished
    assert [each.id for each in one.ledger.passes()] == ["20200401/00", "20200401/01"]
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

    assert [each.id for each in one.ledger.passes()][2:] == ["20200401/02"]
    assert set(one.trained().values()) == {1}


def test_when_all_is_done_everybody_is_told_to_leave(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()
    one.turn()
    one.turn()

    assert all(trainer.gone for trainer in one.trainers)
    assert all(pserver.sync().leave for pserver in one.pservers)
