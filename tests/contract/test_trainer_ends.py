"""A training process that ends while Paddle reads a file in the background: its exit code is the one that was meant."""

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_ctr.config.data import Data, Source
from elastic_ctr.config.model import Model, digest_of_model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.roles import StoreConfig, TrainerConfig
from elastic_ctr.trainer.watchdog import REJOIN

# Paddle is imported in a process of its own: here it would stay.
PROGRAM = """
import sys
from types import SimpleNamespace
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.trainer import process
from elastic_ctr.trainer.engine import Engine

class WithoutServers(Engine):
    def connect(self, trainer_id):
        import paddle
        paddle.enable_static()
        self._paddle = paddle
        names = ("show", "click", "slot.a")
        self._graph = SimpleNamespace(feeds=[paddle.static.data(n, [None, 1], "int64", lod_level=1) for n in names])

class Master:
    def __init__(self, *_):
        pass
    def call(self, method, request, give_up=None):
        if method == "JoinTrainer":
            return control.JoinReply(verdict=control.JoinReply.JOIN, trainer_id=1, generation=1, model_digest=sys.argv[4])
        if request.prefetch and sys.argv[3] == "rejoin":
            return control.LeaseReply(verdict=control.LeaseReply.REJOIN, reason="generation 1 is over")
        task = control.Task(id=f"l-1-{int(request.prefetch)}", attempt="x", phase=control.TRAIN, path="log", records=1)
        return control.LeaseReply(verdict=control.LeaseReply.WORK, task=task)
    def call_once(self, method, request, timeout=10):
        return control.Acknowledgement()

process.Engine, process.MasterClient = WithoutServers, Master
process.Watchdog.start = lambda self: None
process.main()
"""


@pytest.mark.parametrize(("ending", "code"), [("full", 1), ("rejoin", REJOIN)])
def test_a_trainer_that_ends_while_a_file_is_read_ends_with_its_own_code(
    tmp_path: Path, ending: str, code: int
) -> None:
    tasks = tmp_path / "scratch/tasks"
    tasks.mkdir(parents=True)
    # Converted before, and long enough to be read for a while.
    (tasks / "l-1-0.txt").write_bytes(b"1 1 1 0 1 7\n" * 400_000)
    # A folder in the file's place cannot be written, whatever user runs this.
    (tasks / "l-1-1.part").mkdir()
    (tmp_path / "log").write_bytes(b"1 0 5:a\n")
    data = Data(source=Source(url=f"file://{tmp_path}"), start="20200401/00", slots=("a",))
    settings = TrainerFile(
        master_address="127.0.0.1:1",
        model=Model(),
        data=data,
        store=StoreConfig(url=f"file://{tmp_path}/store"),
        trainer=TrainerConfig(scratch_dir=str(tmp_path / "scratch")),
    )
    (tmp_path / "settings.json").write_text(settings.model_dump_json(by_alias=True))

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path / "settings.json"),
            "trainer-0",
            ending,
            digest_of_model(Model(), data.slots),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stderr[-2000:]
