"""The logs that the stream's benches append to."""

from pathlib import Path

import pytest
from bench.stream_log import TopicLog, click_log

from contract.kafka_world import plain_broker, why_not
from elastic_ctr.sources.streams.open import open_stream

# Of a benchmark, and no change of the product reaches it. Ranges of a topic are in test_kafka_stream.py.
pytestmark = pytest.mark.nightly


def lines(first: int, stop: int) -> list[bytes]:
    return [b"%d\n" % number for number in range(first, stop)]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_lines_that_a_killed_broker_has_not_taken_come_later_once_and_in_order(tmp_path: Path) -> None:
    with plain_broker(tmp_path) as broker:
        log = TopicLog(broker)
        log.append(lines(0, 500))
        broker.kill()
        log.append(lines(500, 1000))
        broker.start()
        log.append(lines(1000, 1100))
        log.finish()

        stream = open_stream(log.url)
        with stream.read(log.partition, 0, log.offset).raw as found:
            assert found.read() == b"".join(lines(0, 1100))
        assert stream.partitions()[log.partition].end == log.offset == 1100
        stream.close()
    assert not broker.runs


def test_a_followed_folder_has_what_was_appended_up_to_its_offset(tmp_path: Path) -> None:
    with click_log("folder", tmp_path) as log:
        log.append(lines(0, 10))
        log.append(lines(10, 12))
        log.finish()

        stream = open_stream(log.url)
        kept = stream.partitions()[log.partition]
        with stream.read(log.partition, 0, log.offset).raw as found:
            assert found.read() == b"".join(lines(0, 12))
        assert kept.end == log.offset
