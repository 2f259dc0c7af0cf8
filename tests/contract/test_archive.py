"""The archive of bases in a real bucket: what the master copies there and deletes, and how it goes on after failures."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.bucket_world import BucketServer
from contract.publishing_world import Publishing, archiver, wrong_files
from elastic_ctr.config.model import StartFrom
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import files_of
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint
from elastic_ctr.store.versions.safeguards import Refusal, write_refusal
from elastic_ctr.training.master.ledger.rows import StartedFrom
from elastic_ctr.training.master.server import Master
from elastic_ctr.training.master.work import archiver as archiving
from elastic_ctr.training.master.work.archiver import OWNERS, Archiver
from elastic_ctr.training.master.work.publisher import CheckpointRetention
from elastic_ctr.training.master.work.start_from import choose
from manual_metrics import in_the_manual, on_the_page
from training.master.world import MODEL, data_of, settings_of

NEVER = threading.Event()


class Site:
    """A training of an hour with a first base, of an hour whose end is a day's, and of one more; its store is a folder."""

    def __init__(self, folder: Path, server: BucketServer) -> None:
        data = data_of(start="20200401/22", end="20200402/00")
        self.training = Publishing(folder, data=data, at=StoreConfig(url=f"file://{folder}/store"))
        self.training.ledger.set_facts(id="a-release")
        self.server, self.bucket = server, server.bucket()
        self.at = server.store(self.bucket, "archive")
        self.archive = open_store(self.at)

    def archiver(self, keep: int = 2) -> Archiver:
        return archiver(self.training.folder, self.training.coordinator.lock, self.at, keep)

    def bases(self) -> list[int]:
        rows = self.training.ledger.saves.versions()
        return [each["id"] for each in rows if (each["kind"], each["state"]) == ("base", "published")]

    def until_bases(self, count: int) -> list[int]:
        self.training.until(
            lambda: len(self.bases()) == count and len(self.training.ledger.saves.checkpoints()) >= count
        )
        return self.bases()

    def needed(self, *bases: int) -> list[str]:
        """The files of an archive with these bases, by what the training's own store has."""
        paths = {f"archive/{OWNERS}"}
        for each in bases:
            version, checkpoint = choose(self.training.store, StartFrom(version=each))
            manifests = layout.version_manifest(each), layout.checkpoint_manifest(checkpoint.name)
            paths |= {f"archive/{path}" for path in manifests}
            paths |= {f"archive/{file.path}" for file in (*files_of(version), *files_of(checkpoint))}
        return sorted(paths)

    def files(self) -> list[str]:
        return self.server.files(self.bucket)


@pytest.fixture
def site(tmp_path: Path, bucket_server: BucketServer) -> Iterator[Site]:
    made = Site(tmp_path, bucket_server)
    yield made
    made.training.ledger.close()


def test_an_archive_has_the_newest_bases_with_their_checkpoints_and_nothing_else(site: Site) -> None:
    one = site.archiver()
    [first] = site.until_bases(1)
    # An interrupted copy of a base that was overtaken has left this.
    site.archive.put_bytes(b"rest", layout.cube_file(first - 1, "base", 0, 4))

    one.step(NEVER)
    assert site.files() == site.needed(first)
    assert choose(site.archive, StartFrom())[0].version == first
    assert (one.status.version, one.status.checkpoint, one.status.error) == (first, "20200401-22-g1", "")

    [_, second] = site.until_bases(2)
    one.step(NEVER)
    assert site.files() == site.needed(first, second)
    site.training.finish()
    before = site.files()
    # The delta behind it, and its checkpoint, are not archived.
    one.step(NEVER)
    assert len(published_versions(site.training.store)) == 3
    assert site.files() == before


def test_a_restarted_master_keeps_as_many_bases_as_its_settings_say_now(site: Site) -> None:
    site.until_bases(1)
    site.archiver().step(NEVER)
    [_, second] = site.until_bases(2)

    site.archiver(keep=1).step(NEVER)

    assert site.files() == site.needed(second)


def test_a_refused_base_is_not_archived_and_one_that_was_is_deleted_with_the_next(site: Site) -> None:
    [first] = site.until_bases(1)
    one = site.archiver()
    one.step(NEVER)
    write_refusal(site.training.store, Refusal(version=first, reason="it answers otherwise", refused_at=1.0))

    [_, second] = site.until_bases(2)
    one.step(NEVER)
    assert site.files() == site.needed(second)

    write_refusal(site.training.store, Refusal(version=second, reason="it answers otherwise", refused_at=1.0))
    again = site.archiver()
    again.step(NEVER)
    assert (again.status.version, site.files()) == (None, [f"archive/{OWNERS}"])


