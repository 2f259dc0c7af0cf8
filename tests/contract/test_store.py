"""What publishing promises, whatever happens in the middle of it: whole or absent, once, inside, and never half on a full disk."""

import multiprocessing
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from elastic_ctr.store import AlreadyPublished, FileStore, NotInStore, StoreError, open_store

_DIES = """
import os, sys
from elastic_ctr.store import open_store
store = open_store(sys.argv[1])
real = getattr(os, sys.argv[2])
def die(*arguments, **named):
    os.kill(os.getpid(), 9)
setattr(os, sys.argv[2], die)
store.put_bytes(b"x" * 5_000_000, "output/versions/7.json")
"""

_FULL = """
import resource, signal, sys
from pathlib import Path
from elastic_ctr.store import StoreError, open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
store = open_store(sys.argv[1])
try:
    if sys.argv[2] == "put":
        store.put_bytes(b"x" * 5_000_000, "a/b")
    else:
        store.get("big", Path(sys.argv[3]))
except StoreError as refused:
    print(refused)
"""


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def everything_in(store: FileStore) -> list[Path]:
    return [each for each in store.root.rglob("*") if each.is_file()]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_put_that_is_killed_in_the_middle_shows_nothing_and_may_be_done_again(store: FileStore, step: str) -> None:
    killed = subprocess.run([sys.executable, "-c", _DIES, store.url, step], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert store.list("output/versions") == []
    assert not store.exists("output/versions/7.json")
    store.put_bytes(b"again", "output/versions/7.json")
    assert store.list("output/versions") == ["7.json"]


def put_at_once(url: str, barrier: Barrier, number: int) -> bool:
    store = open_store(url)
    barrier.wait()
    try:
        store.put_bytes(bytes([number]) * 100_000, "a/b")
    except AlreadyPublished:
        return False
    return True


def test_of_puts_at_the_same_time_one_wins_and_its_bytes_stand(store: FileStore) -> None:
    barrier = threading.Barrier(8)

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda n: put_at_once(store.url, barrier, n), range(8)))  # type: ignore[arg-type]

    assert sum(won) == 1
    assert store.get_bytes("a/b") == bytes([won.index(True)]) * 100_000
    assert everything_in(store) == [store.root / "a" / "b"]


def test_of_processes_at_the_same_time_one_wins(store: FileStore) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier = manager.Barrier(2)
        with context.Pool(2) as pool:
            won = pool.starmap(put_at_once, [(store.url, barrier, n) for n in range(2)])

    assert sorted(won) == [False, True]


def test_a_donefile_alone_may_be_replaced_and_readers_see_the_old_or_the_new(store: FileStore) -> None:
    store.put_bytes(b"a" * 100_000, "donefile")
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(store.get_bytes("donefile"))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        store.put_bytes((b"b" if number % 2 else b"a") * 100_000, "donefile", overwrite=True)
    stop.set()
    reader.join()

    assert seen <= {b"a" * 100_000, b"b" * 100_000}


@pytest.mark.parametrize("path", ["../outside", "/etc/x", "a/../../outside", ""])
def test_no_call_leaves_the_store(store: FileStore, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_bytes(b"theirs")

    for ask in (
        lambda: store.put_bytes(b"", path),
        lambda: store.get_bytes(path),
        lambda: store.get(path, tmp_path / "copy"),
        lambda: next(store.read_from(path), None),
        lambda: store.delete(path),
        lambda: store.exists(path),
        lambda: store.list(path),
        lambda: store.size(path),
    ):
        with pytest.raises(StoreError, match="not a path inside the store"):
            ask()

    assert (tmp_path / "outside").read_bytes() == b"theirs"
    assert not (tmp_path / "copy").exists()


def test_a_full_disk_is_a_sentence_and_leaves_nothing(store: FileStore) -> None:
    told = subprocess.run([sys.executable, "-c", _FULL, store.url, "put"], capture_output=True, text=True, check=True)

    assert "a/b cannot be written to" in told.stdout
    assert everything_in(store) == []


def test_a_fetch_onto_a_full_disk_is_a_sentence_and_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    store.put_bytes(b"x" * 5_000_000, "big")
    target = tmp_path / "cache" / "big"

    told = subprocess.run(
        [sys.executable, "-c", _FULL, store.url, "get", str(target)], capture_output=True, text=True, check=True
    )

    assert "big cannot be fetched" in told.stdout
    assert list(target.parent.iterdir()) == []


def test_a_fetch_replaces_what_was_there_and_a_missing_file_does_not(store: FileStore, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    store.put_bytes(b"new", "a")

    with pytest.raises(NotInStore):
        store.get("b", target)
    assert target.read_bytes() == b"old"

    store.get("a", target)
    assert target.read_bytes() == b"new"
