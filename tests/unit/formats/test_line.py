from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from elastic_ctr.formats.line import LineRefused, Reason, parse_features, parse_line
from elastic_ctr.formats.slots import SlotList
from features_oracles import multislot
from formats.lines import LINES, SLOTS, SPARSE_DIMS, right_lines

TWO = SlotList.parse([1, 2])
DATA = Path(__file__).parents[3].parent / "shared" / "data"


def reason_of(line: bytes, slots: SlotList = TWO, sparse_dim: int | None = None, **options: Any) -> Reason:
    with pytest.raises(LineRefused) as refused:
        parse_line(line, slots, sparse_dim, **options)
    assert str(refused.value) == f"{refused.value.reason.value}: {refused.value.detail}"
    return refused.value.reason


def test_a_line_gives_show_click_and_the_keys_of_each_slot_in_the_order_of_the_list() -> None:
    instance = parse_line(b"3 1 18446744073709551614:2 5:1 7:2", TWO, None)

    assert (instance.show, instance.click) == (3, 1)
    assert instance.keys == [[5], [18446744073709551614, 7]]


@pytest.mark.parametrize("line", [b"1 0 5:1", b"1 0 5:1\r", b"1\t0  5:1 ", b" \t1 0\t 5:1\t\r", b"01 000 0005:1"])
def test_blanks_tabs_a_last_cr_and_leading_zeros_do_not_matter(line: bytes) -> None:
    assert parse_line(line, TWO, None) == parse_line(b"1 0 5:1", TWO, None)


def test_a_late_click_has_show_0_where_that_is_wanted_and_nowhere_else() -> None:
    instance = parse_line(b"0 2 5:1", TWO, None, late_clicks=True)

    assert (instance.show, instance.click, instance.keys) == (0, 2, [[5], []])
    assert reason_of(b"0 2 5:1") == Reason.SHOW_ZERO
    assert reason_of(b"0 0 5:1", late_clicks=True) == Reason.SHOW_ZERO
    assert reason_of(b"1 2 5:1", late_clicks=True) == Reason.CLICK_ABOVE_SHOW
    assert reason_of(b"0 2147483648", late_clicks=True) == Reason.COUNT_TOO_LARGE


def test_slots_outside_the_list_are_ignored_and_counted() -> None:
    instance = parse_line(b"1 0 5:1 6:3 7:10", TWO, None)

    assert instance.ignored == 2
    assert instance.keys == [[5], []]


def test_the_padding_key_is_dropped_and_counted_after_the_modulus() -> None:
    instance = parse_line(b"1 0 0:1 20:2 21:2", TWO, 10)

    assert instance.padding == 2
    assert instance.keys == [[], [1]]


def test_a_line_without_features_of_listed_slots_is_all_padding() -> None:
    assert parse_line(b"1 1", TWO, None).keys == [[], []]
    assert multislot(parse_line(b"1 1 5:9", TWO, None)) == b"1 1 1 1 1 0 1 0\n"


