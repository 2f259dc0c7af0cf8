"""What a trial orders of the engine, beside what a real master orders of its trainers for the same passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_ctr.config.model import ModelInput
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune.passes import ConvertedPiece, Hours, TrainedPass
from elastic_ctr.jobs.tune.trial import TrialFailed, TrialSpec, TrialTraining
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.model.evaluation import BUCKETS
from training.master.world import MODEL, World, data_of, histogram, world

Order = tuple[str, str, int, float]
"""train or predict, the file, the size of a batch (0: of predictions), what is added to the logits."""
HOURS = ("20200401/00", "20200401/01")
LOGITS = {1: 0.5, 2: 0.25, 3: 0.125}


class RecordingEngine:
    """Answers as the trainers of `World` do: half of what is shown is clicked, with one logit for all records of an epoch."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.said: list[dict[str, Any]] = []
        self.shrinks = 0
        self.broken = False
        self._offset = 0.0

    def preload(self, file: Path, batch_size: int) -> Any:
        return Dataset(file, batch_size)

    def ready(self, dataset: Any, records: int) -> Any:
        dataset.records = records
        return dataset

    def set_offset(self, value: float) -> None:
        self._offset = value

    def train(self, dataset: Any) -> None:
        self.orders.append(("train", dataset.file.name, dataset.batch_size, round(self._offset, 6)))

    def predict(self, dataset: Any) -> Any:
        self.orders.append(("predict", dataset.file.name, 0, round(self._offset, 6)))
        if self.broken:
            return np.full(BUCKETS, np.nan), np.full(BUCKETS, np.nan)
        trained = dataset.file.with_suffix(".trained" if dataset.file.suffix == ".held" else ".txt").name
        epochs = sum(order[:2] == ("train", trained) for order in self.orders)
        found = np.frombuffer(histogram(dataset.records, LOGITS.get(epochs, 0)))
        return found, found

    def flush(self) -> None: ...

    def shrink(self) -> None:
        self.shrinks += 1


class Dataset:
    def __init__(self, file: Path, batch_size: int) -> None:
        self.file, self.batch_size, self.records = file, batch_size, 0

    def release_memory(self) -> None: ...


def ordered_by_the_master(one: World) -> list[Order]:
    names = {control.TRAIN: "train", control.EVALUATE: "predict"}
    if one.data.holdout and one.epochs == "auto":
        # What it finds decides on epochs.
        names[control.CHECK] = "predict"
    one.finish()
    return [
        (names[task.phase], task.path, task.batch_size if task.phase == control.TRAIN else 0, round(task.offset, 6))
        for task in one.tasks
        if task.phase in names
    ]


def training_of(
    folder: Path, one: World, engine: "RecordingEngine", records: int, holdout: float, *, ends_day: bool = False
) -> TrialTraining:
    held = round(records * holdout)
    passes = tuple(
        TrainedPass(
            id=hour, shows=4 * records, clicks=2 * records, ends_day=ends_day,
            pieces=tuple(ConvertedPiece(file=f"{hour[-2:]}-{file}.txt", records=records, held_out=held) for file in one.files),
        )
        for hour in HOURS
    )  # fmt: skip
    hours = Hours(passes=passes, validation=(ConvertedPiece(file="validation.txt", records=5),), validated="x", share=1)
    spec = TrialSpec(
        model=MODEL, trainer=TrainerSettings(epochs=one.epochs), input=ModelInput(("a",)),
        evaluates=one.config.evaluate, holds_out=holdout > 0, hours=str(folder / "hours.json"), folder=str(folder),
    )  # fmt: skip
    return TrialTraining(engine, spec, hours, engine.said.append)  # type: ignore[arg-type]


def ordered_by_a_trial(folder: Path, one: World, records: int, holdout: float) -> tuple[list[Order], float]:
    """The orders, and what is added to the logits of the last version."""
    engine = RecordingEngine()
    training = training_of(folder, one, engine, records, holdout)
    training.run()
    assert [each["step"] for each in engine.said] == [1, 2]
    names = {f"{hour[-2:]}-{file}": f"{hour}/{file}" for hour in HOURS for file in one.files}
    orders = [
        (deed, names[file.partition(".")[0]], size, offset)
        for deed, file, size, offset in engine.orders
        if not file.startswith("validation")
    ]
    return orders, training._shift


@pytest.mark.parametrize("epochs", ["auto", 1, 3])
@pytest.mark.parametrize(("evaluate", "holdout"), [(True, 0.0), (False, 0.0), (True, 0.2)])
@pytest.mark.parametrize("records", [10, 3000])
def test_a_trial_trains_and_predicts_what_a_master_would_have_trained_and_predicted(
    tmp_path: Path, epochs: Any, evaluate: bool, holdout: float, records: int
) -> None:
    files = [f"{hour}/{file}" for hour in HOURS for file in ("one", "two")]
    one = world(
        tmp_path, epochs=epochs, config={"evaluate": evaluate}, data=data_of(holdout=holdout), logits=LOGITS,
        records=dict.fromkeys(files, records),
    )  # fmt: skip

    wanted = ordered_by_the_master(one)
    found, shift = ordered_by_a_trial(tmp_path, one, records, holdout)

    assert {name: of_file(found, name) for name in files} == {name: of_file(wanted, name) for name in files}
    assert len(found) == len(wanted)
    assert shift == pytest.approx(one.ledger.figures.learning(2).shift, abs=1e-6)
    assert bool(shift) == (evaluate or bool(holdout))


def of_file(orders: list[Order], name: str) -> list[Order]:
    """Two trainers work at the same time, so files have no common order."""
    return [order for order in orders if order[1] == name]


def test_a_day_that_ends_shrinks_the_table(tmp_path: Path) -> None:
    one = world(tmp_path)
    engine = RecordingEngine()
    training_of(tmp_path, one, engine, 10, 0.0, ends_day=True).run()

    assert engine.shrinks == 2


def test_predictions_that_are_not_numbers_end_the_trial_with_a_sentence(tmp_path: Path) -> None:
    engine = RecordingEngine()
    engine.broken = True

    with pytest.raises(TrialFailed, match="the training diverged"):
        training_of(tmp_path, world(tmp_path), engine, 10, 0.0).run()
