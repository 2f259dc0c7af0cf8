"""The usual values of each feature, by the statistics pinned with the model: explanations compare a feature's value with them."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Bucketized, Categorical, Feature, Numeric
from elastic_ctr.features.statistics.document import Statistics, series_of
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.inputs import TextInput
from elastic_ctr.formats.keys import Keys

MOST_VALUES = 20
"""Of a feature: each is an instance of an explanation. Of text these are the most frequent ones, of numbers quantiles."""


class UsualValues(NamedTuple):
    """The usual values of one feature: the keys or the network's number of each value, and its share; the shares add up to 1."""

    keys: list[Keys]
    numbers: list[float]
    shares: npt.NDArray[np.float64]


def usual_values(document: FeatureDocument | None, transformer: Transformer) -> dict[str, UsualValues]:
    """Return usual values by feature; none for crosses, texts of words and lists, whose absence is common or compares better."""
    if document is None or document.statistics is None:
        return {}
    found: dict[str, UsualValues] = {}
    for name, feature in document.features.root.items():
        if values := _values(name, feature, document.statistics):
            found[name] = _of_feature(name, feature, values, transformer)
    return found


def _values(name: str, feature: Feature, statistics: Statistics) -> dict[str | float, float]:
    """Return values with their shares; the empty text and NaN stand for a missing value."""
    if not isinstance(feature, Categorical | Bucketized | Numeric):
        return {}
    column = feature.column or name
    if isinstance(feature, Categorical) and feature.round is None:
        texts = None if feature.separator else statistics.texts.get(series_of(TextInput(column, "")))
        if texts is None or not texts.top:
            return {}
        top = texts.top[:MOST_VALUES]
        share = (1 - texts.missing_share) / sum(count for _, count in top)
        return {**{value: count * share for value, count in top}, **_missing("", texts.missing_share)}
    numbers = statistics.numbers.get(column)
    if numbers is None or not numbers.quantiles:
        return {}
    quantiles = Counter(numbers.quantile((place + 0.5) / MOST_VALUES) for place in range(MOST_VALUES))
    share = (1 - numbers.missing_share) / MOST_VALUES
    return {**{value: times * share for value, times in quantiles.items()}, **_missing(math.nan, numbers.missing_share)}


def _missing(value: str | float, share: float) -> dict[str | float, float]:
    return {value: share} if share else {}


def _of_feature(name: str, feature: Feature, values: dict[str | float, float], transformer: Transformer) -> UsualValues:
    """Transform the values as rows that have no other column."""
    column = getattr(feature, "column", None) or name
    inputs = transformer.inputs
    rows = [
        (
            [str(value).encode() if each.column == column and isinstance(value, str) else b"" for each in inputs.texts],
            [value if each == column and isinstance(value, float) else math.nan for each in inputs.numbers],
        )
        for value in values
    ]
    found = transformer.transform(cells_of(rows, inputs))
    shares = np.array(list(values.values()))
    if isinstance(feature, Numeric):
        return UsualValues([], found.numbers[:, transformer.numbers.index(name)].tolist(), shares)
    slots = len(transformer.slots)
    ends = np.cumsum(found.lengths)
    mine = np.arange(len(rows)) * slots + transformer.slots.index(name)
    keys = [found.keys[end - length : end] for end, length in zip(ends[mine], found.lengths[mine], strict=True)]
    return UsualValues(keys, [], shares)
