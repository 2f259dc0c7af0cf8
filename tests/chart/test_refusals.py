"""What is refused at install, and by which sentence: a rule of one key in the schema's words, a rule between keys in ours."""

from typing import Any

import pytest

from chart.api_server import PROMETHEUS, VOLCANO, install
from chart.cases import CLICKS_JOINED
from chart.rendering import SMALLEST, Refused, Renderer, merged
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.networks import WITHOUT_LAYERS
from elastic_ctr.config.values_file import Values

# (values, the place that the schema refuses): the words are those of Helm's schema library.
SINGLE_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no shards": ({"cube": {"config": {"shards": 0}}}, "/cube/config/shards"),
    "an unknown key": ({"cube": {"config": {"shrads": 3}}}, "/cube/config"),
    "an unknown block": ({"cubes": {}}, ""),
    "an unknown key of kubernetes": ({"cube": {"resource": {}}}, "/cube"),
    "4GB for 4Gi": ({"trainer": {"resources": {"memory": "4GB"}}}, "/trainer/resources/memory"),
    "a size of disk": ({"master": {"persistence": {"size": "1 Gi"}}}, "/master/persistence/size"),
    "cores as words": ({"serving": {"resources": {"cpu": "two"}}}, "/serving/resources/cpu"),
    "no trainers": ({"trainer": {"replicas": 0}}, "/trainer/replicas"),
    "no pservers": ({"pserver": {"replicas": 0}}, "/pserver/replicas"),
    "half a trainer": ({"trainer": {"replicas": 1.5}}, "/trainer/replicas"),
    "a count as text": ({"serving": {"replicas": "3"}}, "/serving/replicas"),
    "a port too high": ({"serving": {"config": {"port": 70000}}}, "/serving/config/port"),
    "an unknown network": ({"model": {"network": "../x"}}, "/model/network"),
    "an unknown scheduler": ({"training": {"scheduler": "kueue"}}, "/training/scheduler"),
    "another address of logs": ({"data": {"source": {"url": "ftp://x"}}}, "/data/source/url"),
    "a day that is none": ({"data": {"start": "20200431x"}}, "/data/start"),
    "an hour that is none": ({"data": {"start": "20200401/24"}}, "/data/start"),
    "an interval that splits no day": ({"data": {"splitInterval": 7}}, "/data/splitInterval"),
    "a service of no type": ({"serving": {"service": {"type": "Public"}}}, "/serving/service/type"),
    "a label by which the chart finds its own": ({"serving": {"podLabels": {"app.kubernetes.io/component": "master"}}}, "/serving/podLabels/app.kubernetes.io~1component"),
    "the label of a shard": ({"cube": {"podLabels": {"elastic-ctr/shard": "0"}}}, "/cube/podLabels/elastic-ctr~1shard"),
    "a label of a monitor that is the chart's": ({"metrics": {"serviceMonitor": {"labels": {"app.kubernetes.io/instance": "x"}}}}, "/metrics/serviceMonitor/labels/app.kubernetes.io~1instance"),
    "a label that is none": ({"cube": {"podLabels": {"a b": "c"}}}, "/cube/podLabels"),
    "a label of no such value": ({"cube": {"podLabels": {"a": "b c"}}}, "/cube/podLabels/a"),
    "the checksum of a file": ({"cube": {"podAnnotations": {"checksum/config": "0"}}}, "/cube/podAnnotations/checksum~1config"),
    "another name of a pod": ({"master": {"extraEnv": {"POD_NAME": "x"}}}, "/master/extraEnv/POD_NAME"),
    "another file of a role": ({"master": {"extraEnv": {"ELASTIC_CTR_CONFIG": "x"}}}, "/master/extraEnv/ELASTIC_CTR_CONFIG"),
    "an environment of no name": ({"master": {"extraEnv": {"A B": "x"}}}, "/master/extraEnv"),
    "an environment of no value": ({"master": {"extraEnv": {"A": {"valu": "x"}}}}, "/master/extraEnv/A"),
    "a volume of no name": ({"master": {"extraVolumes": {"My_Logs": {"emptyDir": {}}}}}, "/master/extraVolumes"),
    "a mount with a colon": ({"master": {"extraVolumeMounts": {"/a: b": {"name": "x"}}}}, "/master/extraVolumeMounts"),
    "nowhere to keep the ledger": ({"master": {"config": {"stateDir": ""}}}, "/master/config/stateDir"),
    "a folder of nobody knows where": ({"serving": {"config": {"scratchDir": "scratch"}}}, "/serving/config/scratchDir"),
    "more than a folder": ({"cube": {"config": {"cacheDir": "/a\n  readOnly: true"}}}, "/cube/config/cacheDir"),
    "more than a mount of logs": ({"dataVolume": {"mountPath": "/d\n  subPath: ../.."}}, "/dataVolume/mountPath"),
    "more than a pull secret": ({"image": {"pullSecrets": ["a\nhostNetwork: true"]}}, "/image/pullSecrets/0"),
    "a pull secret of a parent that is none": ({"global": {"imagePullSecrets": ["A"]}}, "/global/imagePullSecrets/0"),
    "more than a queue": ({"training": {"queue": "default\nttlSecondsAfterFinished: 1"}}, "/training/queue"),
    "more than a domain": ({"clusterDomain": "cluster.local\nhost: x"}, "/clusterDomain"),
    "more than an address": ({"cubeTransfer": {"address": "a,--wait,300,b:80"}}, "/cubeTransfer/address"),
    "an address of no port": ({"cubeTransfer": {"address": "x:65536"}}, "/cubeTransfer/address"),
    "more than a path of an ingress": ({"serving": {"ingress": {"path": "/x #y"}}}, "/serving/ingress/path"),
    "a host with an empty part": ({"serving": {"ingress": {"host": "a..b"}}}, "/serving/ingress/host"),
    "a network of 99 bits": ({"networkPolicy": {"hdfs": {"cidrs": ["1.2.3.4/99"]}}}, "/networkPolicy/hdfs/cidrs/0"),
    "a peer's network that is none": ({"networkPolicy": {"dns": [{"ipBlock": {"cidr": "1.2.3/8"}}]}}, "/networkPolicy/dns/0/ipBlock/cidr"),
    "a peer of two kinds": ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]}}, "/networkPolicy/clients/0"),
    "a peer misspelt": ({"networkPolicy": {"clients": [{"podSelector": {"matchLabel": {}}}]}}, "/networkPolicy/clients/0/podSelector"),
    "names from everybody": ({"networkPolicy": {"dns": []}}, "/networkPolicy/dns"),
    "a registry with a scheme": ({"image": {"registry": "https://mirror.example.org"}}, "/image/registry"),
    "a repository with a tag": ({"serving": {"image": {"repository": "a/b:1"}}}, "/serving/image/repository"),
    "a tag that is none": ({"image": {"tag": "1 2"}}, "/image/tag"),
    "a taint's value that nothing is compared with": ({"cube": {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}}, "/cube/tolerations/0/value"),
    "a list for a map": ({"cube": {"nodeSelector": ["a"]}}, "/cube/nodeSelector"),
}  # fmt: skip
MISSING: dict[str, tuple[list[str], str]] = {
    "no slots": (
        ["slots"],
        "data.slots is missing: list the slots that are features, or give data.format and features",
    ),
    "no start": (["start"], "at '/data': missing property 'start'"),
    "no address": (["source"], "at '/data/source': missing property 'url'"),
}
# (values, what validate.yaml says).
ROWS_BY_HTTP: dict[str, Any] = {
    "source": {"url": "intake://"},
    "start": "latest",
    "end": None,
    "slots": None,
    "format": "jsonl",
    "label": "click",
    "shows": "shown",
}
BY_HTTP: dict[str, Any] = {"intake": {"enabled": True}, "features": {"city": {"type": "categorical"}}}
FOLLOWED: dict[str, Any] = {"source": {"url": "kafka://broker:9092/clicks"}, "start": "latest", "end": None}


