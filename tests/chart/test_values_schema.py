"""values.yaml, its schema and the config classes say the same."""

import json
from collections.abc import Iterator
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from chart.rendering import CHART, SMALLEST, Renderer, merged, read
from chart.role_settings import files
from chart.schemas import wrong_for_kubernetes
from elastic_ctr.config import values_file as config_values
from elastic_ctr.config.load import read_yaml
from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import Block, Values

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
# Refuses a key that stands there twice.
DEFAULTS: dict[str, Any] = read_yaml(CHART / "values.yaml")
# What must be given has no default to show; what the chart fills from other keys shows null.
GIVEN = {"data.source.url", "data.start"}
FILLED = {"store.config.url", "cube.config.workers", "serving.config.workers", "scoring.config.processes"}
EXACT = 2**53 - 1


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = {
            **SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]],
            **{k: v for k, v in schema.items() if k != "$ref"},
        }
    return schema


def keys(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key with a name of its own, and what is said of it."""
    for name, each in resolved(schema).get("properties", {}).items():
        found = resolved(each)
        yield f"{prefix}{name}", found
        yield from keys(found, f"{prefix}{name}.")


def at(tree: Any, key: str) -> Any:
    for step in key.split("."):
        tree = tree[step]
    return tree


def nested(key: str, value: object) -> dict[str, Any]:
    for step in reversed(key.split(".")):
        value = {step: value}
    assert isinstance(value, dict)
    return value


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of the program, below its sections."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from fields(below, f"{key}.")
        else:
            yield key, field


PROGRAM = dict(fields(Values))
KEYS = dict(keys(SCHEMA))


def schemas(tree: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object with named keys."""
    if isinstance(tree, list):
        for each in tree:
            yield from schemas(each)
    elif isinstance(tree, dict):
        if isinstance(tree.get("properties"), dict):
            yield tree
        for name, each in tree.items():
            if name not in ("if", "then", "else", "not", "default", "enum"):
                yield from schemas(each)


def test_a_key_that_is_not_named_is_refused_in_every_block() -> None:
    open_ones = [each for each in schemas(SCHEMA) if each.get("additionalProperties") is not False]

    # What a parent chart says to all its charts is the parent's.
    assert open_ones == [SCHEMA["properties"]["global"]]


def test_every_setting_of_the_program_is_in_the_schema() -> None:
    assert PROGRAM.keys() - KEYS.keys() == set(), "run make generate"


def test_the_two_keys_that_every_dependency_is_given_are_taken() -> None:
    assert SCHEMA["properties"]["global"]["type"] == "object"
    assert SCHEMA["properties"]["enabled"]["type"] == "boolean"


def test_no_integer_may_be_one_that_helm_rounds() -> None:
    integers = {key: found for key, found in KEYS.items() if "integer" in str(found.get("type"))}
    open_ones = [
        key for key, found in integers.items() if "enum" not in found and found.get("maximum", EXACT + 1) > EXACT
    ]

    assert len(integers) > 50
    assert open_ones == []


def test_an_integer_that_helm_rounds_is_refused_though_it_was_rounded(render: Renderer) -> None:
    assert "at '/model/sparseDim': maximum: got 9.007199254740992" in render.refusal(model={"sparseDim": 2**53 + 1})


def test_every_key_of_the_schema_is_shown_in_values_yaml() -> None:
    def shown(key: str) -> bool:
        head, _, rest = key.partition(".")
        tree: Any = DEFAULTS
        # Keys of all pods are shown once, and so are those of all Services.
        if head in {*COMPONENTS, "check"} and rest.partition(".")[0] in DEFAULTS["podDefaults"]:
            key = f"podDefaults.{rest}"
        if rest.startswith("service.") and rest.removeprefix("service.") in DEFAULTS["serviceDefaults"]:
            key = f"serviceDefaults.{rest.removeprefix('service.')}"
        for step in key.split("."):
            if not isinstance(tree, dict) or (step not in tree and tree in ({}, None)):
                return True
            if step not in tree:
                return False
            tree = tree[step]
        return True

    hidden = {key for key in KEYS if not shown(key)} - GIVEN - {"enabled"}
    assert {key for key in hidden if not EXPLAINED_WHOLE & set(key.split("."))} == set()


EXPLAINED_WHOLE = {"image", "resources", "builderResources"}


COMPONENTS = {
    "fileServer",
    "master",
    "trainer",
    "pserver",
    "cube",
    "cubeTransfer",
    "intake",
    "serving",
    "scoring",
    "tracking",
}
# What stands in the way of another key there, and what nobody should need.
NOT_ALL_AT_ONCE = {"address", "persistence.existingClaim", "podSecurityContext", "containerSecurityContext"}


def test_the_example_with_everything_on_has_everything_on() -> None:
    given = read(CHART / "examples" / "everything-on.yaml")

    def found(key: str) -> Any:
        try:
            return at(given, key)
        except (KeyError, TypeError):
            return None

    # The intake stands in the way of hours, and Volcano in that of KEDA.
    switches = {key for key in KEYS if key.endswith(".enabled")} - {"intake.enabled", "trainer.autoscaling.enabled"}
    assert {key for key in switches if found(key) is not True and at(DEFAULTS, key) is not True} == set()

    def of_a_component(key: str) -> str:
        """A key that all components have is on where one of them has it."""
        head, _, rest = key.partition(".")
        if head == "serviceDefaults":
            return f"service.{rest}"
        return rest if head in (*COMPONENTS, "check", "podDefaults") else key

    below = {key for key in KEYS if any(other.startswith(f"{key}.") for other in KEYS)}
    leaves = {
        key for key in KEYS.keys() - PROGRAM.keys() - below - {"enabled"} if not EXPLAINED_WHOLE & set(key.split("."))
    }
    on = {of_a_component(key) for key in leaves if found(key) is not None}
    assert {of_a_component(key) for key in leaves} - on - NOT_ALL_AT_ONCE == set()


def test_all_components_have_the_same_keys_in_the_same_order() -> None:
    common = set.intersection(*(set(DEFAULTS[name]) for name in COMPONENTS))
    orders = {tuple(key for key in DEFAULTS[name] if key in common) for name in COMPONENTS}

    assert len(orders) == 1
    assert common >= {"image", "resources", "persistence"}
    of_all_pods = set(DEFAULTS["podDefaults"])
    assert of_all_pods >= {"probes", "nodeSelector", "tolerations", "affinity", "extraEnv"}
    assert not any(of_all_pods & set(DEFAULTS[name]) for name in COMPONENTS)


def test_every_key_of_the_values_file_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    silent = [
        line.strip()
        for before, line in zip(["", *lines], lines, strict=False)
        if line.partition("#")[0].strip().endswith(":") or ": " in line.partition("#")[0]
        if not before.strip().startswith("#")
    ]

    assert silent == []


def folded(key: str) -> bool:
    """Whether values.yaml has `{}` for a section of the key, whose defaults are those of the class."""
    tree: Any = DEFAULTS
    for step in key.split("."):
        if tree == {}:
            return True
        tree = tree[step]
    return False


@pytest.mark.parametrize("key", sorted(key for key in PROGRAM.keys() - GIVEN if not folded(key)))
def test_a_default_is_the_classes(key: str) -> None:
    default = PROGRAM[key].get_default(call_default_factory=True)
    expected = list(default) if isinstance(default, tuple) else default
    if key == "model.network":
        # Helm merges maps: the settings of one network must not be merged into another's.
        expected = default.model_dump(include={"name"})

    assert at(DEFAULTS, key) == (None if key in FILLED else expected)


def test_a_required_key_has_no_default() -> None:
    for key in GIVEN:
        above, _, name = key.rpartition(".")
        assert name not in at(DEFAULTS, above)
        assert name in resolved(dict(keys(SCHEMA))[above])["required"]


def comments() -> dict[str, str]:
    """The comment above each key of values.yaml, whose blocks are indented by two."""
    found: dict[str, str] = {}
    path: list[str] = []
    said: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            said = [text[4:].strip()] if text.startswith("# --") else [*said, text[1:].strip()]
        elif text:
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], text.partition(":")[0]]
            found[".".join(path)] = " ".join(said)
            said = []
    return found


