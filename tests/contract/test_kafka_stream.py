"""Offset ranges of a real Kafka topic."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.kafka_broker import Broker
from confluent_kafka import Producer

from contract.kafka_world import plain_broker, second_broker, why_not
from elastic_ctr.sources.streams import kafka_topic
from elastic_ctr.sources.streams.interface import Kept, Lines
from elastic_ctr.sources.streams.kafka_topic import KafkaTopic
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends import NotInStore, StoreError, StoreUnavailable

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = plain_broker(tmp_path_factory.mktemp("kafka")).start()
    yield running
    running.stop()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, of this test alone."""
    name = f"t{abs(hash(request.node.name))}"
    broker.create(name, 2)
    stream = KafkaTopic(broker.address, name)
    for _ in range(100):
        # Leaders are chosen a moment later.
        with contextlib.suppress(StoreError):
            stream.partitions()
            break
        time.sleep(0.1)
    stream.close()
    return name


def stream_of(broker: Broker, topic: str) -> KafkaTopic:
    found = open_stream(f"kafka://{broker.address}/{topic}")
    assert isinstance(found, KafkaTopic)
    return found


def awaited(wanted: Callable[[], bool]) -> None:
    """A minute at most. A controller takes a broker for lost after some seconds, and until then it does not answer."""
    ends = time.monotonic() + 60
    while True:
        with contextlib.suppress(StoreError):
            if wanted():
                return
        assert time.monotonic() < ends
        time.sleep(0.1)


def text_of(lines: Lines) -> bytes:
    with lines.raw as raw:
        return raw.read()


def test_a_range_is_the_lines_of_its_offsets_whenever_it_is_read(broker: Broker, topic: str) -> None:
    broker.produce(topic, [b"%d" % number for number in range(1000)])
    broker.produce(topic, [b"other"], partition=1)
    stream = stream_of(broker, topic)

    assert stream.partitions() == {f"{topic}/0": Kept(0, 1000), f"{topic}/1": Kept(0, 1)}
    for start, stop in ((0, 1000), (10, 20), (999, 1000), (10, 20)):
        wanted = b"".join(b"%d\n" % number for number in range(start, stop))
        assert text_of(stream.read(f"{topic}/0", start, stop)) == wanted
    stream.close()


