"""`elastic-ctr status` on screens of any size: nothing is wider or higher than they are, and no number is cut."""

import re
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from elastic_ctr.operate.cli.status_text import screen, stages
from elastic_ctr.operate.fitted_text import FittedTable, Sentence, shortened, wrapped
from elastic_ctr.operate.local.report import dated
from elastic_ctr.operate.text_table import Column, TextTable
from operate.cli.answers import DELTA, answers, master, serving, snapshot, transfer
from operate.report.runs import answers as of_long_run

NUMBER = re.compile(r"\d[\d.,:e%+-]*\d|\d")


def console(width: int, height: int = 1000) -> Console:
    return Console(file=StringIO(), width=width, height=height, color_system=None)


def shown(renderable: RenderableType, width: int, height: int = 1000) -> list[str]:
    out = console(width, height)
    out.print(renderable, highlight=False, crop=False)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue().splitlines()


def numbers(lines: list[str]) -> set[str]:
    return {found for line in lines for found in NUMBER.findall(line)}


def long_run(passes: int, say: str = "the reason") -> dict[str, Any]:
    found = of_long_run(passes, say=say)
    return {
        "master": {**master(), **found["master"]},
        "transfer": {**transfer(), **found["transfer"], "shards": transfer()["shards"]},
        "serving": serving(),
    }


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 20), (200, 60)])
@pytest.mark.parametrize("passes", [0, 3, 60])
def test_a_screen_holds_it_and_every_number_is_whole(width: int, height: int, passes: int) -> None:
    found, errors = long_run(passes), {"serving": "http://ctr-serving:8401/status does not answer"}
    all_of_it = shown(stages(snapshot(found, errors), passes=1000), 1000)

    lines = shown(screen(snapshot(found, errors), console(width, height)), width, height)

    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert numbers([line for line in lines if not line.startswith("… ")]) <= numbers(all_of_it)


def test_problems_stand_first_then_the_live_version_its_freshness_and_the_hours() -> None:
    found = answers()
    found["transfer"]["problems"] = ["the store is gone"]

    lines = shown(screen(snapshot(found, {"serving": "it does not answer"}), console(80, 24)), 80, 24)

    assert lines[:2] == ["problem    the store is gone", "silent     it does not answer"]
    starts = [line.split(" ")[0] for line in lines if not line.startswith(" ")]
    assert starts[:6] == ["problem", "silent", "live", "freshness", "serving", "training"]
    assert lines[2] == f"live       version {dated(DELTA)}"
    [header] = [number for number, line in enumerate(lines) if line.strip().startswith("hours")]
    assert [line.split()[0] for line in lines[header + 1 : header + 4]] == ["20200401/00", "20200401/01", "20200401/02"]
    assert "AUC before" in lines[header]


def test_on_80_columns_the_hours_lose_columns_and_keep_their_figures() -> None:
    lines = shown(stages(snapshot(answers())), 80)

    [header] = [line for line in lines if "AUC before" in line]
    assert header.split() == ["hours", "state", "records", "refused", "AUC", "before", "AUC", "after"]
    [hour] = [line.split() for line in lines if line.strip().startswith("20200401/01")]
    assert hour == ["20200401/01", "done", "3,000", "2", "0.5000", "0.7471"]


def test_a_low_screen_keeps_the_newest_hours_and_names_what_has_no_room() -> None:
    lines = shown(screen(snapshot(long_run(60)), console(80, 24)), 80, 24)

    hours = [line.split()[0] for line in lines if re.match(r" +\d{8}/\d\d ", line)]
    assert len(hours) >= 3
    assert hours[-1] == long_run(60)["master"]["passes"][-1]["pass"]
    assert lines[-1].startswith("… no room for shards")
    assert lines[-1].endswith(": `elastic-ctr status`") or lines[-1].endswith("…")


def test_many_problems_leave_room_for_the_rest() -> None:
    found = {**answers()}
    found["transfer"]["problems"] = [f"pod {number} does not start" for number in range(40)]

    lines = shown(screen(snapshot(found), console(80, 24)), 80, 24)

    assert lines[11] == "… 29 more lines of problems: `elastic-ctr status`"
    assert lines[12].startswith("live ")


def test_a_high_and_wide_screen_shows_all_of_it() -> None:
    assert shown(screen(snapshot(answers()), console(200, 100)), 200) == shown(stages(snapshot(answers())), 200)


WORDS = st.text(st.sampled_from("abc-/_.ö汉"), max_size=60)


@settings(max_examples=40, deadline=None)
@given(st.integers(24, 90), st.integers(6, 40), WORDS, st.integers(0, 8))
def test_names_of_any_length_cut_no_number(width: int, height: int, name: str, passes: int) -> None:
    found = long_run(passes, say=f"{name} 12345678901 of {name}")
    found["transfer"]["shards"] = [
        {**each, "pods": [{**pod, "pod": f"{name}-{pod['pod']}"} for pod in each["pods"]]}
        for each in transfer()["shards"]
    ]
    known = numbers(shown(stages(snapshot(found), passes=1000), 5000))

    whole = shown(stages(snapshot(found), passes=1000), width)
    lines = shown(screen(snapshot(found), console(width, height)), width, height)

    assert len(lines) <= height
    assert max(map(cell_len, [*whole, *lines])) <= width
    assert numbers(whole) <= known
    assert numbers([line for line in lines if not line.startswith("… ")]) <= known


@given(st.text(max_size=200), st.integers(1, 40))
def test_a_wrapped_sentence_loses_nothing_but_blanks(text: str, width: int) -> None:
    assert "".join("".join(wrapped(text, width)).split()) == "".join(text.split())


def test_a_word_breaks_beside_its_numbers() -> None:
    assert wrapped("/a/long/path/part-00017", 20) == ["/a/long/path/part", "-00017"]
    assert shortened("ctr-serving-12", 13) == "ctr-serving…"
    assert shortened("ctr-serving-12", 14) == "ctr-serving-12"


def test_a_table_leaves_out_what_is_needed_least_and_its_first_column_stays() -> None:
    table = TextTable([Column("pod"), Column("a", 2, right=True), Column("b", 1, right=True)])
    table.add("x", "1111", "22")

    assert [shown(FittedTable(table, 0), width)[1].split() for width in (14, 11, 6, 3)] == [
        ["x", "1111", "22"],
        ["x", "22"],
        ["x"],
        ["x"],
    ]


def test_a_sentence_goes_on_below_its_text() -> None:
    assert shown(Sentence("problem", "one two three", "", 11), 24) == ["problem    one two three"]
    assert shown(Sentence("problem", "one two three", "", 11), 22) == ["problem    one two", "           three"]
    assert shown(Sentence("problem", "one two three", "", 11), 15) == ["problem", "  one two three"]
