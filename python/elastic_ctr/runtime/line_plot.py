"""Line plots as SVG: the images of the master and of cube have no plotting library, and MLflow shows SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 480, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 56
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_TICKS = 5


def line_plot(title: str, x: str, y: str, lines: Mapping[str, Points], *, diagonal: bool = False) -> str:
    """Return an SVG document with named lines over labelled axes, whose ranges include every point. `diagonal` also draws y = x
    and gives both axes the same range.
    """
    points = [point for line in lines.values() for point in line]
    across, up = axis_range(point[0] for point in points), axis_range(point[1] for point in points)
    if diagonal:
        across = up = axis_range([*across, *up])

    def at(point: tuple[float, float]) -> str:
        horizontal = _LEFT + share(point[0], across) * (WIDTH - _LEFT - _RIGHT)
        return f"{horizontal:.1f},{HEIGHT - _BOTTOM - share(point[1], up) * (HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 24}" text-anchor="middle">{escape(x)}</text>',
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>',
    ]
    for number in range(_TICKS + 1):
        part = number / _TICKS
        here = (across[0] + part * (across[1] - across[0]), up[0] + part * (up[1] - up[0]))
        left, bottom = at((here[0], up[0])).split(",")[0], at((across[0], here[1])).split(",")[1]
        parts += [
            f'<path d="M{_LEFT},{bottom}H{WIDTH - _RIGHT}M{left},{_TOP}V{HEIGHT - _BOTTOM}" stroke="#ddd"/>',
            f'<text x="{left}" y="{HEIGHT - _BOTTOM + 14}" text-anchor="middle">{here[0]:.4g}</text>',
            f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end" dominant-baseline="middle">{here[1]:.4g}</text>',
        ]
    if diagonal:
        ends = f"{at((across[0], up[0]))} {at((across[1], up[1]))}"
        parts.append(f'<polyline points="{ends}" stroke="#888" stroke-dasharray="4" fill="none"/>')
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline points="{" ".join(map(at, line))}" stroke="{colour}" stroke-width="2" fill="none"/>')
        parts += [
            f'<circle cx="{dot.split(",")[0]}" cy="{dot.split(",")[1]}" r="2.5" fill="{colour}"/>'
            for dot in (map(at, line) if len(line) <= 40 else ())
        ]
        parts.append(f'<text x="{_LEFT + 110 * number}" y="{HEIGHT - 6}" fill="{colour}">— {escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def axis_range(values: Iterable[float]) -> tuple[float, float]:
    """Return the (start, end) of an axis with round steps that includes all finite values; 0 to 1 if there are none."""
    found = [each for each in values if math.isfinite(each)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if low == high:
        low, high = low - 0.5, high + 0.5
    step = 10 ** math.floor(math.log10((high - low) / _TICKS))
    # The smallest round step with which the axis reaches from below the lowest value to above the highest.
    ranges = ((math.floor(low / each) * each, each) for each in (step * by for by in (1, 2, 2.5, 5, 10, 20)))
    return next((start, start + _TICKS * each) for start, each in ranges if start + _TICKS * each >= high)


def share(value: float, axis: tuple[float, float]) -> float:
    """Return the position of a value along an axis, 0 at its start and 1 at its end."""
    return (value - axis[0]) / (axis[1] - axis[0])
