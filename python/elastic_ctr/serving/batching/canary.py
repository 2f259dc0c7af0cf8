"""Which requests the candidate answers: a share of them, the same ones as long as the share is the same.

A request is chosen by a hash of the keys that its first instance has of one slot, or of all slots where it has none of that. Every worker of
every pod chooses alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.keys import Keys
from elastic_ctr.serving.batching.instances import Instances

Flags = npt.NDArray[np.bool_]


class CanaryRule(NamedTuple):
    """`share` of the requests, 0 to 1; `feature`: the slot whose keys choose; empty: all slots."""

    share: float
    feature: str = ""

    def chosen(self, instances: Instances, slots: tuple[str, ...], first_rows: npt.NDArray[np.int64]) -> Flags:
        """For each request, given by its first row, whether the candidate answers it. `slots` are those of `instances`."""
        width = len(slots)
        ends = np.concatenate(([0], np.cumsum(instances.lengths)))
        begin, end = ends[first_rows * width], ends[(first_rows + 1) * width]
        if self.feature in slots:
            cells = first_rows * width + slots.index(self.feature)
            has = ends[cells] < ends[cells + 1]
            begin, end = np.where(has, ends[cells], begin), np.where(has, ends[cells + 1], end)
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(instances.feasigns), dtype=np.uint64)))
        # Wraps round, as sums of hashes may. A sum, so that the order of a slot's keys does not choose.
        hashes = _mixed(sums[end] - sums[begin])
        flags: Flags = hashes.astype(np.float64) < self.share * 2.0**64
        return flags


NO_CANARY = CanaryRule(0)


def _mixed(keys: Keys) -> Keys:
    """u64 whose bits depend on all bits of each key: the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Keys = mixed ^ (mixed >> np.uint64(31))
    return result
