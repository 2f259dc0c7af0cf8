"""The process that publishes is killed at its requests to the bucket, and started again: every version is whole, or not there."""

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.bucket_world import BucketServer
from contract.publishing_world import archive, build, process_of, train, wrong_files
from contract.relay import Fate, Relay, relay
from elastic_ctr.config.model import StartFrom
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.transfer.catalog import Catalog
from elastic_ctr.store.backends import FileStore, RetryPolicy, Store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import files_of
from elastic_ctr.store.versions.donefile import read_donefile
from elastic_ctr.store.versions.published_files import (
    published_versions,
    read_checkpoint,
    read_dictionary,
    read_version,
)
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.work.start_from import choose

_NEVER = 1_000_000
Work = Callable[[Path, StoreConfig, int], None]


@pytest.fixture
def line(bucket_server: BucketServer) -> Iterator[Relay]:
    with relay(bucket_server.port) as made:
        yield made


def whole(store: Store) -> dict[int, bytes]:
    """The versions that a reader finds, with their manifests. Fails if one of them lacks anything, or if it is not announced right."""
    versions = {each: read_version(store, each) for each in published_versions(store)}
    for each in versions.values():
        assert not wrong_files(store, (*each.cube_files, *each.model_files))
        assert each.parent in {None, *versions}
    for name in store.list(layout.CHECKPOINTS):
        if store.exists(layout.checkpoint_manifest(name[:-1])):
            assert not wrong_files(store, read_checkpoint(store, name[:-1]).files)
    assert announced(store) <= versions.keys()
    assert not Catalog(store).scan().problems
    return {version: manifest.to_json() for version, manifest in versions.items()}


def announced(store: Store) -> set[int]:
    donefiles = [read_donefile(store, path) for path in (layout.BASE_DONEFILE, layout.PATCH_DONEFILE)]
    return {line.id for donefile in donefiles for line in donefile.lines}


def is_killed(
    folder: Path, at: StoreConfig, line: Relay, number: int, start: int, method: str, work: Work = train
) -> bool:
    """Run until the end, or kill the process as its request of that number arrives, which is lost with it; only requests of the method
    count. Return True if the process was killed.
    """
    line.requests.clear()
    process = process_of(folder, at, start, work)

    def fate(_: int) -> Fate:
        if sum(each.startswith(method) for each in line.requests) <= number:
            return "passed"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        return "request lost"

    line.fate = fate
    process.join(120)
    line.fate = lambda _: "passed"
    assert process.exitcode in {0, -signal.SIGKILL}
    return process.exitcode != 0


# Every run has test_bucket_kills.py at every fourth put: by puts the content of the bucket changes, and each kind of file has four of them.
SELDOM = [pytest.param(method, 1, marks=pytest.mark.nightly) for method in ("PUT", "")]


@pytest.mark.parametrize(("method", "every"), [("PUT", 4), *SELDOM])
def test_a_process_that_is_killed_while_it_publishes_leaves_whole_versions_and_goes_on(
    bucket_server: BucketServer, line: Relay, tmp_path: Path, method: str, every: int
) -> None:
    for number in itertools.count(step=every):
        bucket = bucket_server.bucket()
        store = open_store(bucket_server.store(bucket), retry=RetryPolicy(60))
        at = StoreConfig(url=f"s3://{bucket}/models", bucket=bucket_server.access(endpoint=line.endpoint))
        folder = tmp_path / str(number)
        folder.mkdir()

        killed = is_killed(folder, at, line, number, 1, method)
        before = whole(store)
        assert not killed or not is_killed(folder, at, line, _NEVER, 2, method)
        after = whole(store)

        assert before.items() <= after.items(), f"killed at request {number}"
        assert announced(store) == after.keys(), f"killed at request {number}"
        ledger = Ledger(folder / "ledger.db")
        published = [each["id"] for each in ledger.saves.versions() if each["state"] == "published"]
        counts = ledger.passes.counted()
        ledger.close()
        assert len(published) == 2, f"killed at request {number}"
        assert set(published) <= after.keys(), f"killed at request {number}"
        assert counts["records"] == counts["trained"] > 0, f"killed at request {number}"
        shutil.rmtree(folder)
        if not killed:
            break
    # A base and a delta of four parts each, their checkpoints, models, manifests and donefiles.
    assert number >= 2 * (4 + 4 + 2 + 3)


