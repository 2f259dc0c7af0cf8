"""A Kafka topic. The ledger owns the offsets: the consumers commit none and need no group."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from elastic_ctr.sources.streams.interface import Kept, Lines, MadeAt, Stream, lines_of_messages
from elastic_ctr.store.backends import NotInStore, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
# Short, because the master's loop waits for the answer.
_LOOK_SECONDS = 2.0
_QUIET_SECONDS = 30.0
# Silence after which the partition is looked up: librdkafka waits for half a minute before it reports a deleted one.
_DOUBT_SECONDS = 2.0
_RECOVERY_SECONDS, _RECOVERY_PAUSE = 15.0, 0.1
_PIECE = 10_000
# A call of `consume` returns when it has all requested messages, or after this.
_CONSUME_SECONDS = 0.05
# ruff: noqa: SLF001 (the names of librdkafka's own errors begin with an underscore)

# Errors after which the same call may succeed.
_PASSING = {
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE, KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._TIMED_OUT_QUEUE,
}  # fmt: skip
# Errors that only an operator can correct; then the same call succeeds. They arrive as events, while the call times out.
_SECURITY = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_ALERT = "ssl/tls alert"
# Ignored: the user needs no right to a group, because none is used.
_NOT_OURS = {KafkaError.GROUP_AUTHORIZATION_FAILED}
_SETTINGS = {"ssl.ca.location": "caFile", "ssl.certificate.location": "certFile", "ssl.key.location": "keyFile"}
_ABSENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class KafkaTopic(Stream):
    """Partitions are named `topic/number`. Offsets count messages of one or more lines each."""

    unit = "records"

    def __init__(self, brokers: str, topic: str, properties: Callable[[], Mapping[str, str]] = dict) -> None:
        """Raises the errors of `properties`, and StoreError for properties that cannot be used."""
        self.url = f"kafka://{brokers}/{topic}"
        self._brokers = brokers
        self._topic = topic
        self._properties = properties
        # The last security error of a broker since a call succeeded.
        self._told: KafkaError | None = None
        self._last: dict[int, Kept] = {}
        self._consumer: Consumer | None = self._connected()

    def _connected(self) -> Consumer:
        given = {
            "fetch.wait.max.ms": 20,
            # The default is ten seconds before the client tries a broker again.
            "reconnect.backoff.max.ms": 1000,
            # Log only critical errors: the calls report the others.
            "log_level": 2,
            "isolation.level": "read_committed",
            **self._properties(),
            "bootstrap.servers": self._brokers,
            # librdkafka requires a group name; nothing is committed under it.
            "group.id": "elastic-ctr",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._hear,
        }
        try:
            return Consumer(given, logger=None)
        except KafkaException as failed:
            said = failed.args[0].str()
            for theirs, ours in _SETTINGS.items():
                said = said.replace(theirs, f"data.source.kafka.{ours}")
            raise StoreError(f"{self.url} cannot be read: {said}") from None

    @property
    def _client(self) -> Consumer:
        """Return the consumer, created anew after a security error, because credentials may have changed. Raises StoreUnavailable."""
        if self._consumer is None:
            try:
                self._consumer = self._connected()
            except (StoreError, ValueError) as wrong:
                raise StoreUnavailable(str(wrong)) from wrong
        return self._consumer

    def _hear(self, error: KafkaError) -> None:
        if error.code() in _SECURITY or _ALERT in error.str():
            self._told = error

    def partitions(self) -> dict[str, Kept]:
        client = self._client
        found = self._tried(lambda: client.list_topics(self._topic, _LOOK_SECONDS)).topics[self._topic]
        if found.error is not None:
            raise self._refused(found.error)
        led = {number for number, each in found.partitions.items() if each.leader >= 0}
        if not led:
            raise StoreUnavailable(
                f"{self.url} does not answer: no partition of it has a leader; are all its brokers there?"
            )
        before = {number: self._last.get(number, Kept(0, 0)) for number in sorted(found.partitions)}
        self._last = {
            number: self._kept(number, _LOOK_SECONDS) if number in led else last._replace(away=True)
            for number, last in before.items()
        }
        for number, each in self._last.items():
            self._say(number, before[number].away, each.away)
        return {f"{self._topic}/{number}": each for number, each in self._last.items()}

    def _say(self, number: int, was_away: bool, away: bool) -> None:
        if away and not was_away:
            log.warning(
                "partition %d of %s has no leader and is not read; the others are, and it will be once a broker leads it",
                number, self.url,
            )  # fmt: skip
        elif was_away and not away:
            log.info("partition %d of %s has a leader again", number, self.url)

    def _kept(self, number: int, seconds: float = _ASK_SECONDS) -> Kept:
        place = TopicPartition(self._topic, number)
        client = self._client
        first, end = self._tried(lambda: client.get_watermark_offsets(place, seconds))
        return Kept(first, end)

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        topic, _, number = partition.rpartition("/")
        if topic != self._topic:
            raise NotInStore(f"{partition} is no partition of {self.url}")
        try:
            kept = self._seen(int(number), stop)
            first = min(max(start, kept.first), stop)
            messages, following, made = self._messages(int(number), first, stop, most_bytes)
        except NotInStore as absent:
            # A broker that has just started reports this for a moment.
            raise StoreUnavailable(
                f"{partition} of {self.url} is not there now, and offsets of it were seen: its broker starts, or the topic was deleted"
            ) from absent
        return lines_of_messages(messages, gone=first - start, following=following, at=MadeAt.of(made))

    def _seen(self, number: int, stop: int) -> Kept:
        """Return the offsets that a partition keeps, after waiting until they reach `stop`, which was seen before: a broker that was killed
        recovers its last offsets a moment after its start.
        """
        ends = time.monotonic() + _RECOVERY_SECONDS
        while stop > (kept := self._kept(number)).end:
            if time.monotonic() > ends:
                raise StoreError(
                    f"{self._topic}/{number} of {self.url} ends at offset {kept.end} where {stop} had been seen: it was created anew"
                )
            time.sleep(_RECOVERY_PAUSE)
        return kept

    def _messages(
        self, number: int, start: int, stop: int, most_bytes: int | None
    ) -> tuple[list[tuple[int, bytes]], int, list[float]]:
        """Return the messages up to `stop`, or up to and with the one that brings them to `most_bytes`; the offset after them; and their
        timestamps in Unix seconds, if they have any. Not every offset is a message: transaction markers have offsets, too.
        """
        found: list[tuple[int, bytes]] = []
        made: list[float] = []
        following, size = start, 0
        if start >= stop:
            return found, following, made
        heard = looked = time.monotonic()
        client = self._client
        client.assign([TopicPartition(self._topic, number, start)])
        try:
            while True:
                wanted = min(_PIECE, stop - following)
                for message in self._tried(partial(client.consume, wanted, _CONSUME_SECONDS)):
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            if message.offset() >= stop:
                                return found, stop, made
                            # A new leader may report a stale end. Offsets up to `stop` were seen, so it will have them too.
                            continue
                        if error.code() in _NOT_OURS:
                            continue
                        raise self._refused(error)
                    heard = time.monotonic()
                    if message.offset() >= stop:
                        return found, stop, made
                    text = message.value() or b""
                    found.append((message.offset(), text))
                    following, size = message.offset() + 1, size + len(text)
                    kind, milliseconds = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE:
                        made.append(milliseconds / 1000)
                    if following >= stop or (most_bytes is not None and size >= most_bytes):
                        return found, following, made
                if self._told is not None:
                    raise self._refused(self._told)
                now = time.monotonic()
                if now - max(heard, looked) > _DOUBT_SECONDS:
                    self._kept(number)
                    looked = now
                if now - heard > _QUIET_SECONDS:
                    raise StoreUnavailable(
                        f"{self.url} has sent nothing for {_QUIET_SECONDS:g} s: do its brokers answer?"
                    )
        finally:
            if client is self._consumer:
                client.unassign()

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            answer = call()
        except KafkaException as failed:
            assert self._consumer is not None
            # Only `poll` delivers error events.
            self._consumer.poll(0)
            raise self._refused(self._told or failed.args[0]) from failed
        if answer:
            self._told = None
        return answer

    def _refused(self, error: KafkaError) -> StoreError:
        if error.code() in _ABSENT:
            return NotInStore(f"{self.url}: the broker has no such topic; create it, or mend data.source.url")
        if error.code() in _FORBIDDEN:
            return StoreUnavailable(
                f"{self.url}: this user may not read the topic; allow it Read on the topic, no group is used"
            )
        if error.code() in _SECURITY or _ALERT in error.str():
            self._reconnect()
            return StoreUnavailable(f"{self.url} {self._of_security(error)}")
        if error.code() in _PASSING or error.retriable():
            return StoreUnavailable(
                f"{self.url} does not answer: {_reason(error)}; is a broker there, and is data.source.kafka that of its listener?"
            )
        return StoreError(f"{self.url} cannot be read: {error.str()}")

    @staticmethod
    def _of_security(error: KafkaError) -> str:
        if _ALERT in error.str():
            return f"does not take this client's certificate: {_reason(error)}; mend data.source.kafka.certFile and keyFile"
        if error.code() == KafkaError._SSL:
            return (
                f"is not trusted: {_reason(error)}; give the authority that has signed its certificate in data.source.kafka.caFile, and "
                "the broker's name as it stands in the certificate"
            )
        return (
            f"refuses this user: {_reason(error)}; mend data.source.kafka.saslMechanism, usernameFile and passwordFile"
        )

    def _reconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._told = None, None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _reason(error: KafkaError) -> str:
    """Return the error's text without the names that librdkafka puts around it."""
    said = re.sub(r"^\S+://\S+/\S+: | \(after \d+ms in state \w+.*\)$", "", error.str())
    # librdkafka's advice is about its own settings.
    return said.partition(", verify that")[0]
