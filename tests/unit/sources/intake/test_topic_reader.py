"""The intake's reading of a topic, beside a topic in memory; a real one is in tests/contract/test_intake_topic.py."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elastic_ctr.sources.intake import impressions, topic_reader
from elastic_ctr.sources.intake.click_log import Appended, ClickLog, KeyReused, LogUnwritable, Retention
from elastic_ctr.sources.intake.disk_bytes import bytes_of_row
from elastic_ctr.sources.intake.group_commit import GroupCommit
from elastic_ctr.sources.intake.impressions import Joins, TooMuchJoined
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import Clicks, TopicTime
from elastic_ctr.sources.intake.topic_reader import TopicReader, TopicTimes
from elastic_ctr.sources.streams.interface import Kept, Lines, MadeAt, Places, TopicBefore, lines_of_messages
from elastic_ctr.store.backends import StoreUnavailable

JSONL = LateClicks("jsonl", (), "id", "click", "n", frozenset({"city"}))
FOR_EVER = Retention(1e9, 1 << 40)
MARKER = b"the end of a transaction"


@dataclass
class Topic:
    """Messages by partition; those before `first` are kept no more, and `broken` cannot be read, `leaderless` as the topic itself
    says. `made` says when a message was made."""

    messages: dict[str, list[bytes]] = field(default_factory=lambda: {"t/0": []})
    first: int = 0
    away: str = ""
    broken: str = ""
    leaderless: set[str] = field(default_factory=set)
    made: dict[bytes, float] = field(default_factory=dict)
    closed: bool = False
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    url: str = "kafka://broker:9092/t"
    unit: str = "records"
    topic_before: TopicBefore | None = None
    notices: tuple[str, ...] = ()

    def partitions(self) -> dict[str, Kept]:
        if self.away:
            raise StoreUnavailable(self.away)
        return {
            name: Kept(0, 0, away=True) if name in self.leaderless else Kept(self.first, len(found))
            for name, found in self.messages.items()
        }

    def know(self, places: Places) -> None:
        """Its partitions keep their names."""

    def files(self) -> dict[str, str]:
        return {}

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        if self.broken == partition:
            raise StoreUnavailable(f"{partition} has no leader")
        self.asked.append((partition, start, stop))
        begin = following = max(start, self.first)
        found, size = list[tuple[int, bytes]](), 0
        while following < stop and (most_bytes is None or size < most_bytes):
            message = self.messages[partition][following]
            if message is not MARKER:
                found.append((following, message))
            size += len(message)
            following += 1
        at = MadeAt.of([self.made.get(text, 0.0) for _, text in found]) if self.made else None
        return lines_of_messages(found, gone=begin - start, following=following, at=at)

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:
        """Its broker keeps what its own settings say."""

    def close(self) -> None:
        self.closed = True


def impression(number: int, more: str = "") -> bytes:
    return b'{"id": "%d", "city": "%s", "n": 1, "click": 0}' % (number, more.encode())


def click(number: int) -> bytes:
    return b'{"id": "%d", "click": 1}' % number


def late(number: int) -> bytes:
    return impression(number).replace(b'"n": 1, "click": 0', b'"n": 0, "click": 1')


def lines_of(log: ClickLog) -> list[bytes]:
    return log.read(0, log.kept.end, 1 << 30).text.splitlines()


async def _run(log: ClickLog, reader: TopicReader, commits: GroupCommit, until: Callable[[], bool]) -> None:
    stop = asyncio.Event()
    running = [asyncio.create_task(each.run(stop)) for each in (commits, reader)]
    for _ in range(400):
        if until():
            break
        await asyncio.sleep(0.02)
    reached = until()
    stop.set()
    await asyncio.gather(*running)
    assert reached, (reader.error, lines_of(log))


def read(
    log: ClickLog,
    topic: Topic,
    until: Callable[[TopicReader], bool] | None = None,
    latest: bool = False,
    most_unread: int = 1 << 40,
    now: float = 0.0,
) -> TopicReader:
    """A reader of its own, as after a restart, until the topic is read or `until` is so."""
    commits = GroupCommit(log, lambda: now, lambda _: None)
    reader = TopicReader(topic, log, commits, latest=latest, most_unread=most_unread, wall=lambda: now)

    def whole() -> bool:
        places = log.positions()
        return all(places.get(name, 0) == len(found) for name, found in topic.messages.items()) and reader.error is None

    asyncio.run(_run(log, reader, commits, whole if until is None else lambda: until(reader)))
    return reader


@pytest.fixture(autouse=True)
def _no_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(topic_reader, "_PARTITION_AGAIN_SECONDS", 0.02)


def test_messages_are_appended_once_however_often_the_intake_is_restarted(tmp_path: Path) -> None:
    topic = Topic({"t/0": [], "t/1": []})
    for number in range(6):
        topic.messages[f"t/{number % 2}"] += [b"%d-%d" % (number, each) for each in range(5)]
        with closing(ClickLog(tmp_path, FOR_EVER)) as log:
            reader = read(log, topic)
            found = lines_of(log)

    assert sorted(found) == sorted(line for lines in topic.messages.values() for line in lines)
    assert [line for line in found if line in topic.messages["t/0"]] == topic.messages["t/0"]
    assert (reader.records, reader.lag, reader.gone, topic.closed) == (5, 0, 0, True)


def test_clicks_of_a_topic_are_joined_with_their_impressions(tmp_path: Path) -> None:
    topic = Topic({"t/0": [impression(1), impression(2), click(2), click(2), click(3), b"\n", b"no row"]})
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60))) as log:
        read(log, topic)

        assert lines_of(log) == [impression(1), impression(2), late(2), b"no row"]
        assert log.joins == Joins(joined=1, unmatched=1, duplicate=1)


def test_latest_begins_behind_what_is_there_and_goes_on_from_there_after_a_restart(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"old"]})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic, latest=True)
    topic.messages["t/0"].append(b"new")
    topic.messages["t/1"] = [b"of a later partition"]
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic, latest=True)

        assert lines_of(log) == [b"new", b"of a later partition"]


def test_offsets_that_are_gone_are_counted(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"%d" % number for number in range(5)]})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic)
        topic.messages["t/0"] += [b"%d" % number for number in range(5, 10)]
        topic.first = 8
        reader = read(log, topic)

        assert (lines_of(log)[5:], reader.gone) == ([b"8", b"9"], 3)


def test_a_topic_that_is_away_or_made_anew_is_reported_and_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topic = Topic({"t/0": [b"1", b"2"]})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic)
        topic.away = "no broker answers"
        read(log, topic, lambda reader: reader.error == "no broker answers")
        topic.away, topic.messages = "", {"t/0": [b"1"]}
        anew = read(log, topic, lambda reader: reader.error is not None)
        assert "ends at offset 1, and 2 was seen: it was created anew; give the new topic another name" in str(
            anew.error
        )

        def comes_back(reader: TopicReader) -> bool:
            if reader.error is not None:
                topic.messages["t/0"] = [b"1", b"2", b"3"]
            return lines_of(log) == [b"1", b"2", b"3"] and reader.error is None

        read(log, topic, comes_back)
    said = [each.message for each in caplog.records if each.name == topic_reader.__name__]
    assert said[0] == "no broker answers"
    assert said[-1] == f"{topic.url} is read again"


def test_messages_whose_impressions_are_much_together_are_several_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impressions, "JOINED_BYTES", 2 * len(late(1)) + 2)
    both = click(7) + b"\n" + click(8) + b"\n" + click(9)
    topic = Topic({"t/0": [*map(impression, range(10)), *map(click, range(5)), both, click(6)]})
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60))) as log:
        reader = read(log, topic)

        # The message that is too much by itself goes, and no other.
        assert lines_of(log)[10:] == [*map(late, range(5)), late(6)]
        assert (reader.dropped, log.joins) == (1, Joins(joined=6))


def test_a_transaction_has_fewer_messages_where_they_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_MOST_MESSAGES", 4)
    monkeypatch.setattr(topic_reader, "_BYTES", 1000)
    topic = Topic({"t/0": [b"x"] * 8 + [b"x" * 499] * 5})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic)

        assert [start for _, start, _ in topic.asked] == [0, 4, 8, 11]
        assert lines_of(log) == topic.messages["t/0"]


def test_the_topic_keeps_what_training_has_no_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_MOST_MESSAGES", 10)
    topic = Topic({"t/0": [b"%09d" % number for number in range(200)]})
    with closing(ClickLog(tmp_path, FOR_EVER, of_topic=True)) as log:
        # Training has not begun yet.
        six = 6 * bytes_of_row(100)
        waiting = read(log, topic, lambda reader: reader.waits, most_unread=six)
        assert (log.unread_bytes(), log.kept.end, waiting.lag) == (six * 7 // 6, 70, 130)
        log.needed_from(50)
        read(log, topic, lambda reader: reader.waits, most_unread=six)
        end = log.kept.end
    with closing(ClickLog(tmp_path, FOR_EVER, of_topic=True)) as log:
        # How far training is outlives a restart.
        assert (log.unread_bytes(), log.kept.end, end) == (six * 7 // 6, end, 120)
        # Training that begins anew, with what comes from now on, needs nothing of what is there.
        log.needed_from(end)

        def is_read(_: TopicReader) -> bool:
            log.needed_from(log.kept.end)
            return log.kept.end == 200

        read(log, topic, is_read, most_unread=six)
        assert lines_of(log) == topic.messages["t/0"]
        # It goes back to a checkpoint.
        log.needed_from(100)
        topic.messages["t/0"].append(b"1")
        assert read(log, topic, lambda reader: reader.waits, most_unread=six).lag == 1
        # Lines that only a recovery may need hold nothing up: no checkpoint comes without new ones.
        log.needed_from(100, log.kept.end)
        read(log, topic, most_unread=six)
        assert lines_of(log) == topic.messages["t/0"]


def test_no_partition_is_read_once_training_has_enough_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_MOST_MESSAGES", 10)
    topic = Topic({f"t/{number}": [b"%09d" % each for each in range(10)] for number in range(32)})
    most = 8 * bytes_of_row(100)
    with closing(ClickLog(tmp_path, Retention(1e9, 2 * most), of_topic=True)) as log:
        read(log, topic, lambda reader: reader.waits, most_unread=most)

        assert log.kept == Kept(0, 90)


def test_clicks_of_a_topic_that_training_has_not_read_are_not_deleted_by_age(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"%d" % number for number in range(10)]})
    with closing(ClickLog(tmp_path, Retention(60, 1 << 40), of_topic=True)) as log:
        read(log, topic)
        topic.messages["t/0"] += [b"%d" % number for number in range(10, 20)]
        read(log, topic)
        log.needed_from(10)
        log.append([], 1000.0)

        assert (log.kept, log.read(0, 20, 1 << 30).text.split()) == (Kept(10, 20), topic.messages["t/0"][10:])
        log.needed_from(20)
        log.append([], 1000.0)
        assert log.kept == Kept(20, 20)


def test_no_impression_is_forgotten_while_the_topic_is_not_read(tmp_path: Path) -> None:
    topic = Topic({"t/0": [impression(1)]}, made={impression(1): 100.0, click(1): 150.0})
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        read(log, topic, now=100.0)
        # Training stands for an hour, and the click waits in the topic.
        for now in range(200, 3700, 100):
            log.append([], now)
        topic.messages["t/0"].append(click(1))
        read(log, topic, now=3700.0)

        assert lines_of(log) == [impression(1), late(1)]


def test_an_impression_is_forgotten_with_its_window_of_the_topics_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_MOST_MESSAGES", 1)
    made = {impression(1): 100.0, impression(2): 170.0, click(1): 171.0, click(2): 172.0}
    topic = Topic({"t/0": [*made]}, made=made)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        read(log, topic, now=200.0)

        assert lines_of(log) == [impression(1), impression(2), late(2)]
        assert log.joins == Joins(joined=1, unmatched=1)


def test_a_click_is_joined_however_much_time_the_messages_that_are_read_with_it_span(tmp_path: Path) -> None:
    # As after an intake that was down for an hour.
    made = {impression(1): 100.0, click(1): 110.0, impression(2): 3600.0}
    topic = Topic({"t/0": [impression(1)]}, made=made)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        commits = GroupCommit(log, lambda: 4000.0, lambda _: None)
        reader = TopicReader(topic, log, commits, latest=False, most_unread=1 << 40, wall=lambda: 4000.0)
        later = [click(1), impression(2)]

        def whole() -> bool:
            if log.positions() == {"t/0": 1}:
                topic.messages["t/0"] += later
                later.clear()
            return log.positions() == {"t/0": 3}

        asyncio.run(_run(log, reader, commits, whole))

        assert lines_of(log) == [impression(1), late(1), impression(2)]


def test_one_sender_whose_clock_is_ahead_makes_no_impression_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_MOST_MESSAGES", 3)
    made = {
        impression(1): 100.0, impression(2): 9e9, impression(3): 101.0,
        impression(4): 102.0, impression(5): 103.0, click(1): 104.0,
        click(3): 105.0,
    }  # fmt: skip
    topic = Topic({"t/0": [*made]}, made=made)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        read(log, topic, now=7200.0)

        assert log.joins == Joins(joined=2)


def test_impressions_that_are_posted_beside_a_topic_have_the_time_of_its_senders(tmp_path: Path) -> None:
    # The machine's clock was put right by an hour while the log was written.
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        log.move_clock(3600.0)
        posted = impression(1) + b"\n"
        log.append([Clicks(posted, 1)], now=5000.0 - 3600.0)
        for at in (5001.0, 5002.0):
            log.append([Clicks(b"", 0, time=TopicTime(at, at))], now=5000.0 - 3600.0)
        clicked = click(1) + b"\n"
        log.append([Clicks(clicked, 1, time=TopicTime(5003.0, 5002.0))], now=5003.0 - 3600.0)

        assert log.joins == Joins(joined=1)


def test_offsets_without_a_message_are_no_time(tmp_path: Path) -> None:
    topic = Topic({"t/0": [impression(1)]}, made={impression(1): 100.0, click(1): 150.0})
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 60), of_topic=True)) as log:
        read(log, topic, now=100.0)
        # The end of a transaction has an offset, too.
        for message in (MARKER, click(1)):
            topic.messages["t/0"].append(message)
            read(log, topic, now=3700.0)

        assert lines_of(log) == [impression(1), late(1)]


def test_the_slowest_partition_decides_which_impressions_are_remembered_and_no_clock_is_ahead() -> None:
    times = TopicTimes(lambda: 1000.0)

    assert times.whole({"a": 0}) is None
    assert times.appended("a", MadeAt(500.0, 510.0)) == 510.0
    assert times.whole({"a": 1, "b": 0}) is None
    assert times.appended("b", MadeAt(2000.0, 2000.0)) == 1000.0
    assert times.appended("a", MadeAt(400.0, 410.0)) == 500.0
    assert (times.whole({"a": 1, "b": 1}), times.whole({"b": 1}), times.whole({})) == (500.0, 1000.0, 1000.0)
    # Messages without a time are as old as they are read.
    assert times.appended("c", None) == 1000.0


def test_a_partition_without_a_leader_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"0"], "t/1": [b"1"]}, broken="t/0")
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        reader = read(log, topic, lambda reader: lines_of(log) == [b"1"] and reader.error is not None)

        assert (reader.error, reader.lag, log.positions()) == ("t/0 has no leader", None, {"t/1": 1})


def test_a_leaderless_partition_waits_and_is_reported_until_it_has_a_leader(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"0"], "t/1": [b"1"]})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        read(log, topic)
        for found in topic.messages.values():
            found.append(b"more")
        topic.leaderless = {"t/1"}

        reader = read(log, topic, lambda reader: log.positions() == {"t/0": 2, "t/1": 1} and reader.error is not None)

        assert (reader.error, reader.lag) == (
            "t/1 of kafka://broker:9092/t cannot be read: no broker leads it",
            0,
        )
        topic.leaderless = set()
        assert read(log, topic).error is None
        assert sorted(lines_of(log)) == [b"0", b"1", b"more", b"more"]


def test_latest_waits_until_each_partition_says_where_it_ends(tmp_path: Path) -> None:
    topic = Topic({"t/0": [b"0"], "t/1": [b"1"]}, leaderless={"t/1"})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        reader = read(log, topic, lambda reader: reader.error is not None, latest=True)

        assert reader.error is not None
        assert "reading begins once every partition says where it ends" in reader.error
        assert log.positions() == {}
        topic.leaderless = set()
        read(log, topic, lambda _: log.positions() == {"t/0": 1, "t/1": 1}, latest=True)
        assert lines_of(log) == []


def test_the_writers_fault_is_not_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic({"t/0": [b"0"]})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        append, refused = log.append, list[int]()

        def full(requests: Sequence[Clicks], now: float) -> list[Appended | KeyReused | TooMuchJoined]:
            if requests and len(refused) < 2:
                refused.append(1)
                raise LogUnwritable("the disk is full")
            return append(requests, now)

        monkeypatch.setattr(log, "append", full)
        reader = read(log, topic)

        assert (lines_of(log), reader.error, len(refused)) == ([b"0"], None, 2)


def test_latest_begins_in_all_partitions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic({"t/0": [b"old"] * 3, "t/1": [b"old"] * 3})
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        append, times = log.append, list[int]()

        def fails_once(requests: Sequence[Clicks], now: float) -> list[Appended | KeyReused | TooMuchJoined]:
            if requests:
                times.append(1)
                if len(times) == 2:
                    raise LogUnwritable("the disk is full")
            return append(requests, now)

        monkeypatch.setattr(log, "append", fails_once)
        read(log, topic, latest=True)
        for messages in topic.messages.values():
            messages.append(b"new")
        read(log, topic, latest=True)

        assert lines_of(log) == [b"new", b"new"]


def test_a_fault_of_its_own_ends_the_intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic({"t/0": [b"1"]})
    monkeypatch.setattr(topic, "read", lambda *_: 1 // 0)

    async def main(log: ClickLog) -> None:
        commits = GroupCommit(log, lambda: 0.0, lambda _: None)
        await TopicReader(topic, log, commits, latest=False, most_unread=1).run(asyncio.Event())

    with closing(ClickLog(tmp_path, FOR_EVER)) as log, pytest.raises(ZeroDivisionError):
        asyncio.run(main(log))
