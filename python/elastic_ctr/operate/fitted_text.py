"""Text that fits a width and height: sentences wrap, tables drop columns, and no number is cut."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from elastic_ctr.operate.text_table import Marked, TextTable

_GAP = 2
_PIPE_WIDTH = 1000
# The pieces of a word that is too long for its line; a run of digits, with its points and signs, stays whole.
_PIECES = re.compile(r"[+-]?\d[\d.,:e%+-]*|.", re.DOTALL)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a sentence into lines. A word that is wider than a line is broken, but never inside a number."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in paragraph.split():
            parts = [word] if cell_len(word) <= width else _broken(word, width)
            for place, part in enumerate(parts):
                joined = part if not line else f"{line} {part}"
                if place == 0 and cell_len(joined) <= width:
                    line = joined
                    continue
                lines += [line] if line else []
                line = part
        lines.append(line)
    return lines


def _broken(word: str, width: int) -> list[str]:
    parts = [""]
    for piece in _PIECES.findall(word):
        if parts[-1] and cell_len(parts[-1]) + cell_len(piece) > width:
            parts.append("")
        parts[-1] += piece
    return parts


def shortened(text: str, width: int) -> str:
    """Shorten a name that is too long by `…`, before a number rather than within it."""
    if cell_len(text) <= width:
        return text
    kept = ""
    for piece in _PIECES.findall(text):
        if cell_len(kept) + cell_len(piece) > width - 1:
            break
        kept += piece
    return f"{kept}…"


@dataclass(frozen=True)
class Sentence:
    """A bold name, and a text after it that wraps in its own column."""

    name: str
    text: str
    style: str = ""
    indent: int = 11

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # On a narrow screen the text is below its name.
        beside = options.max_width >= 2 * self.indent
        indent = self.indent if beside else min(2, options.max_width - 1)
        lines = wrapped(self.text, max(1, options.max_width - indent))
        if self.name and not beside:
            yield Text(self.name, style="bold", no_wrap=True, overflow="ignore")
        for place, line in enumerate(lines):
            name = f"{self.name:<{indent}}" if place == 0 and beside else " " * indent
            yield Text.assemble((name, "bold"), (line, self.style), no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class FittedTable:
    """A table without frame. If it is too wide, columns are dropped; the first one, which names the row, is shortened last.

    The mark of a cell is the name of its colour.
    """

    table: TextTable
    indent: int = 11

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self.indent if options.max_width >= 4 * self.indent else 0
        room = options.max_width - indent
        widths = [
            max(cell_len(column.name), *(cell_len(row[at]) for row in self.table.rows), 0)
            for at, column in enumerate(self.table.columns)
        ]
        shown = self._fitting(widths, room)
        if shown == [0]:
            widths[0] = min(widths[0], room)
        yield self._line([column.name for column in self.table.columns], shown, widths, indent, "bold")
        for row in self.table.rows:
            yield self._line(row, shown, widths, indent, "")

    def _fitting(self, widths: list[int], room: int) -> list[int]:
        """Return the indices of the columns that are shown, in order."""
        shown = list(range(len(self.table.columns)))
        while len(shown) > 1 and sum(widths[at] + _GAP for at in shown) - _GAP > room:
            # Drop the last one of the columns with the highest `need`.
            shown.remove(max(shown[1:], key=lambda at: (self.table.columns[at].need, at)))
        return shown

    def _line(self, cells: Sequence[str], shown: list[int], widths: list[int], indent: int, style: str) -> Text:
        line = Text(" " * indent, no_wrap=True, overflow="ignore")
        for place, at in enumerate(shown):
            given = cells[at]
            cell = Text(shortened(given, widths[at]), given.mark if isinstance(given, Marked) else style)
            blanks = " " * (widths[at] - cell_len(cell.plain))
            if place:
                line.append(" " * _GAP)
            line.append_text(
                Text.assemble(blanks, cell) if self.table.columns[at].right else Text.assemble(cell, blanks)
            )
        line.rstrip()
        return line


def output_console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or standard error. In a pipe rows and sentences stay on one line."""
    out = Console(stderr=stderr)
    return out if out.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)


def ruled_table(names: Iterable[str], left: Iterable[str]) -> Table:
    """Return a table with a rule below its head, whose columns are aligned to the right but those in `left`."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in names:
        shown.add_column(name, justify="left" if name in left else "right")
    return shown


def lines_of(parts: Iterable[RenderableType], console: Console, width: int) -> Iterator[Text]:
    """Yield the lines of the parts, rendered at a width, as text."""
    options = console.options.update(width=width, height=None)
    for part in parts:
        for segments in console.render_lines(part, options, pad=False):
            line = Text(no_wrap=True, overflow="ignore")
            for segment in segments:
                line.append(segment.text, segment.style)
            yield line
