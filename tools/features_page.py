"""docs/features.md: its tables of types and transforms, from the classes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from elastic_ctr.config.features import ALTERNATIVES, NAMED_STEPS, STEP_CLASSES

Row = tuple[str, ...]


def with_tables(page: str, kind_of: Callable[[FieldInfo], str]) -> str:
    """The text of the page with its tables written anew. `kind_of` says what a setting takes."""
    types = {name: kind for name, kind in _named() if "type" in kind.model_fields}
    tables = {
        "types": markdown_table(
            ("type", "gives", "settings"), ((f"`{name}`", *_type(kind)) for name, kind in types.items())
        ),
        "transforms": markdown_table(("step", "result"), _steps()),
    }
    tables["types"] += ["", *markdown_table(("setting", "of", "takes", "effect"), _settings(types, kind_of))]
    for name, table in tables.items():
        found = re.search(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", page, re.DOTALL)
        if found is None:
            raise ValueError(
                f"docs/features.md has no place for its table of {name}: <!-- {name}: … --> <!-- end … -->"
            )
        page = page[: found.start()] + found[1] + "\n" + "\n".join(table) + "\n\n" + found[2] + page[found.end() :]
    return page


def _named() -> Iterator[tuple[str, type[BaseModel]]]:
    yield from ((name.rpartition(":")[2], kind) for name, kind in ALTERNATIVES.items())


def _own(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in kind.model_fields.items() if name != "type"}


def _type(kind: type[BaseModel]) -> Row:
    gives = (kind.__doc__ or "").strip()
    return gives, ", ".join(f"`{name}`" for name in _own(kind))


def _settings(types: dict[str, type[BaseModel]], kind_of: Callable[[FieldInfo], str]) -> Iterator[Row]:
    """Each setting once, with the types that have it; equal names with other descriptions are rows of their own."""
    seen: dict[tuple[str, str], list[str]] = {}
    takes: dict[tuple[str, str], str] = {}
    for name, kind in types.items():
        for key, field in _own(kind).items():
            row = (key, field.description or "")
            seen.setdefault(row, []).append(name)
            takes[row] = kind_of(field).removesuffix(" or null") + (", required" if field.is_required() else "")
    for (key, description), names in seen.items():
        yield f"`{key}`", ", ".join(names), takes[key, description], description


def _steps() -> Iterator[Row]:
    for name, result in NAMED_STEPS.items():
        yield f"`{name}`", result
    for kind in STEP_CLASSES:
        [field] = kind.model_fields.values()
        yield (kind.__doc__ or "").strip(), field.description or ""


def markdown_table(head: Row, rows: Any) -> list[str]:
    return [
        f"| {' | '.join(row)} |"
        for row in (head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows))
    ]
