"""Sets of values that every object, pod and role file is looked at with: each example, and what examples leave out."""

from typing import Any

from chart.rendering import EXAMPLES, read

CLICKS_BY_HTTP: dict[str, Any] = {
    "data": {"source": {"url": "intake://"}, "start": "earliest", "end": None, "slots": ["0", "1"]},
    "intake": {"enabled": True},
}
CLICKS_JOINED: dict[str, Any] = {
    "data": {
        "source": {
            "url": "kafka://one:9094,two:9095/clicks",
            "kafka": {"tls": True, "caFile": "/etc/elastic-ctr/source/ca.pem"},
        },
        "start": "earliest", "end": None, "slots": None, "format": "jsonl", "label": "click", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    },
    "features": {"user": {"type": "categorical"}},
    "intake": {"enabled": True},
    "dataSecret": {"existingSecret": "reader"},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "without volcano": {"training": {"scheduler": "none"}},
    "nothing of its own": {
        "training": {"enabled": False},
        "cube": {"enabled": False},
        "cubeTransfer": {"enabled": False, "address": "transfer.other:8300"},
        "fileServer": {"enabled": False},
        "store": {"config": {"url": "http://files.other:8080"}},
    },
    "six shards of three": {"cube": {"replicasPerShard": 3, "config": {"shards": 6}}},
    "clicks by http": CLICKS_BY_HTTP,
    "clicks of a topic, joined by the intake": CLICKS_JOINED,
    "another name": {"fullnameOverride": "ads-of-today"},
    **{file.stem: read(file) for file in EXAMPLES},
}
