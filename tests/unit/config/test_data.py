import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.data import Data, DataSource, split_end, split_name, split_time

INTERVALS = [minutes for minutes in range(1, 1441) if 1440 % minutes == 0]


@given(
    st.datetimes(min_value=split_time("20000101/00"), max_value=split_time("20991231/23")), st.sampled_from(INTERVALS)
)
def test_a_splits_name_gives_its_time_back(moment: "object", interval: int) -> None:
    from datetime import datetime, timedelta

    assert isinstance(moment, datetime)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    minutes = (moment.hour * 60 + moment.minute) // interval * interval
    start = midnight + timedelta(minutes=minutes)

    assert split_time(split_name(start, interval)) == start
    assert (
        split_end(split_name(start, interval), interval, "UTC")
        - split_end(split_name(midnight, interval), interval, "UTC")
        == minutes * 60
    )


@pytest.mark.parametrize(
    ("split", "interval", "name"),
    [
        ("20200401/0000", 60, "20200401/00"),
        ("20200401/02", 120, "20200401/02"),
        ("20200401/02", 30, "20200401/0200"),
        ("20200401/0130", 90, "20200401/0130"),
    ],
)
def test_folders_of_whole_hours_have_no_minutes(split: str, interval: int, name: str) -> None:
    assert split_name(split_time(split), interval) == name


def test_start_and_end_may_be_the_same_split() -> None:
    data = Data(source=DataSource(url="file:///x"), start="20200401/00", end="20200401/0000", slots=("a",))

    assert data.slots == ("a",)


def test_the_schema_says_that_slots_are_a_list_or_text() -> None:
    schema = Data.model_json_schema(by_alias=True)

    assert schema["properties"]["slots"]["type"] == ["array", "string", "null"]
    assert schema["additionalProperties"] is False


def rows(**settings: object) -> Data:
    given = {"source": {"url": "file:///x"}, "start": "20200401/00", "format": "csv", "label": "y"}
    return Data.model_validate({**given, **settings})


def test_the_usual_words_are_missing_unless_others_are_listed() -> None:
    assert {"\\N", "NULL", "NaN", "None"} <= set(rows().missing_words.texts)
    assert "NA" in set(rows().missing_words.numbers) - set(rows().missing_words.texts)
    assert rows(missing=["x"]).missing_words == (("x",), ("x",))
    assert rows(missing=[]).missing_words == ((), ())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-999"], "the word '-999' is a number, which a request would send as one"),
        (["a", "a"], "the word 'a' is empty or comes twice"),
        ([""], "the word '' is empty or comes twice"),
        ([None], "valid string"),
    ],
)
def test_a_word_that_cannot_be_missing_is_refused(words: list[object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rows(missing=words)


def test_lines_of_feasigns_have_no_words() -> None:
    with pytest.raises(ValueError, match="missing is for rows of columns"):
        rows(format="clicks", label=None, slots=["1"], missing=["x"])
