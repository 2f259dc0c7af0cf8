from datetime import datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from elastic_ctr.config.data import Data, split_name, split_time
from elastic_ctr.config.path_template import template_of

INTERVALS = [minutes for minutes in range(1, 1441) if 1440 % minutes == 0]
DAYS = ["%Y%m%d", "%Y/%m/%d", "dt=%Y-%m-%d", "%d.%m.%Y", "%Y%j", "y=%Y/%j", "%Y-%m/%d"]
TIMES = {60: ["%H", "/hr=%H", "h%H", "/%Hh/x"], 1: ["/%H%M", "-%H/%M", "%H%M", "/%M/%H"]}


def data_of(path: str, interval: int, start: str = "20200401/00") -> Data:
    source = {"url": "file:///logs"}
    return Data.model_validate(
        {"source": source, "path": path, "splitInterval": interval, "start": start, "slots": ["a"]}
    )


intervals = st.sampled_from(INTERVALS)
literals = st.text("ab=%.-[]()*+\\$^ é", max_size=4)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[str, int]:
    """A template that tells its splits apart, and the minutes of a split."""
    interval = draw(intervals)
    times = ["", *TIMES[60], *TIMES[1]] if interval == 1440 else [*TIMES[1], *([] if interval % 60 else TIMES[60])]
    around = [draw(literals) for _ in range(2)]
    written = f"{draw(st.sampled_from(DAYS))}{{here}}{draw(st.sampled_from(times))}"
    # The same in one pair of braces, or in two with a constant text between.
    between = draw(st.sampled_from(["", "}" + draw(literals) + "{time:"]))
    return f"/{around[0]}/{{time:{written.replace('{here}', between)}}}{around[1]}", interval


moments = st.integers(0, 400 * 366 * 1440).map(lambda minutes: datetime(1900, 1, 1) + timedelta(minutes=minutes))  # noqa: DTZ001


def on_grid(moment: datetime, interval: int) -> datetime:
    minutes = moment.hour * 60 + moment.minute
    return moment - timedelta(minutes=minutes % interval)


@given(layouts(), moments)
def test_the_split_of_a_splits_folder_is_that_split(layout: tuple[str, int], moment: datetime) -> None:
    path, interval = layout
    data = data_of(path, interval)
    split = split_name(on_grid(moment, interval), interval)

    assert data.split_of(data.folder_of(split)) == split


@given(layouts(), moments, moments)
def test_two_splits_never_have_the_same_folder_nor_one_in_the_other(
    layout: tuple[str, int], one: datetime, other: datetime
) -> None:
    path, interval = layout
    data = data_of(path, interval)
    splits = {split_name(on_grid(each, interval), interval) for each in (one, other)}

    folders = [data.folder_of(split) for split in splits]

    assert len(set(folders)) == len(splits)
    assert not any(f"{left}/".startswith(f"{right}/") for left, right in product(folders, folders) if left != right)


@given(st.text("0123456789abdt=%-/{", max_size=24), intervals)
def test_a_folder_that_no_split_has_is_of_no_split(folder: str, interval: int) -> None:
    data = data_of("/dt={time:%Y-%m-%d}/{time:%H%M}", interval)

    split = data.split_of(folder)

    assert split is None or data.folder_of(split) == folder


@given(st.sampled_from(["/", "", "logs", "/logs/", "/a{b}/c", "/%Y/%m"]), intervals, moments)
def test_a_path_without_time_has_the_days_below_it_as_ever(path: str, interval: int, moment: datetime) -> None:
    split = split_name(on_grid(moment, interval), interval)

    assert data_of(path, interval).folder_of(split) == f"{path.strip('/')}/{split}".lstrip("/")


