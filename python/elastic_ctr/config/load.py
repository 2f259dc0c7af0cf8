"""From a file to settings, or to one sentence for each thing wrong with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from elastic_ctr.config.helm_yaml import Dumper, Loader, NotForHelm
from elastic_ctr.config.pod_rules import NEEDED_BY_TEMPLATES
from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import sentences

S = TypeVar("S", bound=Section)


class ConfigRefused(ValueError):
    """The file cannot be used: one sentence a line."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Raises ConfigRefused."""
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)  # noqa: S506 (a SafeLoader)
    except OSError as failed:
        raise ConfigRefused(f"{path} cannot be read: {failed.strerror}") from failed
    except UnicodeDecodeError as wrong:
        raise ConfigRefused(f"{path} is not text in UTF-8") from wrong
    except yaml.YAMLError as wrong:
        where = getattr(wrong, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise ConfigRefused(f"{path}{line} is not YAML: {getattr(wrong, 'problem', wrong)}") from wrong
    except NotForHelm as wrong:
        raise ConfigRefused(f"{path}: {wrong}") from wrong
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as wrong:
        # PyYAML lets through what Python says of tags, numbers and depth: !!binary é, 5000 digits, 10,000 brackets.
        raise ConfigRefused(
            f"{path} holds something that cannot be a setting ({type(wrong).__name__}: {wrong})"
        ) from wrong
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ConfigRefused(f"{path} holds a {type(given).__name__} where settings by name belong")
    return given


def load(kind: type[S], path: Path) -> S:
    """Raises ConfigRefused with one sentence for each thing wrong."""
    return settings(kind, read_yaml(path), str(path))


def settings(
    kind: type[S], given: Mapping[str, Any], name: str, files: Mapping[str, Mapping[str, Any]] | None = None
) -> S:
    """Raises ConfigRefused; a refusal names the last of the `files`, merged in this order, that has the key."""
    try:
        # As the chart's schema reads it: by the names of the file alone, and "64" is no number.
        return kind.model_validate(_frozen(_without_nulls(given, kind)), strict=True, by_alias=True, by_name=False)
    except ValidationError as wrong:
        named = []
        for error, sentence in zip(wrong.errors(), sentences(wrong, kind), strict=True):
            holders = [each for each, content in (files or {}).items() if error["loc"] and _has(content, error["loc"])]
            named.append(f"{holders[-1] if holders else name}: {sentence}")
        raise ConfigRefused("\n".join(named)) from wrong


def _without_nulls(given: Any, kind: type[BaseModel], place: str = "") -> Any:
    """A null takes Helm's default of a setting away, and the class's is the same. Below a setting that is a map Helm has no defaults."""
    if not isinstance(given, Mapping):
        return given
    fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    kept = {}
    for key, value in given.items():
        below = fields.get(key)
        is_needed = any(f"{each}.".startswith(f"{place}{key}.") for each in NEEDED_BY_TEMPLATES)
        if value is None and key in fields and not is_needed:
            continue
        if isinstance(below, type) and issubclass(below, Section):
            kept[key] = _without_nulls(value, below, f"{place}{key}.")
        else:
            kept[key] = value
    return kept


class _List(tuple[Any, ...]):
    """What the classes have for a list; a sentence shows it as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(list(self))


def _frozen(given: Any) -> Any:
    """Numbers as JSON has them, and lists as the classes have them."""
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
    """The file that `load` reads back to the same settings."""
    return yaml.dump(file.model_dump(mode="json", by_alias=True), Dumper=Dumper, sort_keys=False, width=1000)
