import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cube_oracles import pack_refusal, pack_reply, unpack_request
from elastic_ctr.cube import wire
from elastic_ctr.cube.wire import HELLO_BYTES, Hello, MessageKind, Status, WireError

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(u16, u32, u32, u16)
def test_a_hello_comes_back_as_it_was(dim: int, partitions: int, max_keys: int, protocol: int) -> None:
    hello = Hello(dim, partitions, max_keys, protocol)

    assert len(hello.pack()) == HELLO_BYTES
    assert Hello.unpack(hello.pack()) == hello


def test_a_hello_of_another_door_is_refused() -> None:
    with pytest.raises(WireError, match="is this the cube's port"):
        Hello.unpack(b"ECTP" + bytes(12))


@given(st.sampled_from(MessageKind), u64, u64, hnp.arrays(np.uint64, st.integers(0, 40)))
def test_a_request_comes_back_as_it_was(
    kind: MessageKind, request_id: int, version: int, keys: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> None:
    frame = wire.pack_request(kind, request_id, version, keys)

    head, back = unpack_request(frame)

    assert len(frame) == wire.request_bytes(keys.size) == head.frame_bytes
    assert (head.code, head.id, head.version, head.n) == (kind, request_id, version, keys.size)
    assert back.tolist() == keys.tolist()


@given(u64, u64, st.integers(0, 40), st.integers(1, 17), st.booleans(), st.data())
def test_a_reply_comes_back_as_it_was(
    request_id: int, version: int, n: int, dim: int, draining: bool, data: st.DataObject
) -> None:
    values = data.draw(hnp.arrays(np.float32, (n, dim), elements=st.floats(width=32, allow_nan=False)))
    missing = data.draw(hnp.arrays(np.bool_, n))

    frame = pack_reply(request_id, version, values, missing, draining=draining)
    reply = wire.unpack_reply(frame, dim)

    assert len(frame) == wire.reply_bytes(n, dim)
    assert (reply.status, reply.draining, reply.id, reply.version) == (Status.OK, draining, request_id, version)
    assert reply.values.tobytes() == values.tobytes()
    assert reply.missing.tolist() == missing.tolist()


def test_the_layout_of_a_request_is_the_documented_one() -> None:
    frame = wire.pack_request(MessageKind.LOOKUP, 0x0102030405060708, 9, np.array([2**64 - 2], np.uint64))

    assert frame.hex() == "20000000010000000100000008070605040302010900000000000000feffffffffffffff"


def test_the_layout_of_a_reply_is_the_documented_one() -> None:
    values = np.array([[1.0, 0.0], [0.0, 0.0]], np.float32)

    frame = pack_reply(7, 9, values, np.array([False, True]), draining=True)

    assert frame.hex() == (
        "29000000" "0000" "0100" "02000000" "0700000000000000" "0900000000000000"
        "0000803f" "00000000" "00000000" "00000000" "02"
    )  # fmt: skip


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 400))
def test_a_reply_that_is_cut_anywhere_is_refused(n: int, dim: int, cut: int) -> None:
    frame = pack_reply(1, 2, np.ones((n, dim), np.float32), np.zeros(n, np.bool_))

    with pytest.raises(WireError):
        wire.unpack_reply(frame[: min(cut, len(frame) - 1)], dim)


@given(st.binary(max_size=200), st.integers(1, 17))
def test_any_bytes_are_a_reply_or_refused(data: bytes, dim: int) -> None:
    try:
        reply = wire.unpack_reply(data, dim)
    except WireError:
        return

    assert len(data) == wire.reply_bytes(reply.missing.size, dim)


def test_a_reply_of_another_dim_is_refused() -> None:
    frame = pack_reply(1, 2, np.ones((3, 4), np.float32), np.zeros(3, np.bool_))

    with pytest.raises(WireError, match="of dim 5"):
        wire.unpack_reply(frame, 5)


def test_a_refusal_has_no_values() -> None:
    reply = wire.unpack_reply(pack_refusal(Status.VERSION_NOT_HELD, 1, 2, draining=True), 9)

    assert reply.status == Status.VERSION_NOT_HELD
    assert reply.draining
    assert reply.values.shape == (0, 9)


def test_a_miss_bit_for_no_key_is_refused() -> None:
    frame = bytearray(pack_reply(1, 2, np.ones((3, 1), np.float32), np.zeros(3, np.bool_)))
    frame[-1] |= 0b1000

    with pytest.raises(WireError, match="does not have"):
        wire.unpack_reply(bytes(frame), 1)


def test_an_unknown_status_is_refused() -> None:
    frame = bytearray(pack_refusal(Status.BUSY, 1, 2))
    frame[4] = 5

    with pytest.raises(WireError, match="status 5"):
        wire.unpack_reply(bytes(frame), 1)


def test_keys_of_another_type_are_refused_when_packed() -> None:
    with pytest.raises(ValueError, match="uint64"):
        wire.pack_request(MessageKind.LOOKUP, 1, 2, np.array([1], np.int64))
