from pathlib import Path

import pytest

from cube.published import DIM, PARTITIONS, keys_of, publish_version
from elastic_ctr.cube.transfer.catalog import Catalog, delete_dictionaries, missing_inputs
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import Announcement
from elastic_ctr.store.versions.manifest import DictionaryManifest
from elastic_ctr.store.versions.published_files import read_version

KEYS = keys_of(1, 2, 3, 4)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def built(store: FileStore, version: int) -> None:
    manifest = DictionaryManifest(
        version=version, kind="full", full_version=version, base=version, parent=None, partitions=PARTITIONS, dim=DIM,
        keys=0, files=(),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))


def test_an_empty_store_has_nothing_and_no_problem(store: FileStore) -> None:
    assert Catalog(store).scan() == ({}, {}, (), (), frozenset())


def test_an_announced_version_with_all_its_files_may_be_built(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    publish_version(store, tmp_path, 11, KEYS, parent=10, base=10)

    scan = Catalog(store).scan()

    assert (scan.usable, scan.problems) == ((10, 11), ())


def test_a_compacted_base_is_built_for_the_deltas_on_it_alone(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    publish_version(store, tmp_path, 11, KEYS)
    compacted = read_version(store, 11).model_copy(update={"compacts": 10})
    store.put_bytes(compacted.to_json(), layout.version_manifest(11), overwrite=True)

    # Nothing newer is there, and it is announced.
    assert Catalog(store).scan().usable == (10,)
    publish_version(store, tmp_path, 12, KEYS, parent=11, base=11)
    scan = Catalog(store).scan()

    assert (scan.usable, scan.problems) == ((10, 12), ())


def test_a_version_that_no_donefile_announces_is_neither_usable_nor_a_problem(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    store.delete(layout.DONEFILES)

    scan = Catalog(store).scan()

    assert (scan.usable, scan.problems) == ((), ())
    assert 10 in scan.manifests


def test_there_is_news_once_a_donefile_is_another_than_the_last_scan_read(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(store)
    catalog.scan()
    assert not catalog.has_news()

    publish_version(store, tmp_path, 10, KEYS)
    assert catalog.has_news()
    assert catalog.has_news()

    catalog.scan()
    assert not catalog.has_news()
    publish_version(store, tmp_path, 11, KEYS, parent=10, base=10)
    assert catalog.has_news()

    catalog.scan()

    def away(_: str) -> bytes:
        raise StoreError("it is away")

    monkeypatch.setattr(store, "get_bytes", away)
    assert catalog.has_news()


def test_a_version_with_a_dictionary_is_not_built_again(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    catalog = Catalog(store)
    catalog.scan()

    built(store, 10)
    scan = catalog.scan()

    assert (scan.usable, list(scan.dictionaries)) == ((), [10])


def test_a_donefile_that_names_a_missing_manifest_is_a_sentence_and_blocks_nothing(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    lines = store.get_bytes(layout.BASE_DONEFILE) + Announcement(id=12, key=12, input="/x").to_line().encode()
    store.put_bytes(lines, layout.BASE_DONEFILE, overwrite=True)

    scan = Catalog(store).scan()

    assert scan.usable == (10,)
    assert scan.problems == (
        "the donefile names version 12, which has no manifest in the store; publish its manifest or remove the line",
    )
    assert Catalog(store).scan(deleted=[12]).problems == ()


def test_a_missing_file_is_a_sentence_for_its_version_and_those_on_top_of_it(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    publish_version(store, tmp_path, 11, KEYS, parent=10, base=10)
    publish_version(store, tmp_path, 12, KEYS)
    store.delete(layout.cube_file(10, "base", 2, PARTITIONS))

    scan = Catalog(store).scan()

    assert scan.usable == (12,)
    assert scan.problems == tuple(
        f"version {version} cannot be built: {layout.cube_file(10, 'base', 2, PARTITIONS)} is not in the store; "
        "publish the version again"
        for version in (10, 11)
    )


def test_a_damaged_donefile_is_a_sentence_and_its_last_lines_hold(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    catalog = Catalog(store)
    catalog.scan()

    store.put_bytes(b"{", layout.BASE_DONEFILE, overwrite=True)
    scan = catalog.scan()

    assert scan.usable == (10,)
    assert "base.txt line 1" in scan.problems[0]


@pytest.mark.parametrize(
    "line", [b'{"id": 1e999, "key": 1, "input": ""}', b"[" * 100_000, b"\xff", b'{"id": "\xc2\xb2"}']
)
def test_a_bad_line_is_a_problem_and_the_next_version_may_be_built(
    store: FileStore, tmp_path: Path, line: bytes
) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    good = store.get_bytes(layout.BASE_DONEFILE)
    catalog = Catalog(store)

    store.put_bytes(line + b"\n" + good, layout.BASE_DONEFILE, overwrite=True)
    scan = catalog.scan()

    assert scan.usable == (10,)
    assert len(scan.problems) == 1
    assert "base.txt line 1" in scan.problems[0]


def test_a_damaged_manifest_is_a_sentence_and_a_delta_without_its_parent_another(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    publish_version(store, tmp_path, 11, KEYS, parent=10, base=10)
    (store.root / layout.version_manifest(10)).write_text("{}")
    store.put_bytes(b"{}", layout.dictionary_manifest(7))

    scan = Catalog(store).scan()

    assert scan.usable == ()
    assert len(scan.problems) == 3
    assert "delta 11 depends on 10, which the store does not hold" in scan.problems[-1]


def test_a_store_that_suddenly_shows_nothing_is_not_believed(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path, 10, KEYS)
    catalog = Catalog(store)
    catalog.scan()

    store.root.rename(tmp_path / "unmounted")
    with pytest.raises(StoreError, match="is it mounted"):
        catalog.scan()
    (tmp_path / "unmounted").rename(store.root)

    assert catalog.scan().usable == (10,)


def test_missing_files_are_named(store: FileStore, tmp_path: Path) -> None:
    manifest = publish_version(store, tmp_path, 10, KEYS)
    assert missing_inputs(manifest, store) == []

    store.delete(layout.cube_folder(10, "base"))

    assert missing_inputs(manifest, store) == [entry.path for entry in manifest.cube_files]


def test_an_overlay_is_deleted_without_the_full_parts_that_it_is_folded_into(store: FileStore) -> None:
    for version in (11, 12):
        built(store, version)
        store.put_bytes(b"overlay", layout.dictionary_overlay(version))
    for name in ("fold.json", "part-00000.dict"):
        store.put_bytes(b"fold", f"{layout.dictionary_folder(12)}/{name}")

    assert delete_dictionaries(store, (11, 12)) == [11, 12]
    assert list(Catalog(store).scan().dictionaries) == []
    assert sorted(store.list(layout.dictionary_folder(12))) == ["fold.json", "part-00000.dict"]
    assert not list(store.walk(layout.dictionary_folder(11)))
