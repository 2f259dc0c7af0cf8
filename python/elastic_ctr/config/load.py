"""Loads settings from a file, or reports one sentence for each error in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from elastic_ctr.config.helm_yaml import Dumper, Loader, NotForHelm
from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import sentences

S = TypeVar("S", bound=Section)


class ConfigRefused(ValueError):
    """The file cannot be used. The message has one line for each error."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Raises ConfigRefused."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as failed:
        raise ConfigRefused(f"{path} cannot be read: {failed.strerror}") from failed
    except UnicodeDecodeError as wrong:
        raise ConfigRefused(f"{path} is not text in UTF-8") from wrong


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the settings in a text. Raises ConfigRefused, whose message begins with the name."""
    try:
        given = yaml.load(text, Loader=Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as wrong:
        where = getattr(wrong, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise ConfigRefused(f"{name}{line} is not YAML: {getattr(wrong, 'problem', wrong)}") from wrong
    except NotForHelm as wrong:
        raise ConfigRefused(f"{name}: {wrong}") from wrong
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as wrong:
        # PyYAML does not catch Python's errors for some tags, numbers and depths: !!binary é, 5000 digits, 10,000 brackets.
        raise ConfigRefused(
            f"{name} holds something that cannot be a setting ({type(wrong).__name__}: {wrong})"
        ) from wrong
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ConfigRefused(f"{name} holds a {type(given).__name__} where settings by name belong")
    return given


def load(kind: type[S], path: Path) -> S:
    """Return the settings in a file. Raises ConfigRefused with one sentence for each error."""
    return settings(kind, read_yaml(path), str(path))


def settings(
    kind: type[S], given: Mapping[str, Any], name: str, files: Mapping[str, Mapping[str, Any]] | None = None
) -> S:
    """Return the settings. Raises ConfigRefused, whose message names the last of the merged `files` that has the wrong key."""
    try:
        # Strict, as the chart's schema is: only camelCase names are accepted, and "64" is no number.
        return kind.model_validate(_frozen(_without_nulls(given, kind)), strict=True, by_alias=True, by_name=False)
    except ValidationError as wrong:
        named = []
        for error, sentence in zip(wrong.errors(), sentences(wrong, kind), strict=True):
            holders = [each for each, content in (files or {}).items() if error["loc"] and _has(content, error["loc"])]
            named.append(f"{holders[-1] if holders else name}: {sentence}")
        raise ConfigRefused("\n".join(named)) from wrong


def _without_nulls(given: Any, kind: type[BaseModel]) -> Any:
    """Drop nulls: with a null Helm removes its default, and the class has the same one. Free maps are kept as they are."""
    if not isinstance(given, Mapping):
        return given
    fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    kept = {}
    for key, value in given.items():
        if value is None and key in fields:
            continue
        below = fields.get(key)
        kept[key] = _without_nulls(value, below) if isinstance(below, type) and issubclass(below, Section) else value
    return kept


class _List(tuple[Any, ...]):
    """A tuple, as strict fields need it, which error messages show as the list in the file."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(list(self))


def _frozen(given: Any) -> Any:
    """Return the value with whole floats as ints, as in JSON, and lists as tuples."""
    if isinstance(given, Mapping):
        return {key: _frozen(value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return _List(map(_frozen, given))
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _has(content: Any, place: tuple[int | str, ...]) -> bool:
    for step in place:
        if not isinstance(content, Mapping) or step not in content:
            return False
        content = content[step]
    return True


def dump(file: Section) -> str:
    """Return YAML that `load` reads back to the same settings."""
    return yaml.dump(file.model_dump(mode="json", by_alias=True), Dumper=Dumper, sort_keys=False, width=1000)
