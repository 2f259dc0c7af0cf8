import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.http_reader import read_head
from elastic_ctr.serving.frontends.fallback_http import Limits, RequestHead, request_head
from elastic_ctr.serving.frontends.templates import (
    END,
    LENGTH,
    LONGEST_HEAD,
    MOST_PIECES,
    SOURCE,
    TENSORS,
    VALUE,
    LearnResult,
    Template,
    Templates,
    _known,
    head_template,
    tensors_template,
)

PATHS = {"/a/b": SOURCE, "/tensors": TENSORS}
EVERYDAY = b"POST /a/b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nAccept: */*\r\n\r\n"


def test_an_everyday_head_is_known_by_what_stands_around_its_length_and_its_values() -> None:
    head = EVERYDAY.replace(b"Accept", b"Connection: keep-alive\r\nAccept")

    assert head_template(head, PATHS, Limits()) == Template(
        (
            b"POST /a/b HTTP/1.1\r\nHost: a\r\nContent-Length: ",
            b"\r\nConnection: keep-alive\r\nAccept:",
            b"\r\n\r\n",
        ),
        (LENGTH, VALUE, END),
        SOURCE,
    )


@pytest.mark.parametrize(
    "head",
    [
        EVERYDAY.replace(b"POST", b"PUT"),
        EVERYDAY.replace(b"/a/b", b"/a/b/"),
        EVERYDAY.replace(b"/a/b", b"*"),
        EVERYDAY.replace(b"/a/b", b"/a/\xff"),
        EVERYDAY.replace(b"1.1", b"1.0"),
        EVERYDAY.replace(b"1.1", b"1.0").replace(b"Accept: */*", b"Connection: keep-alive"),
        EVERYDAY.replace(b"Accept: */*", b"Connection: close"),
        EVERYDAY.replace(b"Accept: */*", b"Expect: 100-continue"),
        EVERYDAY.replace(b"Accept: */*", b"Content-Encoding: gzip"),
        EVERYDAY.replace(b"Accept: */*", b"Upgrade: h2c\r\nConnection: Upgrade"),
        EVERYDAY.replace(b"Accept: */*", b"Content-Length: 12"),
        EVERYDAY.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked"),
        EVERYDAY.replace(b"Content-Length: 12\r\n", b""),
        EVERYDAY.replace(b"12", b"0"),
        EVERYDAY.replace(b"12", b"012"),
        EVERYDAY.replace(b"12", b"1234567890"),
        EVERYDAY.replace(b"Content-Length: 12", b"X: 1\r\n Content-Length: 12"),
        EVERYDAY.replace(b"\r\n", b"\n"),
        b"\r\n" + EVERYDAY,
        EVERYDAY.replace(b"*/*", b"a" * LONGEST_HEAD),
        EVERYDAY.replace(b"Accept: */*", b"\r\n".join([b"x: 1"] * 99)),
        EVERYDAY.replace(b"*/*", b"\x7f"),
        EVERYDAY.replace(b"*/*", "ü".encode()),
        EVERYDAY.replace(b"Accept: */*", b"\r\n".join(b"x-%d: 1" % number for number in range(MOST_PIECES))),
        EVERYDAY[:-2],
        b"",
    ],
)
def test_an_unusual_head_has_no_template(head: bytes) -> None:
    assert head_template(head, PATHS, Limits()) is None


def read(head: bytes) -> RequestHead:
    event = read_head(head, Limits())
    assert event is not None
    return request_head(event.method.decode(), event.target, event.headers)


def heads_of_100() -> Templates:
    return Templates(lambda head: head_template(head, PATHS, Limits()))


def known(head: bytes, heads: Templates) -> tuple[int, int]:
    """What machine code says of it, by the head that was learned first: (its bytes or -1, those of the body)."""
    size, numbers = found(head, heads)
    return size, numbers[0] if size >= 0 else 0


def found(text: bytes, forms: Templates) -> tuple[int, list[int]]:
    data = np.frombuffer(b"?" + text + bytes(8), np.uint8)
    size = int(_known(data, 1, len(text), False, forms.table, 0))
    return size, forms.table.numbers.tolist()


values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40).map(str.encode)
changes = st.tuples(
    st.integers(0, len(EVERYDAY) - 1), st.binary(max_size=3) | st.sampled_from([b"\t", b"\r\n", b":", b" "])
)


@settings(deadline=None, max_examples=500)
@given(changes, st.integers(1, 999_999_999), st.lists(values, min_size=8, max_size=8))
def test_a_head_with_other_values_in_its_holes_is_parsed_alike_and_known_to_machine_code(
    change: tuple[int, bytes], length: int, others: list[bytes]
) -> None:
    place, by = change
    head = EVERYDAY[:place] + by + EVERYDAY[place + 1 :]
    heads = heads_of_100()
    form = head_template(head, PATHS, Limits())
    if form is None:
        assert heads.learn(head) == LearnResult.NOT
        return
    fillings = {VALUE: iter(others), LENGTH: iter([b"%d" % length]), END: iter([b""])}
    another = b"".join(piece + next(fillings[hole]) for piece, hole in zip(form.pieces, form.holes, strict=True))

    assert read(another) == read(head)._replace(length=length)
    assert head_template(another, PATHS, Limits()) == form
    # Were one not known that was learned, the door would look at it for ever.
    assert heads.learn(head) == LearnResult.NEW
    assert known(head, heads) == (len(head), read(head).length)
    assert known(another, heads) == (len(another), length)


