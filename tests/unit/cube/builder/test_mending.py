"""Damaged parts of a dictionary are built again, byte for byte."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cube.builder.test_folding import until_folded
from cube.builder.test_job import MANY, build
from cube.published import keys_of, publish_version
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder import folding, job
from elastic_ctr.cube.builder.job import BuildFailed, BuildOutcome, Plan, Step, Task, run_task
from elastic_ctr.cube.builder.mending import damaged_files, mend
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_dictionary, read_full


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def mended(store: FileStore, scratch: Path, version: int) -> list[str]:
    scratch.mkdir(exist_ok=True)

    def in_this_process(plan: Plan, step: Step, partition: int) -> BuildOutcome:
        return run_task(Task(StoreConfig(url=store.url), plan, step, partition, scratch))

    return mend(store, version, scratch, in_this_process)


def files_of(store: FileStore, version: int) -> Iterator[str]:
    """All files that a version lies on."""
    manifest = read_dictionary(store, version)
    below = () if manifest.below is None else (manifest.below.file,)
    yield from {each.path for each in (*read_full(store, manifest).files, *below, *manifest.files)}


def spoil(store: FileStore, path: str) -> None:
    file = store.root / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("in_one_file", [False, True], ids=["a file a partition", "one file"])
@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
def test_each_file_of_every_kind_of_version_is_built_again_as_it_was(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_file: bool, lost: bool
) -> None:
    monkeypatch.setattr(job, "_LARGE_OVERLAY", 8)
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "builds", 10)
    for version in range(11, 16):
        keys = np.unique(MANY[version : version + 6])
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=in_one_file)
        # The last but one becomes full parts where it can.
        build(store, tmp_path / "builds", version, share=0.0 if version == 14 and not in_one_file else 1.0)
    for version in range(10, 16):
        paths = sorted(files_of(store, version))
        right = {path: store.get_bytes(path) for path in paths}
        for path in paths:
            store.delete(path) if lost else spoil(store, path)

        assert {each.path for each in damaged_files(store, read_dictionary(store, version))} == set(paths)
        assert sorted(mended(store, tmp_path / "mending", version)) == paths
        assert {path: store.get_bytes(path) for path in paths} == right
        assert mended(store, tmp_path / "mending", version) == []


def test_full_parts_of_a_fold_are_built_again(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cube.builder.test_server import builder_of

    monkeypatch.setattr(folding, "_AHEAD_SECONDS", 0.0)
    monkeypatch.setattr(folding, "_AHEAD_SHARE", 0.0)
    monkeypatch.setattr(job, "_LEAST_TO_MERGE", 1)
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:20], parent=10, base=10, in_one_file=True)
    publish_version(store, tmp_path / "work", 12, MANY[:2], parent=11, base=10, in_one_file=True)
    builder = builder_of(store, tmp_path / "builds")
    try:
        builder.build(10)
        builder.build(11)
        until_folded(builder, 11)
        builder.build(12)
    finally:
        builder.stop() if builder._thread.is_alive() else builder._folding.stop()
    whole = read_full(store, read_dictionary(store, 12))
    assert (read_dictionary(store, 12).folded, whole.version) == (True, 11)
    right = store.get_bytes(whole.files[1].path)
    spoil(store, whole.files[1].path)

    assert mended(store, tmp_path / "mending", 12) == [whole.files[1].path]
    assert store.get_bytes(whole.files[1].path) == right


def test_where_the_sequence_file_is_damaged_too_the_sentence_names_it_and_what_to_do(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "builds", 10)
    part, source = layout.dictionary_part(10, 1), layout.cube_file(10, "base", 1, 3)
    spoil(store, part)
    spoil(store, source)

    with pytest.raises(BuildFailed) as failed:
        mended(store, tmp_path / "mending", 10)

    assert str(failed.value).startswith(f"{source} in {store.url} is not what its manifest says")
    assert str(failed.value).endswith(
        "put a copy of the file back, or have another version answer: `elastic-ctr rollback VERSION`"
    )


def test_versions_below_that_are_gone_change_nothing_where_their_deltas_are_there(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, keys_of(1, 2), parent=10, base=10)
    publish_version(store, tmp_path / "work", 12, keys_of(3), parent=11, base=10)
    for version in (10, 11, 12):
        build(store, tmp_path / "builds", version)
    store.delete(layout.dictionary_folder(11))
    path = layout.dictionary_part(12, 0)
    right = store.get_bytes(path)
    spoil(store, path)

    assert mended(store, tmp_path / "mending", 12) == [path]
    assert store.get_bytes(path) == right


def test_a_damaged_part_that_is_built_again_as_another_file_is_left_as_it_is_and_named(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "builds", 10)
    path = layout.dictionary_part(10, 1)
    manifest = read_dictionary(store, 10)
    other = tuple(
        each.model_copy(update={"sha256": "0" * 64}) if each.path == path else each for each in manifest.files
    )
    changed = manifest.model_copy(update={"files": other}).to_json()
    store.put_bytes(changed, layout.dictionary_manifest(10), overwrite=True)
    before = store.get_bytes(path)

    with pytest.raises(BuildFailed, match=f"{path} is damaged, and built again it is another file"):
        mended(store, tmp_path / "mending", 10)

    assert store.get_bytes(path) == before
