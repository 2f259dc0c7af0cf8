from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.features import Features
from elastic_ctr.config.load import ConfigRefused, dump, load, settings
from elastic_ctr.config.role_files import MasterFile, TrainerFile
from elastic_ctr.config.statistics import absent_vocabularies, numbers_read_otherwise, short_vocabularies
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.operate.local.plan import RunPlaces, roles

EMPTY = {
    "rows": 0,
    "missing": 0,
    "distinct": 0,
    "min": None,
    "max": None,
    "mean": None,
    "deviation": None,
    "quantiles": (),
}
OF_PRICE = Statistics.model_validate({"texts": {}, "numbers": {"price": EMPTY}})
FEATURES = {"price": {"type": "numeric", "transform": ["standardize"]}, "tag": {"type": "categorical"}}
ROWS = {"source": {"url": "file:///d"}, "start": "20200401/00", "format": "csv", "label": "click"}


def values(statistics: object, **given: object) -> Values:
    return settings(Values, {"data": ROWS, "features": FEATURES, "statistics": statistics, **given}, "values.yaml")


def test_the_text_is_kept_as_it_is_written_by_analyze() -> None:
    text = OF_PRICE.to_json()

    assert values(f"\n{text}\n").statistics == text
    assert values(None).statistics is None


@pytest.mark.parametrize(
    ("statistics", "given", "sentence"),
    [
        ("{}", {}, "statistics: statistics.json is damaged: texts: Field required"),
        (
            "statistics.json",
            {},
            "statistics: it is the text of statistics.json, and 'statistics.json' is none; give the file by --set-file",
        ),
        ("{", {}, "statistics: statistics.json is damaged: the file: Invalid JSON"),
        ({"texts": {}}, {}, "statistics: it is the text of statistics.json; give it by --set-file"),
        (
            Statistics.model_validate({"texts": {}, "numbers": {}}).to_json(),
            {},
            "features.price needs the statistics of price, and these are of none; analyze the data again",
        ),
        (
            OF_PRICE.to_json(),
            {"features": None, "data": {"source": {"url": "file:///d"}, "start": "20200401/00", "slots": ["a"]}},
            "statistics is of the columns that features read, and there are no features; leave it out",
        ),
    ],
)
def test_statistics_that_are_damaged_or_not_of_the_features_are_refused(
    statistics: object, given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigRefused) as refused:
        values(statistics, **given)

    assert sentence in str(refused.value)


def of_cities(top: tuple[tuple[str, int], ...], values: int, distinct: int) -> Statistics:
    city = {
        "rows": values,
        "missing": 0,
        "distinct": distinct,
        "values": values,
        "mean_bytes": 3.0,
        "top": top,
        "count_error": 0,
    }
    return Statistics.model_validate({"texts": {"city[|]": city}, "numbers": {}})


@pytest.mark.parametrize(
    ("top", "statistics", "warned"),
    [
        (3, of_cities((("a", 2), ("b", 1)), 9, 8), True),
        (2, of_cities((("a", 2), ("b", 1)), 9, 8), False),
        (3, of_cities((("a", 2), ("b", 1)), 3, 2), False),
        # The number of different values is an estimate.
        (4, of_cities((("a", 2), ("b", 1)), 3, 3), False),
    ],
)
def test_a_vocabulary_with_fewer_values_than_its_top_is_reported_where_the_column_has_more(
    top: int, statistics: Statistics, warned: bool
) -> None:
    features = values(
        None, features={"city": {"type": "categorical", "separator": "|", "vocabulary": {"top": top}}}
    ).features

    found = short_vocabularies(features, statistics)

    assert short_vocabularies(None, statistics) == []
    assert len(found) == warned
    assert all(
        each.startswith(
            "features.city: vocabulary.top is 3, and the statistics list 2 of about 8 values of city[|], as those of more than 256 bytes "
            "are left out"
        )
        for each in found
    )


def test_they_stand_in_the_masters_file_alone(tmp_path: Path) -> None:
    text = OF_PRICE.to_json()
    found = {role.command: role.file for role in roles(RunPlaces(tmp_path, values(text)))}

    master = found["master"]
    assert isinstance(master, MasterFile)
    assert master.statistics == text
    assert "statistics" not in dump(found["trainer"])
    assert isinstance(found["trainer"], TrainerFile)
    (tmp_path / "master.yaml").write_text(dump(master))
    assert load(MasterFile, tmp_path / "master.yaml").statistics == text


def test_a_vocabulary_of_which_no_row_has_a_value_is_reported_with_values_of_the_column() -> None:
    """As of codes with a leading zero that were written as numbers once."""
    statistics = of_cities((("02134", 2), ("02130", 1)), 3, 2)

    def told(*vocabulary: str) -> list[str]:
        given = {"city": {"type": "categorical", "separator": "|", "vocabulary": list(vocabulary)}}
        return absent_vocabularies(values(None, features=given).features, statistics)

    assert told("1116", "1112") == [
        "features.city: no row has a value of its vocabulary, such as '1116', so all rows share one key; the column has '02134', '02130'"
    ]
    assert told("1116", "02130") == []
    assert absent_vocabularies(None, statistics) == []


def test_a_vocabulary_is_not_judged_by_a_part_of_the_values() -> None:
    given = {"city": {"type": "categorical", "separator": "|", "vocabulary": ["c"]}}

    assert absent_vocabularies(values(None, features=given).features, of_cities((("a", 2), ("b", 1)), 9, 8)) == []


def test_numbers_with_another_transform_than_in_another_model_are_reported() -> None:
    def features(**numbers: Any) -> Features:
        given = {
            name: {"type": "numeric"} | ({} if steps is None else {"transform": steps})
            for name, steps in numbers.items()
        }
        return Features.model_validate({**given, "u": {"type": "categorical"}})

    there = features(same=None, raw=[], clipped=[{"clip": [0, 1]}], logged=["log1p"])
    here = features(same=None, raw=None, clipped=[{"clip": [0, 2]}], logged=["log1p"], new=None)

    found = numbers_read_otherwise(there, here)

    assert [each.split()[0] for each in found] == ["features.clipped", "features.raw"]
    assert "give it that one to keep it ([] is the number as it is)" in found[0]
    assert numbers_read_otherwise(there, None) == []
