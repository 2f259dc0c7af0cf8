"""The order of a trainer's work, with the master's answers and the engine's calls written down by the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import xxhash

from elastic_ctr.config.model import Model, ModelInput, digest_of_model
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.control.channel import ForeignMasterGrace
from elastic_ctr.model.evaluation import BUCKETS
from elastic_ctr.model.grouped_auc import NOTHING, GroupSample, sample_of
from elastic_ctr.model.networks.own import NetworkRefused
from elastic_ctr.store import StoreError, StoreUnavailable
from elastic_ctr.trainer import process as module
from elastic_ctr.trainer.process import TrainerProcess
from elastic_ctr.trainer.watchdog import REJOIN
from trainer.trainer_file import MODEL, SLOTS, settings_of

DIGEST = digest_of_model(MODEL, ModelInput(SLOTS))
LINES = b"1 0 5:a\n2 1 6:a\n1 0 17\n"


class Client:
    """Answers leases from a list, and leaves when it is empty."""

    def __init__(self, joined: control.JoinReply, tasks: list[control.Task | control.LeaseReply]) -> None:
        self.joined = joined
        self.tasks = tasks
        self.said: list[tuple[str, Any]] = []
        self.answer = control.Acknowledgement()

    def call(self, method: str, request: Any, *, give_up: Callable[[], bool] = lambda: False) -> Any:
        return None if give_up() else self.call_once(method, request)

    def call_once(self, method: str, request: Any, timeout: float = 10) -> Any:  # noqa: ARG002
        self.said.append((method, request))
        if method == "JoinTrainer":
            return self.joined
        if method != "LeaseTask":
            return self.answer
        if not self.tasks:
            return control.LeaseReply(verdict=control.LeaseReply.WAIT if request.prefetch else control.LeaseReply.LEAVE)
        if request.prefetch and isinstance(self.tasks[0], control.Task) and self.tasks[0].phase != control.TRAIN:
            return control.LeaseReply(verdict=control.LeaseReply.WAIT)
        coming = self.tasks.pop(0)
        if isinstance(coming, control.LeaseReply):
            return coming
        return control.LeaseReply(verdict=control.LeaseReply.WORK, task=coming)

    def close(self) -> None:
        pass

    def results(self) -> list[control.TaskResult]:
        return [request for method, request in self.said if method == "ReportTask"]


class Engine:
    calls: list[str]
    batch_sizes: list[int]
    predicted: list[str]
    offset: float
    group_rows: int

    def __init__(self, *_: object, **__: object) -> None:
        Engine.calls, Engine.batch_sizes, Engine.predicted, Engine.offset = [], [], [], 0.0

    def connect(self, trainer_id: int) -> None:
        self.calls.append(f"connect {trainer_id}")

    def initialise(self) -> None:
        self.calls.append("initialise")

    def flush(self) -> None:
        pass

    def pull_dense(self) -> None:
        pass

    def load(self, folder: str) -> None:
        self.calls.append(f"load {folder}")

    def count_rows(self) -> list[int]:
        return [7]

    def save(self, folder: str, mode: str) -> None:
        self.calls.append(f"save {folder} {mode}")

    def set_offset(self, value: float) -> None:
        Engine.offset = value

    def preload(self, file: Path, batch_size: int) -> "Dataset":
        Engine.batch_sizes.append(batch_size)
        self.calls.append(f"preload {file.stem}")
        return Dataset(file)

    def ready(self, dataset: "Dataset", records: int) -> "Dataset":
        if len(dataset.file.read_bytes().splitlines()) != records:
            raise RuntimeError("the scratch disk lost some")
        return dataset

    def train(self, dataset: "Dataset", *, group_rows: int = 0) -> Any:
        Engine.group_rows = group_rows
        self.calls.append(
            f"train {dataset.file.stem} at {Engine.offset:g}" if Engine.offset else f"train {dataset.file.stem}"
        )
        return np.ones(BUCKETS), np.zeros(BUCKETS)

    def predict(self, dataset: "Dataset", *, group_rows: int = 0) -> Any:
        Engine.group_rows = group_rows
        Engine.predicted.append(dataset.file.suffix)
        self.calls.append(f"predict {dataset.file.stem}")
        return np.ones(BUCKETS), np.zeros(BUCKETS)

    def groups(self) -> GroupSample:
        return GroupSample(Engine.group_rows, NOTHING.rows)

    def close(self) -> None:
        self.calls.append("close")


class Dataset:
    def __init__(self, file: Path) -> None:
        self.file = file

    def release_memory(self) -> None:
        pass

    def wait_preload_done(self) -> None:
        pass


class Watchdog:
    """Starts no thread: the real one would end this process."""

    events: list[str]

    def __init__(self, *_: object) -> None:
        Watchdog.events = []

    def start(self) -> None:
        pass

    def state(self) -> dict[str, object]:
        return {}

    def hold(self, attempt: str) -> None:
        self.events.append(f"hold {attempt}")

    def release(self, attempt: str) -> None:
        self.events.append(f"release {attempt}")

    def release_all(self) -> None:
        self.events.append("release all")

    def running(self, attempt: str) -> None:
        self.events.append(f"running {attempt}")


def joined(**given: Any) -> control.JoinReply:
    return control.JoinReply(
        **{"verdict": control.JoinReply.JOIN, "trainer_id": 3, "generation": 1, "model_digest": DIGEST, **given}
    )


def task(number: int, phase: "control.Phase", path: str = "log", records: int = 2, **others: Any) -> control.Task:
    name = f"l-1-{number}"
    given = {"records": records, "all_records": records, "batch_size": 32, **others}
    return control.Task(id=name, attempt=f"{name}:x", phase=phase, path=path, pass_id="p", samples=4, **given)


def hold_out_lines(lines: bytes, share: float) -> int:
    """How many of these are held out, by another reading of the rule: the hash of a record as the engine gets it."""
    records = [b"1 1 1 0 1 %s\n" % line.split()[2].partition(b":")[0] for line in lines.splitlines()]
    return sum(xxhash.xxh3_64(record).intdigest() / 2**64 < share for record in records)


Made = Callable[..., tuple[TrainerProcess, Client]]


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(module, "Engine", Engine)
    monkeypatch.setattr(module, "Watchdog", Watchdog)
    (tmp_path / "logs").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "logs/log").write_bytes(LINES)
    settings = settings_of(tmp_path / "scratch")

    def made(
        *tasks: control.Task | control.LeaseReply, reply: control.JoinReply | None = None, group: str = ""
    ) -> tuple[TrainerProcess, Client]:
        data = settings.data.model_copy(update={"group": group})
        found = TrainerProcess("trainer-0", settings.model_copy(update={"data": data}))
        found._client.close()
        client = Client(reply or joined(), list(tasks))
        found._client = client  # type: ignore[assignment]
        return found, client

    return made


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
def test_a_task_without_records_of_its_phase_asks_the_engine_for_nothing(
    trainer: Made, tmp_path: Path, phase: "control.Phase"
) -> None:
    share = 0.999999 if phase == control.TRAIN else 1e-9
    one, client = trainer(task(0, phase, records=0, all_records=2, holdout=share))

    assert one.run() == 0

    assert [(result.records, result.error, result.positives) for result in client.results()] == [(0, "", b"")]
    assert "train l-1-0" not in Engine.calls
    assert "predict l-1-0" not in Engine.calls


def test_a_file_that_was_changed_since_its_check_is_told_and_not_trained(trainer: Made) -> None:
    one, client = trainer(task(0, control.TRAIN, records=5), task(1, control.TRAIN))

    assert one.run() == 0

    first, second = client.results()
    assert first.error == "log has 2 good lines where its check found 5: it was changed"
    assert second.error == ""
    assert "train l-1-0" not in Engine.calls


def test_a_file_that_is_gone_is_told_and_the_trainer_goes_on(trainer: Made) -> None:
    one, client = trainer(task(0, control.CHECK, path="none"), task(1, control.CHECK))

    assert one.run() == 0

    assert ["none is not in" in result.error for result in client.results()] == [True, False]


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
    assert "trainer.config.scratchDir must have room and be writable" in said


def test_what_was_leased_ahead_goes_back_as_well(
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
    assert [dataset.file.stem for dataset in one._datasets] == ["l-1-0"]


def test_a_trainer_that_is_told_to_rejoin_holds_what_loads_until_it_has_ended(
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

    assert "l-1-1" in [dataset.file.stem for dataset in one._datasets]


def test_what_is_trained_is_held_no_longer(trainer: Made) -> None:
    one, _ = trainer(*(task(number, control.TRAIN) for number in range(3)))

    assert one.run() == 0

    assert one._datasets == []


def save_task() -> control.Task:
    step = control.SaveStep(name="checkpoint", folder="c")
    return control.Task(id="save:1", attempt="save:1", phase=control.SAVE, save=control.SaveOrder(steps=[step]))


def test_a_trainer_whose_scratch_fails_before_the_first_step_of_a_save_says_that_the_table_is_untouched(
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


def test_a_trainer_whose_scratch_fails_after_a_step_of_a_save_does_not_say_so(
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
def test_a_trainer_that_finds_the_store_away_says_so_unless_a_step_of_the_save_was_begun(
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

    monkeypatch.setattr(module, "convert_task", away)

    assert one.run() == 0

    [result] = client.results()
    assert (result.error, result.store_unavailable) == ("no space left in the store", True)


def test_a_source_that_cannot_be_read_is_the_tasks_failure_whatever_the_reason(trainer: Made, tmp_path: Path) -> None:
    (tmp_path / "logs/folder").mkdir()
    one, client = trainer(task(0, control.CHECK, path="folder"))

    assert one.run() == 0

    [result] = client.results()
    assert "Is a directory" in result.error


def test_the_one_initializer_pushes_first_values(trainer: Made) -> None:
    one, client = trainer(reply=joined(verdict=control.JoinReply.INITIALISE))

    one.run()

    assert Engine.calls[:2] == ["connect 3", "initialise"]
    assert "ReportInitialised" in [method for method, _ in client.said]


def test_an_initializer_with_a_checkpoint_loads_it_and_writes_it_out_to_be_counted(trainer: Made) -> None:
    one, _ = trainer(reply=joined(verdict=control.JoinReply.INITIALISE, load=True))

    one.run()

    assert Engine.calls[:3] == ["connect 3", "load load", "save verify checkpoint"]


def test_a_trainer_told_to_rejoin_ends_with_75(trainer: Made) -> None:
    one, _ = trainer(control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason="generation 1 is over"))

    with pytest.raises(SystemExit) as ended:
        one.run()

    assert ended.value.code == REJOIN


def test_a_trainer_with_other_settings_than_the_masters_ends_with_2_before_it_connects(trainer: Made) -> None:
    one, client = trainer(task(0, control.TRAIN), reply=joined(model_digest="other"))

    assert one.run() == 2
    assert client.results() == []


def test_a_trainer_that_met_the_master_before_its_own_joins_when_its_own_is_there(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = control.JoinReply(
        verdict=control.JoinReply.LEAVE, wrong_training=True, reason="training local was replaced"
    )
    one, client = trainer(task(0, control.TRAIN), reply=foreign)

    def its_own_comes(_: float) -> None:
        client.joined = joined()

    monkeypatch.setattr("elastic_ctr.trainer.process.time.sleep", its_own_comes)

    assert one.run() == 0

    assert [method for method, _ in client.said][:2] == ["JoinTrainer", "JoinTrainer"]
    assert [result.task_id for result in client.results()] == ["l-1-0"]


def test_a_trainer_whose_training_was_replaced_asks_for_a_while_and_ends(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    one, client = trainer(
        reply=control.JoinReply(
            verdict=control.JoinReply.LEAVE, wrong_training=True, reason="training local was replaced"
        )
    )
    one._foreign_master = ForeignMasterGrace(lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("elastic_ctr.trainer.process.time.sleep", later)

    assert one.run() == 0

    assert now[0] == pytest.approx(ForeignMasterGrace.SECONDS, abs=2)
    assert {method for method, _ in client.said} == {"JoinTrainer"}


def test_a_trainer_that_is_told_to_leave_says_so(trainer: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    one, client = trainer(task(0, control.TRAIN), task(1, control.TRAIN), task(2, control.TRAIN))
    trained = Engine.train

    def train(self: Engine, dataset: Dataset, **given: Any) -> Any:
        one.stop()
        return trained(self, dataset, **given)

    monkeypatch.setattr(Engine, "train", train)

    assert one.run() == 0

    # What was leased ahead is finished too; nothing new is taken.
    assert [result.task_id for result in client.results()] == ["l-1-0", "l-1-1"]
    method, leaver = client.said[-1]
    assert (method, leaver.reason) == ("LeaveTrainer", "")


def test_converted_files_of_another_pass_are_forgotten(trainer: Made, tmp_path: Path) -> None:
    stale = tmp_path / "scratch/tasks/l-0-0.txt"
    stale.parent.mkdir(parents=True)
    stale.touch()
    one, _ = trainer(task(0, control.CHECK))

    one.run()

    assert [file.name for file in stale.parent.iterdir()] == ["l-1-0.txt"]


def test_a_trainer_that_is_told_to_end_stays_for_the_save_where_the_master_needs_it(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = control.Task(id="save:1", attempt="save:1", phase=control.SAVE, save=control.SaveOrder())
    waits = control.LeaseReply(verdict=control.LeaseReply.WAIT, wait_seconds=0.05)
    one, client = trainer(task(0, control.TRAIN), waits, waits, save)
    client.answer = control.Acknowledgement(keep_running=True)
    trained = Engine.train

    def train(self: Engine, dataset: Dataset, **given: Any) -> Any:
        one.stop()
        return trained(self, dataset, **given)

    monkeypatch.setattr(Engine, "train", train)
    monkeypatch.setattr(TrainerProcess, "_save", lambda _self, _task: control.TaskResult())

    assert one.run() == 0

    calls = [method for method, _ in client.said if method in ("LeaveTrainer", "ReportTask")]
    assert calls == ["ReportTask", "LeaveTrainer", "ReportTask"]
    assert [result.task_id for result in client.results()] == ["l-1-0", "save:1"]


@pytest.mark.parametrize(("patience", "asked"), [(30, 3), (0, 1)])
def test_a_trainer_that_is_told_to_end_while_the_master_restarts_waits_for_its_word(
    trainer: Made, monkeypatch: pytest.MonkeyPatch, patience: float, asked: int
) -> None:
    one, client = trainer(reply=joined(leave_timeout_seconds=patience))
    answered, tries = client.call_once, []

    def away_at_first(method: str, request: Any, timeout: float = 10) -> Any:
        if method == "LeaveTrainer":
            tries.append(method)
            if len(tries) < 3:
                raise Away
        if method == "LeaseTask":
            one.stop()
        return answered(method, request, timeout)

    monkeypatch.setattr(client, "call_once", away_at_first)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)

    assert one.run() == 0

    assert len(tries) == asked


class Away(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def test_a_trainer_whose_network_is_refused_says_why_and_ends_with_2_before_it_joins(
    tmp_path: Path, trainer: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise NetworkRefused("model.network.source line 7 raises ValueError: no")

    monkeypatch.setattr(module, "start_paddle", lambda _model: None)
    monkeypatch.setattr(module, "inspect_own", refuse)
    one, client = trainer(task(0, control.TRAIN))
    own = Model.model_validate({"network": {"source": "def logit(inputs, settings): ...\n"}})
    one._settings = one._settings.model_copy(update={"model": own})

    assert one.run() == 2

    assert client.said == []
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == "this network cannot be trained: model.network.source line 7 raises ValueError: no"


def test_a_trainer_with_another_source_than_the_masters_ends_with_2(
    trainer: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "start_paddle", lambda _model: None)
    monkeypatch.setattr(module, "inspect_own", lambda *_: [])
    masters, own = (
        Model.model_validate({"network": {"source": f"def logit(inputs, settings): ...\n# {number}\n"}})
        for number in range(2)
    )
    one, client = trainer(reply=joined(model_digest=digest_of_model(masters, ModelInput(SLOTS))))
    one._settings = one._settings.model_copy(update={"model": own})

    assert one.run() == 2

    assert [method for method, _ in client.said] == ["JoinTrainer"]
    assert "this trainer's model settings are not the master's; give all roles the same values file" in caplog.text
