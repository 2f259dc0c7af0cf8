"""The canary of a worker: the rule by which the candidate gets requests, and its pause after a failure."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms.xxh3 import GAMMA, mixed
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]

_RESTS_SECONDS = 5.0


class CanaryRule(NamedTuple):
    """A share of the requests, the same ones as long as the share is the same.

    A request is chosen by a hash of its first instance's keys in the slot `feature`, or in all slots if `feature` is empty or the
    instance has no key there. Every worker of every pod makes the same choice. `share`: 0 to 1.
    """

    share: float
    feature: str = ""

    def chosen(self, instances: Instances, slots: tuple[str, ...], first_rows: npt.NDArray[np.int64]) -> Flags:
        """Return bool [requests], true if the candidate answers the request with that first row. `slots` are those of `instances`."""
        if instances.shared is not None:
            # A user is chosen alike, whether the request shares the user's keys or repeats them.
            firsts = np.zeros(instances.rows, np.bool_)
            firsts[first_rows] = True
            instances, first_rows = instances.only(firsts).unshared(), np.arange(len(first_rows))
        width = len(slots)
        ends = np.concatenate(([0], np.cumsum(instances.lengths)))
        begin, end = ends[first_rows * width], ends[(first_rows + 1) * width]
        if self.feature in slots:
            cells = first_rows * width + slots.index(self.feature)
            has = ends[cells] < ends[cells + 1]
            begin, end = np.where(has, ends[cells], begin), np.where(has, ends[cells + 1], end)
        words = mixed(instances.feasigns + GAMMA)
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
        # The hashes are summed, with overflow, so that the order of a slot's keys does not matter.
        hashes = mixed(sums[end] - sums[begin] + GAMMA)
        flags: Flags = hashes.astype(np.float64) < self.share * 2.0**64
        return flags


NO_CANARY = CanaryRule(0)


class CanarySwitch:
    """`version` is the candidate while it answers its share. It gets no requests for some seconds after it failed or was slow."""

    def __init__(self, rule: CanaryRule) -> None:
        self.rule = rule
        self.version: int | None = None
        # A time of time.monotonic.
        self._rests_until = 0.0

    @property
    def asked(self) -> int | None:
        """The candidate, or None during its pause."""
        return None if time.monotonic() < self._rests_until else self.version

    def version_for(self, instances: Instances, schema: Schema) -> int | None:
        """Return the candidate if the rule chooses this request, else None."""
        candidate = self.asked
        if candidate is None or not instances.rows:
            return None
        return candidate if self.rule.chosen(instances, schema.slots.names, np.zeros(1, np.int64))[0] else None

    def rest(self, version: int, failed: BaseException) -> None:
        """Begin the candidate's pause, if `version`, which has failed or been slow, is the candidate."""
        if version == self.asked:
            self._rests_until = time.monotonic() + _RESTS_SECONDS
            reason = str(failed) or type(failed).__name__
            log.warning("candidate %d is not asked for %g s: %s", version, _RESTS_SECONDS, reason)