@pytest.mark.parametrize("key", sorted(key for key in PROGRAM.keys() - GIVEN if not folded(key)))
def test_a_setting_of_the_program_has_the_first_sentence_of_its_class(key: str) -> None:
    assert comments()[key]
    assert f"{PROGRAM[key].description} ".startswith(f"{comments()[key]} ")


def bounds() -> Iterator[tuple[str, Any]]:
    """(key, a value just outside) of every bound in the schema of the program's keys."""
    for key in sorted(PROGRAM):
        found = KEYS.get(key, {})
        step = 1 if "integer" in str(found.get("type", "")) else 1e-3
        if "enum" in found:
            yield key, "nonsense"
        if "minimum" in found:
            yield key, found["minimum"] - step
        if "exclusiveMinimum" in found:
            yield key, found["exclusiveMinimum"]
        if found.get("maximum", EXACT) < EXACT:
            yield key, found["maximum"] + step
        if "exclusiveMaximum" in found:
            yield key, found["exclusiveMaximum"]
        if found.get("type") in ("integer", "number", "boolean", "array"):
            yield key, "nonsense"
        if found.get("type") in ("string", ["string", "null"]):
            yield key, 5


@pytest.fixture(scope="module")
def refusals(render: Renderer) -> list[str]:
    """Helm names each wrong key, so that the first wrong values of all keys are refused at once, then the second ones, …"""
    found: list[dict[str, Any]] = []
    for _, values in groupby(bounds(), key=itemgetter(0)):
        for number, (key, value) in enumerate(values):
            found += [{}] * (number == len(found))
            found[number] = merged(found[number], nested(key, value))
    return [render.refusal(**each) for each in found]


