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

from elastic_ctr.features.keys import Keys, key_of
from elastic_ctr.serving.batching.instances import MAX_FEASIGNS, Floats, Instances, Lengths, too_many_feasigns
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import enough_instances, fields, items, json_object
from elastic_ctr.serving.protocols.open_inference import instances_of_lines
from elastic_ctr.serving.protocols.rows_json import parse_rows
from elastic_ctr.serving.request_error import RequestError


class _Given(NamedTuple):
    """One instance: the feasigns of each slot, and the numbers."""

    slots: list[Keys]
    numbers: Floats

    @property
    def present(self) -> list[int]:
        return [slot for slot, feasigns in enumerate(self.slots) if len(feasigns)]

    @property
    def variants(self) -> int:
        return 1 + len(self.present) + len(self.numbers) + sum(map(len, self.slots))


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
        self._schema, self._given = schema, list(_split(read, len(schema.slots)))
        self._known.clear()
        rows = sum(each.variants for each in self._given)
        if rows > max_instances:
            raise RequestError(
                413,
                f"the explanation takes {rows} instances, one for each feature and each key of those given; {max_instances} are "
                "allowed in one request (maxInstances), send fewer",
            )
        feasigns = sum((2 + len(each.present)) * sum(map(len, each.slots)) for each in self._given)
        if feasigns > MAX_FEASIGNS:
            raise too_many_feasigns(feasigns)
        missing = _missing(schema)
        variants = [variant for each in self._given for variant in _variants(each, missing)]
        return Instances(
            np.concatenate([np.empty(0, np.uint64), *(keys for variant in variants for keys in variant.slots)]),
            np.array([len(keys) for variant in variants for keys in variant.slots], np.int64),
            rows,
            ignored=read.ignored,
            known=self._known,
            numbers=None if read.numbers is None else np.stack([variant.numbers for variant in variants]),
        )

    def _read(self, schema: Schema, max_instances: int) -> Instances:
        if schema.transformer is not None:
            return parse_rows(self._body, schema, max_instances)
        lines = items(fields(json_object(self._body), "", ("instances",), None)["instances"], "instances")
        enough_instances(len(lines), max_instances, "instances")
        return instances_of_lines(lines, schema.slots, "instances")

    def answer(self, probabilities: Floats, version: int, sparse_dim: int | None) -> bytes:
        """Of the variants in their order."""
        assert self._schema is not None
        # The shortest text that is the same float32, as answers of predictions have it.
        scores = [float(str(each)) for each in np.asarray(probabilities, np.float32)]
        known = np.concatenate(self._known) if self._known else np.zeros(len(scores), np.int64)
        missing, found, at = _missing(self._schema), [], 0
        for given in self._given:
            full, at = scores[at], at + 1
            features = []
            single = at + len(given.present) + len(given.numbers)
            for slot, feasigns in enumerate(given.slots):
                without = full
                if len(feasigns):
                    without, at = scores[at], at + 1
                keys = [
                    {"key": str(key_of(feasign, sparse_dim)), "known": bool(known[single + place])}
                    for place, feasign in enumerate(feasigns.tolist())
                ]
                single += len(keys)
                features.append(_feature(self._schema.slots.names[slot], full, without) | {"keys": keys})
            for place, number in enumerate(given.numbers.tolist()):
                assert self._schema.transformer is not None
                name = self._schema.transformer.numbers[place]
                features.append(_feature(name, full, scores[at]) | {"number": number, "missing": float(missing[place])})
                at += 1
            at = single
            found.append({"probability": full, "features": features})
        return orjson.dumps({"explanations": found, "model_version": str(version)})


def _feature(name: str, full: float, without: float) -> dict[str, Any]:
    return {"feature": name, "contribution": full - without, "without": without}


def _missing(schema: Schema) -> Floats:
    """What each number is where its column is missing."""
    return np.empty(0, np.float32) if schema.transformer is None else schema.transformer.program.missing


def _split(read: Instances, slots: int) -> Iterator[_Given]:
    ends = np.cumsum(read.lengths)
    parts = [read.feasigns[end - length : end] for end, length in zip(ends, read.lengths, strict=True)]
    for row in range(read.rows):
        numbers = np.empty(0, np.float32) if read.numbers is None else read.numbers[row]
        yield _Given(parts[row * slots : (row + 1) * slots], numbers)


def _variants(given: _Given, missing: Floats) -> Iterator[_Given]:
    """The instance; without each slot that it has; with each number missing; each key alone."""
    nothing: list[Keys] = [np.empty(0, np.uint64)] * len(given.slots)
    yield given
    for slot in given.present:
        yield given._replace(slots=[*given.slots[:slot], nothing[slot], *given.slots[slot + 1 :]])
    for place in range(len(given.numbers)):
        numbers = given.numbers.copy()
        numbers[place] = missing[place]
        yield given._replace(numbers=numbers)
    for slot, feasigns in enumerate(given.slots):
        for place in range(len(feasigns)):
            yield given._replace(slots=[*nothing[:slot], feasigns[place : place + 1], *nothing[slot + 1 :]])
