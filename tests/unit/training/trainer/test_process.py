"""The order of a trainer's work on its tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.model.evaluation import BUCKETS
from elastic_ctr.training.model.grouped_auc import NOTHING, sample_of
from elastic_ctr.training.trainer import task_work
from training.trainer.process_world import Engine, Made, Watchdog, task


def hold_out_lines(lines: bytes, share: float) -> int:
    """How many of these are held out, by another reading of the rule: the hash of what the engine gets behind show and click."""
    features = [b"1 %s\n" % line.split()[2].partition(b":")[0] for line in lines.splitlines()]
    return sum(xxhash.xxh3_64(record).intdigest() / 2**64 < share for record in features)


def test_a_task_is_converted_checked_and_predicted_and_then_trained_without_reading_it_again(trainer: Made) -> None:
    one, client = trainer(task(0, control.CHECK), task(0, control.TRAIN))

    assert one.run() == 0

    assert Engine.calls == [
        "connect 3",
        "preload l-1-0",
        "predict l-1-0",
        "preload l-1-0",
        "train l-1-0",
        "close",
    ]
    check, train = client.results()
    assert (check.records, check.error, [r.reason for r in check.refused]) == (2, "", ["no_colon"])
    assert [s.line for s in check.samples] == ["5:a", "6:a"]
    assert len(train.positives) == 8 * BUCKETS
    assert client.said[-1][0] == "LeaveTrainer"


def test_the_next_task_is_loaded_while_one_is_trained(trainer: Made) -> None:
    one, _ = trainer(task(0, control.TRAIN), task(1, control.TRAIN), task(2, control.TRAIN))

    assert one.run() == 0

    assert Engine.calls[1:-1] == [
        "preload l-1-0",
        "preload l-1-1",
        "train l-1-0",
        "preload l-1-2",
        "train l-1-1",
        "train l-1-2",
    ]


def test_the_answer_to_a_report_brings_the_next_task(trainer: Made) -> None:
    one, client = trainer(
        task(0, control.CHECK), task(0, control.TRAIN), task(1, control.CHECK), task(1, control.TRAIN)
    )
    client.answers_next = True

    assert one.run() == 0

    assert [each for each in Engine.calls if each.startswith("train")] == ["train l-1-0", "train l-1-1"]
    # Asked for: the first, one to prepare beside each training, and the last, which is not there.
    assert [request.prefetch for method, request in client.said if method == "LeaseTask"] == [False, True, True, False]
    assert client.results()[0].next.converted == ["l-1-0"]
    holds = [each for each in Watchdog.events if each.startswith("hold")]
    assert holds == ["hold l-1-0:x", "hold l-1-0:x", "hold l-1-1:x", "hold l-1-1:x"]


def test_a_report_asks_for_no_task_beside_one_that_is_prepared_nor_of_a_trainer_that_leaves(trainer: Made) -> None:
    one, client = trainer(task(0, control.TRAIN), task(1, control.TRAIN))
    client.answers_next = True
    one.run()

    assert [each.HasField("next") for each in client.results()] == [False, True]

    one, client = trainer(task(0, control.TRAIN), task(1, control.CHECK))
    client.answers_next = True
    train = Engine.train

    def leaves_meanwhile(engine: Engine, *given: Any, **more: Any) -> Any:
        one.stop()
        return train(engine, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "train", leaves_meanwhile)
        one.run()

    assert [each.HasField("next") for each in client.results()] == [False]
    assert len(client.tasks) == 1


def test_the_master_hears_that_a_task_runs_before_it_is_trained_and_a_release_before_its_result(trainer: Made) -> None:
    one, _ = trainer(task(0, control.TRAIN))

    one.run()

    assert Watchdog.events == ["hold l-1-0:x", "running l-1-0:x", "release l-1-0:x", "running "]


def test_an_evaluation_predicts_and_never_counts_as_running(trainer: Made) -> None:
    one, _ = trainer(task(0, control.EVALUATE))

    one.run()

    assert "predict l-1-0" in Engine.calls
    assert "running l-1-0:x" not in Watchdog.events


def test_records_are_trained_and_predicted_by_the_batch_size_and_offset_of_their_task(trainer: Made) -> None:
    one, _ = trainer(task(0, control.CHECK, offset=-1.5), task(0, control.TRAIN, batch_size=64, offset=-1.25))

    assert one.run() == 0

    assert Engine.batch_sizes == [32, 64]
    assert Engine.calls[-2] == "train l-1-0 at -1.25"


def test_held_out_records_are_checked_and_evaluated_and_never_trained(trainer: Made, tmp_path: Path) -> None:
    lines = b"".join(b"1 0 %d:a\n" % key for key in range(1, 101))
    (tmp_path / "logs/log").write_bytes(lines)
    held = hold_out_lines(lines, 0.3)
    one, client = trainer(
        task(0, control.CHECK, records=100, holdout=0.3),
        task(0, control.TRAIN, records=100 - held, all_records=100, holdout=0.3),
        task(0, control.EVALUATE, records=held, all_records=100, holdout=0.3),
    )

    assert one.run() == 0

    check, train, evaluated = client.results()
    assert (check.records, check.held_out, train.records, evaluated.records) == (100, held, 100 - held, held)
    assert [call for call in Engine.calls if not call.startswith(("connect", "close"))] == [
        "preload l-1-0", "predict l-1-0", "preload l-1-0", "train l-1-0", "preload l-1-0", "predict l-1-0",
    ]  # fmt: skip
    # The same records before and after training.
    assert Engine.predicted == [".held", ".held"]
    assert 10 < held < 50


def test_a_check_whose_held_out_part_is_empty_predicts_nothing(trainer: Made) -> None:
    one, client = trainer(task(0, control.CHECK, holdout=1e-9))

    assert one.run() == 0

    [check] = client.results()
    assert (check.error, check.held_out, check.positives) == ("", 0, b"")
    assert check.records > 0


def test_a_trainer_that_did_not_check_a_task_holds_out_the_same_records(trainer: Made, tmp_path: Path) -> None:
    lines = b"".join(b"1 0 %d:a\n" % key for key in range(1, 101))
    (tmp_path / "logs/log").write_bytes(lines)
    held = hold_out_lines(lines, 0.3)
    one, client = trainer(task(0, control.EVALUATE, records=held, all_records=100, holdout=0.3))

    assert one.run() == 0

    assert [(result.records, result.error) for result in client.results()] == [(held, "")]


@pytest.mark.parametrize("phase", [control.CHECK, control.TRAIN, control.EVALUATE])
@pytest.mark.parametrize(("of_the_task", "found"), [("a", 40), ("", None), ("b", None)])
def test_groups_are_reported_where_the_task_groups_by_the_slot_of_this_trainer(
    trainer: Made, phase: "control.Phase", of_the_task: str, found: int | None
) -> None:
    one, client = trainer(task(0, phase, group=of_the_task, group_rows=40), group="a")

    assert one.run() == 0

    [result] = client.results()
    assert (result.groups and sample_of(result.groups).bound) == (b"" if found is None else found)
    assert result.group == ("" if found is None else "a")
    assert Engine.group_rows == (found or 0)
    assert len(result.positives) == 8 * BUCKETS


def test_a_task_without_held_out_records_has_a_sample_without_groups(trainer: Made) -> None:
    one, client = trainer(
        task(0, control.CHECK, holdout=1e-9, group="a", group_rows=40),
        task(0, control.EVALUATE, records=0, all_records=2, holdout=1e-9, group="a", group_rows=40),
        group="a",
    )

    assert one.run() == 0

    assert [result.groups for result in client.results()] == [NOTHING.to_bytes()] * 2


@pytest.mark.parametrize("phase", [control.TRAIN, control.EVALUATE])
def test_a_task_without_records_of_its_phase_makes_no_call_of_the_engine(
    trainer: Made, tmp_path: Path, phase: "control.Phase"
) -> None:
    share = 0.999999 if phase == control.TRAIN else 1e-9
    one, client = trainer(task(0, phase, records=0, all_records=2, holdout=share))

    assert one.run() == 0

    assert [(result.records, result.error, result.positives) for result in client.results()] == [(0, "", b"")]
    assert "train l-1-0" not in Engine.calls
    assert "predict l-1-0" not in Engine.calls


def test_a_file_that_was_changed_since_its_check_fails_its_task_and_is_not_trained(trainer: Made) -> None:
    one, client = trainer(task(0, control.TRAIN, records=5), task(1, control.TRAIN))

    assert one.run() == 0

    first, second = client.results()
    assert first.error == "log has 2 good lines where its check found 5: it was changed"
    assert second.error == ""
    assert "train l-1-0" not in Engine.calls


def test_a_training_tells_the_keys_that_it_touches_where_it_is_to(trainer: Made) -> None:
    one, client = trainer(task(0, control.TRAIN, touched=True), task(1, control.TRAIN))

    assert one.run() == 0

    told, other = client.results()
    assert np.frombuffer(told.touched, "<u8").tolist() == [5, 6]
    assert np.frombuffer(told.touched_counts, "<f4").reshape(-1, 2).tolist() == [[1, 0], [2, 1]]
    assert (told.touched_told, other.touched_told, other.touched) == (True, False, b"")


def test_a_task_of_which_the_disk_lost_lines_is_neither_trained_nor_read_for_its_keys(
    trainer: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = tmp_path / "scratch/tasks/l-1-0.txt"
    converted.parent.mkdir(parents=True)
    converted.write_bytes(b"1 1 1 0 1 5 1 0\n")
    read: list[bytes] = []
    monkeypatch.setattr(task_work, "touched_keys", lambda text, *_, **__: read.append(text))
    one, client = trainer(task(0, control.TRAIN, touched=True))

    assert one.run() == 0

    assert [result.error for result in client.results()] == ["the scratch disk lost some"]
    assert (read, converted.exists(), "train l-1-0" in Engine.calls) == ([], False, False)


def test_a_file_that_is_gone_fails_its_task_and_the_trainer_goes_on(trainer: Made) -> None:
    one, client = trainer(task(0, control.CHECK, path="none"), task(1, control.CHECK))

    assert one.run() == 0

    assert ["none is not in" in result.error for result in client.results()] == [True, False]


def test_converted_files_of_another_pass_are_forgotten(trainer: Made, tmp_path: Path) -> None:
    stale = tmp_path / "scratch/tasks/l-0-0.txt"
    stale.parent.mkdir(parents=True)
    stale.touch()
    one, _ = trainer(task(0, control.CHECK))

    one.run()

    assert [file.name for file in stale.parent.iterdir()] == ["l-1-0.txt"]
