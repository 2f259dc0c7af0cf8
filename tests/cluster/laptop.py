"""A whole run on this machine, whose versions and whose training the cluster's are compared with."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.kube import eventually
from cluster.release import Values, merged
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.session import Session

# As many hours and clicks as `make demo` has: with fewer, which trainer pushed first decides more than 0.01 of AUC.
HOURS = tuple(f"20200401/{hour:02d}" for hour in range(4))
ROWS = 200_000
# What is the program's is the same there as here.
SHARED: Values = {
    "model": {"partitions": 12, "embeddingDim": 9, "network": {"name": "slot-dnn", "layers": [64, 32]}},
    "trainer": {"replicas": 2},
    "pserver": {"replicas": 2},
}


@dataclass(frozen=True)
class Laptop:
    """What a whole local run leaves: its hours and their values, its store, what its serving answers, its passes."""

    hours: Path
    data: Values
    store: Path
    version: int
    lines: list[str]
    probabilities: list[float]
    passes: list[dict[str, Any]]


def run_on_laptop(folder: Path, count: int = len(HOURS), rows: int = ROWS) -> Laptop:
    """Train, publish and serve so many hours, of so many rows in all, in processes of this machine. Raises NotInTime."""
    hours = folder / "hours"
    synth = ["synth", "--hours", str(count), "--rows", str(rows), "--seed", "1", "--force", str(hours)]
    subprocess.run([sys.executable, "-m", "elastic_ctr", *synth], check=True, capture_output=True)
    shared = folder / "shared.yaml"
    shared.write_text(yaml.safe_dump(merged(SHARED, {"data": {"sleepSeconds": 1}})))
    places = RunPlaces(folder / "run", load_values([hours / "values.yaml", shared], None))
    with Session(places).running() as session:

        def live() -> int | None:
            session.look()
            done = [] if session.status is None else session.status.done
            newest = max((each.version or 0 for each in done), default=None)
            return newest if len(done) == count and session.live == newest else None

        version = eventually("the last version is live on this machine", live, 300, 0.2)
        assert session.status is not None
        passes = [each.to_dict() for each in session.status.passes]
        store = Path(places.store_url.removeprefix("file://"))
        samples = (store / "output" / "ctr_model" / str(version) / "sample.jsonl").read_text().splitlines()
        lines = [json.loads(line)["line"] for line in samples]

        def answered() -> list[float] | None:
            session.look()
            try:
                probabilities, versions = predict(places.serving, "ctr", lines)
            except EndpointUnavailable:
                return None
            return probabilities if set(versions) == {version} else None

        probabilities = eventually("serving answers on this machine", answered, 60)
    data: Values = yaml.safe_load((hours / "values.yaml").read_text())["data"]
    return Laptop(hours, data, store, version, lines, probabilities, passes)
