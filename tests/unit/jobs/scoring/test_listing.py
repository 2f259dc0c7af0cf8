"""The files of a job, and how their outputs are named."""

import os
from collections import Counter
from pathlib import Path

import pytest

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.jobs.scoring.listing import Listing, NothingToRead, complete_hours, given_files
from elastic_ctr.store.backends import open_source
from written_tables import KINDS, ids_in


def data_of(tmp_path: Path, **more: object) -> Data:
    return Data.model_validate(
        {"source": DataSource(url=tmp_path.as_uri()), "path": "/logs", "start": "20200401/00", "slots": ["0"], **more}
    )


def hour(tmp_path: Path, name: str, *files: str, done: bool = True) -> None:
    folder = tmp_path / "logs" / name
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("1 0 5:0\n")
    if done:
        (folder / "donefile").touch()


def test_hours_are_those_that_are_complete(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/00", "a", "b", "_hidden")
    hour(tmp_path, "20200401/01", "a", done=False)
    hour(tmp_path, "20200401/03")
    source = open_source(DataSource(url=tmp_path.as_uri()))

    found = complete_hours(source, data_of(tmp_path), chosen=False)
    chosen = complete_hours(source, data_of(tmp_path, end="20200401/03"), chosen=True)

    assert found.names == {"logs/20200401/00/a": "20200401/00/a", "logs/20200401/00/b": "20200401/00/b"}
    assert set(found.splits.values()) == {"20200401/00"}
    assert (found.hours, found.waiting) == (("20200401/00", "20200401/03"), ("20200401/01",))
    assert chosen.waiting == ("20200401/01", "20200401/02")
    with pytest.raises(NothingToRead, match="has no hour with a donefile from 20200402/00 to 20200402/01"):
        complete_hours(source, data_of(tmp_path, start="20200402/00", end="20200402/01"), chosen=True)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_are_those_behind_a_commit_or_of_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = KINDS[kind](tmp_path, monkeypatch)
    first, second = table.append(1), table.append(2, 3)
    table.compact()
    table.append(4)

    def listed(start: str, end: str | None) -> Listing:
        of_rows = {"slots": None, "format": "parquet", "label": "click", "path": "/"}
        data = data_of(tmp_path, **of_rows, source={"url": table.url}, start=start, end=end)
        return complete_hours(open_source(data.source), data, chosen=False)

    def ids(start: str, end: str | None) -> Counter[int]:
        return ids_in(table.url, listed(start, end).files)

    assert ids("earliest", first) == Counter([1])
    assert ids("earliest", second) == ids("earliest", listed("earliest", second).hours[0]) == Counter([1, 2, 3])
    assert ids("earliest", None) == Counter([1, 2, 3, 4])
    assert ids(first, second) == Counter([2, 3])
    assert ids(first, None) == Counter([2, 3, 4])
    assert {each.partition("/")[0] for each in listed(first, second).names.values()} == {second}
    for start, end in ((second, second), (second, first), ("latest", None)):
        with pytest.raises(NothingToRead, match="has no rows behind"):
            listed(start, end)


def test_outputs_of_partitions_are_in_their_folders_below_the_name_of_the_split(tmp_path: Path) -> None:
    for country in ("de", "fr"):
        file = tmp_path / f"logs/dt=2020-04-01/hr=07/country={country}/part-0"
        file.parent.mkdir(parents=True)
        file.write_text("x")
    data = data_of(tmp_path, path="/logs/dt={time:%Y-%m-%d}/hr={time:%H}", settleSeconds=60)
    source = open_source(DataSource(url=tmp_path.as_uri()))
    with pytest.raises(
        NothingToRead, match=r"hr=.* has no hour that has settled from 20200401/00; is data\.path right"
    ):
        complete_hours(source, data, chosen=False)
    for each in (tmp_path / "logs").rglob("*"):
        os.utime(each, (1e9, 1e9))

    found = complete_hours(source, data, chosen=False)

    assert sorted(found.names.values()) == ["20200401/07/country=de/part-0", "20200401/07/country=fr/part-0"]
    assert found.hours == ("20200401/07",)


def test_files_are_named_below_the_folder_that_all_are_in(tmp_path: Path) -> None:
    for name in ("x/a.csv", "x/y/a.csv", "z.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")

    found = given_files([tmp_path / "x/a.csv", tmp_path / "x/y/a.csv"])
    one = given_files([tmp_path / "z.csv"])

    root = str(tmp_path).lstrip("/")
    assert found.names == {f"{root}/x/a.csv": "a.csv", f"{root}/x/y/a.csv": "y/a.csv"}
    assert found.splits == found.names
    assert set(found.files.values()) == {5}
    assert list(one.names.values()) == ["z.csv"]
    with pytest.raises(NothingToRead, match=r"x is a folder; name its files, or hours of data\.source"):
        given_files([tmp_path / "x"])
    with pytest.raises(FileNotFoundError):
        given_files([tmp_path / "nowhere"])
