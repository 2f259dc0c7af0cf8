"""What is refused at install, and where: a rule of one key by the schema, a rule about Kubernetes by a sentence of the chart, a rule between
settings of the program by the check that runs before pods are changed.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from chart.api_server import PROMETHEUS, VOLCANO, install
from chart.cases import CLICKS_JOINED
from chart.rendering import SMALLEST, Refused, Renderer, merged
from chart.verdicts import of_the_early_check
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.networks import WITHOUT_LAYERS
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.given_values import load_values

# (values, the words of Helm's schema library): a user gets the place and the reason.
WORDED: dict[str, tuple[dict[str, Any], str]] = {
    "no shards": ({"cube": {"config": {"shards": 0}}}, "at '/cube/config/shards': minimum: got 0, want 1"),
    "an unknown key": ({"cube": {"config": {"shrads": 3}}}, "at '/cube/config': additional properties 'shrads' not allowed"),
    "a count as text": ({"serving": {"replicas": "3"}}, "at '/serving/replicas': got string, want integer"),
    "an hour that is none": ({"data": {"start": "20200401/24"}}, "at '/data/start': '20200401/24' does not match pattern"),
    "an interval that splits no day": ({"data": {"splitInterval": 7}}, "at '/data/splitInterval': value must be one of"),
}  # fmt: skip
# (values, the place that the schema refuses)
SINGLE_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown block": ({"cubes": {}}, ""),
    "an unknown key of kubernetes": ({"cube": {"resource": {}}}, "/cube"),
    "4GB for 4Gi": ({"trainer": {"resources": {"memory": "4GB"}}}, "/trainer/resources/memory"),
    "a size of disk": ({"master": {"persistence": {"size": "1 Gi"}}}, "/master/persistence/size"),
    "cores as words": ({"serving": {"resources": {"cpu": "two"}}}, "/serving/resources/cpu"),
    "a feature whose name merges maps": ({"features": {"<<": {"type": "categorical"}}}, "/features"),
    "another address of logs": ({"data": {"source": {"url": "ftp://x"}}}, "/data/source/url"),
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
    "more than a mount of logs": ({"dataVolume": {"mountPath": "/d\n  subPath: ../.."}}, "/dataVolume/mountPath"),
    "more than a pull secret": ({"image": {"pullSecrets": ["a\nhostNetwork: true"]}}, "/image/pullSecrets/0"),
    "a pull secret of a parent that is none": ({"global": {"imagePullSecrets": ["A"]}}, "/global/imagePullSecrets/0"),
    "more than a queue": ({"training": {"queue": "default\nttlSecondsAfterFinished: 1"}}, "/training/queue"),
    "more than a domain": ({"clusterDomain": "cluster.local\nhost: x"}, "/clusterDomain"),
    "more than an address": ({"cubeTransfer": {"address": "a,--wait,300,b:80"}}, "/cubeTransfer/address"),
    "an address of no port": ({"cubeTransfer": {"address": "x:65536"}}, "/cubeTransfer/address"),
    "more than a path of an ingress": ({"serving": {"ingress": {"path": "/x #y"}}}, "/serving/ingress/path"),
    "an address for a host": ({"serving": {"ingress": {"hosts": ["10.0.0.1"]}}}, "/serving/ingress/hosts/0"),
    "a part of a host that is too long": ({"serving": {"grpcIngress": {"hosts": [f"{'a' * 64}.example.org"]}}}, "/serving/grpcIngress/hosts/0"),
    "a gateway without a name": ({"serving": {"httpRoute": {"parentRefs": [{"namespace": "gateways"}]}}}, "/serving/httpRoute/parentRefs/0"),
    "a host with an empty part": ({"serving": {"ingress": {"hosts": ["a..b"]}}}, "/serving/ingress/hosts/0"),
    "the one host of an earlier chart": ({"serving": {"ingress": {"host": "a.b"}}}, "/serving/ingress"),
    "a container without an image": ({"podDefaults": {"initContainers": {"a": {}}}}, "/podDefaults/initContainers/a"),
    "three families of addresses": ({"serviceDefaults": {"ipFamilies": ["IPv4", "IPv5"]}}, "/serviceDefaults/ipFamilies/1"),
    "a reserved label of all objects": ({"commonLabels": {"app.kubernetes.io/name": "a"}}, "/commonLabels/app.kubernetes.io~1name"),
    "a network of 99 bits": ({"networkPolicy": {"hdfs": {"cidrs": ["1.2.3.4/99"]}}}, "/networkPolicy/hdfs/cidrs/0"),
    "a peer's network that is none": ({"networkPolicy": {"dns": [{"ipBlock": {"cidr": "1.2.3/8"}}]}}, "/networkPolicy/dns/0/ipBlock/cidr"),
    "a peer of two kinds": ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]}}, "/networkPolicy/clients/0"),
    "a peer misspelt": ({"networkPolicy": {"clients": [{"podSelector": {"matchLabel": {}}}]}}, "/networkPolicy/clients/0/podSelector"),
    "names from everybody": ({"networkPolicy": {"dns": []}}, "/networkPolicy/dns"),
    "a registry with a scheme": ({"image": {"registry": "https://mirror.example.org"}}, "/image/registry"),
    "a repository with a tag": ({"serving": {"image": {"repository": "a/b:1"}}}, "/serving/image/repository"),
    "a tag that is none": ({"image": {"tag": "1 2"}}, "/image/tag"),
    "a taint's value that nothing is compared with": ({"cube": {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}}, "/cube/tolerations/0/value"),
    "another scheduler": ({"training": {"scheduler": "kueue"}}, "/training/scheduler"),
    "another type of service": ({"serving": {"service": {"type": "clusterIP"}}}, "/serving/service/type"),
    "a list for a map": ({"cube": {"nodeSelector": ["a"]}}, "/cube/nodeSelector"),
}  # fmt: skip
MISSING: dict[str, tuple[list[str], str]] = {
    "no slots": (
        ["slots"],
        "at '/data': missing property 'slots'",
    ),
    "no start": (["start"], "at '/data': missing property 'start'"),
    "no address": (["source"], "at '/data/source': missing property 'url'"),
}
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
CITY = {"type": "categorical"}
ROWS: dict[str, Any] = {
    "data": {"source": {"url": "hdfs://namenode:9000"}, "start": "20200401/00", "format": "csv", "label": "click"},
    "features": {"city": CITY},
}


def brokers(**kafka: Any) -> dict[str, Any]:
    """Values of a topic with such access, and with the Secret that it needs."""
    source = {"url": "kafka://broker:9092/clicks", "kafka": kafka}
    return {"data": {**FOLLOWED, "source": source}, "dataSecret": {"existingSecret": "reader"}}


# (below, values, the place that the schema refuses)
TYPES_AND_FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a slot that is a number": (SMALLEST, {"data": {"slots": ["a", 1000001]}}, "/data/slots/1"),
    "a slot that is a truth value": (SMALLEST, {"data": {"slots": [True]}}, "/data/slots/0"),
    "a group that is a number": (SMALLEST, {"data": {"slots": ["1", "2"], "group": 2}}, "/data/group"),
    "a canary by a number of YAML's": (
        SMALLEST,
        {"data": {"slots": ["1"]}, "serving": {"config": {"canary": {"feature": 1}}}},
        "/serving/config/canary/feature",
    ),
    "rows without label": (ROWS, {"data": {"label": None}}, "/data/label"),
    "clicks without slots": (ROWS, {"data": {"format": "clicks", "label": None}, "features": None}, "/data"),
    "a word that is a number": (
        ROWS,
        {"features": {"x": {**CITY, "vocabulary": ["a", 1116]}}},
        "/features/x/vocabulary/1",
    ),
    "a feature of no type": (ROWS, {"features": {"x": {"hash": 3}}}, "/features/x"),
    "a feature of another type": (ROWS, {"features": {"x": {"type": "hashed"}}}, "/features/x/type"),
    "a feature that is a word": (ROWS, {"features": {"x": "categorical"}}, "/features/x"),
    "a key of another type": (ROWS, {"features": {"x": {**CITY, "ngrams": [1, 2]}}}, "/features/x"),
    "a name with a blank": (ROWS, {"features": {"my city": CITY}}, "/features"),
    "a cross of one": (ROWS, {"features": {"x": {"type": "crossed", "of": ["city"]}}}, "/features/x/of"),
    "a cross of the same": (ROWS, {"features": {"x": {"type": "crossed", "of": ["city", "city"]}}}, "/features/x/of"),
    "an unknown transform": (
        ROWS,
        {"features": {"x": {"type": "numeric", "transform": ["log2"]}}},
        "/features/x/transform/0",
    ),
    "a word twice": (ROWS, {"features": {"x": {**CITY, "vocabulary": ["a", "a"]}}}, "/features/x/vocabulary"),
    "a vocabulary that is a number": (ROWS, {"features": {"x": {**CITY, "vocabulary": 5}}}, "/features/x/vocabulary"),
    "the top none": (ROWS, {"features": {"x": {**CITY, "vocabulary": {"top": 0}}}}, "/features/x/vocabulary/top"),
    "no boundaries": (ROWS, {"features": {"x": {"type": "bucketized", "boundaries": []}}}, "/features/x/boundaries"),
    "a hash of none": (ROWS, {"features": {"x": {**CITY, "hash": 0}}}, "/features/x/hash"),
    "a separator of two": (ROWS, {"features": {"x": {**CITY, "separator": "||"}}}, "/features/x/separator"),
}
# (values, what a sentence of the chart has)
OF_KUBERNETES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a canary without a cube-transfer of its own": (
        {
            "cubeTransfer": {"enabled": False, "address": "other:8300"},
            "serving": {"config": {"canary": {"share": 0.1}}},
        },
        ["serving.config.canary.share 0.1 needs serving and cube-transfer in one release"],
    ),
    "files that no pod has": (
        {**brokers(tls=True, caFile="/ca.pem"), "dataSecret": {"existingSecret": ""}},
        ["data.source.kafka.caFile is a file that no pod has: set dataSecret.existingSecret to a Secret with it"],
    ),
    "a keytab that no pod has": (
        {"data": {"source": {"user": "ctr@EXAMPLE.ORG", "keytab": "/ctr.keytab"}}},
        [
            "data.source.keytab is a file that no pod has: set kerberos.existingSecret to a Secret with it and with krb5.conf"
        ],
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
    "ingress without host": ({"serving": {"ingress": {"enabled": True}}}, ["serving.ingress.hosts"]),
    "ingress of gRPC without host": ({"serving": {"grpcIngress": {"enabled": True}}}, ["serving.grpcIngress.hosts"]),
    "a route of no gateway": ({"serving": {"httpRoute": {"enabled": True}}}, ["set serving.httpRoute.parentRefs"]),
    "a route to a closed port": (
        {"serving": {"config": {"grpcPort": 0}, "grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}},
        ["serving.grpcRoute.enabled leads to gRPC, and serving.config.grpcPort 0 closes its port"],
    ),
    "serving without cube": ({"cube": {"enabled": False}}, ["cube.enabled"]),
    "no store": ({"fileServer": {"enabled": False}}, ["store.config.url", "fileServer.enabled"]),
    "logs on no volume": (
        {"data": {"source": {"url": "file:///data"}}},
        ["dataVolume.existingClaim", "data.source.url"],
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
        {"cubeTransfer": {"builderResources": {"requests": {"cpu": "250m"}, "limits": {"cpu": 0.2}}}},
        ["cubeTransfer.builderResources requests 250m of cpu", "0.2"],
    ),
    "units of two kinds": (
        {"cubeTransfer": {"builderResources": {"memory": "1Gi", "limits": {"memory": "1G"}}}},
        ["cubeTransfer.builderResources requests 1Gi of memory", "1G"],
    ),
    "less memory of a check than is requested": (
        {"check": {"resources": {"limits": {"memory": "128Mi"}}}},
        ["check.resources requests 256Mi of memory", "128Mi"],
    ),
    "a volume of the pod's own": (
        {"serving": {"extraVolumes": {"scratch": {"emptyDir": {}}}}},
        ["serving.extraVolumes.scratch"],
    ),
    "a mount of no volume": (
        {"serving": {"extraVolumeMounts": {"/x": {"name": "nope"}}}},
        ["serving.extraVolumeMounts./x", "nope", "serving.extraVolumes"],
    ),
    "a container with the name of the role's": (
        {"cubeTransfer": {"extraContainers": {"cube-builder": {"image": "a"}}}},
        ["cubeTransfer.extraContainers.cube-builder has the name of a container"],
    ),
    "two containers of one name": (
        {"serving": {"initContainers": {"mesh": {"image": "a"}}, "extraContainers": {"mesh": {"image": "a"}}}},
        ["serving.extraContainers.mesh has the name of a container"],
    ),
    "a mount of no volume in a container of one's own": (
        {"serving": {"initContainers": {"a": {"image": "a", "volumeMounts": [{"name": "nope", "mountPath": "/x"}]}}}},
        ["serving.initContainers.a mounts the volume nope", "serving.extraVolumes"],
    ),
    "logs among what is thrown away": (
        {"dataVolume": {"existingClaim": "logs", "mountPath": "/tmp"}},
        ["dataVolume.mountPath /tmp"],
    ),
    "logs where the ledger is": (
        {"dataVolume": {"existingClaim": "logs", "mountPath": "/var/lib/elastic-ctr/master"}},
        ["dataVolume.mountPath /var/lib/elastic-ctr/master"],
    ),
    "a pod that is killed before it stops": (
        {"serving": {"preStopSeconds": 60, "terminationGracePeriodSeconds": 60}},
        ["serving.preStopSeconds 60", "serving.terminationGracePeriodSeconds 60"],
    ),
    "a name too long": ({"fullnameOverride": "n" * 40}, ["fullnameOverride", "34"]),
}

# (below, values, what the sentence of the early check begins with)
OF_THE_PROGRAM: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "more shards than partitions": (
        SMALLEST,
        {"model": {"partitions": 4}, "pserver": {"replicas": 1}, "cube": {"config": {"shards": 5}}},
        "cube.config.shards",
    ),
    "more pservers than partitions": (
        SMALLEST,
        {"model": {"partitions": 4}, "pserver": {"replicas": 5}},
        "pserver.replicas",
    ),
    "pservers that would own nothing": (
        SMALLEST,
        {"model": {"partitions": 60}, "pserver": {"replicas": 13}},
        "pserver.replicas",
    ),
    "fewer trainers than the least": (SMALLEST, {"trainer": {"replicas": 1, "minReplicas": 2}}, "trainer"),
    "a group that is no slot": (SMALLEST, {"data": {"slots": ["1", "2"], "group": "3"}}, "data.group"),
    "a canary by a slot that is none": (
        SMALLEST,
        {"serving": {"config": {"canary": {"feature": "user"}}}},
        "serving.config.canary.feature",
    ),
    "a canary by slot 0 that is none": (
        SMALLEST,
        {"data": {"slots": ["1", "2"]}, "serving": {"config": {"canary": {"feature": "0"}}}},
        "serving.config.canary.feature",
    ),
    "start after end": (SMALLEST, {"data": {"start": "20200401/05"}}, "data"),
    "a stream of hours": (SMALLEST, {"data": {"source": {"url": "kafka://broker:9092/clicks"}}}, "data"),
    "hours from the earliest on": (SMALLEST, {"data": {"start": "earliest"}}, "data"),
    "late clicks of hours": (SMALLEST, {"data": {"stream": {"lateClicks": True}}}, "data"),
    "late clicks by a rule that divides by shows": (
        SMALLEST,
        {
            "data": {**FOLLOWED, "stream": {"lateClicks": True}},
            "model": {"table": {"embedx": {"name": "std_adagrad"}}},
        },
        "data.stream.lateClicks",
    ),
    "late clicks without a column of impressions": (
        SMALLEST,
        {
            "data": {**FOLLOWED, "stream": {"lateClicks": True}, "format": "jsonl", "label": "click", "slots": None},
            "features": {"user": {"type": "categorical"}},
        },
        "data",
    ),
    "a keytab for a folder": (
        SMALLEST,
        {
            "data": {"source": {"url": "file:///data", "user": "ctr@EXAMPLE.ORG", "keytab": "/ctr.keytab"}},
            "dataVolume": {"existingClaim": "logs"},
            "kerberos": {"existingSecret": "reader"},
        },
        "data.source",
    ),
    "a keytab without its principal": (
        SMALLEST,
        {"data": {"source": {"keytab": "/ctr.keytab"}}, "kerberos": {"existingSecret": "reader"}},
        "data.source",
    ),
    "access to no broker": (SMALLEST, {"data": {"source": {"kafka": {"tls": True}}}}, "data.source"),
    "an authority without tls": (SMALLEST, brokers(caFile="/ca.pem"), "data.source.kafka"),
    "a certificate without its key": (SMALLEST, brokers(tls=True, certFile="/cert.pem"), "data.source.kafka"),
    "a password without sasl": (SMALLEST, brokers(passwordFile="/password"), "data.source.kafka"),
    "sasl without credentials": (
        SMALLEST,
        brokers(saslMechanism="PLAIN", usernameFile="/username"),
        "data.source.kafka",
    ),
    "clicks by http to an intake that is off": (
        SMALLEST,
        {"data": {**FOLLOWED, "source": {"url": "intake://"}}},
        "data.source.url",
    ),
    "an intake that nobody reads": (SMALLEST, {"data": FOLLOWED, "intake": {"enabled": True}}, "intake.enabled"),
    "an intake beside hours": (SMALLEST, {"intake": {"enabled": True}}, "intake.enabled"),
    "hours of an intake": (SMALLEST, {"data": {"source": {"url": "intake://"}}, "intake": {"enabled": True}}, "data"),
    "a join of hours": (SMALLEST, {"data": {"stream": {"join": {"key": "id"}}}}, "data"),
    "a join of a topic": (
        SMALLEST,
        {"data": {**FOLLOWED, "stream": {"lateClicks": True, "join": {"key": "id"}}}},
        "data",
    ),
    "a join of a topic by an intake that is off": (
        SMALLEST,
        {**CLICKS_JOINED, "intake": {"enabled": False}},
        "data.stream.join is done by the intake, which is off",
    ),
    "a join without late clicks": (
        SMALLEST,
        {"data": {**ROWS_BY_HTTP, "stream": {"join": {"key": "id"}}}, **BY_HTTP},
        "data",
    ),
    "a join of lines of clicks": (
        SMALLEST,
        {
            "data": {**FOLLOWED, "source": {"url": "intake://"}, "stream": {"lateClicks": True, "join": {"key": "id"}}},
            "intake": {"enabled": True},
        },
        "data",
    ),
    "a join by the label": (
        SMALLEST,
        {"data": {**ROWS_BY_HTTP, "stream": {"lateClicks": True, "join": {"key": "click"}}}, **BY_HTTP},
        "data",
    ),
    "a join by no column": (
        SMALLEST,
        {
            "data": {
                **ROWS_BY_HTTP,
                "format": "csv",
                "columns": ["click", "shown", "city"],
                "stream": {"lateClicks": True, "join": {"key": "id"}},
            },
            **BY_HTTP,
        },
        "data",
    ),
    "a stream of parquet": (
        SMALLEST,
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
        "data",
    ),
    "a stream of rows of no names": (
        SMALLEST,
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
        "data",
    ),
    "more copies wanted ready than there are": (
        SMALLEST,
        {"cubeTransfer": {"config": {"minReadyReplicas": 2}}},
        "cubeTransfer.config.minReadyReplicas",
    ),
    "the 31st of April": (SMALLEST, {"data": {"start": "20200331/00", "end": "20200431/00"}}, "data.end"),
    "a slot twice in text": (SMALLEST, {"data": {"slots": "1\n 2\n1\n"}}, "data.slots"),
    "slots that are blank": (SMALLEST, {"data": {"slots": "\n \r\n"}}, "data.slots"),
    "a slot with a blank in it": (SMALLEST, {"data": {"slots": "a b\n"}}, "data.slots"),
    "bounds upside down": (SMALLEST, {"model": {"table": {"embed": {"weightBounds": [10, -10]}}}}, "model.table.embed"),
    "a vector threshold beside decay": (SMALLEST, {"model": {"table": {"embedxThreshold": 10}}}, "model.table"),
    "a reader of another format": (ROWS, {"data": {"reader": "mine.logs:rows"}}, "data"),
    "a format without its reader": (ROWS, {"data": {"format": "reader"}}, "data"),
    "rows with slots": (ROWS, {"data": {"slots": ["1"]}}, "data"),
    "rows without features": (ROWS, {"features": None}, "features"),
    "clicks with features": (ROWS, {"data": {"format": "clicks", "label": None, "slots": ["1"]}}, "features"),
    "clicks with a label": (ROWS, {"data": {"format": "clicks", "slots": ["1"]}, "features": None}, "data"),
    "clicks with statistics": (
        ROWS,
        {"data": {"format": "clicks", "label": None, "slots": ["1"]}, "features": None, "statistics": "{}"},
        "statistics",
    ),
    "columns of parquet": (ROWS, {"data": {"format": "parquet", "columns": ["click", "city"]}}, "data"),
    "a label among no columns": (ROWS, {"data": {"columns": ["city"]}}, "data"),
    "a feature of no column": (ROWS, {"data": {"columns": ["click", "town"]}}, "features.city"),
    "the label as a feature": (ROWS, {"features": {"click": CITY}}, "features.click"),
    "the label by another name": (ROWS, {"features": {"x": {**CITY, "column": "click"}}}, "features.x"),
    "numbers alone": (ROWS, {"features": {"city": {"type": "numeric"}}}, "features"),
    "a modulus beside features": (ROWS, {"model": {"sparseDim": 1000}}, "model.sparseDim"),
    "a cross of nobody": (ROWS, {"features": {"x": {"type": "crossed", "of": ["city", "town"]}}}, "features"),
    "a cross of a number": (
        ROWS,
        {"features": {"p": {"type": "numeric"}, "x": {"type": "crossed", "of": ["city", "p"]}}},
        "features",
    ),
    "boundaries that fall": (
        ROWS,
        {"features": {"x": {"type": "bucketized", "boundaries": [1, 3, 2]}}},
        "features.x.boundaries",
    ),
    "boundaries that repeat": (
        ROWS,
        {"features": {"x": {"type": "bucketized", "boundaries": [0.5, 0.5]}}},
        "features.x.boundaries",
    ),
    "a clip of nothing": (
        ROWS,
        {"features": {"x": {"type": "numeric", "transform": [{"clip": [2, 2]}]}}},
        "features.x.transform.0.clip",
    ),
    "n-grams turned round": (ROWS, {"features": {"x": {"type": "text", "ngrams": [2, 1]}}}, "features.x.ngrams"),
    "a group of numbers": (ROWS, {"data": {"group": "p"}, "features": {"p": {"type": "numeric"}}}, "data.group"),
    "a canary by a number": (
        ROWS,
        {"serving": {"config": {"canary": {"feature": "p"}}}, "features": {"p": {"type": "numeric"}}},
        "serving.config.canary.feature",
    ),
    "a group of no feature": (ROWS, {"data": {"group": "town"}}, "data.group"),
    "two scales": (
        ROWS,
        {"features": {"x": {"type": "numeric", "transform": ["minMax", "standardize"]}}},
        "features.x.transform",
    ),
    "two bounds of keys": (ROWS, {"features": {"x": {**CITY, "vocabulary": ["a"], "hash": 3}}}, "features.x"),
    "a word twice in text": (ROWS, {"features": {"x": {**CITY, "vocabulary": "a\nb\r\na\n"}}}, "features.x.vocabulary"),
    "a name that is yes": (ROWS, {"features": {"true": CITY}}, "features"),
    "a blank line of a vocabulary": (
        ROWS,
        {"features": {"x": {**CITY, "vocabulary": "a\n\nb\n"}}},
        "features.x.vocabulary",
    ),
    "a round word": (ROWS, {"features": {"x": {**CITY, "round": 1, "vocabulary": ["a"]}}}, "features.x"),
    "several round numbers": (ROWS, {"features": {"x": {**CITY, "round": 1, "separator": "|"}}}, "features.x"),
    "the top of round numbers": (
        ROWS,
        {"features": {"x": {**CITY, "round": 1, "vocabulary": {"top": 3}}}},
        "features.x",
    ),
    **{
        f"two classes of {given}": (SMALLEST, {"model": {"network": given, "output": "softmax"}}, "model")
        for network in sorted(WITHOUT_LAYERS)
        for given in (network, {"name": network})
    },
}


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
    "any host of a domain": {"serving": {"ingress": {"enabled": True, "hosts": ["*.a.b"], "path": "/v2/models/"}}},
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


@pytest.mark.parametrize(("values", "words"), WORDED.values(), ids=WORDED)
def test_the_schema_refuses_one_wrong_key_in_one_sentence(render: Renderer, values: dict[str, Any], words: str) -> None:
    refusal = render.refusal(**values)

    assert words in refusal
    assert refusal.count("- at '") == 1, refusal


@pytest.mark.parametrize(("values", "place"), SINGLE_KEYS.values(), ids=SINGLE_KEYS)
def test_the_schema_refuses_one_wrong_key_by_its_place(render: Renderer, values: dict[str, Any], place: str) -> None:
    refusal = render.refusal(**values)

    assert f"'{place}'" in refusal
    assert "execution error" not in refusal


@pytest.mark.parametrize(("below", "values", "place"), TYPES_AND_FEATURES.values(), ids=TYPES_AND_FEATURES)
def test_a_rule_of_one_setting_is_enforced_by_the_schema_and_by_the_program(
    render: Renderer, below: dict[str, Any], values: dict[str, Any], place: str
) -> None:
    refusal = render.refusal(below=below, **values)

    assert f"'{place}'" in refusal
    assert "execution error" not in refusal
    with pytest.raises(ConfigRefused):
        settings(Values, merged(below, values), "values.yaml")


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


@pytest.mark.parametrize(("values", "words"), OF_KUBERNETES.values(), ids=OF_KUBERNETES)
def test_a_broken_rule_about_kubernetes_is_refused_in_a_sentence_of_the_chart(
    render: Renderer, values: dict[str, Any], words: list[str]
) -> None:
    told = render.refusal(**values)

    assert "execution error" in told
    sentence = told.rpartition("\n")[2] if "\n" in told else told
    for word in words:
        assert word in sentence, told
    # The thing and the reason, and then the way out.
    assert any(mark in sentence for mark in (": ", "; ")), told


@pytest.mark.parametrize(("below", "values", "place"), OF_THE_PROGRAM.values(), ids=OF_THE_PROGRAM)
def test_a_broken_rule_between_settings_is_one_sentence_of_the_early_check(
    render: Renderer, tmp_path: Path, below: dict[str, Any], values: dict[str, Any], place: str
) -> None:
    [sentence] = of_the_early_check(render(below=below, **values), tmp_path).splitlines()

    assert sentence.partition("values.yaml: ")[2].startswith(place)


def nested(key: str, value: object) -> dict[str, Any]:
    for step in reversed(key.split(".")):
        value = {step: value}
    assert isinstance(value, dict)
    return value


# By setting: an address that is right, and forms of it that could hold a password, which ConfigMaps, logs and status would show.
ADDRESSES: dict[str, tuple[str, list[str]]] = {
    "data.source.url": (
        "kafka://one:9092,two:9092/clicks",
        [
            "kafka://alice:word@broker:9092/clicks",
            "kafka://broker:9092/clicks@word",
            "kafka://broker:9092/clicks?sasl.password=word",
            "kafka://broker:9092/clicks#word",
            "intake://alice:word@host:8310",
            "hdfs://alice:word@namenode:9000/clicks",
            "webhdfs://one,alice:word@two:9870",
        ],
    ),
    **dict.fromkeys(
        ("store.config.url", "model.startFrom.store"),
        (
            "hdfs://one:9000,two:9000/models/of@ads",
            [
                "http://alice:word@files:8080/models",
                "https://word@files",
                "http://files:8080/models?token=word",
                "http://files:8080#word",
                "hdfs://alice:word@namenode:9000/models",
                "hdfs://namenode:9000/models?user.name=word",
            ],
        ),
    ),
    "local.trackingUrl": (
        "https://mlflow:5000/of/ads",
        ["http://alice:word@mlflow:5000", "http://mlflow:5000?token=word", "http://mlflow/#word"],
    ),
}


@pytest.mark.parametrize(("key", "url"), [(key, url) for key, (_, wrong) in ADDRESSES.items() for url in wrong])
def test_credentials_in_an_address_reach_no_configmap_and_are_not_repeated(
    render: Renderer, tmp_path: Path, key: str, url: str
) -> None:
    right, wrong = nested(key, ADDRESSES[key][0]), nested(key, url)
    assert render(**right).objects

    assert f"at '/{key.replace('.', '/')}'" in render.refusal(**wrong)
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(merged(SMALLEST, wrong)))
    with pytest.raises(ConfigRefused) as refused:
        load_values([file], None)
    [sentence] = str(refused.value).splitlines()
    assert sentence.partition("values.yaml: ")[2].startswith(f"{key}: the address has ")
    assert "leave " in sentence
    assert "word" not in sentence.replace("passwordFile", "")


def test_the_early_check_reports_several_errors_at_once(render: Renderer, tmp_path: Path) -> None:
    wrong = render(trainer={"minReplicas": 9}, data={"end": "20200431/00"})

    assert len(of_the_early_check(wrong, tmp_path).splitlines()) == 2


def test_right_values_pass_the_early_check(render: Renderer, tmp_path: Path) -> None:
    for values in TAKEN.values():
        assert of_the_early_check(render(**values), tmp_path) == ""


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


@pytest.mark.parametrize(
    "data", [{"slots": ["1", "1000001"], "group": "1000001"}, {"slots": "1\nuser\n", "group": "user"}, {"group": None}]
)
def test_a_group_that_is_a_slot_is_taken_however_both_are_written(render: Renderer, data: dict[str, Any]) -> None:
    render(data=data)
