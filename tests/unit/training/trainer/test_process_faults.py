"""What a trainer says and gives back when its scratch, the store or the source fails, or its generation is over."""

from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.store.backends import StoreError, StoreUnavailable
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer import process as module
from elastic_ctr.training.trainer import task_work
from elastic_ctr.training.trainer.engine import EngineBroken
from elastic_ctr.training.trainer.watchdog import REJOIN
from training.trainer.process_world import Dataset, Engine, Made, Watchdog, task


@pytest.mark.parametrize("phase", [control.CHECK, control.TRAIN])
def test_a_trainer_that_cannot_write_to_its_scratch_gives_its_task_back_and_ends_with_one_sentence(
    trainer: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture, phase: "control.Phase"
) -> None:
    # A file in the folder's place cannot be written into, whatever user runs this.
    (tmp_path / "scratch/tasks").write_bytes(b"")
    one, client = trainer(task(0, phase), task(1, phase))

    assert one.run() == 1

    assert client.results() == []
    method, leaver = client.said[-1]
    assert method == "LeaveTrainer"
    assert f"{tmp_path}/scratch/tasks" in leaver.reason
    assert Watchdog.events == ["hold l-1-0:x", "release all"]
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{tmp_path}/scratch/tasks" in said
    assert "the trainer's scratch folder must have room and be writable" in said


def test_a_task_that_was_leased_ahead_goes_back_as_well(
    trainer: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(task(0, control.TRAIN), task(1, control.TRAIN))
    preload = Engine.preload

    def then_the_disk_is_away(self: Engine, file: Path, batch_size: int) -> Dataset:
        (tmp_path / "scratch/tasks").rename(tmp_path / "scratch/away")
        (tmp_path / "scratch/tasks").write_bytes(b"")
        return preload(self, file, batch_size)

    monkeypatch.setattr(Engine, "preload", then_the_disk_is_away)

    assert one.run() == 1

    assert client.results() == []
    assert Watchdog.events == ["hold l-1-0:x", "hold l-1-1:x", "release all"]
    # Dropped while it loads it would abort the process.
    assert [dataset.file.stem for dataset in one._work._datasets] == ["l-1-0"]


def test_a_trainer_that_has_to_rejoin_keeps_a_dataset_that_loads_until_the_process_ends(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(task(0, control.TRAIN), task(1, control.TRAIN))
    trained = Engine.train

    def then_the_generation_is_over(self: Engine, dataset: Dataset, **given: Any) -> Any:
        client.answer = control.Acknowledgement(rejoin=True, reason="generation 1 is over")
        return trained(self, dataset, **given)

    monkeypatch.setattr(Engine, "train", then_the_generation_is_over)

    with pytest.raises(SystemExit):
        one.run()

    assert "l-1-1" in [dataset.file.stem for dataset in one._work._datasets]


def test_the_datasets_of_trained_tasks_are_released(trainer: Made) -> None:
    one, _ = trainer(*(task(number, control.TRAIN) for number in range(3)))

    assert one.run() == 0

    assert one._work._datasets == []


def save_task() -> control.Task:
    step = control.SaveStep(name="checkpoint", folder="c")
    return control.Task(id="save:1", attempt="save:1", phase=control.SAVE, save=control.SaveOrder(steps=[step]))


def test_a_trainer_whose_scratch_fails_before_a_step_of_a_save_reports_the_table_unchanged(
    trainer: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(save_task(), save_task())
    reports = client.call_once

    def then_the_disk_is_away(method: str, request: Any, timeout: float = 10) -> Any:
        if method == "ReportTask":
            (tmp_path / "scratch/watch.part").mkdir()
        return reports(method, request, timeout)

    monkeypatch.setattr(client, "call_once", then_the_disk_is_away)

    assert one.run() == 1

    # The first save took its step, and was reported.
    assert Engine.calls.count("save c checkpoint") == len(client.results()) == 1
    leaver = client.said[-1][1]
    assert leaver.table_unchanged
    assert "watch.part" in leaver.reason


def test_a_trainer_whose_scratch_fails_after_a_step_of_a_save_does_not_report_the_table_unchanged(
    trainer: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(save_task())

    def then_the_disk_is_away(*_: object, **__: object) -> None:
        (tmp_path / "scratch/watch.json").unlink()
        (tmp_path / "scratch/watch.json").mkdir()

    monkeypatch.setattr(Engine, "save", then_the_disk_is_away)

    assert one.run() == 1

    leaver = client.said[-1][1]
    assert not leaver.table_unchanged
    assert "watch.json" in leaver.reason


@pytest.mark.parametrize(
    ("fails", "stepped", "away"),
    [
        (StoreUnavailable("the store does not answer"), False, True),
        (StoreUnavailable("the store does not answer"), True, False),
        (StoreError("another file stands there"), False, False),
    ],
)
def test_a_trainer_reports_the_store_as_away_unless_a_step_of_the_save_was_begun(
    trainer: Made, monkeypatch: pytest.MonkeyPatch, fails: Exception, stepped: bool, away: bool
) -> None:
    one, client = trainer(save_task())
    monkeypatch.setattr(module, "_STORE_AWAY_SECONDS", 0)

    def fail(*_: object, **__: object) -> None:
        raise fails

    monkeypatch.setattr(Engine, "save" if stepped else "pull_dense", fail)

    assert one.run() == 0

    [result] = client.results()
    assert result.error == str(fails)
    assert (result.table_unchanged, result.table_unchanged and result.store_unavailable) == (not stepped, away)


@pytest.mark.parametrize("phase", [control.CHECK, control.TRAIN])
def test_a_source_or_store_that_is_away_is_named_as_such_in_every_phase(
    trainer: Made, monkeypatch: pytest.MonkeyPatch, phase: "control.Phase"
) -> None:
    one, client = trainer(task(0, phase))
    monkeypatch.setattr(module, "_STORE_AWAY_SECONDS", 0)

    def away(*_: object) -> None:
        raise StoreUnavailable("no space left in the store")

    monkeypatch.setattr(task_work, "convert_task", away)

    assert one.run() == 0

    [result] = client.results()
    assert (result.error, result.store_unavailable) == ("no space left in the store", True)


def test_a_source_that_cannot_be_read_is_the_tasks_failure_whatever_the_reason(trainer: Made, tmp_path: Path) -> None:
    (tmp_path / "logs/folder").mkdir()
    one, client = trainer(task(0, control.CHECK, path="folder"))

    assert one.run() == 0

    [result] = client.results()
    assert "Is a directory" in result.error


def test_a_trainer_whose_engine_was_stopped_in_a_batch_reports_it_gives_back_the_rest_and_begins_anew(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(task(0, control.TRAIN), task(1, control.TRAIN), task(2, control.TRAIN))

    def diverges(*_: object, **__: object) -> None:
        raise EngineBroken("a prediction is not a number, so the training has diverged: lower the learning rates")

    monkeypatch.setattr(Engine, "train", diverges)

    with pytest.raises(SystemExit) as ended:
        one.run()

    assert ended.value.code == REJOIN
    [result] = client.results()
    assert "the training has diverged" in result.error
    # No loss of the task that was leased ahead.
    method, leaver = client.said[-1]
    assert (method, leaver.reason) == ("LeaveTrainer", "")
    assert Watchdog.events[-1] == "release all"
