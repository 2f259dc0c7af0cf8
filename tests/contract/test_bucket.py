"""A bucket on a real server: publishing over a bad line, files of other programs, credentials that rotate, hours of clicks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from contract.bucket_world import BucketServer, give_keys, rclone
from contract.relay import Fate, Relay, relay
from elastic_ctr.config.data import DataSource
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import AlreadyPublished, RetryPolicy, Store, StoreError, open_source, open_store

# What a process sends for its first file: a list, two puts of a probe, its deletion, and the file.
_REQUESTS_OF_A_PUT = 5

_SENDS = """
import sys
from pathlib import Path
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import open_store
open_store(StoreConfig.model_validate_json(sys.argv[1])).put(Path(sys.argv[2]), "output/versions/7.json")
"""


@pytest.fixture
def bucket(bucket_server: BucketServer) -> str:
    return bucket_server.bucket()


@pytest.fixture
def line(bucket_server: BucketServer) -> Iterator[Relay]:
    with relay(bucket_server.port) as made:
        yield made


def over(line: Relay, server: BucketServer, bucket: str) -> StoreConfig:
    return StoreConfig(url=f"s3://{bucket}/models", bucket=server.access(endpoint=line.endpoint))


def published(server: BucketServer, bucket: str) -> list[str]:
    """Paths of the store's files; a probe may be left, which is hidden."""
    return [each for each in server.files(bucket) if "/.part-" not in each]


def eventually_published(server: BucketServer, bucket: str) -> list[str]:
    """As `published`, once the relay has handed the request of a killed process on."""
    until = time.monotonic() + 60
    while not (found := published(server, bucket)):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("number", range(_REQUESTS_OF_A_PUT))
@pytest.mark.parametrize("fate", ["request lost", "answer lost"])
def test_a_put_over_a_line_that_breaks_once_is_done_once(
    bucket_server: BucketServer, bucket: str, line: Relay, number: int, fate: Fate
) -> None:
    store = open_store(over(line, bucket_server, bucket), retry=RetryPolicy(60))
    line.fate = lambda at: fate if at == number else "passed"

    store.put_bytes(b"ours", "versions/7.json")

    assert len(line.requests) > number
    assert published(bucket_server, bucket) == ["models/versions/7.json"]
    assert store.get_bytes("versions/7.json") == b"ours"
    with pytest.raises(AlreadyPublished):
        store.put_bytes(b"ours", "versions/7.json")


def test_a_put_whose_request_was_lost_while_another_writer_came_first_is_already_published(
    bucket_server: BucketServer, bucket: str, line: Relay
) -> None:
    store = open_store(over(line, bucket_server, bucket), retry=RetryPolicy(60))
    store.put_bytes(b"", "first")
    begun = len(line.requests)

    def other_first(at: int) -> Fate:
        if at != begun:
            return "passed"
        bucket_server.raw(bucket).put("models/a", b"theirs")
        return "request lost"

    line.fate = other_first

    with pytest.raises(AlreadyPublished):
        store.put_bytes(b"ours", "a")

    assert store.get_bytes("a") == b"theirs"


def test_a_process_that_is_killed_while_it_sends_leaves_nothing(
    bucket_server: BucketServer, bucket: str, line: Relay, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(20_000_000))
    at = over(line, bucket_server, bucket)
    sender = subprocess.Popen([sys.executable, "-c", _SENDS, at.model_dump_json(), str(source)])
    line.sent = lambda count: sender.kill() if count > 10_000_000 else None

    assert sender.wait(60) == -signal.SIGKILL
    assert published(bucket_server, bucket) == []
    line.sent = lambda _: None
    store = open_store(at)
    store.put(source, "output/versions/7.json")
    assert store.get_bytes("output/versions/7.json") == source.read_bytes()


@pytest.mark.parametrize(("fate", "whole"), [("request lost", False), ("answer lost", True)])
def test_a_process_that_is_killed_at_its_last_request_leaves_all_or_nothing(
    bucket_server: BucketServer, bucket: str, line: Relay, tmp_path: Path, fate: Fate, whole: bool
) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    at = over(line, bucket_server, bucket)
    sender = subprocess.Popen([sys.executable, "-c", _SENDS, at.model_dump_json(), str(tmp_path / "source")])

    def killed(number: int) -> Fate:
        if number < _REQUESTS_OF_A_PUT - 1:
            return "passed"
        sender.kill()
        return fate

    line.fate = killed

    assert sender.wait(60) == -signal.SIGKILL
    store = open_store(at, retry=RetryPolicy(60))
    line.fate = lambda _: "passed"
    if whole:
        assert eventually_published(bucket_server, bucket) == ["models/output/versions/7.json"]
        assert store.get_bytes("output/versions/7.json") == b"0123456789"
    else:
        assert published(bucket_server, bucket) == []
        store.put(tmp_path / "source", "output/versions/7.json")


