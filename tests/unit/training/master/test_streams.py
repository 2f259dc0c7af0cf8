"""Micro-passes of a real followed folder, with everything but Paddle and the network."""

from pathlib import Path

import pytest

from elastic_ctr.runtime.status.master_status import StreamPartition
from elastic_ctr.sources.streams.interface import Lines
from elastic_ctr.store.versions.published_files import read_checkpoint
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar import stream_schedule
from elastic_ctr.training.master.calendar.stream_schedule import StreamSchedule, following_after, is_same_stream
from elastic_ctr.training.master.saves import planning
from elastic_ctr.training.master.training_status import status_of_ledger
from training.master.stream_world import LINE, StreamWorld
from training.master.world import LEASE, world


def test_appended_records_are_trained_pass_after_pass_and_each_pass_is_a_version(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    for number in range(3):
        one.append(10)
        one.append(5, "others")
        one.done(number + 1)

    assert one.in_the_table() == one.appended()
    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta", "delta"]
    assert one.ledger.passes.counted()["trained"] == 45
    assert [each.id for each in one.ledger.passes.all()][:2] == ["stream/00000001", "stream/00000002"]
    assert not one.coordinator.finished


def test_a_pass_ends_with_its_window_or_once_it_is_full(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"window_ms": 5000, "max_bytes": 100 * len(LINE)})
    one.append(10)
    began = one.now
    one.done(1)
    assert one.now - began >= 5

    one.append(250)
    one.done(3)

    assert [one.ledger.tasks.records(ordinal) for ordinal in (1, 2, 3)] == [10, 100, 100]
    one.done(4)
    assert one.in_the_table() == one.appended()


def test_records_that_came_while_a_pass_was_trained_wait_no_further_window(tmp_path: Path) -> None:
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
    assert one.ledger.figures.learning(1).batch_sizes == (32,)
    [only] = one.ledger.passes.all()[:1]
    assert one.ledger.figures.quality(only.ordinal).before is not None


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
    assert one.ledger.passes.counted()["trained"] == 27


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

    assert one.ledger.passes.counted()["repeated"] == 10
    assert one.ledger.passes.counted()["trained"] == 10


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
    assert [one.ledger.tasks.records(ordinal) for ordinal in (1, 2)] == [10, 10]


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


def test_hours_have_no_offsets_though_a_later_hour_is_known(tmp_path: Path) -> None:
    """After a damaged checkpoint an hour is saved again, and the one behind it is there."""
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes.all()) == 2)

    assert following_after(one.ledger, 1) == {}
    name = one.ledger.saves.checkpoints()[0]["name"]
    assert read_checkpoint(one.store, name).stream is None


def test_a_checkpoint_says_which_offsets_it_has_whatever_was_begun_since(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.append(4, "others")
    one.done(1)
    first = one.ledger.saves.checkpoints()[-1]["name"]
    for passes in range(2, 6):
        one.now += 15
        one.append(5)
        one.done(passes)

    by_log = [each for each in one.ledger.saves.checkpoints() if each["stands_on"]]
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
    assert [one.ledger.tasks.records(ordinal) for ordinal in range(1, 10)] == [4000] * 9
    assert one.in_the_table() == one.appended()
    assert one.ledger.passes.counted()["trained"] == 36_019


def test_a_ledger_of_a_thousand_micro_passes_keeps_the_last_ones_and_every_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_schedule, "_KEPT_PASSES", 5)
    monkeypatch.setattr(stream_schedule, "_DROP_EACH", 4)
    monkeypatch.setattr(planning, "_LONGEST_CHAIN", 3)
    one = StreamWorld(tmp_path, stream={"compact_versions": 1})
    for number in range(14):
        one.append(3)
        one.done_up_to(number + 1)

    kept = [each.ordinal for each in one.ledger.passes.all() if each.state == "done"]
    assert kept == [7, 8, 9, 10, 11, 12, 13, 14]
    assert status_of_ledger(one.ledger).earlier_passes == 6
    assert one.ledger.passes.counted()["trained"] == one.ledger.passes.totals()["trained"] == 14 * 3
    kinds = [each["kind"] for each in one.ledger.saves.versions()]
    assert kinds.count("base") >= 2
    assert one.in_the_table() == one.appended()
    # A recovery does not need what is gone.
    one.append(3)
    one.until_trained()
    one.pservers[0].restart()
    one.done_up_to(15)
    assert one.in_the_table() == one.appended()
    assert one.ledger.passes.counted()["trained"] == 15 * 3


def test_the_status_says_how_far_behind_it_is(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, stream={"max_bytes": 10 * len(LINE)})
    one.append(25)
    one.until_state("checking")

    status = one.finder.status()

    assert status is not None
    assert status.unit == "bytes"
    assert one.finder.lag() == status.lag == 15 * len(LINE)
    assert status.partitions == {"clicks": StreamPartition(end=25 * len(LINE), following=10 * len(LINE))}


def test_a_schedule_of_a_stream_never_ends(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(1)
    one.done(1)
    schedule = StreamSchedule(one.ledger, one.data, lambda: one.now)

    assert not schedule.is_last(one.ledger.passes.all()[0])
    assert not schedule.cut_again()
    assert not schedule.finished


def test_a_message_is_found_by_a_place_in_its_text() -> None:
    from elastic_ctr.sources.streams.interface import lines_of_messages

    lines = lines_of_messages([(7, b"ab"), (9, b"c\nd\n")], gone=0)

    assert isinstance(lines, Lines)
    assert [lines.offset_of(place) for place in range(7)] == [7, 7, 7, 9, 9, 9, 9]
