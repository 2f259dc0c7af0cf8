"""The hours of a run on this machine, wherever its data.path has them."""

from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.data import Data
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.operate.local.run_data import RunData

HIVE = "/logs/dt={time:%Y-%m-%d}/hr={time:%H}"


def run_data(folder: Path, **given: Any) -> RunData:
    data = {"source": {"url": folder.as_uri()}, "start": "20200401/00", "end": "20200401/01", "slots": ["a"], **given}
    return RunData(Data.model_validate(data), StoreConfig(url="file:///store"))


def hour(folder: Path, name: str, *files: str) -> Path:
    for each in files:
        (folder / name / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / each).touch()
    return folder / name


@pytest.mark.parametrize(
    ("path", "file", "split"),
    [
        ("/", "20200401/05/part-0", "20200401/05"),
        ("/", "20200401/part-0", None),
        ("/logs", "20200401/05/part-0", None),
        (HIVE, "logs/dt=2020-04-01/hr=05/part-0", "20200401/05"),
        (HIVE, "logs/dt=2020-04-01/hr=05/country=de/part-0", "20200401/05"),
        (HIVE, "logs/dt=2020-04-01/part-0", None),
    ],
)
def test_a_file_is_in_the_split_whose_folder_has_it(tmp_path: Path, path: str, file: str, split: str | None) -> None:
    assert run_data(tmp_path, path=path).split_of(tmp_path / file) == split
    assert run_data(tmp_path / "elsewhere", path=path).split_of(tmp_path / file) is None


def test_the_newest_complete_hour_may_be_one_that_was_held_back(tmp_path: Path) -> None:
    hour(tmp_path, "logs/dt=2020-04-01/hr=01", "part-0", "donefile")
    held_back = hour(tmp_path, "logs/dt=2020-04-01/hr=02", "part-0", "donefile")
    hour(tmp_path, "logs/dt=2020-04-01/hr=03", "part-0")
    hour(tmp_path, "logs/notes", "donefile")

    assert run_data(tmp_path, path=HIVE).newest_folder() == ("20200401/02", held_back)


def test_a_run_without_a_complete_hour_or_of_another_machine_has_none(tmp_path: Path) -> None:
    hour(tmp_path, "20200401/01", "part-0")

    assert run_data(tmp_path).newest_folder() is None
    assert run_data(tmp_path, path="/none").newest_folder() is None
    assert run_data(tmp_path, source={"url": "hdfs://namenode:9000"}).newest_folder() is None
