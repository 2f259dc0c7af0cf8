import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from elastic_ctr.store.backends import FileStore, NotInStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    DictionaryManifest,
    FileEntry,
    ManifestDamaged,
    OverlayBelow,
    digest_of,
)
from elastic_ctr.store.versions.published_files import (
    check,
    checked_file,
    fetch,
    publish,
    published_versions,
    read_checkpoint,
    read_dictionary,
    read_version,
)

DICTIONARY = DictionaryManifest(
    version=7, kind="overlay", full_version=5, base=5, parent=6, partitions=60, dim=9, keys=3,
    files=(FileEntry(path=layout.dictionary_part(7, 3), bytes=1, sha256="0" * 64),),
)  # fmt: skip


class RemoteStore(FileStore):
    """As one on another machine: its files have no path here."""

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002
        return None


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@given(st.integers(1, 2**53), st.integers(0, 2**53))
def test_a_manifest_is_the_same_after_it_was_written_and_read(version: int, keys: int) -> None:
    manifest = DICTIONARY.model_copy(update={"version": version, "keys": keys})

    assert DictionaryManifest.model_validate_json(manifest.to_json()) == manifest


def test_an_overlay_below_is_said_only_where_there_is_one_and_only_as_its_own_file() -> None:
    file = FileEntry(path=layout.dictionary_overlay(6), bytes=1, sha256="0" * 64)
    manifest = DICTIONARY.model_copy(update={"below": OverlayBelow(version=6, file=file)})

    assert DictionaryManifest.model_validate_json(manifest.to_json()) == manifest
    assert manifest.overlays(3) == (file, *DICTIONARY.overlays(3))
    assert manifest.others == {5, 6}
    assert b"below" not in DICTIONARY.to_json()
    for wrong in ("output/ctr_dict/6/../../../etc", layout.dictionary_overlay(5)):
        document = json.loads(manifest.to_json())
        document["below"]["file"]["path"] = wrong
        with pytest.raises(ValidationError, match="is not the overlay of version 6"):
            DictionaryManifest.model_validate(document)


def test_fields_are_camel_case_outside_and_unknown_ones_are_refused() -> None:
    fields = json.loads(DICTIONARY.to_json())

    assert fields["fullVersion"] == 5
    with pytest.raises(ValidationError, match="extra"):
        DictionaryManifest.model_validate({**fields, "fulVersion": 5})


def test_a_published_file_is_described_by_what_was_put(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")

    entry = publish(store, tmp_path / "source", "a/b", records=2)

    assert (entry.path, entry.bytes, entry.records) == ("a/b", 5, 2)
    assert fetch(store, entry, tmp_path / "target").read_bytes() == b"12345"
    assert digest_of(tmp_path / "target") == (entry.bytes, entry.sha256)


def test_a_file_that_is_not_what_the_manifest_says_is_not_handed_out(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    entry = publish(store, tmp_path / "source", "a")
    (store.root / "a").write_bytes(b"12346")

    with pytest.raises(ManifestDamaged, match=r"a in .* is not what its manifest says .* put a copy of the file back"):
        fetch(store, entry, tmp_path / "target")

    assert not (tmp_path / "target").exists()


def test_a_file_of_this_machine_is_used_where_it_is_and_one_of_another_is_copied(
    store: FileStore, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    entry = publish(store, tmp_path / "source", "a/b")

    here = checked_file(store, entry, tmp_path / "copies")
    copied = checked_file(RemoteStore(store.root), entry, tmp_path / "copies")

    assert here == store.root / "a" / "b"
    assert copied.parent == tmp_path / "copies"
    assert copied.read_bytes() == b"12345"


def test_a_file_of_this_machine_is_checked_too(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    entry = publish(store, tmp_path / "source", "a")
    (store.root / "a").write_bytes(b"1234")

    with pytest.raises(ManifestDamaged):
        checked_file(store, entry, tmp_path)
    with pytest.raises(ManifestDamaged):
        check(store, entry, store.root / "a")
    (store.root / "a").unlink()
    with pytest.raises(NotInStore):
        checked_file(store, entry, tmp_path)
    (store.root / "a").mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        checked_file(store, entry, tmp_path)


def test_a_missing_manifest_is_not_published_and_a_damaged_one_is_named(store: FileStore) -> None:
    store.put_bytes(b"{}", layout.version_manifest(7))
    store.put_bytes(b"not json", layout.dictionary_manifest(7))

    with pytest.raises(ManifestDamaged, match=r"output/versions/7\.json in .* is damaged: version"):
        read_version(store, 7)
    with pytest.raises(ManifestDamaged, match=r"manifest\.json in .* is damaged: the document"):
        read_dictionary(store, 7)
    with pytest.raises(NotInStore):
        read_checkpoint(store, "none")


@given(st.binary())
def test_a_manifest_with_any_bytes_is_damaged_and_nothing_else(content: bytes) -> None:
    with TemporaryDirectory() as name:
        store = FileStore(Path(name))
        for path in (layout.version_manifest(7), layout.dictionary_manifest(7), layout.checkpoint_manifest("7")):
            store.put_bytes(content, path)

        with pytest.raises(ManifestDamaged):
            read_version(store, 7)
        with pytest.raises(ManifestDamaged):
            read_dictionary(store, 7)
        with pytest.raises(ManifestDamaged):
            read_checkpoint(store, "7")


def test_a_manifest_under_the_name_of_another_version_is_damaged(store: FileStore) -> None:
    manifest = DictionaryManifest(
        version=9, kind="full", full_version=9, base=9, parent=None, partitions=1, dim=1, keys=0, files=()
    )
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(7))

    with pytest.raises(ManifestDamaged, match="it names version 9"):
        read_dictionary(store, 7)


def test_a_manifest_larger_than_any_is_damaged(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.store.backends.store.SMALL_FILE_LIMIT", 100)
    store.put_bytes(b" " * 101, layout.version_manifest(7))

    with pytest.raises(ManifestDamaged, match="has more than 100 bytes"):
        read_version(store, 7)


def test_versions_are_those_with_a_manifest_oldest_first(store: FileStore) -> None:
    for name in ("10.json", "9.json", "x.json", "11.txt", "\u00b2.json", "007.json", f"{'9' * 40}.json"):
        store.put_bytes(b"", f"{layout.VERSIONS}/{name}")

    assert published_versions(store) == [9, 10]


def test_a_dictionary_knows_its_parts() -> None:
    assert DICTIONARY.part(3).path == "output/ctr_dict/7/part-00003.dict"
    with pytest.raises(ManifestDamaged, match="version 7 names no file"):
        DICTIONARY.part(4)


def test_a_checkpoint_keeps_its_rows_by_partition() -> None:
    checkpoint = CheckpointManifest(
        name="a", pass_id="p", pass_ordinal=1, follows_version=7, base_version=5, created_at=0.0, partitions=2,
        rows={0: 3, 1: 4}, files=(),
    )  # fmt: skip

    assert CheckpointManifest.model_validate_json(checkpoint.to_json()).rows == {0: 3, 1: 4}
