"""A real HDFS whose daemons die, that is full, or forbids; the line to it is cut. Published files stay whole."""

import gzip
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contract.bad_line import Fault, bad_line
from contract.hadoop_world import Hadoop
from contract.sending import Sending
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.store.backends import RetryPolicy, Store, StoreError, StoreUnavailable, open_source, open_store
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.master.calendar.split_files import SplitFiles, splits_there

PATIENT = RetryPolicy(200)


class Folder:
    """A folder of HDFS for one test, and what is opened on it."""

    def __init__(self, hadoop: Hadoop) -> None:
        self.hadoop = hadoop
        self.path = f"/{uuid.uuid4().hex}"
        self.opened: list[Store | Source] = []
        hadoop.ask("PUT", self.path, "MKDIRS")

    def store(self, user: str = "root", retry: RetryPolicy = PATIENT, door: str | None = None) -> Store:
        self.opened.append(
            open_store(StoreConfig(url=f"webhdfs://{door or self.hadoop.door}{self.path}", user=user), retry=retry)
        )
        return self.opened[-1]  # type: ignore[return-value]

    def source(self, user: str = "root", retry: RetryPolicy = PATIENT) -> Source:
        self.opened.append(open_source(DataSource(url=f"webhdfs://{self.hadoop.door}{self.path}", user=user), retry))
        return self.opened[-1]  # type: ignore[return-value]

    def files(self) -> list[str]:
        return [each.removeprefix(f"{self.path}/") for each in self.hadoop.files(self.path)]


@pytest.fixture
def folder(hadoop: Hadoop) -> Iterator[Folder]:
    made = Folder(hadoop)
    yield made
    for each in made.opened:
        each.close()


@pytest.fixture
def store(folder: Folder) -> Store:
    return folder.store()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("big") / "big"
    file.write_bytes(os.urandom(30_000_000))
    return file


def restarting(hadoop: Hadoop, daemon: str) -> Callable[[], threading.Thread]:
    """Kills a daemon at once, and has it back a while later; the thread ends when it is."""

    def die() -> threading.Thread:
        hadoop.kill(daemon)
        thread = threading.Thread(target=hadoop.start)
        thread.start()
        return thread

    return die


def test_a_datanode_killed_in_the_middle_of_reads_and_a_put_and_started_again_sends_the_rest_and_has_the_file_once(
    folder: Folder, store: Store, big: Path
) -> None:
    store.put(big, "x/big")
    data = big.read_bytes()
    blocks = store.read_from("x/big")
    first = next(blocks)
    threads: list[threading.Thread] = []
    die = restarting(folder.hadoop, "datanode")
    with folder.source().open("x/big", 1000) as stream:
        second = stream.read(10)

        store.put(Sending.of(big, 20_000_000, lambda: threads.append(die())), "x/again")

        assert first + b"".join(blocks) == data
        assert second + stream.read() == data[1000:]
    threads[0].join()
    assert store.get_bytes("x/again") == data
    assert folder.files() == ["x/again", "x/big"]


def test_a_namenode_that_is_started_again_is_waited_for(folder: Folder, store: Store) -> None:
    store.put_bytes(b"before", "x/a")
    source = folder.source()

    back = restarting(folder.hadoop, "namenode")()
    with ThreadPoolExecutor(4) as threads:
        threads.submit(store.put_bytes, b"meanwhile", "x/b")
        listed = threads.submit(store.list, "x")
        read = threads.submit(store.get_bytes, "x/a")
        logs = threads.submit(source.listing, "x")
    back.join()

    assert "a" in listed.result()
    assert read.result() == b"before"
    assert ("a", 6) in logs.result().files
    assert folder.files() == ["x/a", "x/b"]


def test_a_namenode_that_stays_away_is_a_sentence() -> None:
    store = open_store(StoreConfig(url="webhdfs://127.0.0.1:1/x"), retry=RetryPolicy(0.2))

    with pytest.raises(
        StoreUnavailable, match=r"a cannot be listed in .*: http://127\.0\.0\.1:1 refuses the connection; is it running"
    ):
        store.list("a")
    store.close()