def test_a_read_over_a_line_that_breaks_goes_on_where_it_was(
    bucket_server: BucketServer, bucket: str, line: Relay
) -> None:
    data = os.urandom(3_000_000)
    bucket_server.raw(bucket).put("models/a", data, use_multipart=False)
    store = open_store(over(line, bucket_server, bucket), retry=RetryPolicy(60))
    line.fate = lambda at: "answer lost" if at == 0 else "passed"

    assert store.get_bytes("a") == data


def test_a_bucket_that_takes_a_second_object_of_one_name_is_refused(tmp_path: Path) -> None:
    with rclone(tmp_path) as server:
        bucket = server.bucket()
        store: Store = open_store(server.store(bucket))

        with pytest.raises(StoreError, match="takes a second object of one name, although If-None-Match forbids it"):
            store.verify()
        with pytest.raises(StoreError, match="takes a second object of one name"):
            store.put_bytes(b"", "versions/7.json")

        assert server.files(bucket) == []


def test_new_credentials_in_the_mounted_folder_are_used(
    bucket_server: BucketServer, bucket: str, tmp_path: Path
) -> None:
    keys = give_keys(tmp_path / "keys", secret="an-old-one")
    access = bucket_server.access(credentials_dir=str(keys))
    store = open_store(StoreConfig(url=f"s3://{bucket}", bucket=access))

    with pytest.raises(StoreError, match=r"it answers 403 SignatureDoesNotMatch: access is denied") as refused:
        store.list("a")
    give_keys(keys)

    assert store.list("a") == []
    assert "an-old-one" not in str(refused.value)


def test_a_public_bucket_is_read_without_credentials_and_a_closed_one_says_so(
    bucket_server: BucketServer, bucket: str
) -> None:
    store = open_store(StoreConfig(url=f"s3://{bucket}", bucket=bucket_server.access(credentials="none")))

    with pytest.raises(StoreError, match=r"it answers 403.*: access is denied"):
        store.list("a")


def test_hours_in_a_bucket_are_listed_read_by_ranges_and_seen_to_change(
    bucket_server: BucketServer, bucket: str
) -> None:
    raw = bucket_server.raw(bucket)
    raw.put("logs/20200401/00/part-0", b"0123456789", use_multipart=False)
    raw.put("logs/20200401/00/donefile", b"", use_multipart=False)
    source = open_source(DataSource(url=f"s3://{bucket}/logs", bucket=bucket_server.access()))

    assert source.folders("/") == ["20200401"]
    assert source.listing("/20200401/00/").files == [("donefile", 0), ("part-0", 10)]
    with source.open("20200401/00/part-0", 4) as stream:
        assert (stream.read(3), stream.read()) == (b"456", b"789")
        stream.seek(-2, os.SEEK_END)
        assert stream.read() == b"89"
    with source.open("20200401/00/donefile") as stream:
        assert stream.read() == b""
    assert not source.exists("20200402")
    before = source.listing("20200401/00").fingerprint
    assert before == source.listing("20200401/00").fingerprint
    # Of the same size, and most likely in the same second.
    raw.put("logs/20200401/00/part-0", b"9876543210", use_multipart=False)
    assert source.listing("20200401/00").fingerprint != before


def test_parquet_in_a_bucket_is_read_where_it_is_needed(bucket_server: BucketServer, bucket: str) -> None:
    written = pa.table({"click": [0, 1] * 5_000, "page": [f"page-{number}" for number in range(10_000)]})
    parquet.write_table(written, file := pa.BufferOutputStream(), row_group_size=1_000)
    bucket_server.raw(bucket).put("logs/20200401/00/part-0.parquet", file.getvalue().to_pybytes(), use_multipart=False)
    source = open_source(DataSource(url=f"s3://{bucket}", bucket=bucket_server.access()))

    with source.open("logs/20200401/00/part-0.parquet") as stream:
        found = parquet.ParquetFile(stream).read_row_group(7, columns=["page"])

    assert found.column("page").to_pylist() == [f"page-{number}" for number in range(7_000, 8_000)]
