"""A fresh cluster, `helm install`, and the first prediction from outside."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cluster.conftest import NODE_PORT
from cluster.kube import Kube, eventually, is_ready, restarts
from cluster.release import Release, ledger_adds_up

pytestmark = pytest.mark.smoke
COMPONENTS = ("cube", "cube-transfer", "file-server", "master", "pserver", "serving", "trainer")


def predict(address: str, lines: list[str]) -> tuple[list[float], int] | None:
    """Through the Open Inference Protocol, as any client would; None while there is no answer."""
    tensor = {"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}
    try:
        answer = httpx.post(
            f"http://{address}/v2/models/ctr/infer", json={"inputs": [tensor]}, timeout=10, trust_env=False
        )
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    return outputs["probability"], int(outputs["version"][0])


@pytest.mark.timeout(600)
def test_an_install_ends_in_a_prediction_from_outside(
    installed: Release, kube: Kube, stages: dict[str, float], tell: Callable[..., None]
) -> None:
    start = time.monotonic()

    def since() -> float:
        return round(time.monotonic() - start, 1)

    def all_run() -> bool:
        lacking = [each for each in COMPONENTS if not any(map(is_ready, installed.pods(each)))]
        if lacking:
            raise LookupError(f"not ready: {lacking}")
        return True

    eventually("every role runs", all_run, 300, 1)
    told: dict[str, Any] = {"every role runs": since()}
    installed.wait_passes(1)
    told["first hour trained and published"] = since()
    live = installed.wait_live()
    told["first version live"] = since()
    answer = eventually(
        "a prediction from outside", lambda: predict(f"127.0.0.1:{NODE_PORT}", ["1:0 2:1", "3:2 4:3"]), 60
    )
    told["first prediction from outside"] = since()
    tell(**{key: round(value, 1) for key, value in stages.items()}, **told)

    probabilities, version = answer
    assert len(probabilities) == 2
    assert all(0 < each < 1 for each in probabilities)
    assert version >= live


@pytest.mark.timeout(300)
def test_helm_test_asks_for_a_prediction_and_for_every_holder(settled: Release) -> None:
    told = settled.helm("test", settled.name, "--timeout", "3m")

    assert told.count("Phase:          Succeeded") == 2, told


@pytest.mark.timeout(300)
def test_two_hours_are_trained_and_every_record_is_accounted_for(
    settled: Release, clicks: Any, tell: Callable[..., None]
) -> None:
    status = settled.wait_passes(2)

    ledger_adds_up(status)
    done = [each for each in status["passes"] if each["state"] == "done"]
    tell(passes=[{key: each[key] for key in ("pass", "records", "aucBefore", "auc", "kind")} for each in done])
    assert [each["records"] for each in done[:2]] == [20_000, 20_000]
    assert all(each["auc"] > 0.55 for each in done[:2])


@pytest.mark.timeout(120)
def test_no_container_of_a_fresh_release_has_been_restarted(settled: Release, tell: Callable[..., None]) -> None:
    counted = {each["metadata"]["name"]: restarts(each) for each in settled.pods()}

    tell(restarts=counted)
    assert not any(counted.values()), counted
