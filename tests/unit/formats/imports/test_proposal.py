import pytest
import yaml

from elastic_ctr.config.features import Features
from elastic_ctr.formats.imports.proposal import Proposal, yaml_text


def guessed(columns: list[str], *rows: list[str]) -> dict[str, str]:
    guess = Proposal(columns)
    for row in rows:
        guess.add(row)
    return guess.features()


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        (["u1", "u2"], "{type: categorical}"),
        (["7", "8"], "{type: categorical}"),
        (["", ""], "{type: categorical}"),
        (["1.5", "n/a"], "{type: numeric}"),
        (["1.5", "x"], "{type: categorical}"),
        (["$1.50", "$2.50"], "{type: categorical}"),
        (["1f", "2e"], "{type: categorical}"),
        (["2020-04-01", "1"], "{type: categorical}"),
        (["nan", "1.5"], "{type: numeric}"),
        (["-", "7"], "{type: categorical}"),
        (["-1", "5", "-1"], "{type: categorical}"),
        (["-1", "5", "-2"], "{type: numeric}"),
        (["1.5", "", "2"], "{type: numeric}"),
        (["1e3", "1001"], "{type: numeric}"),
        (["0.5", "1.0", "1.0", "900"], "{type: numeric, transform: [log1p, standardize]}"),
        (["-0.5", "1.0", "1.0", "900"], "{type: numeric}"),
        (["7.0", "", "12."], "{type: categorical, round: 0}"),
        (["7.0", "8"], "{type: categorical, round: 0}"),
        (["7.0", "8", "x"], "{type: categorical}"),
        (["-7.0", "-8.0"], "{type: numeric}"),
        (["1.5", "1e999"], "{type: categorical}"),
        (["0.0", "0.0", ".5"], "{type: numeric, transform: [log1p, standardize]}"),
    ],
    ids=str,
)
def test_a_column_is_what_its_cells_look_like(cells: list[str], settings: str) -> None:
    found = guessed(["id", "x"], *(["a", cell] for cell in cells))

    assert found == {"id": "{type: categorical}", "x": settings}


def test_numbers_alone_get_ranges_because_a_network_needs_keys() -> None:
    found = guessed(["price"], *([f"{number}.5"] for number in range(100)))

    assert found["price"] == "{type: numeric}"
    features = Features.model_validate({name: yaml.safe_load(text) for name, text in found.items()})
    assert features.slots == ("price_range",)
    assert len(features.model_dump()["price_range"]["boundaries"]) == 9


def test_a_name_that_no_feature_can_have_is_changed_and_its_column_named() -> None:
    assert guessed(["user id", "a:b", "ä"], ["1", "2", "3"]) == {
        "user_id": '{type: categorical, column: "user id"}',
        "a_b": '{type: categorical, column: "a:b"}',
        "column_3": '{type: categorical, column: "ä"}',
    }
    assert guessed(["<<"], ["1"]) == {"_": '{type: categorical, column: "<<"}'}


@pytest.mark.parametrize(
    ("columns", "features"),
    [
        (["a b", "a:b", "a_b_2"], ["a_b", "a_b_3", "a_b_2"]),
        (["a b", "a_b"], ["a_b_2", "a_b"]),
        (["价格", "年龄", "column_1"], ["column_1_2", "column_2", "column_1"]),
    ],
)
def test_columns_whose_names_would_be_one_are_numbered(columns: list[str], features: list[str]) -> None:
    found = guessed(columns, ["x", "y", "z"][: len(columns)])

    assert list(found) == features
    read = Features.model_validate({name: yaml.safe_load(text) for name, text in found.items()})
    assert {column for _, column in read.columns()} == set(columns)


def test_the_ranges_of_a_number_do_not_take_the_name_of_a_column() -> None:
    found = guessed(["x", "x_range"], *([f"{number}.5", f"{number % 2}.5"] for number in range(100)))

    assert list(found) == ["x", "x_range", "x_range_2"]
    assert found["x_range"] == "{type: numeric}"


