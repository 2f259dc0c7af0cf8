import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.instances import instances_of
from elastic_ctr.serving.pooling import distinct_keys, pooled

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


@given(ROWS, st.sampled_from([None, 5, 1000003]))
def test_each_slot_is_the_sum_of_its_keys_values(rows: list[list[list[int]]], sparse_dim: int | None) -> None:
    expected = []
    for row in rows:
        cells = []
        for slot in row:
            keys = [feasign % sparse_dim if sparse_dim else feasign for feasign in slot]
            cells += [sum(value_of(key)[place] for key in keys if key != 0) for place in range(DIM)]
        expected.append(cells)
    instances = instances_of(rows, len(rows[0]))

    distinct = distinct_keys(instances, sparse_dim)
    values = np.array([value_of(key) for key in distinct.keys.tolist()], np.float32).reshape(-1, DIM)
    result = pooled(distinct, values, instances, DIM)

    assert 0 not in distinct.keys
    assert len(set(distinct.keys.tolist())) == len(distinct.keys)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, np.array(expected).reshape(len(rows), -1), rtol=1e-5, atol=1e-4)
