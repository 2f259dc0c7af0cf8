import os
from pathlib import Path

import pytest

from elastic_ctr.config.data import DataSource
from elastic_ctr.store.backends import NotInStore, StoreError, open_source
from elastic_ctr.store.backends.hdfs import WebHdfs
from elastic_ctr.store.backends.source import FileSource, Source


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    (tmp_path / "day/00").mkdir(parents=True)
    (tmp_path / "day/00/b").write_bytes(b"12345")
    (tmp_path / "day/00/a").write_bytes(b"")
    (tmp_path / "day/00/folder").mkdir()
    return FileSource(tmp_path)


def test_a_folder_lists_its_files_with_their_bytes_by_name(source: FileSource) -> None:
    assert source.listing("day/00").files == [("a", 0), ("b", 5)]
    assert source.listing("/day/00/").files == [("a", 0), ("b", 5)]


def test_the_folders_in_a_folder_are_listed_by_name(source: FileSource) -> None:
    assert source.folders("/") == ["day"]
    assert source.folders("day/00") == ["folder"]
    assert source.folders("none") == []


def test_a_folder_that_is_not_there_is_empty_and_so_is_a_file(source: FileSource) -> None:
    assert source.listing("none").files == source.listing("day/00/b").files == []


def test_the_root_may_be_listed(source: FileSource) -> None:
    (source.root / "file").write_bytes(b"x")

    assert source.listing("/").files == [("file", 1)]


def test_a_file_is_read_from_any_byte(source: FileSource) -> None:
    with source.open("day/00/b", 3) as stream:
        assert stream.read() == b"45"
    with source.open("/day/00/b") as stream:
        assert stream.read(2) == b"12"


def test_a_file_that_is_not_there_is_named(source: FileSource) -> None:
    assert not source.exists("day/00/none")
    with pytest.raises(NotInStore, match="day/00/none is not in file://"):
        source.open("day/00/none")


def test_a_path_that_cannot_be_read_is_an_error_that_names_it(source: FileSource) -> None:
    with pytest.raises(StoreError, match=r"day/00/folder in file://.* cannot be read: Is a directory"):
        source.open("day/00/folder")


@pytest.mark.parametrize("path", ["../secret", "day/../../secret"])
def test_no_path_leaves_the_source(source: FileSource, path: str) -> None:
    with pytest.raises(StoreError, match="is not a path inside the store"):
        source.open(path)


def test_an_address_of_a_folder_gives_a_source(tmp_path: Path) -> None:
    folder = tmp_path / "with blank"
    folder.mkdir()
    (folder / "x").touch()

    found: Source = open_source(DataSource(url=f"file://{str(folder).replace(' ', '%20')}"))

    assert found.listing("/").files == [("x", 0)]


def test_an_address_of_hdfs_gives_a_source_without_asking_it_anything() -> None:
    found = open_source(DataSource(url="hdfs://namenode:9000", user="alice"))

    assert isinstance(found._backend, WebHdfs)
    found.close()


def test_an_address_of_an_unknown_scheme_is_refused_with_the_way_out() -> None:
    with pytest.raises(StoreError, match=r"data\.source\.url 'ftp://x' is not understood; give file:///a/folder"):
        open_source(DataSource(url="file:///").moved("ftp://x"))


def test_a_fingerprint_differs_once_a_file_of_the_folder_was_changed(source: FileSource) -> None:
    first = source.listing("day/00").fingerprint
    file = source.root / "day/00/b"
    os.utime(file, (1, 1))
    other_time = source.listing("day/00").fingerprint
    file.write_bytes(b"123456")
    os.utime(file, (1, 1))
    other_size = source.listing("day/00").fingerprint
    (source.root / "day/00/c").touch()

    found = [first, other_time, other_size, source.listing("day/00").fingerprint, source.listing("none").fingerprint]
    assert len(set(found)) == 5
    assert source.listing("/day/00/").fingerprint == found[3]


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_files_are_opened_by_their_whole_addresses_as_iceberg_names_them(tmp_path: Path, form: str) -> None:
    file = tmp_path / "a b?c#d=%20.parquet"
    file.write_bytes(b"rows")
    source = open_source(DataSource(url="iceberg://lake/db.clicks"))
    path = form.format(file)

    assert (source.size(path), source.exists(path), source.exists(f"{path}x")) == (4, True, False)
    with source.open(path, 1) as raw:
        assert raw.read() == b"ows"
    source.close()


@pytest.mark.parametrize(
    ("path", "reason"), [("part.parquet", "is no address of a file"), ("ftp://h/x", "is not understood")]
)
def test_other_addresses_of_files_are_refused(path: str, reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        open_source(DataSource(url="iceberg://lake/db.clicks")).open(path)
