import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.cube import wire
from elastic_ctr.cube.wire import Head, Hello, WireError

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_hello_are_refused(data: bytes) -> None:
    if data[:4] == wire.MAGIC and len(data) == wire.HELLO_BYTES:
        return

    with pytest.raises(WireError, match="hello"):
        Hello.unpack(data)


def test_another_protocol_is_refused() -> None:
    Hello().check_protocol()

    with pytest.raises(WireError, match="protocol 4, this client 1"):
        Hello(protocol=4).check_protocol()


@given(st.integers(0, 2**32 - 1 - wire.AFTER_LENGTH), u16, u16, u32, u64, u64)
def test_a_head_comes_back_as_it_was(body: int, code: int, flags: int, n: int, request: int, version: int) -> None:
    data = wire.pack_head(body, code, flags, n, request, version)
    head = Head.unpack(data)

    assert len(data) == wire.HEAD_BYTES
    assert head == Head.unpack(b"..." + data, 3) == (body + wire.AFTER_LENGTH, code, flags, n, request, version)
    assert head.frame_bytes == wire.HEAD_BYTES + body


def test_the_layout_of_a_head_is_the_documented_one() -> None:
    data = wire.pack_head(2, 3, 4, 5, 6, 7)

    assert data.hex() == "1a000000030004000500000006000000000000000700000000000000"


def test_a_head_shorter_than_itself_is_refused() -> None:
    with pytest.raises(WireError, match="at least 24"):
        Head.unpack(b"\x17\0\0\0" + bytes(24))


def test_a_head_that_is_not_all_there_is_refused() -> None:
    with pytest.raises(WireError, match="at least 28"):
        Head.unpack(bytes(30), 3)
