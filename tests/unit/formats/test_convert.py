from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.line import LineRefused, Reason, parse_line
from elastic_ctr.formats.slots import SlotList
from features_oracles import multislot
from formats.lines import BLOCKS, SLOTS, SPARSE_DIMS

DATA = Path(__file__).parents[3].parent / "shared" / "data"


def check_against_the_oracle(
    block: bytes,
    slots: SlotList,
    sparse_dim: int | None,
    max_line_bytes: int = 1 << 20,
    late_clicks: bool = False,
) -> None:
    text, offsets, refused, at = [], [], [], 0
    sums: Counter[str] = Counter()
    lines = block.split(b"\n")
    for number, line in enumerate(lines[:-1] if block.endswith(b"\n") or not block else lines, 1):
        try:
            instance = parse_line(line, slots, sparse_dim, max_line_bytes, late_clicks)
        except LineRefused as why:
            refused.append((number, at, why.reason, why.detail, line[:200]))
        else:
            text.append(multislot(instance))
            offsets.append(at)
            sums.update(shows=instance.show, clicks=instance.click, ignored=instance.ignored, padding=instance.padding)
        at += len(line) + 1

    converted = Converter(slots, sparse_dim, max_line_bytes, late_clicks=late_clicks).convert(block)

    assert converted.text == b"".join(text)
    assert converted.offsets.tolist() == offsets
    assert converted.records == len(offsets)
    assert [(line.line, line.offset, line.reason, line.detail, line.excerpt) for line in converted.refused] == refused
    for name in ("shows", "clicks", "ignored", "padding"):
        assert getattr(converted, name) == sums[name]


@settings(max_examples=100)
@given(block=BLOCKS, sparse_dim=SPARSE_DIMS)
@example(block=b"", sparse_dim=None)
@example(block=b"\n\n", sparse_dim=None)
@example(block=b"\r", sparse_dim=None)
@example(block=b"1 0\r", sparse_dim=None)
@example(block=b"1 0 18446744073709551614:use\n1 0 18446744073709551615:use", sparse_dim=2)
@example(block=b"2147483647 2147483647\n2147483648 0\n1 0 :0\n1 0 1:", sparse_dim=None)
def test_the_converter_writes_byte_for_byte_what_the_oracle_would(block: bytes, sparse_dim: int | None) -> None:
    check_against_the_oracle(block, SLOTS, sparse_dim)


@given(block=BLOCKS)
@example(block=b"0 1 5:use\n0 0 5:use\n00 2147483647\n0 2147483648\n1 2 5:0\n0\n0 \n0 x\n2147483648 1")
def test_late_clicks_are_converted_as_the_oracle_would(block: bytes) -> None:
    check_against_the_oracle(block, SLOTS, None, late_clicks=True)


@given(block=BLOCKS, max_line_bytes=st.integers(1, 60))
def test_the_converter_refuses_long_lines_where_the_oracle_does(block: bytes, max_line_bytes: int) -> None:
    check_against_the_oracle(block, SLOTS, None, max_line_bytes)


def test_many_slots_with_names_that_share_buckets_are_told_apart() -> None:
    slots = SlotList.parse(list(range(2, 602)))
    dice = random.Random(5)
    block = b"".join(
        b"1 0 %s\n" % b" ".join(b"%d:%d" % (dice.getrandbits(64), dice.randrange(0, 700)) for _ in range(300))
        for _ in range(50)
    )

    check_against_the_oracle(block, slots, None)


def test_text_that_grows_far_beyond_its_lines_is_written_in_pieces() -> None:
    slots = SlotList.parse(list(range(500)))

    check_against_the_oracle(b"1 0\n" * 3000, slots, None)


def test_thousands_of_feasigns_in_one_slot_keep_their_order() -> None:
    block = b"1 0 " + b" ".join(b"%d:0" % key for key in range(20_000, 0, -1))

    check_against_the_oracle(block, SLOTS, None)


def test_refused_lines_are_counted_and_iterated_in_order() -> None:
    refused = Converter(SLOTS, None).convert(b"1 0\n\n0 0\n\n1 2\n").refused

    assert [(line.line, line.reason) for line in refused] == [
        (2, Reason.EMPTY),
        (3, Reason.SHOW_ZERO),
        (4, Reason.EMPTY),
        (5, Reason.CLICK_ABOVE_SHOW),
    ]
    assert len(refused) == 4


def test_the_excerpt_of_a_refused_line_is_cut() -> None:
    [line] = Converter(SLOTS, None).convert(b"1 0 " + b"x" * 1000).refused

    assert line.excerpt == b"1 0 " + b"x" * 196


def test_memory_that_is_not_bytes_converts_too() -> None:
    block = b"1 0 5:0\nbad\n"

    for given_block in (bytearray(block), memoryview(block)):
        converted = Converter(SLOTS, None).convert(given_block)  # type: ignore[arg-type]
        assert converted.records == 1
        assert [line.excerpt for line in converted.refused] == [b"bad"]


def test_threads_share_a_converter() -> None:
    converter = Converter(SLOTS, 1_000_001)
    blocks = [b"".join(b"1 0 %d:0 %d:user\n" % (i * n, i) for i in range(2000)) for n in range(1, 5)]
    expected = [converter.convert(block).text for block in blocks]
    found: list[bytes] = [b""] * len(blocks)

    def work(index: int) -> None:
        found[index] = converter.convert(blocks[index]).text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(blocks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == expected


@pytest.mark.parametrize("sparse_dim", [0, -1, 2**64])
def test_a_modulus_out_of_range_is_refused(sparse_dim: int | None) -> None:
    with pytest.raises(ValueError, match="sparseDim"):
        Converter(SLOTS, sparse_dim)


@pytest.mark.skipif(not DATA.exists(), reason="needs the public click logs: put them into ../shared/data")
@pytest.mark.parametrize("sparse_dim", [None, 1_000_001])
def test_the_hundred_lines_of_the_source_convert_as_the_oracle_says(sparse_dim: int | None) -> None:
    slots = SlotList.parse((DATA / "elasticctr" / "slot.conf").read_text())

    check_against_the_oracle((DATA / "elasticctr" / "data.txt").read_bytes(), slots, sparse_dim)


@pytest.mark.skipif(not DATA.exists(), reason="needs the public click logs: put them into ../shared/data")
def test_the_rows_of_paddlerec_with_hundreds_of_features_convert_as_the_oracle_says() -> None:
    rows = (DATA / "paddlerec" / "slot_dnn_demo_10").read_bytes().splitlines()
    block = b"".join(b"1 %s %s\n" % (row[:1], row.partition(b" ")[2]) for row in rows)

    check_against_the_oracle(block, SlotList.parse(list(range(2, 302))), None)
    assert Converter(SlotList.parse(list(range(2, 302))), None).convert(block).clicks == 4


def test_the_offsets_point_at_the_lines_of_the_records() -> None:
    block = b"1 0 1:0\nbad\n1 1 2:0\n"

    converted = Converter(SLOTS, None).convert(block)

    assert converted.offsets.dtype == np.int64
    assert [block[at : at + 7] for at in converted.offsets] == [b"1 0 1:0", b"1 1 2:0"]
