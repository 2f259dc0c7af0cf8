import json
import math
from pathlib import Path

import pytest

from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import published_versions, read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.rows import Learning, StartedFrom
from elastic_ctr.training.master.training_status import status
from training.master.stream_world import StreamWorld
from training.master.world import LEASE, RECORDS, World, data_of, world


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
    assert one.ledger.passes.counted()["trained"] == 2 * RECORDS


ONE_HOUR = data_of(end="20200401/00")


def epochs_of(one: World) -> list[tuple[int, int]]:
    """(phase, epoch) of the results of training and evaluation, once an epoch."""
    found = [(task.phase, task.epoch) for task in one.tasks if task.phase in (control.TRAIN, control.EVALUATE)]
    return list(dict.fromkeys(found))


def test_a_small_pass_is_trained_in_two_epochs_of_growing_batches_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one = world(tmp_path, epochs="auto", data=ONE_HOUR)

    one.finish()

    assert epochs_of(one) == [(control.TRAIN, 1), (control.TRAIN, 2), (control.EVALUATE, 2)]
    assert [task.batch_size for task in one.tasks if task.phase == control.TRAIN] == [16, 16, 64, 64]
    assert {task.batch_size for task in one.tasks if task.phase in (control.CHECK, control.EVALUATE)} == {512}
    assert one.ledger.figures.learning(1).batch_sizes == (16, 64)
    assert "pass 20200401/00: epoch 2 over 20 records in batches of 64" in caplog.text


def test_a_large_pass_is_trained_in_one_epoch(tmp_path: Path) -> None:
    one = world(
        tmp_path, epochs="auto", data=ONE_HOUR, records=dict.fromkeys(("20200401/00/one", "20200401/00/two"), 60_000)
    )

    one.finish()

    assert epochs_of(one) == [(control.TRAIN, 1), (control.EVALUATE, 1)]
    assert {task.batch_size for task in one.tasks if task.phase == control.TRAIN} == {512}


def test_held_out_records_are_in_no_training_and_decide_on_the_next_epoch(tmp_path: Path) -> None:
    # Logits of half clicks: the nearer to 0, the better.
    one = world(
        tmp_path,
        epochs="auto",
        data=data_of(end="20200401/00", holdout=0.2),
        logits={1: 0.0, 2: 0.0},
        config={"evaluate": False},
    )
    one.until(lambda: one.ledger.figures.learning(1).losses)
    with one.ledger:
        one.ledger.figures.set_learning(1, Learning(losses=(0.9,)))

    one.finish()

    # It fell in the first epoch and no more in the second.
    assert epochs_of(one) == [(control.TRAIN, 1), (control.EVALUATE, 1), (control.TRAIN, 2), (control.EVALUATE, 2)]
    assert {(task.phase, task.records, task.all_records) for task in one.tasks if task.phase != control.SAVE and task.path} == {
        (control.CHECK, 0, 0), (control.TRAIN, 8, 10), (control.EVALUATE, 2, 10),
    }  # fmt: skip
    assert one.ledger.passes.counted()["trained"] == 2 * 8
    assert list(one.ledger.figures.learning(1).losses) == pytest.approx([0.9, 0.6931, 0.6931], abs=1e-3)


@pytest.mark.parametrize(("first", "then"), [(0.2, 0.0), (0.0, 0.2), (0.2, 0.5)])
def test_a_pass_keeps_the_holdout_of_its_check_when_the_setting_changes(
    tmp_path: Path, first: float, then: float
) -> None:
    one = world(tmp_path, data=data_of(end="20200401/01", holdout=first))
    one.until(lambda: one.ledger.tasks.of(1, "done"))

    one.data = data_of(end="20200401/01", holdout=then)
    one.start_master()
    one.finish()

    shares = {(task.pass_id, task.holdout) for task in one.tasks if task.phase in (control.CHECK, control.TRAIN)}
    assert shares == {("20200401/00", first), ("20200401/01", then)}
    counted, held_out = one.ledger.passes.counted(), round(2 * RECORDS * first) + round(2 * RECORDS * then)
    assert (counted["heldOut"], counted["trained"]) == (held_out, 4 * RECORDS - held_out)