@settings(deadline=None, max_examples=500)
@given(st.lists(changes, max_size=3), st.integers(0, len(EVERYDAY)))
def test_a_head_that_machine_code_knows_is_read_alike_by_the_parser(made: list[tuple[int, bytes]], cut: int) -> None:
    heads = heads_of_100()
    heads.learn(EVERYDAY)
    other = EVERYDAY
    for place, by in made:
        other = other[:place] + by + other[place + 1 :]

    size, length = known(other, heads)

    assert known(other[: min(cut, size - 1)], heads) == (-1, 0), "it is not whole"
    if size >= 0:
        assert head_template(other[:size], PATHS, Limits()) == head_template(EVERYDAY, PATHS, Limits())
        assert read(other[:size]) == read(EVERYDAY)._replace(length=length)


def test_a_value_makes_a_head_no_longer_than_a_head_may_be() -> None:
    heads = heads_of_100()
    heads.learn(EVERYDAY)
    room = LONGEST_HEAD - len(EVERYDAY) + len(b"*/*")

    longest, longer = (EVERYDAY.replace(b"*/*", b"a" * (room + more)) for more in (0, 1))

    assert known(longest, heads) == (LONGEST_HEAD, 12)
    assert heads.learn(longest) == LearnResult.AGAIN
    assert known(longer, heads) == (-1, 0)
    assert heads.learn(longer) == LearnResult.NOT


def test_a_head_is_kept_once_and_the_oldest_goes() -> None:
    heads = heads_of_100()
    others = [EVERYDAY.replace(b"Accept", b"X-%d" % number) for number in range(100)]

    lengths = [heads.learn(EVERYDAY.replace(b"12", b"%d" % (number + 1))) for number in range(100)]
    kept = (heads.table.sizes[:, 0] > 0).sum()
    first, again = [[heads.learn(each) for each in others] for _ in range(2)]

    assert lengths == [LearnResult.NEW] + [LearnResult.AGAIN] * 99
    assert kept == 1
    assert first == [LearnResult.NEW] * 100
    assert again == [LearnResult.AGAIN] * 100
    assert (heads.table.sizes[:, 0] > 0).all()
    assert heads.learn(EVERYDAY.replace(b"POST", b"GET")) == LearnResult.NOT


# -- the JSON in front of binary tensors

SLOTS = SlotList(("a", "b"))


def json_of(rows: int, feasigns: int, *, datatype: str = "UINT16", **more: Any) -> bytes:
    size = {"UINT16": 4, "UINT32": 8, "INT32": 8}.get(datatype, 0)
    inputs = [
        {
            "name": "feasigns",
            "shape": [feasigns],
            "datatype": "UINT64",
            "parameters": {"binary_data_size": 8 * feasigns},
        },
        {"name": "lengths", "shape": [rows, 2], "datatype": datatype, "parameters": {"binary_data_size": size * rows}},
    ]
    outputs = [{"name": "probability", "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs, **more}).encode()


@given(st.integers(1, 999_999), st.integers(1, 999_999), st.sampled_from(["UINT16", "UINT32", "INT32"]), st.booleans())
def test_numbers_of_tensors_are_known_by_what_stands_around_them(
    rows: int, feasigns: int, datatype: str, checked: bool
) -> None:
    more = {"parameters": {"slot_list_check": SLOTS.check()}} if checked else {}
    forms = Templates(lambda text: tensors_template(text, SLOTS))
    assert forms.learn(json_of(3, 5, datatype=datatype, **more)) == LearnResult.NEW
    text = json_of(rows, feasigns, datatype=datatype, **more)

    size, numbers = found(text, forms)

    width = 2 if datatype == "UINT16" else 4
    assert (size, numbers) == (len(text), [feasigns, rows, 8 * feasigns, 2 * width * rows])
    assert forms.learn(text) == LearnResult.AGAIN
    assert int(forms.table.kinds[0]) == width


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"inputs": 1}',
        b'{"inputs": [1, 2]}',
        json_of(0, 0),
        json_of(1, 1, datatype="UINT64"),
        json_of(1, 1, datatype="BYTES"),
        json_of(1, 1, id="x"),
        json_of(1, 1, more=1),
        json_of(1, 1, parameters={"slot_list_check": SLOTS.check() ^ 1}),
        json_of(1, 1, parameters={"slot_list_check": SLOTS.check(), "more": 1}),
        json_of(1, 1, parameters=1),
        json_of(1, 1, outputs=[{"name": "version"}]),
        json_of(1, 1).replace(b"[1, 2]", b"[1, 3]"),
        json_of(1, 1).replace(b"[1, 2]", b"[1, 2, 1]"),
        json_of(1, 1).replace(b"[1]", b"[1.0]"),
        json_of(1, 1).replace(b"[1]", b"[true]"),
        json_of(1, 1).replace(b"[1]", b"[01]"),
        json_of(1, 1).replace(b"UINT64", b"INT64"),
        json_of(1, 1).replace(b'"shape": [1]', b'"shape": [2], "shape": [1]'),
        json_of(1, 1).replace(b"binary_data_size\": 8", b"binary_data_size\": 9"),
        json_of(1, 1) + b" " * LONGEST_HEAD,
    ],
)  # fmt: skip
def test_json_that_is_not_of_the_two_tensors_is_not_known(text: bytes) -> None:
    assert tensors_template(text, SLOTS) is None
    assert tensors_template(json_of(1, 1), SlotList(("feasigns", "b"))) is None
