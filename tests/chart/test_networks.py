"""`model.network` in the chart: a name or a map, refused by the schema where the program refuses it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chart.rendering import CHART, SMALLEST, Renderer, merged
from chart.role_settings import files
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.networks import NETWORKS
from elastic_ctr.config.role_files import CubeServerFile, ServingFile, TrainingMember
from elastic_ctr.config.values_file import Values

DEFINITIONS: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())["$defs"]


def outside() -> Iterator[tuple[str, str, object]]:
    """(network, setting, a value just outside) of every bound of every network."""
    for name, kind in NETWORKS.items():
        for key, found in DEFINITIONS[kind.__name__]["properties"].items():
            if key == "name":
                continue
            types = found.get("type", "enum")
            yield name, key, "nonsense"
            if found.get("minimum") is not None:
                yield name, key, found["minimum"] - (1 if "integer" in types else 0.001)
            if found.get("maximum") is not None:
                yield name, key, found["maximum"] + 1
            if "exclusiveMaximum" in found:
                yield name, key, found["exclusiveMaximum"]
            if "array" in types:
                yield name, key, [0]
                yield name, key, [65537]
                yield name, key, [8] * (found["maxItems"] + 1)
            if found.get("minItems"):
                yield name, key, []


@pytest.mark.parametrize(("network", "key", "value"), list(outside()), ids=str)
def test_what_the_program_refuses_of_a_network_the_schema_refuses(
    render: Renderer, network: str, key: str, value: object
) -> None:
    model = {"network": {"name": network, key: value}}

    with pytest.raises(ConfigRefused, match=rf"model\.network\.{key}"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    assert f"at '/model/network/{key}" in render.refusal(model=model)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("../x", "at '/model/network': value must be one of 'deepfm', 'slot-dnn', 'lr', 'fm'"),
        ({"name": "../x"}, "at '/model/network/name': value must be one of 'deepfm', 'slot-dnn', 'lr', 'fm'"),
        (5, "at '/model/network': got number, want string or object"),
        ([], "at '/model/network': got array, want string or object"),
        ({"name": "lr", "crossLayers": 3}, "at '/model/network': additional properties 'crossLayers' not allowed"),
        ({"name": "dcn", "rank": 3}, "at '/model/network': additional properties 'rank' not allowed"),
        ({"crosLayers": 3}, "at '/model/network': additional properties 'crosLayers' not allowed"),
    ],
    ids=str,
)
def test_what_is_no_network_is_refused_by_both(render: Renderer, network: object, words: str) -> None:
    model = {"network": network}

    with pytest.raises(ConfigRefused, match=r"model\.network"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    assert words in render.refusal(model=model)


def test_the_old_place_of_layers_is_refused(render: Renderer) -> None:
    assert "at '/model': additional properties 'layers' not allowed" in render.refusal(model={"layers": [4]})


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"heads": 3}, "model.network.heads 3 does not divide 400, the last width of layers"),
        ({"layers": [8, 9]}, "model.network.heads 8 does not divide 9, the last width of layers"),
        ({"heads": 5, "secondLayers": [7]}, "model.network.heads 5 does not divide 7, the last width of secondLayers"),
    ],
    ids=str,
)
def test_heads_that_do_not_divide_a_stream_are_refused_by_both(
    render: Renderer, network: dict[str, Any], words: str
) -> None:
    model = {"network": {"name": "final-mlp", **network}}

    with pytest.raises(ConfigRefused, match="does not divide"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    assert words in render.refusal(model=model)


@pytest.mark.parametrize(
    "network",
    [
        *NETWORKS,
        *({"name": name} for name in NETWORKS),
        {"layers": [64, 32]},
        {"name": "dcn-v2", "crossLayers": 3, "layers": [256, 128], "dropout": 0.1, "rank": None},
        {"name": "final-mlp", "layers": [64], "secondLayers": [32], "heads": 16, "gating": True},
    ],
    ids=str,
)
def test_every_role_loads_the_network_that_was_given_and_nothing_of_the_default(render: Renderer, network: Any) -> None:
    given = settings(Values, merged(SMALLEST, {"model": {"network": network}}), "values.yaml").model.network

    rendered = files(render(model={"network": network})).values()
    loaded = [
        file.model.network for file in rendered if isinstance(file, (TrainingMember, CubeServerFile, ServingFile))
    ]

    assert len(loaded) >= 4
    assert {each == given for each in loaded} == {True}
