"""What publishing promises, wherever the files are and whatever happens in the middle of it: whole or absent, once, inside."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from contract.bucket_world import BucketServer
from contract.file_server_world import TOKEN, FileServer
from contract.hadoop_world import Hadoop
from contract.kerberos_world import USER
from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import AlreadyPublished, FileStore, NotInStore, Store, StoreError, open_store
from elastic_ctr.store.versions import layout
from store.versions.test_backup import Empty, Release, contents

_DIES = """
import importlib, os, sys
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import open_store
from elastic_ctr.runtime.auth import Token, Tokens
store = open_store(StoreConfig.model_validate_json(sys.argv[1]), tokens=Tokens([Token("test", sys.argv[2])]))
module, _, place = sys.argv[3].partition(":")
*above, name = place.split(".")
holder = importlib.import_module(module)
for each in above:
    holder = getattr(holder, each)
def die(*arguments, **named):
    os.kill(os.getpid(), 9)
setattr(holder, name, die)
store.put_bytes(b"x" * 5_000_000, "output/versions/7.json")
"""

_DIES_SENDING = """
import os, sys
from pathlib import Path
from contract.sending import Sending
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import open_store
from elastic_ctr.runtime.auth import Token, Tokens
store = open_store(StoreConfig.model_validate_json(sys.argv[1]), tokens=Tokens([Token("test", sys.argv[2])]))
store.put(Sending.of(Path(sys.argv[3]), 10_000_000, lambda: os.kill(os.getpid(), 9)), "output/versions/7.json")
"""

_FULL = """
import resource, signal, sys
from pathlib import Path
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import StoreError, open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from elastic_ctr.runtime.auth import Token, Tokens
store = open_store(StoreConfig.model_validate_json(sys.argv[1]), tokens=Tokens([Token("test", sys.argv[2])]))
try:
    store.get("big", Path(sys.argv[3]))
except StoreError as refused:
    print(refused)
