"""A trainer's work on awkward rows, beside a real server: `python awkward_driver.py FOLDER`, a JSON document on stdout.

For each format: what the check of a task has found, what its training has counted, and whether every value of the model is a number then.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from bench.engine_beside_server import engine_beside_server, without_paddles_output

from contract.awkward_numbers import FEATURES, write_files
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.model.evaluation import BUCKETS
from elastic_ctr.training.trainer.conversions import Conversions
from elastic_ctr.training.trainer.engine import EngineBroken
from elastic_ctr.training.trainer.task_work import TaskWork
from training.trainer.process_world import Watchdog


def settings_of(folder: Path, form: str) -> TrainerFile:
    return TrainerFile(
        master_address="127.0.0.1:1",
        data=Data.model_validate(
            {"source": DataSource(url=f"file://{folder}"), "start": "20200401/00", "label": "label", "format": form}
        ),
        features=Features.model_validate(FEATURES),
        model=Model(),
        store=StoreConfig(url=f"file://{folder}/store"),
        trainer=TrainerConfig(scratch_dir=str(folder / "scratch")),
    )


def worked(folder: Path, form: str, name: str, engine: Any) -> dict[str, Any]:
    """Check, train, check again with what was learned."""
    settings = settings_of(folder, form)
    store = FileStore(folder / "store")
    watchdog: Any = Watchdog()
    source, conversions = FileSource(folder), Conversions(settings, store)
    work = TaskWork(settings, engine, watchdog, conversions, source, store, store)

    def task(number: int, phase: "control.Phase", **given: Any) -> control.Task:
        id_ = f"{form}-1-{number}"
        return control.Task(id=id_, attempt=id_, phase=phase, path=name, pass_id=form, batch_size=32, **given)

    first = work.check(task(0, control.CHECK))
    records = int(first.records)
    training = task(0, control.TRAIN, records=records, all_records=records, left_out=first.unpredictable)
    # As another trainer does, which has not checked it.
    (folder / "scratch" / "tasks" / f"{form}-1-0.txt").unlink()
    trained = work.round(training, work.prepare(training))
    again = work.check(task(1, control.CHECK))
    engine.pull_dense()
    return {
        "records": records,
        "refused": {each.reason: each.lines for each in first.refused},
        "trained": np.frombuffer(trained.positives + trained.negatives, "<f8").reshape(2, BUCKETS).sum(),
        "again": int(again.records) + sum(each.lines for each in again.refused),
        "finite": all(bool(np.isfinite(engine.dense_value(each)).all()) for each in engine.dense_names),
        "quarantine": [
            json.loads(line)
            for file in sorted((folder / "store" / "quarantine" / form).iterdir())
            for line in file.read_text().splitlines()
        ],
    }


def diverged(folder: Path, engine: Any) -> str:
    """What is said where a batch in training is no number, and is not seen before."""
    given = settings_of(folder, "csv").input
    line = f"1 1 1 1 {len(given.numbers)} {' '.join(['3e38'] * len(given.numbers))}" + " 1 5" * len(given.slots)
    good = f"1 1 1 1 {len(given.numbers)} {' '.join(['0.5'] * len(given.numbers))}" + " 1 5" * len(given.slots)
    (folder / "bad.txt").write_text(f"{good}\n{line}\n" * 4)
    try:
        engine.train(engine.ready(engine.preload(folder / "bad.txt", 2), 8))
    except EngineBroken as broken:
        engine.pull_dense()
        if all(np.isfinite(engine.dense_value(each)).all() for each in engine.dense_names):
            return str(broken)
    return ""


def main() -> None:
    out = without_paddles_output()
    folder = Path(sys.argv[1])
    files = write_files(folder)
    Watchdog.events = []
    given = settings_of(folder, "csv").input
    with engine_beside_server(Model(), given, folder) as engine:
        answer: dict[str, Any] = {form: worked(folder, form, name, engine) for form, name in files.items()}
        answer["diverged"] = diverged(folder, engine)
    os.write(out, f"{json.dumps(answer)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
