"""The master is killed right after one of its commits, whichever: the next one goes on from what the ledger says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.ledger import Ledger
from training.master.world import LEASE, Trainer, World

_CALLED = {"join", "lease", "renew", "report", "initialised_by", "leave", "sync_pserver"}


class Killed(BaseException):
    """Not an Exception: nobody may catch it."""


class Calls:
    """A coordinator whose callers try again when its master was killed meanwhile."""

    def __init__(self, world: "Mortal", coordinator: Coordinator) -> None:
        self._world = world
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        if name not in _CALLED:
            return getattr(self._coordinator, name)

        def call(*given: Any) -> Any:
            try:
                return getattr(self._coordinator, name)(*given)
            except Killed:
                self._world.start_master()
                return getattr(self._world.coordinator, name)(*given)

        return call


class Mortal(World):
    """Its masters are started again when they are killed."""

    def start_master(self) -> None:
        super().start_master()
        # What a power cut takes is not asked here.
        self.ledger.db.execute("pragma synchronous = off")
        self.coordinator = Calls(self, self.coordinator)  # type: ignore[assignment]

    def turn(self) -> None:
        try:
            super().turn()
        except Killed:
            self.start_master()


Event = Callable[[Mortal, Trainer], None]


@contextmanager
def killed_after(commit: int, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Inside, the process that makes the commit of that number ends behind it. Yields the numbers of those made."""
    made: list[int] = []
    leave = Ledger.__exit__

    def leave_and_die(ledger: Ledger, kind: type[BaseException] | None, *more: object) -> None:
        leave(ledger, kind, *more)
        if ledger._depth == 0 and kind is None:
            made.append(len(made) + 1)
            if made[-1] == commit:
                raise Killed

    with patch.context() as inside:
        inside.setattr(Ledger, "__exit__", leave_and_die)
        yield made


def reported(_: Mortal, saver: Trainer) -> None:
    saver.report()


def failed(_: Mortal, saver: Trainer) -> None:
    saver.report(error="no space left")


def lost(one: Mortal, saver: Trainer) -> None:
    saver.work()
    saver.start()
    one.now += LEASE


def saver_of(one: Mortal, save: str) -> Trainer:
    """Go on until a trainer has that save and has not begun it."""

    def holder() -> Trainer | None:
        return next((each for each in one.trainers if each.task is not None and each.task.id == save), None)

    one.until(holder)
    found = holder()
    assert found is not None
    return found


def saved_and_killed(folder: Path, patch: pytest.MonkeyPatch, commit: int, what: Event) -> bool:
    """Whether the master was killed before the second pass was done."""
    one = Mortal(folder)
    saver = saver_of(one, "save:2")
    with killed_after(commit, patch) as made:
        what(one, saver)
        one.until(lambda: (save := one.ledger.saves.of(2)) is not None and save.stage == "done")
    one.finish()
    assert len(set(one.saved)) == len(one.saved), f"killed after commit {commit}: {one.saved}"
    assert set(one.trained().values()) == {1}, f"killed after commit {commit}"
    one.ledger.close()
    return len(made) >= commit


def parked_and_killed(folder: Path, patch: pytest.MonkeyPatch, commit: int) -> bool:
    """Whether the master was killed before the pass was stopped."""
    one = Mortal(folder, config=MasterConfig().model_copy(update={"max_lost_leases": 1}))
    lost(one, one.until_phase(control.TRAIN))
    with killed_after(commit, patch) as made:
        one.until(lambda: one.reason() != "" or one.coordinator.finished)
    if one.reason():
        one.start_master()
    one.finish()
    counts = one.ledger.passes.counted()
    one.ledger.close()
    assert counts["records"] == counts["trained"], f"killed after commit {commit}"
    return len(made) >= commit


@pytest.mark.parametrize("what", [reported, failed, lost])
def test_a_save_is_never_taken_twice_wherever_the_master_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Event
) -> None:
    killed = 0
    while saved_and_killed(tmp_path / str(killed), monkeypatch, killed + 1, what):
        killed += 1

    assert killed > 5


def test_a_pass_whose_task_is_parked_has_a_reason_wherever_the_master_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    while parked_and_killed(tmp_path / str(killed), monkeypatch, killed + 1):
        killed += 1

    assert killed > 0
