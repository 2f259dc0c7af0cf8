import math

import pytest

from elastic_ctr.operate.report.html import LONGEST, MOST_ROWS, OPEN_ROWS, Html, element, moment, table, text
from elastic_ctr.operate.text_table import TextTable, columns, number
from operate.report.runs import HOSTILE


def test_text_is_escaped_and_what_would_not_be_seen_is_named() -> None:
    assert text("<b>&'\"") == "&lt;b&gt;&amp;&#x27;&quot;"
    assert text("a\u202eb\x00\n\ud800") == "a\\u202eb\\x00\\n\\ud800"
    assert text("点击\u3000日志 é") == "点击\u3000日志 é"


def test_a_text_that_is_too_long_says_how_much_is_left_out() -> None:
    assert text("x" * LONGEST) == "x" * LONGEST
    assert text("x" * (LONGEST + 1500)) == "x" * LONGEST + " … (1,500 more characters)"


def test_only_elements_write_tags_in_content_and_attributes() -> None:
    found = element("td", HOSTILE, element("b", "live"), class_="w", title=HOSTILE, tabindex=0, aria_label=None)

    assert found.count("<") == 4
    assert found.startswith('<td class="w" title="&lt;/td&gt;&lt;script&gt;')
    assert found.endswith("\\ud800<b>live</b></td>")
    assert ' tabindex="0">' in found
    assert "aria-label" not in found
    # What is HTML already is not cut.
    assert len(element("p", Html("x" * 5000), title=Html("y" * 5000))) > 10_000


def test_a_long_table_is_folded_and_bounded() -> None:
    rows: list[tuple[str, ...]] = [(str(number), "a") for number in range(MOST_ROWS + 7)]

    shown, folded = table("Things", TextTable(columns("thing", "kind", words=("kind",)), rows)).split("<details>")

    assert shown.count("<tr>") == OPEN_ROWS + 1
    assert f"Things: {MOST_ROWS - OPEN_ROWS} more" in folded
    assert folded.count("<tr>") == MOST_ROWS - OPEN_ROWS + 1
    assert "7 older ones are left out." in folded
    assert '<th scope="row">0</th><td class="w">a</td>' in shown
    assert table("Things", TextTable(columns("thing"))) == '<p class="none">Things: none.</p>'


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_a_dash(value: float | None) -> None:
    assert number(value) == "-"


def test_numbers_and_moments_are_written_the_same_everywhere() -> None:
    assert (number(0.74711), number(1234.5, 1)) == ("0.7471", "1,234.5")
    assert moment(1795252709.9) == "2026-11-21 09:18:29"
    assert {moment(each) for each in (None, math.nan, math.inf, 1e300)} == {"-"}
