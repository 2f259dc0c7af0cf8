"""Rows whose probability is NaN: they are refused with a sentence, and the other rows of their block are scored."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.line import Reason
from elastic_ctr.jobs.scoring.records import Records, RefusedRecord
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema


class Where(NamedTuple):
    """The position of a block in a file: the rows before it, counted from the byte `start` on."""

    path: str
    start: int
    rows: int


def split_unscored(records: Records, probabilities: Floats, where: Where, schema: Schema) -> tuple[Records, Floats]:
    """Return the records, of which those without a probability are refused, and the probabilities of the others."""
    scored = ~np.isnan(probabilities)
    if scored.all():
        return records, probabilities
    refused = _refusals(records, scored, where, schema)
    kept = replace(
        records,
        instances=records.instances.only(scored),
        shows=records.shows[scored],
        clicks=records.clicks[scored],
        places=records.places[scored],
        refused=[*records.refused, *refused],
        copied=tuple([text for text, keep in zip(texts, scored, strict=True) if keep] for texts in records.copied),
    )
    return kept, probabilities[scored]


def _refusals(records: Records, scored: npt.NDArray[np.bool_], where: Where, schema: Schema) -> Iterator[RefusedRecord]:
    behind = f" behind byte {where.start}" if where.start else ""
    for row in np.flatnonzero(~scored).tolist():
        place = int(records.places[row])
        detail = (
            f"row {where.rows + place + 1}{behind} of {where.path} has no probability: the network answers what is no number"
            f"{_largest(records.instances, row, schema)}."
        )
        yield RefusedRecord(place, Reason.NO_PROBABILITY, detail)


def _largest(instances: Instances, row: int, schema: Schema) -> str:
    """Return the largest input of the network as the end of a sentence, because it may be the reason."""
    if instances.numbers is None or schema.transformer is None:
        return "; a value of the version is damaged"
    numbers = instances.numbers[row]
    place = int(np.abs(numbers).argmax())
    return (
        f"; the largest number that it got is {numbers[place]:g}, of the feature {schema.transformer.numbers[place]!r}"
    )
