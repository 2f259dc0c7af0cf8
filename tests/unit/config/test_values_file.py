from typing import Any

import pytest
import yaml

from elastic_ctr.config.helm_yaml import Loader
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.values_file import Values

SMALLEST = """
data:
  source: {url: "hdfs://namenode:9000", user: root}   # or file:///some/dir
  path: /train_data
  start: 20200401/00
  end: 20200401/03          # absent: follow new hours as they come
  slots: ["0", "1", "2", "3"]       # or text, one a line: --set-file data.slots=slot.conf, for helm and `elastic-ctr local` alike
model: {network: slot-dnn, embeddingDim: 9, sparseDim: null, partitions: 60}
trainer: {replicas: 2, minReplicas: 1, resources: {cpu: 1, memory: 2Gi}, config: {batchSize: 512, epochs: 1}}
pserver: {replicas: 2}
cube: {replicasPerShard: 1, config: {shards: 2}}
serving: {replicas: 1}
"""
ROWS = "slots: null, format: jsonl, label: click, shows: 'n'"
INTAKE = 'source: {url: "intake://"}, start: earliest, end: null'
STREAM = 'source: {url: "file:///x?follow"}, start: earliest, end: null, stream: {lateClicks: true}'


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def values(given: str = "") -> Values:
    return settings(Values, merged(yaml.safe_load(SMALLEST), yaml.load(given, Loader=Loader) or {}), "values.yaml")


def refusal(given: str) -> str:
    with pytest.raises(ConfigRefused) as refused:
        values(given)
    return str(refused.value)


def test_the_smallest_useful_file_loads_as_it_stands() -> None:
    found = values()

    assert found.data.slots == ("0", "1", "2", "3")
    assert (found.data.start, found.data.end) == ("20200401/00", "20200401/03")
    assert (found.model.embedding_dim, found.model.sparse_dim, found.model.partitions) == (9, None, 60)
    assert (found.trainer.replicas, found.trainer.config.batch_size) == (2, 512)
    assert (found.cube.config.shards, found.cube.replicas_per_shard) == (2, 1)


def test_only_the_data_must_be_given() -> None:
    found = settings(Values, {"data": yaml.safe_load(SMALLEST)["data"]}, "values.yaml")

    assert (found.trainer.replicas, found.pserver.replicas, found.serving.replicas) == (2, 2, 1)
    assert (found.master.config.max_failures, found.master.config.checkpoint_per_pass) == (3, 1)
    assert (found.data.time_zone, found.data.split_interval, found.data.donefile) == ("UTC", 60, "donefile")


