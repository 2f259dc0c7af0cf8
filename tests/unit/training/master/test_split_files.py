import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elastic_ctr.config.data import Data, split_end
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.master.calendar.split_files import (
    SplitFiles,
    data_files,
    late_files,
    missing_folder,
    splits_there,
)
from training.master.world import data_of


def look(root: Path, data: Data, *splits: str) -> tuple[dict[str, int], str]:
    found = SplitFiles(FileSource(root), data).look(splits)
    return found.files, found.missing


DATA = data_of(path="/logs")


def hour(root: Path, split: str, **files: int) -> None:
    folder = root / "logs" / split
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in files.items():
        (folder / name).write_bytes(b"x" * size)


def test_an_hour_without_its_donefile_is_named_and_gives_nothing(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5)

    assert look(tmp_path, DATA, "20200401/00") == ({}, "20200401/00")


def test_an_hour_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    assert look(tmp_path, DATA, "20200401/00") == ({}, "20200401/00")


def test_a_settled_hour_with_a_marker_of_hadoop_alone_has_no_files_yet(tmp_path: Path) -> None:
    data = data_of(path="/logs", settle_seconds=1)
    hour(tmp_path, "20200401/00", **{"country=de_$folder$": 0})
    for each in (tmp_path / "logs/20200401/00/country=de_$folder$", tmp_path / "logs/20200401/00"):
        os.utime(each, (0, 0))

    assert look(tmp_path, data, "20200401/00") == ({}, "20200401/00")


def test_the_first_of_several_splits_that_is_missing_is_named(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5, donefile=0)
    hour(tmp_path, "20200401/01", part=5)

    assert look(tmp_path, DATA, "20200401/00", "20200401/01")[1] == "20200401/01"


def test_a_complete_pass_gives_its_files_with_their_bytes(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", b=5, a=7, donefile=0)
    hour(tmp_path, "20200401/01", donefile=0)

    files, missing = look(tmp_path, DATA, "20200401/00", "20200401/01")

    assert missing == ""
    assert files == {"logs/20200401/00/a": 7, "logs/20200401/00/b": 5}


def test_hidden_files_and_the_donefile_are_no_data(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5, _temporary=3, donefile=9)
    (tmp_path / "logs/20200401/00/.part.crc").write_bytes(b"x")
    (tmp_path / "logs/20200401/00/folder").mkdir()

    files, _ = look(tmp_path, DATA, "20200401/00")

    assert list(files) == ["logs/20200401/00/part"]


def test_a_path_of_the_root_is_no_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "20200401/00").mkdir(parents=True)
    (tmp_path / "20200401/00/donefile").touch()
    (tmp_path / "20200401/00/part").write_bytes(b"xx")

    assert look(tmp_path, data_of(path="/"), "20200401/00") == ({"20200401/00/part": 2}, "")


def test_the_splits_that_are_there_lie_on_the_grid_and_between_start_and_end(tmp_path: Path) -> None:
    for folder in (
        "20200331/23",
        "20200401/00",
        "20200401/02",
        "20200401/0230",
        "20200401/25",
        "20200402/00",
        "notes/00",
    ):
        (tmp_path / "logs" / folder).mkdir(parents=True)
    (tmp_path / "logs/20200401/03").write_bytes(b"a file")
    source = FileSource(tmp_path)

    assert splits_there(source, data_of(path="/logs", end=None)) == ["20200401/00", "20200401/02", "20200402/00"]
    assert splits_there(source, data_of(path="/logs", end="20200401/02")) == ["20200401/00", "20200401/02"]
    assert splits_there(source, data_of(path="/none")) == []


HIVE = data_of(path="/logs/dt={time:%Y-%m-%d}/hr={time:%H}", donefile="_SUCCESS")


