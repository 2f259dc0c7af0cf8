"""What `features:` may say, and the sentence for what it may not."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from config.test_values_file import merged
from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.values_file import Values, sentences
from elastic_ctr.operate.cli.given_values import load_values

CITY = {"type": "categorical"}
PRICE = {"type": "numeric"}


def test_the_features_of_the_contract_are_read_and_stand_by_name() -> None:
    features = Features.model_validate(
        {
            "user": {"type": "categorical"},
            "tags": {"type": "categorical", "separator": "|", "pooling": "mean"},
            "device": {"type": "categorical", "vocabulary": {"top": 1000}},
            "price": {"type": "numeric", "transform": ["log1p", "standardize"], "missing": 0},
            "price_bin": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 64}},
            "user_device": {"type": "crossed", "of": ["user", "device"]},
            "title": {"type": "text", "words": True, "ngrams": [1, 2]},
        }
    )

    assert features.slots == ("device", "price_bin", "tags", "title", "user", "user_device")
    assert features.averaged == ("tags",)
    assert features.numeric == ("price",)
    assert dict(features.columns())["price_bin"] == "price"
    assert features.needs_statistics == ("device", "price", "price_bin")


def test_features_are_the_same_after_they_are_written_and_read() -> None:
    features = Features.model_validate(
        {
            "c": {**CITY, "vocabulary": ["a", "7"]},
            "d": {**CITY, "vocabulary": {"top": 3}},
            "p": {**PRICE, "transform": [{"clip": [0, 5]}, "log1p", {"round": 2}]},
            "b": {"type": "bucketized", "boundaries": [1, 2]},
            "q": {"type": "bucketized", "boundaries": {"quantiles": 4}},
        }
    )

    assert Features.model_validate_json(features.model_dump_json(by_alias=True)) == features
    assert Features.model_validate(features.model_dump(mode="json", by_alias=True)) == features


@pytest.mark.parametrize("given", [["7", "b c", "ä"], "7\nb c\nä", "7\nb c\nä\n", "7\r\nb c\r\nä\r\n"], ids=repr)
def test_a_vocabulary_is_a_list_or_text_with_one_a_line(given: object) -> None:
    features = Features.model_validate({"c": {**CITY, "vocabulary": given}})

    assert features.model_dump()["c"]["vocabulary"] == ("7", "b c", "ä")


def test_a_vocabulary_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("paris\nrome\n")
    (tmp_path / "values.yaml").write_text(
        "data: {source: {url: 'file:.'}, start: 20200401/00, format: csv, label: click}\n"
        "features: {city: {type: categorical}}\n"
    )

    found = load_values([tmp_path / "values.yaml"], [f"features.city.vocabulary={tmp_path / 'words.txt'}"])

    assert found.features is not None
    assert found.features.model_dump()["city"]["vocabulary"] == ("paris", "rome")


REFUSED: dict[str, tuple[dict[Any, Any], str]] = {
    "no features": ({}, "features has none with keys"),
    "no keys at all": ({"price": PRICE}, "features has none with keys; give at least one that is categorical"),
    "a name with a blank": ({"a b": CITY}, "'a b' cannot stand in a line"),
    "a name of a number that cannot be a slot's": ({"c": CITY, "a:b": PRICE}, "'a:b' cannot stand in a line"),
    "a name that is a truth value": ({"true": CITY}, "the name true is what YAML reads of y or no, too; give another, and `column`"),
    "a name that merges": ({"<<": CITY}, "the name << merges maps in YAML; give another name"),
    "no type": ({"c": {}}, "c: a feature has the type categorical, numeric, bucketized, crossed or text, not {}"),
    "another type": ({"c": {"type": "hashed"}}, "c: a feature has the type categorical, numeric"),
    "a word": ({"c": "categorical"}, "c: a feature has the type categorical"),
    "nothing": ({"c": None}, "c: a feature has the type categorical"),
    "the name of a file for its content": (
        {"c": {**CITY, "vocabulary": "devices.txt"}},
        "'devices.txt' is one line without a line end; give a file by --set-file features.NAME.vocabulary=FILE",
    ),
    "a key misspelt": ({"c": {**CITY, "vocabluary": ["a"]}}, "c.vocabluary is not a setting; did you mean vocabulary?"),
    "a key of another type": ({"c": {**CITY, "ngrams": [1, 1]}}, "c.ngrams is not a setting"),
    "an unknown transform": (
        {"c": CITY, "p": {**PRICE, "transform": ["log1p", "log2"]}},
        "p.transform.1: a step is log1p, standardize, minMax, {clip: [low, high]} or {round: digits}, not 'log2'",
    ),
    "a transform of nothing": ({"c": CITY, "p": {**PRICE, "transform": [{"clop": [1, 2]}]}}, "p.transform.0: a step is log1p"),
    "a transform that is no list": ({"c": CITY, "p": {**PRICE, "transform": "log1p"}}, "p.transform: input should be a valid tuple"),
    "two steps in one": (
        {"c": CITY, "p": {**PRICE, "transform": [{"clip": [1, 2], "round": 1}]}}, "p.transform.0.round is not a setting"
    ),
    "a clip of nothing": ({"c": CITY, "p": {**PRICE, "transform": [{"clip": [2, 1]}]}}, "p.transform.0.clip: clip [2, 1] leaves one number; give the lower one first"),
    "two scales": ({"c": CITY, "p": {**PRICE, "transform": ["minMax", "standardize"]}}, "p.transform: standardize and minMax each scale by the statistics; give one of them, once"),
    "a cross of one": ({"c": CITY, "x": {"type": "crossed", "of": ["c"]}}, "x.of: a cross is of two different features or more"),
    "a cross of the same": ({"c": CITY, "x": {"type": "crossed", "of": ["c", "c"]}}, "two different features or more"),
    "a cross of nobody": ({"c": CITY, "x": {"type": "crossed", "of": ["c", "d"]}}, "x is a cross of d, which is no feature; those that can be: c"),
    "a cross of a number": ({"c": CITY, "p": PRICE, "x": {"type": "crossed", "of": ["c", "p"]}}, "x is a cross of p, which cannot be crossed; those that can be: c"),
    "boundaries that fall": ({"b": {"type": "bucketized", "boundaries": [1, 3, 2]}}, "b.boundaries: boundaries do not rise: 3 stands before 2"),
    "boundaries that repeat": ({"b": {"type": "bucketized", "boundaries": [1, 1]}}, "1 stands before 1; sort them"),
    "no boundaries": ({"b": {"type": "bucketized", "boundaries": []}}, "b.boundaries: boundaries is empty"),
    "boundaries that are not there": ({"b": {"type": "bucketized"}}, "b.boundaries is missing"),
    "a boundary without end": ({"b": {"type": "bucketized", "boundaries": [0, float("inf")]}}, "b.boundaries.1: input should be a finite number"),
    "one quantile": ({"b": {"type": "bucketized", "boundaries": {"quantiles": 1}}}, "b.boundaries.quantiles: input should be greater than or equal to 2"),
    "a vocabulary with a duplicate": ({"c": {**CITY, "vocabulary": ["a", "b", "a"]}}, "c.vocabulary: the vocabulary has 'a' more than once; name each value once"),
    "a duplicate in text": ({"c": {**CITY, "vocabulary": "a\nb\na\n"}}, "'a' more than once"),
    "a number": ({"c": {**CITY, "vocabulary": [7, "7"]}}, "a value of a vocabulary is text, and 7 is none to YAML; write it in quotes"),
    "an empty vocabulary": ({"c": {**CITY, "vocabulary": []}}, "at least one value"),
    "an empty file": ({"c": {**CITY, "vocabulary": ""}}, "at least one value, and no empty one"),
    "an empty line": ({"c": {**CITY, "vocabulary": "a\n\nb\n"}}, "no empty one; an empty cell has no key"),
    "a word that is a truth value": ({"c": {**CITY, "vocabulary": ["a", True]}}, "a value of a vocabulary is text, and true is none to YAML; write it in quotes"),
    "a word that is rounded": ({"c": {**CITY, "vocabulary": [2**53]}}, "9007199254740992 is none to YAML; write it in quotes"),
    "the top none": ({"c": {**CITY, "vocabulary": {"top": 0}}}, "c.vocabulary.top: input should be greater than or equal to 1, not 0"),
    "the top of more than is listed": ({"c": {**CITY, "vocabulary": {"top": 4097}}}, "c.vocabulary.top: input should be less than or equal to 4096, not 4097"),
    "a word that is two values": ({"c": {**CITY, "separator": "|", "vocabulary": ["x", "x|y"]}}, "c: the vocabulary has 'x|y', which no value can be: '|' separates values; name each value by itself"),
    "two columns of one series of texts": (
        {"c": {**CITY, "column": "tags", "separator": "|"}, "d": {"type": "text", "column": "tags[|]"}},
        "c and d read the column 'tags' with a separator and the column 'tags[|]', whose statistics would both be named 'tags[|]'; give the column another name",
    ),
    "two columns of one series of numbers": (
        {"c": CITY, "p": {**PRICE, "transform": ["log1p", "standardize"]}, "q": {**CITY, "column": "p:log1p", "round": 1}},
        "p and q read the column 'p' after log1p and the column 'p:log1p', whose statistics would both be named 'p:log1p'",
    ),
    "two bounds": ({"c": {**CITY, "vocabulary": ["a"], "hash": 3}}, "c: vocabulary and hash both bound the keys; give one of them"),
    "a separator of two": ({"c": {**CITY, "separator": "||"}}, "c.separator: string should have at most 1 character"),
    "a separator beyond ASCII": ({"c": {**CITY, "separator": "§"}}, "c.separator: string should match pattern"),
    "several round numbers": ({"c": {**CITY, "round": 1, "separator": "|"}}, "c: round is of one number and separator of several values"),
    "the top of round numbers": ({"c": {**CITY, "round": 1, "vocabulary": {"top": 3}}}, "c: the statistics count texts, not rounded numbers"),
    "a round word": ({"c": {**CITY, "round": 1, "vocabulary": ["1.5", "a"]}}, "c: round makes the column a number, and the vocabulary has 'a'"),
    "n-grams turned round": ({"t": {"type": "text", "ngrams": [2, 1]}}, "t.ngrams: ngrams [2, 1] has the greater number first; turn them round"),
    "n-grams of nothing": ({"t": {"type": "text", "ngrams": [0, 1]}}, "t.ngrams.0: input should be greater than or equal to 1"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_feature_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Features.model_validate(given)

    assert any(each.startswith(sentence) or sentence in each for each in sentences(refused.value, Features))


def test_a_column_may_be_read_as_text_as_number_and_after_the_same_steps_twice() -> None:
    steps = {**PRICE, "column": "p", "transform": ["log1p"]}

    found = Features.model_validate(
        {
            "a": steps,
            "b": steps,
            "p": PRICE,
            "c": {**CITY, "column": "p"},
            "d": {**CITY, "column": "p", "separator": "|"},
        }
        | {"t": {"type": "text", "column": "p"}, "q": {**CITY, "column": "p:log1p"}}
    )

    assert len(found.root) == 7


ROWS = """
data: {source: {url: "file:///logs"}, start: 20200401/00, format: csv, label: click}
features: {city: {type: categorical}}
"""


def refusal(given: str, below: str = ROWS) -> str:
    with pytest.raises(ConfigRefused) as refused:
        settings(Values, merged(yaml.safe_load(below), yaml.safe_load(given)), "values.yaml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("features: null", "features is missing; say what the columns of csv rows mean to the network"),
        ("data: {format: clicks, label: null, slots: ['1']}", "features is for rows of columns; with data.format clicks, data.slots names"),
        ("data: {format: clicks, label: null}", "data: slots is missing; list those that are features"),
        ("data: {format: clicks, slots: ['1']}", "data: label is for rows of columns; leave it out"),
        ("data: {slots: ['1']}", "data: slots is for `format: clicks`; with csv, `features` says what columns mean"),
        ("data: {label: null}", "data: label is missing; name the column of csv rows that says which were clicked"),
        ("data: {format: xlsx}", "data.format: input should be 'clicks', 'csv', 'tsv', 'jsonl', 'parquet' or 'reader', not 'xlsx'"),
        ("data: {format: reader}", "data: reader goes with `format: reader`; give both, or neither"),
        ("data: {reader: mine.logs:rows}", "data: reader goes with `format: reader`; give both, or neither"),
        ("data: {format: reader, reader: rows}", "data.reader: string should match pattern"),
        ("data: {format: parquet, columns: [click, city]}", "data: columns is for csv and tsv; the columns of parquet have names"),
        ("data: {columns: [click, city, city]}", "data: columns has 'city' more than once; name each column once"),
        ("data: {columns: []}", "data.columns: tuple should have at least 1 item"),
        ("data: {columns: [city]}", "data: the column 'click' is not among columns, which are city"),
        ("data: {shows: seen, columns: [click, city]}", "data: the column 'seen' is not among columns"),
        ("data: {columns: [click, town]}", "features.city reads the column 'city', which the data lacks; it has click, town"),
        ("features: {x: {type: categorical, column: town}}\ndata: {columns: [click, city]}", "features.x reads the column 'town'"),
        ("features: {click: {type: categorical}}", "features.click reads 'click', which says what was clicked: no request will have it"),
        ("features: {x: {type: numeric, column: click}}", "features.x reads 'click', which says what was clicked"),
        ("{data: {shows: seen}, features: {seen: {type: numeric}}}", "features.seen reads 'seen', which says what was clicked"),
        ("model: {sparseDim: 1000}", "model.sparseDim is for data.format clicks; bound the keys of a feature by its `hash`"),
        ("features: {x: {type: categorical, vocabluary: [a]}}", "features.x.vocabluary is not a setting; did you mean vocabulary?"),
        ("features: {text: {type: text, ngrams: [0, 1]}}", "features.text.ngrams.0: input should be greater"),
        ("features: [city]", "features: input should be a valid dictionary"),
    ],
)  # fmt: skip
def test_features_that_do_not_go_with_the_rest_are_refused_with_a_sentence(given: str, sentence: str) -> None:
    assert f"values.yaml: {sentence}" in refusal(given)


def test_two_features_of_one_name_are_refused_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        f"{ROWS}  # only\n".replace(
            "{city: {type: categorical}}", "\n  city: {type: categorical}\n  city: {type: text}"
        )
    )

    with pytest.raises(ConfigRefused, match="'city' stands on line 4 and again on line 5; keep one"):
        load_values([path], None)


def test_a_feature_of_a_column_that_is_not_there_is_named_with_the_columns_that_are() -> None:
    features = Features.model_validate(
        {"city": CITY, "bin": {"type": "bucketized", "column": "prize", "boundaries": [1]}}
    )

    with pytest.raises(
        ValueError, match=r"features\.bin reads the column 'prize', which the data lacks; it has city, price"
    ):
        features.check_columns(["city", "price"])


def test_the_network_gets_the_same_input_whatever_the_order_in_the_file() -> None:
    data = Data.model_validate(yaml.safe_load(ROWS)["data"])
    there = Features.model_validate({"b": CITY, "a": CITY, "p": PRICE})
    back = Features.model_validate({"p": PRICE, "a": CITY, "b": CITY})

    assert input_of(data, there) == input_of(data, back)
    assert input_of(data, there).slots == ("a", "b")
