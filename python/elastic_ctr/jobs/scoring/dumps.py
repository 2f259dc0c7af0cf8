"""Columns that show how a row was scored, slot by slot: for finding the reasons of a prediction, not for speed."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from elastic_ctr.formats.keys import PADDING_KEY, keys_of
from elastic_ctr.jobs.scoring.records import Texts
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema

Dump = Literal["keys", "pooled"]


def dump_names(dumps: Sequence[Dump], schema: Schema) -> tuple[str, ...]:
    """Return `keys.<slot>` and `pooled.<slot>` in the order of slots; with the latter also `number.<name>` of the network's numbers."""
    names = [f"{dump}.{slot}" for dump in dumps for slot in schema.slots]
    if "pooled" in dumps and schema.transformer is not None:
        names += [f"number.{name}" for name in schema.transformer.numbers]
    return tuple(names)


def dumped(dumps: Sequence[Dump], instances: Instances, sparse_dim: int | None, pooled: Floats) -> Texts:
    """Return the texts of those columns. `pooled` is f32 [rows, slots * dim]. Numbers in a text are separated by blanks."""
    columns: list[Sequence[str]] = []
    slots = len(instances.lengths) // instances.rows if instances.rows else 0
    for dump in dumps:
        columns += _keys(instances, sparse_dim, slots) if dump == "keys" else _values(pooled, slots)
    if "pooled" in dumps and instances.numbers is not None:
        columns += [[f"{number:.9g}" for number in column] for column in instances.numbers.T.tolist()]
    return tuple(columns)


def _keys(instances: Instances, sparse_dim: int | None, slots: int) -> list[list[str]]:
    """Return the keys by column and row, without the padding key."""
    keys = keys_of(instances.feasigns, sparse_dim).tolist()
    ends = np.cumsum(instances.lengths)
    places = zip((ends - instances.lengths).tolist(), ends.tolist(), strict=True)
    texts = [" ".join(str(key) for key in keys[begin:end] if key != PADDING_KEY) for begin, end in places]
    return [texts[slot::slots] for slot in range(slots)]


def _values(pooled: Floats, slots: int) -> list[list[str]]:
    rows = pooled.reshape(len(pooled), slots, -1)
    return [[" ".join(f"{value:.9g}" for value in row) for row in rows[:, slot].tolist()] for slot in range(slots)]