def brokers(**kafka: Any) -> dict[str, Any]:
    """Values of a topic with such access, and with the Secret that it needs."""
    source = {"url": "kafka://broker:9092/clicks", "kafka": kafka}
    return {"data": {**FOLLOWED, "source": source}, "dataSecret": {"existingSecret": "reader"}}


BETWEEN_KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "more shards than partitions": (
        {"model": {"partitions": 4}, "pserver": {"replicas": 1}, "cube": {"config": {"shards": 5}}},
        ["cube.config.shards 5", "model.partitions 4"],
    ),
    "more pservers than partitions": (
        {"model": {"partitions": 4}, "pserver": {"replicas": 5}},
        ["pserver.replicas 5", "model.partitions 4"],
    ),
    "pservers that would own nothing": (
        {"model": {"partitions": 60}, "pserver": {"replicas": 13}},
        [
            "pserver.replicas 13 would leave some without any of 60 model.partitions, 5 for each of the first 12: set it to 12"
        ],
    ),
    "fewer trainers than the least": (
        {"trainer": {"replicas": 1, "minReplicas": 2}},
        ["trainer.replicas 1", "trainer.minReplicas 2"],
    ),
    "a group that is no slot": (
        {"data": {"slots": ["1", "2"], "group": "3"}},
        ['data.group "3" is no slot of data.slots: name one of them'],
    ),
    "a canary by a slot that is none": (
        {"serving": {"config": {"canary": {"feature": "user"}}}},
        ['serving.config.canary.feature "user" is no slot of data.slots: name one of them'],
    ),
    "a canary by slot 0 that is none": (
        {"data": {"slots": ["1", "2"]}, "serving": {"config": {"canary": {"feature": "0"}}}},
        ['serving.config.canary.feature "0" is no slot of data.slots: name one of them'],
    ),
    "a canary without a cube-transfer of its own": (
        {
            "cubeTransfer": {"enabled": False, "address": "other:8300"},
            "serving": {"config": {"canary": {"share": 0.1}}},
        },
        ["serving.config.canary.share 0.1 needs serving and cube-transfer in one release"],
    ),
    "start after end": (
        {"data": {"start": "20200401/05"}},
        ["data.end 20200401/03", "data.start 20200401/05"],
    ),
    "a stream of hours": (
        {"data": {"source": {"url": "kafka://broker:9092/clicks"}}},
        [
            "data.source.url kafka://broker:9092/clicks is a stream: data.start is earliest or latest, and data.end is left out"
        ],
    ),
    "hours from the earliest on": (
        {"data": {"start": "earliest"}},
        ["data.start earliest is of streams, and data.source.url hdfs://namenode:9000 is none: name a folder"],
    ),
    "late clicks of hours": (
        {"data": {"stream": {"lateClicks": True}}},
        ["data.stream.lateClicks is of streams, and data.source.url hdfs://namenode:9000 is none: leave it out"],
    ),
    "late clicks by a rule that divides by shows": (
        {
            "data": {**FOLLOWED, "stream": {"lateClicks": True}},
            "model": {"table": {"embedx": {"name": "std_adagrad"}}},
        },
        ["data.stream.lateClicks does not go with model.table.embedx.name std_adagrad, which divides by the shows"],
    ),
    "late clicks without a column of impressions": (
        {
            "data": {**FOLLOWED, "stream": {"lateClicks": True}, "format": "jsonl", "label": "click", "slots": None},
            "features": {"user": {"type": "categorical"}},
        },
        ["data.stream.lateClicks needs data.shows: a row without it is one impression"],
    ),
    "credentials in an address": (
        {"data": {**FOLLOWED, "source": {"url": "kafka://alice:word@broker:9092/clicks"}}},
        ["data.source.url has credentials in it: leave them out, put them into a Secret"],
    ),
    "a query for brokers": (
        {"data": {**FOLLOWED, "source": {"url": "kafka://broker:9092/clicks?sasl.password=word"}}},
        ["data.source.url has a query, which no broker is told: leave it out, and give TLS and SASL"],
    ),
    "access to no broker": (
        {"data": {"source": {"kafka": {"tls": True}}}},
        ["data.source.kafka is of brokers, and data.source.url hdfs://namenode:9000 is no address of them"],
    ),
    "an authority without tls": (
        brokers(caFile="/ca.pem"),
        ["data.source.kafka.caFile is of TLS: set data.source.kafka.tls=true, or leave it out"],
    ),
    "a certificate without its key": (
        brokers(tls=True, certFile="/cert.pem"),
        ["data.source.kafka.certFile goes with data.source.kafka.keyFile: give both, or neither"],
    ),
    "a password without sasl": (
        brokers(passwordFile="/password"),
        ["data.source.kafka.passwordFile is of SASL: give data.source.kafka.saslMechanism, or leave it out"],
    ),
    "sasl without credentials": (
        brokers(saslMechanism="PLAIN", usernameFile="/username"),
        ["data.source.kafka.saslMechanism PLAIN needs usernameFile and passwordFile"],
    ),
    "files that no pod has": (
        {**brokers(tls=True, caFile="/ca.pem"), "dataSecret": {"existingSecret": ""}},
        ["data.source.kafka.caFile is a file that no pod has: set dataSecret.existingSecret to a Secret with it"],
    ),
    "clicks by http to an intake that is off": (
        {"data": {**FOLLOWED, "source": {"url": "intake://"}}},
        ["data.source.url is intake://, the intake of this release, which is off: set intake.enabled=true"],
    ),
    "an intake that nobody reads": (
        {"data": FOLLOWED, "intake": {"enabled": True}},
        ["intake.enabled is true, and data.source.url is kafka://broker:9092/clicks, so nothing would read the clicks"],
    ),
    "an intake beside hours": (
        {"intake": {"enabled": True}},
        ["intake.enabled is true, and data.source.url is hdfs://namenode:9000, so nothing would read the clicks"],
    ),
    "hours of an intake": (
        {"data": {"source": {"url": "intake://"}}, "intake": {"enabled": True}},
        ["data.source.url intake:// is a stream: data.start is earliest or latest, and data.end is left out"],
    ),
    "an intake that keeps more than its volume has": (
        {
            "data": {**FOLLOWED, "source": {"url": "intake://"}},
            "intake": {"enabled": True, "config": {"maxBytes": 6 << 30}},
        },
        ["intake.persistence.size 6Gi is less than a fifth above intake.config.maxBytes 6442450944"],
    ),
    "an intake that keeps more than its pod has": (
        {
            "data": {**FOLLOWED, "source": {"url": "intake://"}},
            "intake": {"enabled": True, "persistence": {"enabled": False, "sizeLimit": "4Gi"}},
        },
        ["intake.persistence.sizeLimit 4Gi is less than a fifth above intake.config.maxBytes 4294967296"],
    ),
    "an intake that remembers more than its volume has": (
        {**CLICKS_JOINED, "intake": {"enabled": True, "config": {"maxImpressionBytes": 2 << 30}}},
        [
            "a half above intake.config.maxImpressionBytes 2147483648 together, so the disk would be full before the oldest go"
        ],
    ),
    "an intake that reads a topic from its start with each pod": (
        {**CLICKS_JOINED, "intake": {"enabled": True, "persistence": {"enabled": False}}},
        [
            "intake.persistence.enabled is false, and the intake reads a topic: each new pod would read it from data.start on"
        ],
    ),
    "an intake that reads a topic for nobody's training": (
        {**CLICKS_JOINED, "training": {"enabled": False}},
        [
            "training.enabled is false, and the intake reads a topic: its log keeps what this release's training has not read"
        ],
    ),
    "an intake whose credentials nobody mounts": (
        {**CLICKS_JOINED, "dataSecret": {"existingSecret": ""}},
        [
            "data.source.kafka.caFile is a file that no pod has: set dataSecret.existingSecret to a Secret with it, or mount it into intake"
        ],
    ),
    "a join of hours": (
        {"data": {"stream": {"join": {"key": "id"}}}},
        ["data.stream.join is of streams, and data.source.url hdfs://namenode:9000 is none: leave it out"],
    ),
    "a join of a topic": (
        {"data": {**FOLLOWED, "stream": {"lateClicks": True, "join": {"key": "id"}}}},
        ["data.stream.join is done by the intake, which is off: set intake.enabled=true, and it reads the topic"],
    ),
    "a join without late clicks": (
        {"data": {**ROWS_BY_HTTP, "stream": {"join": {"key": "id"}}}, **BY_HTTP},
        ["data.stream.join makes late clicks: set data.stream.lateClicks=true"],
    ),
    "a join of lines of clicks": (
        {
            "data": {**FOLLOWED, "source": {"url": "intake://"}, "stream": {"lateClicks": True, "join": {"key": "id"}}},
            "intake": {"enabled": True},
        },
        ["data.stream.join is of rows with a column for the key: set data.format to jsonl, csv or tsv"],
    ),
    "a join by the label": (
        {"data": {**ROWS_BY_HTTP, "stream": {"lateClicks": True, "join": {"key": "click"}}}, **BY_HTTP},
        ["data.stream.join.key click says what was clicked: name the column with the impression's id"],
    ),
    "a join by no column": (
        {
            "data": {
                **ROWS_BY_HTTP,
                "format": "csv",
                "columns": ["click", "shown", "city"],
                "stream": {"lateClicks": True, "join": {"key": "id"}},
            },
            **BY_HTTP,
        },
        ["data.stream.join.key id is not among data.columns: name one of click, shown, city"],
    ),
    "a stream of parquet": (
        {
            "data": {
                "source": {"url": "kafka://broker:9092/clicks"},
                "start": "latest",
                "end": None,
                "format": "parquet",
                "label": "click",
                "slots": None,
            },
            "features": {"user": {"type": "categorical"}},
        },
        ["data.format parquet is of whole files: a stream has clicks, csv, tsv or jsonl"],
    ),
    "a stream of rows of no names": (
        {
            "data": {
                "source": {"url": "file:///logs?follow"},
                "start": "latest",
                "end": None,
                "format": "csv",
                "label": "click",
                "slots": None,
            },
            "features": {"user": {"type": "categorical"}},
            "dataVolume": {"existingClaim": "logs"},
        },
        ["data.columns is missing: no line of a stream names its columns, so list them"],
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
    "less memory than is requested": (
        {"serving": {"resources": {"limits": {"memory": "512Mi"}}}},
        ["serving.resources requests 1Gi of memory", "512Mi"],
    ),
    "less processor than is requested": (
        {"trainer": {"resources": {"cpu": 4, "limits": {"cpu": 2}}}},
        ["trainer.resources requests 4 of cpu", "2"],
    ),
    "less of a second container than is requested": (
        {"cube": {"agentResources": {"requests": {"cpu": "250m"}, "limits": {"cpu": 0.2}}}},
        ["cube.agentResources requests 250m of cpu", "0.2"],
    ),
    "units of two kinds": (
        {"cubeTransfer": {"builderResources": {"memory": "1Gi", "limits": {"memory": "1G"}}}},
        ["cubeTransfer.builderResources requests 1Gi of memory", "1G"],
    ),
    "a volume of the pod's own": (
        {"serving": {"extraVolumes": {"scratch": {"emptyDir": {}}}}},
        ["serving.extraVolumes.scratch"],
    ),
    "a mount of no volume": (
        {"serving": {"extraVolumeMounts": {"/x": {"name": "nope"}}}},
        ["serving.extraVolumeMounts./x", "nope", "serving.extraVolumes"],
    ),
    "the ledger among what is thrown away": (
        {"master": {"config": {"stateDir": "/tmp/"}}},
        ["master.config.stateDir /tmp"],
    ),
    "logs among what is thrown away": (
        {"dataVolume": {"existingClaim": "logs", "mountPath": "/tmp"}},
        ["dataVolume.mountPath /tmp"],
    ),
    "logs where the ledger is": (
        {"dataVolume": {"existingClaim": "logs", "mountPath": "/var/lib/elastic-ctr/master"}},
        ["dataVolume.mountPath", "master.config.stateDir"],
    ),
    "a pod that is killed before it stops": (
        {"serving": {"preStopSeconds": 60, "terminationGracePeriodSeconds": 60}},
        ["serving.preStopSeconds 60", "serving.terminationGracePeriodSeconds 60"],
    ),
    "the 31st of April": ({"data": {"start": "20200331/00", "end": "20200431/00"}}, ["data.end 20200431/00"]),
    "a slot twice in text": ({"data": {"slots": "1\n 2\n1\n"}}, ["data.slots names 1 more than once"]),
    "a slot that is a number": (
        {"data": {"slots": ["a", 1000001]}},
        ["data.slots has 1000001, which is no text to YAML"],
    ),
    "a slot that is a truth value": ({"data": {"slots": [True]}}, ["data.slots has true, which is no text to YAML"]),
    "a group that is a number": (
        {"data": {"slots": ["1", "2"], "group": 2}},
        ["data.group has 2, which is no text to YAML"],
    ),
    "a canary by a number of YAML's": (
        {"data": {"slots": ["1"]}, "serving": {"config": {"canary": {"feature": 1}}}},
        ["serving.config.canary.feature has 1, which is no text to YAML"],
    ),
    "slots that are blank": ({"data": {"slots": "\n \r\n"}}, ["data.slots", "at least one"]),
    "a slot with a blank in it": ({"data": {"slots": "a b\n"}}, ['data.slots names "a b"']),
    "bounds upside down": (
        {"model": {"table": {"embed": {"weightBounds": [10, -10]}}}},
        ["model.table.embed.weightBounds [10, -10]"],
    ),
    "a vector threshold beside decay": (
        {"model": {"table": {"embedxThreshold": 10}}},
        ["model.table.embedxThreshold 10", "model.table.showClickDecayRate 1"],
    ),
    **{
        f"two classes of {given}": (
            {"model": {"network": given, "output": "softmax"}},
            ["model.output softmax", f"which {network} has none of", "set model.output to sigmoid"],
        )
        for network in sorted(WITHOUT_LAYERS)
        for given in (network, {"name": network})
    },
    "a name too long": ({"fullnameOverride": "n" * 40}, ["fullnameOverride", "34"]),
}

