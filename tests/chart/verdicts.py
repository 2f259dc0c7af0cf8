"""Values files that a laptop and a chart could judge differently: settings with odd values, and odd scalars in the place of texts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import helm_python
from typer.testing import CliRunner

from chart.rendering import SMALLEST, Refused, Rendered, Renderer, Values, merged
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.operate.cli import check
from elastic_ctr.operate.cli.given_values import load_values

# (the file below, the text of the file above it)
Case: TypeAlias = tuple[Values, str]
# Folders relative to the file are the laptop's.
_OF_ONE_SIDE = re.compile(r"file:[^/]")

ROWS: Values = {
    "data": {
        "source": {"url": "hdfs://namenode:9000"}, "path": "/clicks", "start": "20200401/00", "format": "csv", "label": "click",
    },
    "features": {"user": {"type": "categorical"}, "price": {"type": "numeric", "missing": 0}},
}  # fmt: skip
# Readers of YAML differ on these, or read something else than is written.
SCALARS = [
    *[
        "02134",
        "0o17",
        "0x1F",
        "0b11",
        "10:30",
        "1e3",
        "1E3",
        "1_000",
        "+5",
        "-0",
        ".5",
        "-.5",
        "5.",
        "1.0",
        "1.5",
        "08",
        "2020-01-01",
        "2020-01-01T00:00:00Z",
        "20200401/00",
    ],
    *[
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
        "Y",
        "NO",
        "true",
        "FALSE",
        "null",
        "~",
        ".inf",
        "-.inf",
        ".nan",
        "1e400",
        "1e-7",
        "=",
        "<<",
        "1__0",
        "190:20:30",
        "1.2.3",
        "-",
        "+",
        ".",
        "0o8",
        "nan",
    ],
    *[
        "Infinity",
        "é",
        "日本",
        "'02134'",
        "'1e3'",
        "'y'",
        "''",
        "9007199254740991",
        "9007199254740993",
        "18446744073709551616",
        "3.4e38",
        "1e39",
    ],
    *("!!str 5", "!!int '5'", "' a '", '"a\\tb"', '"\\ud83d"', "a b", "a:b", "[a]", "{a: b}", "| a"),
]
PLACES: list[tuple[Values, str]] = [
    (SMALLEST, "data: {slots: [%s]}"),
    (SMALLEST, "data: {slots: %s}"),
    (SMALLEST, "data: {group: %s}"),
    (SMALLEST, "data: {path: %s}"),
    (SMALLEST, "data: {start: %s}"),
    (SMALLEST, "data: {source: {user: %s}}"),
    (SMALLEST, "data: {timeZone: %s}"),
    (SMALLEST, "data: {holdout: %s}"),
    (SMALLEST, "model: {dense: {learningRate: %s}}"),
    (SMALLEST, "model: {embeddingDim: %s}"),
    (SMALLEST, "model: {network: %s}"),
    (SMALLEST, "trainer: {config: {batchSize: %s}}"),
    (SMALLEST, "trainer: {replicas: %s}"),
    (SMALLEST, "master: {config: {evaluate: %s}}"),
    (SMALLEST, "serving: {config: {canary: {feature: %s}}}"),
    (SMALLEST, "serving: {config: {modelName: %s}}"),
    (ROWS, "features: {user: {type: categorical, vocabulary: [%s]}}"),
    (ROWS, "features: {user: {type: categorical, vocabulary: %s}}"),
    (ROWS, "features: {user: {type: categorical, column: %s}}"),
    (ROWS, "features: {user: {type: categorical, separator: %s}}"),
    (ROWS, "features: {%s: {type: categorical}}"),
    (ROWS, "features: {user: {type: %s}}"),
    (ROWS, "features: {price: {type: numeric, missing: %s}}"),
    (ROWS, "features: {price: {type: numeric, transform: [%s]}}"),
    (ROWS, "features: {price: {type: numeric, transform: [{round: %s}]}}"),
    (ROWS, "features: {bucket: {type: bucketized, column: price, boundaries: [%s]}}"),
    (ROWS, "data: {label: %s}"),
    (ROWS, "data: {columns: [user, price, click, %s]}"),
]


def odd_scalars() -> Iterator[Case]:
    for base, place in PLACES:
        yield from ((base, place % scalar) for scalar in SCALARS)


def odd_settings(keys: dict[str, dict[str, Any]]) -> Iterator[Case]:
    """Each key of the program's, by its schema: misspelt, as Python spells it, of other types, at its bounds and beyond, and null."""
    for key, schema in keys.items():
        *_, name = key.split(".")
        base = ROWS if key.startswith("features") else SMALLEST
        snake = "".join(f"_{each.lower()}" if each.isupper() else each for each in name)
        step = 1 if "integer" in str(schema.get("type")) else 1e-3
        yield base, _file(key, None)
        yield base, _file(f"{key}x", 1)
        if snake != name:
            yield base, _file(key.removesuffix(name) + snake, 1)
        for value in (True, "1", "a", "", 0, 1, -1, 1.5, 2.0, [], [1], {}, {"a": 1}, 10**18, 1e300):
            yield base, _file(key, value)
        if schema.get("properties"):
            continue
        for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if bound in schema:
                yield from ((base, _file(key, schema[bound] + more)) for more in (-step, 0, step))
        for word in (*schema.get("enum", [])[:3], schema.get("const")):
            yield base, _file(key, word)


