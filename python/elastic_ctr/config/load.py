"""From a file to settings, or to one sentence for each thing wrong with it."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import sentences

S = TypeVar("S", bound=Section)


class ConfigRefused(ValueError):
    """The file cannot be used: one sentence a line."""


_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML as Helm reads it: a key given twice is an error, not the last one's."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise ConfigRefused(
                f"the key on line {key_node.start_mark.line + 1} is a list or a mapping; give it a name"
            )
        if key in seen:
            raise ConfigRefused(
                f"{key!r} stands on line {seen[key]} and again on line {key_node.start_mark.line + 1}; keep one"
            )
        seen[key] = key_node.start_mark.line + 1
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# A lone `=` or `<<` in a list, which Helm writes without quotes: PyYAML has a tag for each and no constructor.
for _tag in ("tag:yaml.org,2002:value", _MERGE):
    _Loader.add_constructor(_tag, lambda _, node: node.value)


def read_yaml(path: Path) -> dict[str, Any]:
    """Raises ConfigRefused."""
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except OSError as failed:
        raise ConfigRefused(f"{path} cannot be read: {failed.strerror}") from failed
    except UnicodeDecodeError as wrong:
        raise ConfigRefused(f"{path} is not text in UTF-8") from wrong
    except yaml.YAMLError as wrong:
        where = getattr(wrong, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise ConfigRefused(f"{path}{line} is not YAML: {getattr(wrong, 'problem', wrong)}") from wrong
    except ConfigRefused as wrong:
        raise ConfigRefused(f"{path}: {wrong}") from wrong
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as wrong:
        # PyYAML lets through what Python says of dates, numbers and depth: 2001-99-99, 5000 digits, 10,000 brackets.
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
        return kind.model_validate(given)
    except ValidationError as wrong:
        named = []
        for error, sentence in zip(wrong.errors(), sentences(wrong, kind), strict=True):
            holders = [each for each, content in (files or {}).items() if error["loc"] and _has(content, error["loc"])]
            named.append(f"{holders[-1] if holders else name}: {sentence}")
        raise ConfigRefused("\n".join(named)) from wrong


def _has(content: Any, place: tuple[int | str, ...]) -> bool:
    for step in place:
        if not isinstance(content, Mapping) or step not in content:
            return False
        content = content[step]
    return True


def dump(file: Section) -> str:
    """The file that `load` reads back to the same settings."""
    return yaml.safe_dump(file.model_dump(mode="json", by_alias=True), sort_keys=False, width=1000)
