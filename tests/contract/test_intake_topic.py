"""An intake that reads a real Kafka topic, and is killed meanwhile."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from bench.kafka_broker import Broker

from contract.kafka_world import plain_broker, why_not
from elastic_ctr.config.data import Data
from elastic_ctr.config.features import Features
from elastic_ctr.config.intake_settings import IntakeConfig
from elastic_ctr.config.role_files import IntakeFile
from elastic_ctr.sources.streams.interface import TopicBefore
from elastic_ctr.sources.streams.open import open_stream
from ports import free_port

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

PIECES, ROWS = 40, 200


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = plain_broker(tmp_path / "kafka").start()
    yield running
    running.stop()


class Child:
    """The process of an intake."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.port = free_port()
        data = {
            "source": {"url": topic}, "start": "earliest", "format": "jsonl", "label": "click", "shows": "shown",
            "stream": {"lateClicks": True, "join": {"key": "id"}},
        }  # fmt: skip
        file = IntakeFile(
            data=Data.model_validate(data),
            features=Features.model_validate({"user": {"type": "categorical"}}),
            intake=IntakeConfig(dir=str(folder / "log"), port=self.port),
        )
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(file.model_dump(mode="json", by_alias=True, exclude_none=True)))
        self._said = folder / "said.txt"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "elastic_ctr", "intake", "--config", str(self._config)]
        with self._said.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    def end(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        return self._process.wait(60)

    def status(self) -> dict[str, Any]:
        return dict(httpx.get(f"http://127.0.0.1:{self.port}/status").json())

    def lines(self) -> list[dict[str, Any]]:
        end = self.status()["end"]
        found, at = [], 0
        while at < end:
            piece = httpx.get(f"http://127.0.0.1:{self.port}/v1/log/lines?start={at}&stop={end}")
            found += [json.loads(line) for line in piece.content.splitlines()]
            at = int(piece.headers["next-offset"])
        return found

    def until(self, so: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        ends = time.monotonic() + seconds
        status: dict[str, Any] = {}
        while time.monotonic() < ends:
            with contextlib.suppress(httpx.TransportError):
                status = self.status()
                if so(status):
                    return status
            time.sleep(0.1)
        raise AssertionError((status, self._said.read_text()))


def impressions(piece: int) -> list[dict[str, Any]]:
    return [{"id": f"{piece}-{row}", "user": f"u{row % 7}", "shown": 1, "click": 0} for row in range(ROWS)]


def topic_before(child: Child) -> TopicBefore | None:
    """As training's reader of the log sees it."""
    with contextlib.closing(open_stream(f"intake://127.0.0.1:{child.port}")) as stream:
        stream.partitions()
        return stream.topic_before


def has_read_all(status: dict[str, Any]) -> bool:
    return status["topic"]["lag"] == 0 and status["topic"]["error"] is None


def test_each_message_of_a_topic_is_in_the_log_once_and_joined_though_intake_and_broker_are_killed(
    tmp_path: Path, broker: Broker
) -> None:
    broker.create("clicks", 2)
    child = Child(tmp_path, f"kafka://{broker.address}/clicks")

    def produce() -> None:
        for piece in range(PIECES):
            # An impression and its click are in one partition.
            shown = [json.dumps(each).encode() for each in impressions(piece)]
            clicked = [json.dumps({"id": each["id"], "click": 1}).encode() for each in impressions(piece)[::4]]
            broker.produce("clicks", [*shown, *clicked, *clicked[:2]], partition=piece % 2)
            time.sleep(0.3)

    producing = threading.Thread(target=produce)
    producing.start()
    ends = [0]
    for _ in range(4):
        # Each process has appended something.
        ends.append(child.until(lambda status: status["end"] > ends[-1])["end"])
        assert child.end(signal.SIGKILL) == -signal.SIGKILL
        child.start()
    producing.join()
    child.until(lambda status: has_read_all(status) and status["end"] > 0)
    url = f"kafka://{broker.address}/clicks"
    assert topic_before(child) == TopicBefore(url, 0, None)
    broker.kill()
    error = child.until(lambda status: status["topic"]["error"] is not None)["topic"]["error"]
    assert topic_before(child) == TopicBefore(url, None, error)
    broker.start()
    broker.produce("clicks", [json.dumps({"id": "0-1", "click": 1}).encode()])
    wanted = PIECES * (ROWS + ROWS // 4) + 1
    status = child.until(lambda status: has_read_all(status) and status["end"] == wanted)
    found = child.lines()

    assert (status["topic"]["gone"], status["topic"]["dropped"]) == (0, 0)
    shown = [json.dumps(each, sort_keys=True) for piece in range(PIECES) for each in impressions(piece)]
    clicked = [
        json.dumps({**each, "shown": 0, "click": 1}, sort_keys=True)
        for piece in range(PIECES)
        for each in impressions(piece)[::4]
    ]
    last = json.dumps({**impressions(0)[1], "shown": 0, "click": 1}, sort_keys=True)
    assert Counter(json.dumps(each, sort_keys=True) for each in found) == Counter([*shown, *clicked, last])
    assert child.end(signal.SIGTERM) == 0
