from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.model import Model, SparseRule, Table, VectorRule
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.training.export.published import SampleValues, layout_of, publish_once, values_in_file
from elastic_ctr.training.export.table_text import RowLayout


def written(path: Path, keys: list[int]) -> Path:
    with path.open("wb") as out:
        writer = SequenceFileWriter(out, seed="x")
        for start in range(0, len(keys), 3):
            part = np.array(keys[start : start + 3], np.uint64)
            writer.write(part, np.repeat(part.astype(np.float32)[:, None], 2, axis=1))
    return path


def test_a_file_is_published_with_its_checksum(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    (tmp_path / "f").write_bytes(b"abc")

    entry = publish_once(store, tmp_path / "f", "a/f", 3)

    assert (entry.path, entry.bytes, entry.records) == ("a/f", 3, 3)
    assert store.get_bytes("a/f") == b"abc"


@pytest.mark.parametrize("local", [True, False])
def test_the_same_file_may_be_published_again_and_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    store = FileStore(tmp_path / "store")
    if not local:
        monkeypatch.setattr(store, "local_path", lambda _: None)
    (tmp_path / "f").write_bytes(b"abc")
    first = publish_once(store, tmp_path / "f", "a/f", 3)

    assert publish_once(store, tmp_path / "f", "a/f", 3) == first
    (tmp_path / "f").write_bytes(b"abd")
    with pytest.raises(StoreError, match="a/f is published already with other bytes; delete the folder"):
        publish_once(store, tmp_path / "f", "a/f", 3)
    assert store.get_bytes("a/f") == b"abc"
    assert {each.name for each in tmp_path.iterdir()} == {"store", "f"}


@given(st.sets(st.integers(0, 2**64 - 1), max_size=12), st.sets(st.integers(0, 2**64 - 1), max_size=6), st.data())
def test_wanted_keys_are_found_wherever_they_are(held: set[int], others: set[int], data: st.DataObject) -> None:
    import tempfile

    some = data.draw(st.sets(st.sampled_from(sorted(held)))) if held else set()
    wanted = np.array(sorted(some | others), np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        file = written(Path(folder) / "x.seq", sorted(held))

        found = values_in_file(file, wanted)

    keys = [key for block, _ in found for key in block.tolist()]
    assert sorted(keys) == sorted((some | others) & held)
    for block, values in found:
        np.testing.assert_array_equal(values[:, 0], block.astype(np.float32))


def test_without_wanted_keys_the_file_is_not_even_opened(tmp_path: Path) -> None:
    assert values_in_file(tmp_path / "none", np.zeros(0, np.uint64)) == []


def test_the_newest_value_of_a_key_is_kept_and_says_who_wrote_it() -> None:
    wanted = np.array([3, 5, 9], np.uint64)
    sample = SampleValues(wanted, 2)

    sample.take([(wanted[:1], np.ones((1, 2), np.float32))], written=True)
    assert sample.missing(wanted).tolist() == [5, 9]
    sample.take([(wanted[2:], np.full((1, 2), 7, np.float32))], written=False)

    keys, values, flags = sample.packed()
    assert np.frombuffer(keys, "<u8").tolist() == [3, 9]
    assert np.frombuffer(values, "<f4").tolist() == [1, 1, 7, 7]
    assert list(flags) == [1, 0]


def test_the_columns_are_those_of_the_models_two_rules() -> None:
    model = Model(embedding_dim=5, table=Table(embed=SparseRule(name="naive"), embedx=VectorRule(name="std_adagrad")))

    assert layout_of(model) == RowLayout.of("naive", "std_adagrad", 4)
