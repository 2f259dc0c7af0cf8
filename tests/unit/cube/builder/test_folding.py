"""Folds: versions built before, during and after one answer the same as if there was none."""

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from cube.builder.test_job import MANY, expected, looked_up
from cube.published import keys_of, publish_version
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.agent.cache import Cache
from elastic_ctr.cube.builder import folding, job
from elastic_ctr.cube.builder.build_server import CubeBuilder
from elastic_ctr.cube.builder.job import FOLD
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_dictionary, read_full


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def builder(store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CubeBuilder:
    monkeypatch.setattr(job, "_LEAST_TO_MERGE", 40)
    monkeypatch.setattr(folding, "_AHEAD_SECONDS", 0.0)
    monkeypatch.setattr(folding, "_AHEAD_SHARE", 0.0)
    settings = CubeTransferConfig(scratch_dir=str(tmp_path / "scratch"), state_dir=str(tmp_path / "state"))
    found = CubeBuilder(CubeBuilderFile(store=StoreConfig(url=store.url), cube_transfer=settings))
    found.start()
    return found


def until_folded(builder: CubeBuilder, version: int) -> None:
    ends = time.monotonic() + 60
    while (fold := builder._folding.ahead or builder._folding.newest) is None or fold.version != version:
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_versions_after_a_fold_lie_over_it_and_answer_as_those_without(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    deltas = [(11, MANY[:30]), (12, MANY[20:60]), (13, keys_of(7, 900)), (14, keys_of(8, 901)), (15, MANY[50:130])]
    for version, keys in deltas:
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=True)
    try:
        for version in (10, 11, 12):
            builder.build(version)
        # 13 is built while the fold of 12 is under way, or right behind it.
        builder.build(13)
        until_folded(builder, 12)
        builder.build(14)
        builder.build(15)
        until_folded(builder, 15)
    finally:
        builder.stop()

    found = {version: read_dictionary(store, version) for version in (12, 14, 15)}
    assert {each.kind for each in found.values()} == {"overlay"}
    assert (found[12].full_version, found[12].folded) == (10, False)
    assert (found[14].full_version, found[14].folded) == (12, True)
    assert (found[15].full_version, found[15].folded) == (12, True)
    # Over the fold, the overlay has only what came after it.
    assert found[14].keys == 4
    answers = expected((MANY, 10), *((keys, version) for version, keys in deltas))
    every = np.array(list(answers), np.uint64)
    assert looked_up(store, 15, every) == answers
    cache = Cache(store, tmp_path / "cache", 1e12)
    full, overlay = cache.parts(15, 1)
    assert full.read_bytes() == (store.root / read_full(store, found[15]).part(1).path).read_bytes()
    assert overlay is not None
    assert cache.cached_partitions(15) == {1}
    assert cache.forget({15}) == []
    assert read_full(store, found[15]).version == 12
    assert store.exists(layout.dictionary_fold(15))
    assert not (tmp_path / "scratch" / FOLD).exists()


def test_versions_announce_a_fold_before_one_lies_over_it(
    store: FileStore, tmp_path: Path, builder: CubeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_AHEAD_SECONDS", 1e6)
    publish_version(store, tmp_path / "work", 10, MANY)
    for version in range(11, 15):
        publish_version(store, tmp_path / "work", version, MANY[:50], parent=version - 1, base=10, in_one_file=True)
    try:
        for version in (10, 11):
            builder.build(version)
        until_folded(builder, 11)
        # Its overlay is as large, and no other fold is begun.
        for version in (12, 13):
            builder.build(version)
        assert builder._folding._thread is not None
        assert not builder._folding._thread.is_alive()
        builder._folding._use_at = 0.0
        builder.build(14)
    finally:
        builder.stop()

    found = [read_dictionary(store, version) for version in (11, 12, 13, 14)]
    assert [(each.full_version, each.fold_ahead) for each in found] == [(10, None), (10, 11), (10, 11), (11, None)]
    assert b"fold_ahead" not in store.get_bytes(layout.dictionary_manifest(14))


def publish_compaction(store: FileStore, work: Path, version: int, compacts: int, has: dict[int, list[float]]) -> None:
    """A base with the keys and values of an earlier version."""
    publish_version(store, work, version, keys_of(*has), compacts=compacts, rows=np.array([*has.values()], np.float32))


def test_a_delta_behind_a_compaction_lies_over_the_fold_before_it(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    deltas = [(11, MANY[:60]), (12, keys_of(7, 900)), (13, keys_of(8, 901))]
    for version, keys in deltas:
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=True)
    compacted = expected((MANY, 10), *((keys, version) for version, keys in deltas[:2]))
    publish_compaction(store, tmp_path / "work", 14, 12, compacted)
    publish_version(store, tmp_path / "work", 15, keys_of(8, 901, 902), parent=14, base=14, in_one_file=True)
    publish_version(store, tmp_path / "work", 16, keys_of(9), parent=15, base=14, in_one_file=True)
    try:
        for version in (10, 11):
            builder.build(version)
        until_folded(builder, 11)
        for version in (12, 15, 16):
            builder.build(version)
    finally:
        builder.stop()

    last = read_dictionary(store, 16)
    assert (last.full_version, last.folded, last.keys) == (11, True, 6)
    answers = compacted | expected((keys_of(8, 901, 902), 15), (keys_of(9), 16))
    assert looked_up(store, 16, keys_of(*answers)) == answers


def test_a_delta_behind_a_compaction_learns_of_a_fold_that_ends_later(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:60], parent=10, base=10, in_one_file=True)
    compacted = expected((MANY, 10), (MANY[:60], 11))
    publish_compaction(store, tmp_path / "work", 12, 11, compacted)
    publish_version(store, tmp_path / "work", 13, keys_of(5), parent=12, base=12, in_one_file=True)
    publish_version(store, tmp_path / "work", 14, keys_of(6), parent=13, base=12, in_one_file=True)
    try:
        for version in (10, 11):
            builder.build(version)
        until_folded(builder, 11)
        fold, builder._folding.ahead = builder._folding.ahead, None
        builder.build(13)
        builder._folding.newest = fold
        builder.build(14)
    finally:
        builder.stop()

    assert (read_dictionary(store, 13).full_version, read_dictionary(store, 14).full_version) == (10, 11)
    answers = compacted | expected((keys_of(5), 13), (keys_of(6), 14))
    assert looked_up(store, 14, keys_of(*answers)) == answers


@pytest.mark.parametrize("gone", [layout.version_manifest(12), layout.dictionary_folder(11)])
def test_a_fold_that_was_deleted_behind_a_compaction_is_not_built_upon(
    store: FileStore, tmp_path: Path, builder: CubeBuilder, gone: str
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:60], parent=10, base=10, in_one_file=True)
    publish_version(store, tmp_path / "work", 12, MANY[:1], parent=11, base=10, in_one_file=True)
    compacted = expected((MANY, 10), (MANY[:60], 11), (MANY[:1], 12))
    publish_compaction(store, tmp_path / "work", 13, 12, compacted)
    publish_version(store, tmp_path / "work", 14, keys_of(5), parent=13, base=13, in_one_file=True)
    publish_version(store, tmp_path / "work", 15, keys_of(6), parent=14, base=13, in_one_file=True)
    try:
        for version in (10, 11):
            builder.build(version)
        until_folded(builder, 11)
        fold, builder._folding.ahead = builder._folding.ahead, None
        builder.build(14)
        store.delete(gone)
        builder._folding.newest = fold
        builder.build(15)
    finally:
        builder.stop()

    assert read_dictionary(store, 15).full_version == 10
    answers = compacted | expected((keys_of(5), 14), (keys_of(6), 15))
    assert looked_up(store, 15, keys_of(*answers)) == answers


