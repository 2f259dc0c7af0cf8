from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import (
    copy_bytes,
    high64,
    load_i32,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_f32,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    trailing_zeros,
    zero_bytes,
)

u64 = st.integers(0, 2**64 - 1)


@compiled
def _high(a: Any, b: Any) -> Any:
    return high64(a, b), trailing_zeros(a)


@compiled
def _stored(data: Any, at: Any, value: Any) -> Any:
    """One of each width, side by side and read again."""
    to = np.uint64(data.ctypes.data) + np.uint64(at)
    store_u8(to, np.uint8(value))
    store_u16(to + np.uint64(1), np.uint16(value))
    store_u32(to + np.uint64(3), np.uint32(value))
    store_u64(to + np.uint64(7), value)
    store_f32(to + np.uint64(15), np.float32(1.5))
    return (
        load_u8(to), load_u16(to + np.uint64(1)), load_u32(to + np.uint64(3)), load_i32(to + np.uint64(3)),
        load_u64(to + np.uint64(7)),
    )  # fmt: skip


@compiled
def _moved(data: Any, to: Any, from_: Any, length: Any) -> None:
    base = np.uint64(data.ctypes.data)
    copy_bytes(base + np.uint64(to), base + np.uint64(from_), np.uint64(length))
    zero_bytes(base, np.uint64(4))


@given(u64, u64)
def test_the_upper_half_of_a_product_and_the_lowest_bit(a: int, b: int) -> None:
    high, zeros = _high(np.uint64(a), np.uint64(b))

    assert int(high) == a * b >> 64
    assert int(zeros) == ((a & -a).bit_length() - 1 if a else 64)


@given(st.integers(0, 9), u64)
def test_what_is_stored_at_any_address_is_read_there(at: int, value: int) -> None:
    data = np.zeros(32, np.uint8)

    u8, u16, u32, i32, whole = (int(each) for each in _stored(data, at, np.uint64(value)))

    assert (u8, u16, u32, whole) == (value % 2**8, value % 2**16, value % 2**32, value)
    assert i32 % 2**32 == u32
    assert bytes(data[at + 3 : at + 7]) == (value % 2**32).to_bytes(4, "little")
    assert data[at + 15 : at + 19].tobytes() == np.float32(1.5).tobytes()


@given(st.integers(4, 20), st.integers(4, 20), st.integers(0, 12))
def test_bytes_that_overlap_are_copied_whole(to: int, from_: int, length: int) -> None:
    data = np.arange(1, 33, dtype=np.uint8)
    expected = data.copy()
    expected[to : to + length] = data[from_ : from_ + length].copy()
    expected[:4] = 0

    _moved(data, to, from_, length)

    assert data.tolist() == expected.tolist()
