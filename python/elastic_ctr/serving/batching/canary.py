"""The canary of a worker: which requests the candidate answers, and whether it is asked now."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.splitmix import GAMMA, mixed
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]

_RESTS_SECONDS = 5.0


class CanaryRule(NamedTuple):
    """A share of the requests, the same ones as long as the share is the same.

    A request is chosen by a hash of the keys that its first instance has of the slot `feature`, or of all slots where that is empty or it
    has none of it. Every worker of every pod chooses alike. `share`: 0 to 1.
    """

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
        words = mixed(instances.feasigns + GAMMA)
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
        # Wraps round, as sums of hashes may. A sum, so that the order of a slot's keys does not choose.
        hashes = mixed(sums[end] - sums[begin] + GAMMA)
        flags: Flags = hashes.astype(np.float64) < self.share * 2.0**64
        return flags


NO_CANARY = CanaryRule(0)


class Canary:
    """`version`: the candidate, while it answers its share. It rests for some seconds after it has failed or been slow."""

    def __init__(self, rule: CanaryRule) -> None:
        self.rule = rule
        self.version: int | None = None
        # On the clock of time.monotonic.
        self._rests_until = 0.0

    @property
    def asked(self) -> int | None:
        """The candidate, unless it rests."""
        return None if time.monotonic() < self._rests_until else self.version

    def version_for(self, instances: Instances, schema: Schema) -> int | None:
        """The candidate where the rule chooses this request, else None."""
        candidate = self.asked
        if candidate is None or not instances.rows:
            return None
        return candidate if self.rule.chosen(instances, schema.slots.names, np.zeros(1, np.int64))[0] else None

    def rest(self, version: int, failed: BaseException) -> None:
        """`version` has failed or been slow, which matters if it is the candidate."""
        if version == self.asked:
            self._rests_until = time.monotonic() + _RESTS_SECONDS
            reason = str(failed) or type(failed).__name__
            log.warning("candidate %d is not asked for %g s: %s", version, _RESTS_SECONDS, reason)
