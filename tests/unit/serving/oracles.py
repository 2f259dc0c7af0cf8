"""What the native code of serving must answer, in numpy."""

from __future__ import annotations

import numpy as np

from elastic_ctr.formats.keys import PADDING_KEY, keys_of
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats, UniqueKeys


def unique_keys(instances: Instances, sparse_dim: int | None) -> UniqueKeys:
    """What has to be looked up."""
    keys, places = np.unique(keys_of(instances.feasigns, sparse_dim), return_inverse=True)
    if len(keys) and keys[0] == PADDING_KEY:
        return UniqueKeys(keys[1:], places)
    return UniqueKeys(keys, places + 1)


def pooled(unique: UniqueKeys, values: Floats, instances: Instances, dim: int) -> Floats:
    """Sum the values of each slot's keys.

    Args:
        unique: of these instances.
        values: f32 [len(unique.keys), dim], zeros for a missing key.
        instances: their lengths say which feasign belongs to which slot.
        dim: floats a key.

    Returns:
        f32 [rows, slots * dim], C-contiguous. A key that appears twice in a slot counts twice, as in training.
    """
    segments = len(instances.lengths)
    width = segments // max(instances.rows, 1) * dim
    table = np.zeros((len(values) + 1, dim), dtype=np.float32)
    table[1:] = values
    gathered = table[unique.places]
    filled = np.flatnonzero(instances.lengths)
    if len(filled) == segments == len(gathered):
        return gathered.reshape(instances.rows, width)
    sums = np.zeros((segments, dim), dtype=np.float32)
    if len(filled):
        # An empty segment has no place in reduceat: it would be given its neighbour's first value.
        starts = (np.cumsum(instances.lengths) - instances.lengths)[filled]
        sums[filled] = np.add.reduceat(gathered, starts, axis=0)
    return sums.reshape(instances.rows, width)
