"""Versions by their names, in a store of manifests alone."""

from pathlib import Path

import pytest

from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.jobs.scoring.version import VersionUnusable, fetch_version, find_version
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import ManifestDamaged, VersionManifest
from elastic_ctr.store.versions.safeguards import Refusal, write_refusal


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def put(store: FileStore, *versions: int) -> None:
    for version in versions:
        manifest = VersionManifest(
            version=version, kind="base", base=version, parent=None, pass_id="20200401/00", event_time_max=1, created_at=1,
            partitions=2, dim=9, keys=0, slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=(), model_files=(),
            samples=0, auc_live=None, auc_published=None,
        )  # fmt: skip
        store.put_bytes(manifest.to_json(), layout.version_manifest(version))


def never() -> int | None:
    raise AssertionError("cube-transfer is asked for the live version alone")


def test_the_latest_version_is_the_newest_one_that_is_not_refused(store: FileStore) -> None:
    put(store, 15, 16, 17)
    write_refusal(store, Refusal(version=17, reason="its samples differ", refused_at=1))

    assert find_version(store, "latest", never).version == 16
    assert find_version(store, "17", never).version == 17
    assert find_version(store, "live", lambda: 15).version == 15


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("18", "version 18 is not in the store file://.*; there are 15, 16"),
        ("new", "--version 'new' is neither the id of a version nor latest nor live"),
        ("-1", "--version '-1' is neither the id"),
        ("live", "no version is live yet; `--version latest` takes the newest one in the store"),
    ],
)
def test_a_version_that_is_not_there_is_refused_with_those_that_are(
    store: FileStore, asked: str, sentence: str
) -> None:
    put(store, 15, 16)

    with pytest.raises(VersionUnusable, match=sentence):
        find_version(store, asked, lambda: None)


def test_of_many_versions_the_newest_are_named(store: FileStore) -> None:
    put(store, *range(10, 20))

    with pytest.raises(VersionUnusable, match="the newest of 10 are 15, 16, 17, 18, 19"):
        find_version(store, "7", never)


def test_a_store_without_a_usable_version_says_so(store: FileStore) -> None:
    with pytest.raises(
        VersionUnusable, match=r"no version is in the store file://.*; is it the one that training publishes to"
    ):
        find_version(store, "latest", never)
    with pytest.raises(VersionUnusable, match=r"version 7 is not in the store file://.*; there is none"):
        find_version(store, "7", never)
    put(store, 15)
    write_refusal(store, Refusal(version=15, reason="", refused_at=1))
    with pytest.raises(VersionUnusable, match="all 1 that are there are refused"):
        find_version(store, "latest", never)


def test_a_version_without_its_network_is_damaged(store: FileStore, tmp_path: Path) -> None:
    put(store, 15)
    manifest = find_version(store, "15", never)

    with pytest.raises(ManifestDamaged, match=r"the manifest of version 15 lists no network\.pdiparams"):
        fetch_version(store, manifest, tmp_path, StoreConfig(url=store.url), None, 1)
