"""docs/models.md: its table of settings, from the classes."""

import re
from collections.abc import Callable, Iterator

from features_page import Row, markdown_table
from pydantic.fields import FieldInfo

from elastic_ctr.config.networks import NETWORKS


def with_settings(page: str, kind_of: Callable[[FieldInfo], str], default_of: Callable[[FieldInfo], str]) -> str:
    """The text of the page with its table written anew. `kind_of` says what a setting takes, `default_of` what it is without."""
    found = re.search(r"(<!-- settings: .*? -->\n).*?(<!-- end of settings -->)", page, re.DOTALL)
    if found is None:
        raise ValueError("docs/models.md has no place for its table: <!-- settings: … --> <!-- end of settings -->")
    made = "\n".join(markdown_table(("setting", "of", "takes", "default", "effect"), _settings(kind_of, default_of)))
    return f"{page[: found.start()]}{found[1]}\n{made}\n\n{found[2]}{page[found.end() :]}"


def _settings(kind_of: Callable[[FieldInfo], str], default_of: Callable[[FieldInfo], str]) -> Iterator[Row]:
    """Each setting once, with the networks that have it; equal names with other effects or defaults are rows of their own."""
    seen: dict[Row, list[str]] = {}
    for name, kind in NETWORKS.items():
        for key, field in kind.model_fields.items():
            if key != "name":
                takes = kind_of(field).removesuffix(" or null")
                row = (f"`{field.alias or key}`", takes, default_of(field), field.description or "")
                seen.setdefault(row, []).append(name)
    for (key, takes, default, effect), names in sorted(seen.items(), key=lambda each: -len(each[1])):
        yield key, ", ".join(names), takes, default, effect