@pytest.mark.timeout(60)
def test_a_range_waits_for_none_of_the_messages_behind_it(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For another one than those of the range, a call would wait half a minute here, and the test take too long."""
    monkeypatch.setattr(kafka_topic, "_CONSUME_SECONDS", 30.0)
    broker.produce(topic, [b"%d" % number for number in range(100)])
    stream = stream_of(broker, topic)

    for start, stop in ((10, 20), (0, 100), (99, 100)):
        wanted = b"".join(b"%d\n" % number for number in range(start, stop))
        assert text_of(stream.read(f"{topic}/0", start, stop)) == wanted
    stream.close()


def test_a_message_that_comes_later_is_in_a_later_range(broker: Broker, topic: str) -> None:
    stream = stream_of(broker, topic)
    assert stream.partitions()[f"{topic}/0"] == Kept(0, 0)

    broker.produce(topic, [b"first"])
    assert stream.partitions()[f"{topic}/0"] == Kept(0, 1)
    broker.produce(topic, [b"second"])

    assert stream.partitions()[f"{topic}/0"] == Kept(0, 2)
    assert text_of(stream.read(f"{topic}/0", 1, 2)) == b"second\n"
    stream.close()


def test_a_message_of_several_lines_is_several_lines_at_its_offset(broker: Broker, topic: str) -> None:
    broker.produce(topic, [b"a\nb", b"c\n", b"", b"d"])
    stream = stream_of(broker, topic)

    lines = stream.read(f"{topic}/0", 1, 4)

    assert [lines.offset_of(place) for place in (0, 1, 2, 3, 4)] == [1, 1, 2, 3, 3]
    assert text_of(lines) == b"c\n\nd\n"
    stream.close()


def test_a_partition_whose_broker_is_away_keeps_no_other_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes, each with one partition."""
    caplog.set_level("INFO")
    with plain_broker(tmp_path / "first") as first, second_broker(tmp_path / "second", first) as second:
        first.create("pair", 2, nodes=(1, 2))
        for partition in (0, 1):
            first.produce("pair", [b"0", b"1"], partition=partition)
        stream = stream_of(first, "pair")
        assert stream.partitions() == {"pair/0": Kept(0, 2), "pair/1": Kept(0, 2)}

        second.kill()
        awaited(lambda: stream.partitions()["pair/1"].away)
        first.produce("pair", [b"2"])

        assert stream.partitions() == {"pair/0": Kept(0, 3), "pair/1": Kept(0, 2, away=True)}
        assert text_of(stream.read("pair/0", 0, 3)) == b"0\n1\n2\n"
        with contextlib.closing(stream_of(first, "pair")) as newcomer:
            assert newcomer.partitions()["pair/1"] == Kept(0, 0, away=True), "it was never seen"
        second.start()
        awaited(lambda: not stream.partitions()["pair/1"].away)
        assert text_of(stream.read("pair/1", 0, 2)) == b"0\n1\n"
        stream.close()

    assert caplog.text.count("partition 1 of kafka://") == 3, "twice that it is away, once that it is back"


def test_offsets_that_retention_has_dropped_are_counted(broker: Broker, topic: str) -> None:
    broker.produce(topic, [b"%d" % number for number in range(10)])
    broker.delete_up_to(topic, 7)
    stream = stream_of(broker, topic)

    assert stream.partitions()[f"{topic}/0"] == Kept(7, 10)
    some, none = stream.read(f"{topic}/0", 5, 9), stream.read(f"{topic}/0", 2, 4)

    assert (text_of(some), some.gone) == (b"7\n8\n", 2)
    assert some.offset_of(0) == 7
    assert (text_of(none), none.gone) == (b"", 2)
    stream.close()


def test_a_message_of_an_aborted_transaction_is_not_read_and_its_markers_are_no_lines(
    broker: Broker, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic}, logger=None)
    producer.init_transactions(30)
    for word, finish in ((b"kept", producer.commit_transaction), (b"taken back", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, word, partition=0)
        producer.flush(30)
        finish(30)
    stream = stream_of(broker, topic)
    end = stream.partitions()[f"{topic}/0"].end

    lines = stream.read(f"{topic}/0", 0, end)

    assert end == 4
    assert (text_of(lines), lines.gone) == (b"kept\n", 0)
    stream.close()


def test_messages_of_a_transaction_that_is_under_way_are_behind_the_end(broker: Broker, topic: str) -> None:
    broker.produce(topic, [b"before"])
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic}, logger=None)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"under way", partition=0)
    producer.flush(30)
    broker.produce(topic, [b"after"])
    stream = stream_of(broker, topic)
    end = stream.partitions()[f"{topic}/0"].end

    early = stream.read(f"{topic}/0", 0, end)
    producer.commit_transaction(30)
    # A broker answers a commit before it has written the marker that ends the transaction.
    awaited(lambda: stream.partitions()[f"{topic}/0"].end > end)
    late = stream.read(f"{topic}/0", end, stream.partitions()[f"{topic}/0"].end)

    assert (text_of(early), text_of(late)) == (b"before\n", b"under way\nafter\n")
    stream.close()


def test_a_piece_has_the_times_of_its_messages_and_says_where_the_next_begins(broker: Broker, topic: str) -> None:
    before = time.time()
    broker.produce(topic, [b"%d" % number for number in range(100)])
    stream = stream_of(broker, topic)

    piece = stream.read(f"{topic}/0", 10, 100, most_bytes=20)
    rest = stream.read(f"{topic}/0", piece.following or 0, 100, most_bytes=1 << 20)

    assert text_of(piece).split() == [b"%d" % number for number in range(10, 20)]
    assert (piece.following, rest.following) == (20, 100)
    assert piece.at is not None
    # The clock of Kafka has milliseconds.
    assert before - 0.001 <= piece.at.median <= piece.at.newest <= time.time()
    stream.close()


