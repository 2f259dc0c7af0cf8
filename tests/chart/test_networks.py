"""`model.network` in the chart: a name or a map, refused by the schema where the program refuses it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import CHART, SMALLEST, Renderer, merged
from chart.role_settings import files
from chart.verdicts import of_the_early_check
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.model import digest_of_model
from elastic_ctr.config.networks import NETWORKS
from elastic_ctr.config.role_files import CubeServerFile, MasterFile, ServingFile, TrainerFile, TrainingMember
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.given_values import load_values

SOURCE = 'def logit(inputs, settings):\n    return inputs.pooled[:, :1]  # {{ not a template }} "ö"\n\n'
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


@cache
def refused(render: Renderer, network: str, number: int) -> str:
    """What Helm says of the first, second, … value outside of each setting of a network, all in one file."""
    wrong: dict[str, list[object]] = defaultdict(list)
    for name, key, value in outside():
        wrong[key] += [value] * (name == network)
    given = {key: values[number] for key, values in wrong.items() if number < len(values)}
    return render.refusal(model={"network": {"name": network, **given}})


@pytest.mark.parametrize(("network", "key", "value"), list(outside()), ids=str)
def test_the_schema_refuses_a_setting_of_a_network_that_the_program_refuses(
    render: Renderer, network: str, key: str, value: object
) -> None:
    model = {"network": {"name": network, key: value}}
    number = [value for *of, value in outside() if of == [network, key]].index(value)

    with pytest.raises(ConfigRefused, match=rf"model\.network\.{key}"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    place = f"at '/model/network/{key}"
    # The wrong value of another key may hide it.
    assert place in refused(render, network, number) or place in render.refusal(model=model)


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
        ({"source": SOURCE, "layers": [4]}, "at '/model/network': additional properties 'layers' not allowed"),
        ({"source": 5}, "at '/model/network/source': got number, want string"),
        ({"source": ""}, "at '/model/network/source': minLength: got 0, want 1"),
        ({"source": "x" * 65537}, "at '/model/network/source': maxLength: got 65,537, want 65,536"),
        ({"source": SOURCE, "settings": {"a": {"b": 1}}}, "at '/model/network/settings/a': got object, want boolean"),
        ({"source": SOURCE, "settings": {"a": [[[1]]]}}, "at '/model/network/settings/a/0/0': got array, want boolean"),
        (
            {"source": SOURCE, "settings": {"_a": 1}},
            "at '/model/network/settings': additional properties '_a' not allowed",
        ),
        ({"source": SOURCE, "settings": {"a": 2**53}}, "at '/model/network/settings/a': maximum: got"),
        ({"source": SOURCE, "settings": {"a": "x" * 1025}}, "at '/model/network/settings/a': maxLength: got 1,025"),
        ({"source": SOURCE, "settings": {"a": [0] * 1025}}, "at '/model/network/settings/a': maxItems: got 1,025"),
        ({"settings": {"a": 1}}, "at '/model/network': additional properties 'settings' not allowed"),
    ],
    ids=str,
)
def test_an_invalid_network_is_refused_by_the_schema_and_by_the_program(
    render: Renderer, network: object, words: str
) -> None:
    model = {"network": network}

    with pytest.raises(ConfigRefused, match=r"model\.network"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    assert words in render.refusal(model=model)


def test_the_old_place_of_layers_is_refused(render: Renderer) -> None:
    assert "at '/model': additional properties 'layers' not allowed" in render.refusal(model={"layers": [4]})


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"heads": 3}, "heads 3 does not divide"),
        ({"layers": [8, 9]}, "heads 8 does not divide"),
        ({"heads": 5, "secondLayers": [7]}, "heads 5 does not divide"),
    ],
    ids=str,
)
def test_heads_that_do_not_divide_a_stream_are_refused_before_an_install(
    render: Renderer, tmp_path: Path, network: dict[str, Any], words: str
) -> None:
    model = {"network": {"name": "final-mlp", **network}}

    assert words in of_the_early_check(render(model=model), tmp_path)


@pytest.mark.parametrize(
    "network",
    [
        *NETWORKS,
        *({"name": name} for name in NETWORKS),
        {"layers": [64, 32]},
        {"name": "dcn-v2", "crossLayers": 3, "layers": [256, 128], "dropout": 0.1, "rank": None},
        {"name": "final-mlp", "layers": [64], "secondLayers": [32], "heads": 16, "gating": True},
        {"source": SOURCE},
        {"source": SOURCE, "settings": {"b": 2.0, "a": [[1, "x"], [True]], "c": 0.5, "many": 1000001}},
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


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {"network": {"file": "my_network.py"}},
            "a chart cannot read it: leave it out and give its text, --set-file model.network.source=my_network.py",
        ),
        ({"network": {"file": "x.py", "source": SOURCE}}, "a chart cannot read it: leave it out"),
    ],
    ids=str,
)
def test_the_file_of_a_network_of_your_own_is_refused_by_the_chart_and_by_the_program(
    render: Renderer, model: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigRefused, match=r"model"):
        settings(Values, merged(SMALLEST, {"model": model}), "values.yaml")
    assert words in render.refusal(model=model)


def test_a_network_of_your_own_with_two_classes_is_refused_before_an_install(render: Renderer, tmp_path: Path) -> None:
    rendered = render(model={"network": {"source": SOURCE}, "output": "softmax"})

    assert "a network of your own returns the logit itself" in of_the_early_check(rendered, tmp_path)


def test_the_example_reaches_trainers_as_set_file_gives_it_and_is_the_model_of_a_laptop(
    render: Renderer, tmp_path: Path
) -> None:
    folder = CHART.parents[1] / "examples" / "own-network"
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(SMALLEST))
    laptop = load_values([tmp_path / "values.yaml", folder / "values.yaml"], None)
    network = yaml.safe_load((folder / "values.yaml").read_text())["model"]["network"]
    given = {"source": (folder / network.pop("file")).read_text(), **network}

    found = [f for f in files(render(model={"network": given})).values() if isinstance(f, TrainerFile | MasterFile)]

    assert len(found) == 2
    digests = {digest_of_model(each.model, each.input) for each in found}
    assert digests == {digest_of_model(laptop.model, input_of(laptop.data, laptop.features))}
