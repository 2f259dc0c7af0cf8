"""What is refused at install, and by which sentence: a rule of one key in the schema's words, a rule between keys in ours."""

from typing import Any

import pytest

from chart.api_server import PROMETHEUS, VOLCANO, install
from chart.rendering import Refused, Renderer, merged

# (values, what the schema says): the path names the key, the words name the rule.
SINGLE_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no shards": ({"cube": {"config": {"shards": 0}}}, "at '/cube/config/shards': minimum: got 0, want 1"),
    "an unknown key": ({"cube": {"config": {"shrads": 3}}}, "at '/cube/config': additional properties 'shrads' not allowed"),
    "an unknown block": ({"cubes": {}}, "at '': additional properties 'cubes' not allowed"),
    "an unknown key of kubernetes": ({"cube": {"resource": {}}}, "at '/cube': additional properties 'resource' not allowed"),
    "4GB for 4Gi": ({"trainer": {"resources": {"memory": "4GB"}}}, "at '/trainer/resources/memory': '4GB' does not match pattern"),
    "a size of disk": ({"master": {"persistence": {"size": "1 Gi"}}}, "at '/master/persistence/size': '1 Gi' does not match pattern"),
    "cores as words": ({"serving": {"resources": {"cpu": "two"}}}, "at '/serving/resources/cpu': 'two' does not match pattern"),
    "no trainers": ({"trainer": {"replicas": 0}}, "at '/trainer/replicas': minimum: got 0, want 1"),
    "no pservers": ({"pserver": {"replicas": 0}}, "at '/pserver/replicas': minimum: got 0, want 1"),
    "half a trainer": ({"trainer": {"replicas": 1.5}}, "at '/trainer/replicas': got number, want integer"),
    "a count as text": ({"serving": {"replicas": "3"}}, "at '/serving/replicas': got string, want integer"),
    "a port too high": ({"serving": {"config": {"port": 70000}}}, "at '/serving/config/port': maximum: got 70,000, want 65,535"),
    "an unknown network": ({"model": {"network": "../x"}}, "at '/model/network': value must be one of 'slot-dnn', 'deepfm'"),
    "an unknown scheduler": ({"training": {"scheduler": "kueue"}}, "at '/training/scheduler': value must be one of 'volcano', 'none'"),
    "another address of logs": ({"data": {"source": {"url": "ftp://x"}}}, "at '/data/source/url': 'ftp://x' does not match pattern"),
    "a day that is none": ({"data": {"start": "20200431x"}}, "at '/data/start': '20200431x' does not match pattern"),
    "an hour that is none": ({"data": {"start": "20200401/24"}}, "at '/data/start': '20200401/24' does not match pattern"),
    "an interval that splits no day": ({"data": {"splitInterval": 7}}, "at '/data/splitInterval': value must be one of 1, 2, 3"),
    "a service of no type": ({"serving": {"service": {"type": "Public"}}}, "at '/serving/service/type': value must be one of"),
    "a list for a map": ({"cube": {"nodeSelector": ["a"]}}, "at '/cube/nodeSelector': got array, want object"),
}  # fmt: skip
MISSING: dict[str, tuple[list[str], str]] = {
    "no slots": (["slots"], "at '/data': missing property 'slots'"),
    "no start": (["start"], "at '/data': missing property 'start'"),
    "no address": (["source"], "at '/data/source': missing property 'url'"),
}
# (values, what validate.yaml says).
BETWEEN_KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "more shards than partitions": (
        {"model": {"partitions": 4}, "pserver": {"replicas": 1}, "cube": {"config": {"shards": 5}}},
        ["cube.config.shards 5", "model.partitions 4"],
    ),
    "more pservers than partitions": (
        {"model": {"partitions": 4}, "pserver": {"replicas": 5}},
        ["pserver.replicas 5", "model.partitions 4"],
    ),
    "fewer trainers than the least": (
        {"trainer": {"replicas": 1, "minReplicas": 2}},
        ["trainer.replicas 1", "trainer.minReplicas 2"],
    ),
    "start after end": (
        {"data": {"start": "20200401/05"}},
        ["data.end 20200401/03", "data.start 20200401/05"],
    ),
    "ingress without host": ({"serving": {"ingress": {"enabled": True}}}, ["serving.ingress.host"]),
    "serving without cube": ({"cube": {"enabled": False}}, ["cube.enabled"]),
    "no store": ({"fileServer": {"enabled": False}}, ["store.config.url", "fileServer.enabled"]),
    "logs on no volume": (
        {"data": {"source": {"url": "file:///data"}}},
        ["dataVolume.existingClaim", "data.source.url"],
    ),
    "more copies wanted ready than there are": (
        {"cubeTransfer": {"config": {"minReadyReplicas": 2}}},
        ["cubeTransfer.config.minReadyReplicas 2", "cube.replicasPerShard 1"],
    ),
    "an autoscaler upside down": (
        {"serving": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}},
        ["serving.autoscaling.minReplicas 5", "serving.autoscaling.maxReplicas 2"],
    ),
    "a name too long": ({"fullnameOverride": "n" * 40}, ["fullnameOverride", "34"]),
}


