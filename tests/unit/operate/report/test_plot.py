import math
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.operate.report.plot import MOST_POINTS, Line, plot, sampled

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(allow_nan=True, allow_infinity=True)), max_size=30)


def parts(svg: str, name: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(name))


def test_a_line_of_many_points_keeps_its_ends_and_its_peaks() -> None:
    points = [(float(at), math.sin(at / 50)) for at in range(1000)]
    points[333], points[777] = (333.0, 5.0), (777.0, -5.0)

    kept = sampled(points)

    assert len(kept) <= MOST_POINTS
    assert {0, 333, 777, 999} <= set(kept)
    assert kept == sorted(kept)
    assert sampled(points[:MOST_POINTS]) == list(range(MOST_POINTS))


def test_a_picture_has_a_title_a_description_and_names_its_lines() -> None:
    lines = [Line("before training", [(0, 0.5), (1, 0.6)], ["a", "b"]), Line("after training", [(0, 0.7), (1, 0.8)])]

    svg = plot("auc", "AUC over the passes", "pass", "AUC", lines, ticks=[(0, "a"), (1, "b")])

    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    named = {each.get("id"): each.text for each in root if each.get("id")}
    assert list(named) == (root.get("aria-labelledby") or "").split()
    assert named["auc-title"] == "AUC over the passes"
    texts = [each.text for each in parts(svg, "text")]
    assert {"before training", "after training", "pass", "AUC", "a", "b"} <= set(texts)
    assert [each[0].text for each in parts(svg, "circle")] == [
        "a: 0.5000 before training", "b: 0.6000 before training", "0: 0.7000 after training", "1: 0.8000 after training",
    ]  # fmt: skip


def test_a_single_point_is_a_dot_and_no_point_an_empty_picture() -> None:
    one = plot("k", "t", "x", "y", [Line("l", [(0.0, 0.5)])], ticks=[(0.0, "a")])

    assert len(parts(one, "circle")) == 1
    assert parts(plot("k", "t", "x", "y", []), "circle") == []


@given(POINTS, POINTS)
def test_any_points_make_a_picture_whose_parts_lie_in_it(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    svg = plot("k", "t", "x", "y", [Line("one", first), Line("two", second)], diagonal=True)

    root = ET.fromstring(svg)
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for dot in root.iter("circle"):
        assert 0 <= float(dot.get("cx") or "nan") <= width
        assert 0 <= float(dot.get("cy") or "nan") <= height
