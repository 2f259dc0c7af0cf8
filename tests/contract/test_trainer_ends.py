"""How a training process with Paddle in it ends: with the exit code that was meant, and when its supervisor tells it to."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.model import Model, digest_of_model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.training.trainer.supervisor import LEAVE_SIGNAL
from elastic_ctr.training.trainer.watchdog import REJOIN

# Paddle is imported in a process of its own: here it would stay.
PROGRAM = """
import sys
from types import SimpleNamespace
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer import process
from elastic_ctr.training.trainer.engine import Engine

class WithoutServers(Engine):
    def connect(self, trainer_id):
        print("connects", file=sys.stderr, flush=True)
        import paddle
        paddle.enable_static()
        self._paddle = paddle
        names = ("show", "click", "slot.a")
        self._graph = SimpleNamespace(feeds=[paddle.static.data(n, [None, 1], "int64", lod_level=1) for n in names])
    def close(self):
        pass

class Master:
    def __init__(self, *_):
        pass
    def call(self, method, request, give_up=None):
        if method == "JoinTrainer":
            return control.JoinReply(verdict=control.JoinReply.JOIN, trainer_id=1, generation=1, model_digest=sys.argv[5])
        if give_up is not None and give_up():
            return None
        if request.prefetch and sys.argv[4] == "rejoin":
            return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason="generation 1 is over")
        task = control.Task(id=f"l-1-{int(request.prefetch)}", attempt="x", phase=control.TRAIN, path="log", records=1, batch_size=16)
        return control.LeaseReply(verdict=control.LeaseReply.WORK, task=task)
    def call_once(self, method, request, timeout=10):
        return control.Acknowledgement()

process.Engine, process.MasterClient = WithoutServers, Master
process.ServerWatchdog.start = lambda self: None
process.main()
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("full", 1, "scratch folder must have room and be writable"),
        ("rejoin", REJOIN, "rejoining: generation 1 is over"),
    ],
)
def test_a_trainer_that_ends_while_a_file_is_read_ends_with_its_own_code(
    tmp_path: Path, ending: str, code: int, said: str
) -> None:
    tasks = tmp_path / "scratch/tasks"
    tasks.mkdir(parents=True)
    # Converted before, and long enough to be read for a while.
    (tasks / "l-1-0.txt").write_bytes(b"1 1 1 0 1 7\n" * 400_000)
    # A folder in the file's place cannot be written, whatever user runs this.
    (tasks / "l-1-1.part").mkdir()
    (tmp_path / "log").write_bytes(b"1 0 5:a\n")

    done = subprocess.run(command(tmp_path, ending), capture_output=True, text=True, check=False)

    assert done.returncode == code, done.stderr[-2000:]
    assert said in done.stderr


def test_a_trainer_that_is_told_to_leave_while_paddle_is_imported_leaves(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path, "leave"), stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stderr is not None
        while "connects" not in trainer.stderr.readline():
            assert trainer.poll() is None
        # The import takes seconds; Paddle's handlers stand during some of them.
        while trainer.poll() is None:
            trainer.send_signal(LEAVE_SIGNAL)
            time.sleep(0.02)
        said = trainer.stderr.read()

    assert trainer.returncode == 0, said[-2000:]


def command(folder: Path, ending: str) -> list[str]:
    data = Data(source=DataSource(url=f"file://{folder}"), start="20200401/00", slots=("a",))
    settings = TrainerFile(
        master_address="127.0.0.1:1",
        model=Model(),
        data=data,
        store=StoreConfig(url=f"file://{folder}/store"),
        trainer=TrainerConfig(scratch_dir=str(folder / "scratch")),
    )
    file = folder / "settings.json"
    file.write_text(settings.model_dump_json(by_alias=True))
    given = ["trainer-0", str(os.getpid()), ending, digest_of_model(Model(), settings.input)]
    return [sys.executable, "-c", PROGRAM, str(file), *given]
