import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.training.trainer import supervisor
from elastic_ctr.training.trainer.supervisor import (
    SETTINGS_FILE,
    STOPPED,
    WATCH_FILE,
    TrainerSupervisor,
    _DelegatedWatchdog,
)
from elastic_ctr.training.trainer.watchdog import ServerWatchdog
from training.trainer.trainer_file import settings_of
from waiting import until

Run = Callable[[str], int]


def supervised(scratch: Path, *, grace_seconds: float = 600, **given: Any) -> TrainerSupervisor:
    return TrainerSupervisor("trainer-7", settings_of(scratch, **given), grace_seconds)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A real process of a few lines in the place of the one with Paddle; its arguments are the settings file and a name."""
    popen = subprocess.Popen

    def made(program: str) -> None:
        def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
            assert command[1:3] == ["-m", "elastic_ctr.training.trainer.process"]
            return popen([sys.executable, "-c", textwrap.dedent(program), *command[3:]], **options)

        monkeypatch.setattr(subprocess, "Popen", start)
        monkeypatch.setattr(supervisor, "_SHORTEST_LIFE", 0.0)

    return made


COUNTING = """
    import pathlib, sys
    lives = pathlib.Path(sys.argv[1]).parent / "lives"
    lives.write_text((lives.read_text() if lives.exists() else "") + "x")
"""


def lives(folder: Path) -> int:
    return len((folder / "lives").read_text())


def test_a_child_that_rejoins_is_started_again_until_it_ends_well(tmp_path: Path, child: Callable[[str], None]) -> None:
    child(COUNTING + "    sys.exit(75 if len(lives.read_text()) < 3 else 0)")

    code = supervised(tmp_path).run(threading.Event())

    assert code == 0
    assert lives(tmp_path) == 3


def test_a_child_is_started_without_a_fork_of_this_process_which_has_threads_of_grpc(
    tmp_path: Path, child: Callable[[str], None]
) -> None:
    child("import os, sys; sys.exit(0 if int(sys.argv[3]) == os.getppid() else 1)")
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(os.getpid()))

    assert supervised(tmp_path).run(threading.Event()) == 0
    assert forks == []


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(1)", 1), ("import os; os.abort()", 1), ("sys.exit(2)", 2)])
def test_a_child_that_ends_otherwise_is_not_started_again(
    tmp_path: Path, child: Callable[[str], None], ending: str, code: int
) -> None:
    child(COUNTING + f"    {ending}")

    assert supervised(tmp_path).run(threading.Event()) == code
    assert lives(tmp_path) == 1


def test_a_trainer_that_does_not_end_waits_for_the_next_work(tmp_path: Path, child: Callable[[str], None]) -> None:
    child(COUNTING + "    sys.exit(0 if len(lives.read_text()) < 2 else 2)")

    assert supervised(tmp_path, exit_when_done=False).run(threading.Event()) == 2
    assert lives(tmp_path) == 2


def test_the_settings_and_the_name_reach_the_child(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("""
        import pathlib, sys
        from elastic_ctr.config.role_files import TrainerFile
        found = TrainerFile.model_validate_json(pathlib.Path(sys.argv[1]).read_text())
        sys.exit(0 if (found.master_address, sys.argv[2]) == ("127.0.0.1:1", "trainer-7") else 1)
    """)

    assert supervised(tmp_path).run(threading.Event()) == 0


def test_the_wish_to_leave_is_passed_on_and_waited_for(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("""
        import pathlib, signal, sys
        folder = pathlib.Path(sys.argv[1]).parent
        def told(*_):
            (folder / "told").touch()
            sys.exit(0)
        signal.signal(signal.SIGUSR1, told)
        (folder / "up").touch()
        while True:
            signal.pause()
    """)
    stop = threading.Event()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(supervised(tmp_path).run(stop)))
    thread.start()
    until((tmp_path / "up").exists)

    stop.set()
    thread.join()

    assert codes == [STOPPED], "one that was stopped has not done its work"
    assert (tmp_path / "told").exists()


def test_a_child_that_does_not_leave_in_time_is_killed(tmp_path: Path, child: Callable[[str], None]) -> None:
    child("""
        import os, pathlib, signal, sys
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        folder = pathlib.Path(sys.argv[1]).parent
        (folder / "pid.part").write_text(str(os.getpid()))
        (folder / "pid.part").rename(folder / "pid")
        while True:
            signal.pause()
    """)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: supervised(tmp_path, grace_seconds=0.1).run(stop))
    thread.start()
    until((tmp_path / "pid").exists)

    stop.set()
    thread.join()

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)


@pytest.mark.parametrize("file", [SETTINGS_FILE, WATCH_FILE])
def test_a_parent_that_cannot_write_to_the_scratch_ends_with_1_and_one_sentence(
    tmp_path: Path, child: Callable[[str], None], caplog: pytest.LogCaptureFixture, file: str
) -> None:
    child(COUNTING)
    # A folder in the file's place cannot be written or removed as one, whatever user runs this.
    (tmp_path / file).mkdir()

    assert supervised(tmp_path).run(threading.Event()) == 1

    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{tmp_path}/{file}" in said
    assert "the trainer's scratch folder must have room and be writable" in said
    assert not (tmp_path / "lives").exists()


def test_a_parent_whose_scratch_cannot_be_made_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert supervised(tmp_path / "file" / "scratch").run(threading.Event()) == 1


def test_the_watch_file_of_an_earlier_child_is_deleted_before_the_next_one_begins(
    tmp_path: Path, child: Callable[[str], None]
) -> None:
    child("import pathlib, sys; sys.exit(int((pathlib.Path(sys.argv[1]).parent / 'watch.json').exists()))")
    (tmp_path / WATCH_FILE).write_text("{}")

    assert supervised(tmp_path).run(threading.Event()) == 0


def duty_state(attempt: str) -> dict[str, object]:
    return {
        "trainer_id": 1,
        "generation": 1,
        "servers": [],
        "folder": "/none",
        "lease_seconds": 0.0,
        "held": [attempt],
        "running": "",
    }


def test_the_parent_keeps_the_leases_of_the_duty_that_was_handed_over_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[object] = []
    monkeypatch.setattr("elastic_ctr.training.trainer.supervisor._DELEGATED_AFTER", 0.0)
    monkeypatch.setattr(ServerWatchdog, "round", lambda self: renewed.append(self.state()["held"]))
    duty = _DelegatedWatchdog(settings_of(tmp_path), tmp_path / "watch.json", os.getpid())

    assert duty.round() == ""
    for attempt in ("save:1", "save:2"):
        # The second comes before the parent has seen that the first one is over.
        time.sleep(0.02)
        (tmp_path / "watch.json").write_text(json.dumps(duty_state(attempt)))
        assert duty.round() == ""

    assert renewed == [["save:1"], ["save:2"]]
