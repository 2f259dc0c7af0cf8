"""Strict reading of JSON requests: every function returns the value in its name or raises a RequestError that names the field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import orjson

from elastic_ctr.machine_code.json_marks import TooManyValues, marks_of, repeated_name
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

MOST_VALUES = 1 << 18
"""Values, names and brackets of a body that becomes objects of Python. All are parsed in one call that holds the GIL: these take 25 MB and
15 ms at most. Everyday bodies become arrays in machine code, and have no such bound.
"""


REQUEST_FIELDS = ("instances", "shared", "candidates", "top")
COUNT_END = 1 << 62


def json_object(body: bytes, known: Collection[str] | None = None) -> dict[str, Any]:
    """Parse the body as a JSON object. NaN, infinities and nesting beyond the parser's limit are refused.

    So are names that an object has twice; with `known`, only names of these.
    """
    try:
        marks = marks_of(body, MOST_VALUES)
        document = orjson.loads(body)
    except TooManyValues as refused:
        raise RequestError(413, str(refused)) from None
    except (orjson.JSONDecodeError, RecursionError) as wrong:
        raise BadRequest(f"the body is not JSON: {wrong}") from None
    if type(document) is not dict:
        raise BadRequest(f"the body is {short_repr(document)}; it must be a JSON object")
    if (name := repeated_name(body, document, marks.names, known)) is not None:
        raise BadRequest(f"{short_repr(name)} is there twice in one object; which of its values counts is not said")
    return document


def fields(value: Any, where: str, required: Collection[str], optional: Collection[str] | None = ()) -> dict[str, Any]:
    """Return a JSON object with these fields and no other; with any others if `optional` is None."""
    if type(value) is not dict:
        raise BadRequest(f"{where} is {short_repr(value)}; it must be an object")
    for name in value if optional is not None else ():
        if name not in required and name not in (optional or ()):
            known = ", ".join((*required, *(optional or ())))
            raise BadRequest(f"{_joined(where, name)} is not known; the fields here are {known}")
    for name in required:
        if name not in value:
            raise BadRequest(f"{_joined(where, name)} is missing")
    return value


def items(value: Any, where: str) -> list[Any]:
    if type(value) is not list:
        raise BadRequest(f"{where} is {short_repr(value)}; it must be a list")
    return value


def text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise BadRequest(f"{where} is {short_repr(value)}; it must be text")
    return value


def count(value: Any, where: str) -> int:
    """Return a whole number, 0 or more, that an array can have as its length."""
    if type(value) is not int or not 0 <= value < COUNT_END:
        raise BadRequest(f"{where} is {short_repr(value)}; it must be a whole number, 0 or more")
    return value


class GivenRows(NamedTuple):
    """The list `name` of a body: its instances, or its candidates, which have `shared` in common. `top` is 0 if all are wanted."""

    name: str
    rows: list[Any]
    shared: Any = None
    top: int = 0

    @property
    def has_shared(self) -> bool:
        return self.name == "candidates"


def given_rows(document: dict[str, Any], max_instances: int, optional: Collection[str] = ()) -> GivenRows:
    """Return the rows of `{"instances": […]}` or `{"shared": …, "candidates": […], "top": n}`. Raises RequestError."""
    if "shared" in document or "candidates" in document:
        fields(document, "", ("shared", "candidates"), ("top", *optional))
        top = top_of(document, "", "candidates")
        found = GivenRows("candidates", items(document["candidates"], "candidates"), document["shared"], top)
    else:
        fields(document, "", ("instances",), optional)
        found = GivenRows("instances", items(document["instances"], "instances"))
    enough_instances(len(found.rows), max_instances, found.name)
    return found


def top_of(given: Mapping[str, object], where: str, what: str) -> int:
    """Return the number of best rows that the answer has, 0 for all. Raises RequestError."""
    top = count(given.get("top", 1), f"{where}top")
    if not top:
        raise BadRequest(f"{where}top is 0; it is the number of best {what} that the answer has, 1 or more")
    return top if "top" in given else 0


def enough_instances(given: int, allowed: int, where: str) -> None:
    if not given:
        raise BadRequest(f"{where} is empty; give at least one instance")
    if given > allowed:
        raise RequestError(413, f"{where} has {given} instances; {allowed} are allowed in one request, send several")


def _joined(where: str, name: str) -> str:
    label = name if len(name) <= 40 else name[:40] + "…"
    if not label.isprintable():
        label = repr(label)
    return f"{where}.{label}" if where else label
