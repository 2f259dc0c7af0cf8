"""charts/elastic-ctr/values.schema.json: the config classes' schema and Kubernetes' keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from elastic_ctr.config.section import EXACT
from elastic_ctr.config.values_file import Block, Values

Schema = dict[str, Any]

# Keys that the chart fills in from other keys, so that they have no default to show.
FILLED_BY_THE_CHART = ("store.config.url", "cube.config.workers", "serving.config.workers", "scoring.config.processes")
# Without these two the chart could not be a dependency of another chart.
OF_A_DEPENDENCY: Schema = {
    "global": {"type": "object", "description": "Of charts that this one is a dependency of; not read."},
    "enabled": {"type": "boolean", "description": "Of charts that this one is a dependency of; not read."},
}


def values_schema(kubernetes: Path) -> str:
    """The text of values.schema.json. Raises ValueError if the hand-written half repeats a key of the classes."""
    by_hand = yaml.safe_load(kubernetes.read_text())
    program = _of_the_program()
    result: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart elastic-ctr",
        "type": "object",
        "additionalProperties": False,
        "required": [*program["required"], *by_hand.get("required", [])],
        "properties": _merged({**program["properties"], **OF_A_DEPENDENCY}, by_hand["properties"], ""),
        "$defs": _merged(program["$defs"], by_hand.get("$defs", {}), "$defs"),
    }
    result["properties"] = {name: _closed(each, result["$defs"]) for name, each in result["properties"].items()}
    result["$defs"] = {name: _closed(each, result["$defs"]) for name, each in result["$defs"].items()}
    used = set(_references(result["properties"]))
    while more := {name for each in used for name in _references(result["$defs"][each])} - used:
        used |= more
    result["$defs"] = {name: each for name, each in result["$defs"].items() if name in used}
    return json.dumps(result, indent=2, ensure_ascii=False) + "\n"


def _of_the_program() -> Schema:
    """The classes' schema; a component's block is inlined, so that Kubernetes' keys can be added to its own."""
    schema = Values.model_json_schema()
    blocks = {kind.__name__ for kind in Block.__subclasses__()}
    for name, each in schema["properties"].items():
        kind = each.get("$ref", "").rpartition("/")[2]
        if kind in blocks:
            schema["properties"][name] = {
                key: part for key, part in schema["$defs"][kind].items() if key != "description"
            }
    schema["$defs"] = {name: each for name, each in schema["$defs"].items() if name not in blocks}
    for key in FILLED_BY_THE_CHART:
        _may_be_null(schema, key)
    return {part: _plain(schema[part], schema["$defs"]) for part in ("required", "properties", "$defs")}


def _may_be_null(schema: Schema, key: str) -> None:
    field: Schema = schema
    for step in key.split("."):
        if "$ref" in field:
            field = schema["$defs"][field["$ref"].rpartition("/")[2]]
        field = field["properties"][step]
    field["type"] = [field["type"], "null"]
    field["default"] = None