CITY = {"type": "categorical"}
ROWS: dict[str, Any] = {
    "data": {"source": {"url": "hdfs://namenode:9000"}, "start": "20200401/00", "format": "csv", "label": "click"},
    "features": {"city": CITY},
}
# What is refused of rows, on top of ROWS: by the schema, and by validate.yaml.
FEATURE_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "a feature of no type": ({"x": {"hash": 3}}, "at '/features/x': missing property 'type'"),
    "a feature of another type": ({"x": {"type": "hashed"}}, "at '/features/x/type': value must be one of 'categorical', 'numeric'"),
    "a feature that is a word": ({"x": "categorical"}, "at '/features/x': got string, want object"),
    "a key of another type": ({"x": {**CITY, "ngrams": [1, 2]}}, "at '/features/x': additional properties 'ngrams' not allowed"),
    "a name with a blank": ({"my city": CITY}, "at '/features': additional properties 'my city' not allowed"),
    "a cross of one": ({"x": {"type": "crossed", "of": ["city"]}}, "at '/features/x/of': minItems: got 1, want 2"),
    "a cross of the same": ({"x": {"type": "crossed", "of": ["city", "city"]}}, "at '/features/x/of': items at 0 and 1 are equal"),
    "an unknown transform": ({"x": {"type": "numeric", "transform": ["log2"]}}, "at '/features/x/transform/0': value must be one of 'log1p'"),
    "a word twice": ({"x": {**CITY, "vocabulary": ["a", "a"]}}, "at '/features/x/vocabulary': items at 0 and 1 are equal"),
    "a vocabulary that is a number": ({"x": {**CITY, "vocabulary": 5}}, "at '/features/x/vocabulary': got number, want"),
    "the top none": ({"x": {**CITY, "vocabulary": {"top": 0}}}, "at '/features/x/vocabulary/top': minimum: got 0, want 1"),
    "no boundaries": ({"x": {"type": "bucketized", "boundaries": []}}, "at '/features/x/boundaries': minItems: got 0, want 1"),
    "a hash of none": ({"x": {**CITY, "hash": 0}}, "at '/features/x/hash': minimum: got 0, want 1"),
    "a separator of two": ({"x": {**CITY, "separator": "||"}}, "at '/features/x/separator': maxLength: got 2, want 1"),
}  # fmt: skip
BETWEEN_ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "rows without label": ({"data": {"label": None}}, ["data.label is missing", "csv"]),
    "a reader of another format": ({"data": {"reader": "mine.logs:rows"}}, ["data.reader goes with data.format reader"]),
    "a format without its reader": ({"data": {"format": "reader"}}, ["data.reader goes with data.format reader"]),
    "rows with slots": ({"data": {"slots": ["1"]}}, ["data.slots is for data.format clicks"]),
    "rows without features": ({"features": None}, ["features is missing", "csv"]),
    "clicks with features": ({"data": {"format": "clicks", "label": None, "slots": ["1"]}}, ["features is for rows"]),
    "clicks without slots": ({"data": {"format": "clicks", "label": None}, "features": None}, ["data.slots is missing"]),
    "clicks with a label": ({"data": {"format": "clicks", "slots": ["1"]}, "features": None}, ["data.label is for rows"]),
    "clicks with statistics": (
        {"data": {"format": "clicks", "label": None, "slots": ["1"]}, "features": None, "statistics": "{}"},
        ["statistics is of the columns that features read"],
    ),
    "columns of parquet": ({"data": {"format": "parquet", "columns": ["click", "city"]}}, ["data.columns is for csv and tsv"]),
    "a label among no columns": ({"data": {"columns": ["city"]}}, ['data.label "click" is not among data.columns', "city"]),
    "a feature of no column": (
        {"data": {"columns": ["click", "town"]}},
        ['features.city reads the column "city", which the data lacks', "click, town"],
    ),
    "the label as a feature": ({"features": {"click": CITY}}, ['features.click reads "click", which says what was clicked']),
    "the label by another name": ({"features": {"x": {**CITY, "column": "click"}}}, ['features.x reads "click"']),
    "numbers alone": ({"features": {"city": {"type": "numeric"}}}, ["features has none with keys"]),
    "a modulus beside features": ({"model": {"sparseDim": 1000}}, ["model.sparseDim is for data.format clicks"]),
    "a cross of nobody": ({"features": {"x": {"type": "crossed", "of": ["city", "town"]}}}, ["features.x is a cross of town, which is no feature"]),
    "a cross of a number": (
        {"features": {"p": {"type": "numeric"}, "x": {"type": "crossed", "of": ["city", "p"]}}},
        ["features.x is a cross of p, which cannot be crossed", "city"],
    ),
    "boundaries that fall": ({"features": {"x": {"type": "bucketized", "boundaries": [1, 3, 2]}}}, ["features.x.boundaries does not rise", "3 stands before 2"]),
    "boundaries that repeat": ({"features": {"x": {"type": "bucketized", "boundaries": [0.5, 0.5]}}}, ["features.x.boundaries does not rise"]),
    "a clip of nothing": ({"features": {"x": {"type": "numeric", "transform": [{"clip": [2, 2]}]}}}, ["features.x.transform clip does not rise"]),
    "n-grams turned round": ({"features": {"x": {"type": "text", "ngrams": [2, 1]}}}, ["features.x.ngrams does not rise"]),
    "a group of numbers": (
        {"data": {"group": "p"}, "features": {"p": {"type": "numeric"}}}, ['data.group "p" is no feature with keys'],
    ),
    "a canary by a number": (
        {"serving": {"config": {"canary": {"feature": "p"}}}, "features": {"p": {"type": "numeric"}}},
        ['serving.config.canary.feature "p" is no feature with keys'],
    ),
    "a group of no feature": ({"data": {"group": "town"}}, ['data.group "town" is no feature with keys']),
    "two scales": ({"features": {"x": {"type": "numeric", "transform": ["minMax", "standardize"]}}}, ["features.x.transform has standardize and minMax"]),
    "a name that merges": ({"features": {"<<": CITY}}, ["features.<< has a name that merges maps"]),
    "two bounds of keys": ({"features": {"x": {**CITY, "vocabulary": ["a"], "hash": 3}}}, ["features.x has vocabulary and hash"]),
    "a word twice in text": ({"features": {"x": {**CITY, "vocabulary": "a\nb\r\na\n"}}}, ['features.x.vocabulary has "a" more than once']),
    "a word that is a number": ({"features": {"x": {**CITY, "vocabulary": ["a", 1116]}}}, ["features.x.vocabulary has 1116, which is no text to YAML"]),
    "a name that is yes": ({"features": {"true": CITY}}, ["features has the name true, which YAML makes of yes"]),
    "a blank line of a vocabulary": ({"features": {"x": {**CITY, "vocabulary": "a\n\nb\n"}}}, ["features.x.vocabulary has an empty value"]),
    "a round word": ({"features": {"x": {**CITY, "round": 1, "vocabulary": ["a"]}}}, ['features.x has round', '"a"']),
    "several round numbers": ({"features": {"x": {**CITY, "round": 1, "separator": "|"}}}, ["features.x has round"]),
    "the top of round numbers": ({"features": {"x": {**CITY, "round": 1, "vocabulary": {"top": 3}}}}, ["features.x has round"]),
}  # fmt: skip