"""


@dataclass
class World:
    """A store, and a look behind it: the paths of every file there is, temporary ones included."""

    kind: str
    at: StoreConfig
    store: Store
    files: Callable[[], list[str]]

    @property
    def url(self) -> str:
        return self.at.url


def _world(kind: str, at: StoreConfig, files: Callable[[], list[str]]) -> Iterator[World]:
    store = open_store(at, tokens=tokens(TOKEN))
    yield World(kind, at, store, files)
    store.close()


# A second server of buckets takes minutes to build: each run has the first, here as `s3` and in tests/contract/test_bucket.py.
# The secured HDFS is nightly; tests/contract/test_store_kerberos.py has it in every run.
SELDOM = [pytest.param(each, marks=pytest.mark.nightly) for each in ("secure-hdfs", "versitygw")]


@pytest.fixture(params=["file", "http", "hdfs", "s3", *SELDOM])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    kind = request.param
    if kind == "http":
        server: FileServer = request.getfixturevalue("file_server")
        yield from _world(kind, StoreConfig(url=server.url), server.files)
    elif kind in {"hdfs", "secure-hdfs"}:
        hadoop: Hadoop
        access = {}
        if kind == "hdfs":
            hadoop = request.getfixturevalue("hadoop")
        else:
            hadoop, kdc = request.getfixturevalue("secure_hadoop")
            access = {"user": USER, "keytab": str(kdc.keytab)}
        folder = f"/{uuid.uuid4().hex}"
        hadoop.ask("PUT", folder, "MKDIRS")
        hadoop.ask("PUT", folder, "SETPERMISSION", permission="777")
        at = StoreConfig(url=f"{hadoop.scheme}://{hadoop.door}{folder}", **access)
        yield from _world(kind, at, lambda: [each.removeprefix(f"{folder}/") for each in hadoop.files(folder)])
    elif kind in {"s3", "versitygw"}:
        buckets: BucketServer = request.getfixturevalue("bucket_server" if kind == "s3" else "second_bucket_server")
        bucket = buckets.bucket()
        yield from _world(
            kind, buckets.store(bucket), lambda: [each.removeprefix("models/") for each in buckets.files(bucket)]
        )
    else:
        root = tmp_path / "store"
        yield from _world(
            kind,
            StoreConfig(url=FileStore(root).url),
            lambda: sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()),
        )


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]]),
        },
    )


_LAST_STEPS = {
    "file": ["os:fsync", "os:link"],
    "http": ["elastic_ctr.store.backends.webdav:WebDav.stat", "elastic_ctr.store.backends.webdav:WebDav.move"],
    "hdfs": ["elastic_ctr.store.backends.hdfs:WebHdfs.move"],
    "secure-hdfs": ["elastic_ctr.store.backends.hdfs:WebHdfs.move"],
    "s3": ["elastic_ctr.store.backends.object_store:ObjectStore._put"],
    "versitygw": ["elastic_ctr.store.backends.object_store:ObjectStore._put"],
}
# A bucket's client sends a mapped file, and a bucket has no folders: tests/contract/test_bucket.py.
with_folders = pytest.mark.parametrize("world", ["file", "http", "hdfs"], indirect=True)


def test_a_put_that_is_killed_before_its_last_steps_shows_nothing_and_may_be_done_again(world: World) -> None:
    for step in _LAST_STEPS[world.kind]:
        killed = run(_DIES, world.at.model_dump_json(), TOKEN, step)

        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert world.store.list("output/versions") == list(world.store.walk("output")) == []
        assert not world.store.exists("output/versions/7.json")

    world.store.put_bytes(b"again", "output/versions/7.json")
    assert world.store.list("output/versions") == ["7.json"]


def test_a_backup_to_it_and_a_restore_from_it_bring_every_published_file_back(world: World, tmp_path: Path) -> None:
    release, empty = Release(tmp_path / "release"), Empty(tmp_path / "empty")
    release.target = world.store
    release.checkpoint("a-g1")
    release.publish(10)
    release.back_up()
    release.publish(11, parent=10, base=10)
    # A part of the version and its two manifests, the SequenceFile, the sample, the ledger and the release document.
    assert release.back_up().files == 7
    assert release.back_up().files == 0

    empty.restore(world.store)

    assert empty.files().keys() - {layout.RESTORED} == contents(release.store).keys()
    assert len(list(world.store.walk("backup/state"))) == 2


@with_folders
def test_a_put_that_is_killed_while_it_sends_shows_nothing_and_may_be_done_again(world: World, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(20_000_000))

    killed = run(_DIES_SENDING, world.at.model_dump_json(), TOKEN, str(source))

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.store.list("output/versions") == list(world.store.walk("output")) == []
    world.store.put(source, "output/versions/7.json")
    assert world.store.get_bytes("output/versions/7.json") == source.read_bytes()


def put_at_once(at: StoreConfig, barrier: Barrier, number: int) -> bool:
    store = open_store(at, tokens=tokens(TOKEN))
    barrier.wait()
    try:
        store.put_bytes(bytes([number]) * 100_000, "a/b")
    except AlreadyPublished:
        return False
    finally:
        store.close()
    return True


def test_of_puts_at_the_same_time_one_wins_and_its_bytes_stand(world: World) -> None:
    barrier = threading.Barrier(8)

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda n: put_at_once(world.at, barrier, n), range(8)))  # type: ignore[arg-type]

    assert sum(won) == 1
    assert world.store.get_bytes("a/b") == bytes([won.index(True)]) * 100_000
    assert world.files() == ["a/b"]


def test_of_processes_at_the_same_time_one_wins(world: World) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier = manager.Barrier(2)
        with context.Pool(2) as pool:
            won = pool.starmap(put_at_once, [(world.at, barrier, n) for n in range(2)])

    assert sorted(won) == [False, True]


def test_a_donefile_alone_may_be_replaced_and_readers_see_the_old_or_the_new(world: World) -> None:
    world.store.put_bytes(b"a" * 100_000, "donefile")
    stop = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not stop.is_set():
            seen.add(world.store.get_bytes("donefile"))
        return seen

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        for number in range(20):
            world.store.put_bytes((b"b" if number % 2 else b"a") * 100_000, "donefile", overwrite=True)
        stop.set()

    assert reading.result() <= {b"a" * 100_000, b"b" * 100_000}
    assert world.files() == ["donefile"]


def test_a_published_file_is_never_changed(world: World, tmp_path: Path) -> None:
    (tmp_path / "second").write_bytes(b"second")
    world.store.put_bytes(b"first", "x/a")

    with pytest.raises(AlreadyPublished, match=f"x/a is already published in {world.url}"):
        world.store.put(tmp_path / "second", "x/a")

    assert world.store.get_bytes("x/a") == b"first"
    assert world.files() == ["x/a"]


@with_folders
def test_a_file_does_not_take_the_name_of_a_folder(world: World) -> None:
    world.store.put_bytes(b"first", "x/a")

    with pytest.raises(AlreadyPublished):
        world.store.put_bytes(b"second", "x")

    assert world.files() == ["x/a"]


@pytest.mark.parametrize("path", ["../outside", "/etc/x", "a/../../outside", ""])
def test_no_call_leaves_the_store(world: World, tmp_path: Path, path: str) -> None:
    store = world.store
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
        lambda: store.modified_at(path),
        lambda: store.local_path(path),
    ):
        with pytest.raises(StoreError, match="not a path inside the store"):
            ask()

    assert (tmp_path / "outside").read_bytes() == b"theirs"
    assert not (tmp_path / "copy").exists()


def test_a_file_is_read_from_any_byte_on(world: World) -> None:
    data = os.urandom(3_000_000)
    world.store.put_bytes(data, "a/b")
    world.store.put_bytes(b"", "a/empty")

    for offset in (0, 1, 2_999_999, 3_000_000, 3_000_001):
        assert b"".join(world.store.read_from("a/b", offset)) == data[offset:]
    assert b"".join(world.store.read_from("a/empty", 0)) == world.store.get_bytes("a/empty") == b""


def test_a_list_is_sorted_and_marks_folders(world: World) -> None:
    for path in ("x/b", "x/a", "x/c/d", "x/c/e/f", "x/index.html"):
        world.store.put_bytes(b"", path)

    assert world.store.list("x") == ["a", "b", "c/", "index.html"]
    assert list(world.store.walk("x")) == ["x/a", "x/b", "x/c/d", "x/c/e/f", "x/index.html"]
    assert world.store.list("nowhere") == world.store.list("x/a") == []
    assert world.store.list(".") == ["x/"]


@pytest.mark.parametrize("name", ["with blank", "100%25", "ü", "a+b&c=d?e#f", "-rf", "%2e%2e", "'\"", "#LATEST", "a~b;c,d@e!$()*"])  # fmt: skip
def test_a_name_is_taken_as_it_is(world: World, name: str) -> None:
    world.store.put_bytes(b"odd", f"{name}/{name}")

    assert world.store.list(".") == [f"{name}/"]
    assert list(world.store.walk(name)) == [f"{name}/{name}"]
    assert world.store.get_bytes(f"{name}/{name}") == b"odd"
    world.store.delete(name)
    assert world.files() == []


def test_a_deleted_file_or_folder_is_gone_with_its_content_and_deleting_again_succeeds(world: World) -> None:
    for path in ("x/a", "x/c/d", "x/c/e/f", "y/z"):
        world.store.put_bytes(b"", path)

    for _ in range(2):
        world.store.delete("x")
        world.store.delete("y/z")

    assert not any(world.store.exists(path) for path in ("x/c/d", "x", "y/z"))
    assert world.files() == []


def test_size_and_time_are_the_files(world: World) -> None:
    world.store.put_bytes(b"12345", "x/a")
    world.store.put_bytes(b"1234567", "x/b")

    assert (world.store.size("x/a"), world.store.size("x/b")) == (5, 7)
    first, second, folder = (world.store.modified_at(path) for path in ("x/a", "x/b", "x"))
    assert first - 1 <= second
    assert abs(folder - second) < 60
    assert world.store.exists("x/a")
    assert world.store.exists("x")
    assert not world.store.exists("x/a/b")


@pytest.mark.parametrize("ask", ["get_bytes", "size", "modified_at"])
def test_a_missing_file_is_named(world: World, ask: str) -> None:
    with pytest.raises(NotInStore, match=f"a/b is not in {world.url}"):
        getattr(world.store, ask)("a/b")


def test_a_folder_is_no_file_and_a_file_no_folder(world: World) -> None:
    world.store.put_bytes(b"", "x/a")

    # A bucket has no folders.
    with pytest.raises(StoreError, match=r"x cannot be read from .*(folder|directory)|x is not in s3://"):
        world.store.get_bytes("x")


def test_a_fetch_onto_a_full_disk_is_a_sentence_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    world.store.put_bytes(b"x" * 5_000_000, "big")
    target = tmp_path / "cache" / "big"

    told = run(_FULL, world.at.model_dump_json(), TOKEN, str(target))

    assert "big cannot be fetched" in told.stdout, told.stderr
    assert list(target.parent.iterdir()) == []


def test_a_fetch_to_where_nothing_can_be_written_is_a_sentence_that_names_the_place(
    world: World, tmp_path: Path
) -> None:
    world.store.put_bytes(b"x", "a")
    # A folder below a file cannot be made, whatever user runs this.
    (tmp_path / "scratch").write_bytes(b"")
    target = tmp_path / "scratch" / "folder" / "a"

    with pytest.raises(StoreError, match=f"a cannot be fetched from {world.url} to {target}: Not a directory") as told:
        world.store.get("a", target)

    assert not isinstance(told.value, NotInStore)


def test_a_fetch_replaces_what_was_there_and_a_missing_file_does_not(world: World, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    world.store.put_bytes(b"new", "a")

    with pytest.raises(NotInStore):
        world.store.get("b", target)
    assert target.read_bytes() == b"old"

    world.store.get("a", target)
    assert target.read_bytes() == b"new"
    assert {each.name for each in tmp_path.iterdir()} - {"store"} == {"target"}


_FULL_FILE_STORE = """
import resource, signal, sys
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import StoreError, open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    open_store(StoreConfig.model_validate_json(sys.argv[1])).put_bytes(b"x" * 5_000_000, "a/b")
except StoreError as refused:
    print(refused)
"""


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    told = run(_FULL_FILE_STORE, StoreConfig(url=store.url).model_dump_json())

    assert "a/b cannot be written to" in told.stdout, told.stderr
    assert [each for each in store.root.rglob("*") if each.is_file()] == []