@pytest.mark.parametrize(
    ("path", "interval", "folder", "root"),
    [
        ("/logs/dt={time:%Y-%m-%d}/hr={time:%H}", 60, "logs/dt=2026-11-09/hr=07", "logs"),
        ("/logs/dt={time:%Y-%m-%d}", 1440, "logs/dt=2026-11-09", "logs"),
        ("/logs/{time:%Y/%m/%d}/{time:%H%M}", 5, "logs/2026/11/09/0730", "logs"),
        ("{time:%Y%j}/x/{time:%H}", 60, "2026313/x/07", ""),
        ("//a//b/c-{time:%Y%m%d%H}//", 60, "a/b/c-2026110907", "a/b"),
        ("/%Y/{time:%Y%m%d}", 1440, "%Y/20261109", "%Y"),
    ],
)
def test_a_template_has_the_folders_that_it_shows(path: str, interval: int, folder: str, root: str) -> None:
    template = template_of(path, interval)

    assert template.folder(datetime(2026, 11, 9, 7, 30)) == folder  # noqa: DTZ001
    assert template.root == root


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("l/dt=2026-11-31/hr=00", "no such day"),
        ("l/dt=2026-11-30/hr=24", "no such hour"),
        ("l/dt=2026-11-3/hr=00", "a digit is missing"),
        ("l/dt=2026-11-30/hr=0٣", "no ASCII digit"),
        ("l/dt=2026-11-30", "a folder is missing"),
        ("l/dt=2026-11-30/hr=00/x", "a folder too many"),
        ("l/DT=2026-11-30/hr=00", "another name"),
    ],
)
def test_a_folder_of_no_split_is_none(folder: str, why: str) -> None:
    assert data_of("/l/dt={time:%Y-%m-%d}/hr={time:%H}", 60).split_of(folder) is None, why


def test_a_code_that_stands_twice_must_have_one_value() -> None:
    data = data_of("/{time:%Y}/{time:%Y%m%d}", 1440)

    assert data.split_of("2026/20261109") == "20261109/00"
    assert data.split_of("2025/20261109") is None


@pytest.mark.parametrize(
    ("path", "interval", "words"),
    [
        ("/dt={time:%Y-%m-%d}", 60, "one folder for several splits of 60 minutes; add %H in {time:…}, or set a longer splitInterval"),
        ("/{time:%Y%m%d/%H}", 30, "add %M in {time:…}"),
        ("/{time:%m%d/%H}", 60, "add %Y"),
        ("/{time:%Y%m/%H}", 60, "add %m and %d, or %j,"),
        ("/{time:%Y%d/%H}", 60, "add %m and %d, or %j,"),
        ("/{time:}", 1440, "add %Y"),
        ("/{time:%Y%B%d}", 1440, "has the code '%B'; use %Y, %m, %d, %j, %H, %M"),
        ("/{time:%y%m%d}", 1440, "has the code '%y'"),
        ("/{time:%Y%m%d%}", 1440, "has the code '%'"),
        ("/{time:%Y%m%d}/{column}", 1440, "has braces other than {time:…}"),
        ("/{time:%Y%m%d", 1440, "has braces other than {time:…}"),
        ("/{time}", 1440, "has braces other than {time:…}"),
        ("/{time:%Y%m%d}}", 1440, "has braces other than {time:…}"),
    ],
)  # fmt: skip
def test_a_template_that_is_none_is_refused_in_one_sentence(path: str, interval: int, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        data_of(path, interval)

    [error] = refused.value.errors()
    assert words in error["msg"]


def test_splits_of_a_day_are_days() -> None:
    data = data_of("/dt={time:%Y-%m-%d}", 1440)

    assert data.folder_of("20261129/00") == "dt=2026-11-29"
    assert split_time("20261129/00") == datetime(2026, 11, 29)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("path", "interval", "split"),
    [("/{time:%Y%m%d}-{time:%H}", 120, None), ("/{time:%Y%m%d}-{time:%H}", 60, "20261129/01")],
)
def test_a_folder_beside_the_grid_is_no_split(path: str, interval: int, split: str | None) -> None:
    assert data_of(path, interval).split_of("20261129-01") == split
