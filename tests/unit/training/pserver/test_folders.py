import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.model import Model
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.store.backends import FileStore, NotInStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest, FileEntry, ManifestDamaged
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.pserver.folders import Folders, owned

MODEL = Model(partitions=4, embedding_dim=3)
Vector = tuple[float, float, float]


def row(key: int, values: Vector, *, embedx: bool = True) -> str:
    """As Paddle's table writes it under rule adam: key slot unseen delta show click w, state; vector, state."""
    w, first, second = (f"{value:.6g}" for value in values)
    text = f"{key} 1 0 0.3 3 1 {w} 0.01 0.02 0.9 0.999"
    return text + (f" {first} {second} 0.1 0.2 0.3 0.4 0.9 0.999" if embedx else "")


def saved(root: Path, folder: str, rows: Mapping[int, Sequence[str]], *, server: int = 0, gz: bool = False) -> None:
    """`000/part-<server>-<partition>[.gz]`, and the dense part."""
    place = root / folder / "000"
    place.mkdir(parents=True, exist_ok=True)
    for partition, lines in rows.items():
        data = "".join(f"{line}\n" for line in lines).encode()
        name = f"part-{server:03d}-{partition:05d}"
        (place / (name + ".gz" if gz else name)).write_bytes(gzip.compress(data) if gz else data)
    dense = root / folder / "001"
    dense.mkdir(exist_ok=True)
    (dense / f"part-{server:03d}.gz").write_bytes(gzip.compress(b"0.1 0 0\n"))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def folders(tmp_path: Path, store: FileStore, index: int = 0, count: int = 1) -> Folders:
    return Folders(tmp_path / f"scratch-{index}-of-{count}", store, MODEL, index, count)


def root(tmp_path: Path, index: int = 0, count: int = 1) -> Path:
    return tmp_path / f"scratch-{index}-of-{count}"


# -- who owns what -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 40))
def test_the_partitions_of_all_servers_are_all_partitions_once_in_order(partitions: int, count: int) -> None:
    everything = [partition for index in range(count) for partition in owned(index, count, partitions)]

    assert everything == list(range(partitions))


def test_server_s_begins_at_s_times_the_rounded_up_share_as_paddle_does() -> None:
    assert [owned(index, 2, 60) for index in range(2)] == [range(30), range(30, 60)]
    assert [owned(index, 7, 60)[0] for index in range(7)] == [0, 9, 18, 27, 36, 45, 54]
    assert len(owned(6, 7, 60)) == 6
    assert list(owned(12, 13, 60)) == []


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gz", [False, True])
def test_rows_are_counted_by_partition(tmp_path: Path, store: FileStore, gz: bool) -> None:
    saved(root(tmp_path), "verify", {0: ["a", "b"], 1: [], 2: ["c"], 3: []}, gz=gz)

    assert dict(folders(tmp_path, store).count("verify").rows) == {0: 2, 1: 0, 2: 1, 3: 0}


def test_a_save_that_did_not_finish_is_an_error_that_names_partitions(tmp_path: Path, store: FileStore) -> None:
    saved(root(tmp_path), "save", {0: [], 2: []})

    with pytest.raises(ValueError, match=r"save has no file for partitions \[1, 3\]: the save did not finish"):
        folders(tmp_path, store).count("save")


def test_a_save_that_never_began_is_an_error(tmp_path: Path, store: FileStore) -> None:
    with pytest.raises(OSError, match="save"):
        folders(tmp_path, store).count("save")


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoint(tmp_path: Path, store: FileStore, count: int = 2) -> CheckpointManifest:
    """Taken by `count` servers and committed as the master does it."""
    files: list[FileEntry] = []
    rows: dict[int, int] = {}
    for index in range(count):
        mine = {p: [f"row-{p}-{n}" for n in range(p)] for p in owned(index, count, MODEL.partitions)}
        saved(root(tmp_path, index, count), "save/1", mine, server=index, gz=True)
        result = folders(tmp_path, store, index, count).upload_checkpoint("save/1", "c-g1")
        rows.update({int(p): int(n) for p, n in result.rows.items()})
        files += [FileEntry(path=f.path, bytes=f.bytes, sha256=f.sha256, records=f.records) for f in result.files]
        assert not (root(tmp_path, index, count) / "save/1").exists()
    manifest = CheckpointManifest(
        name="c-g1",
        pass_id="20200401/00",
        pass_ordinal=1,
        follows_version=None,
        base_version=None,
        created_at=0.0,
        partitions=MODEL.partitions,
        rows=rows,
        files=tuple(files),
    )
    store.put_bytes(manifest.to_json(), layout.checkpoint_manifest("c-g1"))
    return manifest


