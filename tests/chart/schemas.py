"""What the API server would say of an object: Kubernetes' own schemas, and those of Volcano's CRDs."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource

from needs import needs

VERSIONS = [f"1.{minor}" for minor in range(27, 38)]
# Of other projects, whose schemas are not here.
FOREIGN = {"monitoring.coreos.com/v1", "batch.volcano.sh/v1alpha1", "gateway.networking.k8s.io/v1", "keda.sh/v1alpha1"}
_FOLDER = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
_ROOT = Path(__file__).parents[2]
_VOLCANO = _ROOT / "build" / "tools" / "volcano.yaml"
_VOLCANO_PACKED = _ROOT.parent / "shared" / "kind" / "manifests" / "volcano.yaml.zst"


class NoSchema(Exception):
    """Nothing is known of this kind."""


@cache
def _registry(version: str) -> Registry[Any]:
    definitions = json.loads((_FOLDER / f"v{version}.0-local-strict" / "_definitions.json").read_text())
    return Resource.from_contents(definitions) @ Registry()


@cache
def _kubernetes(version: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    group, _, name = api_version.rpartition("/")
    file = "-".join([kind.lower(), *([group.partition(".")[0]] if group else []), name])
    path = _FOLDER / f"v{version}.0-local-strict" / f"{file}.json"
    if not path.exists():
        raise NoSchema(f"Kubernetes {version} has no {api_version} {kind}")
    return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=_registry(version))


def wrong_for_kubernetes(raw: Mapping[str, Any], version: str) -> list[str]:
    """What a Kubernetes of this version would refuse. Raises NoSchema for kinds that are not its own."""
    return _said_of(version, json.dumps(raw))


@cache
def _said_of(version: str, text: str) -> list[str]:
    """Most objects are the same in many sets of values."""
    raw = json.loads(text)
    return _wrong(_kubernetes(version, raw["apiVersion"], raw["kind"]), raw)


def why_no_volcano() -> str:
    """The reason to skip where Volcano's schemas cannot be read; else empty."""
    packed = _VOLCANO_PACKED.exists() and shutil.which("zstd")
    return "" if _VOLCANO.exists() or packed else needs("volcano")


@cache
def _volcano() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    if _VOLCANO.exists():
        text = _VOLCANO.read_bytes()
    else:
        text = subprocess.run(["zstd", "-dc", _VOLCANO_PACKED], check=True, capture_output=True).stdout
    found = {}
    # Only the definitions: the whole manifest is a megabyte of YAML.
    for document in text.split(b"\n---\n"):
        if b"kind: CustomResourceDefinition" not in document or b"kind: Job\n" not in document:
            continue
        crd = yaml.load(document, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for version in crd["spec"]["versions"]:
            api_version = f"{crd['spec']['group']}/{version['name']}"
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[api_version, crd["spec"]["names"]["kind"]] = jsonschema.Draft202012Validator(schema)
    return found


def wrong_for_volcano(raw: Mapping[str, Any]) -> list[str]:
    """What the API server would refuse of a Volcano object. Only where `why_no_volcano` says nothing."""
    return _wrong(_volcano()[raw["apiVersion"], raw["kind"]], raw)


def _strict(schema: Any) -> Any:
    """An OpenAPI schema of a CRD as a JSON schema that refuses what the API server would drop without a word."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict(each) for key, each in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True:
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and schema.get("x-kubernetes-preserve-unknown-fields") is not True:
        result.setdefault("additionalProperties", False)
    return result


def _wrong(validator: jsonschema.Draft202012Validator, raw: Mapping[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, each.path))}: {each.message[:300]}" for each in validator.iter_errors(raw)]
