"""`statistics:` in the values file: the text of statistics.json, which `elastic-ctr analyze` writes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from elastic_ctr.config.features import Categorical, Features, Numeric, TopValues, series_of_number
from elastic_ctr.features.statistics.document import LONGEST, MOST_DEVIATIONS, Statistics, series_of
from elastic_ctr.formats.inputs import TextInput

# If the deviation with outliers is this many times the one without, the outliers dominate the scaling.
_RULED = 10.0


def _text(given: object) -> object:
    """Return the text as `Statistics.to_json` writes it."""
    if given is None:
        return None
    if not isinstance(given, str):
        # pydantic reports only ValueError as an error of the setting.
        raise ValueError(  # noqa: TRY004
            "it is the text of statistics.json; give it by --set-file statistics=statistics.json"
        )
    if not given.lstrip().startswith("{"):
        raise ValueError(
            f"it is the text of statistics.json, and {given[:60]!r} is none; give the file by --set-file statistics=statistics.json"
        )
    return Statistics.from_json(given).to_json()


StatisticsText = Annotated[
    str | None,
    BeforeValidator(_text),
    Field(
        default=None,
        description="The text of statistics.json by `elastic-ctr analyze`: --set-file statistics=statistics.json. They are pinned "
        "at the first start, for the model's life. Absent: those of the first pass are.",
    ),
]


def short_vocabularies(features: Features | None, statistics: Statistics) -> list[str]:
    """Return a warning for each `vocabulary: {top: n}` for which the statistics list fewer than n values although the column has more."""
    found = []
    for name, feature in ({} if features is None else features.root).items():
        given = feature.vocabulary if isinstance(feature, Categorical) else None
        if not isinstance(feature, Categorical) or not isinstance(given, TopValues):
            continue
        series = series_of(TextInput(feature.column or name, feature.separator or ""))
        texts = statistics.texts.get(series)
        if texts is None or len(texts.top) >= min(given.top, texts.distinct) or texts.listed_share == 1:
            continue
        found.append(
            f"features.{name}: vocabulary.top is {given.top}, and the statistics list {len(texts.top)} of about {texts.distinct} values of "
            f"{series}, as those of more than {LONGEST} bytes are left out, and of long ones there are fewer; all others share one key: list "
            "the vocabulary, or bound the keys by `hash`"
        )
    return found


def numbers_out_of_scale(features: Features | None, statistics: Statistics) -> list[str]:
    """Return a warning for each number that reaches the network far from 1, and for each whose scaling outliers dominate."""
    found = []
    for name, feature in ({} if features is None else features.root).items():
        if not isinstance(feature, Numeric) or feature.transform is None:
            continue
        numbers = statistics.numbers.get(series_of_number(feature.column or name, feature.before_scaling))
        if numbers is None or numbers.min is None or numbers.max is None or not numbers.deviation:
            continue
        farthest = max(numbers.min, numbers.max, key=abs)
        if not feature.is_scaled and abs(farthest) > MOST_DEVIATIONS:
            found.append(
                f"features.{name}: the network gets numbers up to {farthest:g}, and learns from numbers near 1: leave `transform` out, or end it "
                "with standardize"
            )
        typical = numbers.typical[1]
        if feature.is_scaled and 0 < _RULED * typical < numbers.deviation:
            found.append(
                f"features.{name}: a few numbers such as {farthest:g} make the deviation {numbers.deviation:g}, and it is {typical:g} without "
                "them: all others become nearly the same; leave `transform` out, or clip first"
            )
    return found


def numbers_read_otherwise(there: Features, here: Features | None) -> list[str]:
    """Return a warning for each number whose steps differ from those with which the other model's network was trained."""
    found = []
    for name, feature in ({} if here is None else here.root).items():
        before = there.root.get(name)
        if isinstance(feature, Numeric) and isinstance(before, Numeric) and feature.transform != before.transform:
            found.append(
                f"features.{name} is read with another `transform` than there, so what the network knows of it is of other numbers; give it that "
                "one to keep it ([] is the number as it is)"
            )
    return found


def absent_vocabularies(features: Features | None, statistics: Statistics) -> list[str]:
    """Return a warning for each listed vocabulary of which no row has a value. It skips columns whose values are not all listed."""
    found = []
    for name, feature in ({} if features is None else features.root).items():
        if (
            not isinstance(feature, Categorical)
            or not isinstance(feature.vocabulary, tuple)
            or feature.round is not None
        ):
            continue
        series = series_of(TextInput(feature.column or name, feature.separator or ""))
        texts = statistics.texts.get(series)
        if texts is None or texts.listed_share < 1 or {value for value, _ in texts.top} & set(feature.vocabulary):
            continue
        shown = ", ".join(repr(value) for value, _ in texts.top[:3]) or "none"
        found.append(
            f"features.{name}: no row has a value of its vocabulary, such as {feature.vocabulary[0]!r}, so all rows share one key; the column has "
            f"{shown}"
        )
    return found


def check_statistics(features: Features | None, text: str | None) -> None:
    """Raises ValueError if the statistics do not fit the features."""
    if text is None:
        return
    if features is None:
        raise ValueError("statistics is of the columns that features read, and there are no features; leave it out")
    # numba is imported only where statistics are given.
    from elastic_ctr.config.feature_program import transformer_of

    transformer_of(features, Statistics.from_json(text))