def test_a_topic_that_is_not_there_is_named(broker: Broker) -> None:
    stream = stream_of(broker, "misspelt")

    with pytest.raises(NotInStore, match="has no such topic; create it, or mend"):
        stream.partitions()
    stream.close()


def test_a_range_that_was_never_written_is_refused(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topic, "_RECOVERY_SECONDS", 0.3)
    stream = stream_of(broker, topic)

    with pytest.raises(StoreError, match="ends at offset 0 where 5 had been seen: it was created anew"):
        stream.read(f"{topic}/0", 0, 5)
    with pytest.raises(NotInStore, match="is no partition of"):
        stream.read("another/0", 0, 5)
    stream.close()


# tests/pipeline/test_streams.py kills a broker, too, and trains each message once.
@pytest.mark.nightly
def test_a_broker_that_goes_and_comes_back_gives_the_same_range(broker: Broker, topic: str) -> None:
    broker.produce(topic, [b"%d" % number for number in range(100)])
    stream = stream_of(broker, topic)
    before = text_of(stream.read(f"{topic}/0", 0, 100))

    broker.kill()
    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            stream.partitions()
    finally:
        broker.start()

    assert text_of(stream.read(f"{topic}/0", 0, 100)) == before
    stream.close()


def test_a_topic_that_is_gone_after_its_offsets_were_seen_is_waited_for(broker: Broker, topic: str) -> None:
    """As a broker that has just started says of a topic that it has."""
    broker.produce(topic, [b"a"])
    stream = stream_of(broker, topic)
    assert text_of(stream.read(f"{topic}/0", 0, 1)) == b"a\n"
    admin = broker.admin
    admin.delete_topics([topic])[topic].result(30)

    def read_while_it_goes() -> None:
        for _ in range(100):
            stream.read(f"{topic}/0", 0, 1)
            time.sleep(0.1)

    with pytest.raises(StoreUnavailable, match="is not there now, and offsets of it were seen"):
        read_while_it_goes()
    stream.close()


def test_a_topic_that_goes_between_the_look_at_its_end_and_the_reading_is_waited_for(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that has it assigned says nothing of it for half a minute."""
    broker.produce(topic, [b"a"])
    stream = stream_of(broker, topic)
    assert text_of(stream.read(f"{topic}/0", 0, 1)) == b"a\n"
    admin, read_messages = broker.admin, KafkaTopic._messages

    def read_when_it_is_gone(self: KafkaTopic, *range_: Any) -> Any:
        admin.delete_topics([topic])[topic].result(30)
        return read_messages(self, *range_)

    monkeypatch.setattr(KafkaTopic, "_messages", read_when_it_is_gone)

    with pytest.raises(StoreUnavailable, match="is not there now, and offsets of it were seen"):
        stream.read(f"{topic}/0", 0, 1)
    stream.close()


# What a broker does while it starts. In `make test` tests/pipeline/test_streams.py kills one and trains each message once.
@pytest.mark.nightly
def test_a_range_of_a_broker_that_restarts_is_at_worst_unavailable_until_it_is_read_again(
    broker: Broker, topic: str
) -> None:
    broker.produce(topic, [b"%d" % number for number in range(100)])
    stream = stream_of(broker, topic)
    before = text_of(stream.read(f"{topic}/0", 0, 100))
    broker.kill()
    broker.begin()
    found = None
    while found is None:
        # Another error would count against the task, and three of them stop the pass.
        with contextlib.suppress(StoreUnavailable):
            found = text_of(stream.read(f"{topic}/0", 0, 100))

    assert found == before
    stream.close()
