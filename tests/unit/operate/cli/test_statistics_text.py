"""What `elastic-ctr analyze` shows."""

from io import StringIO

from rich.console import Console, RenderableType

from elastic_ctr.features.statistics.collector import Collector, merged
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.operate.cli.statistics_text import statistics_table


def some() -> Statistics:
    inputs = InputColumns((TextInput("city", ""), TextInput("[red]tags", "")), ("price", "none"))
    collector = Collector(inputs)
    rows = [(["Malmö", "a\nb[/]"], [1.5, float("nan")]), (["Malmö", ""], [2.5, float("nan")])]
    collector.add(cells_of([([text.encode() for text in texts], numbers) for texts, numbers in rows], inputs))
    return merged({"all": collector.to_bytes()})


def shown(renderable: RenderableType) -> list[list[str]]:
    out = StringIO()
    Console(file=out, width=160).print(renderable)
    return [line.split() for line in out.getvalue().splitlines()]


def test_every_column_has_a_line() -> None:
    lines = shown(statistics_table(some()))

    assert ["city", "2", "0.0%", "2", "1", "6.0", "Malmö", "100.0%"] in lines
    assert ["[red]tags", "2", "50.0%", "1", "1", "6.0", "a�b[/]", "100.0%"] in lines
    assert ["price", "2", "0.0%", "2", "1.5", "1.5", "1.5", "2.5", "2.5", "2", "0.5"] in lines
    assert ["none", "2", "100.0%", "0", *["-"] * 7] in lines
