"""The finder of hours beside a whole training: what it looks for while a pass is trained and saved, and what it finds too late."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.store.backends import StoreUnavailable
from elastic_ctr.store.backends.file import LocalFiles
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.master.work.finder import HourFinder
from training.master.world import World, data_of

HOURS = ("20200401/00", "20200401/01", "20200401/02")


class Files(LocalFiles):
    """Counts listings; they fail while it is `away`."""

    listed = 0
    away = False

    def list(self, folder: str) -> Any:
        self.listed += 1
        if self.away:
            raise StoreUnavailable("the files are away; bring them back")
        return super().list(folder)


class HourWorld(World):
    """A World whose hours are real folders. All looks ahead have ended when a turn has."""

    def __init__(self, folder: Path, **data: Any) -> None:
        self.data_folder = folder / "logs"
        self.data_folder.mkdir()
        self.disk = Files(folder)
        given = {"path": "/logs", "end": HOURS[-1], "sleepSeconds": 0.1, **data}
        # Listings by each pass that was wanted.
        self.listed_for: dict[str, int] = {}
        super().__init__(folder, data=data_of(**given), config=MasterConfig())

    def start_master(self) -> None:
        super().start_master()
        source = FileSource(self.data_folder.parent)
        source._backend = self.disk
        # Files have the times of this machine.
        began = time.time() - self.now
        self.finder = HourFinder(source, self.settings, lambda: self.now, lambda: began + self.now)

    def write(self, hour: str, *files: str) -> None:
        for name in files:
            file = self.data_folder / hour / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"1 0 a:1\n")

    def find_hours(self) -> None:
        wanted = self.coordinator.found.wants_hours()
        if wanted is not None:
            before = self.disk.listed
            self.finder.find(self.coordinator, wanted)
            self.listed_for[wanted.id] = self.listed_for.get(wanted.id, 0) + self.disk.listed - before
        else:
            self.finder.look_on(self.coordinator)
        for thread in threading.enumerate():
            if thread.name == "look-ahead":
                thread.join()

    def state(self, ordinal: int) -> str:
        return next((each.state for each in self.ledger.passes.all() if each.ordinal == ordinal), "")

    def files_of(self, ordinal: int) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.ledger.passes.files(ordinal))


@pytest.fixture
def one(tmp_path: Path) -> HourWorld:
    made = HourWorld(tmp_path)
    made.write(HOURS[0], "a", "donefile")
    return made


def test_a_pass_that_was_found_ahead_begins_after_the_save_without_another_listing(one: HourWorld) -> None:
    one.write(HOURS[1], "b", "c", "donefile")
    one.until(lambda: one.state(1) == "done")
    one.turn()

    assert one.state(2) == "checking"
    assert one.files_of(2) == ["b", "c"]
    assert one.listed_for == {HOURS[0]: 1, HOURS[1]: 0}


def test_a_pass_that_is_shorter_than_the_time_between_two_looks_has_one_all_the_same(tmp_path: Path) -> None:
    one = HourWorld(tmp_path, sleepSeconds=10_000)
    for hour in HOURS:
        one.write(hour, "a", "donefile")
    one.finish()

    assert one.listed_for == {HOURS[0]: 1, HOURS[1]: 0, HOURS[2]: 0}


def test_a_look_ahead_changes_nothing_in_the_ledger(one: HourWorld) -> None:
    one.write(HOURS[1], "b", "donefile")
    one.until_state("training")
    before = one.disk.listed
    one.until(lambda: one.disk.listed > before)

    assert [each.id for each in one.ledger.passes.all()] == [HOURS[0]]
    assert one.files_of(2) == []


def test_a_file_that_comes_after_a_look_ahead_is_in_the_pass_all_the_same(one: HourWorld) -> None:
    one.write(HOURS[1], "b", "donefile")
    one.until_state("training")
    before = one.disk.listed
    one.until(lambda: one.disk.listed > before)

    one.write(HOURS[1], "c")
    one.until(lambda: one.state(2) not in ("", "waiting"))

    assert one.files_of(2) == ["b", "c"]


def test_an_hour_that_was_incomplete_ahead_is_looked_at_at_once_when_its_pass_is_wanted(one: HourWorld) -> None:
    one.write(HOURS[1], "b")
    one.until(lambda: one.state(2) == "waiting")
    assert one.finder.waits_for == f"{HOURS[1]}/donefile"

    one.write(HOURS[1], "donefile")

    one.until(lambda: one.state(2) == "done")
    assert one.listed_for[HOURS[1]] >= 2


def test_a_source_that_is_away_during_a_pass_is_noticed_when_the_next_one_is_wanted(one: HourWorld) -> None:
    one.write(HOURS[1], "b", "donefile")
    one.until_state("training")
    one.disk.away = True
    with pytest.raises(StoreUnavailable, match="the files are away"):
        one.until(lambda: one.state(2) == "checking")
    assert one.state(1) == "done"

    one.disk.away = False
    one.until(lambda: one.state(2) == "done")


def test_there_is_no_look_beyond_the_last_hour(one: HourWorld) -> None:
    for hour in HOURS[1:]:
        one.write(hour, "b", "donefile")
    one.until(lambda: one.state(3) == "saving")
    before = one.disk.listed
    one.finish()

    assert one.disk.listed == before
    assert set(one.trained().values()) == {1}
    assert len(one.trained()) == 3


def test_an_hour_settles_while_the_pass_before_it_is_trained(tmp_path: Path) -> None:
    one = HourWorld(tmp_path, settleSeconds=0.3)
    for hour in HOURS:
        one.write(hour, "a")
    one.finish()

    assert one.listed_for[HOURS[0]] > 1
    assert (one.listed_for[HOURS[1]], one.listed_for[HOURS[2]]) == (0, 0)
    assert len(one.trained()) == 3


def test_files_that_come_after_their_pass_was_listed_are_reported_once_and_not_trained(
    one: HourWorld, caplog: pytest.LogCaptureFixture
) -> None:
    one.until_state("training")
    one.write(HOURS[0], "late")
    with caplog.at_level(logging.ERROR):
        one.until(lambda: one.finder.late == 1)
        one.until(lambda: one.state(2) == "waiting")
        for _ in range(20):
            one.turn()

    told = [each.message for each in caplog.records if "late" in each.message]
    assert len(told) == 1
    assert told[0].startswith(
        f"1 files of {HOURS[0]} came or changed after its pass was listed, such as logs/{HOURS[0]}/late"
    )
    assert one.files_of(1) == ["a"]


def test_a_file_that_is_replaced_by_one_of_its_size_while_its_pass_trains_is_reported(one: HourWorld) -> None:
    one.until_state("training")
    one.until(lambda: one.finder._late._written)
    [file] = [each for each in one.folder.rglob("a") if each.is_file()]
    (new := file.with_name(".new")).write_bytes(file.read_bytes()[::-1])
    new.replace(file)

    one.until(lambda: one.finder.late == 1)


def test_a_late_file_of_an_hour_that_was_trained_long_ago_is_found_while_the_next_one_is_waited_for(
    one: HourWorld,
) -> None:
    one.write(HOURS[1], "b", "donefile")
    one.until(lambda: one.state(3) == "waiting")
    assert one.finder.late == 0

    one.write(HOURS[0], "late")

    one.until(lambda: one.finder.late == 1)