@pytest.mark.parametrize(("features", "words"), FEATURE_KEYS.values(), ids=FEATURE_KEYS)
def test_a_rule_of_one_feature_is_enforced_by_the_schema_and_by_the_program(
    render: Renderer, features: dict[str, Any], words: str
) -> None:
    told = render.refusal(below=ROWS, features=features)

    assert words in told
    assert "execution error" not in told
    with pytest.raises(ConfigRefused, match="features"):
        settings(Values, merged(ROWS, {"features": features}), "values.yaml")


@pytest.mark.parametrize(("values", "words"), BETWEEN_ROWS.values(), ids=BETWEEN_ROWS)
def test_a_rule_of_rows_is_one_sentence_of_the_chart_and_is_enforced_by_the_program(
    render: Renderer, values: dict[str, Any], words: list[str]
) -> None:
    told = render.refusal(below=ROWS, **values)

    [sentence] = told.splitlines()
    for word in (*words, ": "):
        assert word in sentence
    with pytest.raises(ConfigRefused):
        settings(Values, merged(ROWS, values), "values.yaml")


# What a pattern that is drawn too narrow would refuse.
TAKEN: dict[str, dict[str, Any]] = {
    "networks of both kinds": {
        "networkPolicy": {"hdfs": {"cidrs": ["0.0.0.0/0", "10.0.0.1/32", "::/0", "fd00::/8", "::ffff:10.0.0.0/104"]}}
    },
    "a transfer by its address": {"cubeTransfer": {"enabled": False, "address": "10.0.0.1:8300"}},
    "a transfer by its whole name": {
        "cubeTransfer": {"enabled": False, "address": "ctr-cube-transfer.ads.svc.cluster.local.:65535"}
    },
    "a registry with port and folders": {"image": {"registry": "localhost:5000/a/b_c", "tag": "v1.2_3-x"}},
    "a repository of several folders": {"serving": {"image": {"repository": "a.b/c__d/e-f"}}},
    "labels of one's own": {"serving": {"podLabels": {"example.org/Team_1": "A_b.c", "x": ""}}},
    "environment of each kind": {
        "serving": {
            "extraEnv": {"A": {"value": "x"}, "B": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, "C": ""}
        }
    },
    "any host of a domain": {"serving": {"ingress": {"enabled": True, "host": "*.a.b", "path": "/v2/models/"}}},
    "no waiting at all": {"serving": {"preStopSeconds": 0, "terminationGracePeriodSeconds": 0}},
    "a leap day": {"data": {"start": "20200229/00"}},
    "a slot.conf of another system": {"data": {"slots": "1\r\n2\r\n\r\n"}},
    "thousands of slots": {"data": {"slots": [str(slot) for slot in range(3000)]}},
    "logs of one's own volume": {
        "trainer": {"extraVolumes": {"data": {"emptyDir": {}}}, "extraVolumeMounts": {"/data": {"name": "data"}}}
    },
}


