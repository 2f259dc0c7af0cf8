"""A bound on the memory that a JSON document takes once parsed, counted in its bytes before a parser makes an object every few bytes.

A value costs 16 to 100 bytes as a Python object, however short its text is. Each value but the outermost follows one of the
marks `{ [ , :`, so a bound on marks bounds the values. Invalid JSON is counted too; the parser rejects it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from elastic_ctr.machine_code.compiled import compiled

_QUOTE, _BACKSLASH, _BEGIN, _OPEN, _COMMA, _COLON = (ord(sign) for sign in '"\\{[,:')


class Marks(NamedTuple):
    """The number of marks outside of strings, and the number of names, which are the marks `:`."""

    all: int
    names: int


class TooManyValues(ValueError):
    """The document would become more objects than its reader accepts; the text is a sentence for the sender."""


def marks_of(document: bytes, most: int) -> Marks:
    """Count the marks before the caller parses the document. Raises TooManyValues above `most` marks."""
    found, names = _count(np.frombuffer(document, np.uint8))
    if found > most:
        raise TooManyValues(
            f"the JSON has {found} values, names and brackets; {most} are the most, send several smaller ones"
        )
    return Marks(int(found), int(names))


def repeated_name(document: bytes, parsed: object, names: int, known: Collection[str] | None = None) -> str | None:
    """Return a name that one object of a valid document has twice, as parsers keep only its last value; None without one.

    If `known` is given, other names are ignored. `parsed` is the document, `names` the count that `marks_of` found in it.
    """
    if _names_in(parsed) == names:
        return None
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in pairs:
            if name in seen and (known is None or name in known):
                found.append(name)
            seen[name] = value
        return seen

    # No reader accepts a value from a document that is nested so deeply.
    with suppress(RecursionError):
        json.loads(document, object_pairs_hook=note)
    return found[0] if found else None


def _names_in(parsed: object) -> int:
    names, left = 0, [parsed]
    while left:
        value = left.pop()
        if type(value) is dict:
            names += len(value)
            left += [each for each in value.values() if type(each) is dict or type(each) is list]
        elif type(value) is list:
            left += [each for each in value if type(each) is dict or type(each) is list]
    return names


@compiled
def _count(data: Any) -> Any:
    marks = np.int64(0)
    names = np.int64(0)
    inside = False
    at = 0
    while at < data.size:
        sign = data[at]
        if inside:
            if sign == _BACKSLASH:
                at += 1
            elif sign == _QUOTE:
                inside = False
        elif sign == _QUOTE:
            inside = True
        elif sign == _COLON:
            names += 1
        elif sign in (_COMMA, _OPEN, _BEGIN):
            marks += 1
        at += 1
    return marks + names, names
