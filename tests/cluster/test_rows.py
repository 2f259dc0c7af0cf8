"""Raw rows in HDFS, trained and answered by one values file."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.conftest import BUILD
from cluster.hadoop import Hadoop
from cluster.kube import Kube, eventually, name_of
from cluster.release import RESTRICTED, Release, Values, ledger_adds_up, merged, released
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict_rows
from raw_rows import FEATURES, random_row, write_hour

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-rows"
HOURS, ROWS = ("20200401/00", "20200401/01"), 5000


@pytest.mark.timeout(480)
def test_raw_csv_in_hdfs_becomes_versions_that_answer_rows(
    kube: Kube, hadoop: Hadoop, base_values: Values, tmp_path: Path, tell: Callable[..., None]
) -> None:
    dice = random.Random(7)
    for hour in HOURS:
        write_hour(tmp_path / hour, [random_row(dice) for _ in range(ROWS)], dice)
        hadoop.put(tmp_path / hour, f"/rows/{hour}")
    kube.namespace(NAMESPACE, RESTRICTED)
    changes = {
        "data": {"path": "/rows", "end": HOURS[-1], "slots": None, "format": "csv", "label": "clicked"},
        "features": FEATURES,
        "model": {"network": "deepfm", "partitions": 4},
        "trainer": {"replicas": 1},
        "pserver": {"replicas": 1},
        "cube": {"config": {"shards": 1}},
        "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
    }

    with released(Release(kube, "rows", NAMESPACE, BUILD / "values"), merged(base_values, changes)) as release:
        status = release.wait_passes(len(HOURS))
        live = release.wait_live(newer_than=status["passes"][0]["version"])
        release.wait_rolled_out()
        with kube.forwarded(NAMESPACE, f"pod/{name_of(release.pod('serving'))}", 8400) as address:
            rows = [random_row(dice) for _ in range(100)]

            def answered() -> list[float] | None:
                probabilities, versions = predict_rows(address, "ctr", rows)
                return probabilities if set(versions) == {live} else None

            probabilities = eventually(f"serving answers with version {live}", answered, 60)
            with pytest.raises(EndpointUnavailable, match="has the column 'colour', which no feature reads"):
                predict_rows(address, "ctr", [{"user": "u1", "colour": "red"}])

    tell(ledger=status["ledger"], live=live)
    assert [each["records"] for each in status["passes"]] == [ROWS] * len(HOURS)
    assert len(set(probabilities)) > 50
    ledger_adds_up(status)
