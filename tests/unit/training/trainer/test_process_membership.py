"""How a trainer joins, initialises, rejoins and leaves."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from elastic_ctr.config.model import Model, ModelInput, digest_of_model
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import ForeignMasterGrace
from elastic_ctr.training.model.networks.own import NetworkRefused
from elastic_ctr.training.trainer import process as module
from elastic_ctr.training.trainer.supervisor import WATCH_FILE
from elastic_ctr.training.trainer.task_work import TaskWork
from elastic_ctr.training.trainer.watchdog import REJOIN
from training.trainer.process_world import Dataset, Engine, Made, joined, task
from training.trainer.trainer_file import SLOTS


def test_the_one_initializer_pushes_first_values(trainer: Made) -> None:
    one, client = trainer(reply=joined(verdict=control.JoinReply.INITIALISE))

    one.run()

    assert Engine.calls[:2] == ["connect 3", "initialise"]
    assert "ReportInitialised" in [method for method, _ in client.said]


def test_an_initializer_with_a_checkpoint_loads_it_and_writes_it_out_to_be_counted(trainer: Made) -> None:
    one, _ = trainer(reply=joined(verdict=control.JoinReply.INITIALISE, load=True))

    one.run()

    assert Engine.calls[:3] == ["connect 3", "load load", "save verify checkpoint"]


def test_while_a_training_waits_for_a_server_the_supervisor_watches(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = trainer(task(0, control.TRAIN))
    file = Path(one._settings.trainer.scratch_dir) / WATCH_FILE
    trained, watched = Engine.train, []

    def train(self: Engine, dataset: Dataset, **given: Any) -> Any:
        watched.append(file.exists())
        return trained(self, dataset, **given)

    monkeypatch.setattr(Engine, "train", train)

    one.run()

    assert len(client.results()) == 1
    assert watched == [True]
    assert not file.exists()


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

    monkeypatch.setattr("elastic_ctr.training.trainer.process.time.sleep", its_own_comes)

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

    monkeypatch.setattr("elastic_ctr.training.trainer.process.time.sleep", later)

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
    monkeypatch.setattr(TaskWork, "save", lambda _self, _task: control.TaskResult())

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
