import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import DRAINING, HELLO_BYTES, WireError
from elastic_ctr.serving import wire
from elastic_ctr.serving.wire import Hello, Kind, RequestHead, Status

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(u16, u32, u32, u16)
def test_a_hello_comes_back_as_it_was(slots: int, max_rows: int, max_feasigns: int, protocol: int) -> None:
    hello = Hello(slots, max_rows, max_feasigns, protocol)

    assert len(hello.pack()) == HELLO_BYTES
    assert Hello.unpack(hello.pack()) == hello


def test_a_hello_of_another_door_is_refused() -> None:
    with pytest.raises(WireError, match="is this serving's binary port"):
        Hello.unpack(b"ECTR" + bytes(12))


@st.composite
def requests(draw: st.DrawFn) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 5)))
    counts = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 4)))
    feasigns = draw(hnp.arrays(np.uint64, int(counts.sum())))
    return feasigns, counts


@given(u64, u32, requests())
def test_a_request_comes_back_as_it_was(
    request_id: int, check: int, asked: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
) -> None:
    feasigns, counts = asked

    frame = wire.pack_request(request_id, feasigns, counts, check)
    head, back, values = wire.unpack_request(frame)

    assert len(frame) == head.frame_bytes == head.due_bytes
    assert (head.kind, head.id, head.list) == (Kind.PREDICT, request_id, check)
    assert (head.rows, head.slots) == counts.shape
    assert back.tolist() == counts.reshape(-1).tolist()
    assert values.tolist() == feasigns.tolist()


def test_counts_that_need_it_are_wide() -> None:
    counts = np.array([[70_000, 1]])

    frame = wire.pack_request(1, np.arange(70_001, dtype=np.uint64), counts, 0)
    head, back, _ = wire.unpack_request(frame)

    assert (head.flags, head.count_bytes, back.tolist()) == (wire.WIDE_COUNTS, 4, [70_000, 1])


@pytest.mark.parametrize(
    ("feasigns", "counts"),
    [
        (np.zeros(2, np.uint64), np.array([[1]])),
        (np.zeros(2, np.uint64), np.array([[3, -1]])),
        (np.zeros(2, np.int64), np.array([[2]])),
        (np.zeros(2, np.uint64), np.array([1, 1])),
        (np.zeros(2, np.uint64), np.array([[1.0, 1.0]])),
    ],
)
def test_what_does_not_fit_together_is_not_sent(feasigns: Any, counts: Any) -> None:
    with pytest.raises(ValueError, match="counts"):
        wire.pack_request(1, feasigns, counts, 0)


@given(u64, u64, hnp.arrays(np.float32, st.integers(0, 40)), st.booleans())
def test_a_reply_comes_back_as_it_was(
    request_id: int, version: int, values: npt.NDArray[np.float32], draining: bool
) -> None:
    frame = wire.pack_reply(request_id, version, values, draining=draining)
    head, body = wire.unpack_reply(frame)

    assert (head.code, head.flags, head.n, head.id, head.version) == (
        Status.OK, DRAINING if draining else 0, len(values), request_id, version,
    )  # fmt: skip
    assert body == values.tobytes()


@given(st.sampled_from([status for status in Status if status != Status.OK]), u64, st.text())
def test_a_refusal_carries_its_sentence_as_far_as_there_is_room(status: Status, request_id: int, sentence: str) -> None:
    head, body = wire.unpack_reply(wire.pack_refusal(status, request_id, sentence))

    assert (head.code, head.n, head.id, head.version) == (status, 0, request_id, 0)
    assert len(body) <= wire.MAX_SENTENCE
    assert sentence.encode("utf-8", "replace").decode().startswith(body.decode())


def test_a_slot_list_is_sent_as_its_slot_conf_and_known_by_its_check() -> None:
    slots = SlotList(("0", "user", "7"))

    head, body = wire.unpack_reply(wire.pack_slots(5, 9, slots))

    assert (head.n, head.id, head.version, body) == (3, 5, 9, b"0\nuser\n7\n")
    # CRC-32 as in zip and gzip: any language has it.
    assert wire.slot_list_check(slots) == 0x87BF1481
    assert wire.slot_list_check(SlotList(("user", "0", "7"))) != 0x87BF1481


def test_the_layout_of_a_hello_is_the_documented_one() -> None:
    assert Hello(26, 8192, 1 << 20).pack().hex() == "4543545001001a000020000000001000"


def test_the_layout_of_a_request_is_the_documented_one() -> None:
    frame = wire.pack_request(
        0x0102030405060708, np.array([2**64 - 2, 5, 6], np.uint64), np.array([[1, 0], [0, 2]]), 0xAABBCCDD
    )

    assert frame.hex() == (
        "3c000000" "0100" "0000" "02000000" "03000000" "0807060504030201" "02000000" "ddccbbaa"
        "0100" "0000" "0000" "0200" "feffffffffffffff" "0500000000000000" "0600000000000000"
    )  # fmt: skip


def test_the_layout_of_a_reply_is_the_documented_one() -> None:
    frame = wire.pack_reply(7, 9, np.array([1.0, 0.5], np.float32), draining=True)

    assert frame.hex() == "200000000000010002000000070000000000000009000000000000000000803f0000003f"


def test_the_layout_of_a_refusal_is_the_documented_one() -> None:
    frame = wire.pack_refusal(Status.BAD_REQUEST, 7, "no")

    assert frame.hex() == "1a0000000300000000000000070000000000000000000000000000006e6f"


@given(requests(), st.integers(0, 400))
def test_a_request_that_is_cut_anywhere_is_refused(
    asked: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]], cut: int
) -> None:
    frame = wire.pack_request(1, *asked, 2)

    with pytest.raises(WireError):
        wire.unpack_request(frame[: min(cut, len(frame) - 1)])


@pytest.mark.parametrize("unpack", [wire.unpack_request, wire.unpack_reply])
@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(unpack: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(WireError):
        unpack(data)


@given(*[u32] * 4)
def test_what_a_head_promises_is_never_negative(rows: int, n: int, slots: int, length: int) -> None:
    assert RequestHead(length, 1, 0, rows, n, 1, slots, 2).due_bytes >= wire.REQUEST_HEAD
