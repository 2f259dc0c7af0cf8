import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.batching import pooling
from elastic_ctr.serving.batching.instances import Instances, instances_of
from serving import oracles

DIM = 3
ROWS = st.integers(1, 4).flatmap(
    lambda slots: st.lists(
        st.lists(st.lists(st.integers(0, 12) | st.just(2**64 - 1), max_size=4), min_size=slots, max_size=slots),
        min_size=1,
        max_size=6,
    )
)


def value_of(key: int) -> list[float]:
    """What a table would hold; key 5 is missing."""
    return [0.0] * DIM if key == 5 else [float(key % 1000), 1.0, -0.5 * (key % 7)]


@given(rows=ROWS, sparse_dim=st.sampled_from([None, 5, 1000003]))
def test_each_slot_is_the_sum_of_its_keys_values(rows: list[list[list[int]]], sparse_dim: int | None) -> None:
    expected = []
    for row in rows:
        cells = []
        for slot in row:
            keys = [feasign % sparse_dim if sparse_dim else feasign for feasign in slot]
            cells += [sum(value_of(key)[place] for key in keys if key != 0) for place in range(DIM)]
        expected.append(cells)
    instances = instances_of(rows, len(rows[0]))

    unique = pooling.unique_keys(instances, sparse_dim)
    values = np.array([value_of(key) for key in unique.keys.tolist()], np.float32).reshape(-1, DIM)
    result = pooling.pooled(unique, values, instances, DIM)

    assert 0 not in unique.keys
    assert len(set(unique.keys.tolist())) == len(unique.keys)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, np.array(expected).reshape(len(rows), -1), rtol=1e-5, atol=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 4000))
def test_many_keys_come_out_both_ways_alike(seed: int, size: int, different: int) -> None:
    random = np.random.default_rng(seed)
    known = random.integers(0, 2**64, different, np.uint64)
    known[0] = 0
    instances = Instances(random.choice(known, size), np.bincount(random.integers(0, 8, size), minlength=8), 2)

    results = []
    for kind in (oracles, pooling):
        unique = kind.unique_keys(instances, None)
        values = (unique.keys[:, None] >> np.array([3, 17, 40], np.uint64)).astype(np.float32) / np.float32(2**60)
        results.append(kind.pooled(unique, values, instances, 3))
        assert np.array_equal(np.sort(unique.keys), np.setdiff1d(instances.feasigns, np.zeros(1, np.uint64)))

    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    instances = Instances(np.arange(1, 5, dtype=np.uint64), np.full(2, 2), 1)
    unique = pooling.unique_keys(instances, None)
    too_long = Instances(instances.feasigns, np.full(2, 3), 1)

    with pytest.raises(ValueError, match="do not belong together"):
        pooling.pooled(unique, np.zeros((3, 2), np.float32), instances, 2)
    with pytest.raises(ValueError, match="do not belong together"):
        pooling.pooled(unique, np.zeros((4, 2), np.float32), too_long, 2)


def test_it_can_be_compiled_beforehand() -> None:
    pooling.warm_pooling()