@pytest.mark.parametrize(
    ("cells", "notes"),
    [
        (
            ["1.5"] * 9 + ["2.5"] * 90 + ["no"],
            [
                "1 of its 100 values, such as 'no', are no numbers; if that word stands for none, list it in data.missing"
            ],
        ),
        (["1.5", "2.5"] * 9 + ["\\N"], ["has '\\N' (1 times), which stands for a missing value"]),
        (
            ["$1.50"] * 10 + ["$2.50"] * 9 + [""],
            ["became a category: '$1.50' is an amount of money, which is read as text"],
        ),
        (["1.5"] * 199 + ["1e30"], ["holds 1e+30; a number of a size above 1e+20 is a damaged one"]),
        (["12%", "5.5%"], ["'12%' is a percentage"]),
        (["1.234,56", "0,5"], ["'1.234,56' is a number with a decimal comma"]),
        (["1,234.5", "12,000"], ["'1,234.5' is a number with its thousands set apart"]),
        ([" 7", " 8"], ["' 7' is a number with blanks around it"]),
        (
            ["12"] * 9 + ["13"] * 9 + ["many"],
            ["but for 'many'; if that word stands for none, list it in data.missing"],
        ),
        (["7.0"] * 99 + ["1e999"], ["1 of its 100 values, such as '1e999', are no numbers"]),
        (["1.5"] * 8 + ["a", "b"] * 5, []),
        (["7", "8"] * 50 + ["NaN"], ["has 'NaN' (1 times)"]),
        (["True", "False", ""], ["'False' in quotes, not false"]),
        (["true", "false"], []),
        (["True", "maybe"], []),
        (["1.10", "2.0"], []),
        ([f"True{number}" for number in range(10)] * 2, []),
    ],
)
def test_a_note_tells_what_the_proposal_does_not_show(cells: list[str], notes: list[str]) -> None:
    guess = Proposal(["id", "x"])
    for cell in cells:
        guess.add(["a", cell])

    found = [note for note in guess.notes() if "'id'" not in note]

    assert len(found) == len(notes)
    for sentence, part in zip(found, notes, strict=True):
        assert sentence.startswith("the column 'x' ")
        assert part in sentence


@pytest.mark.parametrize(
    ("name", "cells", "reason"),
    [
        ("", ["a", "b"] * 10, "it has no name"),
        ("x", ["a"] * 20, "every row has the same value, 'a'"),
        ("x", [""] * 20, "it is empty in every row"),
        ("x", [f"u{row}" for row in range(20)], "20 of 20 values differ, as ids of rows do; --fields keeps it"),
        (
            "x",
            [str(row) for row in range(20)],
            "20 of 20 values differ, as ids of rows do; if it is an amount, make it numeric",
        ),
        ("x", ["1.67687E+18", "1.67688E+18"] * 10, "its numbers are ids that were rounded when they were written"),
        ("x", ["1e300", "1.5"] * 10, "it holds 1e+300, and a number of a size above 1e+20 is a damaged one"),
        ("x", [f"2020-04-01 00:00:{row}" for row in range(10, 40)], "it holds times; --time names"),
        ("x", [str(1585699200000 + row) for row in range(40)], "it holds times; --time names"),
    ],
)
def test_a_column_of_which_nothing_can_be_learned_is_left_out(name: str, cells: list[str], reason: str) -> None:
    guess = Proposal(["id", name])
    for number, cell in enumerate(cells):
        guess.add([f"u{number % 3}", cell])

    assert list(guess.features()) == ["id"]
    [note] = guess.notes()
    assert f"the column {name!r} is left out: {reason}" in note


@pytest.mark.parametrize("cells", [["a"] * 20, [f"u{row}" for row in range(30)], [""] * 20])
def test_a_column_that_the_user_named_is_kept(cells: list[str]) -> None:
    guess = Proposal(["x"], kept=["x"])
    for cell in cells:
        guess.add([cell])

    assert guess.features() == {"x": "{type: categorical}"}


@pytest.mark.parametrize(
    ("cells", "kept"),
    [([f"{row}.5" for row in range(30)], True), (["a", ""] * 15, True), (["a", "\\N"] * 15, True), (["a"] * 19, True)],
)
def test_a_number_a_gap_and_a_small_sample_are_no_reason_to_leave_a_column_out(cells: list[str], kept: bool) -> None:
    guess = Proposal(["id", "x"])
    for number, cell in enumerate(cells):
        guess.add([f"u{number % 3}", cell])

    assert ("x" in guess.features()) is kept


@pytest.mark.parametrize(
    "text",
    [
        "user",
        "no",
        "Y",
        "null",
        "7",
        "1e3",
        "12:30",
        "a b",
        "a: b",
        "#a",
        "",
        "ä",
        "'",
        '"',
        "[a]",
        "~",
        "{}",
        "-",
        "\x85\u2028",
        "\x7f",
        "😀",
    ],
)
def test_a_text_is_written_so_that_yaml_reads_it_back(text: str) -> None:
    assert yaml.safe_load(f"x: {yaml_text(text)}") == {"x": text}
    assert yaml.safe_load(f"{yaml_text(text)}: x") == {text: "x"}
