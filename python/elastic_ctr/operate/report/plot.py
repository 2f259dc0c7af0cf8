"""Line plots as inline SVG. Colours come from the page's style sheet, so that they follow light, dark and print."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from elastic_ctr.operate.report.html import Html, element, joined
from elastic_ctr.runtime.line_plot import Points, axis_range, share

# Points of one line: up to this all points are drawn; above it, the lowest and the highest of each stretch.
MOST_POINTS = 200
# Lines of at most so many points have dots with tooltips.
_DOTS = 48
_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 62
_TICKS = 5
# No figure of a run is larger, so a larger one, or NaN, is ignored as an error.
_LARGEST = 1e9


_Place = Callable[[tuple[float, float]], tuple[float, float]]
_Ticks = Sequence[tuple[float, str]] | None


class Line(NamedTuple):
    """`names` are the points' names in tooltips."""

    name: str
    points: Points
    names: Sequence[str] = ()


def sampled(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[int]:
    """Return the indices of at most `most` points, with the extremes of each stretch, so that a line keeps its peaks."""
    if len(points) <= most:
        return list(range(len(points)))
    stretches = most // 2
    kept = {0, len(points) - 1}
    for number in range(1, stretches):
        stretch = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        kept |= {min(stretch, key=lambda at: points[at][1]), max(stretch, key=lambda at: points[at][1])}
    return sorted(kept)


def plot(
    key: str, title: str, x: str, y: str, lines: Sequence[Line], *, ticks: _Ticks = None, diagonal: bool = False
) -> Html:
    """Return a plot. `key` must be unique on the page. `ticks` are the x axis's labels in place of numbers."""
    lines = [_finite(each) for each in lines]
    points = [point for each in lines for point in each.points]
    across, up = axis_range(point[0] for point in points), axis_range(point[1] for point in points)
    if diagonal:
        across = up = axis_range([*across, *up])
    if ticks is not None:
        positions = [at for at, _ in ticks]
        across = (min(positions), max(positions)) if len(set(positions)) > 1 else across

    def at(point: tuple[float, float]) -> tuple[float, float]:
        horizontal = _LEFT + share(point[0], across) * (_WIDTH - _LEFT - _RIGHT)
        return round(horizontal, 1), round(_HEIGHT - _BOTTOM - share(point[1], up) * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [*_axes(across, up, at, ticks), *_labels(x, y)]
    if diagonal:
        (left, low), (right, high) = at((across[0], up[0])), at((across[1], up[1]))
        parts.append(element("path", d=f"M{left},{low}L{right},{high}", class_="diagonal"))
    for place, line in enumerate(lines):
        parts += _drawn(place, line, at)
    described = (
        f"{y} over {x}, {' and '.join(each.name for each in lines) or 'no line'}; the numbers are in the table below"
    )
    return element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", described, id=f"{key}-about"),
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="plot",
        aria_labelledby=f"{key}-title {key}-about",
    )


def _finite(line: Line) -> Line:
    places = [at for at, point in enumerate(line.points) if all(abs(each) < _LARGEST for each in point)]
    kept = [places[at] for at in sampled([line.points[at] for at in places])]
    return Line(line.name, [line.points[at] for at in kept], [line.names[at] for at in kept] if line.names else ())


def _axes(across: tuple[float, float], up: tuple[float, float], at: _Place, ticks: _Ticks) -> list[Html]:
    parts = []
    for number in range(_TICKS + 1):
        value = up[0] + number / _TICKS * (up[1] - up[0])
        _, vertical = at((across[0], value))
        parts += [
            element("path", d=f"M{_LEFT},{vertical}H{_WIDTH - _RIGHT}", class_="grid"),
            element("text", f"{value:.4g}", x=_LEFT - 6, y=vertical + 4, text_anchor="end"),
        ]
    if ticks is None:
        values = (across[0] + number / _TICKS * (across[1] - across[0]) for number in range(_TICKS + 1))
        ticks = [(value, f"{value:.4g}") for value in values]
    for number, (value, name) in enumerate(ticks):
        horizontal, _ = at((value, up[0]))
        last = number == len(ticks) - 1 and number > 0
        anchor = "end" if last and len(name) > 5 else "middle" if number or len(name) <= 5 else "start"
        parts.append(element("text", name, x=horizontal, y=_HEIGHT - _BOTTOM + 16, text_anchor=anchor))
    return parts


def _labels(x: str, y: str) -> list[Html]:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        element("text", x, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - _BOTTOM + 33, text_anchor="middle"),
        element("text", y, transform=f"translate(12 {middle}) rotate(-90)", text_anchor="middle"),
    ]


def _drawn(place: int, line: Line, at: _Place) -> list[Html]:
    dots = [at(point) for point in line.points]
    # The legend is below the axis.
    left = _LEFT + place * 170
    parts = [
        element("path", d=f"M{left},{_HEIGHT - 10}h24", class_=f"line line{place}"),
        element("text", line.name, x=left + 30, y=_HEIGHT - 6),
    ]
    if len(dots) > 1:
        path = "M" + "L".join(f"{horizontal},{vertical}" for horizontal, vertical in dots)
        parts.append(element("path", d=Html(path), class_=f"line line{place}"))
    if len(dots) <= _DOTS:
        names = line.names or [f"{point[0]:.4g}" for point in line.points]
        parts += [
            element(
                "circle",
                element("title", f"{name}: {point[1]:.4f} {line.name}"),
                cx=horizontal,
                cy=vertical,
                r=3,
                class_=f"dot{place}",
            )
            for (horizontal, vertical), point, name in zip(dots, line.points, names, strict=True)
        ]
    return parts


def figure(title: str, picture: Html, numbers: Html) -> Html:
    """Return a picture with its title and, folded, its numbers."""
    return element(
        "figure", element("figcaption", title), picture, element("details", element("summary", "Numbers"), numbers)
    )


def side_by_side(*parts: Html) -> Html:
    return element("div", joined(parts), class_="grid")
