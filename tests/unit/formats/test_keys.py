from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.keys import PADDING_KEY, key_of, keys_of, partitions_of, shard_of

U64 = st.integers(0, 2**64 - 1)
SPARSE_DIMS = st.none() | st.integers(1, 2**64 - 1)


@given(feasigns=st.lists(U64), sparse_dim=SPARSE_DIMS)
def test_the_keys_of_an_array_are_the_keys_of_its_feasigns(feasigns: list[int], sparse_dim: int | None) -> None:
    keys = keys_of(np.array(feasigns, dtype=np.uint64), sparse_dim)

    assert keys.dtype == np.uint64
    assert keys.tolist() == [key_of(feasign, sparse_dim) for feasign in feasigns]


@given(keys=st.lists(U64), partitions=st.integers(1, 4096))
def test_the_partitions_of_an_array_are_the_partitions_of_its_keys(keys: list[int], partitions: int) -> None:
    found = partitions_of(np.array(keys, dtype=np.uint64), partitions)

    assert found.tolist() == [key % partitions for key in keys]
    assert all(0 <= partition < partitions for partition in found)


@pytest.mark.parametrize("shards", range(1, 7))
@given(key=U64)
def test_with_sixty_partitions_a_key_lives_on_shard_key_modulo_shards(key: int, shards: int) -> None:
    [partition] = partitions_of(np.array([key], np.uint64), 60).tolist()

    assert shard_of(partition, shards) == key % shards


@given(partition=st.integers(0, 59), shards=st.integers(1, 30))
def test_a_pod_keeps_its_partitions_or_gives_them_to_a_new_one_when_shards_double(partition: int, shards: int) -> None:
    before, after = shard_of(partition, shards), shard_of(partition, 2 * shards)

    assert after in {before, before + shards}


def test_the_largest_feasign_survives_without_modulus() -> None:
    largest = 2**64 - 1

    assert key_of(largest, None) == largest
    assert keys_of(np.array([largest], dtype=np.uint64), None)[0] == largest


def test_a_multiple_of_the_modulus_is_the_padding_key() -> None:
    assert key_of(2_000_002, 1_000_001) == PADDING_KEY
