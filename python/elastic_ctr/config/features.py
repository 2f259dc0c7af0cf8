"""`features:` in the values file: what each column of the data means to the network."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, RootModel, Tag, field_validator, model_validator
from pydantic.config import JsonDict

from elastic_ctr.config.section import ALTERNATIVE, Count, Section, text_of
from elastic_ctr.features.statistics.document import LONGEST, TOP, series_of
from elastic_ctr.formats.inputs import TextInput
from elastic_ctr.formats.slots import SlotList

MOST_DIGITS = 15
_NEEDS_STATISTICS = ("standardize", "minMax")
# Steps without a parameter, and the documentation of their results.
NAMED_STEPS = {
    "log1p": "ln(1 + x) of x from 0 on, -ln(1 - x) below: of amounts and counts, which are skewed.",
    "standardize": "(x - mean) / deviation, by the statistics: numbers around 0.",
    "minMax": "(x - least) / (greatest - least), by the statistics: numbers from 0 to 1.",
}


class Clip(Section):
    """`clip: [low, high]`"""

    clip: tuple[float, float] = Field(
        description="Least and greatest number; what lies outside becomes the nearer one."
    )

    @field_validator("clip")
    @classmethod
    def _rise(cls, bounds: tuple[float, float]) -> tuple[float, float]:
        if bounds[0] >= bounds[1]:
            raise ValueError(f"clip [{bounds[0]:g}, {bounds[1]:g}] leaves one number; give the lower one first")
        return bounds


class Round(Section):
    """`round: digits`"""

    round: int = Field(ge=0, le=MOST_DIGITS, description="Decimal digits that are kept.")


def _kind_of_step(given: object) -> str | None:
    if isinstance(given, str) and given in NAMED_STEPS:
        return f"{ALTERNATIVE}name"
    if isinstance(given, Clip) or (isinstance(given, dict) and "clip" in given):
        return f"{ALTERNATIVE}clip"
    return f"{ALTERNATIVE}round" if isinstance(given, Round) or (isinstance(given, dict) and "round" in given) else None


Step: TypeAlias = Annotated[
    Annotated[Literal["log1p", "standardize", "minMax"], Tag(f"{ALTERNATIVE}name")]
    | Annotated[Clip, Tag(f"{ALTERNATIVE}clip")]
    | Annotated[Round, Tag(f"{ALTERNATIVE}round")],
    Discriminator(
        _kind_of_step,
        custom_error_type="step",
        custom_error_message="A step is log1p, standardize, minMax, {clip: [low, high]} or {round: digits}",
    ),
]


def series_of_number(column: str, steps: Sequence[Step] = ()) -> str:
    """Return the key in `Statistics.numbers` for a column after `steps`: `price`, `price:log1p`, `price:clip(0.0,5.0),log1p`."""
    return ":".join((column, *([",".join(map(_step_text, steps))] if steps else [])))


def _step_text(step: Step) -> str:
    if isinstance(step, Clip):
        return f"clip({step.clip[0]!r},{step.clip[1]!r})"
    return f"round({step.round})" if isinstance(step, Round) else step


def _words(given: object) -> object:
    """Return the values of a list of texts, or of a text with one value a line, as a tuple."""
    if isinstance(given, str):
        if given and "\n" not in given:
            raise ValueError(
                f"text is the content of a file with one value a line, and {given[:60]!r} is one line without a line end; give a file by "
                "--set-file features.NAME.vocabulary=FILE, and one value as a list"
            )
        return tuple(line.removesuffix("\r") for line in given.removesuffix("\n").split("\n"))
    if isinstance(given, (list, tuple)):
        return tuple(text_of("a value of a vocabulary", each) for each in given)
    return given


_WORDS_SCHEMA: JsonDict = {
    "type": ["array", "string"],
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "pattern": "\n",
    "uniqueItems": True,
}


class TopValues(Section):
    """`vocabulary: {top: n}`"""

    top: int = Field(
        ge=1,
        le=TOP,
        description=f"So many of the most frequent values by the statistics. Those of more than {LONGEST} bytes are never among them, "
        "and of long ones there may be fewer.",
    )


class QuantileBoundaries(Section):
    """`boundaries: {quantiles: n}`"""

    quantiles: int = Field(ge=2, le=4096, description="So many buckets with equally many values by the statistics.")


def _kind_of_list(given: object) -> str:
    return (
        f"{ALTERNATIVE}statistics" if isinstance(given, (dict, TopValues, QuantileBoundaries)) else f"{ALTERNATIVE}list"
    )


_OfStatistics = Tag(f"{ALTERNATIVE}statistics")
_Listed = Tag(f"{ALTERNATIVE}list")
Vocabulary: TypeAlias = Annotated[
    Annotated[tuple[str, ...], BeforeValidator(_words), Field(json_schema_extra=_WORDS_SCHEMA), _Listed]
    | Annotated[TopValues, _OfStatistics],
    Discriminator(_kind_of_list),
]
Boundaries: TypeAlias = Annotated[
    Annotated[tuple[float, ...], Field(json_schema_extra={"minItems": 1}), _Listed]
    | Annotated[QuantileBoundaries, _OfStatistics],
    Discriminator(_kind_of_list),
]


class OfColumn(Section):
    """A feature that is made from one column."""

    column: str | None = Field(default=None, min_length=1, description="The column; the feature's name unless given.")


class Categorical(OfColumn):
    """A key for each value."""

    type: Literal["categorical"]
    separator: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        pattern=r"^[\x00-\x7f]$",
        description="ASCII character between the values of a cell, if it holds several.",
    )
    pooling: Literal["sum", "mean"] = Field(default="sum", description="How the vectors of a cell's values become one.")
    vocabulary: Vocabulary | None = Field(
        default=None,
        description=f"Values with keys of their own, as a list of texts or as one text with a value a line, or {{top: n}} with n up to {TOP}; "
        "all others share one key. Absent: each has its own. Numbers stand in quotes, for YAML reads 02134 as 1116.",
    )
    hash: Count | None = Field(default=None, description="At most so many keys: values are hashed to them.")
    round: int | None = Field(
        default=None, ge=0, le=MOST_DIGITS, description="Decimal digits of a number that is used as a category."
    )

    @field_validator("vocabulary")
    @classmethod
    def _unique(cls, given: object) -> object:
        if isinstance(given, tuple):
            if not given or "" in given:
                raise ValueError("a vocabulary has at least one value, and no empty one; an empty cell has no key")
            if twice := [value for value, times in Counter(given).items() if times > 1]:
                raise ValueError(f"the vocabulary has {twice[0]!r} more than once; name each value once")
        return given

    @model_validator(mode="after")
    def _together(self) -> "Categorical":
        if self.vocabulary is not None and self.hash is not None:
            raise ValueError("vocabulary and hash both bound the keys; give one of them")
        if self.round is not None:
            self._check_rounded()
        if self.separator is not None and isinstance(self.vocabulary, tuple):
            never = next((each for each in self.vocabulary if self.separator in each), None)
            if never is not None:
                raise ValueError(
                    f"the vocabulary has {never!r}, which no value can be: {self.separator!r} separates values; name each value by itself"
                )
        return self

    def _check_rounded(self) -> None:
        if self.separator is not None:
            raise ValueError("round is of one number and separator of several values; give one of them")
        if isinstance(self.vocabulary, TopValues):
            raise ValueError(  # noqa: TRY004 (pydantic makes sentences of these alone)
                "the statistics count texts, not rounded numbers; list the vocabulary, or leave round out"
            )
        if wrong := next((each for each in self.vocabulary or () if not _is_number(each)), None):
            raise ValueError(f"round makes the column a number, and the vocabulary has {wrong!r}; name numbers alone")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class Numeric(OfColumn):
    """A number for the network."""

    type: Literal["numeric"]
    transform: tuple[Step, ...] | None = Field(
        default=None,
        description="Steps in order: log1p, standardize, minMax, {clip: [low, high]}, {round: digits}. Absent: standardized by the "
        "statistics without outliers, and clipped to ten deviations. []: the number as it is.",
    )
    missing: float | None = Field(
        default=None, description="The network's number for an empty cell, after all steps. Absent: the mean's number."
    )

    @property
    def before_scaling(self) -> tuple[Step, ...]:
        """Return the steps before standardize or minMax. The statistics for scaling and for missing numbers are of their result."""
        steps = self.transform or ()
        return steps[: next((place for place, step in enumerate(steps) if step in _NEEDS_STATISTICS), len(steps))]

    @property
    def is_scaled(self) -> bool:
        """True if the feature's numbers are scaled to near 1 by the statistics."""
        return self.transform is None or len(self.before_scaling) < len(self.transform)

    @field_validator("transform")
    @classmethod
    def _one_scale(cls, steps: tuple[Step, ...] | None) -> tuple[Step, ...] | None:
        if sum(step in _NEEDS_STATISTICS for step in steps or ()) > 1:
            raise ValueError("standardize and minMax each scale by the statistics; give one of them, once")
        return steps


