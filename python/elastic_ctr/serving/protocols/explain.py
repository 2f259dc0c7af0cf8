"""`POST /v1/models/NAME:explain`: what each feature of an instance adds to its probability, in the shape of KServe's V1 protocol.

    {"instances": [{"user": "u1", "price": 3.2}, …]}      rows of columns, or feature lines as text: "17:0 5:7"
    {"explanations": [{"probability": 0.07, "features": [
        {"feature": "user", "contribution": 0.02, "without": 0.05, "against": "usual values", "keys": [{"key": "1743…", "known": true}]},
        {"feature": "price", "contribution": -0.01, "without": 0.08, "against": "missing", "number": 1.4, "missing": 0.0}]}],
     "model_version": "1786000000"}

Instances may be written with a shared part and candidates, as for predictions: {"shared": {"user": "u1"}, "candidates": [{"price": 3.2}, …]}.

`without` is the probability of the same instance without the feature's information: the mean over the feature's usual values, weighted
by their shares (`usual_values`). So a value is compared with other values that occur; if every row has the feature, training has never
seen an instance without it. A feature without usual values is removed: its keys are left out, or its number becomes that of a missing
value. `contribution` is `probability - without`. Contributions do not add up to the probability: features act together, and a crossed
feature is one of its own. A key is known if the version has it; its values are zeros otherwise.

All variants are instances of one request, so one version answers them: the instance, the variants of each feature, and one instance
for each key alone, whose lookup shows if the version knows the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.formats.keys import Keys, keys_of
from elastic_ctr.serving.batching.instances import (
    MAX_FEASIGNS,
    Floats,
    Instances,
    Lengths,
    too_many_feasigns,
    with_shared,
)
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import given_rows, json_object
from elastic_ctr.serving.protocols.open_inference import instances_of_lines
from elastic_ctr.serving.protocols.rows_json import parse_rows
from elastic_ctr.serving.protocols.usual_values import UsualValues, usual_values
from elastic_ctr.serving.request_error import BadRequest, NoProbability, RequestError

USUAL, MISSING = "usual values", "missing"
"""What `without` holds the feature's value against."""

MOST_VARIANTS = 10_000
"""A request of a few bytes a key becomes an instance a key: an explanation is for a person to read."""


_NO_KEYS: Keys = np.empty(0, np.uint64)
_ONE = np.ones(1)


@dataclass(frozen=True)
class _Swap:
    """A feature of an instance, and the values that replace its own in turn: keys of its slot, or its number; each with its share."""

    place: int
    shares: npt.NDArray[np.float64]
    keys: list[Keys] | None = None
    numbers: list[float] | None = None
    is_usual: bool = False


@dataclass(frozen=True)
class _Given:
    """One instance: its keys by slot, its numbers, and its swaps."""

    slots: list[Keys]
    numbers: Floats
    swaps: list[_Swap]

    @property
    def feasigns(self) -> Keys:
        return np.concatenate([*self.slots, _NO_KEYS])

    @property
    def swapped(self) -> int:
        """The number of variants that are whole instances."""
        return 1 + sum(len(swap.shares) for swap in self.swaps)

    @property
    def rows(self) -> int:
        """The number of rows of all variants."""
        return self.swapped + sum(map(len, self.slots))

    def variants(self) -> Iterator[tuple[list[Keys], Floats]]:
        """Yield the instance, the instance with each swap of each feature, and each key alone."""
        yield self.slots, self.numbers
        for swap in self.swaps:
            for keys in swap.keys or ():
                yield [*self.slots[: swap.place], keys, *self.slots[swap.place + 1 :]], self.numbers
            for number in swap.numbers or ():
                numbers = self.numbers.copy()
                numbers[swap.place] = number
                yield self.slots, numbers
        nothing = [_NO_KEYS] * len(self.slots)
        for slot, keys in enumerate(self.slots):
            for at in range(len(keys)):
                yield [*nothing[:slot], keys[at : at + 1], *nothing[slot + 1 :]], self.numbers


