"""The ledger cannot be written at one of its commits, whichever, and longer than any lease: who called is told, and calls again."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.ledger import Ledger
from training.master.world import LEASE, World

_CALLED = {"join", "lease", "renew", "report", "initialised_by", "leave", "sync_pserver"}


class Calls:
    """A coordinator whose callers try again when it could not answer."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._coordinator, name)
        if name not in _CALLED:
            return found

        def call(*given: Any) -> Any:
            try:
                return found(*given)
            except sqlite3.OperationalError:
                return found(*given)

        return call


class Patient(World):
    def start_master(self) -> None:
        super().start_master()
        # What a power cut takes is not asked here.
        self.ledger.db.execute("pragma synchronous = off")
        self.coordinator = Calls(self.coordinator)  # type: ignore[assignment]

    def turn(self) -> None:
        try:
            super().turn()
        except sqlite3.OperationalError:
            pass  # as the role does, which says so


@contextmanager
def full_at(commit: int, one: World, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Inside, the commit of that number fails, and it is long until anything is tried again. Yields the numbers of all."""
    made: list[int] = []
    leave = Ledger.__exit__

    def leave_or_fail(ledger: Ledger, kind: type[BaseException] | None, *more: object) -> None:
        if ledger._depth > 1 or kind is not None:
            leave(ledger, kind, *more)
            return
        made.append(len(made) + 1)
        if made[-1] != commit:
            leave(ledger, kind, *more)
            return
        full = sqlite3.OperationalError("database or disk is full")
        leave(ledger, type(full), full, None)
        one.now += 3 * LEASE
        raise full

    with patch.context() as inside:
        inside.setattr(Ledger, "__exit__", leave_or_fail)
        yield made


def trained_and_full(folder: Path, patch: pytest.MonkeyPatch, commit: int) -> bool:
    """Whether the commit of that number was one before all was trained."""
    one = Patient(folder, config=MasterConfig().model_copy(update={"max_lost_leases": 1, "max_failures": 1}))
    with full_at(commit, one, patch) as made:
        one.finish()
    where = f"full at commit {commit}"
    assert one.coordinator.generation == 1, where
    assert one.reason() == "", where
    assert set(one.trained().values()) == {1}, where
    assert len(set(one.saved)) == len(one.saved), where
    counts = one.ledger.passes.counted()
    assert counts["records"] == counts["trained"], where
    assert counts["repeated"] == counts["rolledBack"] == 0, where
    assert [(row["role"], row["reason"]) for row in one.ledger.recoveries()] == [], where
    one.ledger.close()
    return len(made) >= commit


def test_nothing_is_lost_or_taken_back_whenever_the_ledger_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0
    while trained_and_full(tmp_path / str(failed), monkeypatch, failed + 1):
        failed += 1

    assert failed > 20


def test_a_pserver_that_is_lost_while_the_ledger_cannot_be_written_is_lost_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Patient(tmp_path)
    one.until_phase(control.TRAIN)

    with full_at(1, one, monkeypatch), pytest.raises(sqlite3.OperationalError):
        one.coordinator.declare_lost(0, "no answer")

    one.now += one.config.pserver_timeout_seconds
    assert 0 in {index for index, _, _ in one.coordinator.silent_pservers()}
    one.coordinator.declare_lost(0, "no answer")
    assert one.coordinator.generation == 2
