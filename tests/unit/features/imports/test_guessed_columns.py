import pytest
import yaml

from elastic_ctr.config.features import Features
from elastic_ctr.features.imports.guessed_columns import ColumnGuess, yaml_text


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
        (["7.0", "", "12."], "{type: categorical, round: 0}"),
        (["7.0", "8"], "{type: categorical, round: 0}"),
        (["7.0", "8", "x"], "{type: categorical}"),
        (["-7.0", "-8.0"], "{type: numeric, missing: 0}"),
        (["1.5", "1e999"], "{type: categorical}"),
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


@pytest.mark.parametrize(
    ("columns", "features"),
    [
        (["a b", "a:b", "a_b_2"], ["a_b", "a_b_3", "a_b_2"]),
        (["a b", "a_b"], ["a_b_2", "a_b"]),
        (["价格", "年龄", "click"], ["__", "___2", "click"]),
    ],
)
def test_columns_whose_names_would_be_one_are_numbered(columns: list[str], features: list[str]) -> None:
    found = guessed(columns, ["x", "y", "z"][: len(columns)])

    assert list(found) == features
    read = Features.model_validate({name: yaml.safe_load(text) for name, text in found.items()})
    assert {column for _, column in read.columns()} == set(columns)


def test_the_ranges_of_a_number_do_not_take_the_name_of_a_column() -> None:
    found = guessed(["x", "x_range"], *([f"{number}.5", "0.5"] for number in range(100)))

    assert list(found) == ["x", "x_range", "x_range_2"]
    assert found["x_range"] == "{type: numeric, missing: 0}"


@pytest.mark.parametrize(
    ("cells", "notes"),
    [
        (
            ["1.5"] * 99 + ["NaN"],
            ["1 of its 100 values, such as 'NaN', are no numbers; leave them empty"],
        ),
        (["7.0"] * 99 + ["1e999"], ["1 of its 100 values, such as '1e999', are no numbers"]),
        (["1.5"] * 8 + ["a", "b"], []),
        (["7"] * 99 + ["NaN"], []),
        (["True", "False", ""], ["'False' in quotes, not false"]),
        (["true", "false"], []),
        (["True", "maybe"], []),
        (["1.10", "2.0"], []),
        ([f"True{number}" for number in range(20)], []),
    ],
)
def test_a_note_tells_what_the_proposal_does_not_show(cells: list[str], notes: list[str]) -> None:
    guess = ColumnGuess(["id", "x"])
    for cell in cells:
        guess.add([b"a", cell.encode()])

    found = guess.notes()

    assert len(found) == len(notes)
    for sentence, part in zip(found, notes, strict=True):
        assert sentence.startswith("the column 'x' ")
        assert part in sentence


@pytest.mark.parametrize(
    "text",
    ["user", "no", "Y", "null", "7", "1e3", "12:30", "a b", "a: b", "#a", "", "ä", "'", '"', "[a]", "~", "{}", "-"],
)
def test_a_text_is_written_so_that_yaml_reads_it_back(text: str) -> None:
    assert yaml.safe_load(f"x: {yaml_text(text)}") == {"x": text}
    assert yaml.safe_load(f"{yaml_text(text)}: x") == {text: "x"}