def test_an_archive_is_of_one_release_until_another_one_has_started_from_it(site: Site) -> None:
    [first] = site.until_bases(1)
    site.archive.put_bytes(b"other", OWNERS)

    with pytest.raises(ValueError, match="is the archive of another release"):
        site.archiver().step(NEVER)
    started = StartedFrom(store=f"{site.at.url}/", version=1, checkpoint="c", name="start-1-g1", dense=True, shift=0.0)
    site.training.ledger.set_facts(started_from=started)
    site.archiver().step(NEVER)
    assert choose(site.archive, StartFrom())[0].version == first

    release = site.training.ledger.facts.id
    site.training.ledger.set_facts(id="other", started_from=None)
    with pytest.raises(ValueError, match=f"another release \\(other, {release}\\)"):
        site.archiver().step(NEVER)


def test_a_new_master_begins_with_the_archived_base_by_the_settings_of_the_archive(site: Site, tmp_path: Path) -> None:
    [first] = site.until_bases(1)
    site.archiver().step(NEVER)
    [row] = site.training.ledger.saves.checkpoints()
    (tmp_path / "new" / "store").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    archive = {"url": site.at.url, "bucket": site.at.bucket.model_dump(by_alias=True)}
    settings = settings_of(
        data=data_of(path="/logs"),
        model=MODEL.model_copy(update={"start_from": StartFrom(store=site.at.url)}),
        store=StoreConfig.model_validate({"url": f"file://{tmp_path}/new/store", "archive": archive}),
        master=MasterConfig(state_dir=str(tmp_path / "new" / "state")),
    )
    own = open_store(settings.store)
    master = Master(settings, source=FileSource(tmp_path), store=own)
    try:
        assert master._copy_start(NEVER)

        facts = master._ledger.facts
        assert facts.started_from is not None
        assert (facts.started_from.version, facts.started_from.checkpoint) == (first, row["name"])
        copied = read_checkpoint(own, facts.started_from.name)
        assert not wrong_files(own, copied.files)
        # No name of the archive is given again, where this release goes on.
        assert (facts.generation, facts.last_version) == (2, first)
        assert master.status().archive is not None
    finally:
        master._ledger.close()
        master._lock.release()


def test_a_file_of_the_same_name_is_not_replaced(site: Site) -> None:
    [first] = site.until_bases(1)
    path = layout.cube_file(first, "base", 0, 4)
    site.archive.put_bytes(b"of another writer", path)

    with pytest.raises(OSError, match=r"feature-00000-of-00004\.seq"):
        site.archiver().step(NEVER)

    assert site.archive.get_bytes(path) == b"of another writer"
    assert published_versions(site.archive) == []


def test_an_archiver_shows_that_its_bucket_is_away_and_goes_on_once_it_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_LOOK_SECONDS", 0.02)
    [first] = site.until_bases(1)
    at = site.at.model_copy(update={"bucket": site.server.access(credentials_dir=str(site.training.folder / "keys"))})
    one = archiver(site.training.folder, site.training.coordinator.lock, at)
    stop, metrics = threading.Event(), Metrics("master")
    with one.running(stop, metrics):
        until(lambda: one.status.failures > 1)
        assert "the newest base is not archived yet" in one.status.error
        assert "store.config.archive.bucket.credentials" in one.status.error
        assert one.waiting_seconds > 0
        found = on_the_page("master", metrics.render()[0].decode())
        assert found == [line for line in in_the_manual() if "_archive_" in line]

        (site.training.folder / "keys").symlink_to(site.server.keys)
        until(lambda: one.status.version == first)
        assert (one.status.error, one.waiting_seconds) == ("", 0.0)
        stop.set()


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_retention_keeps_the_checkpoint_that_is_being_archived(site: Site) -> None:
    site.until_bases(1)
    one = site.archiver()
    [name] = [each["name"] for each in site.training.ledger.saves.checkpoints()]
    one.copying = name
    retention = CheckpointRetention(site.training.coordinator.lock, site.training.store, 1, archiver=one)
    site.training.publisher._retention = retention

    site.training.finish()
    assert site.training.store.exists(layout.checkpoint_manifest(name))

    one.copying = ""
    retention.sweep()
    assert not site.training.store.exists(layout.checkpoint_manifest(name))
