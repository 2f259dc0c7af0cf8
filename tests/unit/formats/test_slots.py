from __future__ import annotations

import pickle

import pytest

from elastic_ctr.formats.slots import SlotList


def test_numbers_and_names_give_the_same_list_as_a_slot_conf() -> None:
    from_list = SlotList.parse([0, 1, "user-id"])
    from_text = SlotList.parse("\n0\r\n1 \n\n user-id")

    assert from_list == from_text == SlotList(("0", "1", "user-id"))


def test_a_slot_list_gives_the_place_of_each_name() -> None:
    slots = SlotList.parse([7, 3, 5])

    assert [slots.index(name) for name in ("7", "3", "5")] == [0, 1, 2]
    assert len(slots) == 3
    assert list(slots) == ["7", "3", "5"]
    assert "3" in slots
    assert "4" not in slots
    with pytest.raises(KeyError):
        slots.index("4")


def test_the_text_of_a_list_is_its_slot_conf() -> None:
    slots = SlotList.parse(["b", "a"])

    assert slots.text() == "b\na\n"
    assert SlotList.parse(slots.text()) == slots


@pytest.mark.parametrize("source", [[], "", "\n \r\n"])
def test_an_empty_list_is_refused(source: list[int | str] | str) -> None:
    with pytest.raises(ValueError, match="the slot list is empty"):
        SlotList.parse(source)


def test_a_name_that_is_there_twice_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="names 1, b more than once"):
        SlotList.parse([1, "b", "1", "b", 2])


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\tb", "\x00", "größe", "a\nb", "\x7f"])
def test_a_name_that_can_not_stand_in_a_line_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a line"):
        SlotList.parse(["0", name])


@pytest.mark.parametrize("name", [True, 1.5, None])
def test_a_name_that_is_neither_number_nor_text_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="neither a number nor text"):
        SlotList.parse([name])  # type: ignore[list-item]


def test_a_slot_list_can_be_sent_to_another_process_and_is_hashable() -> None:
    slots = SlotList.parse(["b", "a"])

    assert pickle.loads(pickle.dumps(slots)) == slots
    assert {slots: 1}[SlotList.parse("b\na")] == 1
