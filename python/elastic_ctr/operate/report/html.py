"""HTML in which only these functions write tags: all other text is escaped, whatever its source."""

import math
import time
import unicodedata
from collections.abc import Sequence
from html import escape

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


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ()) -> Html:
    """Return a table of rows, newest first, with the older ones folded. Columns in `words` are text, the others numbers."""
    if not rows:
        return element("p", f"{caption.partition(',')[0]}: none.", class_="none")
    is_text = [name in words for name in columns]
    shown, folded = rows[:OPEN_ROWS], rows[OPEN_ROWS:MOST_ROWS]
    parts = [_table(caption, columns, shown, is_text)]
    if folded:
        title = f"{caption}: {len(folded):,} more"
        parts.append(element("details", element("summary", title), _table(title, columns, folded, is_text)))
    if left_out := len(rows) - len(shown) - len(folded):
        parts.append(element("p", f"{left_out:,} older ones are left out.", class_="none"))
    return joined(parts)


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> Html:
    heads = [
        element("th", name, scope="col", class_="w" if words else None)
        for name, words in zip(columns, is_text, strict=True)
    ]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(
                element("td", cell, class_="w" if words else None)
                for cell, words in zip(row[1:], is_text[1:], strict=True)
            ),
        )
        for row in rows
    ]
    found = element(
        "table", element("caption", caption), element("thead", element("tr", *heads)), element("tbody", *body)
    )
    # tabindex lets the keyboard scroll the table.
    return element("div", found, class_="scroll", tabindex=0, role="region", aria_label=caption)


def number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def moment(value: float | None) -> str:
    """Return unix seconds as a time in UTC; a dash if they are not valid."""
    try:
        return "-" if value is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value))
    except (OverflowError, ValueError, OSError):
        return "-"
