"""From a feasign to the key of the table, its partition and its shard.

Trainer, parameter server, builder and serving must agree on every function here: a change needs a new model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

PADDING_KEY = 0
"""Stands for "no feature": never stored, never trained, served as zeros."""


def key_of(feasign: int, sparse_dim: int | None) -> int:
    """Return the key of a feasign (0 to 2^64-1): itself, or its remainder if the model has a `sparseDim`."""
    return feasign if sparse_dim is None else feasign % sparse_dim


def keys_of(feasigns: Keys, sparse_dim: int | None) -> Keys:
    """`key_of` for an array of u64; exact up to 2^64-1."""
    return feasigns if sparse_dim is None else feasigns % np.uint64(sparse_dim)


def partitions_of(keys: Keys, partitions: int) -> Keys:
    """Return the partition of each key; `partitions` is Paddle's `shard_num`, fixed for a model's life."""
    return keys % np.uint64(partitions)


def shard_of(partition: int, shards: int) -> int:
    """Return the shard of a partition. `shards` may change at any time; whole partitions move then."""
    return partition % shards
