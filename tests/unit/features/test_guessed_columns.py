import pytest
import yaml

from elastic_ctr.config.features import Features
from elastic_ctr.features.guessed_columns import ColumnGuess, GuessRefused, yaml_text


def guessed(columns: list[str], *rows: list[str]) -> dict[str, str]:
    guess = ColumnGuess(columns)
    for row in rows:
        guess.add([cell.encode() for cell in row])
    return guess.features()


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        (["u1", "u2"], "{type: categorical}"),
        (["7", "8"], "{type: categorical}"),
        (["", ""], "{type: categorical}"),
        (["1.5", "n/a"], "{type: categorical}"),
        (["1f", "2e"], "{type: categorical}"),
        (["2020-04-01", "1"], "{type: categorical}"),
        (["nan", "1.5"], "{type: categorical}"),
        (["-1", "5", "-1"], "{type: categorical}"),
        (["-1", "5", "-2"], "{type: numeric, missing: 0}"),
        (["1.5", "", "2"], "{type: numeric, missing: 0}"),
        (["1e3", "1001"], "{type: numeric, missing: 0}"),
        (["0.5", "1.0", "1.0", "900"], "{type: numeric, transform: [log1p], missing: 0}"),
        (["-0.5", "1.0", "1.0", "900"], "{type: numeric, missing: 0}"),
        (["0.0", "0.0", ".5"], "{type: numeric, transform: [log1p], missing: 0}"),
    ],
    ids=str,
)
def test_a_column_is_what_its_cells_look_like(cells: list[str], settings: str) -> None:
    found = guessed(["id", "x"], *(["a", cell] for cell in cells))

    assert found == {"id": "{type: categorical}", "x": settings}


def test_numbers_alone_get_ranges_because_a_network_needs_keys() -> None:
    found = guessed(["price"], *([f"{number}.5"] for number in range(100)))

    assert found["price"] == "{type: numeric, missing: 0}"
    features = Features.model_validate({name: yaml.safe_load(text) for name, text in found.items()})
    assert features.slots == ("price_range",)
    assert len(features.model_dump()["price_range"]["boundaries"]) == 9


def test_a_name_that_no_feature_can_have_is_changed_and_its_column_named() -> None:
    assert guessed(["user id", "a:b", "ä"], ["1", "2", "3"]) == {
        "user_id": '{type: categorical, column: "user id"}',
        "a_b": '{type: categorical, column: "a:b"}',
        "_": '{type: categorical, column: "ä"}',
    }
    assert guessed(["<<"], ["1"]) == {"_": '{type: categorical, column: "<<"}'}


@pytest.mark.parametrize("columns", [["a b", "a:b"], ["a", "a"]])
def test_two_columns_of_one_feature_are_refused(columns: list[str]) -> None:
    with pytest.raises(GuessRefused, match="two columns would be the feature"):
        ColumnGuess(columns)


@pytest.mark.parametrize(
    "text",
    ["user", "no", "Y", "null", "7", "1e3", "12:30", "a b", "a: b", "#a", "", "ä", "'", '"', "[a]", "~", "{}", "-"],
)
def test_a_text_is_written_so_that_yaml_reads_it_back(text: str) -> None:
    assert yaml.safe_load(f"x: {yaml_text(text)}") == {"x": text}
    assert yaml.safe_load(f"{yaml_text(text)}: x") == {text: "x"}
