"""The share of one pod of a Kubernetes Job."""

from pathlib import Path

import pytest

from elastic_ctr.config.role_files import ScoringFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.jobs.scoring import pod
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.jobs.scoring.quality import ScoringReport, total
from elastic_ctr.jobs.scoring.run import Given, Progress
from elastic_ctr.jobs.scoring.scoring_job import Share, order_of
from elastic_ctr.jobs.scoring.worker import Place

STORE = "http://file-server:8080"


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Share | None]:
    """Those of the jobs that pods run in this test."""
    found: list[Share | None] = []

    def run_job(given: Given, _: Progress) -> ScoringReport:
        found.append(given.share)
        return ScoringReport(7, {}, total([]), 0)

    monkeypatch.setattr(pod, "run_job", run_job)
    return found


def score(scratch: Path, pods: int) -> None:
    settings = ScoringFile.model_validate(
        {
            "data": {
                "source": {"url": "hdfs://namenode:9000"}, "path": "/logs", "start": "20200401/00", "slots": ["0"],
            },
            "store": {"url": STORE}, "transferAddress": "transfer:8300", "scoring": {"scratchDir": str(scratch)},
        }
    )  # fmt: skip
    pod.run_order(
        Order(deed="evaluate", output="scores", pods=pods), settings, Place(StoreConfig(url=STORE)), lambda: None
    )


def test_each_pod_of_an_indexed_job_begins_with_tasks_of_its_own(
    shares: list[Share | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
        score(tmp_path, pods=3)

    assert shares == [Share(0, 3), Share(1, 3), Share(2, 3)]
    assert sorted(task for share in shares for task in order_of(9, share)[:3]) == [*range(9)]


def test_a_pod_without_an_index_has_no_share(
    shares: list[Share | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)

    score(tmp_path / "made", pods=2)

    assert shares == [None]
    assert (tmp_path / "made").is_dir()
