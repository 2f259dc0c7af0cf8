import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cube.parts import MAX_KEY, as_keys, values_for
from elastic_ctr.cube.builder.external_sort import by_hash, fill, mark, scatter
from elastic_ctr.cube.dictionary import format as hashing
from elastic_ctr.cube.dictionary.format import EMPTY_KEY, stride_for

some_keys = st.lists(st.integers(0, MAX_KEY - 1), max_size=150, unique=True)


@given(st.data(), some_keys, st.integers(1, 17), st.integers(0, 90))
def test_rows_hold_key_and_values_in_their_slot_and_nothing_of_what_was_there(
    data: st.DataObject, keys: list[int], dim: int, free: int
) -> None:
    slots = data.draw(st.permutations(range(len(keys) + free)), "slots")[: len(keys)]
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)), "gone"), np.bool_)
    values = values_for(as_keys(keys), dim)
    mixed, origin = by_hash(as_keys(keys))
    rows = np.full((len(keys) + free, stride_for(dim) // 8), 0x7777_7777_7777_7777, np.uint64)

    fill(rows, mixed, origin, values, gone, np.array(slots, np.uint32))

    wanted = np.zeros_like(rows)
    wanted[:, 0] = EMPTY_KEY
    for slot, given_at in zip(slots, origin.tolist(), strict=True):
        wanted[slot, 0] = keys[given_at]
        if not gone[given_at]:
            wanted[slot].view(np.float32)[2 : 2 + dim] = values[given_at]
    assert rows.tobytes() == wanted.tobytes()


@given(some_keys, st.integers(1, 17))
def test_rows_of_a_group_keep_their_order(keys: list[int], dim: int) -> None:
    values, gone = values_for(as_keys(keys), dim), as_keys(keys) % np.uint64(3) == 0
    rows, ends = np.empty((len(keys), dim + 3), np.uint32), np.zeros(256, np.int64)

    scatter(as_keys(keys), values, gone, rows, ends)

    groups = (hashing.mix(as_keys(keys)) >> np.uint64(56)).astype(np.int64)
    order = np.argsort(groups, kind="stable")
    assert np.ascontiguousarray(rows[:, :2]).view(np.uint64).reshape(-1).tolist() == as_keys(keys)[order].tolist()
    assert rows[:, 2:-1].tobytes() == values[order].tobytes()
    assert (rows[:, -1] != 0).tolist() == gone[order].tolist()
    assert ends.tolist() == np.cumsum(np.bincount(groups, minlength=256)).tolist()


@given(some_keys)
def test_each_hash_has_its_bit_and_no_other_is_set(keys: list[int]) -> None:
    presence = np.zeros(4, np.uint64)

    mark(presence, hashing.mix(as_keys(keys)))

    bits = {int(mixed) % 256 for mixed in hashing.mix(as_keys(keys))}
    assert [bit for bit in range(256) if int(presence[bit // 64]) >> (bit % 64) & 1] == sorted(bits)