class Explanation:
    """A request, which is read anew for every schema of a version that may answer it."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._known: list[Lengths] = []
        self._given: list[_Given] = []
        self._schema: Schema | None = None

    def instances(self, schema: Schema, max_instances: int) -> Instances:
        """Return all variants. Raises RequestError."""
        read = self._read(schema, max_instances)
        if read.top:
            raise BadRequest("top is not known here; an explanation has all candidates")
        if read.shared is not None:
            if (given := len(read.feasigns) + read.rows * len(read.shared.feasigns)) > MAX_FEASIGNS:
                raise too_many_feasigns(given)
            read = read.unshared()
        usual = {} if schema.transformer is None else usual_values(schema.document, schema.transformer)
        self._schema, self._given = schema, list(_split(read, schema, usual))
        self._known.clear()
        rows = sum(each.rows for each in self._given)
        most = min(
            max_instances, MOST_VARIANTS, MAX_FEASIGNS // len(schema.slots) if len(schema.slots) else MOST_VARIANTS
        )
        if rows > most:
            raise RequestError(
                413,
                f"the explanation takes {rows} instances, one for each usual value of each feature and each key of those given; {most} are "
                "allowed in one request, send fewer",
            )
        # A usual value has one key.
        feasigns = sum(each.swapped * (len(each.feasigns) + 1) + len(each.feasigns) for each in self._given)
        if feasigns > MAX_FEASIGNS:
            raise too_many_feasigns(feasigns)
        variants = [variant for each in self._given for variant in each.variants()]
        # numpy concatenates variant by variant, because one call for all would keep the GIL for long.
        return Instances(
            np.concatenate([np.concatenate([*slots, _NO_KEYS]) for slots, _ in variants]),
            np.array([len(keys) for slots, _ in variants for keys in slots], np.int64),
            rows,
            ignored=read.ignored,
            known=self._known,
            numbers=None if read.numbers is None else np.stack([numbers for _, numbers in variants]),
        )

    def _read(self, schema: Schema, max_instances: int) -> Instances:
        if schema.transformer is not None:
            return parse_rows(self._body, schema, max_instances)
        given = given_rows(json_object(self._body), max_instances)
        own = instances_of_lines(given.rows, schema.slots, given.name)
        if not given.has_shared:
            return own
        shared = instances_of_lines([given.shared], schema.slots, "shared")
        return replace(with_shared(own, shared, schema.slots.names), top=given.top)

    def refusal(self, given: RequestError) -> RequestError:
        """Return the refusal with the request's instance in place of the variant's row."""
        if not isinstance(given, NoProbability):
            return given
        ends = np.cumsum([each.rows for each in self._given])
        return NoProbability(int(np.searchsorted(ends, given.row, "right")), given.version)

    def answer(self, probabilities: Floats, version: int, sparse_dim: int | None) -> bytes:
        """Return the answer of the probabilities of the variants, in their order."""
        # Scores are written as the shortest text of the same float32, as in answers of predictions.
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
        full, at = scores[0], 1
        without: dict[tuple[bool, int], tuple[float, bool]] = {}
        for swap in given.swaps:
            of_swap = scores[at : at + len(swap.shares)]
            at += len(swap.shares)
            mean = of_swap[0] if len(of_swap) == 1 else float(swap.shares @ of_swap)
            without[swap.keys is None, swap.place] = mean, swap.is_usual
        singles = zip(keys_of(given.feasigns, sparse_dim).tolist(), known[given.swapped :].tolist(), strict=True)
        features: list[dict[str, Any]] = []
        for slot, name in enumerate(self._schema.slots.names):
            score, is_usual = without.get((False, slot), (full, False))
            keys = [{"key": str(key), "known": bool(knows)} for _, (key, knows) in zip(given.slots[slot], singles)]  # noqa: B905
            features.append(_feature(name, full, score, is_usual) | {"keys": keys})
        names = () if self._schema.transformer is None else self._schema.transformer.numbers
        for place, (name, number, default) in enumerate(
            zip(names, given.numbers.tolist(), _missing(self._schema).tolist(), strict=True)
        ):
            score, is_usual = without[True, place]
            features.append(_feature(name, full, score, is_usual) | {"number": number, "missing": default})
        return features


def _feature(name: str, full: float, without: float, is_usual: bool) -> dict[str, Any]:
    against = USUAL if is_usual else MISSING
    return {"feature": name, "contribution": full - without, "without": without, "against": against}


def _missing(schema: Schema) -> Floats:
    """Return f32 [numbers], the network's number for a missing column."""
    return np.empty(0, np.float32) if schema.transformer is None else schema.transformer.program.missing


def _split(read: Instances, schema: Schema, usual: dict[str, UsualValues]) -> Iterator[_Given]:
    missing = _missing(schema).tolist()
    names = () if schema.transformer is None else schema.transformer.numbers
    of_numbers = [
        _Swap(place, usual[name].shares, numbers=usual[name].numbers, is_usual=True)
        if name in usual
        else _Swap(place, _ONE, numbers=[missing[place]])
        for place, name in enumerate(names)
    ]
    of_slots = {
        slot: _Swap(slot, usual[name].shares, keys=usual[name].keys, is_usual=True)
        for slot, name in enumerate(schema.slots.names)
        if name in usual
    }
    for row in range(read.rows):
        one = read.part(row, row + 1)
        slots = np.split(one.feasigns, np.cumsum(one.lengths)[:-1])
        # A slot with neither usual values nor keys has nothing to remove.
        swaps = [
            of_slots.get(slot) or _Swap(slot, _ONE, keys=[_NO_KEYS])
            for slot, keys in enumerate(slots)
            if slot in of_slots or len(keys)
        ]
        numbers = np.empty(0, np.float32) if one.numbers is None else one.numbers[0]
        yield _Given(slots, numbers, [*swaps, *of_numbers])
