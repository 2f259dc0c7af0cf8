"""Compiles `features:` and the statistics of the data to the transformer that trainers and serving run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from elastic_ctr.config.features import (
    Bucketized,
    Categorical,
    Clip,
    Crossed,
    Feature,
    Features,
    Numeric,
    QuantileBoundaries,
    Round,
    Step,
    Text,
    TopValues,
    series_of_number,
)
from elastic_ctr.features.statistics.document import MOST_DEVIATIONS, NumberStatistics, Statistics, series_of
from elastic_ctr.features.transforms import formulas
from elastic_ctr.features.transforms import row_loop as t
from elastic_ctr.features.transforms.formulas import Texts
from elastic_ctr.features.transforms.row_loop import Program, Series
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.inputs import NO_WORDS, InputColumns, MissingWords, TextInput
from elastic_ctr.formats.keys import Keys
from elastic_ctr.formats.slots import SlotList

_SCALES = {"standardize": t.STANDARDIZE, "minMax": t.MIN_MAX}


class OtherStatistics(ValueError):
    """The statistics are of other columns than the features."""

    def __init__(self, feature: str, series: str, known: Iterable[str]) -> None:
        there = ", ".join(known) or "none"
        super().__init__(
            f"features.{feature} needs the statistics of {series}, and these are of {there}; analyze the data again"
        )


class NeedsStatistics(ValueError):
    """A feature cannot be computed without the statistics of the data."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"features.{feature} needs the statistics of the data; `elastic-ctr analyze` computes them")


def transformer_of(features: Features, statistics: Statistics | None, missing: MissingWords = NO_WORDS) -> Transformer:
    """Return the compiled transformer. Raises NeedsStatistics, OtherStatistics."""
    return _Compiler(features, statistics).compiled(missing)


def compiled_steps(steps: Iterable[Step], measured: NumberStatistics | None) -> list[tuple[float, float, float]]:
    """Return each step as the triple that `transformer.apply_step` takes. A scaling step needs `measured`."""
    found: list[tuple[float, float, float]] = []
    for step in steps:
        if isinstance(step, Clip):
            found.append((t.CLIP, *step.clip))
        elif isinstance(step, Round):
            found.append((t.ROUND, step.round, 0))
        elif step == "log1p":
            found.append((t.LOG1P, 0, 0))
        else:
            assert measured is not None
            pair = (measured.mean, measured.deviation) if step == "standardize" else (measured.min, measured.max)
            # The statistics of a column without any number have no mean, deviation or range.
            found.append((_SCALES[step], pair[0] or 0.0, pair[1] or 0.0))
    return found


