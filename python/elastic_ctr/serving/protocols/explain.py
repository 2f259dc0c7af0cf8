"""`POST /v1/models/NAME:explain`: what each feature of an instance adds to its probability, in the shape of KServe's V1 protocol.

    {"instances": [{"user": "u1", "price": 3.2}, …]}      rows of columns, or feature lines as text: "17:0 5:7"
    {"explanations": [{"probability": 0.07, "features": [
        {"feature": "user", "contribution": 0.02, "without": 0.05, "keys": [{"key": "1743…", "known": true}]},
        {"feature": "price", "contribution": -0.01, "without": 0.08, "number": 1.4, "missing": 0.0}]}], "model_version": "1786000000"}

`without` is the probability of the same instance without the feature: without its keys, or with the number that stands for a
missing one. `contribution` is what that takes away, `probability - without`. Contributions do not add up to the probability: features act
together, and a crossed feature is one of its own. A key is known if the version has it; its values are zeros otherwise.

Everything is one request of as many instances: the instance, one for each feature that it has, and one for each key alone,
which tells whether the version knows the key. So all of it is answered by one version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

from elastic_ctr.features.keys import Keys, keys_of
from elastic_ctr.serving.batching.instances import MAX_FEASIGNS, Floats, Instances, Lengths, too_many_feasigns
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import enough_instances, fields, items, json_object
from elastic_ctr.serving.protocols.open_inference import instances_of_lines
from elastic_ctr.serving.protocols.rows_json import parse_rows
from elastic_ctr.serving.request_error import RequestError

MOST_VARIANTS = 10_000
"""A request of a few bytes a key becomes an instance a key: an explanation is for a person to read."""


class _Given(NamedTuple):
    """One instance: its feasigns by slot, how many each slot has, and its numbers."""

    feasigns: Keys
    lengths: Lengths
    numbers: Floats

    @property
    def present(self) -> Lengths:
        return np.flatnonzero(self.lengths)

    @property
    def rows(self) -> int:
        """Of its variants."""
        return 1 + len(self.present) + len(self.numbers) + len(self.feasigns)


class Explanation:
    """A request, read anew for every schema that it may meet."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._known: list[Lengths] = []
        self._given: list[_Given] = []
        self._schema: Schema | None = None

    def instances(self, schema: Schema, max_instances: int) -> Instances:
        """All variants. Raises RequestError."""
        read = self._read(schema, max_instances)
        self._schema, self._given = schema, list(_split(read))
        self._known.clear()
        rows = sum(each.rows for each in self._given)
        most = min(
            max_instances, MOST_VARIANTS, MAX_FEASIGNS // len(schema.slots) if len(schema.slots) else MOST_VARIANTS
        )
        if rows > most:
            raise RequestError(
                413,
                f"the explanation takes {rows} instances, one for each feature and each key of those given; {most} are allowed in "
                "one request, send fewer",
            )
        feasigns = sum((each.rows - len(each.feasigns) + 1) * len(each.feasigns) for each in self._given)
        if feasigns > MAX_FEASIGNS:
            raise too_many_feasigns(feasigns)
        missing = _missing(schema)
        return Instances(
            np.concatenate([_feasigns(each) for each in self._given]),
            np.concatenate([_lengths(each) for each in self._given]),
            rows,
            ignored=read.ignored,
            known=self._known,
            numbers=None if read.numbers is None else np.concatenate([_numbers(each, missing) for each in self._given]),
        )

    def _read(self, schema: Schema, max_instances: int) -> Instances:
        if schema.transformer is not None:
            return parse_rows(self._body, schema, max_instances)
        lines = items(fields(json_object(self._body), "", ("instances",), None)["instances"], "instances")
        enough_instances(len(lines), max_instances, "instances")
        return instances_of_lines(lines, schema.slots, "instances")

    def answer(self, probabilities: Floats, version: int, sparse_dim: int | None) -> bytes:
        """From the probabilities of the variants, in their order."""
        # The shortest text that is the same float32, as answers of predictions have it.
        scores = [float(str(each)) for each in np.asarray(probabilities, np.float32)]
        known = np.concatenate(self._known) if self._known else np.zeros(len(scores), np.int64)
        found, end = [], 0
        for given in self._given:
            begin, end = end, end + given.rows
            features = self._features(given, scores[begin:end], known[begin:end], sparse_dim)
            found.append({"probability": scores[begin], "features": features})
        return orjson.dumps({"explanations": found, "model_version": str(version)})

    def _features(
        self, given: _Given, scores: list[float], known: Lengths, sparse_dim: int | None
    ) -> list[dict[str, Any]]:
        assert self._schema is not None
        full, without = scores[0], iter(scores[1:])
        singles = zip(
            keys_of(given.feasigns, sparse_dim).tolist(), known[-len(given.feasigns) :].tolist(), strict=False
        )
        features: list[dict[str, Any]] = []
        for name, length in zip(self._schema.slots.names, given.lengths.tolist(), strict=True):
            score = next(without) if length else full
            keys = [{"key": str(key), "known": bool(knows)} for _, (key, knows) in zip(range(length), singles)]  # noqa: B905
            features.append({"feature": name, "contribution": full - score, "without": score, "keys": keys})
        names = () if self._schema.transformer is None else self._schema.transformer.numbers
        for name, number, default in zip(names, given.numbers.tolist(), _missing(self._schema).tolist(), strict=True):
            score = next(without)
            features.append(
                {"feature": name, "contribution": full - score, "without": score, "number": number, "missing": default}
            )
        return features


def _missing(schema: Schema) -> Floats:
    """The value of each number where its column is missing."""
    return np.empty(0, np.float32) if schema.transformer is None else schema.transformer.program.missing


def _split(read: Instances) -> Iterator[_Given]:
    for row in range(read.rows):
        one = read.part(row, row + 1)
        yield _Given(one.feasigns, one.lengths, np.empty(0, np.float32) if one.numbers is None else one.numbers[0])


# The variants: the instance; without each slot that it has; with each number missing; each key alone.


def _lengths(given: _Given) -> Lengths:
    without = np.tile(given.lengths, (len(given.present), 1))
    without[np.arange(len(given.present)), given.present] = 0
    alone = np.zeros((len(given.feasigns), len(given.lengths)), np.int64)
    alone[np.arange(len(given.feasigns)), _slot_of(given)] = 1
    same = np.tile(given.lengths, (len(given.numbers), 1))
    return np.concatenate([given.lengths, without.reshape(-1), same.reshape(-1), alone.reshape(-1)])


def _slot_of(given: _Given) -> Lengths:
    """Of each feasign."""
    return np.repeat(np.arange(len(given.lengths)), given.lengths)


def _feasigns(given: _Given) -> Keys:
    slot_of = _slot_of(given)
    without = [given.feasigns[slot_of != slot] for slot in given.present]
    return np.concatenate([given.feasigns, *without, np.tile(given.feasigns, len(given.numbers)), given.feasigns])


def _numbers(given: _Given, missing: Floats) -> Floats:
    found = np.tile(given.numbers, (given.rows, 1))
    first = 1 + len(given.present)
    for place, default in enumerate(missing):
        found[first + place, place] = default
    return found
