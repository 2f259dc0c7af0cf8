"""A log that is put on its tables: every row as a recovery would load it, as a checkpoint and as a base."""

import gzip
import hashlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.formats.keys import partitions_of
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore, NotInStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest, FileEntry, ManifestDamaged
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.export.published import layout_of
from elastic_ctr.training.export.table_text import parse_rows
from elastic_ctr.training.pserver.folders import Folders, owned
from elastic_ctr.training.pserver.table_compaction import compact
from training.pserver.test_folders import MODEL, Vector, folders, root, row, saved

SAVED: dict[int, Vector] = {key: (key / 8, key / 4, key / 2) for key in range(1, 41)}
DELTAS: list[dict[int, Vector]] = [
    {3: (1.5, 2.5, 3.5), 7: (0.25, 0.5, 0.75), 50: (5.0, 6.0, 7.0)},
    {7: (0.125, -1.0, -2.0), 51: (8.0, 0.0, 0.0)},
]
AFTER = SAVED | DELTAS[0] | DELTAS[1]
JOB = control.Job(id="9-1-compaction-77", kind=control.COMPACT, checkpoint="c-compacted-g1", version=77, log_of="l-g1")


def put(store: FileStore, path: str, rows: Mapping[int, tuple[float, ...]], folder: Path) -> FileEntry:
    file = folder / Path(path).name
    with SequenceFileWriter(file, seed=path) as writer:
        writer.write(np.array([*rows], np.uint64), np.array([*rows.values()], np.float32))
    data = file.read_bytes()
    store.put(file, path)

    return FileEntry(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), records=len(rows))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """With a save of two servers, and a checkpoint by log of two deltas on it."""
    store = FileStore(tmp_path / "store")
    places = partitions_of(np.array([*SAVED], np.uint64), MODEL.partitions).tolist()
    files: list[control.File] = []
    for index in range(2):
        mine = {
            partition: [row(key, SAVED[key]) for key, place in zip(SAVED, places, strict=True) if place == partition]
            for partition in owned(index, 2, MODEL.partitions)
        }
        saved(root(tmp_path, index, 2), "save/1", mine, server=index, gz=True)
        files += folders(tmp_path, store, index, 2).upload_checkpoint("save/1", "s-g1").files
    entries = [FileEntry(path=f.path, bytes=f.bytes, sha256=f.sha256, records=f.records) for f in files]
    for version, delta in zip((11, 12), DELTAS, strict=True):
        entries.append(put(store, layout.cube_file(version, "delta", 0, 1), delta, tmp_path))
        entries.append(put(store, layout.counts_file(version), dict.fromkeys(delta, (2.0, 1.0)), tmp_path))
    manifest = CheckpointManifest(
        name="l-g1", pass_id="stream/00000009", pass_ordinal=9, follows_version=12, base_version=10, created_at=0.0,
        partitions=MODEL.partitions, rows={}, files=tuple(entries), stands_on="s-g1", log=(11, 12),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.checkpoint_manifest("l-g1"))
    return store


def values_in(store: FileStore, result: control.JobResult, tmp_path: Path) -> dict[int, list[float]]:
    """Of the base's files."""
    found: dict[int, list[float]] = {}
    for file in result.files:
        if file.path.startswith(layout.cube_folder(77, "base")):
            place = tmp_path / "read.seq"
            store.get(file.path, place)
            with closing(SequenceFileReader(place, expected_records=file.records)) as blocks:
                for keys, values in blocks:
                    found |= dict(zip(keys.tolist(), values.tolist(), strict=True))
    return found


@pytest.mark.parametrize("count", [1, 2, 4])
def test_base_and_checkpoint_have_the_saved_rows_with_the_deltas_on_them(
    tmp_path: Path, store: FileStore, count: int
) -> None:
    parts: list[Folders] = [folders(tmp_path, store, index, count) for index in range(count)]
    results = [compact(each, store, JOB) for each in parts]

    found: dict[int, list[float]] = {}
    for result in results:
        found |= values_in(store, result, tmp_path)
    assert found == {key: [*map(float, values)] for key, values in AFTER.items()}
    texts = {
        file.path: gzip.decompress(store.get_bytes(file.path))
        for result in results
        for file in result.files
        if "/000/" in file.path
    }
    rows = [parse_rows(text, layout_of(MODEL)) for text in texts.values()]
    assert {
        int(key): [*values] for each in rows for key, values in zip(each.keys, each.values.tolist(), strict=True)
    } == found
    assert sum(sum(result.rows.values()) for result in results) == len(AFTER)
    assert sorted(partition for result in results for partition in result.rows) == [*range(MODEL.partitions)]
    columns = [line.split() for text in texts.values() for line in text.decode().splitlines()]
    counts = {int(each[0]): (float(each[4]), float(each[5])) for each in columns}
    assert (counts[1], counts[3], counts[7], counts[50]) == ((3, 1), (5, 2), (7, 3), (2, 1))
    # The dense part comes once.
    dense = [file.path for result in results for file in result.files if "/001/" in file.path]
    assert dense == [f"checkpoints/c-compacted-g1/001/part-00{server}.gz" for server in range(2)]


def test_a_compacted_checkpoint_is_loaded_as_the_checkpoint_by_log_is(tmp_path: Path, store: FileStore) -> None:
    one = folders(tmp_path, store)
    result = compact(one, store, JOB)
    entries = [FileEntry(path=f.path, bytes=f.bytes, sha256=f.sha256, records=f.records) for f in result.files]
    manifest = CheckpointManifest(
        name="c-compacted-g1", pass_id="stream/00000009", pass_ordinal=9, follows_version=77, base_version=77, created_at=0.0,
        partitions=MODEL.partitions, rows=dict(result.rows), files=tuple(entries), stands_on="c-compacted-g1",
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.checkpoint_manifest("c-compacted-g1"))

    def loaded(name: str) -> tuple[int, dict[int, list[bytes]]]:
        rows = one.fetch_checkpoint(name)
        texts = [
            gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            for file in sorted((root(tmp_path) / "load" / "000").iterdir())
        ]
        lines = [line.split() for text in texts for line in text.splitlines()]
        return rows, {int(line[0]): line for line in lines}

    assert loaded("c-compacted-g1") == loaded("l-g1")
    assert loaded("l-g1")[0] == len(AFTER)


def test_one_that_was_cut_off_publishes_the_same_bytes(
    tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file, left = FileStore.put, [5]

    def cut_off(self: FileStore, source: Path, path: str) -> None:
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        put_file(self, source, path)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "put", cut_off)
        with pytest.raises(OSError, match="No space left"):
            compact(folders(tmp_path, store), store, JOB)
    assert not [*root(tmp_path).glob("compaction-*")]

    again = compact(folders(tmp_path, store), store, JOB)

    assert len(again.files) == 2 * MODEL.partitions + 2
    assert values_in(store, again, tmp_path) == {key: [*map(float, values)] for key, values in AFTER.items()}


def test_a_log_that_is_gone_or_damaged_is_said(tmp_path: Path, store: FileStore) -> None:
    delta = layout.cube_file(12, "delta", 0, 1)
    data = store.get_bytes(delta)
    store.put_bytes(data[:-1], delta, overwrite=True)
    with pytest.raises(ManifestDamaged, match=delta):
        compact(folders(tmp_path, store), store, JOB)
    store.delete(layout.checkpoint_manifest("l-g1"))
    with pytest.raises(NotInStore, match="l-g1"):
        compact(folders(tmp_path, store), store, JOB)