class _Compiler:
    def __init__(self, features: Features, statistics: Statistics | None) -> None:
        self._features = features
        self._statistics = statistics
        self._texts: dict[TextInput, int] = {}
        self._numbers: dict[str, int] = {}
        self._slots = features.slots
        self._lines = np.zeros((len(self._slots), t.SLOT_WIDTH), np.int64)
        self._others = np.zeros(len(self._slots), np.uint64)
        self._vocabularies: list[Keys] = []
        self._boundaries: list[float] = []
        self._parts: list[int] = []
        self._steps: list[tuple[float, float, float]] = []
        self._step_ends = [0]
        self._missing: list[float] = []
        self._places: list[int] = []

    def compiled(self, missing: MissingWords) -> Transformer:
        for name, feature in self._features.root.items():
            if isinstance(feature, Numeric):
                self._add_number(name, feature)
            else:
                self._add_slot(name, feature, self._lines[self._slots.index(name)])
        prefixes = [name.encode() + b"\0" for name in self._slots]
        program = Program(
            np.frombuffer(bytearray(b"".join(prefixes)), np.uint8),
            np.cumsum([0, *map(len, prefixes)], dtype=np.int64),
            self._lines,
            # Crossed slots come last: they are computed from the keys of the others.
            np.argsort(self._lines[:, t.KIND] == t.OF_SLOTS, kind="stable").astype(np.int64),
            self._others,
            np.concatenate([*self._vocabularies, np.empty(0, np.uint64)]),
            np.array(self._boundaries, np.float64),
            np.array(self._parts, np.int64),
            np.array(self._places, np.int64),
            np.array(self._step_ends, np.int64),
            np.array(self._steps, np.float64).reshape(-1, t.STEP_WIDTH),
            np.array(self._missing, np.float32),
        )
        inputs = InputColumns(tuple(self._texts), tuple(self._numbers), missing)
        return Transformer(inputs, SlotList(self._slots), self._features.numeric, program)

    def _measured(self, name: str, series: str) -> NumberStatistics:
        if self._statistics is None:
            raise NeedsStatistics(name)
        if series not in self._statistics.numbers:
            raise OtherStatistics(name, series, self._statistics.numbers)
        return self._statistics.numbers[series]

    def _text(self, column: str, separator: str) -> int:
        return self._texts.setdefault(TextInput(column, separator), len(self._texts))

    def _number(self, column: str) -> int:
        return self._numbers.setdefault(column, len(self._numbers))

    def _add_number(self, name: str, feature: Numeric) -> None:
        before = feature.before_scaling
        series = series_of_number(feature.column or name, before)
        measured = self._measured(name, series) if feature.is_scaled or feature.missing is None else None
        steps: list[tuple[float, float, float]]
        if feature.transform is None:
            assert measured is not None
            steps = [(t.STANDARDIZE, *measured.typical), (t.CLIP, -MOST_DEVIATIONS, MOST_DEVIATIONS)]
        else:
            steps = compiled_steps(feature.transform, measured)
        self._places.append(self._number(feature.column or name))
        self._steps += steps
        self._step_ends.append(len(self._steps))
        if feature.missing is not None or feature.transform is None:
            # 0 is the mean of standardized numbers.
            self._missing.append(formulas.to_float32(feature.missing or 0.0))
            return
        assert measured is not None
        x = measured.mean or 0.0
        rest = np.array(steps[len(before) :], np.float64).reshape(-1, t.STEP_WIDTH)
        for place in range(len(rest)):
            x = t.apply_step(rest, place, x)
        self._missing.append(formulas.to_float32(x))

    def _add_slot(self, name: str, feature: Feature, line: t.Integers) -> None:
        line[t.SEPARATOR] = -1
        if isinstance(feature, Crossed):
            line[t.KIND] = t.OF_SLOTS
            line[t.PARTS] = len(self._parts)
            self._parts += [self._slots.index(part) for part in feature.of]
            line[t.PARTS_END] = len(self._parts)
        elif isinstance(feature, Bucketized):
            line[t.KIND], line[t.INPUT] = t.OF_BUCKET, self._number(feature.column or name)
            line[t.BOUNDARIES] = len(self._boundaries)
            self._boundaries += self._boundaries_of(name, feature)
            line[t.BOUNDARIES_END] = len(self._boundaries)
        elif isinstance(feature, Text):
            line[t.KIND], line[t.INPUT] = t.OF_WORDS, self._text(feature.column or name, "")
            line[t.LEAST], line[t.MOST] = feature.ngrams
        elif isinstance(feature, Categorical):
            if feature.round is not None:
                line[t.KIND], line[t.INPUT] = t.OF_NUMBER, self._number(feature.column or name)
                line[t.DIGITS] = feature.round
            else:
                line[t.KIND], line[t.INPUT] = t.OF_TEXT, self._text(feature.column or name, feature.separator or "")
                line[t.SEPARATOR] = ord(feature.separator) if feature.separator else -1
            if feature.vocabulary is not None:
                self._add_vocabulary(name, self._values_of(name, feature), line)
        line[t.HASH] = getattr(feature, "hash", None) or 0

    def _add_vocabulary(self, name: str, values: Sequence[str], line: t.Integers) -> None:
        # The range (0, 0) means no vocabulary, so the first vocabulary begins at 1.
        if not self._vocabularies:
            self._vocabularies.append(np.zeros(1, np.uint64))
        line[t.VOCABULARY] = sum(map(len, self._vocabularies))
        self._vocabularies.append(np.unique(formulas.keys_of_texts(name, Texts.of([each.encode() for each in values]))))
        line[t.VOCABULARY_END] = sum(map(len, self._vocabularies))
        # Values outside the vocabulary share the key of the empty text, which is no value itself.
        self._others[self._slots.index(name)] = formulas.keys_of_texts(name, Texts.of([b""]))[0]

    def _values_of(self, name: str, feature: Categorical) -> Sequence[str]:
        given = feature.vocabulary
        if isinstance(given, TopValues):
            if self._statistics is None:
                raise NeedsStatistics(name)
            series = series_of(TextInput(feature.column or name, feature.separator or ""))
            if series not in self._statistics.texts:
                raise OtherStatistics(name, series, self._statistics.texts)
            return [value for value, _ in self._statistics.texts[series].top[: given.top]]
        assert given is not None
        if feature.round is None:
            return given
        return [str(formulas.whole(float(value), feature.round)) for value in given]

    def _boundaries_of(self, name: str, feature: Bucketized) -> Sequence[float]:
        if not isinstance(feature.boundaries, QuantileBoundaries):
            return feature.boundaries
        measured, buckets = self._measured(name, feature.column or name), feature.boundaries.quantiles
        if not measured.quantiles:
            return [0.0]
        found = [measured.quantile(number / buckets) for number in range(1, buckets)]
        # If one number is frequent, several quantiles are equal; they make one boundary.
        return list(dict.fromkeys(found))


def measured_inputs(features: Features, missing: MissingWords = NO_WORDS) -> tuple[InputColumns, Series]:
    """Return the inputs of the statistics: every text and number column, and numbers after the steps that precede a scaling."""
    transformer = transformer_of(features.without_statistics(), None)
    read = transformer.inputs
    names = list(read.numbers)
    sources = list(range(len(names)))
    steps: list[list[tuple[float, float, float]]] = [[] for _ in names]
    limits = [math.inf] * len(names)
    for name, feature in features.root.items():
        if not isinstance(feature, Numeric):
            continue
        source = read.numbers.index(feature.column or name)
        limits[source] = min(limits[source], t.MOST_OF_COLUMN)
        before = feature.before_scaling
        series = series_of_number(feature.column or name, before)
        if series not in names:
            names.append(series)
            sources.append(source)
            steps.append(compiled_steps(before, None))
            limits.append(math.inf)
        if not feature.is_scaled:
            at = names.index(series)
            limits[at] = min(limits[at], t.MOST_OF_NETWORK)
    ends = np.cumsum([0, *map(len, steps)], dtype=np.int64)
    flat = np.array([each for of in steps for each in of], np.float64).reshape(-1, t.STEP_WIDTH)
    series_of_all = Series(np.array(sources, np.int64), ends, flat, np.array(limits, np.float64))
    return InputColumns(read.texts, tuple(names), missing), series_of_all
