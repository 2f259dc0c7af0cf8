"""Names that YAML would read as a truth value or a number: what the user gives comes back as text, whole, and nowhere else."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.rendering import EXAMPLES, Rendered, Renderer, on_top_of_smallest, read
from chart.schemas import FOREIGN, wrong_for_kubernetes

# YAML 1.1 and 1.2, by the one reader or another: truth values, nothing, whole numbers, a fraction, minutes of an hour.
STRANGE = ["no", "on", "y", "null", "off", "yes", "n"]
NAMESPACES = [*STRANGE, "2024", "1e5", "0x1f", "007"]
EVERYTHING = {
    **read(next(file for file in EXAMPLES if file.stem == "everything-on")),
    "fullnameOverride": "",
    "serviceAccount": {"create": True, "name": ""},
}


def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from scalars(each)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for each in pair:
                yield from scalars(each)


def bare(rendered: Rendered, word: str) -> list[str]:
    """Where the word stands alone without quotes, role files included."""
    texts = {name: text for name, text in rendered.texts.items() if name.endswith(".yaml")}
    texts |= dict(rendered.configs())
    return [
        f"{name}:{scalar.start_mark.line + 1}"
        for name, text in texts.items()
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader)
        for scalar in scalars(document)
        if scalar.value == word and scalar.style is None
    ]


def refused(rendered: Rendered) -> dict[str, list[str]]:
    own = [each for each in rendered.objects if each.api_version not in FOREIGN]
    return {each.name: wrong for each in own if (wrong := wrong_for_kubernetes(each.raw, "1.34"))}


@pytest.mark.parametrize("release", STRANGE)
def test_a_release_may_have_such_a_name(render: Renderer, release: str) -> None:
    rendered = render(below=EVERYTHING, release=release)

    assert bare(rendered, release) == []
    assert {each.labels["app.kubernetes.io/instance"] for each in rendered.objects if each.labels} == {release}
    assert refused(rendered) == {}


def test_a_release_may_be_a_number_where_a_name_is_given(render: Renderer) -> None:
    rendered = render(below=EVERYTHING, release="123", fullnameOverride="ads")

    assert bare(rendered, "123") == []
    assert refused(rendered) == {}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_may_have_such_a_name(render: Renderer, namespace: str) -> None:
    rendered = render(below=EVERYTHING, namespace=namespace)

    assert bare(rendered, namespace) == []
    assert {each.raw["metadata"].get("namespace", namespace) for each in rendered.objects} == {namespace}
    assert refused(rendered) == {}


# Every key whose text goes into an object as it is.
TAKEN: dict[str, Any] = {
    "auth": {"existingSecret": "2024"},
    "image": {"pullSecrets": ["2024"]},
    "global": {"imagePullSecrets": ["2025"]},
    "serviceAccount": {"create": False, "name": "2024"},
    "training": {"queue": "2024"},
    "dataVolume": {"existingClaim": "2024", "mountPath": "/2024"},
    "fileServer": {"persistence": {"existingClaim": "2024"}, "priorityClassName": "2024"},
    "master": {"persistence": {"storageClass": "2024"}, "priorityClassName": "2024"},
    "trainer": {"priorityClassName": "2024"},
    "cube": {"persistence": {"enabled": True, "storageClass": "2024"}},
    "cubeTransfer": {"persistence": {"existingClaim": "2024"}},
    "serving": {
        "config": {"modelName": "2024"},
        "ingress": {"enabled": True, "hosts": ["2024"], "className": "2024", "tlsSecretName": "2024"},
        "extraEnv": {"NO": "no", "Y": "2024"},
        "podLabels": {"no": "2024", "2024": "no"},
    },
    "tracking": {"enabled": True, "persistence": {"existingClaim": "2024"}},
}


def test_a_name_in_the_values_may_look_like_a_number(render: Renderer) -> None:
    for values in (
        TAKEN,
        {"tracking": {"enabled": True, "persistence": {"storageClass": "2024"}}},
    ):
        rendered = render(**values)

        assert bare(rendered, "2024") == []
        assert refused(rendered) == {}
    assert render(**TAKEN).one("Job").spec["queue"] == "2024"


def test_the_address_of_another_transfer_is_text(render: Renderer) -> None:
    rendered = render(cubeTransfer={"enabled": False, "address": "10:30"})

    assert bare(rendered, "10:30") == []
    assert rendered.one("Pod", name="ctr-test-cube-seek").pod.containers[0].args[-1] == "10:30"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_has_one_key_once(render: Renderer, example: Any) -> None:
    rendered = render(below=on_top_of_smallest(read(example)))

    def twice(node: yaml.Node | None) -> Iterator[str]:
        if isinstance(node, yaml.SequenceNode):
            for each in node.value:
                yield from twice(each)
        elif isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            yield from {key for key in keys if keys.count(key) > 1}
            for _, each in node.value:
                yield from twice(each)

    for name, text in rendered.texts.items():
        if name.endswith(".yaml"):
            for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
                assert list(twice(document)) == [], name


def test_sizes_in_bytes_stay_whole(render: Renderer) -> None:
    """What is printed bare becomes 1.073741824e+09 from a million on, which Volcano's Job does not take."""
    gibibyte = 1 << 30
    rendered = render(
        tmpSizeLimit=gibibyte,
        trainer={"persistence": {"sizeLimit": gibibyte}, "resources": {"memory": gibibyte}},
        master={"persistence": {"size": gibibyte}},
    )

    for pod in rendered.pods:
        assert pod.volumes["tmp"]["emptyDir"]["sizeLimit"] == gibibyte
    volumes = rendered.pod_of("trainer").volumes
    assert type(volumes["scratch"]["emptyDir"]["sizeLimit"]) is int
    [claim] = rendered.one("StatefulSet", component="master").spec["volumeClaimTemplates"]
    assert type(claim["spec"]["resources"]["requests"]["storage"]) is int
