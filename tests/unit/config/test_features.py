"""What `features:` may say, and the sentence for what it may not."""

from typing import Any

import pytest
from pydantic import ValidationError

from elastic_ctr.config.features import Features

CITY = {"type": "categorical"}
PRICE = {"type": "numeric"}


def test_the_features_of_the_contract_are_read_in_their_order() -> None:
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

    assert features.slots == ("user", "tags", "device", "price_bin", "user_device", "title")
    assert features.numeric == ("price",)
    assert dict(features.columns())["price_bin"] == "price"
    assert features.needs_statistics == ("device", "price", "price_bin")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no keys at all": ({"price": PRICE}, "none with keys"),
    "a name with a blank": ({"a b": CITY}, "'a b' cannot stand in a line"),
    "a cross of one": ({"c": CITY, "x": {"type": "crossed", "of": ["c"]}}, "two different features or more"),
    "a cross of the same": ({"c": CITY, "x": {"type": "crossed", "of": ["c", "c"]}}, "two different features or more"),
    "a cross of nobody": ({"c": CITY, "x": {"type": "crossed", "of": ["c", "d"]}}, "d, which is no feature; those that can be: c"),
    "a cross of a number": ({"c": CITY, "p": PRICE, "x": {"type": "crossed", "of": ["c", "p"]}}, "p, which cannot be crossed"),
    "boundaries that fall": ({"b": {"type": "bucketized", "boundaries": [1, 3, 2]}}, "3 stands before 2"),
    "boundaries that repeat": ({"b": {"type": "bucketized", "boundaries": [1, 1]}}, "1 stands before 1"),
    "no boundaries": ({"b": {"type": "bucketized", "boundaries": []}}, "boundaries is empty"),
    "a vocabulary with a duplicate": ({"c": {**CITY, "vocabulary": ["a", "b", "a"]}}, "'a' more than once"),
    "an empty vocabulary": ({"c": {**CITY, "vocabulary": []}}, "at least one value"),
    "two bounds": ({"c": {**CITY, "vocabulary": ["a"], "hash": 3}}, "give one of them"),
    "two scales": ({"c": CITY, "p": {**PRICE, "transform": ["minMax", "standardize"]}}, "give one of them, once"),
    "a clip of nothing": ({"c": CITY, "p": {**PRICE, "transform": [{"clip": [2, 1]}]}}, "give the lower one first"),
    "n-grams turned round": ({"t": {"type": "text", "ngrams": [2, 1]}}, "turn them round"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Features.model_validate(given)

    assert sentence in str(refused.value)


def test_a_feature_of_a_column_that_is_not_there_is_named_with_the_columns_that_are() -> None:
    features = Features.model_validate(
        {"city": CITY, "bin": {"type": "bucketized", "column": "prize", "boundaries": [1]}}
    )

    with pytest.raises(
        ValueError, match=r"features\.bin reads the column 'prize', which the data lacks; it has city, price"
    ):
        features.check_columns({"city": str, "price": float})
