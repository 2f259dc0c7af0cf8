"""`features:` in the values file: what each column of the data means to the network."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, RootModel, field_validator, model_validator

from elastic_ctr.config.data import Data
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.section import Count, Section
from elastic_ctr.features.slots import SlotList

MOST_DIGITS = 15
_NEEDS_STATISTICS = ("standardize", "minMax")


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


Step: TypeAlias = Literal["log1p", "standardize", "minMax"] | Clip | Round


def _lines(given: object) -> object:
    return tuple(given.splitlines()) if isinstance(given, str) else given


class TopValues(Section):
    """`vocabulary: {top: n}`"""

    top: Count = Field(description="So many of the most frequent values by the statistics.")


class Quantiles(Section):
    """`boundaries: {quantiles: n}`"""

    quantiles: int = Field(ge=2, le=4096, description="So many buckets with equally many values by the statistics.")


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
        description="Character between the values of a cell, if it holds several.",
    )
    pooling: Literal["sum", "mean"] = Field(default="sum", description="How the vectors of a cell's values become one.")
    vocabulary: Annotated[tuple[str, ...], BeforeValidator(_lines)] | TopValues | None = Field(
        default=None,
        description="Values with keys of their own, as a list or as text with one a line, or {top: n}; all others share one key. "
        "Absent: each has its own.",
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
    def _one_bound(self) -> "Categorical":
        if self.vocabulary is not None and self.hash is not None:
            raise ValueError("vocabulary and hash both bound the keys; give one of them")
        return self


class Numeric(OfColumn):
    """A number for the network."""

    type: Literal["numeric"]
    transform: tuple[Step, ...] = Field(
        default=(), description="Steps in order: log1p, standardize, minMax, {clip: [low, high]}, {round: digits}."
    )
    missing: float | None = Field(
        default=None, description="What an empty cell is to the network, after all steps. Absent: the mean's number."
    )

    @field_validator("transform")
    @classmethod
    def _one_scale(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if sum(step in _NEEDS_STATISTICS for step in steps) > 1:
            raise ValueError("standardize and minMax each scale by the statistics; give one of them, once")
        return steps


class Bucketized(OfColumn):
    """A key for each bucket of a number."""

    type: Literal["bucketized"]
    boundaries: tuple[float, ...] | Quantiles = Field(
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
    of: tuple[str, ...] = Field(description="Names of two features or more, none of them numeric or crossed.")
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
    words: Literal[True] = Field(default=True, description="Words are runs of letters and digits, in small letters.")
    ngrams: tuple[Count, Count] = Field(default=(1, 1), description="Fewest and most words of a run that has a key.")
    hash: Count | None = Field(default=None, description="At most so many keys: words are hashed to them.")

    @field_validator("ngrams")
    @classmethod
    def _rise(cls, given: tuple[int, int]) -> tuple[int, int]:
        if given[0] > given[1]:
            raise ValueError(f"ngrams [{given[0]}, {given[1]}] has the greater number first; turn them round")
        return given


Feature: TypeAlias = Annotated[Categorical | Numeric | Bucketized | Crossed | Text, Field(discriminator="type")]


class Features(RootModel[dict[str, Feature]]):
    """Features in the order of their names, which is that of the network's inputs. Those with keys are slots; numeric ones are numbers."""

    model_config = {"frozen": True}

    @field_validator("root")
    @classmethod
    def _by_name(cls, given: dict[str, Feature]) -> dict[str, Feature]:
        # Helm does not keep the order of a map: by name it is the same for every reader.
        return dict(sorted(given.items()))

    @model_validator(mode="after")
    def _consistent(self) -> "Features":
        if not self.slots:
            raise ValueError("features has none with keys; give at least one that is categorical, bucketized or text")
        SlotList(tuple(self.root))  # refuses a name that cannot stand in a line
        for name, feature in self.root.items():
            if isinstance(feature, Crossed):
                self._check_cross(name, feature)
        return self

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
        """Names of the features that have keys."""
        return tuple(name for name, each in self.root.items() if not isinstance(each, Numeric))

    @property
    def averaged(self) -> tuple[str, ...]:
        """Names of the slots whose vectors are averaged, not summed."""
        given = self.root.items()
        return tuple(name for name, each in given if isinstance(each, Categorical) and each.pooling == "mean")

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the features that are numbers."""
        return tuple(name for name, each in self.root.items() if isinstance(each, Numeric))

    def columns(self) -> Iterator[tuple[str, str]]:
        """(feature, column) of every feature that reads one."""
        for name, each in self.root.items():
            if not isinstance(each, Crossed):
                yield name, each.column or name

    def check_columns(self, known: Collection[str]) -> None:
        """Raises ValueError for a feature of a column that the data lacks; the sentence names those that it has."""
        for name, column in self.columns():
            if column not in known:
                raise ValueError(
                    f"features.{name} reads the column {column!r}, which the data lacks; it has {', '.join(known)}"
                )

    def without_statistics(self) -> "Features":
        """The same columns, read for nothing that needs statistics."""
        return Features({name: _without_statistics(each) for name, each in self.root.items()})

    @property
    def needs_statistics(self) -> tuple[str, ...]:
        """Names of the features that cannot be computed without the statistics of the data."""
        return tuple(name for name, each in self.root.items() if _needs_statistics(each))


def input_of(data: Data, features: Features | None) -> ModelInput:
    """What the network gets: the slots of `data`, or what `features` makes of its columns."""
    if features is None:
        assert data.slots is not None
        return ModelInput(data.slots)
    definition = features.model_dump_json(by_alias=True)
    return ModelInput(features.slots, features.averaged, features.numeric, definition)


def check_features(data: Data, features: Features | None, model: Model) -> None:
    """Raises ValueError where `features` does not go with the rest of the values file."""
    if features is None:
        if data.format != "clicks":
            raise ValueError(f"features is missing; say what the columns of {data.format} rows mean to the network")
        return
    if data.format == "clicks":
        raise ValueError("features is for rows of columns; with data.format clicks, data.slots names the features")
    if model.sparse_dim is not None:
        raise ValueError("model.sparseDim is for data.format clicks; bound the keys of a feature by its `hash`")
    if data.columns is not None:
        features.check_columns(data.columns)
    for name, column in features.columns():
        if column in (data.label, data.shows):
            raise ValueError(f"features.{name} reads {column!r}, which says what was clicked: no request will have it")


def _without_statistics(feature: Feature) -> Feature:
    if isinstance(feature, Categorical) and isinstance(feature.vocabulary, TopValues):
        return feature.model_copy(update={"vocabulary": None})
    if isinstance(feature, Bucketized) and isinstance(feature.boundaries, Quantiles):
        return feature.model_copy(update={"boundaries": (0.0,)})
    return feature.model_copy(update={"transform": (), "missing": 0.0}) if isinstance(feature, Numeric) else feature


def _needs_statistics(feature: Feature) -> bool:
    if isinstance(feature, Categorical):
        return isinstance(feature.vocabulary, TopValues)
    if isinstance(feature, Bucketized):
        return isinstance(feature.boundaries, Quantiles)
    if isinstance(feature, Numeric):
        return feature.missing is None or any(step in _NEEDS_STATISTICS for step in feature.transform)
    return False