@pytest.mark.parametrize("values", TAKEN.values(), ids=TAKEN)
def test_right_values_are_rendered(render: Renderer, values: dict[str, Any]) -> None:
    assert render(**values).objects


@pytest.mark.parametrize(("values", "place"), SINGLE_KEYS.values(), ids=SINGLE_KEYS)
def test_the_schema_refuses_one_wrong_key_in_one_sentence(render: Renderer, values: dict[str, Any], place: str) -> None:
    refusal = render.refusal(**values)

    assert f"at '{place}'" in refusal
    assert refusal.count("- at '") == 1, refusal
    assert "execution error" not in refusal


@pytest.mark.parametrize(("keys", "words"), MISSING.values(), ids=MISSING)
def test_a_missing_required_key_is_named_in_the_refusal(render: Renderer, keys: list[str], words: str) -> None:
    data = {
        "source": {"url": "hdfs://namenode:9000"},
        "path": "/train_data",
        "start": "20200401/00",
        "slots": ["1"],
    }
    for key in keys:
        del data[key]

    assert words in render.refusal(below={"data": data})


def test_an_install_with_no_values_says_all_that_is_missing(render: Renderer) -> None:
    told = render.refusal(below={})

    assert "at '/data': missing property 'start'" in told
    assert "at '/data/source': missing property 'url'" in told


