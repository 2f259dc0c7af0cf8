import os
from pathlib import Path

import pytest

from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest
from elastic_ctr.store.versions.published_files import ORPHAN_SECONDS, read_checkpoint
from elastic_ctr.training.master.work.publisher import delete_checkpoint, superseded, unnamed
from training.master.world import World, data_of, world

NOW = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def checkpoint(store: FileStore, name: str, *, created_at: float | None = None, changed_at: float = NOW) -> str:
    """One in the store; without `created_at` it has no manifest."""
    path = f"{layout.checkpoint_folder(name)}/000/part-0"
    store.put_bytes(b"rows", path)
    if created_at is not None:
        manifest = CheckpointManifest(
            name=name,
            pass_id="20200401/00",
            pass_ordinal=1,
            follows_version=None,
            base_version=None,
            created_at=created_at,
            partitions=4,
            rows={},
            files=(),
        )
        store.put_bytes(manifest.to_json(), layout.checkpoint_manifest(name))
    for at in (path, f"{layout.checkpoint_folder(name)}/000", layout.checkpoint_folder(name)):
        os.utime(store.root / at, (changed_at, changed_at))
    return name


@pytest.mark.parametrize(
    ("rows", "keep", "gone"),
    [
        ("", 1, ""),
        ("m", 1, ""),
        ("c", 1, ""),
        ("cc", 1, "0"),
        ("cm", 1, ""),
        ("cmm", 1, ""),
        ("cmc", 1, "01"),
        ("cmc", 2, "1"),
        ("ccm", 1, "0"),
        ("cmcmcm", 2, "013"),
    ],
)
def test_one_in_mid_pass_takes_no_whole_ones_place_and_goes_with_the_next(rows: str, keep: int, gone: str) -> None:
    named = [
        {"name": str(n), "mid": {"epoch": 1} if kind == "m" else None, "stands_on": ""} for n, kind in enumerate(rows)
    ]

    assert superseded(named, keep) == list(gone)


def test_the_newest_one_by_log_stays_as_long_as_the_save_that_it_stands_on() -> None:
    saves = ["a", "", "", "b", "", "c", ""]
    on = ["", "a", "a", "", "b", "", "c"]
    rows = [
        {"name": name or str(number), "mid": None, "stands_on": below}
        for number, (name, below) in enumerate(zip(saves, on, strict=True))
    ]

    assert superseded(rows, 3) == ["1"]
    assert superseded(rows, 2) == ["1", "2", "a"]
    # Of a sweep that was cut off.
    assert superseded(rows[1:], 2) == ["1", "2"]
    assert superseded(rows[:3], 1) == ["1"]


def test_one_with_a_manifest_that_is_older_than_the_last_committed_one_goes(store: FileStore) -> None:
    named = [checkpoint(store, f"c-g{n}", created_at=100.0 * n) for n in (1, 3)]
    overtaken = checkpoint(store, "c-g2", created_at=200.0)
    checkpoint(store, "c-g4", created_at=400.0)

    assert list(unnamed(store, named, (), NOW)) == [overtaken]


def test_while_the_ledger_has_committed_nothing_those_with_a_manifest_stay(store: FileStore) -> None:
    checkpoint(store, "c-g1", created_at=100.0)

    assert list(unnamed(store, [], (), NOW)) == []


def test_when_the_last_committed_one_cannot_be_read_the_others_stay(store: FileStore) -> None:
    checkpoint(store, "c-g1", created_at=100.0)

    assert list(unnamed(store, ["gone-g2"], (), NOW)) == []


def test_one_without_a_manifest_goes_when_nothing_in_it_changed_for_a_day(store: FileStore) -> None:
    old = checkpoint(store, "c-g1", changed_at=NOW - ORPHAN_SECONDS - 1)
    checkpoint(store, "c-g2", changed_at=NOW - ORPHAN_SECONDS + 1)
    growing = checkpoint(store, "c-g3", changed_at=NOW - ORPHAN_SECONDS - 1)
    os.utime(store.root / layout.checkpoint_folder(growing) / "000/part-0", (NOW, NOW))

    assert list(unnamed(store, [], (), NOW)) == [old]


def test_the_one_that_is_being_written_stays(store: FileStore) -> None:
    named = [checkpoint(store, "c-g3", created_at=300.0)]
    writing = checkpoint(store, "c-g1", created_at=100.0)

    assert list(unnamed(store, named, [writing], NOW)) == []


def test_a_damaged_manifest_is_as_none(store: FileStore) -> None:
    named = [checkpoint(store, "c-g3", created_at=300.0)]
    damaged = checkpoint(store, "c-g1", created_at=100.0)
    store.put_bytes(b"{", layout.checkpoint_manifest(damaged), overwrite=True)

    assert list(unnamed(store, named, (), NOW)) == []


def test_a_checkpoint_is_deleted_manifest_first(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = checkpoint(store, "c-g1", created_at=100.0)
    deleted: list[str] = []
    monkeypatch.setattr(store, "delete", deleted.append)

    delete_checkpoint(store, name)

    assert deleted == [layout.checkpoint_manifest(name), layout.checkpoint_folder(name)]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/03"))

    one.finish()

    kept = [row["name"] for row in one.ledger.saves.checkpoints()]
    assert kept == ["20200401-02-g1", "20200401-03-g1"]
    assert [read_checkpoint(one.store, name).pass_ordinal for name in kept] == [3, 4]
    assert one.store.list(layout.CHECKPOINTS) == [f"{name}/" for name in kept]


def test_a_checkpoint_that_a_recovery_overtook_goes_with_the_next_one(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/02"))
    put_bytes = one.store.put_bytes

    def lose_a_pserver(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        if path == layout.checkpoint_manifest("20200401-01-g1"):
            one.pservers[0].restart()
            one.pservers[0].sync()

    one.store.put_bytes = lose_a_pserver  # type: ignore[method-assign]
    one.until(lambda: one.coordinator.generation == 2)
    assert one.store.exists(layout.checkpoint_manifest("20200401-01-g1"))
    one.finish()

    kept = [row["name"] for row in one.ledger.saves.checkpoints()]
    assert kept == ["20200401-01-g2", "20200401-02-g2"]
    assert one.store.list(layout.CHECKPOINTS) == [f"{name}/" for name in kept]


def test_checkpoints_of_a_lost_ledger_are_deleted_once_the_new_one_has_committed(tmp_path: Path) -> None:
    one = World(tmp_path)
    checkpoint(FileStore(tmp_path / "store"), "20200331-23-g1", created_at=100.0)

    one.publisher.begin()
    kept = one.store.exists(layout.checkpoint_manifest("20200331-23-g1"))
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)

    assert kept
    assert not one.store.exists(layout.checkpoint_folder("20200331-23-g1"))


def test_checkpoints_between_two_versions_are_swept_as_well(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/05"), config={"delta_per_pass": 9})

    one.until(lambda: len(one.ledger.passes.all()) == 5 and one.ledger.passes.all()[3].state == "done")

    assert len(one.store.list(layout.CHECKPOINTS)) == 2


def test_a_checkpoint_that_cannot_be_deleted_is_tried_again_at_the_next_save(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/03"))
    delete = one.store.delete
    refused: list[str] = []

    def refuse_once(path: str) -> None:
        if not refused:
            refused.append(path)
            raise StoreError("busy")
        delete(path)

    one.store.delete = refuse_once  # type: ignore[method-assign]

    one.finish()

    assert refused == [layout.checkpoint_manifest("20200401-00-g1")]
    assert len(one.ledger.saves.checkpoints()) == 2
