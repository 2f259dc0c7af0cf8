"""Names of features made from names of columns, and text in YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

_NOT_IN_A_NAME = re.compile(r"[^!-9;-~]|^<<$")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that YAML does not read as text.
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
# Characters that JSON writes unescaped, and that YAML does not read as themselves.
_UNREADABLE = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def names_of_features(columns: Sequence[str]) -> list[str]:
    """Return a unique name for each column: its own if it is valid for a feature, else a similar one, or `column_5` for the fifth."""
    possible = [
        (_NOT_IN_A_NAME.sub("_", column) or "_") if column.isascii() else f"column_{number}"
        for number, column in enumerate(columns, 1)
    ]
    # YAML would read these names as truth values.
    possible = [f"{name}_" if name in {"true", "false"} else name for name in possible]
    taken = {column for column, name in zip(columns, possible, strict=True) if column == name}
    names = []
    for column, name in zip(columns, possible, strict=True):
        names.append(name if column == name else free_name(name, taken))
        taken.add(names[-1])
    return names


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name` with the first number appended that is not taken."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def yaml_text(text: str) -> str:
    """Return text for a YAML file, in quotes if it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT:
        return text
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
