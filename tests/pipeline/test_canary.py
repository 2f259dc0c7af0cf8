"""The second version answers a share of the requests of a whole run before it goes live."""

from collections.abc import Callable
from pathlib import Path

from elastic_ctr.local.endpoints import predict
from elastic_ctr.store import open_store
from elastic_ctr.versions.manifest import published_versions
from pipeline.running import Run, values_for
from pipeline.test_whole_run import synthetic

MINUTES = 0.3


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
    run = start(values)

    def versions() -> list[set[int]]:
        return [
            {version for line in lines for version in predict(run.places.serving, "ctr", [line])[1]} for lines in users
        ]

    def canary() -> bool:
        release = run.session.release
        return release is not None and release.canary

    run.until(canary, 180, "a candidate that answers a share")
    first, second = published_versions(open_store(run.places.store_url))
    found: list[set[int]] = []

    def both_answer() -> bool:
        found[:] = versions()
        return {version for each in found for version in each} == {first, second}

    run.until(both_answer, MINUTES * 60, "both versions answer")
    again = versions()
    still = canary()
    run.finish()

    assert still
    assert found == again
    assert all(len(each) == 1 for each in found)
    # Thirty users of a share of 0.4: three standard deviations are 8.
    assert 4 <= sum(each == {second} for each in found) <= 20
    assert {version for each in versions() for version in each} == {second}