def test_several_feasigns_a_slot_are_written_with_their_count() -> None:
    assert multislot(parse_line(b"2 1 8:2 9:1 0010:2", TWO, None)) == b"1 2 1 1 1 9 2 8 10\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", Reason.EMPTY),
        (b" \t\r", Reason.EMPTY),
        (b"1", Reason.NO_CLICK),
        (b"x 0", Reason.NOT_A_NUMBER),
        (b"+1 0", Reason.NOT_A_NUMBER),
        (b"1 1.0", Reason.NOT_A_NUMBER),
        (b"1 0 a:1", Reason.NOT_A_NUMBER),
        (b"1 0 :1", Reason.NOT_A_NUMBER),
        (b"1 0 -:1", Reason.NOT_A_NUMBER),
        (b"-1 0", Reason.NEGATIVE),
        (b"1 -1", Reason.NEGATIVE),
        (b"1 0 -5:1", Reason.NEGATIVE),
        (b"2147483648 0", Reason.COUNT_TOO_LARGE),
        (b"1 99999999999999999999999", Reason.COUNT_TOO_LARGE),
        (b"0 0", Reason.SHOW_ZERO),
        (b"00 1", Reason.SHOW_ZERO),
        (b"1 2", Reason.CLICK_ABOVE_SHOW),
        (b"1 0 5", Reason.NO_COLON),
        (b"1 0 5 :1", Reason.NO_COLON),
        (b"1 0 5:", Reason.BAD_SLOT),
        (b"1 0 5:1:2", Reason.BAD_SLOT),
        (b"1 0 18446744073709551615:1", Reason.FEASIGN_TOO_LARGE),
        (b"1 0 0018446744073709551615:1", Reason.FEASIGN_TOO_LARGE),
        (b"1 0 18446744073709551616:1", Reason.FEASIGN_TOO_LARGE),
        (b"1 0 " + b"9" * 5000 + b":1", Reason.FEASIGN_TOO_LARGE),
        (b"1 0 18446744073709551616:ignored", Reason.FEASIGN_TOO_LARGE),
        (b"1 0 5:1\x00", Reason.BINARY),
        (b"x 0 5:\xc3\xa4", Reason.BINARY),
        (b"1 0\r5:1", Reason.BINARY),
        (b"1 0 5:1\r\r", Reason.BINARY),
        (b"1 0 5:1\x0b6:1", Reason.BINARY),
    ],
)
def test_a_line_that_is_not_right_is_refused_for_its_reason(line: bytes, reason: Reason) -> None:
    assert reason_of(line) is reason


def test_a_line_with_click_above_show_is_refused_with_both_numbers() -> None:
    with pytest.raises(LineRefused, match="click 5 is above show 4"):
        parse_line(b"4 5 1:1", TWO, None)


def test_a_line_longer_than_allowed_is_refused_whatever_is_in_it() -> None:
    assert reason_of(b"\x00" * 11, max_line_bytes=10) is Reason.TOO_LONG
    assert reason_of(b"1 0 123:1\r\r", max_line_bytes=10) is Reason.TOO_LONG
    assert parse_line(b"1 0 123:1\r", TWO, None, max_line_bytes=10).keys == [[123], []]


def test_the_largest_counts_and_feasigns_are_accepted() -> None:
    instance = parse_line(b"2147483647 2147483647 0018446744073709551614:1", TWO, None)

    assert instance.show == instance.click == 2**31 - 1
    assert instance.keys[0] == [2**64 - 2]


def test_a_long_token_is_shortened_in_the_detail() -> None:
    with pytest.raises(LineRefused) as refused:
        parse_line(b"1 0 " + b"x" * 1000, TWO, None)

    assert len(refused.value.detail) < 100


@given(line=right_lines(), sparse_dim=SPARSE_DIMS)
def test_a_line_to_predict_has_the_features_of_the_training_line(line: bytes, sparse_dim: int | None) -> None:
    instance = parse_line(line, SLOTS, sparse_dim)

    bare = parse_features(b" ".join(line.split()[2:]), SLOTS, sparse_dim)

    assert (bare.keys, bare.ignored, bare.padding) == (instance.keys, instance.ignored, instance.padding)


def test_a_line_to_predict_may_have_no_features_as_a_training_line_may() -> None:
    assert parse_features(b" ", TWO, None).keys == parse_line(b"1 0", TWO, None).keys == [[], []]


@given(line=LINES, sparse_dim=SPARSE_DIMS)
def test_a_line_of_any_bytes_is_read_or_refused(line: bytes, sparse_dim: int | None) -> None:
    try:
        instance = parse_line(line, SLOTS, sparse_dim)
    except LineRefused:
        return
    assert 0 <= instance.click <= instance.show < 2**31
    assert all(0 < key < 2**64 for slot in instance.keys for key in slot)


@pytest.mark.skipif(not DATA.exists(), reason="needs the public click logs: put them into ../shared/data")
def test_the_hundred_lines_of_the_source_are_read_whole() -> None:
    slots = SlotList.parse((DATA / "elasticctr" / "slot.conf").read_text())
    lines = (DATA / "elasticctr" / "data.txt").read_bytes().splitlines()

    instances = [parse_line(line, slots, None) for line in lines]

    assert len(instances) == 100
    assert sum(instance.click for instance in instances) == 22
    assert sum(len(slot) for instance in instances for slot in instance.keys) == 2594
    assert len({key for instance in instances for slot in instance.keys for key in slot}) == 1197