def test_splits_of_a_template_are_found_by_the_names_of_its_folders(tmp_path: Path) -> None:
    for folder in (
        "dt=2020-03-31/hr=23",
        "dt=2020-04-01/hr=00",
        "dt=2020-04-01/hr=24",
        "dt=2020-04-01/hr=1",
        "dt=2020-04-01/hour=01",
        "dt=2020-04-31/hr=00",
        "dt=2020-04-02/hr=05",
    ):
        (tmp_path / "logs" / folder).mkdir(parents=True)
    source = FileSource(tmp_path)

    assert splits_there(source, HIVE.model_copy(update={"end": None})) == ["20200401/00", "20200402/05"]
    assert splits_there(source, HIVE) == ["20200401/00"]


def test_a_folder_behind_the_time_is_looked_for(tmp_path: Path) -> None:
    data = data_of(path="/logs/{time:%Y%m%d%H}/clicks", end=None)
    (tmp_path / "logs/2020040100/clicks").mkdir(parents=True)
    (tmp_path / "logs/2020040101/views").mkdir(parents=True)

    assert splits_there(FileSource(tmp_path), data) == ["20200401/00"]


def test_days_and_minutes_are_splits_too(tmp_path: Path) -> None:
    days = data_of(path="/dt={time:%Y-%m-%d}", splitInterval=1440, end=None)
    minutes = data_of(path="/{time:%Y/%m/%d}/{time:%H%M}", splitInterval=5, end=None)
    for folder in ("dt=2020-04-02", "2020/04/01/0005", "2020/04/01/0007"):
        (tmp_path / folder).mkdir(parents=True)
    source = FileSource(tmp_path)

    assert splits_there(source, days) == ["20200402/00"]
    assert splits_there(source, minutes) == ["20200401/0005"]


def test_days_outside_start_and_end_are_not_listed(tmp_path: Path) -> None:
    listed: list[str] = []

    class Counting(FileSource):
        def folders(self, folder: str) -> list[str]:
            listed.append(folder)
            return super().folders(folder)

    for day in range(1, 10):
        (tmp_path / f"logs/dt=2020-04-0{day}/hr=00").mkdir(parents=True)
    splits_there(Counting(tmp_path), HIVE.model_copy(update={"start": "20200404/00", "end": "20200404/23"}))

    assert listed == ["logs", "logs/dt=2020-04-04"]


def test_files_of_partitions_are_data_of_their_split_and_other_folders_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "logs/dt=2020-04-01/hr=00"
    for name in (
        "country=de/part",
        "country=fr/city=a%2Fb/part",
        "country=fr/_part",
        "_x=1/part",
        "old/part",
        ".h=1/part",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"xx")
    assert look(tmp_path, HIVE, "20200401/00") == ({}, "20200401/00")
    (folder / "_SUCCESS").touch()

    assert look(tmp_path, HIVE, "20200401/00")[0] == {
        "logs/dt=2020-04-01/hr=00/country=de/part": 2,
        "logs/dt=2020-04-01/hr=00/country=fr/city=a%2Fb/part": 2,
    }


def test_the_folder_that_is_missing_is_the_one_before_the_time(tmp_path: Path) -> None:
    assert f"{tmp_path}/logs does not exist" in missing_folder(FileSource(tmp_path), HIVE)
    (tmp_path / "logs").mkdir()
    assert missing_folder(FileSource(tmp_path), HIVE) == ""


# -- without a donefile ------------------------------------------------------------------------------------------------

SETTLING = data_of(path="/logs", settleSeconds=300)
ENDS = float(split_end("20200401/00", 60, "UTC"))


@dataclass
class Watch:
    """The look of a master at one split, at times by a clock in seconds after the split's end. Files are written at that time."""

    root: Path
    data: Data = SETTLING
    at_once: bool = False
    now: float = 0.0
    looks: SplitFiles = field(init=False)

    def __post_init__(self) -> None:
        source = FileSource(self.root)
        self.looks = SplitFiles(source, self.data, lambda: self.now, lambda: ENDS + self.now, at_once=self.at_once)

    @property
    def folder(self) -> Path:
        return self.root / "logs/20200401/00"

    def write(self, name: str, size: int, *, written_at: float | None = None) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size)
        times = ENDS + (self.now if written_at is None else written_at)
        os.utime(file, (times, times))
        os.utime(file.parent, (ENDS + self.now, ENDS + self.now))

    def is_complete(self, at: float) -> bool:
        self.now = at
        return not self.looks.look(("20200401/00",)).missing


