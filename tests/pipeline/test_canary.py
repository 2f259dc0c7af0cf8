"""The second version answers a share of the requests of a whole run before it goes live."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict, role_status
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.instances import instances_of
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions
from pipeline.running import Run, values_for
from pipeline.test_whole_run import synthetic

MINUTES = 0.3


# tests/contract/test_serving_versions.py has the same share with real workers, tests/unit/cube/transfer/test_canary_rules.py the minutes.
@pytest.mark.nightly
def test_the_second_version_answers_the_same_share_until_its_minutes_are_over(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 2, 6_000)
    values = values_for(
        tmp_path / "data", slots, "20200401/00", "20200401/01",
        trainer={"replicas": 1}, pserver={"replicas": 1},
        serving={"config": {"canary": {"share": 0.4, "minutes": MINUTES, "feature": slots[0]}}},
    )  # fmt: skip
    # One user each; what else there is does not choose.
    users = [[f"{user}:{slots[0]} {ad}:{slots[1]}" for ad in (1, 2)] for user in range(1, 31)]
    asked = instances_of([[[user], [1]] for user in range(1, 31)], 2)
    chosen = CanaryRule(0.4, slots[0]).chosen(asked, (slots[0], slots[1]), np.arange(30)).tolist()
    run = start(values)

    def versions() -> list[set[int]]:
        return [
            {version for line in lines for version in predict(run.places.serving, "ctr", [line])[1]} for lines in users
        ]

    def canary() -> int | None:
        with suppress(EndpointUnavailable):
            return role_status(ServingStatus, run.places.info.serving_admin).canary
        return None

    run.until(canary, 180, "a candidate that answers a share")
    first, second = published_versions(open_store(run.places.store))
    # Where the machine is busy and a candidate late, the live version answers.
    found = [set[int]() for _ in users]
    while canary() == second and not all(
        second in each for each, of_canary in zip(found, chosen, strict=True) if of_canary
    ):
        now = versions()
        # Else it may have gone live meanwhile.
        if canary() == second:
            found = [before | after for before, after in zip(found, now, strict=True)]
    run.finish()

    assert all(each <= {first, second} for each in found)
    assert [second in each for each in found] == chosen
    assert {version for each in versions() for version in each} == {second}