def test_a_checkpoint_is_uploaded_as_it_is_with_its_rows(tmp_path: Path, store: FileStore) -> None:
    manifest = checkpoint(tmp_path, store)

    assert manifest.rows == {0: 0, 1: 1, 2: 2, 3: 3}
    assert [entry.path for entry in manifest.files] == [
        "checkpoints/c-g1/000/part-000-00000.gz",
        "checkpoints/c-g1/000/part-000-00001.gz",
        "checkpoints/c-g1/001/part-000.gz",
        "checkpoints/c-g1/000/part-001-00002.gz",
        "checkpoints/c-g1/000/part-001-00003.gz",
        "checkpoints/c-g1/001/part-001.gz",
    ]
    assert gzip.decompress(store.get_bytes("checkpoints/c-g1/000/part-001-00002.gz")) == b"row-2-0\nrow-2-1\n"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_checkpoint_of_two_servers_is_laid_ready_for_any_number(tmp_path: Path, store: FileStore, count: int) -> None:
    checkpoint(tmp_path, store)

    for index in range(count):
        folders(tmp_path, store, index, count).fetch_checkpoint("c-g1")

        load = root(tmp_path, index, count) / "load"
        names = sorted(file.name for file in (load / "000").iterdir())
        assert len(names) == MODEL.partitions
        rows = {int(n[9:14]): gzip.decompress((load / "000" / n).read_bytes()).count(b"\n") for n in names}
        mine = set(owned(index, count, MODEL.partitions))
        assert rows == {p: (p if p in mine else 0) for p in range(MODEL.partitions)}
        assert sorted(file.name for file in (load / "001").iterdir()) == ["part-000.gz", "part-001.gz"]


def test_files_of_an_earlier_fetch_are_deleted(tmp_path: Path, store: FileStore) -> None:
    checkpoint(tmp_path, store)
    stale = root(tmp_path) / "load" / "000" / "part-009-00000.gz"
    stale.parent.mkdir(parents=True)
    stale.touch()

    folders(tmp_path, store).fetch_checkpoint("c-g1")

    assert not stale.exists()


def test_a_damaged_file_of_a_checkpoint_is_refused_by_its_checksum(tmp_path: Path, store: FileStore) -> None:
    checkpoint(tmp_path, store)
    damaged = store.root / "checkpoints/c-g1/000/part-001-00003.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")

    with pytest.raises(ManifestDamaged, match=r"part-001-00003\.gz"):
        folders(tmp_path, store).fetch_checkpoint("c-g1")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path, store: FileStore) -> None:
    with pytest.raises(NotInStore, match=r"checkpoints/none/manifest\.json"):
        folders(tmp_path, store).fetch_checkpoint("none")


def test_an_upload_that_was_cut_off_may_be_done_again(tmp_path: Path, store: FileStore) -> None:
    saved(root(tmp_path), "save/1", {p: ["x"] for p in range(4)})
    store.put(root(tmp_path) / "save/1/000/part-000-00000", "checkpoints/c-g1/000/part-000-00000")

    result = folders(tmp_path, store).upload_checkpoint("save/1", "c-g1")

    assert len(result.files) == 5


# -- export ------------------------------------------------------------------------------------------------------------


def export(
    tmp_path: Path,
    store: FileStore,
    version: int,
    rows: Mapping[int, Sequence[str]],
    sample: Sequence[int],
    chain: Sequence[int] = (),
) -> control.JobResult:
    folder = f"save/{version}"
    saved(root(tmp_path), folder, {**dict.fromkeys(range(4), ()), **rows})
    return folders(tmp_path, store).export(
        control.Job(
            id="x",
            kind=control.EXPORT,
            folder=folder,
            version=version,
            version_kind="delta" if chain else "base",
            sample_keys=np.array(sample, "<u8").tobytes(),
            chain=chain,
        )
    )


