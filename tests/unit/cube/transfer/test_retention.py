import os
import time
from pathlib import Path

import pytest

from cube.published import keys_of, publish_version
from elastic_ctr.cube.transfer.catalog import (
    Followed,
    delete_orphans,
    delete_versions,
    followed_by_checkpoints,
)
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest
from elastic_ctr.store.versions.published_files import ORPHAN_SECONDS, published_versions


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def test_a_deleted_version_is_gone_with_all_that_belongs_to_it(store: FileStore, tmp_path: Path) -> None:
    for version in (10, 11):
        publish_version(store, tmp_path / "work", version, keys_of(1, 2))
        store.put_bytes(b"", layout.sample_file(version))
        store.put_bytes(b"", layout.dictionary_manifest(version))

    delete_versions(store, [10])

    left = list(store.walk("output"))
    assert published_versions(store) == [11]
    assert not [path for path in left if "/10" in path]
    assert layout.sample_file(11) in left


class Stubborn(FileStore):
    """A store that deletes files and no folders."""

    def delete(self, path: str) -> None:
        if (self.root / path).is_dir():
            raise StoreError(f"{path} cannot be deleted")
        super().delete(path)


def test_a_deletion_that_is_cut_off_has_taken_the_manifest_first(tmp_path: Path) -> None:
    store = Stubborn(tmp_path / "store")
    publish_version(store, tmp_path / "work", 10, keys_of(1, 2))
    store.put_bytes(b"", layout.dictionary_part(10, 0))

    with pytest.raises(StoreError):
        delete_versions(store, [10])

    assert published_versions(store) == []
    assert store.list(layout.CUBE) == ["10/", "donefile/"]


def test_a_folder_without_a_manifest_goes_after_a_day_without_change(store: FileStore) -> None:
    for version in (8, 9, 10, 11):
        store.put_bytes(b"", layout.cube_file(version, "base", 0, 1))
    store.put_bytes(b"", f"{layout.CUBE}/notes/readme")
    now = store.newest(layout.CUBE) + ORPHAN_SECONDS + 10
    fresh = store.root / layout.cube_file(9, "base", 0, 1)
    os.utime(fresh, (now, now))

    deleted = delete_orphans(store, published=[10, 12], built=[], now=now)

    assert deleted == [f"{layout.CUBE}/11", f"{layout.CUBE}/8"]
    assert store.list(layout.CUBE) == ["10/", "9/", "notes/"]
    assert delete_orphans(store, published=[10, 12], built=[], now=time.time()) == []


def test_files_newer_than_all_published_versions_are_no_orphans_at_any_age(store: FileStore) -> None:
    store.put_bytes(b"", layout.cube_file(11, "delta", 0, 1))
    store.put_bytes(b"", f"{layout.model_folder(11)}/network.pdmodel")
    now = time.time() + ORPHAN_SECONDS + 10

    assert delete_orphans(store, published=[10], built=[], now=now) == []
    assert delete_orphans(store, published=[], built=[], now=now) == []


def test_a_dictionary_that_is_whole_stays_while_its_version_is_known_or_it_is_built(store: FileStore) -> None:
    for version in (8, 9, 10):
        store.put_bytes(b"", layout.dictionary_part(version, 0))
    now = time.time() + ORPHAN_SECONDS + 10

    assert delete_orphans(store, published=[9], built=[10], now=now) == [f"{layout.DICTIONARIES}/8"]


def test_versions_that_training_may_come_back_to_are_found_in_its_checkpoints(store: FileStore) -> None:
    checkpoint = CheckpointManifest(
        name="a", pass_id="p", pass_ordinal=1, follows_version=7, base_version=5, created_at=0.0, partitions=2,
        rows={}, files=(),
    )  # fmt: skip
    by_log = checkpoint.model_copy(update={"name": "b", "follows_version": 12, "stands_on": "a", "log": (8, 9, 12)})
    for each in (checkpoint, by_log):
        store.put_bytes(each.to_json(), layout.checkpoint_manifest(each.name))
    store.put_bytes(b"{}", layout.checkpoint_manifest("damaged"))
    store.put_bytes(b"", f"{layout.CHECKPOINTS}/unfinished/part")

    assert followed_by_checkpoints(store) == Followed(parents=frozenset({5, 7, 12}), log=frozenset({8, 9, 12}))
