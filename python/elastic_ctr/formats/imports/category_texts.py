"""Notes on a text column of CSV or TSV whose texts a program would write differently in JSON.

The key of a category is that of its text. pandas writes 7 as `7.0` in a column with gaps, and true as `True`; a request with 7 or
true gets another key then, and a request with 12.5 is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NUMBER = r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"
"""A number in CSV and TSV, as `readers.loops.read_numbers` has it."""

_NUMBER = re.compile(NUMBER)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_TRUTHS = ("true", "false")


def note_of_texts(column: str, texts: Iterable[str]) -> str | None:
    """Return a sentence if all texts are numbers and some have a point, or all are truth values unlike JSON's; else None."""
    values = list(texts)
    if all(_NUMBER.fullmatch(each) for each in values):
        strange = next((each for each in values if not _WHOLE.fullmatch(each)), None)
        way_out = "; if it holds numbers, make it numeric or give it `round`"
    elif all(each.lower() in _TRUTHS for each in values):
        strange, way_out = next((each for each in values if each not in _TRUTHS), None), ""
    else:
        return None
    if strange is None:
        return None
    told = f"the column {column!r} is read as text, and a request must send its texts as they are"
    return f"{told}: {strange!r} in quotes, not {_in_json(strange)}{way_out}."


def _in_json(text: str) -> str:
    """Return the value that a program would send instead."""
    return text.lower() if text.lower() in _TRUTHS else f"{float(text):.15g}"