@pytest.mark.parametrize(("key", "value"), list(bounds()), ids=str)
def test_a_setting_that_the_program_would_refuse_is_refused_at_install(
    render: Renderer, refusals: list[str], key: str, value: object
) -> None:
    with pytest.raises(ValueError, match=key.rpartition(".")[2]):
        Values.model_validate(merged(SMALLEST, nested(key, value)))

    place = f"at '/{key.replace('.', '/')}'"
    number = [each for other, each in bounds() if other == key].index(value)
    # The wrong value of another key may hide it.
    assert place in refusals[number] or place in render.refusal(**nested(key, value))


def test_null_is_taken_where_it_is_the_default_or_the_chart_fills_it(render: Renderer) -> None:
    nullable = FILLED | {key for key, field in PROGRAM.items() if not field.is_required() and field.default is None}

    # Lines of clicks need data.slots.
    render(**reduce(merged, (nested(key, None) for key in nullable - {"data.slots"})))
    assert {"data.end", "model.sparseDim", "features", *FILLED} <= nullable


@pytest.mark.parametrize("slots", [["1", "2"], ["a"], "a\nb\n", "7"], ids=str)
def test_slots_are_a_list_or_text(render: Renderer, slots: object) -> None:
    render(data={"slots": slots})


@pytest.mark.parametrize("slots", [[], "", [None], {"a": 1}, ["a b"], ["a:b"], ["a", "a"], True], ids=str)
def test_an_invalid_list_of_slots_is_refused(render: Renderer, slots: object) -> None:
    with pytest.raises(ValueError, match="slots"):
        Values.model_validate(merged(SMALLEST, {"data": {"slots": slots}}))

    assert "at '/data/slots" in render.refusal(data={"slots": slots})


def test_the_program_takes_out_just_what_the_schema_knows_and_it_does_not() -> None:
    """A values file is the same on one machine: what is Kubernetes' passes unread there, and nothing else does."""
    blocks = {
        field.alias or name: kind
        for name, field in Values.model_fields.items()
        if isinstance(kind := field.annotation, type) and issubclass(kind, Block)
    }
    top = set(SCHEMA["properties"]) - {field.alias or name for name, field in Values.model_fields.items()}
    below = set()
    for name, kind in blocks.items():
        own = {field.alias or each for each, field in kind.model_fields.items()}
        below |= set(resolved(SCHEMA["properties"][name])["properties"]) - own

    assert sorted(top) == sorted(config_values._TOP)
    assert sorted(below) == sorted(config_values._KUBERNETES)


def leaves_with_a_default() -> Iterator[tuple[str, bool]]:
    """(key, whether the schema requires it) of every value that is no map of more values."""
    for key in KEYS:
        above, _, name = key.rpartition(".")
        try:
            value = at(DEFAULTS, key)
        except (KeyError, TypeError):
            continue
        if value is not None and not (isinstance(value, dict) and any(other.startswith(f"{key}.") for other in KEYS)):
            yield key, name in (KEYS[above] if above else SCHEMA).get("required", [])


def nulls(keys: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key in keys:
        given = merged(given, nested(key, None))
    return given


def test_the_chart_renders_without_any_default_that_the_schema_does_not_require(render: Renderer) -> None:
    """`helm --set key=null` deletes a default: all that may go, at once."""
    # Without a cluster the tokens need a name.
    free = [key for key, required in leaves_with_a_default() if not required and key != "auth.existingSecret"]

    rendered = render(**nulls(free))

    assert len(free) > 100
    assert [each.name for each in rendered.objects if "<no value>" in str(each.raw) or "%!" in str(each.raw)] == []
    assert {
        each.name: wrong
        for each in rendered.objects
        if not each.is_volcano
        for wrong in wrong_for_kubernetes(each.raw, "1.34")
    } == {}
    assert files(rendered)


def test_a_deleted_default_that_the_schema_requires_is_named_in_the_refusal(render: Renderer) -> None:
    needed = [key for key, required in leaves_with_a_default() if required]
    told = render.refusal(**nulls(needed))

    assert {key for key in needed if f"'{key.rpartition('.')[2]}'" not in told} == set()
