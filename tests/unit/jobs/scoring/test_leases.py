"""Leases by files: of processes of this machine that have ended, and of others, by a clock that the test turns."""

import os
import threading
from pathlib import Path

import pytest

from elastic_ctr.jobs.scoring import leases
from elastic_ctr.jobs.scoring.leases import Holder, Lease, Leases, this_process
from elastic_ctr.store import FileStore

FOLDER = "_job/leases"
TASKS = (0, 1)
ELSEWHERE = Holder(machine="another boot/pid:[1]", pid=os.getpid(), started=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mine(store: FileStore, clock: Clock) -> Leases:
    return Leases(store, FOLDER, 10, clock)


def taken_by(leases: Leases, tasks: tuple[int, ...] = TASKS) -> tuple[int, Lease]:
    found = leases.take(tasks)
    assert found is not None
    return found


def test_a_task_is_one_process_s_until_it_is_released(store: FileStore, mine: Leases) -> None:
    first, lease = taken_by(mine)
    second, other = taken_by(Leases(store, FOLDER))

    assert (first, second) == (0, 1)
    assert Leases(store, FOLDER).take(TASKS) is None
    lease.release()
    assert taken_by(Leases(store, FOLDER))[0] == 0
    other.release()


def test_of_many_that_want_a_task_one_gets_it(store: FileStore) -> None:
    found: list[int] = []
    gate = threading.Barrier(8)

    def want() -> None:
        mine = Leases(store, FOLDER)
        gate.wait()
        if (taken := mine.take([7])) is not None:
            found.append(taken[0])

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [7]


def test_a_lease_of_another_machine_is_lost_when_it_has_not_changed_for_its_length_by_ones_own_clock(
    store: FileStore, mine: Leases, clock: Clock
) -> None:
    store.put_bytes(ELSEWHERE.to_json(), f"{FOLDER}/0.1")

    assert mine.take([0]) is None
    clock.now += 9.9
    assert mine.take([0]) is None
    clock.now += 0.1
    task, lease = taken_by(mine, (0,))
    assert (task, store.list(FOLDER)) == (0, ["0.2"])
    lease.release()


def test_a_lease_that_is_renewed_is_not_lost(store: FileStore, mine: Leases, clock: Clock) -> None:
    for beat in range(4):
        store.put_bytes(ELSEWHERE.model_copy(update={"beat": beat}).to_json(), f"{FOLDER}/0.1", overwrite=True)
        assert mine.take([0]) is None
        clock.now += 8


def test_a_holder_of_this_machine_that_has_ended_has_lost_its_lease_at_once(store: FileStore, mine: Leases) -> None:
    # This pid is in use by another process now: the one that held the lease was started at another time.
    ended = this_process().model_copy(update={"started": this_process().started - 1})
    store.put_bytes(ended.to_json(), f"{FOLDER}/0.3")

    task, lease = taken_by(mine, (0,))

    assert (task, store.list(FOLDER)) == (0, ["0.4"])
    lease.release()


def test_free_tasks_come_before_those_of_lost_holders(store: FileStore, mine: Leases) -> None:
    ended = this_process().model_copy(update={"started": this_process().started - 1})
    store.put_bytes(ended.to_json(), f"{FOLDER}/0.1")

    task, lease = taken_by(mine)

    assert task == 1
    lease.release()


def test_a_damaged_lease_is_lost_after_its_length_too(store: FileStore, mine: Leases, clock: Clock) -> None:
    store.put_bytes(b"{", f"{FOLDER}/0.1")

    assert mine.take([0]) is None
    clock.now += 10
    taken_by(mine, (0,))[1].release()


def test_its_holder_renews_a_lease(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    put = FileStore.put_bytes

    def noting(self: FileStore, data: bytes, path: str, *, overwrite: bool = False) -> None:
        put(self, data, path, overwrite=overwrite)
        if overwrite:
            told.set()

    monkeypatch.setattr(FileStore, "put_bytes", noting)
    _, lease = taken_by(Leases(store, FOLDER, seconds=0.03))

    assert told.wait(60)
    assert Holder.model_validate_json(store.get_bytes(f"{FOLDER}/0.1")).beat > 0
    lease.release()
    assert store.list(FOLDER) == []


def test_other_files_in_the_folder_are_left_alone(store: FileStore, mine: Leases) -> None:
    store.put_bytes(b"", f"{FOLDER}/0.x")
    store.put_bytes(b"", f"{FOLDER}/readme")

    taken_by(mine)[1].release()

    assert store.list(FOLDER) == ["0.x", "readme"]


def test_a_process_knows_itself() -> None:
    assert not leases._has_ended(this_process())
