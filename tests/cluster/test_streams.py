"""Clicks that are posted to the intake become versions each second, while trainers and shards come and go."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from cluster.conftest import BUILD, CUBE_IMAGE, SEED, small_values
from cluster.kube import Kube, eventually, name_of
from cluster.load import all_right, asked
from cluster.release import Release, Values, ledger_adds_up, merged, released
from elastic_ctr.features.synthetic import PRESETS, Truth

pytestmark = pytest.mark.functional
NAMESPACE = "elastic-ctr-streams"
TRUTH = Truth(PRESETS["easy"], SEED)
LINES, PAUSE = 100, 0.4


def stream_values() -> Values:
    changes: Values = {
        "data": {
            "start": "earliest", "slots": TRUTH.slots.names, "stream": {"windowMs": 1000},
        },
        "model": {"partitions": 12},
        "intake": {
            "enabled": True, "resources": {"cpu": "40m", "memory": "384Mi"}, "config": {"maxBytes": 256 << 20}, "persistence": {"size": "1Gi"},
        },
        "trainer": {"replicas": 1},
        "pserver": {"replicas": 1},
        "cube": {"config": {"shards": 1}},
        "serving": {"service": {"type": "ClusterIP", "nodePort": None}},
    }  # fmt: skip
    return merged(small_values("intake://", "/"), changes)


class Sender:
    """Posts clicks without pause. One that has no answer is sent again under its key, so it is there once."""

    def __init__(self, address: str, token: str) -> None:
        self.sent = 0
        self._url = f"http://{address}/v1/clicks"
        self._token = token
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        dice = np.random.default_rng(SEED)
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not self._stopping.is_set():
                self._post(client, TRUTH.text(TRUTH.draw(LINES, dice)))
                self._stopping.wait(PAUSE)

    def _post(self, client: httpx.Client, text: bytes) -> None:
        headers = {"authorization": f"Bearer {self._token}", "idempotency-key": str(uuid.uuid4())}
        for _ in range(100):
            try:
                answer = client.post(self._url, content=text, headers=headers)
                if answer.status_code == 200:
                    self.sent += LINES
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.3)
        raise AssertionError("the intake does not take clicks")

    def stop(self) -> int:
        """How many lines the intake has taken."""
        self._stopping.set()
        self._thread.join()
        return self.sent

    def start(self) -> None:
        self._thread.start()


@contextmanager
def clicks_posted(release: Release) -> Iterator[Sender]:
    intake = eventually("the intake is ready", lambda: name_of(release.pod("intake")), 120)
    with release.kube.forwarded(release.namespace, f"pod/{intake}", 8310) as address:
        sender = Sender(address, release.token())
        sender.start()
        try:
            yield sender
        finally:
            sender.stop()


@pytest.mark.timeout(900)
def test_trainers_and_shards_change_under_a_stream_and_every_answer_is_right(
    kube: Kube, workers: list[str], tell: Callable[..., None]
) -> None:
    release = Release(kube, "clicks", NAMESPACE, BUILD / "values")

    def goes_on(what: str) -> None:
        """Two more versions are live, and every pod is what was asked for."""
        start, live = time.time(), release.wait_live()
        release.wait_live(newer_than=release.wait_live(newer_than=live))
        release.wait_rolled_out()
        tell(**{what: round(time.time() - start, 1)})

    with released(release, stream_values()), clicks_posted(release) as sender:
        release.wait_live()
        release.wait_rolled_out()
        with asked(release, CUBE_IMAGE, workers[-1]) as load:
            goes_on("steady")
            release.change({"cube": {"config": {"shards": 2}}})
            goes_on("two shards")
            release.change({"trainer": {"replicas": 2}})
            eventually("both trainers work", lambda: len(release.training()["trainers"]) == 2, 240)
            goes_on("two trainers")
            release.change({"cube": {"config": {"shards": 1}}})
            goes_on("one shard")
            totals = load.stop()
        sent = sender.stop()
        status = eventually("all clicks are trained", lambda: all_trained(release, sent), 120)
        tell(totals=totals, ledger=status["ledger"])

    all_right(totals)
    assert totals["predict"]["values"] > 100
    assert len(totals["predict"]["versions"]) > 10
    ledger_adds_up(status)


def all_trained(release: Release, sent: int) -> Values | None:
    status = release.training()
    return status if status["ledger"]["trained"] == sent and status["stream"]["lag"] == 0 else None
