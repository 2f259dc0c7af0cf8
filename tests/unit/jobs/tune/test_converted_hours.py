from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.values_file import Values
from elastic_ctr.jobs.scoring.listing import at_hours, complete_hours
from elastic_ctr.jobs.tune.converted_hours import HoursReader, SearchHoursRefused, divided
from elastic_ctr.jobs.tune.passes import Hours
from elastic_ctr.store.backends import open_source
from elastic_ctr.training.trainer.converted_files import parts_of

ALL = ["20200401/22", "20200401/23", "20200402/00"]


@pytest.mark.parametrize(
    ("hours", "trained", "found"),
    [
        (["00"], None, (["00"], [])),
        (["00", "01"], None, (["00"], ["01"])),
        ([f"{n:02}" for n in range(10)], None, ([f"{n:02}" for n in range(8)], ["08", "09"])),
        (["00", "01", "02", "03"], ["00", "01"], (["00", "01"], ["02"])),
        (["00", "01"], ["00", "01"], (["00"], ["01"])),  # none follows
        (["00", "01"], ["01"], (["01"], [])),
    ],
)
def test_the_last_fifth_validates_or_the_hours_that_follow(
    hours: list[str], trained: list[str] | None, found: tuple[list[str], list[str]]
) -> None:
    assert divided(hours, trained) == found


def test_hours_that_are_none_are_refused_by_the_option() -> None:
    data = Values.model_validate({"data": {"source": {"url": "file:///x"}, "start": ALL[0], "slots": ["a"]}}).data

    with pytest.raises(ConfigRefused, match=r"--validate 20200401/25.*a time that does not exist"):
        at_hours(data, "20200401/25", "--validate")


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / "logs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / "donefile").touch()


def lines(first: int, end: int) -> str:
    return "".join(f"1 {number % 4 == 0:d} {number + 1}:a\n" for number in range(first, end))


def values_of(folder: Path, **data: Any) -> Values:
    given = {"source": {"url": f"file://{folder}/logs"}, "start": ALL[0], "slots": ["a"], **data}
    return Values.model_validate({"data": given, **given.pop("values", {})})


def read(folder: Path, values: Values, trained: list[str], validated: list[str], records: int = 10**6) -> Hours:
    source = open_source(values.data.source)
    listing = complete_hours(source, values.data, chosen=False)
    reader = HoursReader(values, source, listing, folder / "scratch", lambda *_: None)
    return reader.read(trained, validated, records)


def text(folder: Path, *files: str) -> list[str]:
    return [line for file in files for line in (folder / "scratch" / file).read_text().splitlines()]


def test_passes_are_planned_as_the_master_plans_them(tmp_path: Path) -> None:
    written(tmp_path, {f"{hour}/part": lines(100 * n, 100 * n + 100) for n, hour in enumerate(ALL)})

    found = read(tmp_path, values_of(tmp_path), ALL[:2], ALL[2:])
    paired = read(tmp_path, values_of(tmp_path, splitsPerPass=2), ALL[:2], ALL[2:])

    assert [(one.id, one.records, one.shows, one.clicks, one.ends_day) for one in found.passes] == [
        ("20200401/22", 100, 100, 25, False), ("20200401/23", 100, 100, 25, True),
    ]  # fmt: skip
    assert [(one.id, one.records, one.ends_day) for one in paired.passes] == [("20200401/23", 200, True)]
    assert (found.validated, found.validation_records, found.share) == ("20200402/00", 100, 1)


def test_a_fifth_of_the_records_of_a_single_hour_validates_and_is_not_trained(tmp_path: Path) -> None:
    written(tmp_path, {f"{ALL[0]}/part": lines(0, 2000)})

    found = read(tmp_path, values_of(tmp_path), ALL[:1], [])

    trained = text(tmp_path, *(piece.file for piece in found.passes[0].pieces))
    validates = text(tmp_path, *(piece.file for piece in found.validation))
    assert found.validation_records == len(validates)
    assert 300 < len(validates) < 500
    assert found.records == len(trained) == 2000 - len(validates)
    assert not {*trained} & {*validates}
    assert found.passes[0].clicks == sum(line.startswith("1 1 1 1 ") for line in trained)


