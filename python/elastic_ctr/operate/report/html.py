"""HTML in which only these functions write tags: all other text is escaped, whatever its source."""

import time
import unicodedata
from collections.abc import Sequence
from html import escape

from elastic_ctr.operate.text_table import Column, Marked, TextTable

# The most characters of one text, because a reason may contain a whole line of a click log.
LONGEST = 600
# The most rows of a table, of which the newest are kept: the number of passes in the master's status.
MOST_ROWS = 1000
# Rows that are visible at first; the others are folded.
OPEN_ROWS = 50


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: str) -> Html:
    """Escape any text. Characters that would be invisible, or that change the reading direction, are replaced by their names."""
    more = "" if len(value) <= LONGEST else f" … ({len(value) - LONGEST:,} more characters)"
    seen = "".join(
        each
        if each.isprintable() or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape", "replace").decode("ascii")
        for each in value[:LONGEST]
    )
    return Html(escape(seen + more))


def element(tag: str, *children: str, **attributes: str | float | None) -> Html:
    """Return an element; an attribute that is None is left out, and `_` in its name becomes `-`."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_safe(str(value) if isinstance(value, float | int) else value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(parts: Sequence[str]) -> Html:
    return Html("".join(map(_safe, parts)))


def _safe(value: str) -> Html:
    return value if isinstance(value, Html) else text(value)


def table(caption: str, given: TextTable) -> Html:
    """Return a table of rows, newest first, with the older ones folded. The mark of a cell is its class."""
    if not given.rows:
        return element("p", f"{caption.partition(',')[0]}: none.", class_="none")
    shown, folded = given.rows[:OPEN_ROWS], given.rows[OPEN_ROWS:MOST_ROWS]
    parts = [_table(caption, given.columns, shown)]
    if folded:
        title = f"{caption}: {len(folded):,} more"
        parts.append(element("details", element("summary", title), _table(title, given.columns, folded)))
    if left_out := len(given.rows) - len(shown) - len(folded):
        parts.append(element("p", f"{left_out:,} older ones are left out.", class_="none"))
    return joined(parts)


def _table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Html:
    classes = [None if at == 0 or column.right else "w" for at, column in enumerate(columns)]
    heads = [
        element("th", column.name, scope="col", class_=kind) for column, kind in zip(columns, classes, strict=True)
    ]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", _cell(cell), class_=kind) for cell, kind in zip(row[1:], classes[1:], strict=True)),
        )
        for row in rows
    ]
    found = element(
        "table", element("caption", caption), element("thead", element("tr", *heads)), element("tbody", *body)
    )
    # tabindex lets the keyboard scroll the table.
    return element("div", found, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(given: str) -> str:
    return element("b", str(given), class_=given.mark) if isinstance(given, Marked) else given


def moment(value: float | None) -> str:
    """Return unix seconds as a time in UTC; a dash if they are not valid."""
    try:
        return "-" if value is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value))
    except (OverflowError, ValueError, OSError):
        return "-"
