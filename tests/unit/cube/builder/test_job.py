import hashlib
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cube.published import DIM, PARTITIONS, Keys, keys_of, publish_version, values_of
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder import job
from elastic_ctr.cube.builder.job import (
    BuildFailed,
    BuildOutcome,
    Step,
    Task,
    dictionary_of,
    fresh_scratch,
    past_share,
    plan_build,
    publish_again,
    publish_dictionary,
    run_task,
    run_tasks,
)
from elastic_ctr.cube.builder.part import build_full
from elastic_ctr.cube.dictionary.format import DictionaryPart
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.features.quantiser import quantised
from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.store.backends import AlreadyPublished, FileStore, NotInStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest, FileEntry, digest_of
from elastic_ctr.store.versions.published_files import checked_file, read_dictionary, read_full, read_version

MANY = np.arange(1, 301, dtype=np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def every(
    step: Step, store: FileStore, version: int, scratch: Path, parts: list[FileEntry] | None = None
) -> list[BuildOutcome]:
    plan = plan_build(version, store)
    task = Task(StoreConfig(url=store.url), plan, step, 0, scratch)
    count = len(parts) if parts else len(plan.files(step))
    return [run_task(task._replace(partition=p, part=parts[p] if parts else None)) for p in range(count)]


def entries_of(outcomes: list[BuildOutcome]) -> list[FileEntry]:
    assert {each.failed for each in outcomes} == {None}
    return [each.entry for each in outcomes if each.entry is not None]


def build(store: FileStore, scratch: Path, version: int, share: float = 0.02) -> DictionaryManifest:
    """As the service does, in this process."""
    plan = plan_build(version, store)
    folder = fresh_scratch(scratch, version)
    full = plan.ancestor is None
    parts = entries_of(every(plan.first_step, store, version, folder))
    if past_share(plan, sum(each.records for each in parts), store, share):
        parts = entries_of(every("merge", store, version, folder))
        full = True
    entries = entries_of(every("publish", store, version, folder, parts))
    manifest = dictionary_of(plan, "full" if full else "overlay", entries)
    return publish_dictionary(store, manifest, layout.dictionary_manifest(version))


def records(store: FileStore, version: int) -> dict[int, list[float]]:
    """What a version answers, keys to values."""
    manifest = read_dictionary(store, version)
    found: dict[int, list[float]] = {}
    for folder in sorted({*manifest.others, version}):
        for entry in read_dictionary(store, folder).files:
            for block in DictionaryPart.open(store.root / entry.path).blocks():
                found.update(zip(map(int, block[0]), map(list, block[1].tolist()), strict=True))
    return found


def looked_up(store: FileStore, version: int, keys: Keys) -> dict[int, list[float]]:
    """The same by the lookup of cube-server."""
    manifest = read_dictionary(store, version)
    full = read_full(store, manifest)
    paths = {
        partition: Paths.of(*(store.root / each.path for each in (full.part(partition), *manifest.overlays(partition))))
        for partition in range(PARTITIONS)
    }
    values, missing = VersionTable.open(version, DIM, PARTITIONS, paths, verify=True).lookup(keys)
    return dict(zip(keys[~missing].tolist(), values[~missing].tolist(), strict=True))


def expected(*said: tuple[Keys, int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for keys, version in said:
        found.update(zip(map(int, keys), values_of(keys, version).tolist(), strict=True))
    return found


def checksums(store: FileStore, version: int) -> dict[str, str]:
    folder = store.root / layout.dictionary_folder(version)
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(folder.iterdir())}


def test_a_base_becomes_full_parts(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)

    manifest = build(store, tmp_path / "scratch", 10)

    assert (manifest.kind, manifest.full_version, manifest.keys, manifest.dim) == ("full", 10, 300, DIM)
    assert records(store, 10) == expected((MANY, 10))
    for entry in manifest.files:
        assert digest_of(store.root / entry.path) == (entry.bytes, entry.sha256)


def test_a_delta_becomes_an_overlay_with_its_parents_and_the_later_wins(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, keys_of(1, 2), parent=10, base=10)
    publish_version(store, tmp_path / "work", 12, keys_of(2, 301), parent=11, base=10)
    for version in (10, 11):
        build(store, tmp_path / "scratch", version)

    manifest = build(store, tmp_path / "scratch", 12)

    assert (manifest.kind, manifest.full_version, manifest.keys) == ("overlay", 10, 3)
    assert records(store, 12) == expected((MANY, 10), (keys_of(1, 2), 11), (keys_of(2, 301), 12))


def test_an_overlay_holds_every_delta_of_the_versions_that_were_skipped(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "scratch", 10)
    for version in (11, 12, 13):
        publish_version(store, tmp_path / "work", version, keys_of(version, 1), parent=version - 1, base=10)

    manifest = build(store, tmp_path / "scratch", 13)

    assert manifest.kind == "overlay"
    assert records(store, 13) == expected((MANY, 10), (keys_of(11, 1), 11), (keys_of(12, 1), 12), (keys_of(13, 1), 13))


@pytest.mark.parametrize("skipped", [(), (11,), (12,), (11, 12)], ids=str)
@pytest.mark.parametrize("one_file", [(True, True, True), (True, False, True), (False, True, True)], ids=str)
def test_deltas_in_one_file_are_those_of_a_file_a_partition(
    store: FileStore, tmp_path: Path, one_file: tuple[bool, ...], skipped: tuple[int, ...]
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "scratch", 10)
    for version, one in zip((11, 12, 13), one_file, strict=True):
        # The last one is the mark of an empty place.
        keys = keys_of(version, 1, 2, 3, 500 + version, 2**64 - 1)
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=one)

    built = [build(store, tmp_path / "scratch", each, share=1) for each in (11, 12, 13) if each not in skipped]

    manifest = built[-1]
    assert (manifest.kind, manifest.keys) == ("overlay", 10)
    assert manifest.in_one_file == all(one_file)
    assert manifest.part(0).path.endswith("/overlay.dict" if all(one_file) else "/part-00000.dict")
    found = expected((MANY, 10), (keys_of(11, 511), 11), (keys_of(12, 512), 12), (keys_of(13, 1, 2, 3, 513), 13))
    found |= expected((keys_of(2**64 - 1), 13))
    assert records(store, 13) == found
    every = np.array([*found, 999_999], np.uint64)
    assert looked_up(store, 13, every) == found


def test_an_overlay_in_one_file_is_large_only_from_some_keys_on(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "scratch", 10)
    publish_version(store, tmp_path / "work", 11, MANY[:40], parent=10, base=10, in_one_file=True)
    plan = plan_build(11, store)

    assert plan.in_one_file
    assert not past_share(plan, 40, store, 0.02)
    monkeypatch.setattr(job, "_LEAST_TO_MERGE", 40)
    assert past_share(plan, 40, store, 0.02)
    assert not past_share(plan, 40, store, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_recent_overlays_answer_as_one_overlay_would_and_cost_less(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(job, "_LARGE_OVERLAY", 20)
    dice = np.random.default_rng(seed)
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "scratch", 10, share=1)
    said, built, in_one = [(MANY, 10)], list[DictionaryManifest](), 0
    for version in range(11, 60):
        # The last one is the mark of an empty place.
        keys = np.unique(np.append(dice.choice(400, 6, replace=False).astype(np.uint64) + 1, np.uint64(2**64 - 1)))
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=True)
        said.append((keys, version))
        if dice.random() < 0.2:
            continue
        manifest = build(store, tmp_path / "scratch", version, share=1)
        assert looked_up(store, version, np.arange(402, dtype=np.uint64)) == {
            key: row for key, row in expected(*said).items() if key < 402
        } | {0: [0.0] * DIM}
        assert looked_up(store, version, keys) == expected((keys, version))
        built.append(manifest)
        in_one += len(np.unique(np.concatenate([keys for keys, _ in said[1:]])))

    depths = [len(each.overlays(0)) for each in built]
    assert {1, 2} == set(depths)
    # Each of them lies over one that is whole: never over one that lies over another.
    wholes = {each.version for each in built if each.below is None}
    assert {each.below.version for each in built if each.below is not None} <= wholes
    # It grows until it is merged, and is merged now and then.
    assert sum(one == 1 and before == 2 for before, one in pairwise(depths)) >= 2
    assert sum(each.keys for each in built) < 0.6 * in_one


def publish_compaction(store: FileStore, work: Path) -> dict[int, list[float]]:
    """A base, deltas of which some are built, a base that compacts the second of them, and two deltas behind it. What the last answers."""
    later = {11: keys_of(1, 2), 12: keys_of(2, 3), 13: keys_of(3, 4), 16: keys_of(5)}
    publish_version(store, work, 10, MANY)
    for version in (11, 12, 13):
        publish_version(store, work, version, later[version], parent=version - 1, base=10, in_one_file=True)
    # The base has the values of version 12 and the first delta on it all keys since, here of 13 and 15.
    first, others = expected((MANY, 10), (later[11], 11), (later[12], 12)), keys_of(3, 4, 6)
    publish_version(store, work, 14, keys_of(*first), compacts=12, rows=np.array([*first.values()], np.float32))
    publish_version(store, work, 15, others, parent=14, base=14, in_one_file=True)
    publish_version(store, work, 16, later[16], parent=15, base=14, in_one_file=True)
    return first | expected((others, 15), (later[16], 16))


@pytest.mark.parametrize("skipped", [(11,), (12,), (12, 13), (15,), (11, 12, 13, 15), ()], ids=str)
def test_a_base_that_compacts_what_is_built_need_not_become_full_parts(
    store: FileStore, tmp_path: Path, skipped: tuple[int, ...]
) -> None:
    answers = publish_compaction(store, tmp_path / "work")
    for version in {10, 11, 12, 13, 15} - {*skipped}:
        build(store, tmp_path / "scratch", version, share=1)

    last = build(store, tmp_path / "scratch", 16, share=1)

    assert (last.kind, last.full_version, last.base, last.parent) == ("overlay", 10, 14, 15)
    assert looked_up(store, 16, keys_of(*answers)) == answers


@pytest.mark.parametrize("gone", [10, 11, 12])
def test_a_base_that_compacts_what_is_gone_becomes_full_parts(store: FileStore, tmp_path: Path, gone: int) -> None:
    answers = publish_compaction(store, tmp_path / "work")
    if gone != 10:
        build(store, tmp_path / "scratch", 10)
    store.delete(layout.version_manifest(gone))

    last = build(store, tmp_path / "scratch", 16)

    assert (last.kind, last.full_version) == ("full", 16)
    assert looked_up(store, 16, keys_of(*answers)) == answers


def test_a_delta_of_a_file_a_partition_over_recent_overlays_takes_in_both(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_LARGE_OVERLAY", 2)
    publish_version(store, tmp_path / "work", 10, MANY)
    said = [(MANY, 10), (MANY[:30], 11), (MANY[10:12], 12), (MANY[20:40], 13)]
    for (keys, version), one in zip(said[1:], (True, True, False), strict=True):
        publish_version(store, tmp_path / "work", version, keys, parent=version - 1, base=10, in_one_file=one)

    built = [build(store, tmp_path / "scratch", version, share=1) for version in (10, 11, 12, 13)]

    assert [each.below is not None for each in built] == [False, False, True, False]
    assert built[-1].keys == 40
    assert looked_up(store, 13, MANY) == expected(*said)


def test_where_even_the_base_was_skipped_everything_becomes_full_parts_at_once(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, keys_of(1), parent=10, base=10)

    manifest = build(store, tmp_path / "scratch", 11)

    assert (manifest.kind, manifest.full_version, manifest.base) == ("full", 11, 10)
    assert records(store, 11) == expected((MANY, 10), (keys_of(1), 11))


def test_past_the_share_the_whole_version_becomes_full_parts_and_the_next_lies_over_it(
    store: FileStore, tmp_path: Path
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:6], parent=10, base=10)
    publish_version(store, tmp_path / "work", 12, MANY[6:7], parent=11, base=10)
    publish_version(store, tmp_path / "work", 13, keys_of(400), parent=12, base=10)

    built = [build(store, tmp_path / "scratch", version) for version in (10, 11, 12, 13)]

    assert [each.kind for each in built] == ["full", "overlay", "full", "overlay"]
    assert [each.full_version for each in built] == [10, 10, 12, 12]
    assert records(store, 13) == expected((MANY, 10), (MANY[:6], 11), (MANY[6:7], 12), (keys_of(400), 13))


def test_a_build_is_repeated_byte_for_byte(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, MANY[:5], parent=10, base=10)
    build(store, tmp_path / "scratch", 10)
    build(store, tmp_path / "scratch", 11)
    first = checksums(store, 11)

    store.delete(layout.dictionary_folder(11))
    build(store, tmp_path / "elsewhere", 11)

    assert checksums(store, 11) == first


def test_a_file_of_a_cut_off_build_is_kept_if_it_is_the_same_and_replaced_if_not(
    store: FileStore, tmp_path: Path
) -> None:
    (tmp_path / "part").write_bytes(b"right")
    size, sha256 = digest_of(tmp_path / "part")
    entry = FileEntry(path="a/part", bytes=size, sha256=sha256)

    publish_again(store, tmp_path / "part", entry)
    inode = (store.root / "a/part").stat().st_ino
    publish_again(store, tmp_path / "part", entry)
    assert (store.root / "a/part").stat().st_ino == inode

    (store.root / "a/part").write_bytes(b"wrong")
    publish_again(store, tmp_path / "part", entry)
    assert store.get_bytes("a/part") == b"right"


def test_a_worker_puts_parts_at_the_same_time(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    scratch = fresh_scratch(tmp_path / "scratch", 10)
    parts = entries_of(every("full", store, 10, scratch))[:2]
    both, put = threading.Barrier(2, timeout=20), job.publish_again

    def once_both_have_come(*given: Any) -> None:
        both.wait()
        put(*given)

    monkeypatch.setattr(job, "publish_again", once_both_have_come)
    task = Task(StoreConfig(url=store.url), plan_build(10, store), "publish", 0, scratch)
    outcomes = run_tasks([task._replace(partition=number, part=part) for number, part in enumerate(parts)])
    assert entries_of(outcomes) == parts
    assert all(store.exists(part.path) for part in parts)


def test_tasks_of_one_call_read_at_the_same_time_and_build_one_after_the_other(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    all_read, building, built = threading.Barrier(PARTITIONS, timeout=20), threading.Lock(), []

    def waiting(*given: Any) -> Path:
        all_read.wait()
        return checked_file(*given)

    def alone(blocks: Any, out: Path, *given: Any) -> Any:
        assert building.acquire(blocking=False)
        try:
            built.append(out)
            return build_full(blocks, out, *given)
        finally:
            building.release()

    monkeypatch.setattr(job, "checked_file", waiting)
    monkeypatch.setattr(job, "build_full", alone)
    scratch = fresh_scratch(tmp_path / "scratch", 10)
    task = Task(StoreConfig(url=store.url), plan_build(10, store), "full", 0, scratch)

    outcomes = run_tasks([task._replace(partition=number) for number in range(PARTITIONS)])

    assert [each.failed for each in outcomes] == [None] * PARTITIONS
    assert len(built) == PARTITIONS


def test_a_damaged_file_refuses_the_version_for_good(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    path = store.root / layout.cube_file(10, "base", 1, PARTITIONS)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)

    [_, damaged, right] = every("full", store, 10, fresh_scratch(tmp_path / "scratch", 10))

    assert damaged.final
    assert "feature-00001-of-00003.seq" in str(damaged.failed)
    assert right.failed is None


def test_another_number_of_records_than_the_manifest_says_refuses_the_version(store: FileStore, tmp_path: Path) -> None:
    manifest = publish_version(store, tmp_path / "work", 10, MANY)
    store.delete(layout.version_manifest(10))
    files = tuple(entry.model_copy(update={"records": entry.records + 1}) for entry in manifest.cube_files)
    store.put_bytes(manifest.model_copy(update={"cube_files": files}).to_json(), layout.version_manifest(10))

    [outcome, *_] = every("full", store, 10, fresh_scratch(tmp_path / "scratch", 10))

    assert outcome.final
    assert "it holds 100 records, 101 were expected" in str(outcome.failed)


def test_a_store_that_does_not_answer_refuses_nothing(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    plan = plan_build(10, store)
    store.delete(layout.cube_folder(10, "base"))

    outcome = run_task(Task(StoreConfig(url=store.url), plan, "full", 0, fresh_scratch(tmp_path / "scratch", 10)))

    assert not outcome.final
    assert "is not in" in str(outcome.failed)


def test_a_full_or_missing_scratch_refuses_nothing(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)

    outcome = run_task(Task(StoreConfig(url=store.url), plan_build(10, store), "full", 0, tmp_path / "nowhere"))

    assert not outcome.final
    assert "cannot be built in" in str(outcome.failed)


def test_a_manifest_that_names_too_few_files_refuses_the_version(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    plan = plan_build(10, store)
    short = plan.manifest.model_copy(update={"cube_files": plan.manifest.cube_files[1:]})

    outcome = run_task(
        Task(
            StoreConfig(url=store.url),
            plan._replace(manifest=short, inputs=(short,)),
            "full",
            0,
            fresh_scratch(tmp_path / "s", 10),
        )
    )

    assert outcome.final
    assert "names no file" in str(outcome.failed)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dim": 7}, r"version 11 has dim 7 .* version 10 that it stands on has dim 2"),
        ({"partitions": 4}, r"version 11 has dim 2 over 4 partitions, version 10 that it stands on has dim 2 over 3"),
    ],
)
@pytest.mark.parametrize("built", [False, True])
def test_a_delta_of_another_dim_or_other_partitions_is_refused_before_anything_is_built(
    store: FileStore, tmp_path: Path, other: dict[str, Any], words: str, built: bool
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    if built:
        build(store, tmp_path / "scratch", 10)
    publish_version(store, tmp_path / "work", 11, MANY[:3], parent=10, base=10, **other)

    with pytest.raises(BuildFailed, match=words):
        plan_build(11, store)


def test_a_damaged_overlay_of_an_earlier_version_refuses_those_over_it(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    publish_version(store, tmp_path / "work", 11, keys_of(3, 6), parent=10, base=10)
    publish_version(store, tmp_path / "work", 12, keys_of(9), parent=11, base=10)
    for version in (10, 11):
        build(store, tmp_path / "scratch", version, share=1)
    path = store.root / read_dictionary(store, 11).part(0).path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    damaged, *others = every("overlay", store, 12, fresh_scratch(tmp_path / "scratch", 12))

    assert damaged.final
    assert path.name in str(damaged.failed)
    assert {each.failed for each in others} == {None}


def test_a_dictionary_is_published_once_and_another_one_of_its_version_never(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    built = build(store, tmp_path / "scratch", 10)
    path = layout.dictionary_manifest(10)

    assert publish_dictionary(store, built, path) == built
    with pytest.raises(AlreadyPublished):
        publish_dictionary(store, built.model_copy(update={"keys": 1}), path)
    assert read_dictionary(store, 10) == built


def test_an_overlay_over_another_is_not_merged_into_full_parts_and_large_inputs_are_not_small(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_LARGE_OVERLAY", 20)
    monkeypatch.setattr(job, "_LEAST_TO_MERGE", 1)
    publish_version(store, tmp_path / "work", 10, MANY)
    for version in (11, 12):
        publish_version(store, tmp_path / "work", version, MANY[:30], parent=version - 1, base=10, in_one_file=True)
    for version in (10, 11):
        build(store, tmp_path / "scratch", version, share=1)
    whole, above = plan_build(11, store), plan_build(12, store)

    assert (whole.below, above.below is None) == (None, False)
    assert [past_share(plan, 30, store, 0.02) for plan in (whole, above)] == [True, False]
    assert above.is_small
    monkeypatch.setattr(job, "_SMALL_BYTES", 100)
    assert not above.is_small


def test_a_delta_that_is_its_own_parent_is_refused(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 11, MANY[:3], parent=11, base=10)

    with pytest.raises(BuildFailed, match="names no earlier parent"):
        plan_build(11, store)


def test_a_build_whose_parent_is_not_in_the_store_cannot_be_planned_yet(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 11, MANY[:3], parent=10, base=10)

    with pytest.raises(NotInStore):
        plan_build(11, store)


def quantised_records(kind: ValueKind, *said: tuple[Keys, int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for keys, version in said:
        found.update(zip(map(int, keys), quantised(values_of(keys, version), kind).tolist(), strict=True))
    return found


@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("share", [0.02, 1.0])
def test_a_version_is_built_with_the_kind_of_values_that_its_manifest_says(
    store: FileStore, tmp_path: Path, kind: ValueKind, share: float
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY, values=kind)
    publish_version(store, tmp_path / "work", 11, keys_of(*range(290, 310)), parent=10, base=10, values=kind)

    base = build(store, tmp_path / "scratch", 10)
    delta = build(store, tmp_path / "scratch", 11, share)

    assert (base.values, delta.values) == (kind, kind)
    assert delta.kind == ("full" if share < 1 else "overlay")
    assert records(store, 10) == quantised_records(kind, (MANY, 10))
    assert records(store, 11) == quantised_records(kind, (MANY, 10), (keys_of(*range(290, 310)), 11))


def test_after_a_change_of_kind_a_delta_becomes_full_parts_of_values_that_were_quantised_once(
    store: FileStore, tmp_path: Path
) -> None:
    first, second, third = keys_of(1, 2), keys_of(2, 301), keys_of(7)
    publish_version(store, tmp_path / "work", 10, MANY, values="float16")
    publish_version(store, tmp_path / "work", 11, first, parent=10, base=10, values="float16")
    publish_version(store, tmp_path / "work", 12, second, parent=11, base=10, values="int8")
    publish_version(store, tmp_path / "work", 13, third, parent=12, base=10, values="int8")

    for version in (10, 11, 12, 13):
        build(store, tmp_path / "scratch", version, 1.0)

    found = {version: read_dictionary(store, version) for version in (10, 11, 12, 13)}
    assert [(each.kind, each.full_version, each.values) for each in found.values()] == [
        ("full", 10, "float16"),
        ("overlay", 10, "float16"),
        ("full", 12, "int8"),
        ("overlay", 12, "int8"),
    ]
    assert records(store, 11) == quantised_records("float16", (MANY, 10), (first, 11))
    assert records(store, 12) == quantised_records("int8", (MANY, 10), (first, 11), (second, 12))
    assert records(store, 13) == quantised_records("int8", (MANY, 10), (first, 11), (second, 12), (third, 13))


def test_manifests_of_earlier_releases_are_of_floats(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    build(store, tmp_path / "scratch", 10)
    for path in (layout.version_manifest(10), layout.dictionary_manifest(10)):
        document = json.loads(store.get_bytes(path))
        del document["values"]
        document.pop("quantisedDiff", None)
        store.put_bytes(json.dumps(document).encode(), path, overwrite=True)

    assert read_version(store, 10).values == read_dictionary(store, 10).values == "float32"