def test_a_sample_is_of_every_hour_and_its_counts_are_those_of_its_records(tmp_path: Path) -> None:
    written(tmp_path, {f"{hour}/part": lines(2000 * n, 2000 * n + 2000) for n, hour in enumerate(ALL)})

    found = read(tmp_path, values_of(tmp_path), ALL[:2], ALL[2:], records=600)

    assert found.share == pytest.approx(0.1, rel=0.1)
    assert [130 < one.records < 270 for one in found.passes] == [True, True]
    assert 130 < found.validation_records < 270
    for one in found.passes:
        trained = text(tmp_path, *(piece.file for piece in one.pieces))
        assert (one.records, one.shows) == (len(trained), len(trained))
        assert one.clicks == sum(line.startswith("1 1 1 1 ") for line in trained)


def test_a_sample_of_a_single_hour_still_gives_a_fifth_of_it_to_validate(tmp_path: Path) -> None:
    """Each choice has a seed of its own, else records of the sample would be held out together."""
    written(tmp_path, {f"{ALL[0]}/part": lines(0, 5000)})

    found = read(tmp_path, values_of(tmp_path, holdout=0.3), ALL[:1], [], records=1000)

    held = sum(piece.held_out for piece in found.passes[0].pieces)
    assert found.validation_records / (found.records + found.validation_records) == pytest.approx(0.2, abs=0.05)
    assert held / found.records == pytest.approx(0.3, abs=0.06)
    [piece] = found.passes[0].pieces
    parts = parts_of(tmp_path / "scratch" / piece.file)
    assert len(parts.held_out.read_text().splitlines()) == held


def rows(first: int, end: int) -> str:
    return "click,price,tag\n" + "".join(f"{n % 2},{n},x\n" for n in range(first, end))


def test_statistics_are_those_of_the_first_pass(tmp_path: Path) -> None:
    written(tmp_path, {f"{ALL[0]}/part.csv": rows(0, 101), f"{ALL[1]}/part.csv": rows(1000, 1100)})
    features = {"price": {"type": "numeric", "transform": ["minMax"]}, "tag": {"type": "categorical"}}
    given = {"slots": None, "format": "csv", "label": "click", "values": {"features": features}}

    found = read(tmp_path, values_of(tmp_path, **given), ALL[:1], ALL[1:2])

    # 0 to 100 become 0 to 1 in every hour.
    numbers = [float.fromhex(line.split()[5]) for line in text(tmp_path, found.passes[0].pieces[0].file)]
    assert (min(numbers), max(numbers)) == (0, 1)
    later = [float.fromhex(line.split()[5]) for line in text(tmp_path, found.validation[0].file)]
    assert (min(later), max(later)) == pytest.approx((10.0, 10.99))


def test_too_many_refused_lines_end_the_search_with_their_reason(tmp_path: Path) -> None:
    written(tmp_path, {f"{ALL[0]}/part": lines(0, 50), f"{ALL[1]}/part": lines(0, 50) + "1 0 no-feature\n" * 5})

    with pytest.raises(SearchHoursRefused, match=r"5 of 105 lines were refused, more than data.maxRefusedShare 0.01"):
        read(tmp_path, values_of(tmp_path), ALL[:1], ALL[1:2])


def test_hours_without_a_click_cannot_be_learned_from(tmp_path: Path) -> None:
    written(tmp_path, {f"{ALL[0]}/part": "1 0 5:a\n" * 50, f"{ALL[1]}/part": lines(0, 50)})

    with pytest.raises(SearchHoursRefused, match="none of the shows that are trained was clicked"):
        read(tmp_path, values_of(tmp_path), ALL[:1], ALL[1:2])