def _file(key: str, value: object) -> str:
    for step in reversed(key.split(".")):
        value = {step: value}
    return json.dumps(value)


def of_the_laptop(folder: Path, below: Values, above: str) -> str:
    """The sentences of a refusal; empty where the values are taken."""
    files = [folder / "below.yaml", folder / "above.yaml"]
    files[0].write_text(json.dumps(below))
    files[1].write_text(above)
    try:
        load_values(files, None)
    except ConfigRefused as refused:
        return str(refused)
    return ""


def of_the_chart(render: Renderer, folder: Path, below: Values, above: str) -> str:
    """The sentences of Helm, or of the check that runs before Helm changes a pod."""
    try:
        rendered = render(below=merged(below, helm_python.values_from_yaml(above)))
    except (Refused, helm_python.HelmValuesError) as refused:
        return str(refused)
    return of_the_early_check(rendered, folder)


def of_the_early_check(rendered: Rendered, folder: Path) -> str:
    """The sentences of the hook's container, run on the file that is mounted there."""
    pod = rendered.one("Pod", component="check-values").pod
    [container] = pod.containers
    [mount] = [each for path, each in container.mounts.items() if path != "/tmp"]
    config = rendered.one("ConfigMap", name=pod.volumes[mount["name"]]["configMap"]["name"])
    [text] = config.raw["data"].values()
    file = folder / "values.yaml"
    file.write_text(text)
    group, *words, path = container.args
    assert (group, path) == ("check", f"{mount['mountPath']}/values.yaml")
    result = CliRunner().invoke(check.app, [*words, str(file)])
    assert result.exit_code in (0, 2), result.output
    return "" if result.exit_code == 0 else result.output


def differ(laptop: str, chart: str, above: str) -> bool:
    """Whether one side refuses what the other one takes. For a null the laptop keeps the default. Helm removes it, which the schema refuses
    where a template needs one; where values.yaml has none, Helm keeps the null itself.
    """
    if _OF_ONE_SIDE.search(above):
        return False
    return bool(laptop) != bool(chart) and not (chart and any(each in chart for each in _refusals_of_nulls(above)))


def _refusals_of_nulls(above: str) -> Iterator[str]:
    """The sentences by which the schema may refuse a null of the file."""
    for null in _nulls(helm_python.values_from_yaml(above)):
        block, _, key = null.rpartition("/")
        yield f"at '{block}': missing property '{key}'"
        yield from (f"at '{null}': {words}" for words in ("got null", "value must be one of"))


def _nulls(values: Values, prefix: str = "") -> Iterator[str]:
    """The place of each null, as the schema library names places."""
    for key, value in values.items():
        if value is None:
            yield f"{prefix}/{key}"
        elif isinstance(value, dict):
            yield from _nulls(value, f"{prefix}/{key}")
