"""Micro-passes of a real followed folder, with everything but Paddle and the network."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master import save_planning, stream_schedule
from elastic_ctr.master.finder import WindowFinder
from elastic_ctr.master.stream_schedule import StreamSchedule, day_after, following_after, is_same_stream
from elastic_ctr.master.training_status import status_of_ledger
from elastic_ctr.store import RetryPolicy, StoreUnavailable
from elastic_ctr.streams.followed_folder import FollowedFolder
from elastic_ctr.streams.intake import IntakeLog
from elastic_ctr.streams.interface import Kept, Lines
from elastic_ctr.versions.manifest import read_checkpoint, read_version
from intake.desk import desk, intake_file
from master.stream_world import LINE, StreamWorld
from master.world import LEASE, world
from ports import free_port


def test_what_is_appended_is_trained_pass_after_pass_and_each_pass_is_a_version(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    for number in range(3):
        one.append(10)
        one.append(5, "others")
        one.done(number + 1)

    assert one.in_the_table() == one.appended()
    assert [each["kind"] for each in one.ledger.versions()] == ["base", "delta", "delta"]
    assert one.coordinator.counted()["trained"] == 45
    assert [each.id for each in one.ledger.passes()][:2] == ["stream/00000001", "stream/00000002"]
    assert not one.coordinator.finished


def test_a_pass_ends_with_its_window_or_once_it_is_full(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"window_ms": 5000, "max_bytes": 100 * len(LINE)})
    one.append(10)
    began = one.now
    one.done(1)
    assert one.now - began >= 5

    one.append(250)
    one.done(3)

    assert [one.ledger.records(ordinal) for ordinal in (1, 2, 3)] == [10, 100, 100]
    one.done(4)
    assert one.in_the_table() == one.appended()


def test_what_came_while_a_pass_was_trained_waits_no_window_more(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"window_ms": 5000})
    one.append(10)
    one.until_state("training")
    one.append(10)
    one.now += 20
    one.done(1)
    began = one.now
    one.until_state("checking")

    assert one.now - began < 1
    # After a silence, the next window begins with what comes.
    one.done(2)
    one.now += 60
    for _ in range(5):
        one.turn()
    one.append(10)
    began = one.now
    one.done(3)
    assert one.now - began >= 5


def test_each_pass_says_when_its_offsets_came_and_a_new_master_when_those_that_came_without_it(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    began = one.now
    one.done(1)
    one.append(20)
    one.done(2)
    places = one.ledger.facts.stream
    assert places is not None
    first, *_, last = places.arrivals
    assert first.ordinal == 1
    assert began <= first.first <= first.last <= last.first <= last.last <= one.now
    assert {
        ordinal: sum(each.offsets for each in places.arrivals if each.ordinal == ordinal) for ordinal in (1, 2)
    } == {1: 10 * len(LINE), 2: 20 * len(LINE)}

    one.start_master()
    one.append(5)
    one.now += 100
    one.done(3)

    places = one.ledger.facts.stream
    assert places is not None
    newest = [each for each in places.arrivals if each.ordinal == 3]
    assert (newest[0].first, sum(each.offsets for each in newest)) == (last.last, 5 * len(LINE))


def test_a_micro_pass_is_one_epoch_in_few_steps_without_passes_of_prediction(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.epochs = "auto"
    one.start_master()
    one.append(1000)
    one.done(1)

    assert {phase for _, phase in one.leases} == {control.CHECK, control.TRAIN, control.SAVE, control.SCORE}
    assert one.ledger.learning(1).batch_sizes == (32,)
    [only] = one.ledger.passes()[:1]
    assert one.ledger.quality(only.ordinal).before is not None


def test_after_a_pservers_loss_the_same_offsets_are_trained_again_and_none_twice(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)
    one.append(10)
    one.until_trained()

    one.pservers[0].restart()
    one.append(7)
    one.done(3)

    assert one.in_the_table() == one.appended()
    assert one.coordinator.generation == 2
    assert one.coordinator.counted()["trained"] == 27


def test_a_restarted_master_goes_on_with_the_next_offset(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)

    one.start_master()
    one.append(3)
    one.done(2)

    assert one.in_the_table() == one.appended()


def test_a_lost_trainers_range_goes_to_another_and_is_counted_as_repeated_once(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    lost = one.until_trained()
    lost.work()

    one.trainers.remove(lost)
    one.now += LEASE
    one.done(1)

    assert one.coordinator.counted()["repeated"] == 10
    assert one.coordinator.counted()["trained"] == 10


def test_a_stopped_pass_that_is_retried_reads_the_offsets_that_it_had(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.1)
    one.append(10)
    one.refused["clicks"] = 500
    one.until_state("stopped")
    assert "500 of 510 lines were refused, more than data.maxRefusedShare 0.1" in one.reason()
    assert one.reason().endswith(
        "what a stream has stays as it is: raise the share; then run `elastic-ctr pass retry stream/00000001`"
    )
    one.append(10)

    one.refused.clear()
    assert one.coordinator.retry("stream/00000001") == ""
    one.done(2)

    assert one.in_the_table() == one.appended()
    assert [one.ledger.records(ordinal) for ordinal in (1, 2)] == [10, 10]


def test_training_goes_on_where_a_stream_cannot_be_told_what_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = StreamWorld(tmp_path)

    class Deaf(FollowedFolder):
        def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:  # noqa: ARG002
            raise StoreUnavailable("it takes no token")

    one.stream = Deaf(one.log)
    one.start_master()
    for passes in (1, 2, 3):
        one.append(10)
        one.done(passes)

    assert one.in_the_table() == one.appended()
    assert caplog.text.count("is not told what training needs of it: it takes no token") == 1


def test_the_log_of_an_intake_that_comes_back_is_trained_on_from_where_it_was(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, source={"url": "intake://host:8310"})
    one.append(10, "clicks-a")
    one.done(1)
    # Another volume is put in its place for a while.
    (one.log / "clicks-a").rename(one.log / ".clicks-a")
    one.append(10, "clicks-b")
    one.done(2)
    (one.log / "clicks-b").rename(one.log / ".clicks-b")
    (one.log / ".clicks-a").rename(one.log / "clicks-a")
    one.append(5, "clicks-a")
    one.done(3)

    assert [one.ledger.records(ordinal) for ordinal in (1, 2, 3)] == [10, 10, 5]
    assert set(one.in_the_table().values()) == {1}


def test_a_bad_line_of_a_small_window_stops_nothing(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.01)
    for ordinal in range(1, 9):
        one.refused["clicks"] = int(ordinal % 4 == 0)
        one.append(10)
        one.done(ordinal)

    assert one.coordinator.counted()["refused"] == 2


def test_bad_lines_that_come_in_small_windows_are_counted_together_until_they_are_too_many(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.01)
    one.append(2000)
    one.done(1)
    one.refused["clicks"] = 4
    for ordinal in (2, 3, 4):
        one.append(300)
        one.done(ordinal)
    one.append(300)
    one.until_state("stopped")

    # Of the pass itself 1.3 %, and with those before it, up to a thousand lines, 1.3 %, too.
    assert "16 of 1216 lines in this pass and 3 before it were refused" in one.reason()


def test_offsets_that_the_stream_has_dropped_are_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)
    one.append(10)

    class Forgetful(FollowedFolder):
        def partitions(self) -> dict[str, Kept]:
            return {name: Kept(15 * len(LINE), each.end) for name, each in super().partitions().items()}

    one.stream = Forgetful(one.log)
    one.start_master()
    one.done(2)

    places = one.ledger.facts.stream
    assert places is not None
    assert places.gone == 5 * len(LINE)
    assert "offsets of the stream were never read" in caplog.text
    assert one.ledger.records(2) == 5


def test_latest_leaves_out_what_was_there_and_trains_what_comes_though_the_master_restarts_before(
    tmp_path: Path,
) -> None:
    one = StreamWorld(tmp_path, start="latest")
    one.append(10)
    one.until(lambda: one.coordinator.found.stream_following() is not None)
    one.append(4)
    one.start_master()
    one.append(3)
    one.done(1)

    assert one.in_the_table() == {place: 1 for place in one.appended() if place[1] >= 10 * len(LINE)}


def test_a_followed_file_that_is_deleted_is_named_and_its_unread_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = StreamWorld(tmp_path, stream={"max_bytes": 10 * len(LINE)})
    one.append(25)
    one.until_state("training")
    (one.log / "clicks").unlink()
    one.append(5, "others")
    one.done(2)

    assert "clicks is not in" in caplog.text
    assert one.ledger.facts.stream is not None
    assert one.ledger.facts.stream.gone == 15 * len(LINE)
    assert one.ledger.facts.stream.following == {"others": 5 * len(LINE)}


def test_a_log_of_an_intake_that_is_begun_anew_is_read_from_its_beginning_and_what_was_unread_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    one = StreamWorld(tmp_path, stream={"max_records": 80})
    one.stream = IntakeLog(f"127.0.0.1:{port}", RetryPolicy(0))
    one.start_master()
    with closing(one.stream):
        with desk(intake_file(tmp_path / "lost"), port) as door:
            door.post(200 * LINE)
            one.until_state("training")
            former = door.partition
        with desk(intake_file(tmp_path / "new"), port) as door:
            # As long as the former one: its end alone would not tell.
            door.post(240 * LINE)
            one.done_up_to(4)

    ranges = [text for each in sorted(one.ledger.passes(), key=lambda each: each.ordinal) for text in each.splits]
    new = door.partition
    assert ranges[:4] == [f"{former}:0-80", f"{new}:0-80", f"{new}:80-160", f"{new}:160-240"]
    assert f"{former} is not in {one.stream.url} any more; 120 records of it were not read" in caplog.text
    assert one.ledger.facts.stream is not None
    assert (one.ledger.facts.stream.gone, one.ledger.facts.stream.following) == (120, {new: 240})


def test_a_stream_that_does_not_answer_is_asked_seldom_and_its_sentence_stays(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    asked = []

    class Away(FollowedFolder):
        def partitions(self) -> dict[str, Kept]:
            asked.append(one.now)
            raise StoreUnavailable("it does not answer")

    finder = WindowFinder(Away(one.log), one.settings, lambda: one.now)
    wanted = one.coordinator.found.wants_hours()
    assert wanted is not None
    for _ in range(35):
        one.now += 0.1
        with pytest.raises(StoreUnavailable, match="it does not answer"):
            finder.find(one.coordinator, wanted)

    assert len(asked) == 2


def test_a_partition_that_nobody_can_read_keeps_no_other_from_being_trained(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    away = {"b"}

    class InPart(FollowedFolder):
        def partitions(self) -> dict[str, Kept]:
            return {name: each._replace(away=name in away) for name, each in super().partitions().items()}

    one.stream = InPart(one.log)
    one.start_master()
    for file in ("a", "b"):
        one.append(10, file)
    wanted = one.coordinator.found.wants_hours()
    assert wanted is not None
    with pytest.raises(StoreUnavailable, match=r"b of .* cannot be read; the first pass waits until every partition"):
        one.finder.find(one.coordinator, wanted)

    away.clear()
    one.now += 10
    one.done(1)
    away.add("b")
    for file in ("a", "b"):
        one.append(10, file)
    one.done(2)
    assert one.in_the_table() == Counter(
        {("a", place * len(LINE)): 1 for place in range(20)} | {("b", place * len(LINE)): 1 for place in range(10)}
    )
    status = one.finder.status()["stream"]
    assert (status["lag"], status["partitions"]["b"]["away"]) == (10 * len(LINE), True)

    away.clear()
    one.done(3)
    assert one.in_the_table() == one.appended()


def test_the_lag_grows_while_a_pass_is_under_way(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.until_state("training")
    assert one.finder.lag() == 0

    one.append(7)
    one.now += 2
    one.find_hours()
    assert one.finder.lag() == 7 * len(LINE)

    one.log.rename(one.log.with_name("away"))
    one.now += 2
    # The pass under way does not need the stream.
    one.find_hours()
    assert one.finder.lag() == 7 * len(LINE)


def test_the_first_pass_of_a_day_ends_the_day_before(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)
    one.append(10)
    one.done(2)

    one.now += 86_400
    one.append(10)
    one.done(3)

    assert [each.ends_day for each in one.ledger.passes()[:3]] == [False, False, True]
    assert [each["kind"] for each in one.ledger.versions()] == ["base", "delta", "base"]


def test_hours_have_no_offsets_though_a_later_hour_is_known(tmp_path: Path) -> None:
    """After a damaged checkpoint an hour is saved again, and the one behind it is there."""
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes()) == 2)

    assert following_after(one.ledger, 1) == {}
    name = one.ledger.checkpoints()[0]["name"]
    assert read_checkpoint(one.store, name).stream is None


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
def test_a_clock_that_is_set_repeats_no_record_and_delays_no_checkpoint(
    tmp_path: Path, jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    one = StreamWorld(tmp_path, stream={"checkpoint_seconds": 60.0})
    one.append(10)
    one.done(1)
    one.append(10)
    trainer = one.until_trained()
    one.clock_set += jump
    one.done(2)
    assert trainer in one.trainers
    before = len(one.ledger.checkpoints())

    # A checkpoint by log comes after a few seconds, a whole one after a minute; also after a restart of the master.
    for passes in range(3, 9):
        one.now += 15
        one.append(3)
        one.done(passes)
        if passes == 5:
            one.start_master()

    checkpoints = one.ledger.checkpoints()
    assert len(checkpoints) > before
    assert checkpoints[-1]["pass"] >= 7
    assert one.in_the_table() == one.appended()
    assert one.coordinator.counted()["repeated"] == 0
    assert one.ledger.recoveries() == []
    assert caplog.text.count(f"this machine's clock was set by {jump:+.1f} s") == 1
    # What others compare with their clocks is of the machine's.
    newest = read_version(one.store, one.ledger.versions()[-1]["id"])
    assert abs(newest.event_time_max - (one.now + one.clock_set)) < 10
    status = status_of_ledger(one.ledger)
    assert abs(status["passes"][-2]["doneAt"] - (one.now + one.clock_set)) < 60
    assert abs(status["versions"][-1]["at"] - (one.now + one.clock_set)) < 60


def test_a_checkpoint_says_which_offsets_it_has_whatever_was_begun_since(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.append(4, "others")
    one.done(1)
    first = one.ledger.checkpoints()[-1]["name"]
    for passes in range(2, 6):
        one.now += 15
        one.append(5)
        one.done(passes)

    by_log = [each for each in one.ledger.checkpoints() if each["stands_on"]]
    assert by_log
    for each in by_log:
        of_log = read_checkpoint(one.store, each["name"]).stream
        assert of_log is not None
        assert of_log.following == following_after(one.ledger, each["pass"])
    position = read_checkpoint(one.store, first).stream
    assert position is not None
    assert is_same_stream(position.url, one.settings.data.source.url)
    assert position.following == {"clicks": 10 * len(LINE), "others": 4 * len(LINE)}
    assert following_after(one.ledger, 1) == position.following
    assert following_after(one.ledger, 2) == {"clicks": 15 * len(LINE), "others": 4 * len(LINE)}


def test_a_midnight_that_the_clock_shows_twice_ends_one_day(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    # 1,600,000,000 is 12:26:40; to 23:59:50.
    one.now += 41_590
    one.append(10)
    one.done(1)
    for passes in range(2, 6):
        one.now += 15
        if passes == 3:
            one.clock_set -= 30
        one.append(10)
        one.done(passes)

    assert [each.ends_day for each in one.ledger.passes()].count(True) == 1


@pytest.mark.parametrize(
    ("known", "today", "expected"),
    [
        ("", "20200914", ("20200914", False)),
        ("20200914", "20200914", ("20200914", False)),
        ("20200914", "20200915", ("20200915", True)),
        ("20200914", "20200918", ("20200918", True)),
        # Set back over midnight: the day has ended already.
        ("20200915", "20200914", ("20200915", False)),
        ("20201001", "20200930", ("20201001", False)),
        # The clock was wrong, and is right now.
        ("20300101", "20200914", ("20200914", False)),
    ],
)
def test_a_day_ends_once_and_days_of_a_wrong_clock_are_forgotten(
    known: str, today: str, expected: tuple[str, bool]
) -> None:
    assert day_after(known, today) == expected


def test_after_a_jump_a_day_ends_at_midnight_of_the_clock_as_it_is(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)
    # A machine that slept: the clock goes on by ten hours and no time has passed, to 22:26.
    one.clock_set += 36_000
    for passes in range(2, 5):
        one.append(10)
        one.done(passes)
    before = [each.ends_day for each in one.ledger.passes()]
    one.start_master()
    one.now += 6000
    for passes in range(5, 8):
        one.append(10)
        one.done(passes)

    assert not any(before)
    assert [each.ends_day for each in one.ledger.passes()].count(True) == 1


def test_only_the_same_address_is_the_same_stream() -> None:
    assert is_same_stream("file:///d/clicks?follow", "file:///d/clicks/?follow")
    assert is_same_stream("kafka://a:9092,b:9092/clicks", "kafka://a:9092,b:9092/clicks")
    assert not is_same_stream("kafka://a:9092/clicks", "kafka://b:9092/clicks")
    assert not is_same_stream("intake://a:8310", "intake://b:8310")


def test_a_backlog_of_an_hour_is_trained_in_the_largest_passes_and_every_line_once(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"window_ms": 1000, "max_bytes": 4000 * len(LINE)})
    one.append(36_000)

    lags = []
    for passes in range(1, 10):
        one.append(2)
        one.done(passes)
        lags.append(one.finder.lag())
    one.append(1)
    one.done(10)

    assert lags[:7] == sorted(lags[:7], reverse=True)
    assert max(lags[7:]) < 20 * len(LINE)
    assert [one.ledger.records(ordinal) for ordinal in range(1, 10)] == [4000] * 9
    assert one.in_the_table() == one.appended()
    assert one.coordinator.counted()["trained"] == 36_019


def test_a_ledger_of_a_thousand_micro_passes_keeps_the_last_ones_and_every_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_schedule, "_KEPT_PASSES", 5)
    monkeypatch.setattr(stream_schedule, "_DROP_EACH", 4)
    monkeypatch.setattr(save_planning, "_LONGEST_CHAIN", 3)
    one = StreamWorld(tmp_path, stream={"compact_versions": 1})
    for number in range(14):
        one.append(3)
        one.done_up_to(number + 1)

    kept = [each.ordinal for each in one.ledger.passes() if each.state == "done"]
    assert kept == [7, 8, 9, 10, 11, 12, 13, 14]
    assert status_of_ledger(one.ledger)["earlierPasses"] == 6
    assert one.coordinator.counted()["trained"] == one.ledger.totals()["trained"] == 14 * 3
    kinds = [each["kind"] for each in one.ledger.versions()]
    assert kinds.count("base") >= 2
    assert one.in_the_table() == one.appended()
    # A recovery does not need what is gone.
    one.append(3)
    one.until_trained()
    one.pservers[0].restart()
    one.done_up_to(15)
    assert one.in_the_table() == one.appended()
    assert one.coordinator.counted()["trained"] == 15 * 3


def test_the_status_says_how_far_behind_it_is(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"max_bytes": 10 * len(LINE)})
    one.append(25)
    one.until_state("checking")

    status = one.finder.status()["stream"]

    assert status["unit"] == "bytes"
    assert one.finder.lag() == status["lag"]
    assert status["lag"] == 15 * len(LINE)
    assert status["partitions"] == {
        "clicks": {"first": 0, "end": 25 * len(LINE), "following": 10 * len(LINE), "away": False}
    }


def test_a_schedule_of_a_stream_never_ends(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(1)
    one.done(1)
    schedule = StreamSchedule(one.ledger, one.data, lambda: one.now)

    assert not schedule.is_last(one.ledger.passes()[0])
    assert not schedule.cut_again()
    assert not schedule.finished


def test_a_message_is_found_by_a_place_in_its_text() -> None:
    from elastic_ctr.streams.interface import lines_of_messages

    lines = lines_of_messages([(7, b"ab"), (9, b"c\nd\n")], gone=0)

    assert isinstance(lines, Lines)
    assert [lines.offset_of(place) for place in range(7)] == [7, 7, 7, 9, 9, 9, 9]
