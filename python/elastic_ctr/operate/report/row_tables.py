"""Tables of the rows in the sparse table: at each pserver after the last save, and over all saves."""

from collections.abc import Iterable

from elastic_ctr.operate.report.document import TablePart, Training
from elastic_ctr.operate.report.html import Html, element, joined, table

_FIGURES = ("rows", "new", "expired", "bytes")
_COLUMNS = ("rows", "new", "expired", "checkpoint bytes")


def rows_of_table(training: Training) -> Html:
    """Return the tables. Passes without a save, or saved by an earlier release, are left out."""
    saved = [(each.id, each.table) for each in reversed(training.passes) if each.table]
    if not saved:
        return element("p", "No save has counted the rows of the table yet.", class_="none")
    name, last = saved[0]
    memory = {each.index: each.memory_bytes for each in training.pservers}
    by_pserver = [(str(index), *_figures(part), _count(memory.get(index))) for index, part in enumerate(last)]
    by_pass = [(each, *map(_count, sums(parts))) for each, parts in saved]
    note = "New: created since the save before. Expired: deleted by the shrink of a day end. Other saves delete no row."
    return joined(
        [
            table(f"Pservers, after the save of {name}", ("pserver", *_COLUMNS, "memory bytes"), by_pserver),
            table("Rows after each save, newest first", ("pass", *_COLUMNS), by_pass),
            element("p", note, class_="none"),
        ]
    )


def sums(parts: Iterable[TablePart]) -> tuple[int | None, ...]:
    """Return rows, new, expired and bytes summed over all pservers; None for a sum with an unknown part."""
    columns = zip(*([getattr(part, name) for name in _FIGURES] for part in parts), strict=True)
    return tuple(None if None in column else sum(column) for column in columns)


def _figures(part: TablePart) -> tuple[str, ...]:
    return tuple(_count(getattr(part, name)) for name in _FIGURES)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
