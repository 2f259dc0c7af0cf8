import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.protocols.elasticctr_json import Scanner, parse_inference
from elastic_ctr.serving.request_error import RequestError

SLOTS = SlotList(("0", "1", "11", "user"))
SCANNER = Scanner(SLOTS, 5)

# Of every length: digits are read by eights.
sizes = st.integers(1, 20).flatmap(lambda digits: st.integers(0, min(10**digits, 2**64) - 1))
feasigns = st.integers(0, 2**64 - 1) | sizes | sizes.map(str)
strange: st.SearchStrategy[Any] = st.sampled_from(
    [
        -1,
        2**64,
        10**19 * 2,
        10**20,
        "x",
        "01",
        "0" * 8 + "1",
        "",
        1.5,
        None,
        True,
        [],
        "1 ",
        " 1",
        "-3",
        "1234567a",
        10**30,
    ]
)
rising = st.lists(st.sampled_from(SLOTS.names), unique=True).map(lambda names: sorted(names, key=SLOTS.index))


def slot(name: str, values: list[Any]) -> dict[str, Any]:
    return {"slot_name": name, "feasigns": values}


def bodies(values: st.SearchStrategy[Any], names: st.SearchStrategy[list[str]]) -> st.SearchStrategy[Any]:
    instance = names.flatmap(
        lambda chosen: st.tuples(*(st.builds(slot, st.just(name), st.lists(values, max_size=3)) for name in chosen))
    )
    return st.lists(st.builds(lambda slots: {"slots": list(slots)}, instance), min_size=1, max_size=6).map(
        lambda instances: {"instances": instances}
    )


def written(body: Any, indent: int | None, separators: tuple[str, str] | None) -> bytes:
    return json.dumps(body, indent=indent, separators=separators).encode()


layouts = st.tuples(st.sampled_from([None, 0, 2]), st.sampled_from([None, (",", ":"), (" ,\t", " :\r\n ")]))


def same(one: Instances, other: Instances) -> bool:
    return (one.rows, one.feasigns.tolist(), one.lengths.tolist()) == (
        other.rows, other.feasigns.tolist(), other.lengths.tolist(),
    )  # fmt: skip


@settings(deadline=None)
@given(bodies(feasigns, rising), layouts)
def test_the_everyday_request_is_read_as_the_protocol_reads_it(body: Any, layout: Any) -> None:
    data = written(body, *layout)

    read = SCANNER.read(data)

    if len(body["instances"]) > 5:
        assert read is None
    else:
        assert read is not None
        assert same(read, parse_inference(data, SLOTS, 5))


@settings(max_examples=300, deadline=None)
@given(
    bodies(feasigns | strange, st.lists(st.sampled_from([*SLOTS.names, "2", ""]), max_size=4)),
    layouts,
    st.integers(0, 400),
    st.binary(max_size=2),
)
def test_the_scanner_reads_a_body_as_the_protocol_does_or_not_at_all(
    body: Any, layout: Any, place: int, change: bytes
) -> None:
    whole = written(body, *layout)
    place = min(place, len(whole))
    for data in (whole, whole[:place], whole[:place] + change + whole[place + 1 :]):
        read = SCANNER.read(data)
        if read is not None:
            assert same(read, parse_inference(data, SLOTS, 5))


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_no_bytes_do_more_than_be_left_to_the_protocol(data: bytes) -> None:
    read = SCANNER.read(data)

    assert read is None or same(read, parse_inference(data, SLOTS, 5))


# Bodies that the scanner leaves to the protocol, and the feasigns that the protocol reads; None where it refuses the body.
LEFT: list[tuple[bytes, list[int] | None]] = [
    (b"", None),
    (b"{}", None),
    (b'{"instances":[]}', None),
    (b'{"instances":[{"slots":[{"slot_name":"1","feasigns":[3]},{"slot_name":"0","feasigns":[2]}]}]}', [2, 3]),
    (b'{"instances":[{"slots":[{"slot_name":"1","feasigns":[3]},{"slot_name":"1","feasigns":[2]}]}]}', [3, 2]),
    (b'{"instances":[{"slots":[{"feasigns":[1],"slot_name":"1"}]}]}', [1]),
    (b'{"instances":[{"slots":[{"slot_name":"2","feasigns":[1]}]}]}', None),
    (b'{"instances":[{"slots":[{"slot_name":"1","feasigns":[1,]}]}]}', None),
    (b'{"instances":[{"slots":[{"slot_name":"1","feasigns":[18446744073709551616]}]}]}', None),
    (b'{"instances":[{"slots":[{"slot_name":"1","feasigns":[1]}]}]}x', None),
]


@pytest.mark.parametrize(("data", "feasigns"), LEFT)
def test_an_unusual_body_is_left_to_the_protocol(data: bytes, feasigns: list[int] | None) -> None:
    assert SCANNER.read(data) is None
    if feasigns is None:
        with pytest.raises(RequestError):
            parse_inference(data, SLOTS, 5)
    else:
        assert parse_inference(data, SLOTS, 5).feasigns.tolist() == feasigns


def test_the_largest_feasign_is_read() -> None:
    read = SCANNER.read(b'{"instances":[{"slots":[{"slot_name":"user","feasigns":[18446744073709551615,0]}]}]}')

    assert read is not None
    assert (read.feasigns.tolist(), read.lengths.tolist()) == ([2**64 - 1, 0], [0, 0, 0, 2])
