"""A trainer's process without Paddle: the master's answers come from a list, and the engine's calls are written down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.config.model import ModelInput, digest_of_model
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.model.evaluation import BUCKETS
from elastic_ctr.training.model.grouped_auc import NOTHING, GroupSample
from elastic_ctr.training.trainer.process import TrainerProcess
from training.trainer.trainer_file import MODEL, SLOTS

DIGEST = digest_of_model(MODEL, ModelInput(SLOTS))
LINES = b"1 0 5:a\n2 1 6:a\n1 0 17\n"


class Client:
    """Answers leases from a list, and leaves when it is empty."""

    def __init__(self, joined: control.JoinReply, tasks: list[control.Task | control.LeaseReply]) -> None:
        self.joined = joined
        self.tasks = tasks
        self.said: list[tuple[str, Any]] = []
        self.answer = control.Acknowledgement()
        # An earlier release's master does not answer `next`.
        self.answers_next = False

    def call(self, method: str, request: Any, *, give_up: Callable[[], bool] = lambda: False) -> Any:
        return None if give_up() else self.call_once(method, request)

    def call_once(self, method: str, request: Any, timeout: float = 10) -> Any:  # noqa: ARG002
        self.said.append((method, request))
        if method == "JoinTrainer":
            return self.joined
        if method == "ReportTask" and self.answers_next and request.HasField("next"):
            return control.Acknowledgement(next=self._lease(request.next))
        return self._lease(request) if method == "LeaseTask" else self.answer

    def _lease(self, request: control.LeaseRequest) -> control.LeaseReply:
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


Made = Callable[..., tuple[TrainerProcess, Client]]
