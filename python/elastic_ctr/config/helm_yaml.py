"""Reads YAML as Helm does, so that one values file means the same on one machine and in a cluster.

Helm parses YAML 1.1 in Go (sigs.k8s.io/yaml) and converts it to JSON: `y` and `no` are booleans, `02134` is the octal
number 1116, `1e3` is 1000, and `10:30` or `2020-01-01` are strings. PyYAML's own rules differ in each of these.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

_TRUTHS = {
    each: truth
    for truth, words in ((True, "y yes true on"), (False, "n no false off"))
    for word in words.split()
    for each in (word, word.capitalize(), word.upper())
}
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WITH_BASE = re.compile(r"([-+]?)0([xXoObB]?)([0-9a-fA-F]+)")
_BASES = {"x": 16, "o": 8, "": 8, "b": 2}
# Go parses a number of more characters as a float.
_DIGITS = 19
_OF_YAML = "tag:yaml.org,2002:"
_MERGE = f"{_OF_YAML}merge"


class NotForHelm(ValueError):
    """Helm would refuse or misread the file. The message does not have the file's name."""


def number(text: str) -> int | float | None:
    """Return the number that Helm reads, or None if it reads a string. A whole number is an int in any notation, as in JSON."""
    # Go removes underscores, except from a number that begins with a point.
    plain = text if text.startswith(".") else text.replace("_", "")
    if based := _WITH_BASE.fullmatch(plain):
        sign, base, digits = based.groups()
        try:
            return int(f"{sign}{digits}", _BASES[base.lower()])
        except ValueError:
            pass  # 08 is no octal number: it is read as decimal 8
    if not _DECIMAL.fullmatch(plain):
        return None
    if len(plain) <= _DIGITS and plain.lstrip("+-").isdecimal():
        return int(plain)
    found = float(plain)
    if not math.isfinite(found):
        return None  # Go reads 1e400 as a string
    return int(found) if found.is_integer() else found


class Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, where Helm silently takes the last one."""


class Dumper(yaml.SafeDumper):
    """Quotes a string that the Loader would read as another type."""


# Drop all of PyYAML's own rules.
Loader.yaml_implicit_resolvers = {}
Dumper.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", "|".join(_TRUTHS), "yYnNtTfFoO"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|[-+.0-9].*", "-+.0123456789"),
):
    for _kind in (Loader, Dumper):
        _kind.add_implicit_resolver(f"{_OF_YAML}{_tag}", re.compile(rf"(?:{_pattern})\Z", re.DOTALL), list(_first))

# The Loader reads whole numbers by its rule for floats, so the Dumper writes them under that tag.
Dumper.add_representer(int, lambda dumper, whole: dumper.represent_scalar(f"{_OF_YAML}float", str(whole)))


def _mapping(loader: Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag != _MERGE:
            key = _key(loader, key_node)
            if key in seen:
                raise NotForHelm(
                    f"{key!r} stands on line {seen[key]} and again on line {key_node.start_mark.line + 1}; keep one"
                )
            seen[key] = key_node.start_mark.line + 1
    loader.flatten_mapping(node)
    return {_key(loader, key): loader.construct_object(value, deep=True) for key, value in node.value}


def _key(loader: Loader, node: yaml.Node) -> str:
    """Return the string that Helm makes of a key: `true` of y, `1116` of 02134."""
    if isinstance(node, yaml.ScalarNode) and _is_endless(node.value):
        return str(node.value)
    given = loader.construct_object(node, deep=True)
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, (str, int, float)):
        return str(given)
    what = "null" if given is None else "a list or a mapping"
    raise NotForHelm(f"the key on line {node.start_mark.line + 1} is {what}; give it a name")


def _is_endless(text: str) -> bool:
    return text.lower().lstrip("+-") in {".inf", ".nan"}


def _number(_: Loader, node: yaml.ScalarNode) -> int | float | str:
    if _is_endless(node.value):
        raise NotForHelm(f"{node.value} on line {node.start_mark.line + 1} is no number to Helm; write a finite one")
    found = number(node.value)
    return node.value if found is None else found


def _text(_: Loader, node: yaml.ScalarNode) -> str:
    r"""Return the string. Raises NotForHelm for an unpaired surrogate, such as the escape `\\ud83d`."""
    if not node.value.isascii() and any("\ud800" <= each <= "\udfff" for each in node.value):
        raise NotForHelm(
            f"the text on line {node.start_mark.line + 1} has half a character; write the character itself"
        )
    return str(node.value)


for _tag, _construct in (
    ("map", _mapping),
    ("str", _text),
    ("float", _number),
    ("int", _number),
    ("bool", lambda _, node: _TRUTHS[node.value]),
    ("timestamp", _text),
    # Helm writes a lone `=` or `<<` in a list without quotes.
    ("value", _text),
    ("merge", _text),
):
    Loader.add_constructor(f"{_OF_YAML}{_tag}", _construct)
