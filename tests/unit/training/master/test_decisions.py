"""Writers of the ledger outside the coordinator hold the writing lock, so that calls that wait for news are woken."""

from collections.abc import Callable
from pathlib import Path

from elastic_ctr.store.versions.safeguards import Hold, write_resumption
from elastic_ctr.training.master.ledger.rows import HoldRow
from elastic_ctr.training.master.saves.publishing_hold import HoldAnnouncer
from elastic_ctr.training.master.work.publisher import CheckpointRetention
from training.master.world import World, data_of, world


def wakes_waiting_calls(one: World, write: Callable[[], object]) -> bool:
    """Whether news are told when the ledger is written, which the call must do."""
    changes, revision = one.ledger.changes, one.coordinator.lock.revision
    write()
    assert one.ledger.changes > changes
    return one.coordinator.lock.revision > revision


def test_a_pass_that_is_added_wakes_waiting_calls(tmp_path: Path) -> None:
    one = world(tmp_path)

    assert wakes_waiting_calls(one, one.coordinator.found.wants_hours)
    assert one.ledger.passes.current() is not None


def test_a_look_that_writes_nothing_wakes_no_call(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.coordinator.found.wants_hours()
    before = one.coordinator.lock.revision

    one.coordinator.found.wants_hours()

    assert one.coordinator.lock.revision == before


def test_a_hold_that_is_announced_or_ended_wakes_waiting_calls(tmp_path: Path) -> None:
    one = world(tmp_path)
    hold = Hold(number=7, suspects=None, reason="a loss", held_at=1.0)
    one.ledger.set_facts(hold=HoldRow(hold=hold, since=1), last_hold=7)
    announcer = HoldAnnouncer(one.coordinator.lock, one.store, lambda: one.now)

    assert wakes_waiting_calls(one, announcer.step)
    one.now += 10
    write_resumption(one.store, 7)
    assert wakes_waiting_calls(one, announcer.step)
    assert one.ledger.facts.hold is None


def test_a_checkpoint_that_is_deleted_wakes_waiting_calls(tmp_path: Path) -> None:
    one = world(tmp_path, config={"keep_checkpoints": 2}, data=data_of(end="20200401/02"))
    one.finish()
    retention = CheckpointRetention(one.coordinator.lock, one.store, 1, lambda: one.now)

    assert wakes_waiting_calls(one, retention.sweep)
    assert len(one.ledger.saves.checkpoints()) == 1