def _plain(schema: Any, definitions: Schema) -> Any:
    """Without titles and other details of Python; alternatives are told apart by a condition, so that a refusal names the bound."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: each for key, each in schema.items() if not (key == "title" and isinstance(each, str))}
    if isinstance(kept.get("default"), dict):
        del kept["default"]
    if alternatives := [*_alternatives(kept)]:
        kept = {key: each for key, each in kept.items() if key not in ("anyOf", "oneOf")}
        kept = {**_told_apart(alternatives, definitions), **kept}
        kept.pop("title", None)
    if isinstance(kept.get("propertyNames"), dict) and isinstance(kept.get("additionalProperties"), dict):
        # A refusal names the map then, too.
        names = kept.pop("propertyNames")["pattern"]
        kept = {**kept, "patternProperties": {names: kept["additionalProperties"]}, "additionalProperties": False}
    if kept.get("enum") and all(isinstance(each, str) for each in kept["enum"]):
        kept.pop("type", None)
    return {key: _plain(each, definitions) for key, each in kept.items()}


def _alternatives(schema: Schema) -> Iterator[Schema]:
    """Those of `anyOf` and `oneOf`, which may stand in each other."""
    for each in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        below = [*_alternatives(each)]
        yield from below or [each]


def _told_apart(alternatives: list[Schema], definitions: Schema) -> Schema:
    """One schema for all: objects by their `name`, their `type` or a key that they need, everything else by its own type."""
    classes = [definitions[each["$ref"].rpartition("/")[2]] for each in alternatives if "$ref" in each]
    others = [each for each in alternatives if "$ref" not in each]
    types = [kind for each in others for kind in (each["type"] if isinstance(each["type"], list) else [each["type"]])]
    if len(classes) == 1 and "properties" not in classes[0]:  # a map
        return {**classes[0], "type": ["object", *types]}
    found: Schema = {**(others[0] if others else {}), "type": [*types, "object"] if classes else types}
    if "enum" in found and "null" in types:
        found["enum"] = [*found["enum"], None]
    if not classes:
        words = [each["const"] for each in others if "const" in each]
        # A word beside numbers with bounds.
        rest = {key: each for other in others if "const" not in other for key, each in other.items() if key != "type"}
        return {"type": types, **rest, "if": {"type": "string"}, "then": {"enum": words}} if words else found
    references = [each for each in alternatives if "$ref" in each]
    if own := [place for place, each in enumerate(classes) if "source" in each["properties"]]:
        # Told apart by what it needs: Helm merges the default's name into it.
        [place] = own
        del classes[place]
        other = references.pop(place)
        named = _by_name(classes, references, found)
        for key in ("file", "source"):
            named["else"] = {"if": {"required": [key]}, "then": other, "else": named["else"]}
        return named
    if all("const" in each["properties"].get("name", {}) for each in classes):
        return _by_name(classes, references, found)
    if all("const" in each["properties"].get("type", {}) for each in classes):
        kinds = [each["properties"]["type"]["const"] for each in classes]
        found = {"required": ["type"], "properties": {"type": {"enum": kinds}}}
        conditions = [{"properties": {"type": {"const": kind}}, "required": ["type"]} for kind in kinds]
    else:
        conditions = [{"type": "object", "required": each.get("required", [])} for each in classes]
        conditions[-1] = {"type": "object"}
    for condition, reference in zip(reversed(conditions), reversed(references), strict=True):
        found = {"if": condition, "then": reference, "else": found}
    return found


def _by_name(classes: list[Schema], references: list[Schema], short: Schema) -> Schema:
    """Objects by their `name`, which the first class need not give; text is a name alone."""
    names = [each["properties"]["name"]["const"] for each in classes]
    found: Schema = {"properties": {"name": {"enum": names}}}
    for name, reference in zip(reversed(names), reversed(references), strict=True):
        condition = {"properties": {"name": {"const": name}}, **({} if name == names[0] else {"required": ["name"]})}
        found = {"if": condition, "then": reference, "else": found}
    return {"type": short["type"], "if": {"type": "string"}, "then": {"enum": short["enum"]}, "else": found}


def _merged(ours: Schema, theirs: Schema, where: str) -> Schema:
    result = dict(ours)
    for key, value in theirs.items():
        if key not in result:
            result[key] = value
        elif isinstance(result[key], dict) and isinstance(value, dict):
            result[key] = _merged(result[key], value, f"{where}.{key}")
        elif key == "required":
            result[key] = [*result[key], *(name for name in value if name not in result[key])]
        elif result[key] != value:
            raise ValueError(
                f"values.schema.yaml says {value!r} of {where}.{key}, the config classes say {result[key]!r}; "
                "leave it to the classes"
            )
    return result


def _closed(schema: Schema, definitions: Schema) -> Schema:
    """Unknown keys are refused, here and below; integers end where Helm begins to round them.

    What a schema takes over by a reference beside its own properties is written out: two closed schemas of one object
    would each refuse the other's keys.
    """
    parts = [schema, *schema.get("allOf", [])]
    if "properties" in schema and any("$ref" in part for part in parts):
        own = {key: each for key, each in schema.items() if key not in ("$ref", "allOf")}
        for part in parts:
            if "$ref" in part:
                own = _merged(definitions[part["$ref"].rpartition("/")[2]], own, part["$ref"])
        return _closed(own, definitions)
    result = dict(schema)
    types = schema.get("type")
    if "integer" in (types if isinstance(types, list) else [types]) and "enum" not in schema:
        result.setdefault("maximum", EXACT)
    if "properties" in schema:
        result.setdefault("type", "object")
        result.setdefault("additionalProperties", False)
        result["properties"] = {name: _closed(each, definitions) for name, each in schema["properties"].items()}
    if "patternProperties" in schema:
        result["patternProperties"] = {
            name: _closed(each, definitions) if isinstance(each, dict) else each
            for name, each in schema["patternProperties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = _closed(schema[key], definitions)
    for key in ("anyOf", "oneOf", "prefixItems"):
        if key in schema:
            result[key] = [_closed(each, definitions) for each in schema[key]]
    return result


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _references(each)
