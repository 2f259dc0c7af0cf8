"""The size of a JSON document in memory, told from its bytes: parsers make an object of every few bytes, and may be asked only then.

A value costs 16 to 100 bytes as an object of Python, however short its text is. Each value but the outermost stands behind one of the
marks `{ [ , :`, so a bound of marks is one of values. Bytes that are no JSON are counted, too; the parser refuses them.
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
    """Marks outside of texts, and those of them that stand behind a name."""

    all: int
    names: int


class TooManyValues(ValueError):
    """The document would become more objects than its reader takes: a sentence."""


def marks_of(document: bytes, most: int) -> Marks:
    """The caller parses the document next. Raises TooManyValues above `most` marks."""
    found, names = _count(np.frombuffer(document, np.uint8))
    if found > most:
        raise TooManyValues(
            f"the JSON has {found} values, names and brackets; {most} are the most, send several smaller ones"
        )
    return Marks(int(found), int(names))


def repeated_name(document: bytes, parsed: object, names: int, known: Collection[str] | None = None) -> str | None:
    """A name that one object of a valid document has twice, of which parsers keep the last value alone; of `known` names if they are given.

    `parsed` is the document, and `names` those that `marks_of` has found in it.
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

    # Of nesting that deep no reader takes a value.
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
