"""What no broker of one node does: a consumer that answers as those of a cluster. A real broker is in tests/contract/test_kafka_stream.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException

from elastic_ctr.sources.streams import kafka_topic
from elastic_ctr.sources.streams.interface import MadeAt
from elastic_ctr.sources.streams.kafka_topic import KafkaTopic
from elastic_ctr.store.backends import StoreUnavailable


@dataclass
class Message:
    at: int
    text: bytes = b""
    is_end: bool = False

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.is_end else None

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.text

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1000 * self.at


@dataclass
class ScriptedConsumer:
    """Its partition ends at `end`; each call to consume has the next of `answers`, and then nothing."""

    end: int
    answers: list[list[Message]]
    assigned: list[int] = field(default_factory=list)
    looks_until_gone: float = math.inf

    def get_watermark_offsets(self, *_: Any) -> tuple[int, int]:
        if self.looks_until_gone <= 0:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        self.looks_until_gone -= 1
        return 0, self.end

    def poll(self, *_: Any) -> None:
        """It has no events."""

    def assign(self, places: Sequence[Any]) -> None:
        self.assigned.append(places[0].offset)

    def unassign(self) -> None:
        """It gives up what it has not given."""

    def consume(self, *_: Any) -> list[Message]:
        return self.answers.pop(0) if self.answers else []

    def close(self) -> None:
        """It has no connection."""


def topic_of(consumer: ScriptedConsumer, monkeypatch: pytest.MonkeyPatch) -> KafkaTopic:
    monkeypatch.setattr(KafkaTopic, "_connected", lambda _: consumer)
    return KafkaTopic("broker:9092", "t")


def messages(*offsets: int) -> list[Message]:
    return [Message(offset, b"%d" % offset) for offset in offsets]


def test_a_leader_that_does_not_know_the_last_offsets_yet_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ScriptedConsumer(10, [messages(*range(6)), [Message(6, is_end=True)], [], messages(6, 7, 8, 9)])

    lines = topic_of(consumer, monkeypatch).read("t/0", 0, 10)

    assert lines.raw.read().split() == [b"%d" % offset for offset in range(10)]
    assert (lines.gone, lines.following, lines.at) == (0, 10, MadeAt(4.0, 9.0))


def test_offsets_that_do_not_come_after_all_are_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topic, "_QUIET_SECONDS", 0.05)
    consumer = ScriptedConsumer(10, [messages(*range(6)), [Message(6, is_end=True)]])

    with pytest.raises(StoreUnavailable, match="has sent nothing for"):
        topic_of(consumer, monkeypatch).read("t/0", 0, 10)


def test_a_topic_that_goes_while_a_range_is_read_is_named_before_its_silence_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The consumer itself says nothing of it for half a minute, and then nothing of the reason."""
    monkeypatch.setattr(kafka_topic, "_DOUBT_SECONDS", 0.05)
    consumer = ScriptedConsumer(10, [messages(*range(6))], looks_until_gone=2)

    with pytest.raises(StoreUnavailable, match="is not there now, and offsets of it were seen"):
        topic_of(consumer, monkeypatch).read("t/0", 0, 10)


def test_the_end_of_a_partition_whose_last_offsets_have_no_message_ends_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = ScriptedConsumer(4, [messages(0), [Message(4, is_end=True)]])

    lines = topic_of(consumer, monkeypatch).read("t/0", 0, 4)

    assert (lines.raw.read(), lines.following) == (b"0\n", 4)


def test_a_piece_ends_with_the_message_with_which_it_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ScriptedConsumer(20, [messages(10, 11, 12, 13)])

    lines = topic_of(consumer, monkeypatch).read("t/0", 10, 20, most_bytes=5)

    assert (lines.raw.read().split(), lines.following) == ([b"10", b"11", b"12"], 13)
    assert consumer.assigned == [10]
