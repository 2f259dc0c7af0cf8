"""The trainer's process of most tests; a module may have one of its own."""

from pathlib import Path

import pytest

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer import process as module
from elastic_ctr.training.trainer.process import TrainerProcess
from training.trainer.process_world import LINES, Client, Engine, Made, Watchdog, joined
from training.trainer.trainer_file import settings_of


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(module, "Engine", Engine)
    monkeypatch.setattr(module, "ServerWatchdog", Watchdog)
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
