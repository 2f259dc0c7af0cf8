import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cube_oracles import bucket_of, seeded, slot_of
from elastic_ctr.cube.dictionary import format as hashing
from elastic_ctr.cube.dictionary import perfect_hash
from elastic_ctr.cube.dictionary.format import Keys


def _looked_up(mixed: Keys, seed: int, pilots: np.ndarray[tuple[int], np.dtype[np.uint16]], slots: int) -> Keys:
    hashed = seeded(mixed, np.full(1, seed, np.uint64))
    buckets = bucket_of(hashed, pilots.size).astype(np.int64)
    return slot_of(hashed, pilots[buckets].astype(np.uint64), slots)


@given(st.sets(st.integers(0, 2**64 - 1), max_size=300))
def test_every_key_gets_a_slot_of_its_own_where_the_lookup_finds_it(keys: set[int]) -> None:
    mixed = hashing.mix(np.array(sorted(keys), np.uint64))
    slots, buckets = perfect_hash.slots_for(len(keys)), perfect_hash.buckets_for(len(keys))

    seed, pilots, places = perfect_hash.place(mixed, slots, buckets)

    assert len(set(places.tolist())) == len(keys)
    assert _looked_up(mixed, seed, pilots, slots).tolist() == places.tolist()


def test_a_large_sub_part_is_placed_at_full_load() -> None:
    mixed = hashing.mix(np.arange(100_000, dtype=np.uint64))

    _, _, places = perfect_hash.place(mixed, perfect_hash.slots_for(mixed.size), perfect_hash.buckets_for(mixed.size))

    assert np.unique(places).size == mixed.size
    assert perfect_hash.slots_for(mixed.size) * perfect_hash.LOAD <= mixed.size + 1


def test_the_same_keys_get_the_same_pilots() -> None:
    mixed = hashing.mix(np.arange(1000, dtype=np.uint64))

    first, again = (perfect_hash.place(mixed, 1031, 250) for _ in range(2))

    assert first[0] == again[0]
    assert (first[1] == again[1]).all()


def test_keys_that_repeat_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfect_hash, "MAX_SEED", 2)

    with pytest.raises(perfect_hash.PlacementFailed, match="may repeat"):
        perfect_hash.place(np.zeros(2, np.uint64), 4, 1)


def test_keys_that_collide_under_a_seed_are_placed_under_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two buckets of about 300 keys each at full load: no pilot places the first of them.
    mixed = hashing.mix(np.arange(12, dtype=np.uint64))

    seed, _, places = perfect_hash.place(mixed, 12, 1)

    assert seed >= 0
    assert sorted(places.tolist()) == list(range(12))
