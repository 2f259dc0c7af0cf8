"""The example's network of the user's own, given to the chart as text."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster.conftest import BUILD
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged, released
from elastic_ctr.operate.local.endpoints import predict

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-own"
EXAMPLE = Path(__file__).parents[2] / "examples" / "own-network"
HOUR, LINES = "20200401/00", 5000


# tests/pipeline/test_own_network.py trains and serves the example's text; test_rows.py has a release of its own settings.
@pytest.mark.nightly
@pytest.mark.timeout(480)
def test_the_example_is_trained_and_served_by_a_release_that_has_its_text(
    kube: Kube, hadoop: Hadoop, base_values: Values, tmp_path: Path, tell: Callable[..., None]
) -> None:
    dice = random.Random(7)
    (tmp_path / HOUR).mkdir(parents=True)
    with (tmp_path / HOUR / "part-0").open("w") as out:
        for _ in range(LINES):
            keys = " ".join(f"{dice.randrange(1, 200)}:{slot}" for slot in "abc")
            out.write(f"1 {dice.randrange(2)} {keys}\n")
    (tmp_path / HOUR / "donefile").touch()
    hadoop.put(tmp_path / HOUR, f"/own/{HOUR}")
    kube.namespace(NAMESPACE, RESTRICTED)
    network = yaml.safe_load((EXAMPLE / "values.yaml").read_text())["model"]["network"]
    network["source"] = (EXAMPLE / network.pop("file")).read_text()
    changes = {
        "data": {"path": "/own", "start": HOUR, "end": HOUR, "slots": ["a", "b", "c"]},
        "model": {"partitions": 4},
        "trainer": {"replicas": 1},
        "pserver": {"replicas": 1},
        "cube": {"config": {"shards": 1}},
        "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
    }

    values = merged(base_values, changes)
    # In place of the built-in one: its settings are none of this network's.
    values["model"]["network"] = network

    with released(Release(kube, "own", NAMESPACE, BUILD / "values"), values) as release:
        status = release.wait_passes(1)
        release.wait_rolled_out()
        with kube.forwarded(NAMESPACE, f"pod/{name_of(release.pod('serving'))}", 8400) as address:

            def answered() -> list[float] | None:
                probabilities, versions = predict(address, "ctr", ["1:a 2:b 3:c", "4:a 5:b 6:c"])
                return probabilities if set(versions) == {status["passes"][0]["version"]} else None

            probabilities = eventually("serving answers with the version", answered, 60)

    tell(ledger=status["ledger"], probabilities=probabilities)
    assert status["passes"][0]["records"] == LINES
    assert len(set(probabilities)) == 2
    ledger_adds_up(status)
