"""The text of statistics, and their plot, for `elastic-ctr analyze`."""

from importlib import import_module
from pathlib import Path

from rich.console import Group
from rich.text import Text

from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.operate.fitted_text import ruled_table

_SHOWN_VALUES = 3
_PLOTTED_VALUES = 20
_PLOTTED_BINS = 64
_COLUMNS = 4


def statistics_table(statistics: Statistics) -> Group:
    """A line for each column."""
    names = ("text", "rows", "missing", "values", "distinct", "mean bytes", "most frequent")
    texts = ruled_table(names, left=("text", "most frequent"))
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
    of_numbers = ("number", "rows", "missing", "distinct", "min", "quarter", "median", "three quarters", "max", "mean", "deviation")  # fmt: skip
    numbers = ruled_table(of_numbers, left=("number",))
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
    It needs matplotlib.
    """
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
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


def _short(value: str, most: int = 20) -> str:
    """Return a value on one line, because values may contain any character."""
    plain = "".join(each if each.isprintable() else "�" for each in value)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
