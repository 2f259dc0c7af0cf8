"""Deltas of a stream: what is published is what was trained, whatever is lost between, and no save walks the table for it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.config.training_settings import LiveLoss
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_checkpoint, read_version
from elastic_ctr.store.versions.safeguards import Refusal, write_refusal
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.key_table import Touched
from elastic_ctr.training.master.saves import planning
from training.master.stream_world import LINE, StreamWorld
from training.master.world import LEASE, Trainer


def stream(folder: Path, **given: object) -> StreamWorld:
    """With a base, and no save due after it. `given`: further settings of the stream."""
    one = StreamWorld(folder, stream={"window_ms": 100, "checkpoint_seconds": 3600, **given})
    one.append(10)
    one.done(1)
    return one


def steps_of(one: StreamWorld, ordinal: int) -> tuple[str, ...]:
    save = one.ledger.saves.of(ordinal)
    assert save is not None
    return save.steps


def until_saving(one: StreamWorld) -> Trainer:
    def saving() -> list[Trainer]:
        return [each for each in one.trainers if each.task is not None and each.task.phase == control.SAVE]

    one.until(saving)
    return saving()[0]


def test_deltas_have_the_trained_keys_in_one_file_and_walk_no_table(tmp_path: Path) -> None:
    one = stream(tmp_path)
    for number in range(3):
        one.append(10, f"file-{number}")
        one.append(5)
        one.done(number + 2)

    assert [steps_of(one, ordinal) for ordinal in (1, 2, 3, 4)] == [("base", "checkpoint"), *3 * [("touched",)]]
    assert one.trained_is_answered()
    for version in one.ledger.saves.versions()[1:]:
        manifest = read_version(one.store, version["id"])
        assert manifest.in_one_file
        assert {name: stop - start for name, (start, stop) in manifest.offsets.items()} == {
            "clicks": 5 * len(LINE), f"file-{version['pass'] - 2}": 10 * len(LINE)
        }  # fmt: skip
        assert [each.records for each in manifest.cube_files] == [2]
        assert manifest.keys == version["keys"] == 2


def test_a_save_of_the_table_comes_by_time(tmp_path: Path) -> None:
    one = stream(tmp_path)
    one.append(10)
    one.done(2)
    one.now += 3600
    one.append(10)
    one.done(3)

    assert steps_of(one, 2) == ("touched",)
    assert steps_of(one, 3) == ("checkpoint", "touched")
    assert [(each["pass"], each["stands_on"]) for each in one.ledger.saves.checkpoints()] == [(1, ""), (3, "")]


def test_between_two_saves_a_recovery_returns_to_the_deltas_published_since(tmp_path: Path) -> None:
    one = stream(tmp_path)
    for number in range(4):
        one.now += 3
        one.append(10)
        one.done(number + 2)
    saved, by_log = one.ledger.saves.checkpoints()
    assert (saved["pass"], by_log["pass"], by_log["stands_on"]) == (1, 5, saved["name"])
    assert len(read_checkpoint(one.store, by_log["name"]).log) == 4
    one.append(10)
    one.until_trained().work()

    one.pservers[0].restart()
    one.append(10)
    one.done(7)

    assert one.coordinator.generation == 2
    assert one.in_the_table() == one.appended()
    assert one.trained_is_answered()
    # The pass that was lost, and nothing of those before it.
    assert one.ledger.recoveries()[-1]["rolled_back"] == 0
    # The log goes on where it was.
    one.now += 6
    one.append(10)
    one.done(8)
    newest = read_checkpoint(one.store, one.ledger.saves.checkpoints()[-1]["name"])
    assert (newest.stands_on, newest.pass_ordinal) == (saved["name"], 8)
    assert list(newest.log) == one.ledger.saves.chain()[1:]


def test_a_log_that_did_not_load_whole_is_loaded_again_and_set_aside_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = stream(tmp_path)
    one.now += 6
    one.append(10)
    one.done(2)
    [_, by_log] = one.ledger.saves.checkpoints()
    one.append(10)
    one.until_trained()
    initialise = Trainer.initialise

    def loses(self: Trainer) -> None:
        """One row of each load is lost on the way."""
        report = one.coordinator.initialised_by
        with monkeypatch.context() as patch:
            patch.setattr(one.coordinator, "initialised_by", lambda given: report(_with_one_less(given)))
            initialise(self)

    monkeypatch.setattr(Trainer, "initialise", loses)
    one.pservers[0].restart()
    one.done(3)

    assert one.ledger.saves.damaged_checkpoints()[0]["name"] == by_log["name"]
    assert "did not load whole: the pservers hold" in caplog.text
    assert one.in_the_table() == one.appended()
    assert one.trained_is_answered()


def _with_one_less(member: control.Membership) -> control.Membership:
    for index, rows in enumerate(member.rows):
        member.rows[index] = rows - 1
    return member


def test_a_delta_that_was_refused_at_the_pass_of_a_save_leaves_a_gap_so_the_table_is_saved_again(
    tmp_path: Path,
) -> None:
    one = stream(tmp_path)
    one.now += 3600
    one.config = one.config.model_copy(update={"max_publish_loss": -1.0})
    one.start_master()
    one.append(10)
    one.done(2)
    one.config = one.config.model_copy(update={"max_publish_loss": 1.0})
    one.start_master()
    for number in (3, 4):
        one.now += 6
        one.append(10)
        one.done(number)

    assert [steps_of(one, ordinal) for ordinal in (2, 3, 4)] == [
        ("checkpoint", "touched"),
        ("checkpoint", "touched"),
        ("touched",),
    ]
    assert [bool(each["stands_on"]) for each in one.ledger.saves.checkpoints()] == [False, False, True]


@pytest.mark.parametrize("work", [False, True])
@pytest.mark.parametrize("how", ["killed", "leaves", "fails", "master restarts"])
def test_a_save_by_key_that_is_lost_is_made_again_and_recovers_nothing(tmp_path: Path, how: str, work: bool) -> None:
    one = stream(tmp_path)
    one.append(10)
    saver = until_saving(one)
    if work:
        saver.work()

    def killed() -> None:
        one.trainers.remove(saver)
        one.now += LEASE

    ways: dict[str, Callable[[], object]] = {
        "killed": killed,
        "leaves": lambda: saver.leave("its disk is full"),
        "fails": lambda: saver.report(error="no luck"),
        "master restarts": one.start_master,
    }
    ways[how]()
    one.append(5)
    one.done(3)

    assert one.coordinator.generation == 1
    assert one.in_the_table() == one.appended()
    assert one.trained_is_answered()


def test_the_third_failure_of_a_save_by_key_stops_the_pass(tmp_path: Path) -> None:
    one = stream(tmp_path)
    one.append(10)
    for _ in range(3):
        until_saving(one).report(error="the values of 1 of 9 keys are no numbers")

    assert "the values of 1 of 9 keys are no numbers" in one.reason()


def test_keys_of_a_refused_version_are_in_the_next_one_which_is_no_base(tmp_path: Path) -> None:
    one = stream(tmp_path)
    for limit in (-1.0, 1.0):
        one.config = one.config.model_copy(update={"max_publish_loss": limit})
        one.start_master()
        one.append(10)
        versions = len(one.ledger.saves.versions())
        one.until(lambda: len(one.ledger.saves.versions()) > versions)  # noqa: B023 (called at once)

    assert [each["state"] for each in one.ledger.saves.versions()] == ["published", "refused", "published"]
    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta", "delta"]
    assert one.trained_is_answered()


def test_a_micro_pass_that_is_foretold_far_worse_than_those_before_it_makes_no_version(tmp_path: Path) -> None:
    one = stream(tmp_path)
    # So many clicks would hold publishing.
    one.config = one.config.model_copy(update={"max_live_loss": LiveLoss(auc=1, calibration=1000)})
    one.start_master()
    for number in (2, 3):
        one.append(1000)
        one.done(number)
    # A model that has come apart: clicks are predicted far too seldom.
    one.logits = {1: -3.0}
    one.append(1000)
    one.done(4)
    one.logits = {}
    one.append(1000)
    one.done(5)

    assert [each["state"] for each in one.ledger.saves.versions()] == [*3 * ["published"], "refused", "published"]
    [refused] = [each["reason"] for each in one.ledger.saves.versions() if each["reason"]]
    assert (
        "of pass stream/00000004 after training is farther from 1 than the 1.0020 of the 3 published passes before it"
        in refused
    )
    # What it has trained is in the next one.
    assert one.trained_is_answered()


def test_after_a_version_that_transfer_refused_the_next_one_is_a_base(tmp_path: Path) -> None:
    one = stream(tmp_path)
    one.append(10)
    one.done(2)
    write_refusal(
        one.store, Refusal(version=one.ledger.saves.chain()[-1], reason="scores differ", refused_at=int(one.now))
    )
    one.append(10)
    one.done(3)

    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta", "base"]
    assert one.trained_is_answered()


def test_a_task_whose_keys_are_not_known_makes_the_next_version_a_base(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stream(tmp_path)
    # As of a pass that an earlier release has trained.
    monkeypatch.setattr(one.ledger.keys, "add", lambda *_: None)
    one.append(10)
    one.done(2)

    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "base"]
    assert "which keys were trained since the last version is not known" in caplog.text
    assert one.trained_is_answered()


def test_a_task_that_does_not_tell_its_keys_makes_the_next_version_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stream(tmp_path)
    fill = one.fill

    def many(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.phase == control.TRAIN:
            result.touched, result.touched_counts, result.touched_told = b"", b"", False

    with monkeypatch.context() as patch:
        patch.setattr(one, "fill", many)
        one.append(10)
        one.done(2)
    one.append(10)
    one.done(3)

    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "base", "delta"]
    assert one.trained_is_answered()


def test_behind_a_recovery_to_an_older_checkpoint_a_base_has_what_is_not_known(tmp_path: Path) -> None:
    one = stream(tmp_path)
    one.now += 3600
    one.append(10)
    one.done(2)
    for number in (3, 4):
        one.now += 6
        one.append(10)
        one.done(number)
    first, saved, by_log = one.ledger.saves.checkpoints()
    one.damaged = {saved["name"], by_log["name"]}
    one.append(10)
    one.until_trained()

    one.pservers[0].restart()
    one.done(5)

    assert one.ledger.saves.damaged_checkpoints()[-1]["name"] == by_log["name"]
    assert one.ledger.saves.checkpoints()[0]["name"] == first["name"]
    assert one.in_the_table() == one.appended()
    assert one.trained_is_answered()


def test_a_task_without_a_key_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stream(tmp_path)
    fill = one.fill

    def keyless(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.phase == control.TRAIN:
            result.touched, result.touched_counts = b"", b""

    monkeypatch.setattr(one, "fill", keyless)
    one.append(10)
    one.done(2)

    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta"]
    manifest = read_version(one.store, one.ledger.saves.versions()[-1]["id"])
    assert manifest.cube_files[0].path == layout.cube_file(manifest.version, "delta", 0, 1)


def test_a_long_chain_of_deltas_ends_with_a_base_and_keys_that_no_delta_needs_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No compaction begins without a checkpoint by log, for which time must go on.
    monkeypatch.setattr(planning, "_LONGEST_CHAIN", 3)
    one = stream(tmp_path, compact_versions=1)
    for number in range(7):
        one.append(3)
        one.done(number + 2)

    kinds = [each["kind"] for each in one.ledger.saves.versions()]
    assert kinds == ["base", "delta", "delta", "base", "delta", "delta", "base", "delta"]
    assert one.trained_is_answered()
    oldest = one.ledger.saves.checkpoints()[0]["pass"]
    [kept] = one.ledger.one("select min(pass) from touched")
    assert kept > oldest


def test_keys_since_a_version_are_sorted_and_each_once_with_all_their_shows(tmp_path: Path) -> None:
    one = stream(tmp_path)
    for name, keys in (("one", [2, 5, 9]), ("two", [1, 5])):
        counts = np.array([[key, 1] for key in keys], np.float32)
        one.ledger.keys.add(name, 7, Touched(np.array(keys, np.uint64), counts))

    touched = one.ledger.keys.since(one.ledger.facts.follows)

    assert touched.keys.tolist() == [1, 2, 5, 9]
    assert touched.counts.tolist() == [[1, 1], [2, 1], [10, 2], [9, 1]]