@pytest.mark.parametrize(("values", "words"), SINGLE_KEYS.values(), ids=SINGLE_KEYS)
def test_a_rule_of_one_key_is_told_by_the_schema(render: Renderer, values: dict[str, Any], words: str) -> None:
    told = render.refusal(**values)

    assert words in told
    assert "execution error" not in told


@pytest.mark.parametrize(("keys", "words"), MISSING.values(), ids=MISSING)
def test_what_must_be_given_is_asked_for_by_name(render: Renderer, keys: list[str], words: str) -> None:
    data = {
        "source": {"url": "hdfs://namenode:9000"},
        "path": "/train_data",
        "start": "20200401/00",
        "slots": [1],
    }
    for key in keys:
        del data[key]

    assert words in render.refusal(below={"data": data})


def test_an_install_with_no_values_says_all_that_is_missing(render: Renderer) -> None:
    told = render.refusal(below={})

    assert "at '/data': missing properties 'start', 'slots'" in told
    assert "at '/data/source': missing property 'url'" in told


@pytest.mark.parametrize(("values", "words"), BETWEEN_KEYS.values(), ids=BETWEEN_KEYS)
def test_a_rule_between_keys_is_told_in_our_sentence(
    render: Renderer, values: dict[str, Any], words: list[str]
) -> None:
    told = render.refusal(**values)

    assert "execution error" in told
    sentence = told.rpartition("\n")[2] if "\n" in told else told
    for word in words:
        assert word in sentence, told
    # The thing and the reason, and then the way out.
    assert any(mark in sentence for mark in (": ", "; ")), told


@pytest.mark.parametrize("name", SINGLE_KEYS)
def test_one_wrong_key_is_one_sentence(render: Renderer, name: str) -> None:
    told = render.refusal(**SINGLE_KEYS[name][0])

    assert told.count("- at '") == 1, told


def test_several_wrong_keys_are_told_at_once(render: Renderer) -> None:
    told = render.refusal(cube={"config": {"shards": 0}}, trainer={"replicas": 0}, nonsense=1)

    for words in ("/cube/config/shards", "/trainer/replicas", "'nonsense'"):
        assert words in told


def test_without_volcano_the_install_names_the_two_ways_out() -> None:
    with pytest.raises(Refused, match=r"install Volcano or set training\.scheduler=none"):
        install(without=[VOLCANO])


def test_a_training_that_is_off_asks_for_no_volcano() -> None:
    assert install(without=[VOLCANO], training={"enabled": False}).all("Job") == []


@pytest.mark.parametrize("name", ["serviceMonitor", "prometheusRule"])
def test_without_prometheus_operator_what_it_reads_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=rf"metrics\.{name}\.enabled"):
        install(without=[PROMETHEUS], metrics={name: {"enabled": True}})


def test_an_old_kubernetes_is_refused() -> None:
    with pytest.raises(Refused, match=r"1\.27"):
        install(version="1.26.9")


def test_what_is_refused_here_is_refused_by_the_program_too() -> None:
    """One rule, two places: the program's own between-keys rules are all among these."""
    from chart.rendering import SMALLEST
    from elastic_ctr.config.load import ConfigRefused, settings
    from elastic_ctr.config.values import Values

    for name in (
        "more shards than partitions",
        "more pservers than partitions",
        "fewer trainers than the least",
        "start after end",
    ):
        with pytest.raises(ConfigRefused):
            settings(Values, merged(SMALLEST, BETWEEN_KEYS[name][0]), "values.yaml")