def test_versions_beside_a_fold_that_was_rolled_back_forget_it(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    parents = {11: 10, 12: 11, 13: 11, 14: 13, 15: 14}
    for version, parent in parents.items():
        keys = MANY[:50] if version == 12 else MANY[version : version + 3]
        publish_version(store, tmp_path / "work", version, keys, parent=parent, base=10, in_one_file=True)
    try:
        for version in (10, 11, 12):
            builder.build(version)
        until_folded(builder, 12)
        for version in (13, 14):
            builder.build(version)
        assert builder._folding.newest is None
        builder.build(15)
    finally:
        builder.stop()

    assert read_dictionary(store, 15).full_version == 10
    deltas = [(MANY[version : version + 3], version) for version in (11, 13, 14, 15)]
    assert looked_up(store, 15, MANY) == expected((MANY, 10), *deltas)


def test_a_fold_that_fails_leaves_versions_over_the_full_parts_of_before(
    store: FileStore, tmp_path: Path, builder: CubeBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    for version in (11, 12):
        publish_version(store, tmp_path / "work", version, MANY[:50], parent=version - 1, base=10, in_one_file=True)
    try:
        builder.build(10)
        part = store.root / read_dictionary(store, 10).part(0).path
        part.rename(part.with_suffix(".away"))
        builder.build(11)
        ends = time.monotonic() + 60
        while "is not merged into full parts" not in caplog.text:
            assert time.monotonic() < ends
            time.sleep(0.02)
        part.with_suffix(".away").rename(part)
        builder.build(12)
    finally:
        builder.stop()

    assert builder._folding.newest is None
    assert read_dictionary(store, 12).full_version == 10
    assert looked_up(store, 12, MANY) == expected((MANY, 10), (MANY[:50], 12))


def test_the_processes_of_a_large_build_end_when_small_ones_follow(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:3], parent=10, base=10, in_one_file=True)
    try:
        builder.build(10)
        large = multiprocessing.active_children()
        builder.build(11)
        for process in large:
            process.join(30)
    finally:
        builder.stop()

    assert large
    assert not any(process.is_alive() for process in large)
    assert looked_up(store, 11, MANY) == expected((MANY, 10), (MANY[:3], 11))


def test_the_many_keys_of_a_streams_overlay_need_no_process_of_their_own(
    store: FileStore, tmp_path: Path, builder: CubeBuilder
) -> None:
    keys = np.arange(1, 150_001, dtype=np.uint64)
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, keys, parent=10, base=10, in_one_file=True)
    try:
        builder.build(10)
        of_the_base = builder._pool
        builder.build(11)
    finally:
        builder.stop()

    assert of_the_base is not None
    assert builder._pool is None
    assert looked_up(store, 11, keys[::1000]) == expected((keys[::1000], 11))
