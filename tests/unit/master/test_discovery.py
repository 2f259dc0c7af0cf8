from pathlib import Path

from elastic_ctr.master.discovery import look, ranges
from elastic_ctr.store.source import FileSource
from master.world import data_of

DATA = data_of(path="/logs")


def hour(root: Path, split: str, **files: int) -> None:
    folder = root / "logs" / split
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in files.items():
        (folder / name).write_bytes(b"x" * size)


def test_an_hour_without_its_donefile_is_named_and_gives_nothing(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5)

    assert look(FileSource(tmp_path), DATA, ("20200401/00",)) == ({}, "20200401/00")


def test_an_hour_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    assert look(FileSource(tmp_path), DATA, ("20200401/00",)) == ({}, "20200401/00")


def test_the_first_of_several_splits_that_is_missing_is_named(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5, donefile=0)
    hour(tmp_path, "20200401/01", part=5)

    assert look(FileSource(tmp_path), DATA, ("20200401/00", "20200401/01"))[1] == "20200401/01"


def test_a_complete_pass_gives_its_files_with_their_bytes(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", b=5, a=7, donefile=0)
    hour(tmp_path, "20200401/01", donefile=0)

    files, missing = look(FileSource(tmp_path), DATA, ("20200401/00", "20200401/01"))

    assert missing == ""
    assert files == {"logs/20200401/00/a": 7, "logs/20200401/00/b": 5}


def test_hidden_files_and_the_donefile_are_no_data(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", part=5, _temporary=3, donefile=9)
    (tmp_path / "logs/20200401/00/.part.crc").write_bytes(b"x")
    (tmp_path / "logs/20200401/00/folder").mkdir()

    files, _ = look(FileSource(tmp_path), DATA, ("20200401/00",))

    assert list(files) == ["logs/20200401/00/part"]


def test_a_path_of_the_root_is_no_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "20200401/00").mkdir(parents=True)
    (tmp_path / "20200401/00/donefile").touch()
    (tmp_path / "20200401/00/part").write_bytes(b"xx")

    assert look(FileSource(tmp_path), data_of(path="/"), ("20200401/00",)) == ({"20200401/00/part": 2}, "")


def test_tasks_are_ranges_of_files_in_order_and_an_empty_file_has_none() -> None:
    assert ranges({"b": 25, "a": 10, "c": 0, "d.gz": 100}, 10) == [
        ("a", 0, 0),
        ("b", 0, 8),
        ("b", 8, 16),
        ("b", 16, 0),
        ("d.gz", 0, 0),
    ]
