"""The text of statistics, and their plot, for `elastic-ctr analyze`."""

from importlib import import_module
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from elastic_ctr.features.statistics.document import Statistics

_SHOWN_VALUES = 3
_PLOTTED_VALUES = 20
_PLOTTED_BINS = 64
_COLUMNS = 4


class PlotterAbsent(Exception):
    """matplotlib is not installed."""


def statistics_table(statistics: Statistics) -> Group:
    """A line for each column."""
    texts = _table(
        "text", "rows", "missing", "values", "distinct", "mean bytes", "most frequent", left=("most frequent",)
    )
    for name, text in statistics.texts.items():
        most = [f"{_short(value)} {count / text.values:.1%}" for value, count in text.top[:_SHOWN_VALUES]]
        texts.add_row(
            Text(name),
            f"{text.rows:,}",
            f"{text.missing_share:.1%}",
            f"{text.values:,}",
            f"{text.distinct:,}",
            f"{text.mean_bytes:.1f}",
            Text(", ".join(most) or "-"),
        )
    numbers = _table("number", "rows", "missing", "distinct", "min", "quarter", "median", "three quarters", "max", "mean", "deviation")  # fmt: skip
    for name, number in statistics.numbers.items():
        facts = (
            [number.min, *map(number.quantile, (0.25, 0.5, 0.75)), number.max, number.mean, number.deviation]
            if number.values
            else [None] * 7
        )
        numbers.add_row(
            Text(name),
            f"{number.rows:,}",
            f"{number.missing_share:.1%}",
            f"{number.distinct:,}",
            *("-" if each is None else f"{each:.5g}" for each in facts),
        )
    return Group(*(each for each in (texts, numbers) if each.row_count))


def plot(statistics: Statistics, picture: Path) -> None:
    """Write a PNG: a histogram of each number between its 1st and 99th hundredth, bars of the most frequent values of each text.

    Raises:
        PlotterAbsent: a sentence with the package to install.
    """
    try:
        import_module("matplotlib").use("Agg")
        plt = import_module("matplotlib.pyplot")
    except ModuleNotFoundError as cause:
        raise PlotterAbsent(
            f"--plot needs {cause.name}, which is not installed: pip install matplotlib, or leave --plot out"
        ) from cause
    columns = len(statistics.numbers) + len(statistics.texts)
    rows = max(-(-columns // _COLUMNS), 1)
    figure, grid = plt.subplots(rows, _COLUMNS, figsize=(4 * _COLUMNS, 2.5 * rows), squeeze=False)
    axes = iter(grid.flat)
    for name, number in statistics.numbers.items():
        panel = next(axes)
        panel.set_title(name, fontsize=8)
        if number.values:
            middle = number.quantiles[len(number.quantiles) // 100 : -(len(number.quantiles) // 100)]
            panel.hist(middle, bins=_PLOTTED_BINS)
    for name, text in statistics.texts.items():
        panel = next(axes)
        panel.set_title(name, fontsize=8)
        most = text.top[:_PLOTTED_VALUES]
        panel.barh([_short(value).replace("$", r"\$") for value, _ in most], [count / text.values for _, count in most])
        panel.invert_yaxis()
    for panel in grid.flat:
        panel.tick_params(labelsize=6)
    for panel in axes:
        panel.set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)


def _table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        shown.add_column(name, justify="left" if place == 0 or name in left else "right")
    return shown


def _short(value: str, most: int = 20) -> str:
    """Return a value on one line, because values may contain any character."""
    plain = "".join(each if each.isprintable() else "�" for each in value)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