def sample_of(result: control.JobResult) -> dict[int, tuple[list[float], int]]:
    keys = np.frombuffer(result.keys, "<u8").tolist()
    values = np.frombuffer(result.values, "<f4").reshape(-1, 3).tolist()
    return {key: (value, flag) for key, value, flag in zip(keys, values, result.written, strict=True)}


def test_rows_become_sequence_files_of_weight_and_vector(tmp_path: Path, store: FileStore) -> None:
    rows = {0: [row(8, (0.5, 1.0, -2.0)), row(4, (0.25, 3.0, 4.0))], 1: [row(5, (1.5, 9.0, 9.0), embedx=False)]}

    result = export(tmp_path, store, 100, rows, [4, 5, 7])

    assert [(f.path, f.records) for f in result.files] == [
        (f"output/ctr_cube/100/base/feature-{p:05d}-of-00004.seq", n) for p, n in enumerate([2, 1, 0, 0])
    ]
    with SequenceFileReader(store.root / result.files[0].path) as blocks:
        [(keys, values)] = list(blocks)
    assert keys.tolist() == [4, 8]
    assert values.tolist() == [[0.25, 3.0, 4.0], [0.5, 1.0, -2.0]]
    assert sample_of(result) == {4: ([0.25, 3.0, 4.0], 1), 5: ([1.5, 0.0, 0.0], 1)}
    assert not list(root(tmp_path).rglob("*part-*"))


def test_a_key_that_a_delta_leaves_out_is_found_in_the_newest_older_version(tmp_path: Path, store: FileStore) -> None:
    export(tmp_path, store, 100, {0: [row(4, (1, 1, 1)), row(8, (1, 1, 1)), row(12, (1, 1, 1))]}, [])
    export(tmp_path, store, 101, {0: [row(4, (2, 2, 2)), row(8, (2, 2, 2))]}, [], chain=[100])

    result = export(tmp_path, store, 102, {0: [row(4, (3, 3, 3))]}, [4, 8, 12, 16], chain=[100, 101])

    assert sample_of(result) == {4: ([3, 3, 3], 1), 8: ([2, 2, 2], 0), 12: ([1, 1, 1], 0)}


@pytest.mark.parametrize("local", [True, False])
def test_an_older_version_that_is_gone_is_named_and_nothing_is_guessed(
    tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    export(tmp_path, store, 100, {0: [row(4, (1, 1, 1)), row(8, (1, 1, 1))]}, [])
    export(tmp_path, store, 101, {0: [row(8, (2, 2, 2))]}, [], chain=[100])
    store.delete("output/ctr_cube/101")
    if not local:
        monkeypatch.setattr(store, "local_path", lambda _: None)

    with pytest.raises(StoreError, match=r"version 102 stands on 101, and output/ctr_cube/101/delta/feature-00000"):
        export(tmp_path, store, 102, {0: [row(4, (3, 3, 3))]}, [8], chain=[100, 101])


def test_a_save_with_a_file_missing_exports_nothing(tmp_path: Path, store: FileStore) -> None:
    saved(root(tmp_path), "save/1", {0: [], 1: []})

    with pytest.raises(ValueError, match="did not finish"):
        folders(tmp_path, store).export(control.Job(folder="save/1", version=7, version_kind="base"))

    assert list(store.walk("output")) == []


def test_an_export_that_was_cut_off_may_be_done_again_with_the_same_rows_alone(
    tmp_path: Path, store: FileStore
) -> None:
    rows = {0: [row(4, (1, 1, 1))]}
    first = export(tmp_path, store, 100, rows, [4])

    assert export(tmp_path, store, 100, rows, [4]).files == first.files
    with pytest.raises(StoreError, match="published already with other bytes"):
        export(tmp_path, store, 100, {0: [row(4, (2, 1, 1))]}, [4])
