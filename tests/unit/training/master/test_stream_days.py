"""Ends of days, and clocks that are set, while a stream is trained."""

from pathlib import Path

import pytest

from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.master.calendar.stream_schedule import day_after
from elastic_ctr.training.master.training_status import status_of_ledger
from training.master.stream_world import StreamWorld


def test_the_first_pass_of_a_day_ends_the_day_before(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.done(1)
    one.append(10)
    one.done(2)

    one.now += 86_400
    one.append(10)
    one.done(3)

    assert [each.ends_day for each in one.ledger.passes.all()[:3]] == [False, False, True]
    assert [each["kind"] for each in one.ledger.saves.versions()] == ["base", "delta", "base"]


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
    before = len(one.ledger.saves.checkpoints())

    # A checkpoint by log comes after a few seconds, a whole one after a minute; also after a restart of the master.
    for passes in range(3, 9):
        one.now += 15
        one.append(3)
        one.done(passes)
        if passes == 5:
            one.start_master()

    checkpoints = one.ledger.saves.checkpoints()
    assert len(checkpoints) > before
    assert checkpoints[-1]["pass"] >= 7
    assert one.in_the_table() == one.appended()
    assert one.ledger.passes.counted()["repeated"] == 0
    assert one.ledger.recoveries() == []
    assert caplog.text.count(f"this machine's clock was set by {jump:+.1f} s") == 1
    # What others compare with their clocks is of the machine's.
    newest = read_version(one.store, one.ledger.saves.versions()[-1]["id"])
    assert abs(newest.event_time_max - (one.now + one.clock_set)) < 10
    status = status_of_ledger(one.ledger).to_dict()
    assert abs(status["passes"][-2]["doneAt"] - (one.now + one.clock_set)) < 60
    assert abs(status["versions"][-1]["at"] - (one.now + one.clock_set)) < 60


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

    assert [each.ends_day for each in one.ledger.passes.all()].count(True) == 1


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
    before = [each.ends_day for each in one.ledger.passes.all()]
    one.start_master()
    one.now += 6000
    for passes in range(5, 8):
        one.append(10)
        one.done(passes)

    assert not any(before)
    assert [each.ends_day for each in one.ledger.passes.all()].count(True) == 1
