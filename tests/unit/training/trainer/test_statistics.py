"""A trainer's part in the statistics of the columns, with the engine and the master of `test_process`."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model, digest_of_model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.features.statistics.collector import merged
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.pinned_statistics import publish_statistics
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer import measurement as measurement_module
from elastic_ctr.training.trainer import process as module
from elastic_ctr.training.trainer.process import TrainerProcess
from training.trainer.process_world import Client, Engine, Watchdog, joined, task

HEADER = "click,price,device\n"
ROWS = "".join(f"{row % 2},{row},{'ab'[row % 3 == 0]}\n" for row in range(100))
FEATURES = Features.model_validate(
    {
        "price": {"type": "numeric", "transform": ["log1p", "standardize"]},
        "bucket": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 4}},
        "device": {"type": "categorical", "vocabulary": {"top": 1}},
    }
)
Made = Callable[..., tuple[TrainerProcess, Client]]


class Dense(Engine):
    """One that saves, too."""

    def pull(self, keys: Any) -> Any:
        return np.ones((len(keys), 9), np.float32)

    def score(self, pooled: Any, numbers: Any) -> Any:
        Engine.calls.append(f"score {len(pooled)} of {numbers.shape[1]} numbers")
        return np.full(len(pooled), 0.5, np.float32)

    def export_dense(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True)
        (folder / "net").write_bytes(b"net")
        return [folder / "net"]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(module, "Engine", Dense)
    monkeypatch.setattr(module, "ServerWatchdog", Watchdog)
    (tmp_path / "logs").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "logs/log.csv").write_text(HEADER + ROWS)

    def made(*tasks: control.Task, features: Features = FEATURES) -> tuple[TrainerProcess, Client]:
        settings = TrainerFile(
            master_address="127.0.0.1:1",
            data=Data(
                source=DataSource(url=f"file://{tmp_path}/logs"), start="20200401/00", format="csv", label="click"
            ),
            features=features,
            model=Model(),
            store=StoreConfig(url=f"file://{tmp_path}/store"),
            trainer=TrainerConfig(scratch_dir=str(tmp_path / "scratch")),
        )
        found = TrainerProcess("trainer-0", settings)
        found._client.close()
        client = Client(joined(model_digest=digest_of_model(Model(), settings.input)), list(tasks))
        found._client = client  # type: ignore[assignment]
        return found, client

    return made


def of(number: int, phase: "control.Phase", digest: str = "", **given: Any) -> control.Task:
    found = task(number, phase, path="log.csv", records=100)
    found.MergeFrom(control.Task(statistics=digest, **given))
    return found


def pinned(trainer: Made, store: FileStore) -> str:
    """The digest of the statistics of the log, in the store."""
    one, client = trainer(of(0, control.ANALYZE))
    one.run()
    return publish_statistics(store, merged({"log": client.results()[-1].statistics}))


def test_an_analysis_reports_statistics_of_every_column_and_of_numbers_after_their_steps(trainer: Made) -> None:
    one, client = trainer(of(0, control.ANALYZE))

    assert one.run() == 0

    [result] = client.results()
    found = merged({"log": result.statistics})
    assert (result.error, result.records) == ("", 100)
    assert set(found.numbers) == {"price", "price:log1p"}
    assert found.numbers["price"].max == 99
    assert dict(found.texts["device"].top) == {"a": 66, "b": 34}
    assert [call for call in Engine.calls if call.startswith(("predict", "train"))] == []


def test_an_analysis_counts_and_quarantines_refused_rows(trainer: Made, tmp_path: Path, store: FileStore) -> None:
    (tmp_path / "logs/log.csv").write_text(HEADER + "1,dear,a\n" + ROWS)
    one, client = trainer(of(0, control.ANALYZE))

    one.run()

    [result] = client.results()
    assert (result.records, [(each.reason, each.lines) for each in result.refused]) == (100, [("not_a_number", 1)])
    assert b"dear" in store.get_bytes("quarantine/p/log.csv-0.jsonl")


def test_the_same_trainer_then_checks_and_trains_with_the_statistics_that_its_tasks_name(
    trainer: Made, store: FileStore
) -> None:
    digest = pinned(trainer, store)
    one, client = trainer(of(0, control.ANALYZE), of(0, control.CHECK, digest), of(0, control.TRAIN, digest))

    assert one.run() == 0

    _, check, train = client.results()
    assert (check.error, check.records, train.error) == ("", 100, "")
    assert not check.statistics


def test_a_check_that_samples_reports_statistics_of_the_rows(trainer: Made, store: FileStore) -> None:
    digest = pinned(trainer, store)
    one, client = trainer(of(0, control.CHECK, digest, collect=True))

    one.run()

    [result] = client.results()
    assert merged({"log": result.statistics}).digest == digest


def test_a_check_that_samples_a_file_without_rows_reports_none(trainer: Made, store: FileStore, tmp_path: Path) -> None:
    digest = pinned(trainer, store)
    (tmp_path / "logs/log.csv").write_text(HEADER)
    one, client = trainer(of(0, control.CHECK, digest, collect=True))

    one.run()

    [result] = client.results()
    assert (result.error, result.records, result.statistics) == ("", 0, b"")


def test_features_json_of_a_version_holds_the_statistics_and_the_sample_is_scored_with_its_numbers(
    trainer: Made, store: FileStore
) -> None:
    digest = pinned(trainer, store)
    line = json.dumps({"price": 3, "device": "a"})
    order = control.SaveOrder(version=7, samples=[control.Sample(line=line, show=1, click=0)])
    one, client = trainer(of(0, control.SAVE, digest, save=order))

    one.run()

    [result] = client.results()
    document = json.loads(store.get_bytes(f"{layout.model_folder(7)}/features.json"))
    assert result.error == ""
    assert document["statistics"] == json.loads(store.get_bytes(layout.statistics_file(digest)))
    assert "score 1 of 1 numbers" in Engine.calls


@pytest.mark.parametrize("phase", [control.CHECK, control.TRAIN, control.SAVE])
def test_statistics_that_were_changed_by_hand_fail_the_task_with_a_sentence(
    trainer: Made, store: FileStore, tmp_path: Path, phase: "control.Phase"
) -> None:
    digest = pinned(trainer, store)
    file = tmp_path / "store" / layout.statistics_file(digest)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"99", b"98", 1))
    one, client = trainer(of(0, phase, digest))

    one.run()

    [result] = client.results()
    assert result.error == (
        f"output/statistics/{digest}.json in {store.url} was changed since it was pinned; put the file back, or begin with an "
        "empty state and store"
    )
    assert hashlib.sha256(file.read_bytes()).hexdigest() != digest


def test_statistics_that_are_gone_fail_the_task_with_a_sentence(trainer: Made) -> None:
    one, client = trainer(of(0, control.CHECK, "0" * 64))

    one.run()

    [result] = client.results()
    assert f"output/statistics/{'0' * 64}.json, which the features are made with, is not in" in result.error


def test_a_check_of_a_file_whose_every_row_is_refused_counts_them(
    trainer: Made, store: FileStore, tmp_path: Path
) -> None:
    digest = pinned(trainer, store)
    (tmp_path / "logs/log.csv").write_text(HEADER + "1,dear,a\n")
    one, client = trainer(of(0, control.CHECK, digest, collect=True))

    one.run()

    [result] = client.results()
    assert (result.error, result.records, sum(each.lines for each in result.refused)) == ("", 0, 1)
    # The column that is wrong may stand far behind the first bytes of its row.
    assert list(result.refused[0].examples) == [
        "the column 'price' is 'dear', which is not a decimal number such as -1.5e3"
    ]


@pytest.mark.parametrize("phase", [control.ANALYZE, control.CHECK])
def test_a_file_that_lacks_a_column_is_told_as_such(
    trainer: Made, store: FileStore, tmp_path: Path, phase: "control.Phase"
) -> None:
    digest = pinned(trainer, store)
    (tmp_path / "logs/log.csv").write_text("click,device\n1,a\n")
    one, client = trainer(of(0, phase, digest))

    one.run()

    [result] = client.results()
    assert result.columns_refused
    assert result.error == "log.csv lacks the column 'price'; it has 'click', 'device'."


def test_a_file_that_is_gone_is_no_refusal_of_its_columns(trainer: Made, tmp_path: Path) -> None:
    (tmp_path / "logs/log.csv").unlink()
    one, client = trainer(of(0, control.ANALYZE))

    one.run()

    [result] = client.results()
    assert result.error
    assert not result.columns_refused


def test_statistics_that_do_not_fit_into_a_result_are_refused_with_a_sentence(
    trainer: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_module, "MOST_BYTES", 100)
    one, client = trainer(of(0, control.ANALYZE))

    one.run()

    [result] = client.results()
    assert result.error.startswith("the statistics of 1 texts and 2 numbers have ")
    assert result.error.endswith("bytes, and a task's may have 100; leave features out, or lower data.taskBytes")
