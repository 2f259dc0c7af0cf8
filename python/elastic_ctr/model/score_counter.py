"""What a dataset run has scored, counted while it runs.

Paddle calls this from each of its training threads. Counting in variables of the program would lose records: threads share a variable that
outlives a batch, and read, add and write it without a lock.
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.model.evaluation import BUCKETS, Histograms, bucket_of
from elastic_ctr.model.grouped_auc import NOTHING, GroupSample, bucket_in_group, hashed, merged, rows_of

# Rows are merged when there are so many more than may be kept.
_MERGED_AT = 4


class ScoreCounter:
    """Clicks and shows without click by bucket of the logit, of all records and, on request, of a sample of groups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self, group_rows: int = 0) -> None:
        """Forget what was counted. Groups are sampled to so many rows, 0: not at all. No run may be under way."""
        self._positives, self._negatives = np.zeros(BUCKETS), np.zeros(BUCKETS)
        self._group_rows = group_rows
        self._groups, self._pending, self._pending_rows = NOTHING, list[GroupSample](), 0
        self._failure: Exception | None = None

    def count(self, logits: Any, shows: Any, clicks: Any, keys: Any = None) -> None:
        """One batch, as tensors of Paddle: [n, 1] each. `keys`: of the slot that groups, with its level of detail.

        The first key of a record is its group; a record without one, or with the padding key 0, is in no group. What it raises would be
        lost in Paddle's thread, so `check` raises it.
        """
        try:
            self._count(logits, shows, clicks, keys)
        except Exception as failed:  # noqa: BLE001 (raised by `check`)
            self._failure = failed

    def check(self) -> None:
        """Raises what a batch of the run has raised: FloatingPointError of a logit that is not a number."""
        if self._failure is not None:
            raise self._failure

    def _count(self, logits: Any, shows: Any, clicks: Any, keys: Any) -> None:
        # Paddle's tensors convert to their own type alone.
        logit, show, click = (np.array(each).astype(np.float64).reshape(-1) for each in (logits, shows, clicks))
        if np.isnan(logit).any():
            raise FloatingPointError("a prediction is not a number")
        bucket = bucket_of(logit)
        positives = np.bincount(bucket, click, BUCKETS)
        negatives = np.bincount(bucket, show - click, BUCKETS)
        grouped = self._grouped(keys, bucket, click, show - click) if self._group_rows and keys is not None else None
        with self._lock:
            self._positives += positives
            self._negatives += negatives
            if grouped is not None:
                self._pending.append(grouped)
                self._pending_rows += len(grouped.rows)
                if self._pending_rows > _MERGED_AT * self._group_rows:
                    self._merge()

    def histograms(self) -> Histograms:
        """Of the run, up to now."""
        return self._positives.copy(), self._negatives.copy()

    def groups(self) -> GroupSample:
        with self._lock:
            self._merge()
            return self._groups

    def _merge(self) -> None:
        self._groups = merged([self._groups, *self._pending], self._group_rows)
        self._pending, self._pending_rows = [], 0

    def _grouped(
        self,
        keys: Any,
        bucket: npt.NDArray[np.int64],
        clicks: npt.NDArray[np.float64],
        others: npt.NDArray[np.float64],
    ) -> GroupSample:
        """Rows of the groups below the present bound."""
        [begins] = (np.asarray(level) for level in keys.lod())
        padded = np.append(np.array(keys).reshape(-1), 0)
        first = np.where(begins[1:] > begins[:-1], padded[begins[:-1]], 0).astype(np.int64).view(np.uint64)
        has = first != 0
        groups = hashed(first)
        if bound := self._groups.bound:
            has &= groups < np.uint64(bound)
        return GroupSample(0, rows_of(groups[has], bucket_in_group(bucket[has]), clicks[has], others[has]))
