import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cube_oracles import bucket_of, high_product, seeded, slot_of, unmix
from elastic_ctr.cube.dictionary import format as hashing

any_key = st.integers(0, 2**64 - 1)
_MASK = 2**64 - 1


def _mix_by_definition(x: int) -> int:
    x ^= x >> 32
    x = x * hashing.MIX_1 & _MASK
    x ^= x >> 29
    x = x * hashing.MIX_2 & _MASK
    return x ^ (x >> 32)


@given(any_key)
def test_the_mix_of_arrays_is_the_mix_of_numbers(key: int) -> None:
    [mixed] = hashing.mix(np.array([key], np.uint64))

    assert int(mixed) == _mix_by_definition(key)


@given(any_key)
def test_a_key_can_be_had_back_from_its_mix(key: int) -> None:
    keys = np.array([key], np.uint64)

    assert unmix(hashing.mix(keys)) == keys


@given(any_key, st.integers(1, 2**32 - 1))
def test_the_high_product_is_exact(value: int, factor: int) -> None:
    [high] = high_product(np.array([value], np.uint64), factor)

    assert int(high) == value * factor >> 64


@given(any_key, any_key, st.integers(0, 65535), st.integers(1, 2**20), st.integers(1, 2**20))
def test_buckets_and_slots_stay_inside_their_part(key: int, seed: int, pilot: int, buckets: int, slots: int) -> None:
    hashed = seeded(np.array([key], np.uint64), np.array([seed], np.uint64))

    assert int(bucket_of(hashed, buckets)[0]) < buckets
    assert int(slot_of(hashed, np.array([pilot], np.uint64), slots)[0]) < slots


def test_where_keys_stand_does_not_change_without_a_new_format_version() -> None:
    mixed = hashing.mix(np.array([0, 1, 2**63, 2**64 - 1], np.uint64))
    hashed = seeded(mixed, np.full(4, 3, np.uint64))
    slots = slot_of(hashed, np.array([0, 1, 2, 65535], np.uint64), 1000)

    assert mixed.tolist() == [0, 14555800124870461561, 9815820425788202015, 11307352287106012775]
    assert bucket_of(hashed, 250).tolist() == [50, 84, 191, 98]
    assert slots.tolist() == [932, 350, 8, 947]
