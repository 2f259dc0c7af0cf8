from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elastic_ctr.features.quantiser import decode, encode
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import (
    copy_bytes,
    copy_halves,
    copy_scaled,
    equal_bytes,
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
def test_a_value_stored_at_any_address_is_read_from_there(at: int, value: int) -> None:
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


@compiled
def _row_of_64_halves(source: Any, to: Any) -> None:
    copy_halves(np.uint64(to.ctypes.data), np.uint64(source.ctypes.data), 64)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_every_half_becomes_its_float32() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    floats = np.empty(halves.size, np.float32)

    for start in range(0, halves.size, 64):
        _row_of_64_halves(halves[start : start + 64], floats[start : start + 64])

    wanted = halves.view(np.float16).astype(np.float32)
    assert np.where(np.isnan(wanted), 0, floats).tobytes() == np.where(np.isnan(wanted), 0, wanted).tobytes()
    assert np.isnan(floats[np.isnan(wanted)]).all()


@compiled
def _rows_of_47(halves: Any, scaled: Any, to: Any) -> None:
    """Two rows: of halves, and of bytes."""
    target = np.uint64(to.ctypes.data)
    copy_halves(target, np.uint64(halves.ctypes.data), 47)
    copy_scaled(target + np.uint64(4 * 48), np.uint64(scaled.ctypes.data), 47)


@given(arrays.arrays(np.float32, (1, 47), elements=st.floats(-1e6, 1e6, width=32)))
def test_a_stored_row_is_copied_as_the_quantiser_says_and_nothing_behind_it_is_touched(
    values: npt.NDArray[np.float32],
) -> None:
    halves, scaled = encode(values, "float16"), encode(values, "int8")
    found = np.full((2, 48), 7, np.float32)

    _rows_of_47(halves, scaled, found)

    for kind, copied in (("float16", found[0]), ("int8", found[1])):
        [wanted] = decode(halves if kind == "float16" else scaled, 47, kind)  # type: ignore[arg-type]
        assert copied[:47].tobytes() == wanted.tobytes()
    assert (found[:, 47] == 7).all()


@compiled
def equal_bytes_at(data: Any, at: Any, byte: Any) -> Any:
    return equal_bytes(np.uint64(data.ctypes.data) + np.uint64(at), np.uint8(byte))


@given(st.binary(min_size=64, max_size=64), st.integers(0, 7), st.integers(0, 255))
def test_each_of_64_bytes_is_compared(content: bytes, at: int, byte: int) -> None:
    data = np.frombuffer(bytes(at) + content, np.uint8).copy()

    for wanted in (byte, content[0], content[63]):
        found = equal_bytes_at(data, at, wanted)
        assert [bool(found >> place & 1) for place in range(64)] == [each == wanted for each in content]
