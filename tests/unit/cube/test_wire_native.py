"""What is written in machine code is what `wire` writes."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.cube import wire
from elastic_ctr.cube.wire_native import greets, magic_number, put_head, put_hello

MAGIC = b"TEST"
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(st.integers(0, 2**32 - 1 - wire.AFTER_LENGTH), u16, u16, u32, u64, u64)
def test_a_head_is_the_same_in_machine_code(
    body: int, code: int, flags: int, n: int, request: int, version: int
) -> None:
    data = np.zeros(wire.HEAD_BYTES, np.uint8)

    put_head(
        np.uint64(data.ctypes.data), wire.HEAD_BYTES + body, code, flags, n, np.uint64(request), np.uint64(version)
    )

    assert data.tobytes() == wire.pack_head(body, code, flags, n, request, version)


@given(u16, u16, u32, u32)
def test_a_hello_is_the_same_in_machine_code(protocol: int, first: int, second: int, third: int) -> None:
    data = np.zeros(wire.HELLO_BYTES, np.uint8)

    put_hello(np.uint64(data.ctypes.data), magic_number(MAGIC), protocol, first, second, third)

    assert data.tobytes() == struct.pack("<4sHHII", MAGIC, protocol, first, second, third)


@given(st.sampled_from([MAGIC, b"tset"]), st.integers(0, 3))
def test_a_hello_is_known_by_its_magic_and_protocol(magic: bytes, protocol: int) -> None:
    data = np.frombuffer(struct.pack("<4sHHII", magic, protocol, 0, 0, 0), np.uint8)

    known = greets(np.uint64(data.ctypes.data), magic_number(MAGIC), np.uint16(2))

    assert known == (magic == MAGIC and protocol == 2)
