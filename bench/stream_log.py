"""Where the stream's benches append clicks: a followed folder, or a topic of a real Kafka broker."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from confluent_kafka import Producer

from bench.kafka_broker import Broker, absent
from bench.processes import free_port

Kind = Literal["kafka", "folder"]
_FILE, _TOPIC = "clicks-0", "clicks"
# A broker that is away for minutes loses no click.
_QUEUE_MESSAGES, _FLUSH_SECONDS = 1_000_000, 60.0


class ClickLog(Protocol):
    """One partition of a stream; `offset` is the one behind what was appended."""

    kind: Kind
    url: str
    partition: str
    unit: str
    offset: int

    def append(self, lines: Sequence[bytes]) -> None:
        """Whole lines, each with its newline."""

    def finish(self) -> None:
        """Until all that was appended is in the log. Raises RuntimeError if it does not get there."""


class FolderLog:
    """A file in a followed folder."""

    kind: Kind = "folder"
    unit = "bytes"
    partition = _FILE

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.url = f"file://{folder}?follow"
        self.offset = 0
        self._file = (folder / _FILE).open("ab", buffering=0)

    def append(self, lines: Sequence[bytes]) -> None:
        text = b"".join(lines)
        self._file.write(text)
        self.offset += len(text)

    def finish(self) -> None:
        """Written already."""

    def close(self) -> None:
        self._file.close()


class TopicLog:
    """A topic of one partition, of a broker that may be killed: what it has not taken is sent again, once and in its order."""

    kind: Kind = "kafka"
    unit = "records"
    partition = f"{_TOPIC}/0"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = f"kafka://{broker.address}/{_TOPIC}"
        self.offset = 0
        broker.create(_TOPIC, 1)
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "queue.buffering.max.messages": _QUEUE_MESSAGES,
                "log_level": 2,
            },
            logger=None,
        )

    def append(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._producer.produce(_TOPIC, line, partition=0)
        self._producer.poll(0)
        self.offset += len(lines)

    def finish(self) -> None:
        if left := self._producer.flush(_FLUSH_SECONDS):
            raise RuntimeError(f"the broker has not taken {left} clicks within {_FLUSH_SECONDS:g} s")


def possible_kind() -> Kind:
    """Kafka where Java and its jars are there."""
    return "folder" if absent() else "kafka"


@contextmanager
def click_log(kind: Kind, folder: Path) -> Iterator[ClickLog]:
    """Nothing of it runs afterwards. Raises RuntimeError where Kafka cannot be started."""
    if kind == "folder":
        log = FolderLog(folder / "log")
        try:
            yield log
        finally:
            log.close()
        return
    if missing := absent():
        raise RuntimeError(f"Kafka needs {missing}, which is absent: tools/get {missing}, or take a followed folder")
    with Broker(folder / "kafka", free_port) as broker:
        yield TopicLog(broker)