@pytest.mark.parametrize(("values", "words"), BETWEEN_KEYS.values(), ids=BETWEEN_KEYS)
def test_a_broken_rule_between_keys_is_refused_in_a_sentence_of_the_chart(
    render: Renderer, values: dict[str, Any], words: list[str]
) -> None:
    told = render.refusal(**values)

    assert "execution error" in told
    sentence = told.rpartition("\n")[2] if "\n" in told else told
    for word in words:
        assert word in sentence, told
    # The thing and the reason, and then the way out.
    assert any(mark in sentence for mark in (": ", "; ")), told


def test_several_wrong_keys_are_refused_at_once(render: Renderer) -> None:
    told = render.refusal(cube={"config": {"shards": 0}}, trainer={"replicas": 0}, nonsense=1)

    for words in ("/cube/config/shards", "/trainer/replicas", "'nonsense'"):
        assert words in told


def test_without_volcano_the_install_names_the_two_ways_out() -> None:
    with pytest.raises(Refused, match=r"install Volcano or set training\.scheduler=none"):
        install(without=[VOLCANO])


def test_a_training_that_is_off_needs_no_volcano() -> None:
    assert install(without=[VOLCANO], training={"enabled": False}).all("Job") == []


@pytest.mark.parametrize("name", ["serviceMonitor", "prometheusRule"])
def test_without_prometheus_operator_what_it_reads_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=rf"metrics\.{name}\.enabled"):
        install(without=[PROMETHEUS], metrics={name: {"enabled": True}})


def test_an_old_kubernetes_is_refused() -> None:
    with pytest.raises(Refused, match=r"1\.27"):
        install(version="1.26.9")


def test_the_rules_between_keys_of_the_chart_are_rules_of_the_program_too() -> None:
    """One rule, two places: the program's own between-keys rules are all among these."""
    for name in (
        "more shards than partitions",
        "more pservers than partitions",
        "fewer trainers than the least",
        "start after end",
        "the 31st of April",
        "a slot twice in text",
        "a slot that is a number",
        "a group that is a number",
        "a canary by a number of YAML's",
        "slots that are blank",
        "a slot with a blank in it",
        "bounds upside down",
    ):
        with pytest.raises(ConfigRefused):
            settings(Values, merged(SMALLEST, BETWEEN_KEYS[name][0]), "values.yaml")


@pytest.mark.parametrize(
    "data", [{"slots": ["1", "1000001"], "group": "1000001"}, {"slots": "1\nuser\n", "group": "user"}, {"group": None}]
)
def test_a_group_that_is_a_slot_is_taken_however_both_are_written(render: Renderer, data: dict[str, Any]) -> None:
    render(data=data)