def test_the_empty_file_says_what_is_missing() -> None:
    with pytest.raises(ConfigRefused, match=r"values\.yaml: data is missing"):
        settings(Values, {}, "values.yaml")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("trainers: {}", "trainers is not a setting; did you mean trainer?"),
        ("cube: {config: {shrads: 3}}", "cube.config.shrads is not a setting"),
        ("data: {source: {urll: x}}", "data.source.urll is not a setting"),
        ("model: {embeddingDim: nine}", "model.embeddingDim: input should be a valid integer"),
        (
            "trainer: {config: {batchSize: [1]}}",
            "trainer.config.batchSize: [1] is neither auto nor a whole number from 1 to 2^53",
        ),
        ("trainer: 5", "trainer: input should be a valid dictionary"),
        ("data: {slots: []}", "data.slots: the slot list is empty; name at least one slot"),
        ("data: {slots: ''}", "data.slots: the slot list is empty"),
        ("data: {slots: ['1', '2', '1']}", "data.slots: the slot list names 1 more than once"),
        ("data: {slots: [a:b]}", "data.slots: the slot name 'a:b' cannot stand in a line"),
        ("data: {slots: [1.5]}", "data.slots: a slot is text, and 1.5 is none to YAML; write it in quotes"),
        ("data: {slots: {a: 1}}", "data.slots: slots is a list of texts, or one text with a slot a line"),
        ("data: {slots: [9007199254740993]}", "data.slots: a slot is text, and 9007199254740993 is none to YAML"),
        ("data: {start: 20200401/05}", "data: end 20200401/03 is before start 20200401/05; swap them"),
        ("data: {start: 2020-04-01}", "data.start: '2020-04-01' is not YYYYMMDD/HH"),
        ("data: {start: 20200401}", "data.start: 20200401 is no text to YAML; write it in quotes"),
        ("data: {start: '20200401'}", "data.start: '20200401' is not YYYYMMDD/HH or YYYYMMDD/HHMM"),
        (
            "data: {source: {url: delta+s3://lake/t}, start: 20200401/00}",
            "data.start: '20200401/00' is no commit of a table; give a",
        ),
        (
            "data: {source: {url: iceberg://lake/db.t}, start: '1', end: latest}",
            "data: end latest is no commit of a table",
        ),
        (
            "data: {source: {url: delta+s3://lake/t}, start: '1', end: null}",
            "data: format clicks is of files; the rows of a table",
        ),
        ("data: {source: {url: iceberg://lake/t}}", "data.source.url: 'iceberg://lake/t' is none of file:///some/dir"),
        ("data: {source: {url: 'delta+file:///t?follow'}}", "data.source.url: the address is none of file:///some/dir"),
        ("data: {skipChanges: true}", "data: skipChanges is of tables, and hdfs://namenode:9000 is none; leave it out"),
        ("data: {start: 20200401/24}", "data.start: '20200401/24' names a time that does not exist"),
        ("data: {end: 20200231/00}", "data.end: '20200231/00' names a time that does not exist"),
        ("data: {start: 20200401/0030}", "data: start 20200401/0030 is not on the 60-minute grid of splitInterval"),
        ("data: {end: 20200401/0240}", "data: end 20200401/0240 is not on the 60-minute grid"),
        ("data: {splitInterval: 7}", "data: splitInterval 7 does not divide a day; give 5, 10, 15, 30, 60"),
        ("data: {timeZone: Mars/Olympus}", "data.timeZone: 'Mars/Olympus' is not a time zone of the IANA list"),
        ("data: {timeZone: ../etc}", "data.timeZone: '../etc' is not a time zone"),
        (
            f"data: {{{INTAKE}}}",
            "data.source.url is intake://, the intake of this release, which is off: set intake.enabled to true, or give",
        ),
        (
            "intake: {enabled: true}",
            "intake.enabled is true, and data.source.url is hdfs://namenode:9000: nothing would read the clicks; set it to intake://",
        ),
        (
            "data: {stream: {join: {key: id}}}",
            "data: stream.join is of streams, and hdfs://namenode:9000 is none; leave it out",
        ),
        (
            f"data: {{{STREAM.replace('true', 'true, join: {key: id}')}}}",
            "data: stream.join is of a topic or an intake, and file:///x?follow is neither",
        ),
        (
            f"data: {{{INTAKE}, {ROWS}, stream: {{join: {{key: id}}}}}}",
            "data: stream.join makes late clicks: set stream.lateClicks to true",
        ),
        (
            f"data: {{{INTAKE}, stream: {{lateClicks: true, join: {{key: id}}}}}}",
            "data: stream.join is of rows with a column for the key",
        ),
        (
            f"data: {{{INTAKE}, {ROWS}, stream: {{lateClicks: true, join: {{key: click}}}}}}",
            "data: stream.join.key 'click' says what was clicked; name the column with the impression's id",
        ),
        (
            f"data: {{{INTAKE}, {ROWS.replace('jsonl', 'csv')}, columns: [click, 'n'], stream: {{lateClicks: true, join: {{key: id}}}}}}",
            "data: stream.join.key 'id' is not among columns, which are click, n",
        ),
        ("data: {stream: {join: {windowSeconds: 5}}}", "data.stream.join.key is missing"),
        ("data: {source: {url: intake://host}}", "data.source.url: 'intake://host' is none of file:///some/dir"),
        ("data: {source: {url: intake://host:1/topic}}", "data.source.url: 'intake://host:1/topic' is none of"),
        (
            "intake: {config: {maxBodyBytes: 1}}",
            "intake.config.maxBodyBytes: input should be greater than or equal to 1024",
        ),
        (
            "data: {source: {url: ftp://x}}",
            "data.source.url: 'ftp://x' is none of file:///some/dir, hdfs://namenode:9000, s3://bucket/dir, gs://bucket/dir, az://container/dir, kafka://",
        ),
        (
            "data: {stream: {lateClicks: true}}",
            "data: stream.lateClicks is of streams, and hdfs://namenode:9000 is none; leave it out",
        ),
        (
            f"data: {{{STREAM}}}\nmodel: {{table: {{embedx: {{name: std_adagrad}}}}}}",
            "data.stream.lateClicks does not go with model.table.embedx.name std_adagrad, which divides each gradient by the shows",
        ),
        (
            f"data: {{{STREAM}, slots: null, format: jsonl, label: click}}\nfeatures: {{}}",
            "data: stream.lateClicks needs shows: a row without it is one impression; name the column of impressions",
        ),
        (
            "data: {source: {url: kafka://broker:9092/clicks}, start: latest, end: null}\nstore: {config: {url: s3://ads/models}}",
            "store.config.url s3://ads/models is a bucket, which takes no version each 300 ms: set data.stream.windowMs to 5000",
        ),
        ("data: {source: {url: file://host/x}}", "data.source.url: 'file://host/x' is none of"),
        ("data: {maxRefusedShare: 1.5}", "data.maxRefusedShare: input should be less than or equal to 1"),
        ("data: {donefile: a/b}", "data.donefile: "),
        ("cube: {config: {shards: 61}}", "cube.config.shards 61 is above model.partitions 60"),
        ("cube: {config: {shards: 0}}", "cube.config.shards: input should be greater than or equal to 1, not 0"),
        ("pserver: {replicas: 61}", "pserver.replicas 61 is above model.partitions 60"),
        (
            "pserver: {replicas: 13}",
            "pserver.replicas 13 would leave some without any of 60 model.partitions, 5 for each of the first 12; set it to 12",
        ),
        ("trainer: {minReplicas: 3}", "trainer: minReplicas 3 is above replicas 2; lower it"),
        ("model: {network: ../x}", "model.network: "),
        ("model: {output: tanh}", "model.output: input should be 'sigmoid' or 'softmax', not 'tanh'"),
        ("model: {table: {embed: {name: adamax}}}", "model.table.embed.name: input should be 'naive', 'adagrad'"),
        (
            "model: {table: {embedx: {weightBounds: [1, 1]}}}",
            "model.table.embedx: weightBounds [1.0, 1.0] leave no room",
        ),
        ("model: {sparseDim: 9007199254740993}", "model.sparseDim: input should be less than or equal to"),
        (
            "trainer: {config: {epochs: often}}",
            "trainer.config.epochs: 'often' is neither auto nor a whole number from 1 to 2^53",
        ),
        ("data: {slots: [a, b], group: user}", "data.group 'user' is no slot of data.slots; there are a, b"),
        (
            "data: {slots: [a, b]}\nserving: {config: {canary: {feature: user}}}",
            "serving.config.canary.feature 'user' is no slot of data.slots; there are a, b",
        ),
        (
            "serving: {config: {canary: {share: 0.7}}}",
            "serving.config.canary.share: input should be less than or equal to 0.5, not 0.7",
        ),
        ("data: {group: [a]}", 'data.group: a slot is text, and ["a"] is none to YAML; write it in quotes'),
        ("data: {group: 9007199254740993}", "data.group: a slot is text, and 9007199254740993 is none to YAML"),
        ("data: {holdout: 1}", "data.holdout: input should be less than 1, not 1"),
        (
            "trainer: {config: {batchSize: 9007199254740993}}",
            "trainer.config.batchSize: 9007199254740993 is neither auto nor a whole number",
        ),
        ("model: {embeddingDim: 1}", "model.embeddingDim: input should be greater than or equal to 2, not 1"),
        ("serving: {config: {port: 70000}}", "serving.config.port: input should be less than or equal to 65535"),
    ],
)
def test_each_refusal_is_a_sentence_that_names_the_key(given: str, sentence: str) -> None:
    told = refusal(given)

    assert f"values.yaml: {sentence}" in told


