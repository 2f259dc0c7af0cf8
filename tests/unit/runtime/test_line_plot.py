import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.runtime.line_plot import HEIGHT, WIDTH, line_plot

NUMBERS = st.floats(-1e6, 1e6) | st.floats(0, 1) | st.floats(1e-9, 1e-6)
SVG = "{http://www.w3.org/2000/svg}"


def polylines(document: str) -> list[list[tuple[float, float]]]:
    found = []
    for line in ET.fromstring(document).iter(f"{SVG}polyline"):
        numbers = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        found.append([(x, y) for x, y in numbers])
    return found


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=50), st.booleans())
def test_every_point_is_inside_the_axes(points: list[tuple[float, float]], diagonal: bool) -> None:
    for line in polylines(line_plot("t", "x", "y", {"one": points}, diagonal=diagonal)):
        for across, down in line:
            assert 64 <= across <= WIDTH - 16
            assert 40 <= down <= HEIGHT - 56


def test_more_is_right_and_up() -> None:
    [(left, low), (right, high)] = polylines(line_plot("t", "x", "y", {"one": [(1, 5), (2, 9)]}))[0]

    assert right > left
    assert high < low


def test_the_diagonal_goes_from_corner_to_corner_of_one_range() -> None:
    diagonal, line = polylines(line_plot("t", "x", "y", {"one": [(0, 0), (0.2, 0.9)]}, diagonal=True))

    assert diagonal == [(64.0, 344.0), (464.0, 40.0)]
    assert line[0] == (64.0, 344.0)
    assert line[1][0] == 64 + 0.2 * 400


def test_texts_are_escaped_and_ticks_are_round() -> None:
    document = line_plot("a < b & c", "x", "y", {"<one>": [(0, 0.71), (5, 0.75)]})

    texts = [each.text for each in ET.fromstring(document).iter(f"{SVG}text")]
    assert texts[0] == "a < b & c"
    assert "— <one>" in texts
    assert {"0.71", "0.72", "0.73", "0.74", "0.75"} <= set(texts)


def test_no_line_and_one_point_are_pictures_too() -> None:
    assert re.search("<svg", line_plot("t", "x", "y", {}))
    assert polylines(line_plot("t", "x", "y", {"one": [(3, 3)]})) == [[(224.0, 222.4)]]