@pytest.mark.parametrize("lost", [b"op=CREATE", b"op=RENAME", b"op=GETFILESTATUS"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_call_whose_answer_is_lost_is_done_once(folder: Folder, overwrite: bool, lost: bytes) -> None:
    with bad_line("127.0.0.1", folder.hadoop.http) as line:
        far = folder.store(door=f"127.0.0.1:{line.port}")
        far.put_bytes(b"old", "x/done", overwrite=True)
        line.fault = Fault(lost_answer_to=lost)

        far.put_bytes(b"ours", "x/done" if overwrite else "x/a", overwrite=overwrite)
        far.close()

        assert line.cuts == 1
    assert folder.store().get_bytes("x/done" if overwrite else "x/a") == b"ours"
    assert folder.files() == (["x/done"] if overwrite else ["x/a", "x/done"])


def test_a_user_without_permission_is_refused_for_good_in_one_sentence(folder: Folder, store: Store) -> None:
    store.put_bytes(b"secret", "x/a")
    folder.hadoop.ask("PUT", f"{folder.path}/x/a", "SETPERMISSION", permission="600")
    alice = folder.store("alice")
    may_not = r"as user 'alice' \(Permission denied: user=alice, access=\w+, inode=.*\); set store\.config\.user to one who may"

    with pytest.raises(StoreError, match=f"x/b cannot be written to .* {may_not}") as refused:
        alice.put_bytes(b"", "x/b")
    with pytest.raises(StoreError, match=f"x/a cannot be read from .* {may_not}"):
        alice.get_bytes("x/a")
    with pytest.raises(StoreError, match=f"x cannot be deleted from .* {may_not}"):
        alice.delete("x")
    with pytest.raises(StoreError, match=r"set data\.source\.user to one who may"):
        folder.source("alice").open("x/a").read()

    assert not isinstance(refused.value, StoreUnavailable)
    assert "\n" not in str(refused.value)
    assert folder.files() == ["x/a"]


def test_two_users_at_once_are_two_users(folder: Folder) -> None:
    folder.hadoop.ask("PUT", folder.path, "SETPERMISSION", permission="777")
    stores = {user: folder.store(user) for user in ("alice", "bobby")}

    for number in range(3):
        for user, each in stores.items():
            each.put_bytes(b"", f"{user}-{number}")

    listed = folder.hadoop.ask("GET", folder.path, "LISTSTATUS")["FileStatuses"]["FileStatus"]
    assert {each["pathSuffix"]: each["owner"] for each in listed} == {
        f"{user}-{number}": user for user in stores for number in range(3)
    }


def test_a_full_quota_is_a_sentence_to_wait_with_and_leaves_nothing(folder: Folder) -> None:
    store = folder.store(retry=RetryPolicy(0.2))
    folder.hadoop.ask("PUT", folder.path, "SETQUOTA", storagespacequota="10000000")

    with pytest.raises(StoreError, match=r"x/a cannot be written to .*: The DiskSpace quota of .* is exceeded") as full:
        store.put_bytes(b"x" * 15_000_000, "x/a")

    assert isinstance(full.value, StoreUnavailable)
    assert folder.files() == []


def test_the_address_of_a_pair_that_answers_is_used(folder: Folder) -> None:
    store = folder.store(door=f"127.0.0.1:1,{folder.hadoop.door}")

    store.put_bytes(b"ours", "x/a")

    assert store.get_bytes("x/a") == b"ours"


def test_click_logs_are_listed_and_read_by_ranges_as_from_a_local_folder(folder: Folder, store: Store) -> None:
    lines = b"".join(b"%d 0 17:%d\n" % (number % 3 + 1, number) for number in range(100_000))
    store.put_bytes(lines, "20200401/00/part-0")
    store.put_bytes(gzip.compress(lines), "20200401/00/part-1.gz")
    store.put_bytes(b"", "20200401/00/donefile")
    store.put_bytes(b"", "20200401/00/below/x")
    source = folder.source()

    listed = source.listing("/20200401/00").files
    assert [name for name, _ in listed] == ["donefile", "part-0", "part-1.gz"]
    assert dict(listed)["part-0"] == len(lines)
    assert source.listing("20200401/01").files == source.listing("20200401/00/part-0").files == []

    found = b""
    for start, end in ((0, 500_000), (500_000, 1_000_000), (1_000_000, None)):
        with source.open("20200401/00/part-0") as stream:
            found += b"".join(block for _, block in lines_in_range(stream, start, end))
    assert found == lines

    with source.open("20200401/00/part-1.gz") as stream:
        zipped = open_lines(stream, "part-1.gz")
        assert b"".join(block for _, block in lines_in_range(zipped)) == lines


def test_a_partitioned_table_is_found_and_read_as_from_a_local_folder(folder: Folder, store: Store) -> None:
    path = "/clicks/dt={time:%Y-%m-%d}/hr={time:%H}"
    source = {"url": f"webhdfs://{folder.hadoop.door}{folder.path}"}
    data = Data.model_validate(
        {
            "source": source,
            "path": path,
            "start": "20200401/00",
            "format": "csv",
            "label": "click",
            "settleSeconds": 0.5,
        }
    )
    countries = {"de": "de", "a%2Fb": "a/b", "größe x": "größe x", "__HIVE_DEFAULT_PARTITION__": ""}
    for country in countries:
        store.put_bytes(b"user,click\nann,1\n", f"clicks/dt=2020-04-01/hr=07/country={country}/part-0.csv")
        store.put_bytes(b"no csv", f"clicks/dt=2020-04-01/hr=07/country={country}/_part-1.csv")
    store.put_bytes(b"", "clicks/_SUCCESS")
    hours = folder.source()
    wanted = Wanted(InputColumns((TextInput("country", ""), TextInput("hr", ""), TextInput("user", "")), ()), "click")

    assert splits_there(hours, data) == ["20200401/07"]
    looks = SplitFiles(hours, data)
    assert looks.look(["20200401/07"]).missing == "20200401/07"
    store.put_bytes(b"user,click\nbob,1\n", "clicks/dt=2020-04-01/hr=07/country=de/part-2.csv")
    while (found := looks.look(["20200401/07"])).missing:
        time.sleep(0.05)

    rows = []
    for file in found.files:
        with hours.open(file) as stream:
            for batch in rows_in_range(stream, file, Format("csv"), wanted):
                rows += [
                    tuple(batch.cells.text(row, place).decode() for place in range(3))
                    for row in range(len(batch.cells))
                ]
    assert sorted(rows) == sorted([*((country, "07", "ann") for country in countries.values()), ("de", "07", "bob")])
