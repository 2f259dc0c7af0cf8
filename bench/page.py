"""Tables that benches write into pages of docs, each between two marks of its own."""

import re
from collections.abc import Iterable


def with_table(text: str, page: str, name: str, lines: Iterable[str]) -> str:
    """The text of a page with this table between `<!-- name: … -->` and `<!-- end of name -->`. Raises ValueError without the marks."""
    place = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page} has no place for the table: <!-- {name}: … --> <!-- end of {name} -->")
    made = "\n".join(lines)
    return place.sub(lambda found: f"{found[1]}\n{made}\n\n{found[2]}", text)