def test_clicks_may_come_late_in_a_stream_that_no_adagrad_rule_learns() -> None:
    assert values(f"data: {{{STREAM}}}").data.stream.late_clicks
    values(f"data: {{{STREAM.replace('true', 'false')}}}\nmodel: {{table: {{embed: {{name: adagrad}}}}}}")


def test_everything_wrong_is_told_at_once() -> None:
    told = refusal("{trainer: {replicas: 0}, model: {partitions: 0}, nonsense: 1}")

    assert len(told.splitlines()) == 3


def test_a_number_with_an_exponent_and_no_fraction_is_an_integer() -> None:
    assert values("model: {sparseDim: 1.000001e+06}").model.sparse_dim == 1_000_001


def test_a_number_with_a_fraction_is_no_integer() -> None:
    assert "model.sparseDim: " in refusal("model: {sparseDim: 1000.5}")


@pytest.mark.parametrize("slots", ["[a, b, c]", "'a\n\n b\r\n\n c\n'", '"a\\nb\\nc"'])
def test_slots_are_a_list_or_text_with_one_a_line(slots: str) -> None:
    assert values(f"data: {{slots: {slots}}}").data.slots == ("a", "b", "c")


def test_the_keys_of_kubernetes_pass_unread() -> None:
    found = values(
        """
        global: {anything: 1}
        image: {tag: x}
        auth: {existingSecret: s}
        tracking: {enabled: true}
        cube: {resources: {cpu: 1}, nodeSelector: {a: b}, persistence: {size: 1Gi}, podLabels: {}, extraEnv: []}
        serving: {autoscaling: {enabled: true}, ingress: {hosts: [h]}}
        """
    )

    assert found == values()


def test_a_key_of_kubernetes_inside_the_programs_part_is_refused() -> None:
    assert "cube.config.resources is not a setting" in refusal("cube: {config: {resources: {}}}")


def test_a_null_takes_the_default() -> None:
    assert (
        values("{local: null, master: {config: {leaseSeconds: null}}, model: {table: null}}").model_dump()
        == values().model_dump()
    )


def test_a_block_with_nothing_under_it_takes_the_defaults() -> None:
    assert values("{master: null}").model_dump() == values("{}").model_dump()


def test_settings_are_frozen() -> None:
    found = values()

    with pytest.raises(Exception, match="frozen"):
        found.trainer.replicas = 3  # type: ignore[misc]


def test_a_slot_that_groups_may_be_written_as_a_number() -> None:
    assert values("data: {slots: ['101', '102'], group: '102'}").data.group == "102"
