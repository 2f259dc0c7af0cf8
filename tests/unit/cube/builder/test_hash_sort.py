import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cube.parts import MAX_KEY, SPECIAL_KEYS, as_keys
from cube_oracles import high_product, unmix
from elastic_ctr.cube.builder import external_sort
from elastic_ctr.cube.builder.external_sort import by_hash, sub_part_bounds
from elastic_ctr.cube.dictionary import format as hashing

any_key = st.one_of(st.sampled_from(SPECIAL_KEYS), st.integers(0, 20), st.integers(0, MAX_KEY))


@given(st.lists(any_key, max_size=300))
def test_distinct_keys_come_in_the_order_of_their_hash_each_from_where_it_was_given_last(keys: list[int]) -> None:
    mixed, origin = by_hash(as_keys(keys))

    last = {key: place for place, key in enumerate(keys)}
    assert unmix(mixed).tolist() == sorted(last, key=lambda key: int(hashing.mix(as_keys([key]))[0]))
    assert origin.tolist() == [last[key] for key in unmix(mixed).tolist()]


@pytest.mark.parametrize("crowd", [0, 64])
def test_hashes_that_fall_together_are_sorted_all_the_same(crowd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Keys made so that their hashes share the upper half, and one that is given a thousand times.
    together = unmix(np.arange(5000, 0, -1, dtype=np.uint64))
    keys = np.concatenate([together, np.repeat(together[:1], 1000)])
    monkeypatch.setattr(external_sort, "_CROWD", crowd)

    mixed, origin = by_hash(keys)

    assert mixed.tolist() == list(range(1, 5001))
    assert origin.tolist() == [*range(4999, 0, -1), keys.size - 1]


@given(st.lists(st.integers(0, MAX_KEY), max_size=100), st.integers(1, 3000))
def test_sub_parts_begin_where_the_high_product_changes(hashes: list[int], sub_parts: int) -> None:
    mixed = np.sort(as_keys([*hashes, 0, MAX_KEY]))

    bounds = sub_part_bounds(mixed, sub_parts)

    counts = np.bincount(high_product(mixed, sub_parts).astype(np.int64), minlength=sub_parts)
    assert bounds[0] == 0
    assert np.diff(bounds).tolist() == counts.tolist()
