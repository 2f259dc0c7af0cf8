from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.export.sorted_rows import DuplicateKey, SortedRows

KEYS = st.integers(0, 2**64 - 1)


@given(batches=st.lists(st.lists(KEYS | st.integers(0, 200), max_size=30), max_size=6), memory_rows=st.integers(1, 60))
def test_rows_come_back_sorted_whatever_memory_there_is(batches: list[list[int]], memory_rows: int) -> None:
    expected: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = SortedRows(Path(folder) / "runs", memory_rows)
        for batch in batches:
            fresh = [key for key in dict.fromkeys(batch) if key not in expected]
            numbers = np.arange(len(expected), len(expected) + len(fresh), dtype=np.float32)
            expected.update(zip(fresh, numbers.tolist(), strict=True))
            rows.add(np.array(fresh, dtype=np.uint64), numbers.reshape(-1, 1))

        found = [
            (key, value)
            for keys, values in rows.blocks()
            for key, [value] in zip(keys.tolist(), values.tolist(), strict=True)
        ]

    assert found == sorted(expected.items())


@pytest.mark.parametrize("memory_rows", [1, 3, 1000])
def test_a_key_that_was_added_twice_is_refused(tmp_path: Path, memory_rows: int) -> None:
    rows = SortedRows(tmp_path, memory_rows)
    for keys in ([1, 5], [7, 9], [2, 5]):
        rows.add(np.array(keys, dtype=np.uint64), np.zeros((2, 1), dtype=np.float32))

    with pytest.raises(DuplicateKey, match="the key 5 is there twice"):
        list(rows.blocks())


def test_blocks_stay_near_the_memory_that_was_given(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    rows = SortedRows(tmp_path, 10_000)
    for _ in range(20):
        rows.add(dice.integers(0, 2**64, 5_000, dtype=np.uint64), np.zeros((5_000, 1), dtype=np.float32))

    sizes = [len(keys) for keys, _ in rows.blocks()]

    assert sum(sizes) == 100_000
    assert max(sizes) <= 12_000


def test_nothing_is_written_for_what_memory_holds(tmp_path: Path) -> None:
    rows = SortedRows(tmp_path / "runs", 10)
    rows.add(np.array([3, 1], dtype=np.uint64), np.zeros((2, 1), dtype=np.float32))

    assert [keys.tolist() for keys, _ in rows.blocks()] == [[1, 3]]
    assert not (tmp_path / "runs").exists()