def test_a_publish_of_which_an_answer_is_lost_in_each_folder_is_whole(
    bucket_server: BucketServer, line: Relay, tmp_path: Path
) -> None:
    bucket = bucket_server.bucket()
    at = StoreConfig(url=f"s3://{bucket}/models", bucket=bucket_server.access(endpoint=line.endpoint))

    def fate(number: int) -> Fate:
        folder = line.requests[number].rpartition("/")[0]
        is_first = not any(each.startswith(f"{folder}/") for each in line.requests[:number])
        return "answer lost" if folder.startswith("PUT") and is_first else "passed"

    line.fate = fate
    process = process_of(tmp_path, at, 1)
    process.join(120)

    line.fate = lambda _: "passed"
    assert process.exitcode == 0
    assert len(whole(open_store(bucket_server.store(bucket), retry=RetryPolicy(60)))) == 2


# Every run has test_release.py, which kills a builder whose store is a folder.
@pytest.mark.nightly
def test_a_builder_that_is_killed_while_it_publishes_leaves_whole_dictionaries_and_goes_on(
    bucket_server: BucketServer, line: Relay, tmp_path: Path
) -> None:
    for number in itertools.count():
        bucket = bucket_server.bucket()
        store = open_store(bucket_server.store(bucket), retry=RetryPolicy(60))
        at = StoreConfig(url=f"s3://{bucket}/models", bucket=bucket_server.access(endpoint=line.endpoint))
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not is_killed(folder, at, line, _NEVER, 1, "PUT")

        killed = is_killed(folder, at, line, number, 1, "", build)
        before = dictionaries(store)
        assert not killed or not is_killed(folder, at, line, _NEVER, 2, "", build)

        after = dictionaries(store)
        assert before.items() <= after.items(), f"killed at request {number}"
        assert after.keys() == set(published_versions(store)), f"killed at request {number}"
        if not killed:
            break
    assert number >= 2 * (4 + 4 + 1)


# Every run has test_bucket_kills.py at the puts, by which the content of the bucket changes.
@pytest.mark.parametrize("method", ["PUT", pytest.param("", marks=pytest.mark.nightly)])
def test_a_master_that_is_killed_while_it_archives_leaves_whole_bases_and_goes_on(
    bucket_server: BucketServer, line: Relay, tmp_path: Path, method: str
) -> None:
    training = process_of(tmp_path, StoreConfig(url=f"file://{tmp_path}/store"), 1)
    training.join(60)
    assert training.exitcode == 0
    [base, _] = published_versions(FileStore(tmp_path / "store"))
    for number in itertools.count():
        bucket = bucket_server.bucket()
        store = open_store(bucket_server.store(bucket), retry=RetryPolicy(60))
        at = StoreConfig(url=f"s3://{bucket}/models", bucket=bucket_server.access(endpoint=line.endpoint))

        killed = is_killed(tmp_path, at, line, number, 1, method, archive)
        before = archived(store)
        assert not killed or not is_killed(tmp_path, at, line, _NEVER, 2, method, archive)

        assert before <= archived(store) == {base}, f"killed at request {number}"
        if not killed:
            break
    # A base of four parts, its network, its checkpoint, two manifests and the owner.
    assert number >= 4 + 2 + 4 + 2 + 1


def archived(store: Store) -> set[int]:
    """The bases that a model may start from. Fails unless each of them and its checkpoint are whole."""
    versions = published_versions(store)
    for each in versions:
        version, checkpoint = choose(store, StartFrom(version=each))
        assert version.version == each
        assert not wrong_files(store, (*files_of(version), *files_of(checkpoint)))
    return set(versions)


def dictionaries(store: Store) -> dict[int, bytes]:
    """The dictionaries that an agent finds. Fails unless each of them is whole."""
    found = {each: read_dictionary(store, each) for each in Catalog(store).scan().dictionaries}
    for each in found.values():
        assert not wrong_files(store, each.files)
    return {version: manifest.to_json() for version, manifest in found.items()}
