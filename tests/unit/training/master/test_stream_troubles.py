"""Streams that do not answer, lose partitions or offsets, or have bad lines."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from credentials import tokens
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.intake import IntakeLog
from elastic_ctr.sources.streams.interface import Kept
from elastic_ctr.store.backends import RetryPolicy, StoreUnavailable
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.work import finder
from elastic_ctr.training.master.work.finder import WindowFinder
from ports import free_port
from sources.intake.desk import TOKEN, desk, intake_file
from training.master.stream_world import LINE, StreamWorld


def test_training_goes_on_where_a_stream_does_not_take_the_needed_offsets(
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


def test_the_whole_pass_that_a_checkpoint_has_a_part_of_is_needed_from_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_LEAST_OFFSETS", {"bytes": len(LINE)})
    one = StreamWorld(tmp_path)
    one.handover_seconds = 60
    one.append(10)
    one.done(1)
    one.append(10)
    one.until_phase(control.TRAIN).report()
    [other] = [each for each in one.trainers if each.task is not None]

    one.replace("ctr-train-b", 1)
    other.leave(table_unchanged=True)
    one.until(lambda: one.coordinator.handover is None)

    [*_, last] = one.ledger.saves.checkpoints()
    assert (last["pass"], bool(last["mid"])) == (2, True)
    assert one.coordinator.found.stream_needed() == {"clicks": 10 * len(LINE)}
    one.done(2)
    assert one.in_the_table() == one.appended()
    one.now += 120
    one.append(5)
    one.done(3)
    one.until(lambda: one.coordinator.found.stream_needed() == {"clicks": 25 * len(LINE)})


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

    assert [one.ledger.tasks.records(ordinal) for ordinal in (1, 2, 3)] == [10, 10, 5]
    assert set(one.in_the_table().values()) == {1}


def test_a_bad_line_of_a_small_window_stops_nothing(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.01)
    for ordinal in range(1, 9):
        one.refused["clicks"] = int(ordinal % 4 == 0)
        one.append(10)
        one.done(ordinal)

    assert one.ledger.passes.counted()["refused"] == 2


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


def test_offsets_that_the_stream_has_dropped_are_counted_and_logged(
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
    assert one.ledger.tasks.records(2) == 5


def test_dropped_offsets_of_a_partition_without_new_ones_are_counted_once(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.append(10, "others")
    one.done(1)

    class Forgetful(FollowedFolder):
        def partitions(self) -> dict[str, Kept]:
            found = super().partitions()
            return {**found, "clicks": Kept(15 * len(LINE), 15 * len(LINE))}

    one.stream = Forgetful(one.log)
    one.start_master()
    for passes in (2, 3, 4):
        one.append(1, "others")
        one.done(passes)

    places = one.ledger.facts.stream
    assert places is not None
    assert places.gone == 5 * len(LINE)


def test_a_file_that_is_rotated_while_passes_are_trained_is_trained_once(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path)
    one.append(10)
    one.until_trained()
    (one.log / "clicks").rename(one.log / "clicks.1")
    one.append(5, "clicks.1")
    one.start_master()
    one.append(20, "others")
    (one.log / "others").rename(one.log / "clicks")
    one.until(lambda: sum(one.in_the_table().values()) >= 35)

    assert sum(one.in_the_table().values()) == 35
    assert set(one.in_the_table().values()) == {1}
    files = {task.path: task.file.partition("@")[0] for task in one.tasks if task.path}
    assert files["clicks"] == "clicks.1"


def test_a_pass_that_is_retried_goes_on_without_the_file_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.01)
    one.append(1000)
    one.append(1000, "others")
    one.refused["clicks"] = 100
    one.until_state("stopped")
    (one.log / "clicks").unlink()
    one.refused.clear()

    assert one.coordinator.retry("stream/00000001") == ""
    one.done(1)

    assert set(one.in_the_table()) == {("others", place * len(LINE)) for place in range(1000)}
    assert "clicks: deleted before pass stream/00000001 has read them; 8000 bytes of it are dropped" in caplog.text
    assert one.ledger.facts.stream is not None
    assert one.ledger.facts.stream.gone == 1000 * len(LINE)


def test_a_pass_whose_files_are_all_gone_takes_what_comes_next(tmp_path: Path) -> None:
    one = StreamWorld(tmp_path, max_refused_share=0.01)
    one.append(1000)
    one.refused["clicks"] = 100
    one.until_state("stopped")
    (one.log / "clicks").unlink()
    one.append(10, "others")

    assert one.coordinator.retry("stream/00000001") == ""
    one.done(1)

    assert set(one.in_the_table()) == {("others", place * len(LINE)) for place in range(10)}


def test_latest_leaves_out_what_was_there_and_trains_what_comes_though_the_master_restarts_before(
    tmp_path: Path,
) -> None:
    one = StreamWorld(tmp_path, start="latest")
    one.append(10)
    one.until(lambda: one.coordinator.facts.stream is not None)
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
    assert one.ledger.facts.stream.following == {"clicks": 10 * len(LINE), "others": 5 * len(LINE)}


def test_a_log_of_an_intake_that_is_begun_anew_is_read_from_its_beginning_and_what_was_unread_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    one = StreamWorld(tmp_path, stream={"max_records": 80})
    one.stream = IntakeLog(f"127.0.0.1:{port}", RetryPolicy(0), tokens(TOKEN))
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

    ranges = [text for each in sorted(one.ledger.passes.all(), key=lambda each: each.ordinal) for text in each.splits]
    new = door.partition
    assert ranges[:4] == [f"{former}:0-80", f"{new}:0-80", f"{new}:80-160", f"{new}:160-240"]
    assert f"{former} is not in {one.stream.url} any more; 120 records of it were not read" in caplog.text
    assert one.ledger.facts.stream is not None
    assert (one.ledger.facts.stream.gone, one.ledger.facts.stream.following) == (120, {new: 240})


def test_a_stream_that_does_not_answer_is_tried_seldom_and_its_error_stays(tmp_path: Path) -> None:
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


class InPart(FollowedFolder):
    """Files in `absent` cannot be read, and where `forgets` is set nobody has seen them."""

    absent: frozenset[str] = frozenset()
    forgets = False

    def partitions(self) -> dict[str, Kept]:
        found = super().partitions()
        unseen = {name: Kept(0, 0) for name in found} if self.forgets else found
        return {name: unseen[name]._replace(away=True) if name in self.absent else each for name, each in found.items()}


def in_part(folder: Path, **given: Any) -> tuple[StreamWorld, InPart]:
    one = StreamWorld(folder, **given)
    one.stream = stream = InPart(one.log)
    one.start_master()
    return one, stream


@pytest.mark.parametrize("forgets", [False, True])
def test_a_partition_that_cannot_be_read_keeps_no_other_from_being_trained(tmp_path: Path, forgets: bool) -> None:
    one, stream = in_part(tmp_path)
    for file in ("a", "b"):
        one.append(10, file)
    one.done(1)
    stream.absent, stream.forgets = frozenset("b"), forgets
    one.append(10, "b")
    for passes in (2, 3):
        one.now += 100
        one.append(10, "a")
        one.done(passes)
        # As one that has not seen it, either.
        one.start_master()

    assert one.in_the_table() == Counter(
        {("a", place * len(LINE)): 1 for place in range(30)} | {("b", place * len(LINE)): 1 for place in range(10)}
    )
    # What waits in the absent one is not taken for what has just come.
    assert one.ledger.facts.stream is not None
    assert one.now - one.ledger.facts.stream.arrivals[-1].last < 10
    one.append(1, "a")
    one.until(lambda: one.finder.away() == ["b"])
    status = one.finder.status()
    assert status is not None
    assert status.partitions["b"].away
    metrics = {
        each.name: each.samples[0].value
        for each in MasterMetrics(one.coordinator, one.finder.lag, one.finder.away).collect()
        if each.samples
    }
    assert metrics["elastic_ctr_master_stream_partitions_away"] == 1

    stream.absent = frozenset()
    one.until(lambda: one.in_the_table() == one.appended())
    assert one.finder.away() == []


def test_a_partition_that_cannot_be_read_at_the_start_is_read_from_its_beginning_later(tmp_path: Path) -> None:
    one, stream = in_part(tmp_path)
    stream.absent, stream.forgets = frozenset("b"), True
    for file in ("a", "b"):
        one.append(10, file)
    one.done(1)
    assert set(one.in_the_table()) == {("a", place * len(LINE)) for place in range(10)}

    stream.absent = frozenset()
    one.done(2)

    assert one.in_the_table() == one.appended()


def test_a_training_from_the_latest_offsets_waits_for_those_of_each_partition(tmp_path: Path) -> None:
    one, stream = in_part(tmp_path, start="latest")
    stream.absent = frozenset("b")
    for file in ("a", "b"):
        one.append(10, file)
    wanted = one.coordinator.found.wants_hours()
    assert wanted is not None
    with pytest.raises(
        StoreUnavailable, match=r"b of .* cannot be read, and with data.start latest the first pass waits"
    ):
        one.finder.find(one.coordinator, wanted)

    stream.absent = frozenset()
    one.now += 10
    one.turn()
    one.append(3, "b")
    one.done(1)

    assert set(one.in_the_table()) == {("b", place * len(LINE)) for place in range(10, 13)}