class Bucketized(OfColumn):
    """A key for each bucket of a number."""

    type: Literal["bucketized"]
    boundaries: Boundaries = Field(
        description="Where a bucket ends and the next begins, rising; or {quantiles: n} of the statistics."
    )

    @field_validator("boundaries")
    @classmethod
    def _rise(cls, given: object) -> object:
        if isinstance(given, tuple):
            if not given:
                raise ValueError("boundaries is empty, which is one bucket for all numbers; give at least one")
            if fall := next(((a, b) for a, b in pairwise(given) if a >= b), None):
                raise ValueError(f"boundaries do not rise: {fall[0]:g} stands before {fall[1]:g}; sort them")
        return given


class Crossed(Section):
    """A key for each combination of the values of other features."""

    type: Literal["crossed"]
    of: tuple[str, ...] = Field(
        description="Names of two features or more, none of them numeric or crossed.",
        json_schema_extra={"minItems": 2, "uniqueItems": True},
    )
    hash: Count | None = Field(default=None, description="At most so many keys: combinations are hashed to them.")

    @field_validator("of")
    @classmethod
    def _several(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError("a cross is of two different features or more; use the feature itself otherwise")
        return names


class Text(OfColumn):
    """A key for each word of a text, or run of words."""

    type: Literal["text"]
    words: Literal[True] = Field(
        default=True,
        description="Words are runs of ASCII letters, which are made small, of digits, and of all characters beyond ASCII as they are.",
    )
    ngrams: tuple[Count, Count] = Field(default=(1, 1), description="Fewest and most words of a run that has a key.")
    hash: Count | None = Field(default=None, description="At most so many keys: words are hashed to them.")

    @field_validator("ngrams")
    @classmethod
    def _rise(cls, given: tuple[int, int]) -> tuple[int, int]:
        if given[0] > given[1]:
            raise ValueError(f"ngrams [{given[0]}, {given[1]}] has the greater number first; turn them round")
        return given


def _type_of(given: Any) -> str:
    return f"{ALTERNATIVE}{given.get('type') if isinstance(given, dict) else getattr(given, 'type', None)}"


Feature: TypeAlias = Annotated[
    Annotated[Categorical, Tag(f"{ALTERNATIVE}categorical")]
    | Annotated[Numeric, Tag(f"{ALTERNATIVE}numeric")]
    | Annotated[Bucketized, Tag(f"{ALTERNATIVE}bucketized")]
    | Annotated[Crossed, Tag(f"{ALTERNATIVE}crossed")]
    | Annotated[Text, Tag(f"{ALTERNATIVE}text")],
    Discriminator(
        _type_of,
        custom_error_type="type_of_feature",
        custom_error_message="A feature has the type categorical, numeric, bucketized, crossed or text",
    ),
]


STEP_CLASSES = (Clip, Round)
# The class of each tag by which pydantic discriminates the types of a feature and the steps.
ALTERNATIVES: dict[str, type[Section]] = {
    f"{ALTERNATIVE}{name}": kind
    for name, kind in (
        ("categorical", Categorical),
        ("numeric", Numeric),
        ("bucketized", Bucketized),
        ("crossed", Crossed),
        ("text", Text),
        ("clip", Clip),
        ("round", Round),
    )
}
# The chart's schema of feature names, whose validator is Python code: any but <<.
_NAMES_SCHEMA: JsonDict = {"minProperties": 1, "propertyNames": {"pattern": r"^(<|(<?[!-9;=-~]|<<[!-9;-~])[!-9;-~]*)$"}}


class Features(RootModel[dict[str, Feature]]):
    """Features in the order of their names, which is that of the network's inputs. Those with keys are slots; numeric ones are numbers."""

    model_config = {"frozen": True, "json_schema_extra": _NAMES_SCHEMA}

    @field_validator("root", mode="before")
    @classmethod
    def _named(cls, given: object) -> object:
        if isinstance(given, dict):
            for name in given:
                if name in ("true", "false"):
                    raise ValueError(f"the name {name} is what YAML reads of y or no, too; give another, and `column`")
                if name == "<<":  # which Helm writes without quotes into a role's file
                    raise ValueError("the name << merges maps in YAML; give another name, and `column` for the column")
        return given

    @field_validator("root")
    @classmethod
    def _by_name(cls, given: dict[str, Feature]) -> dict[str, Feature]:
        # Helm does not keep the order of a map; sorted by name, it is the same for every role.
        return dict(sorted(given.items()))

    @model_validator(mode="after")
    def _consistent(self) -> "Features":
        if not self.slots:
            raise ValueError("features has none with keys; give at least one that is categorical, bucketized or text")
        SlotList(tuple(self.root))  # refuses a name that cannot stand in a line
        for name, feature in self.root.items():
            if isinstance(feature, Crossed):
                self._check_cross(name, feature)
        self._check_series()
        return self

    def _check_series(self) -> None:
        """Raises ValueError if two inputs would share a series name, by which statistics are looked up."""
        found: dict[tuple[str, str], tuple[str, str]] = {}
        for name, feature in self.root.items():
            for kind, series, source in _series(name, feature):
                other, first = found.setdefault((kind, series), (name, source))
                if first != source:
                    raise ValueError(
                        f"{other} and {name} read {first} and {source}, whose statistics would both be named {series!r}; give the column "
                        "another name in the data"
                    )

    def _check_cross(self, name: str, cross: Crossed) -> None:
        possible = [other for other, each in self.root.items() if not isinstance(each, (Numeric, Crossed))]
        for part in cross.of:
            if part not in possible:
                is_there = "cannot be crossed" if part in self.root else "is no feature"
                raise ValueError(
                    f"{name} is a cross of {part}, which {is_there}; those that can be: {', '.join(possible)}"
                )

    @property
    def slots(self) -> tuple[str, ...]:
        """Return the names of the features that have keys."""
        return tuple(name for name, each in self.root.items() if not isinstance(each, Numeric))

    @property
    def averaged(self) -> tuple[str, ...]:
        """Return the names of the slots whose vectors are averaged, not summed."""
        given = self.root.items()
        return tuple(name for name, each in given if isinstance(each, Categorical) and each.pooling == "mean")

    @property
    def numeric(self) -> tuple[str, ...]:
        """Return the names of the numeric features."""
        return tuple(name for name, each in self.root.items() if isinstance(each, Numeric))

    def columns(self) -> Iterator[tuple[str, str]]:
        """Yield (feature, column) of every feature that reads a column."""
        for name, each in self.root.items():
            if not isinstance(each, Crossed):
                yield name, each.column or name

    def check_columns(self, known: Collection[str]) -> None:
        """Raises ValueError if a feature reads a column that is not in `known`; the message lists the known columns."""
        for name, column in self.columns():
            if column not in known:
                raise ValueError(
                    f"features.{name} reads the column {column!r}, which the data lacks; it has {', '.join(known)}"
                )

    def without_statistics(self) -> "Features":
        """Return features that read the same columns and need no statistics."""
        return Features({name: _without_statistics(each) for name, each in self.root.items()})

    @property
    def needs_statistics(self) -> tuple[str, ...]:
        """Return the names of the features that cannot be computed without the statistics of the data."""
        return tuple(name for name, each in self.root.items() if _needs_statistics(each))


def _series(name: str, feature: Feature) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, description of the source) of each series of statistics that a feature needs."""
    if isinstance(feature, Crossed):
        return
    column = feature.column or name
    plain = f"the column {column!r}"
    if isinstance(feature, Text) or (isinstance(feature, Categorical) and feature.round is None):
        separator = feature.separator if isinstance(feature, Categorical) else None
        yield "text", series_of(TextInput(column, separator or "")), f"{plain} with a separator" if separator else plain
        return
    yield "number", series_of_number(column), plain
    if isinstance(feature, Numeric) and (steps := feature.before_scaling):
        yield "number", series_of_number(column, steps), f"{plain} after {', '.join(map(_step_text, steps))}"


def _without_statistics(feature: Feature) -> Feature:
    if isinstance(feature, Categorical) and isinstance(feature.vocabulary, TopValues):
        return feature.model_copy(update={"vocabulary": None})
    if isinstance(feature, Bucketized) and isinstance(feature.boundaries, QuantileBoundaries):
        return feature.model_copy(update={"boundaries": (0.0,)})
    return feature.model_copy(update={"transform": (), "missing": 0.0}) if isinstance(feature, Numeric) else feature


def _needs_statistics(feature: Feature) -> bool:
    if isinstance(feature, Categorical):
        return isinstance(feature.vocabulary, TopValues)
    if isinstance(feature, Bucketized):
        return isinstance(feature.boundaries, QuantileBoundaries)
    if isinstance(feature, Numeric):
        return feature.missing is None or feature.is_scaled
    return False
