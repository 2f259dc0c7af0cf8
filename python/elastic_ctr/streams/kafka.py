"""A Kafka topic. The ledger owns the offsets: consumers here have no group that commits any."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from elastic_ctr.store import NotInStore, StoreError, StoreUnavailable
from elastic_ctr.streams.interface import Kept, Lines, lines_of_messages

_ASK_SECONDS = 10.0
# The master asks what there is, and has other work to do.
_LOOK_SECONDS = 2.0
_QUIET_SECONDS = 30.0
_PIECE = 10_000
# ruff: noqa: SLF001 (the names of librdkafka's own errors begin with an underscore)

# Errors after which the same call may succeed.
_PASSING = {
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE, KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._TIMED_OUT_QUEUE,
}  # fmt: skip
_ABSENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class KafkaTopic:
    """Partitions are named `topic/number`; offsets count messages, of one line or several each."""

    unit = "records"

    def __init__(self, brokers: str, topic: str, properties: Mapping[str, str] | None = None) -> None:
        self.url = f"kafka://{brokers}/{topic}"
        self._topic = topic
        self._consumer = Consumer(
            {
                "fetch.wait.max.ms": 20,
                # What fails is told by the calls.
                "log_level": 2,
                "isolation.level": "read_committed",
                **(properties or {}),
                "bootstrap.servers": brokers,
                # librdkafka wants a name; nothing is committed under it.
                "group.id": "elastic-ctr",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            },
            logger=None,
        )

    def partitions(self) -> dict[str, Kept]:
        found = self._tried(lambda: self._consumer.list_topics(self._topic, _LOOK_SECONDS)).topics[self._topic]
        if found.error is not None:
            raise self._refused(found.error)
        return {f"{self._topic}/{number}": self._kept(number, _LOOK_SECONDS) for number in sorted(found.partitions)}

    def _kept(self, number: int, seconds: float = _ASK_SECONDS) -> Kept:
        place = TopicPartition(self._topic, number)
        first, end = self._tried(lambda: self._consumer.get_watermark_offsets(place, seconds))
        return Kept(first, end)

    def read(self, partition: str, start: int, stop: int) -> Lines:
        topic, _, number = partition.rpartition("/")
        if topic != self._topic:
            raise NotInStore(f"{partition} is no partition of {self.url}")
        kept = self._kept(int(number))
        if stop > kept.end:
            raise StoreError(
                f"{partition} of {self.url} ends at offset {kept.end} where {stop} had been seen: it was created anew"
            )
        first = min(max(start, kept.first), stop)
        messages = self._messages(int(number), first, stop) if first < stop else []
        return lines_of_messages(messages, gone=first - start)

    def _messages(self, number: int, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Up to the offset `stop`. Not every offset has a message: markers of transactions have one, too."""
        found: list[tuple[int, bytes]] = []
        heard = time.monotonic()
        self._consumer.assign([TopicPartition(self._topic, number, start)])
        try:
            while True:
                for message in self._tried(lambda: self._consumer.consume(_PIECE, 1.0)):
                    heard = time.monotonic()
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            return found
                        raise self._refused(error)
                    if message.offset() >= stop:
                        return found
                    found.append((message.offset(), message.value() or b""))
                    if message.offset() + 1 >= stop:
                        return found
                if time.monotonic() - heard > _QUIET_SECONDS:
                    raise StoreUnavailable(
                        f"{self.url} has sent nothing for {_QUIET_SECONDS:g} s: do its brokers answer?"
                    )
        finally:
            self._consumer.unassign()

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaException as failed:
            raise self._refused(failed.args[0]) from failed

    def _refused(self, error: KafkaError) -> StoreError:
        if error.code() in _ABSENT:
            return NotInStore(f"{self.url}: the broker has no such topic; create it, or mend data.source.url")
        if error.code() in _PASSING or error.retriable():
            return StoreUnavailable(f"{self.url} does not answer: {error.str()}")
        return StoreError(f"{self.url} cannot be read: {error.str()}")

    def close(self) -> None:
        self._consumer.close()