def test_held_out_records_of_a_lost_trainer_are_not_repeated(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/00", holdout=0.2))
    one.until_phase(control.TRAIN)
    one.trainers[0].work()
    one.now += LEASE
    one.coordinator.tick()
    one.trainers[0].start()

    one.finish()

    counted = one.ledger.passes.counted()
    assert counted["repeated"] == 8
    assert counted["trained"] + counted["heldOut"] == counted["records"]


def test_an_epoch_that_does_not_help_is_the_last_one(tmp_path: Path) -> None:
    one = world(tmp_path, epochs="auto", data=data_of(end="20200401/00", holdout=0.2), logits={1: 3.0})

    one.finish()

    assert epochs_of(one) == [(control.TRAIN, 1), (control.EVALUATE, 1)]


def test_a_number_of_epochs_that_is_set_is_made_whatever_the_held_out_records_say(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=3, data=data_of(end="20200401/00", holdout=0.2), logits={1: 3.0})

    one.finish()

    assert epochs_of(one) == [(control.TRAIN, 1), (control.TRAIN, 2), (control.TRAIN, 3), (control.EVALUATE, 3)]


def test_a_recovery_begins_the_epochs_of_a_pass_again(tmp_path: Path) -> None:
    one = world(tmp_path, epochs="auto", data=ONE_HOUR)
    one.until(lambda: (control.TRAIN, 2) in epochs_of(one))

    one.coordinator.declare_lost(0, "a test ends it")
    one.pservers[0].restart()
    one.finish()

    assert one.ledger.figures.learning(1).batch_sizes == (16, 64)
    assert set(one.trained().values()) == {2}


def test_the_first_click_rate_is_the_offset_of_the_model_for_its_life(tmp_path: Path) -> None:
    one = world(tmp_path, shows=10)
    one.until(lambda: one.ledger.facts.offset is not None)
    one.shows = 2

    one.finish()

    # 20 clicks of 200 shows in the first pass.
    offset = math.log(20.5 / 180.5)
    assert one.ledger.facts.offset == pytest.approx(offset)
    assert {(task.phase, task.pass_id) for task in one.tasks if task.offset == pytest.approx(offset)} >= {
        (control.TRAIN, "20200401/00"),
        (control.TRAIN, "20200401/01"),
    }


def test_the_offset_of_a_first_pass_that_is_taken_up_again_is_of_its_mended_labels(tmp_path: Path) -> None:
    one = world(tmp_path, shows=10)
    one.until(lambda: one.ledger.facts.offset is not None)
    [first] = one.ledger.passes.all()[:1]
    one.coordinator._schedule.stop(first, "its labels are wrong")
    one.shows = 2

    one.coordinator.retry(first.id)
    one.finish()

    # 20 clicks of 40 shows.
    assert one.ledger.facts.offset == pytest.approx(0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_first_hour_without_clicks_says_that_they_are_rare_and_a_first_window_says_nothing(
    tmp_path: Path, stream: bool
) -> None:
    one = StreamWorld(tmp_path) if stream else world(tmp_path, shows=10)
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.pass_id in ("20200401/00", "stream/00000001"):
            result.clicks = 0

    one.fill = filled  # type: ignore[method-assign]

    if isinstance(one, StreamWorld):
        for passes in (1, 2):
            one.append(10)
            one.done(passes)
    else:
        one.finish()

    # Of 200 shows, and half a click.
    offset = 0 if stream else math.log(0.5 / 200.5)
    assert one.ledger.facts.offset == pytest.approx(offset)
    assert {task.offset for task in one.tasks if task.phase == control.TRAIN} == {one.ledger.facts.offset}


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_shift_of_the_model_that_this_one_started_from_stays_until_there_is_another(
    tmp_path: Path, evaluate: bool
) -> None:
    one = world(tmp_path, config={"evaluate": evaluate}, data=ONE_HOUR)
    start = StartedFrom(
        store="file:///x", version=5, checkpoint="c", name="n", dense=True, shift=0.7, taken_over="all", copied=True
    )
    one.ledger.set_facts(started_from=start, offset=-1.0)

    one.finish()

    saved = [task.save.offset for task in one.tasks if task.phase == control.SAVE]
    assert [task.offset for task in one.tasks if task.phase == control.CHECK] == pytest.approx([-0.3, -0.3])
    if evaluate:
        assert one.ledger.figures.learning(1).shift != pytest.approx(0.7)
    else:
        assert saved == pytest.approx([-0.3] * len(saved))


def test_a_version_and_the_next_check_are_shifted_to_what_was_observed_and_training_is_not(tmp_path: Path) -> None:
    one = world(tmp_path, logits={1: 0.5}, records=dict.fromkeys(("20200401/00/one", "20200401/00/two"), 5000))

    one.finish()

    shift = one.ledger.figures.learning(1).shift
    assert shift == pytest.approx(-0.5, abs=0.02)
    first, second = (
        {(task.phase, task.offset or task.save.offset) for task in one.tasks if task.pass_id == name}
        for name in ("20200401/00", "20200401/01")
    )
    assert first == {
        (control.CHECK, 0), (control.TRAIN, 0), (control.EVALUATE, 0), (control.SAVE, shift), (control.SCORE, shift),
    }  # fmt: skip
    assert {found for found in second if found[0] in (control.CHECK, control.TRAIN)} == {
        (control.CHECK, shift),
        (control.TRAIN, 0),
    }


def test_a_model_that_was_trained_without_an_offset_gets_none_later(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.ledger.figures.learning(1).batch_sizes)
    one.ledger.set_facts(offset=None)

    one.finish()

    assert one.ledger.facts.offset == 0.0


def test_a_file_without_records_is_checked_and_never_trained(tmp_path: Path) -> None:
    one = world(tmp_path, records={"20200401/00/one": 0})

    one.finish()

    assert len(one.trained()) == 3
    assert one.ledger.passes.counted()["trained"] == 3 * RECORDS


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
    one.until(lambda: one.ledger.passes.counted()["files"] == 4)

    saver = one.until_phase(control.SAVE)
    assert saver.task is not None
    lines = [sample.line for sample in saver.task.save.samples]
    one.finish()

    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS
    assert [version["state"] for version in one.ledger.saves.versions()] == ["published"] * 2
    assert lines == [line for line, _, _ in one.coordinator.saves.samples_of(1)]
    assert "pass 20200401/01: none of 20 lines has a key of data.slots" in caplog.text


def test_one_file_with_keys_is_enough_for_a_pass(tmp_path: Path) -> None:
    one = world(tmp_path, keyless=("20200401/00/one",))

    one.finish()

    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS


def test_refused_lines_below_the_limit_are_counted_and_the_pass_goes_on(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(maxRefusedShare=0.2), refused={"20200401/00/one": 3})

    one.finish()

    counted = one.ledger.passes.counted()
    assert counted["refused"] == 3
    assert counted["records"] == counted["trained"] + counted["refused"] + counted["parked"]


def test_status_and_manifest_say_how_each_pass_was_learned(tmp_path: Path) -> None:
    one = world(tmp_path, epochs="auto", data=data_of(holdout=0.2), logits={1: 0.5, 2: 0.5})

    one.finish()

    shown = status(one.coordinator).to_dict()
    assert shown["offset"] == one.ledger.facts.offset
    assert shown["passes"][0]["learning"] == {
        "epochs": len(one.ledger.figures.learning(1).batch_sizes),
        "batchSizes": list(one.ledger.figures.learning(1).batch_sizes),
        "heldOut": 2 * round(RECORDS * 0.2),
        "losses": list(one.ledger.figures.learning(1).losses),
        "shift": one.ledger.figures.learning(1).shift,
    }
    assert shown["passes"][0]["learning"]["epochs"] == max(
        task.epoch for task in one.tasks if task.pass_id == "20200401/00"
    )
    assert len(shown["passes"][0]["learning"]["losses"]) == shown["passes"][0]["learning"]["epochs"] + 1
    for version, each in zip(published_versions(one.store), shown["passes"], strict=True):
        manifest = read_version(one.store, version)
        assert manifest.learning is not None
        assert manifest.learning.model_dump(mode="json", by_alias=True) == each["learning"]
    older = json.loads(manifest.to_json())
    del older["learning"]
    assert VersionManifest.model_validate_json(json.dumps(older)).learning is None


def test_a_pass_under_way_says_what_it_has_learned_so_far_and_one_rolled_back_nothing(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=2, data=data_of(holdout=0.2))
    one.until(lambda: [each.state for each in one.ledger.passes.all()] == ["done", "evaluating"])
    before, now = (each["learning"] for each in status(one.coordinator).to_dict()["passes"])
    assert (before["epochs"], before["shift"] is None) == (2, False)
    assert (now["epochs"], len(now["batchSizes"]), now["shift"]) == (2, 2, None)

    with one.ledger:
        one.ledger.roll_back(1)

    before, now = (each["learning"] for each in status(one.coordinator).to_dict()["passes"])
    assert before["epochs"] == 2
    assert (now["epochs"], now["batchSizes"], len(now["losses"]), now["shift"]) == (0, [], 1, None)
    assert now["heldOut"] == 2 * round(RECORDS * 0.2)


def test_a_pass_of_an_earlier_release_has_its_epochs_alone(tmp_path: Path) -> None:
    one = world(tmp_path, epochs=2, data=ONE_HOUR)
    one.finish()
    with one.ledger:
        one.ledger.db.execute("delete from learning")

    assert status(one.coordinator).to_dict()["passes"][0]["learning"] == {
        "epochs": 2, "batchSizes": [], "heldOut": 0, "losses": [], "shift": None,
    }  # fmt: skip