def test_a_split_without_donefile_is_complete_once_it_has_not_changed_for_so_long(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.write("part-0", 5)

    assert [watch.is_complete(at) for at in (0, 299, 300)] == [False, False, True]


@pytest.mark.parametrize("change", ["grown", "added", "removed", "in a partition", "hidden"])
def test_each_change_begins_the_time_anew(tmp_path: Path, change: str) -> None:
    watch = Watch(tmp_path)
    watch.write("part-0", 5)
    watch.write("part-1", 5)
    assert not watch.is_complete(200)

    if change == "removed":
        (watch.folder / "part-1").unlink()
    else:
        name = {"grown": "part-0", "added": "part-2", "in a partition": "country=de/part-0", "hidden": ".part-3"}[
            change
        ]
        watch.write(name, 6)

    assert [watch.is_complete(at) for at in (250, 500, 549, 550)] == [False, False, False, True]


def test_a_split_that_has_not_ended_for_so_long_is_not_complete(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.now = -3000
    watch.write("part-0", 5)

    assert [watch.is_complete(at) for at in (-3000, -10, 299, 300)] == [False, False, False, True]


def test_an_empty_folder_is_waited_for_and_an_empty_file_makes_it_complete(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.folder.mkdir(parents=True)
    assert [watch.is_complete(at) for at in (0, 1000)] == [False, False]
    watch.write("_SUCCESS", 0)
    assert [watch.is_complete(at) for at in (2000, 3000)] == [False, False]

    watch.write("part-0", 0)

    assert [watch.is_complete(at) for at in (3001, 3301)] == [False, True]


def test_a_split_that_has_not_changed_for_an_hour_is_complete_at_the_first_look(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.write("part-0", 5)

    assert not Watch(tmp_path).is_complete(3599)
    assert watch.is_complete(3600)


def test_old_files_that_are_copied_with_their_times_are_watched(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.now = 200_000
    watch.write("part-0", 5, written_at=0)
    assert not watch.is_complete(200_000)
    watch.now = 200_200
    watch.write("part-1", 5, written_at=0)

    assert [watch.is_complete(at) for at in (200_200, 200_499, 200_500)] == [False, False, True]


def test_a_command_takes_the_times_of_files_at_their_word(tmp_path: Path) -> None:
    watch = Watch(tmp_path, at_once=True)
    watch.write("part-0", 5)

    assert not watch.is_complete(299)
    assert watch.is_complete(301)


def test_all_splits_of_a_pass_settle_at_the_same_time(tmp_path: Path) -> None:
    data = SETTLING.model_copy(update={"splits_per_pass": 2})
    now = 3600.0
    looks = SplitFiles(FileSource(tmp_path), data, lambda: now, lambda: ENDS + now)
    splits = ("20200401/00", "20200401/01")
    hour(tmp_path, splits[0], part=5)
    hour(tmp_path, splits[1], part=7)
    assert looks.look(splits).missing == splits[0]
    now += 300

    assert sum(looks.look(splits).files.values()) == 12


def test_the_donefile_of_a_split_that_settles_is_no_data(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5, donefile=3)

    listed = FileSource(tmp_path).listing("logs/20200401/00")

    assert list(data_files(SETTLING, "20200401/00", listed)) == ["logs/20200401/00/part"]


def test_files_that_came_or_grew_after_they_were_listed_are_late(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", a=5, b=7, donefile=0)
    source, split = FileSource(tmp_path), "20200401/00"
    listed = data_files(DATA, split, source.listing(f"logs/{split}"))
    assert late_files(source, DATA, split, listed) == []

    hour(tmp_path, split, b=8, c=1, _hidden=1)
    (tmp_path / "logs" / split / "a").unlink()

    assert late_files(source, DATA, split, listed) == [f"logs/{split}/b", f"logs/{split}/c"]
