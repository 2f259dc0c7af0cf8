"""While the engine holds the interpreter's lock, the parent does the watchdog's work."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.trainer import supervisor as module
from elastic_ctr.training.trainer.supervisor import WATCH_FILE
from elastic_ctr.training.trainer.watchdog import ServerWatchdog, delegated_to_parent
from training.trainer.trainer_file import settings_of


class Rounds(ServerWatchdog):
    """Counts instead of asking the network."""

    done = 0
    refuse_after = 10**9

    def round(self) -> None:
        Rounds.done += 1
        if Rounds.done > Rounds.refuse_after:
            self._end("the lease went to another trainer")

    def __init__(self, client: MasterClient, end: Callable[[str], None], **_: object) -> None:
        super().__init__(client, 1, 1, [], "", 0.1, end=end)


@pytest.fixture
def duty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[module._DelegatedWatchdog]:
    monkeypatch.setattr(module, "ServerWatchdog", Rounds)
    monkeypatch.setattr(module, "MasterClient", lambda *_: None)
    monkeypatch.setattr(module, "_DELEGATED_AFTER", 0.02)
    Rounds.done, Rounds.refuse_after = 0, 10**9
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield module._DelegatedWatchdog(settings_of(tmp_path), tmp_path / WATCH_FILE, sleeper.pid)
    sleeper.kill()
    sleeper.wait()


def rounds(duty: module._DelegatedWatchdog, count: int) -> list[str]:
    found = []
    for _ in range(count):
        found.append(duty.round())
        time.sleep(0.03)
    return found


def test_without_a_hand_over_the_parent_does_nothing(duty: module._DelegatedWatchdog) -> None:
    assert rounds(duty, 3) == [""] * 3
    assert Rounds.done == 0


def test_leases_handed_over_to_the_parent_are_renewed_until_they_are_taken_back(
    duty: module._DelegatedWatchdog, tmp_path: Path
) -> None:
    watchdog = ServerWatchdog(None, 7, 2, ["unix:/none/8801"], "/none", 10)  # type: ignore[arg-type]
    watchdog.hold("save:1")

    with delegated_to_parent(watchdog, tmp_path / WATCH_FILE):
        state = json.loads((tmp_path / WATCH_FILE).read_text())
        rounds(duty, 3)
    seen = Rounds.done
    rounds(duty, 3)

    assert state["trainer_id"] == 7
    assert state["held"] == ["save:1"]
    assert seen >= 1
    assert Rounds.done == seen


def test_states_that_follow_each_other_soon_are_left_to_the_child(
    duty: module._DelegatedWatchdog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DELEGATED_AFTER", 0.2)
    for _ in range(5):
        with delegated_to_parent(ServerWatchdog(None, 7, 2, [], "", 10), tmp_path / WATCH_FILE):  # type: ignore[arg-type]
            rounds(duty, 2)

    assert Rounds.done == 0


def test_the_answer_for_a_state_that_was_replaced_meanwhile_ends_no_child(
    duty: module._DelegatedWatchdog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced_meanwhile(self: Rounds) -> None:
        Rounds.done += 1
        self._end("the lease is gone: its task was reported")
        (tmp_path / "next").write_text("{}")
        os.utime(tmp_path / "next", ns=(Rounds.done, Rounds.done))
        (tmp_path / "next").replace(tmp_path / WATCH_FILE)

    monkeypatch.setattr(Rounds, "round", replaced_meanwhile)
    (tmp_path / WATCH_FILE).write_text("{}")

    assert rounds(duty, 8) == [""] * 8
    assert Rounds.done >= 2


def test_a_child_that_no_longer_belongs_is_named_for_ending(duty: module._DelegatedWatchdog, tmp_path: Path) -> None:
    Rounds.refuse_after = 0
    (tmp_path / WATCH_FILE).write_text("{}")

    assert "the lease went to another trainer" in rounds(duty, 2)


def test_the_leases_of_a_stopped_child_are_not_renewed(duty: module._DelegatedWatchdog, tmp_path: Path) -> None:
    (tmp_path / WATCH_FILE).write_text("{}")
    os.kill(duty._child, signal.SIGSTOP)
    while Path(f"/proc/{duty._child}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)

    assert rounds(duty, 3) == [""] * 3
    assert Rounds.done == 0
