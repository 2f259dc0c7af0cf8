from pathlib import Path

import pytest

from elastic_ctr.control import control_pb2 as control
from master.world import RECORDS, data_of, world


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


def test_more_refused_lines_than_allowed_stop_the_pass_before_any_training(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/00/one": 3})

    one.until_state("stopped")

    assert control.TRAIN not in [phase for _, phase in one.leases]
    assert one.trained() == {}
    assert "3 of 23 lines were refused" in one.reason()
    assert 'no_colon 3 (first: "1 0 17")' in one.reason()


def test_a_pass_without_a_key_of_the_slots_is_stopped_before_any_training_and_names_them(tmp_path: Path) -> None:
    one = world(tmp_path, keyless=("20200401/00/one", "20200401/00/two"))

    one.until_state("stopped")

    assert one.trained() == {}
    assert one.reason().startswith(
        "none of 20 lines has a key of data.slots and is short enough for a prediction (6 features are of other slots, 0 are the "
        "padding key), nor was there one before: "
    )


def test_a_pass_without_a_key_of_the_slots_after_one_with_keys_is_trained_and_checked_with_the_lines_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = world(tmp_path, keyless=("20200401/01/one", "20200401/01/two"))
    one.until(lambda: one.coordinator.counted()["files"] == 4)

    saver = one.until_phase(control.SAVE)
    assert saver.task is not None
    lines = [sample.line for sample in saver.task.save.samples]
    one.finish()

    assert one.coordinator.counted()["trained"] == 4 * RECORDS
    assert [version["state"] for version in one.ledger.versions()] == ["published"] * 2
    assert lines == [line for line, _, _ in one.coordinator.samples_of(1)]
    assert "pass 20200401/01: none of 20 lines has a key of data.slots" in caplog.text


def test_one_file_with_keys_is_enough_for_a_pass(tmp_path: Path) -> None:
    one = world(tmp_path, keyless=("20200401/00/one",))

    one.finish()

    assert one.coordinator.counted()["trained"] == 4 * RECORDS


def test_refused_lines_below_the_limit_are_counted_and_the_pass_goes_on(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(maxRefusedShare=0.2), refused={"20200401/00/one": 3})

    one.finish()

    counted = one.coordinator.counted()
    assert counted["refused"] == 3
    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]
